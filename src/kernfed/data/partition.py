"""Labels and a seed in, index arrays out: how the rows of one data set are spread over sites.

Every ``partition_*`` function is pure and returns one sorted array of row numbers per site. The arrays are
disjoint and together cover every row; no site is left empty unless ``min_size=0`` asks for it.
:func:`long_tailed` selects rows (it does not cover) and :func:`holdout` splits the rows of one site. Labels
may be of any type: integers, strings, objects.
"""

from bisect import bisect_right
from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import check_count, check_number
from kernfed.base.random import generator
from kernfed.errors import InputError

Indices = npt.NDArray[np.intp]

# From here on every split is equal for any data that fit in memory; far above it numpy overflows.
_LARGEST_ALPHA = 1e9


def partition_dirichlet(y: npt.ArrayLike, n_sites: int, alpha: float, seed: int, min_size: int = 1) -> list[Indices]:
    """Label skew: each class is dealt to the sites in proportions drawn from Dir(alpha), SFM 4.3.

    A small ``alpha`` gives most of a class to few sites, a large one splits every class equally. The draw
    is made once. Sites that come out below ``min_size`` are then filled up to it with rows picked at random
    from the largest sites, one after the other, so the rule always ends and moves as few rows as it can.

    >>> [len(rows) for rows in partition_dirichlet([0, 0, 0, 1, 1, 1], 3, alpha=0.1, seed=0, min_size=2)]
    [2, 2, 2]
    """
    codes, classes = _encode(y, "y")
    n_sites, alpha, min_size = _check_draw(len(codes), n_sites, alpha, min_size)
    rng = generator(seed, "partition_dirichlet")
    return _by_site(_deal_classes(codes, len(classes), n_sites, alpha, min_size, rng), n_sites)


def partition_by_groups(
    y: npt.ArrayLike,
    groups: npt.ArrayLike,
    n_sites_per_group: int,
    alpha: float,
    seed: int,
    min_size: int = 1,
) -> list[Indices]:
    """Sites divided over groups, Dirichlet label skew inside each: the languages of XGLUE-NC, SFM 4.3.

    ``groups`` (n,) names the group of each row. The sites come group by group, groups in sorted order, and
    each is filled up to ``min_size`` as in :func:`partition_dirichlet`. A group's draw depends on its name
    and rows, not on the other groups.
    """
    codes, _ = _encode(y, "y")
    group_codes, group_names = _encode(groups, "groups")
    if len(group_codes) != len(codes):
        raise InputError(f"groups must have one entry per label ({len(codes)}), got {len(group_codes)}")
    sites: list[Indices] = []
    for rows, name in zip(_rows_by_code(group_codes, len(group_names)), group_names, strict=True):
        n_sites, alpha, min_size = _check_draw(
            len(rows),
            n_sites_per_group,
            alpha,
            min_size,
            name="n_sites_per_group",
            where=f" of group {name!r}",
        )
        rng = generator(seed, "partition_by_groups", str(name))
        own_classes, own_codes = np.unique(codes[rows], return_inverse=True)
        dealt = _deal_classes(own_codes, len(own_classes), n_sites, alpha, min_size, rng)
        sites += [rows[own] for own in _by_site(dealt, n_sites)]
    return sites


def partition_quantity(y: npt.ArrayLike, n_sites: int, alpha: float, seed: int, min_size: int = 1) -> list[Indices]:
    """Quantity skew: site sizes in proportions drawn from Dir(alpha), rows at random whatever their label.

    Sites below ``min_size`` are filled up as in :func:`partition_dirichlet`.
    """
    codes, _ = _encode(y, "y")
    n_sites, alpha, min_size = _check_draw(len(codes), n_sites, alpha, min_size)
    rng = generator(seed, "partition_quantity")
    # One class for all rows: the labels play no part in the draw.
    return _by_site(_deal_classes(np.zeros_like(codes), 1, n_sites, alpha, min_size, rng), n_sites)


def partition_label_skew(
    y: npt.ArrayLike, n_sites: int, share: float, seed: int, with_replacement: bool = False
) -> list[Indices]:
    """Each site owns a ``share`` of the classes; a class is split equally among its owners, GIKM 5.2.

    A site draws round(share * C) labels, at least one, without replacement. ``with_replacement=True`` draws
    them with replacement, as the authors' released program does: a label drawn twice by a site counts as
    two equal parts of that class, and such a site holds fewer distinct classes. A class that nobody drew
    takes over one draw, picked at random, of the class with the most owners, so every row has a site. A
    class with fewer rows than owners reaches only some of them; a site that would be left without any row
    is an error.
    """
    codes, classes = _encode(y, "y")
    n_sites, n_classes = check_count(n_sites, "n_sites"), len(classes)
    share = check_number(share, "share", above=0, at_most=1)
    n_labels = max(1, int(np.floor(share * n_classes + 0.5)))
    if n_sites * n_labels < n_classes:
        raise InputError(
            f"n_sites * labels per site must be >= the {n_classes} classes, got {n_sites} * {n_labels}; "
            "use more sites or a larger share"
        )
    rng = generator(seed, "partition_label_skew")
    labels = _draw_labels(n_sites, n_labels, n_classes, with_replacement, rng)
    site_of = np.empty(len(codes), np.intp)
    for code, rows in enumerate(_rows_by_code(codes, n_classes)):
        owners = rng.permutation(np.nonzero(labels == code)[0])  # random, so the odd rows favour nobody
        base, odd = divmod(len(rows), len(owners))
        site_of[rng.permutation(rows)] = np.repeat(owners, base + (np.arange(len(owners)) < odd))
    sites = _by_site(site_of, n_sites)
    empty = [number for number, rows in enumerate(sites) if not len(rows)]
    if empty:
        raise InputError(
            f"every site must get a row, got none for site {empty[0]} ({len(empty)} in all): its classes "
            "have fewer rows than owners; use fewer sites or a larger share"
        )
    return sites


def partition_one_class(y: npt.ArrayLike) -> list[Indices]:
    """One site per class, in sorted order of the classes: the single-class data of GIKM 5.1 and 5.4.

    >>> [rows.tolist() for rows in partition_one_class(["b", "a", "b"])]
    [[1], [0, 2]]
    """
    codes, classes = _encode(y, "y")
    return _rows_by_code(codes, len(classes))


def partition_by_column(values: npt.ArrayLike) -> dict[str, Indices]:
    """One site per distinct value, named by that value: for data that say themselves where they come from.

    >>> {name: rows.tolist() for name, rows in partition_by_column(["north", "south", "north"]).items()}
    {'north': [0, 2], 'south': [1]}
    """
    codes, distinct = _encode(values, "values")
    names = [v.decode(errors="backslashreplace") if isinstance(v, bytes) else str(v) for v in distinct]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"values must have distinct names as text, got {twice!r} for two different values")
    return dict(zip(names, _rows_by_code(codes, len(names)), strict=True))


def long_tailed(y: npt.ArrayLike, rho: float, seed: int) -> Indices:
    """Rows kept so that class sizes fall off exponentially by the factor ``rho``: CIFAR-10-LT of SFM 4.1.

    Classes are ranked c = 0 .. C-1 by decreasing size (ties in sorted order) and the class ranked c keeps
    floor(n_max * rho^(-c/(C-1))) random rows: at least one, at most all it has. Not a partition: rows are
    dropped.
    """
    codes, classes = _encode(y, "y")
    rho = check_number(rho, "rho", at_least=1)
    rng = generator(seed, "long_tailed")
    by_class = _rows_by_code(codes, len(classes))
    sizes = np.array([len(rows) for rows in by_class])
    kept = []
    for rank, code in enumerate(np.argsort(-sizes, kind="stable")):
        wanted = sizes.max() * rho ** (-rank / max(len(sizes) - 1, 1))
        # 1e-9: an exact integer such as 5000 / 100 must not lose a row to rounding in the power.
        size = int(np.clip(np.floor(wanted + 1e-9), 1, sizes[code]))
        kept.append(rng.choice(by_class[code], size, replace=False))
    return np.sort(np.concatenate(kept))


def holdout(
    y: npt.ArrayLike, share: float, seed: int, *, indices: npt.ArrayLike | None = None, site: str = ""
) -> tuple[Indices, Indices]:
    """Rows of one site split into (train, test), stratified by class; both sorted, disjoint and covering.

    ``indices`` are the rows of the site among those of ``y`` (all by default); ``site`` names its draw.
    About ``share`` of the rows, rounded, go to the test part, each class in proportion. Every class keeps
    at least one training row, so no class is met in testing only and a site of single rows has an empty
    test part. For a numeric target pass one constant label for all rows.
    """
    codes, classes = _encode(y, "y")
    rows = np.arange(len(codes)) if indices is None else _check_rows(indices, len(codes))
    share = check_number(share, "share", at_least=0, below=1)
    rng = generator(seed, "holdout", site)
    by_class = [rows[own] for own in _rows_by_code(codes[rows], len(classes))]
    sizes = np.array([len(own) for own in by_class])
    chosen = [rng.permutation(own)[:n] for own, n in zip(by_class, _test_sizes(sizes, share), strict=True) if n]
    test = np.sort(np.concatenate(chosen)) if chosen else np.empty(0, np.intp)
    return np.setdiff1d(rows, test, assume_unique=True), test


def _test_sizes(sizes: Indices, share: float) -> Indices:
    """Test rows per class: proportional, largest remainders first, one row of each class always left out."""
    most = np.maximum(sizes - 1, 0)
    exact = share * sizes
    whole: Indices = np.minimum(np.floor(exact + 1e-9).astype(np.intp), most)
    left = max(int(np.floor(share * sizes.sum() + 0.5)) - int(whole.sum()), 0)
    by_remainder = np.argsort(whole - exact, kind="stable")
    whole[by_remainder[(whole < most)[by_remainder]][:left]] += 1
    return whole


def _encode(values: npt.ArrayLike, name: str) -> tuple[Indices, list[Any]]:
    """Code of each value (n,) and the distinct values in sorted order."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(f"{name} must be one-dimensional, got rows of different lengths") from None
    if array.ndim != 1 or not len(array):
        raise InputError(f"{name} must be one-dimensional with at least 1 entry, got shape {array.shape}")
    if array.dtype.kind in "fcmM" and (array != array).any():  # NaN and NaT differ from themselves
        place = int(np.argmax(array != array))
        raise InputError(f"{name} must have no missing entries, got {array[place]} at index {place}")
    if array.dtype.kind in "biufc":
        distinct, codes = np.unique(array, return_inverse=True)
        return codes.astype(np.intp, copy=False), distinct.tolist()
    return _encode_hashable(array.tolist(), name)


def _encode_hashable(values: list[Hashable], name: str) -> tuple[Indices, list[Any]]:
    """The same for text and objects, by a dictionary: only the distinct values are sorted."""
    try:
        distinct: list[Any] = list(dict.fromkeys(values))
    except TypeError as error:
        raise InputError(f"{name} must hold hashable labels, got {error}") from None
    for value in filter(_is_missing, distinct):
        place = next(index for index, entry in enumerate(values) if entry is value)
        raise InputError(f"{name} must have no missing entries, got {value} at index {place}")
    try:
        distinct.sort()
    except TypeError:  # labels of several types have no order of their own
        distinct.sort(key=lambda value: (type(value).__name__, repr(value)))
    code = {value: number for number, value in enumerate(distinct)}
    return np.fromiter((code[value] for value in values), np.intp, len(values)), distinct


def _is_missing(value: object) -> bool:
    try:
        return value is None or bool(value != value)
    except TypeError:  # the missing value of pandas refuses to be compared
        return True


def _check_rows(indices: npt.ArrayLike, n_rows: int) -> Indices:
    rows = np.asarray(indices)
    if rows.ndim != 1 or not len(rows) or rows.dtype.kind not in "iu":
        raise InputError(f"indices must be at least 1 row number, got shape {rows.shape}, dtype {rows.dtype}")
    if rows.min() < 0 or rows.max() >= n_rows:
        raise InputError(f"indices must lie in 0 .. {n_rows - 1}, got {rows.min()} .. {rows.max()}")
    distinct = np.unique(rows).astype(np.intp)
    if len(distinct) < len(rows):
        raise InputError(f"indices must be distinct, got {len(rows) - len(distinct)} repeated among {len(rows)}")
    return distinct


def _check_draw(
    n_rows: int, n_sites: int, alpha: float, min_size: int, *, name: str = "n_sites", where: str = ""
) -> tuple[int, float, int]:
    n_sites = check_count(n_sites, name)
    alpha = check_number(alpha, "alpha", above=0, at_most=_LARGEST_ALPHA)
    min_size = check_count(min_size, "min_size", at_least=0)
    if n_sites * min_size > n_rows:
        raise InputError(
            f"{name} * min_size must be <= the {n_rows} rows{where}, got {n_sites} * {min_size}; use fewer sites"
        )
    return n_sites, alpha, min_size


def _deal_classes(
    codes: Indices, n_classes: int, n_sites: int, alpha: float, min_size: int, rng: np.random.Generator
) -> Indices:
    """Site of each row (n,): each class cut at the proportions of one Dirichlet draw, then filled up."""
    proportions = rng.dirichlet(np.full(n_sites, alpha), size=n_classes)
    site_of = np.empty(len(codes), np.intp)
    for rows, p in zip(_rows_by_code(codes, n_classes), proportions, strict=True):
        cuts = np.minimum(np.floor(np.cumsum(p[:-1]) * len(rows) + 0.5), len(rows)).astype(np.intp)
        site_of[rng.permutation(rows)] = np.repeat(np.arange(n_sites), np.diff(cuts, prepend=0, append=len(rows)))
    return _filled_up(site_of, n_sites, min_size, rng)


def _filled_up(site_of: Indices, n_sites: int, min_size: int, rng: np.random.Generator) -> Indices:
    """The same rows with no site below ``min_size``; needs n_sites * min_size <= n."""
    sizes = np.bincount(site_of, minlength=n_sites)
    missing = np.maximum(min_size - sizes, 0)
    total = int(missing.sum())
    if not total:
        return site_of
    # Taking row after row from the largest site lowers all large sites to one level, never below min_size.
    levels = range(int(sizes.max()) + 1)
    level = bisect_right(levels, -total, key=lambda at: -int(np.maximum(sizes - at, 0).sum())) - 1
    gifts = np.maximum(sizes - level, 0)
    gifts[np.flatnonzero(gifts)[: int(gifts.sum()) - total]] -= 1  # the last step down is not taken by everyone
    by_site = _by_site(site_of, n_sites)
    given = np.concatenate([rng.choice(by_site[s], gifts[s], replace=False) for s in np.flatnonzero(gifts)])
    filled = site_of.copy()
    filled[rng.permutation(given)] = np.repeat(np.arange(n_sites), missing)
    return filled


def _draw_labels(
    n_sites: int, n_labels: int, n_classes: int, with_replacement: bool, rng: np.random.Generator
) -> Indices:
    """Labels of each site (Q, k), every class drawn by somebody; needs Q k >= C."""
    if with_replacement:
        flat = rng.integers(n_classes, size=n_sites * n_labels)
    else:
        flat = rng.permuted(np.tile(np.arange(n_classes), (n_sites, 1)), axis=1)[:, :n_labels].ravel()
    for code in np.flatnonzero(np.bincount(flat, minlength=n_classes) == 0):
        # While a class has no owner some other has two, since there are at least as many draws as classes.
        most_owned = np.argmax(np.bincount(flat))
        flat[rng.choice(np.flatnonzero(flat == most_owned))] = code
    return flat.reshape(n_sites, n_labels)


def _rows_by_code(codes: Indices, n_codes: int) -> list[Indices]:
    """Sorted row numbers of each code 0 .. n_codes - 1."""
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.cumsum(np.bincount(codes, minlength=n_codes))[:-1])


_by_site = _rows_by_code

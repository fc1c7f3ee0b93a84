from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kernfed.base.random import generator
from kernfed.data import (
    holdout,
    long_tailed,
    partition_by_column,
    partition_by_groups,
    partition_dirichlet,
    partition_label_skew,
    partition_one_class,
    partition_quantity,
)

SEEDED: dict[str, Callable[..., list[np.ndarray]]] = {
    "dirichlet": partial(partition_dirichlet, n_sites=7, alpha=0.3),
    "quantity": partial(partition_quantity, n_sites=7, alpha=0.3),
    "label skew": partial(partition_label_skew, n_sites=7, share=0.4),
    "label skew, with replacement": partial(partition_label_skew, n_sites=7, share=0.4, with_replacement=True),
    "groups": lambda y, seed: partition_by_groups(y, np.arange(len(y)) % 2, 3, 0.3, seed),
}

labels = st.lists(st.integers(0, 5), min_size=1, max_size=80).map(np.array)
alphas = st.sampled_from([1e-6, 0.01, 0.1, 1.0, 10.0, 1e6, 1e9])
seeds = st.integers(0, 2**32)


def assert_partition(sites: list[np.ndarray], n: int, min_size: int = 1) -> None:
    """Sorted, disjoint, covering, none too small."""
    for rows in sites:
        assert rows.dtype == np.intp
        assert (np.diff(rows) > 0).all()
        assert len(rows) >= min_size
    assert np.array_equal(np.sort(np.concatenate(sites)), np.arange(n))


def naive_sizes(sizes: list[int], min_size: int) -> list[int]:
    """Oracle of filling up: one row at a time from the largest site to any site that is too small."""
    sizes = list(sizes)
    while min(sizes) < min_size:
        sizes[sizes.index(max(sizes))] -= 1
        sizes[sizes.index(min(sizes))] += 1
    return sizes


def naive_counts(y: np.ndarray, n_sites: int, alpha: float, seed: int) -> np.ndarray:
    """Oracle of the Dirichlet draw without filling up: rows of class c at site q, (C, Q)."""
    classes = sorted(set(y.tolist()))
    proportions = generator(seed, "partition_dirichlet").dirichlet([alpha] * n_sites, size=len(classes))
    counts = np.zeros((len(classes), n_sites), int)
    for c, label in enumerate(classes):
        n, done, upto = int((y == label).sum()), 0, 0.0
        for q in range(n_sites):
            upto += proportions[c, q]
            cut = n if q == n_sites - 1 else min(int(np.floor(upto * n + 0.5)), n)
            counts[c, q] = cut - done
            done = cut
    return counts


def counts_of(y: np.ndarray, sites: list[np.ndarray]) -> np.ndarray:
    return np.array([[int((y[rows] == label).sum()) for rows in sites] for label in sorted(set(y.tolist()))])


# ---------------------------------------------------------------- disjoint and covering


@given(labels, st.integers(1, 12), alphas, seeds, st.integers(0, 4))
def test_dirichlet_covers(y, n_sites, alpha, seed, min_size):
    assume(n_sites * min_size <= len(y))
    sites = partition_dirichlet(y, n_sites, alpha, seed, min_size=min_size)
    assert len(sites) == n_sites
    assert_partition(sites, len(y), min_size)


@given(labels, st.integers(1, 12), alphas, seeds, st.integers(0, 4))
def test_quantity_covers(y, n_sites, alpha, seed, min_size):
    assume(n_sites * min_size <= len(y))
    sites = partition_quantity(y, n_sites, alpha, seed, min_size=min_size)
    assert len(sites) == n_sites
    assert_partition(sites, len(y), min_size)


@given(st.integers(1, 8), st.integers(1, 12), st.floats(0.01, 1), seeds, st.booleans())
def test_label_skew_covers_and_splits_classes_equally(n_classes, n_sites, share, seed, with_replacement):
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(n_classes), 200))
    k = max(1, int(np.floor(share * n_classes + 0.5)))
    assume(n_sites * k >= n_classes)
    sites = partition_label_skew(y, n_sites, share, seed, with_replacement)
    assert len(sites) == n_sites
    assert_partition(sites, len(y))
    counts = counts_of(y, sites)
    assert ((counts > 0).sum(axis=0) <= k).all()
    if not with_replacement:
        assert ((counts > 0).sum(axis=0) == k).all()
        for row in counts:
            assert np.ptp(row[row > 0]) <= 1


@given(labels, st.integers(1, 3), alphas, seeds)
def test_groups_cover_and_stay_apart(y, n_sites, alpha, seed):
    groups = np.array(["de", "en", "fr"])[np.arange(len(y)) % 3]
    assume(len(y) >= 3 * n_sites)
    sites = partition_by_groups(y, groups, n_sites, alpha, seed)
    assert len(sites) == 3 * n_sites
    assert_partition(sites, len(y))
    for number, rows in enumerate(sites):
        assert set(groups[rows]) == {["de", "en", "fr"][number // n_sites]}


@given(labels)
def test_one_class_and_by_column_cover(y):
    sites = partition_one_class(y)
    assert_partition(sites, len(y))
    assert [set(y[rows].tolist()) for rows in sites] == [{label} for label in sorted(set(y.tolist()))]
    named = partition_by_column(y)
    assert list(named) == [str(label) for label in sorted(set(y.tolist()))]
    assert all(np.array_equal(a, b) for a, b in zip(named.values(), sites, strict=True))


@given(labels, st.floats(0, 0.99), seeds)
def test_holdout_covers_and_leaves_every_class_in_training(y, share, seed):
    train, test = holdout(y, share, seed)
    assert_partition([train, test], len(y), min_size=0)
    assert set(y[train].tolist()) == set(y.tolist())
    assert len(test) <= share * len(y) + 0.5
    for label in set(y.tolist()):
        assert abs((y[test] == label).sum() - share * (y == label).sum()) <= 1


@given(labels, st.floats(1, 1e6), seeds)
def test_long_tailed_keeps_some_of_every_class(y, rho, seed):
    kept = long_tailed(y, rho, seed)
    assert (np.diff(kept) > 0).all()
    assert set(y[kept].tolist()) == set(y.tolist())


# ---------------------------------------------------------------- oracles


@settings(max_examples=50)
@given(labels, st.integers(1, 9), alphas, seeds)
def test_dirichlet_is_the_naive_draw(y, n_sites, alpha, seed):
    sites = partition_dirichlet(y, n_sites, alpha, seed, min_size=0)
    assert np.array_equal(counts_of(y, sites), naive_counts(y, n_sites, alpha, seed))


@settings(max_examples=50)
@given(labels, st.integers(1, 9), alphas, seeds, st.integers(1, 5))
def test_filling_up_takes_from_the_largest(y, n_sites, alpha, seed, min_size):
    assume(n_sites * min_size <= len(y))
    drawn = partition_dirichlet(y, n_sites, alpha, seed, min_size=0)
    filled = partition_dirichlet(y, n_sites, alpha, seed, min_size=min_size)
    assert sorted(map(len, filled)) == sorted(naive_sizes([len(rows) for rows in drawn], min_size))
    for before, after in zip(drawn, filled, strict=True):  # a site gives or receives, never both
        assert set(before) <= set(after) or set(after) <= set(before)


@pytest.mark.parametrize(("n_classes", "size", "total"), [(10, 5000, 12406), (100, 500, 10847)])
def test_long_tailed_sizes_of_cifar(n_classes, size, total):
    # The sizes of CIFAR-10 and CIFAR-100 at imbalance 100; totals of floor(n_max rho^(-c/(C-1))).
    y = np.tile(np.arange(n_classes), size)
    kept = long_tailed(y, 100, seed=1)
    assert len(kept) == total
    sizes = np.bincount(y[kept])
    assert (sizes[0], sizes[-1]) == (size, size // 100)
    assert (np.diff(sizes) <= 0).all()


def test_long_tailed_ranks_by_size_and_keeps_what_there_is():
    y = np.repeat(["few", "many", "some"], [2, 100, 50])
    kept = y[long_tailed(y, 4, seed=0)].tolist()
    # Ranks: many 100, some 100 / 2, few min(2, 100 / 4).
    assert [kept.count(name) for name in ("few", "many", "some")] == [2, 100, 50]


# ---------------------------------------------------------------- seeds and labels


@pytest.mark.parametrize("name", SEEDED)
def test_same_seed_same_sites_other_seed_other_sites(name):
    y = np.arange(300) % 5
    first, again, other = (SEEDED[name](y, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", SEEDED)
@pytest.mark.parametrize(
    "rename",
    [
        lambda y: y.astype(np.uint8),
        lambda y: y * 0.5 - 1.0,
        lambda y: np.array([f"class {v}" for v in y]),
        lambda y: np.array([f"class {v}" for v in y], dtype=object),
        lambda y: np.array([b"%d" % v for v in y]),
        lambda y: [f"{v}" for v in y],
        lambda y: np.array([(v, "x") for v in y] + [None], dtype=object)[:-1],
        lambda y: np.array(["2020-01-01"], "M8[D]") + y,
    ],
)
def test_the_type_of_labels_does_not_matter(name, rename):
    y = np.arange(200) * 7 % 5
    expected, got = SEEDED[name](y, seed=3), SEEDED[name](rename(y), seed=3)
    assert all(np.array_equal(a, b) for a, b in zip(expected, got, strict=True))


def test_labels_of_several_types():
    y = np.array([1, "a", 2.5, "a", 1], dtype=object)
    assert sorted(rows.tolist() for rows in partition_one_class(y)) == [[0, 4], [1, 3], [2]]


def test_the_missing_value_of_pandas():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="got <NA> at index 1"):
        partition_one_class(pandas.Series(["a", None], dtype="string"))


def test_labels_are_not_changed():
    y = np.arange(100) % 3
    for split in SEEDED.values():
        split(y, seed=0)
    holdout(y, 0.3, 0)
    long_tailed(y, 10, 0)
    assert np.array_equal(y, np.arange(100) % 3)


def test_a_group_does_not_depend_on_the_others():
    y, groups = np.arange(60) % 3, np.repeat(["a", "b"], 30)
    alone = partition_by_groups(y[:30], groups[:30], 4, 0.5, seed=5)
    y[30:] += 3  # other classes in the other group
    both = partition_by_groups(y, groups, 4, 0.5, seed=5)
    assert all(np.array_equal(a, b) for a, b in zip(alone, both[:4], strict=True))


def test_groups_of_equal_rows_draw_differently():
    y, groups = np.tile(np.arange(30) % 3, 2), np.repeat(["a", "b"], 30)
    sites = partition_by_groups(y, groups, 4, 0.5, seed=5)
    assert not all(np.array_equal(a, b - 30) for a, b in zip(sites[:4], sites[4:], strict=True))


def test_holdout_of_one_site_by_name():
    y = np.arange(100) % 4
    rows = np.arange(0, 100, 2)[::-1]
    train, test = holdout(y, 0.2, 0, indices=rows, site="north")
    assert np.array_equal(np.union1d(train, test), np.sort(rows))
    assert len(test) == 10
    assert not np.array_equal(test, holdout(y, 0.2, 0, indices=rows, site="south")[1])


# ---------------------------------------------------------------- extremes


def test_alpha_goes_from_one_owner_to_equal_shares():
    y = np.arange(1000) % 2
    few = counts_of(y, partition_dirichlet(y, 5, 1e-6, 0, min_size=0))
    assert (few.max(axis=1) == 500).all()
    equal = counts_of(y, partition_dirichlet(y, 5, 1e9, 0))
    assert np.abs(equal - 100).max() <= 1


def test_one_site_holds_everything():
    y = np.arange(20) % 3
    for sites in (partition_dirichlet(y, 1, 0.1, 0), partition_quantity(y, 1, 1, 0), partition_label_skew(y, 1, 1, 0)):
        assert [rows.tolist() for rows in sites] == [list(range(20))]


def test_as_many_sites_as_rows():
    assert_partition(partition_dirichlet(np.zeros(9), 9, 0.01, 0), 9)


def test_label_skew_with_replacement_counts_a_double_draw_twice():
    # Two sites, two draws each over two classes: where a site draws one class twice it holds two parts of it.
    y = np.repeat([0, 1], 120)
    seen = {
        tuple(map(tuple, counts_of(y, partition_label_skew(y, 2, 1.0, s, with_replacement=True)))) for s in range(60)
    }
    assert ((60, 60), (60, 60)) in seen
    assert ((120, 0), (0, 120)) in seen
    assert ((80, 40), (0, 120)) in seen


def test_holdout_of_single_rows_is_all_training():
    train, test = holdout(["a", "b", "c"], 0.9, 0)
    assert train.tolist() == [0, 1, 2]
    assert test.tolist() == []


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: partition_dirichlet([0, 1], 0, 1, 0), "n_sites must be >= 1, got 0"),
        (lambda: partition_dirichlet([0, 1], 2.0, 1, 0), "n_sites must be an integer, got 2.0"),
        (lambda: partition_dirichlet([0, 1], 2, -1.0, 0), "alpha must be > 0, got -1.0"),
        (lambda: partition_dirichlet([0, 1], 2, float("nan"), 0), "alpha must be a finite number"),
        (lambda: partition_dirichlet([0, 1], 2, 1e300, 0), "alpha must be <= 1000000000.0"),
        (lambda: partition_dirichlet([0, 1], 2, 1, -1), "seed must be >= 0"),
        (lambda: partition_dirichlet([0, 1, 2], 2, 1, 0, min_size=2), r"must be <= the 3 rows, got 2 \* 2"),
        (
            lambda: partition_dirichlet([], 1, 1, 0),
            r"y must be one-dimensional with at least 1 entry, got shape \(0,\)",
        ),
        (lambda: partition_dirichlet([[0], [1]], 1, 1, 0), "y must be one-dimensional"),
        (lambda: partition_dirichlet([[0], [1, 2]], 1, 1, 0), "y must be one-dimensional, got rows of different"),
        (lambda: partition_dirichlet([0, np.nan], 1, 1, 0), "y must have no missing entries, got nan at index 1"),
        (lambda: partition_one_class(["a", None]), "y must have no missing entries, got None at index 1"),
        (lambda: partition_one_class(np.array(["a", float("nan")], dtype=object)), "got nan at index 1"),
        (lambda: partition_one_class(np.array(["2020", "NaT"], "M8[D]")), "got NaT at index 1"),
        (lambda: partition_one_class(np.array([{}, {}], dtype=object)), "y must hold hashable labels"),
        (lambda: partition_by_column(np.array([1, "1"], dtype=object)), "distinct names as text, got '1'"),
        (lambda: partition_by_groups([0, 1], ["a"], 1, 1, 0), r"one entry per label \(2\), got 1"),
        (lambda: partition_by_groups([0, 1], ["a", "b"], 2, 1, 0), "n_sites_per_group .* the 1 rows of group 'a'"),
        (lambda: partition_label_skew([0, 1, 2], 2, 0.1, 0), r">= the 3 classes, got 2 \* 1"),
        (lambda: partition_label_skew([0, 1], 2, 1.5, 0), "share must be <= 1, got 1.5"),
        (lambda: partition_label_skew([0, 1], 9, 0.5, 0), "every site must get a row"),
        (lambda: long_tailed([0, 1], 0.5, 0), "rho must be >= 1, got 0.5"),
        (lambda: holdout([0, 1], 1.0, 0), "share must be < 1, got 1.0"),
        (lambda: holdout([0, 1], 0.5, 0, indices=[0, 2]), r"indices must lie in 0 .. 1, got 0 .. 2"),
        (lambda: holdout([0, 1], 0.5, 0, indices=[1, 1]), "indices must be distinct, got 1 repeated among 2"),
        (lambda: holdout([0, 1], 0.5, 0, indices=[0.0]), "indices must be at least 1 row number"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()

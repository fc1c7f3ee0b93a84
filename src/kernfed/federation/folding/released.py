"""From a site's rows to rows that may be modelled by anyone: released once, then only processed further.

Everything after the release looks at released numbers, public labels and seeds only, so it is the same whatever the raw
rows were.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.base.random import generator
from kernfed.errors import InputError, Refused
from kernfed.federation.folding.machines import SiteMachines, divide, extended, fit_batches, reduced
from kernfed.federation.folding.recipe import Recipe
from kernfed.files import Record, labels_from_values, labels_to_values
from kernfed.kahm.model import FoldingParameters
from kernfed.kernels import Moments
from kernfed.privacy import ClassMoments, Ledger, RandomizedLabels, RecordMoments, fabricate_rows
from kernfed.site.protocol.message import digest
from kernfed.site.release.asked import check_task
from kernfed.site.release.kept import members, public_identity
from kernfed.site.release.permit import Permit, record_promise, releasing
from kernfed.site.rows import Rows
from kernfed.site.site import Site


@contextmanager
def releasing_by(site: Site, recipe: Recipe) -> Iterator[Permit]:
    """A permit for what a recipe releases, or a refusal."""
    if recipe.labels is None:
        check_task(site, "classify")
    with releasing(site, *recipe.releases) as permit:
        yield permit


def fingerprint(site: Site, rows: Rows, *, randomized: bool) -> str:
    """What tells machines of what is released of ``rows`` from others: as for the release, nothing that rows hold.

    With ``randomized`` labels the policy decides which classes count.
    """
    whole = digest({"data": public_identity(site, rows), "members": members(site, rows)})
    return f"{whole}/{site.policy.min_rows_per_class}" if randomized else whole


def labelled_rows(permit: Permit) -> Rows:
    """The site's rows with public labels, or with randomised ones, each drawn once."""
    rows = permit.rows()
    if permit.labels is None or not len(rows.y):
        return rows
    return permit.site.without_small_classes(_randomized(permit, permit.labels, rows))


def _randomized(permit: Permit, labels: RandomizedLabels, rows: Rows) -> Rows:
    """Rows with randomised labels. A label that was not declared counts as the first one, here as in the mechanism.

    The site's log notes a label that was changed in place by the label itself, not by its place among those declared.
    """
    true = replace(rows, X=_label_marks(rows.y)[:, None])

    def compute(part: Rows, ledger: Ledger) -> FloatArray:
        drawn = labels.release(part.y, ledger=ledger, ids=part.people).values
        return labels.numbers(drawn).astype(np.float64)[:, None]

    numbers = permit.row_by_row(true, compute, mechanism=labels)[:, 0].astype(np.intp)
    return replace(rows, y=np.asarray(labels.classes)[numbers])


def _label_marks(y: npt.NDArray[Any]) -> FloatArray:
    """A number (n,) for each label, the same whatever is declared; whole, and small enough for float64."""
    marks = {label: hashlib.sha256(repr(label).encode()).digest()[:6] for label in set(y.tolist())}
    return np.array([float(int.from_bytes(marks[label], "little")) for label in y.tolist()])


def released_material(permit: Permit, recipe: Recipe, parameters: FoldingParameters) -> tuple[Rows, Rows]:
    """Rows to make machines of, under public ids, and the rows (with released labels) they stand for.

    Whatever was released before comes from the store; the rest is charged to the ledger and released now.
    """
    rows, mechanism = labelled_rows(permit), recipe.mechanism
    if not len(rows.y):
        raise Refused("empty", f"site {permit.site.name!r} has no rows that it may speak of")
    try:
        if isinstance(mechanism, RecordMoments):
            return _fabricated(permit, recipe, mechanism, rows, parameters.seed), rows

        def compute(part: Rows, ledger: Ledger) -> FloatArray:
            return mechanism.release(part.X, ledger=ledger, ids=part.people).values

        return replace(rows, X=permit.row_by_row(rows, compute)), rows
    except InputError as error:  # parameters that do not fit the site's columns
        raise Refused("bad question", f"site {permit.site.name!r} cannot release its rows: {error}") from None


def _fabricated(permit: Permit, recipe: Recipe, mechanism: RecordMoments, rows: Rows, seed: int) -> Rows:
    """Rows fabricated from the released moments; their ids are numbers of no person."""

    def compute(ledger: Ledger) -> Record:
        return moments_to_record(mechanism.release(rows.X, rows.y, ledger=ledger, ids=rows.people).classes)

    return fabricated_rows(permit.site.name, recipe, mechanism, permit.once(rows, compute), seed)


def fabricated_rows(site: str, recipe: Recipe, mechanism: RecordMoments, release: Record, seed: int) -> Rows:
    """Rows of the moments in a release of a site, the same whenever they are made."""
    classes = moments_from_record(release)
    draws = int(generator(seed, site, "fabricate").integers(2**31))
    X, y = fabricate_rows(classes, recipe.rows_per_class, radius=mechanism.radius, seed=draws)
    return Rows(X, y, np.arange(len(y), dtype=np.int64))


def moments_to_record(classes: Sequence[ClassMoments]) -> Record:
    """Released moments as arrays: counts (C,), means (C, k), scatters (C, k, k), noise (C,)."""
    arrays = {
        "counts": np.array([part.moments.n for part in classes], dtype=np.int64),
        "means": np.stack([part.moments.mean for part in classes]),
        "scatters": np.stack([part.moments.scatter for part in classes]),
        "noise": np.array([part.noise for part in classes]),
    }
    return Record(arrays, {"labels": labels_to_values(np.array([part.label for part in classes]))})


def moments_from_record(record: Record) -> tuple[ClassMoments, ...]:
    """Released moments from ``moments_to_record``."""
    arrays, labels = record.arrays, labels_from_values(record.values["labels"]).tolist()
    k = arrays["means"].shape[1]
    return tuple(
        ClassMoments(label, Moments(int(n), k, mean, scatter), float(noise))
        for label, n, mean, scatter, noise in zip(
            labels, arrays["counts"], arrays["means"], arrays["scatters"], arrays["noise"], strict=True
        )
    )


def fit_released(
    permit: Permit, recipe: Recipe, parameters: FoldingParameters, earlier: SiteMachines | None = None
) -> SiteMachines:
    """Machines of rows released by ``recipe``, with the membership of ``earlier``, if given, for rows it knows."""
    site, randomized = permit.site, recipe.labels is not None
    data = fingerprint(site, permit.rows(), randomized=randomized)
    rows, behind = released_material(permit, recipe, parameters)
    made: SiteMachines | None
    if earlier is None or not recipe.by_row:
        made = fit_batches(rows, parameters, *divide(rows, parameters), shape=recipe.shape)
    else:
        kept = reduced(earlier, rows, recipe.shape)
        made = kept and (extended(kept, rows, recipe.shape) or kept)
    if made is None:
        raise Refused("empty", f"site {site.name!r} has no rows that it may speak of")
    about = {
        "recipe": recipe.to_values(),
        "by_row": recipe.by_row,
        "randomized": randomized,
        "record": [None if math.isinf(number) else number for number in record_promise(site, *recipe.releases)],
        "rows": len(behind.y),
        "smallest": int(np.unique(behind.y, return_counts=True)[1].min()),
    }
    return replace(made, data=data, private=about)

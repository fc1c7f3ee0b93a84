"""From a site's rows to rows that may be modelled by anyone: released once, then only processed further.

Rows get noise, one by one, and are smoothed batch by batch (SFM 3.8.2, DP-KAHM Definitions 13-14); or the moments of
each class are released and rows fabricated from them. Everything after the release looks at released numbers, public
labels and seeds only, so it is the same whatever the raw rows were.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from kernfed._random import generator
from kernfed._threads import resolve_jobs
from kernfed._validation import FloatArray, check_choice, check_count
from kernfed.errors import InputError, Refused
from kernfed.federation.folding.tasks import Entry, divide, extended, fit_entry, reduced
from kernfed.federation.protocol.schema import Schema
from kernfed.federation.release.charging import (
    check_release,
    mechanism_from_values,
    mechanism_to_values,
    promise,
    public_projection,
    released,
    released_rows,
    spent,
    with_labels,
)
from kernfed.federation.release.kept import source_rows
from kernfed.federation.site.site import Rows, Site
from kernfed.files import Record, labels_from_values, labels_to_values
from kernfed.kahm.model import FoldingParameters
from kernfed.kahm.terms import Terms
from kernfed.kernels import Moments
from kernfed.privacy import (
    ClassMoments,
    DiscreteStaircase,
    ElementLaplace,
    ElementStaircase,
    Guarantee,
    Ledger,
    RandomizedLabels,
    RecordGaussian,
    RecordMoments,
    fabricate_rows,
)
from kernfed.privacy.smoothing import fabricate, smooth

ROW_MECHANISMS = (ElementLaplace, ElementStaircase, RecordGaussian)
# Steps of a staircase after which nothing is left of its mass that a standard deviation could show.
_STEPS = 1_000_000


@dataclass(frozen=True, eq=False)
class Recipe:
    """How the rows that machines are made of come about, the same at every site.

    labels : how labels are randomised; None takes them as public
    smoothing : steps on the noisy rows of a batch, a number or "coupled_bootstrap"
    fabricate : whether the smoothed rows are then replaced by their images
    rows_per_class : rows fabricated from each class's moments (``RecordMoments`` only)
    """

    mechanism: ElementLaplace | ElementStaircase | RecordGaussian | RecordMoments
    labels: RandomizedLabels | None = None
    smoothing: str | int = "coupled_bootstrap"
    fabricate: bool = False
    rows_per_class: int = 1000

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, (*ROW_MECHANISMS, RecordMoments)):
            raise InputError(
                "privacy must be an ElementLaplace, ElementStaircase, RecordGaussian or RecordMoments of "
                f"kernfed.privacy, got {self.mechanism!r:.80}"
            )
        if self.labels is not None and not isinstance(self.labels, RandomizedLabels):
            raise InputError(f"labels must be None (public) or RandomizedLabels, got {self.labels!r:.80}")
        if self.smoothing == "oracle":
            raise InputError(
                "smoothing must not be 'oracle': that rule looks at the raw rows, and what it finds is "
                "not private; use 'coupled_bootstrap' or a number of steps"
            )
        if isinstance(self.smoothing, str):
            check_choice(self.smoothing, "smoothing", ("coupled_bootstrap",))
        else:
            check_count(self.smoothing, "smoothing", at_least=0, at_most=100)
        if not isinstance(self.fabricate, bool):
            raise InputError(f"fabricate must be True or False, got {self.fabricate!r}")
        check_count(self.rows_per_class, "rows_per_class", at_most=100_000)

    @property
    def by_row(self) -> bool:
        """Whether every row is released by itself."""
        return not isinstance(self.mechanism, RecordMoments)

    def to_values(self) -> dict[str, Any]:
        """Plain values for messages and files."""
        labels = None if self.labels is None else mechanism_to_values(self.labels)
        return {
            "mechanism": mechanism_to_values(self.mechanism),
            "labels": labels,
            "smoothing": self.smoothing,
            "fabricate": self.fabricate,
            "rows_per_class": self.rows_per_class,
        }

    @classmethod
    def from_values(cls, values: Any) -> "Recipe":
        """Recipe from ``to_values``; anything else raises ``ValueError``."""
        names = set(cls.__dataclass_fields__)
        if not isinstance(values, Mapping) or set(values) != names:
            raise InputError(f"privacy must be described by {', '.join(sorted(names))}, got {values!r:.200}")
        mechanism: Any = mechanism_from_values(values["mechanism"])
        labels: Any = None if values["labels"] is None else mechanism_from_values(values["labels"])
        return cls(mechanism, labels, values["smoothing"], values["fabricate"], values["rows_per_class"])

    def promise(self, width: int) -> tuple[Guarantee, Guarantee]:
        """Guarantee per element and per record for rows of ``width`` columns and, where randomised, their labels."""
        return with_labels(promise(self.mechanism, width), self.labels)

    def terms(self, width: int) -> Terms:
        """What a model made of rows of ``width`` columns says of its privacy; what sites spent is added later."""
        element, record = self.promise(width)
        labels = "labels, classes and rows per class are public"
        if self.labels is not None:
            labels = f"labels are randomised with epsilon {self.labels.epsilon:g}; the classes there can be are public"
        return Terms(
            self.to_values(),
            (str(element), str(record), labels),
            (element.epsilon, element.delta),
            (record.epsilon, record.delta),
            {},
            public_projection(self.mechanism, width),
        )

    def shape(self, batches: Sequence[FloatArray], parameters: FoldingParameters) -> list[FloatArray]:
        """Rows that machines are fitted on, from the released rows of every batch."""
        if not self.by_row or (self.smoothing == 0 and not self.fabricate) or not batches:
            return list(batches)
        process = fabricate if self.fabricate else smooth
        noise = noise_deviation(self.mechanism, batches[0].shape[1])
        dim = "auto" if parameters.subspace_dim is None else parameters.subspace_dim

        def one(rows: FloatArray) -> FloatArray:
            return process(
                rows, noise=noise, steps=self.smoothing, subspace_dim=dim, batch_size=len(rows), seed=parameters.seed
            ).values

        work = Parallel(n_jobs=resolve_jobs(None), prefer="threads")
        made: list[FloatArray] = work(delayed(one)(rows) for rows in batches)
        return made


def read_recipe(values: Any) -> Recipe:
    """Recipe in a question, or a refusal."""
    try:
        return Recipe.from_values(values)
    except (ValueError, RecursionError) as error:
        raise Refused("bad question", f"the privacy asked for cannot be followed: {error}") from None


def noise_deviation(mechanism: Any, width: int) -> float:
    """Standard deviation of the noise on an element of released rows of ``width``; it is public."""
    if isinstance(mechanism, RecordGaussian):
        noise, step, _ = mechanism.law(width)
        return float(step * math.sqrt(noise.variance))
    noise, step = mechanism.noise, mechanism.step
    if isinstance(noise, DiscreteStaircase):
        return float(step * math.sqrt(_staircase_variance(noise)))
    q = math.exp(-float(noise.rate))
    return float(step * math.sqrt((1.0 - noise.atom) * 2.0 * q) / (1.0 - q))


def _staircase_variance(noise: DiscreteStaircase) -> float:
    """Sum of k^2 over the integers of each level, times the level's mass."""
    w, levels = noise.width, np.arange(1.0, min(_STEPS, math.ceil(60.0 / float(noise.epsilon))) + 1)
    first = noise.inner + (levels - 1) * w
    squares = w * first**2 + first * w * (w - 1) + (w - 1) * w * (2 * w - 1) / 6
    m = noise.inner - 1
    inner = m * (m + 1) * (2 * m + 1) / 6
    return 2.0 * float(noise.pmf(0)) * (inner + float(squares @ np.exp(-float(noise.epsilon) * levels)))


def check_recipe(site: Site, recipe: Recipe, width: int | None = None) -> None:
    """Refuse a recipe that the site's policy does not allow."""
    check_release(site, recipe.mechanism, recipe.labels, width=width)


# At a site --------------------------------------------------------------------------------------------------------


def released_labels(site: Site, labels: RandomizedLabels, rows: Rows) -> Rows:
    """The same rows with randomised labels, each drawn once."""
    place = {label: number for number, label in enumerate(labels.classes)}
    strange = [label for label in np.unique(rows.y).tolist() if label not in place]
    if strange:
        raise Refused(
            "bad question", f"site {site.name!r} has label {strange[0]!r}, which is not among the declared ones"
        )
    true = Rows(np.array([[float(place[label])] for label in rows.y.tolist()]), rows.y, rows.ids)

    def compute(part: Rows, ledger: Ledger) -> FloatArray:
        drawn = labels.release(part.y, ledger=ledger, ids=part.ids).values
        return np.array([[float(place[label])] for label in drawn.tolist()])

    numbers = released_rows(site, labels, true, compute)[:, 0].astype(np.intp)
    return Rows(rows.X, np.asarray(labels.classes)[numbers], rows.ids)


def released_schema(site: Site, values: Any) -> Schema:
    """Schema of the site's rows by the labels that the recipe of these values gives them."""
    recipe = read_recipe(values)
    check_recipe(site, recipe)
    return site.schema(_labelled_rows(site, recipe))


def _labelled_rows(site: Site, recipe: Recipe) -> Rows:
    """The site's rows with public or randomised labels."""
    rows = source_rows(site, randomized=recipe.labels is not None).rows
    if recipe.labels is None or not len(rows.y):
        return rows
    return site.without_small_classes(released_labels(site, recipe.labels, rows))


def released_material(site: Site, recipe: Recipe, parameters: FoldingParameters) -> tuple[Rows, Rows]:
    """Rows to make machines of, under public ids, and the rows (with released labels) they stand for.

    Whatever was released before comes from the store; the rest is charged to the ledger and released now.
    """
    check_recipe(site, recipe)
    rows = _labelled_rows(site, recipe)
    if not len(rows.y):
        raise Refused("empty", f"site {site.name!r} has no rows that it may speak of")
    mechanism = recipe.mechanism
    try:
        if isinstance(mechanism, RecordMoments):
            return _fabricated(site, recipe, mechanism, rows, parameters.seed), rows

        def compute(part: Rows, ledger: Ledger) -> FloatArray:
            return mechanism.release(part.X, ledger=ledger, ids=part.ids).values

        return Rows(released_rows(site, mechanism, rows, compute), rows.y, rows.ids), rows
    except ValueError as error:  # parameters that do not fit the site's columns
        raise Refused("bad question", f"site {site.name!r} cannot release its rows: {error}") from None


def _fabricated(site: Site, recipe: Recipe, mechanism: RecordMoments, rows: Rows, seed: int) -> Rows:
    """Rows fabricated from the released moments; their ids are numbers of no person."""
    record = released(
        site,
        mechanism,
        rows,
        lambda ledger: moments_to_record(mechanism.release(rows.X, rows.y, ledger=ledger, ids=rows.ids).classes),
        labels=recipe.labels,
    )
    draws = int(generator(seed, site.name, "fabricate").integers(2**31))
    X, y = fabricate_rows(moments_from_record(record), recipe.rows_per_class, radius=mechanism.radius, seed=draws)
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


# Machines ---------------------------------------------------------------------------------------------------------


def fit_released(site: Site, recipe: Recipe, parameters: FoldingParameters, earlier: Entry | None = None) -> Entry:
    """Entry of rows released by ``recipe``, with the membership of ``earlier``, if it is given, for rows it knows."""
    source = source_rows(site, randomized=recipe.labels is not None)
    rows, behind = released_material(site, recipe, parameters)
    entry: Entry | None
    if earlier is None or not recipe.by_row:
        entry = fit_entry(rows, parameters, *divide(rows, parameters, site.name), shape=recipe.shape)
    else:
        kept = reduced(earlier, rows, recipe.shape)
        entry = kept and (extended(kept, rows, recipe.shape) or kept)
    if entry is None:
        raise Refused("empty", f"site {site.name!r} has no rows that it may speak of")
    smallest = int(np.unique(behind.y, return_counts=True)[1].min())
    about = {
        "recipe": recipe.to_values(),
        "by_row": recipe.by_row,
        "randomized": recipe.labels is not None,
        "columns": site.width,
        "rows": len(behind.y),
        "smallest": smallest,
    }
    return replace(entry, data=source.data, private=about)


def statement(site: Site, recipe: Recipe) -> dict[str, list[str]]:
    """What the release promises and what the site's ledger has come to, (epsilon, delta) as text of one length."""
    element, record = recipe.promise(site.width)
    pairs = {
        "element": (element.epsilon, element.delta),
        "record": (record.epsilon, record.delta),
        "spent": spent(site),
    }
    return {name: [f"{number:.16e}" for number in pair] for name, pair in pairs.items()}

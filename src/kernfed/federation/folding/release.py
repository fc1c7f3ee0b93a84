"""How rows are released before machines are made of them, as it is asked and as a site does it."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from joblib import Parallel, delayed

from kernfed.base.checks import FloatArray, check_choice, check_count
from kernfed.base.random import generator
from kernfed.base.threads import resolve_jobs
from kernfed.errors import InputError, Refused
from kernfed.federation.folding.machines import SiteMachines, divide, extended, fit_batches, reduced
from kernfed.files import Record, labels_from_values, labels_to_values
from kernfed.kahm.choice import USUAL_UNIT
from kernfed.kahm.model import FoldingParameters
from kernfed.kernels import Moments
from kernfed.kernels.rows import Scaling
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
from kernfed.privacy.values import mechanism_from_values, mechanism_to_values, with_labels
from kernfed.promise import Terms
from kernfed.site.protocol.message import digest
from kernfed.site.release.kept import check_task, members, public_identity
from kernfed.site.release.permit import Permit, record_promise, releasing
from kernfed.site.rows import Rows
from kernfed.site.site import Site

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

    @property
    def releases(self) -> tuple[Any, RandomizedLabels | None]:
        """The mechanism of rows and that of labels, if they are randomised."""
        return self.mechanism, self.labels

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

    def guarantees(self, width: int) -> tuple[Guarantee, Guarantee]:
        """Guarantee per element and per record for rows of ``width`` columns and, where randomised, their labels."""
        return with_labels(self.mechanism.guarantees(width), self.labels)

    def terms(self, width: int) -> Terms:
        """What a model made of rows of ``width`` columns says of its privacy; what sites spent is added later."""
        request = self.to_values()
        protects = "rows" if self.labels is None else "rows and labels"
        return Terms(request["mechanism"], request["labels"], protects, *self.guarantees(width), request=request)

    def basis(self, width: int) -> FloatArray | None:
        """Public basis (width, k) that queries go through as the rows did, or None."""
        basis = self.mechanism.public_basis(width)
        return None if basis is None else np.ascontiguousarray(basis)  # in one order: no bit of a query depends on it

    def scaling(self, width: int) -> Scaling:
        """The unit of rows of ``width`` columns by their public bounds alone.

        Elements come to at most 1; rows of a ball to the usual unit for an entry of the longest one.
        """
        if isinstance(self.mechanism, (ElementLaplace, ElementStaircase)):
            return Scaling.by(max(map(abs, self.mechanism.bounds)), 1.0)
        basis = self.basis(width)
        columns = width if basis is None else basis.shape[1]
        return Scaling.by(self.mechanism.radius / math.sqrt(columns), USUAL_UNIT)

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

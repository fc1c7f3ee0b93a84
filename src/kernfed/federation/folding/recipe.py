"""How the rows that machines are made of come about under differential privacy, the same at every site.

Rows get noise, one by one, and are smoothed batch by batch (SFM 3.8.2, DP-KAHM Definitions 13-14); or the moments of
each class are released and rows fabricated from them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from kernfed.base.checks import FloatArray, check_choice, check_count
from kernfed.base.threads import resolve_jobs
from kernfed.errors import InputError, Refused
from kernfed.kahm.choice import USUAL_UNIT
from kernfed.kahm.model import FoldingParameters
from kernfed.kernels.rows import Scaling
from kernfed.privacy import (
    DiscreteStaircase,
    ElementLaplace,
    ElementStaircase,
    Guarantee,
    RandomizedLabels,
    RecordGaussian,
    RecordMoments,
)
from kernfed.privacy.smoothing import fabricate, smooth
from kernfed.privacy.values import mechanism_from_values, mechanism_to_values, with_labels
from kernfed.promise import Terms

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

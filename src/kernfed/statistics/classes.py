"""Counts, sums and second moments of the rows of each class, around 0 or around public centres.

Rows are projected publicly and clipped to a ball. Sensitivities in L2 for rows of the unit ball:

===============  =======================  =============================
array            a record replaced        a record added or removed
===============  =======================  =============================
counts           sqrt(2)                  1
sums of rows     2                        1
second moments   sqrt(2)                  1
sums and second  sqrt(4.5)                sqrt(2)
===============  =======================  =============================

``|x-z|^2 + |xx'-zz'|_F^2 = a + b - 2p + a^2 + b^2 - 2p^2 <= 4.5`` (a = |x|^2 = 1, b = |z|^2 = 1, p = x'z = -1/2). A
record that is replaced by one of another class moves two classes, by 1 each in every array: no further than two of one
class can be apart. A label that is no class is in none of the sums.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_choice, check_count
from kernfed.errors import InputError
from kernfed.kernels.moments import Moments
from kernfed.statistics.bounds import (
    BASES,
    LARGEST_VALUE,
    MOST_NUMBERS,
    Floats,
    check_scale,
    check_seed,
    check_shape,
    clip_rows,
    in_basis,
    product,
    public_basis,
    saturate,
)
from kernfed.statistics.statistic import (
    MOST_ENTRIES,
    Numbers,
    Part,
    Result,
    Statistic,
    cell_counts,
    check_classes,
    class_sums,
    label_places,
)

COUNT_SENSITIVITY = SECOND_SENSITIVITY = math.sqrt(2.0)
MEAN_SENSITIVITY = 2.0
PAIR_SENSITIVITY = math.sqrt(4.5)
#: Shares of the squared mu: counts are few and large, the covariances have the most numbers.
COUNTS_SHARE, MEANS_SHARE = 0.02, 0.13


@dataclass(frozen=True, eq=False)
class ClassMoments:
    """Moments of the projected rows of one class, whose covariance can have negative eigenvalues under noise.

    ``noise`` is the standard deviation of a diagonal entry of the covariance; infinite if only the mean is known.
    """

    label: Any
    moments: Moments
    noise: float

    @property
    def covariance(self) -> Floats:
        """Second moment around the mean (k, k), as it was summed."""
        return self.moments.scatter / self.moments.n

    def eigen(self) -> tuple[Floats, Floats]:
        """Eigenvalues (k,) and eigenvectors (k, k) of the nearest covariance: negative eigenvalues become 0."""
        if math.isinf(self.noise):
            raise InputError(
                "a covariance is needed, got means only: use release, or release_spreads around these means"
            )
        values, vectors = np.linalg.eigh(self.covariance)
        return np.maximum(values, 0.0), vectors

    @property
    def noise_norm(self) -> float:
        """Typical spectral norm of the noise in the covariance, ``noise sqrt(2k)``."""
        return self.noise * math.sqrt(2 * self.moments.width)


@dataclass(frozen=True)
class ClassCounts(Statistic[Floats]):
    """How many rows are of each of the public ``classes``."""

    name: ClassVar[str] = "class_counts"

    classes: tuple[Any, ...]

    def __post_init__(self) -> None:
        check_classes(self.classes)

    @property
    def parts(self) -> Mapping[str, Part]:
        """``counts`` (C,), of which a row is in one, or in none."""
        return {"counts": Part((len(self.classes),), COUNT_SENSITIVITY, 1.0, 1.0, 0)}

    def factors(self, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[Numbers, ...]:
        """Place (n,) of each label among the classes, C for one that is none of them."""
        return (label_places(y, self.classes),)

    def total(self, *factors: Numbers) -> dict[str, Numbers]:
        """Rows (C,) of each class, without those of no class."""
        return {"counts": _class_counts(factors[0], len(self.classes))}

    def read(self, sums: Mapping[str, Floats], rows: int, deviation: Mapping[str, float]) -> Floats:
        """Counts (C,); with noise they may be below 0."""
        return sums["counts"]


@dataclass(frozen=True, eq=False)
class _ProjectedClasses(Statistic[Result]):
    """Sums over the rows of each class in a public basis.

    width : columns p of the rows. dimension, basis, shape, seed : those of ``public_basis``, or basis "given" for the
    columns as they are; ``matrix`` (p, k) in place of a named basis. radius : to which projected rows are clipped.
    counted : whether classes are counted; where labels are public they need not be.
    """

    arrays: ClassVar[tuple[str, ...]] = ("matrix",)

    classes: tuple[Any, ...]
    width: int
    dimension: int
    radius: float
    basis: str = "random"
    shape: tuple[int, ...] | None = None
    seed: int = 0
    counted: bool = True
    matrix: FloatArray | None = None

    def __post_init__(self) -> None:
        check_classes(self.classes)
        check_count(self.width, "width", at_most=MOST_NUMBERS)
        check_count(self.dimension, "dimension", at_most=self.width)
        check_scale(self.radius, "radius")
        check_choice(self.basis, "basis", (*BASES, "given"))
        check_shape(self.shape)
        check_seed(self.seed)
        if type(self.counted) is not bool:
            raise InputError(f"counted must be True or False, got {self.counted!r:.40}")
        check_count(self.width * self.dimension, "numbers of the basis", at_most=MOST_ENTRIES)
        if self.matrix is None and self.basis == "given" and self.dimension != self.width:
            raise InputError(f"the columns as given are {self.width}, and dimension is {self.dimension}")
        self._basis()  # refuses a matrix or a shape that does not fit

    def _basis(self) -> FloatArray | None:
        """The basis (p, k), None for the columns as they are."""
        if self.matrix is None and self.basis == "given":
            return None
        basis = self.basis if self.matrix is None else self.matrix
        return public_basis(basis, self.width, self.dimension, seed=self.seed, shape=self.shape)

    @property
    def _sizes(self) -> tuple[int, int]:
        return len(self.classes), self.dimension

    def _counts_part(self, share: float) -> dict[str, Part]:
        counts = Part((len(self.classes),), COUNT_SENSITIVITY, 1.0, share, 0)
        return {"counts": counts} if self.counted else {}

    def _project(self, X: npt.NDArray[Any]) -> Floats:
        basis = self._basis()
        return saturate(X) if basis is None else in_basis(X, basis)

    def factors(self, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[Numbers, ...]:
        """Projected rows (n, k) in the unit ball, and places (n,) of their labels."""
        return clip_rows(self._project(X), self.radius) / self.radius, label_places(y, self.classes)

    def total(self, *factors: Numbers) -> dict[str, Numbers]:
        """Counts and sums by class, and products where they are a part."""
        points, places = factors
        classes, added = len(self.classes), {}
        if "counts" in self.parts:
            added["counts"] = _class_counts(places, classes)
        if "sums" in self.parts:
            added["sums"] = class_sums(points, places, classes)
        if "second" in self.parts:
            added["second"] = _class_products(points, places, classes)
        return added

    def _means(self, sums: Mapping[str, Floats], rows: int) -> tuple[Floats, Floats]:
        """Rows (C,) of each class, at least 1, and means (C, k); a class that is not counted has all ``rows``."""
        sizes = np.maximum(sums["counts"], 1.0) if self.counted else np.full(len(self.classes), float(rows))
        return sizes, np.asarray(self.radius * sums["sums"] / sizes[:, None])


@dataclass(frozen=True, eq=False)
class ClassMeans(_ProjectedClasses[tuple[Floats, Floats]]):
    """Counts (C,) of classes, and sums (C, k) of their rows in a public basis."""

    name: ClassVar[str] = "class_means"

    @property
    def parts(self) -> Mapping[str, Part]:
        """``counts`` (C,) and ``sums`` (C, k)."""
        whole = COUNTS_SHARE + MEANS_SHARE
        share = MEANS_SHARE / whole if self.counted else 1.0
        return self._counts_part(COUNTS_SHARE / whole) | {"sums": Part(self._sizes, MEAN_SENSITIVITY, 1.0, share)}

    def read(self, sums: Mapping[str, Floats], rows: int, deviation: Mapping[str, float]) -> tuple[Floats, Floats]:
        """Rows (C,) of each class, at least 1, and their means (C, k), inside the ball they must be in."""
        sizes, means = self._means(sums, rows)
        longest = np.maximum(np.linalg.norm(means, axis=1, keepdims=True) / self.radius, 1.0)
        return sizes, np.asarray(means / longest)


@dataclass(frozen=True, eq=False)
class JointMoments(_ProjectedClasses[tuple[ClassMoments, ...]]):
    """Counts (C,), sums (C, k) and second moments (C, k, k) around 0 of the rows of each class, at once."""

    name: ClassVar[str] = "class_moments"

    @property
    def parts(self) -> Mapping[str, Part]:
        """``counts`` (C,), ``sums`` (C, k) and ``second`` (C, k, k): the last two have one bound for both together."""
        pair = (PAIR_SENSITIVITY, math.sqrt(2.0), 1.0 - COUNTS_SHARE if self.counted else 1.0)
        second = Part((*self._sizes, self.dimension), *pair, 2, symmetric=True, joint="moments")
        return self._counts_part(COUNTS_SHARE) | {"sums": Part(self._sizes, *pair, joint="moments"), "second": second}

    def read(self, sums: Mapping[str, Floats], rows: int, deviation: Mapping[str, float]) -> tuple[ClassMoments, ...]:
        """Moments of each class around its mean."""
        sizes, means = self._means(sums, rows)
        scatter = self.radius**2 * sums["second"] - sizes[:, None, None] * means[:, :, None] * means[:, None, :]
        noise = self.radius**2 * deviation.get("second", 0.0)
        return class_moments(self.classes, sizes, means, scatter, noise)


@dataclass(frozen=True, eq=False)
class CentredMoments(_ProjectedClasses[Floats]):
    """Second moments (C, k, k) of the rows of each class around public ``centres`` (C, k), those of ``ClassMeans``.

    ``radius`` is that of the ball around a centre to which rows are clipped.
    """

    name: ClassVar[str] = "class_spreads"
    arrays: ClassVar[tuple[str, ...]] = ("matrix", "centres")

    centres: FloatArray | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        centres = self.centres
        if not isinstance(centres, np.ndarray) or centres.shape != self._sizes or centres.dtype.kind not in "fiu":
            raise InputError(f"centres must be numbers of shape {self._sizes}, one for each class")
        if not (np.abs(centres) <= LARGEST_VALUE).all():
            raise InputError(f"centres must be finite, and no further out than {LARGEST_VALUE:g}")

    @property
    def parts(self) -> Mapping[str, Part]:
        """``second`` (C, k, k), symmetric, in units of the squared radius."""
        second = Part((*self._sizes, self.dimension), SECOND_SENSITIVITY, 1.0, 1.0, 2, symmetric=True)
        return {"second": second}

    def factors(self, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[Numbers, ...]:
        """Projected rows (n, k) less their centres, in the unit ball, and places (n,) of their labels."""
        places, centres = label_places(y, self.classes), np.asarray(self.centres, dtype=np.float64)
        around = self._project(X) - np.vstack([centres, np.zeros(self.dimension)])[places]
        return clip_rows(around, self.radius) / self.radius, places

    def read(self, sums: Mapping[str, Floats], rows: int, deviation: Mapping[str, float]) -> Floats:
        """Scatter (C, k, k) around the centres."""
        return np.asarray(self.radius**2 * sums["second"])


def class_moments(
    classes: tuple[Any, ...], sizes: Floats, means: Floats, scatter: Floats, noise: float
) -> tuple[ClassMoments, ...]:
    """Moments of each class from rows (C,), means (C, k) and scatter (C, k, k), whose noise has this deviation."""
    width = means.shape[1]
    return tuple(
        ClassMoments(label, Moments(int(n), width, mean, spread), noise / n)
        for label, n, mean, spread in zip(classes, sizes.tolist(), means, scatter, strict=True)
    )


def _class_counts(places: npt.NDArray[Any], classes: int) -> Numbers:
    return cell_counts((classes + 1,), places)[:-1]


def _class_products(points: Numbers, places: npt.NDArray[Any], classes: int) -> Numbers:
    """Sums (C, k, k) of ``x x'`` over the rows of each class."""
    second = np.zeros((classes, points.shape[1], points.shape[1]), dtype=points.dtype)
    for place in np.unique(places[places < classes]):
        rows = points[places == place]
        second[place] = product(rows, rows)
    return second

"""Record-level privacy that keeps its use: noise on the moments of a class instead of on every row.

A class of n rows pays for its mean and covariance with noise that falls as 1/n, rows pay one by one. From the released
moments rows can be fabricated, any number of them, and classifiers built. Labels and class sizes are public, so
classes compose in parallel: a record is in one class only.

Trust: noise of one site protects its records from everyone. Sites that can add their integer sums (``sums.py``) under
encryption may add noise once to the total, which protects a record from everyone if whoever adds it is trusted to.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_choice, check_count, check_finite, check_number, check_rows
from kernfed.base.random import generator as seeded_generator
from kernfed.errors import InputError
from kernfed.kernels.moments import Moments
from kernfed.privacy.accounting import Event, epsilon_for
from kernfed.privacy.generator import NoiseGenerator, check_generator
from kernfed.privacy.ledger import Ledger
from kernfed.privacy.noisy_sum import Budget, add_noise
from kernfed.privacy.release import RecordMechanism, charge, only
from kernfed.promise import Guarantee
from kernfed.statistics.bounds import (
    BASES,
    LARGEST_VALUE,
    MOST_NUMBERS,
    Floats,
    check_basis,
    check_scale,
    check_seed,
    check_shape,
    clip_rows,
    exact_product,
    in_basis,
    public_basis,
    unit_grid,
)
from kernfed.statistics.classes import MEAN_SENSITIVITY, PAIR_SENSITIVITY, SECOND_SENSITIVITY, ClassMoments
from kernfed.statistics.statistic import Part

METHODS = ("centred", "joint")

# Share of the squared mu that the mean gets: it has k numbers, the covariance k(k+1)/2.
_MEAN_SHARE = 0.15


@dataclass(frozen=True, eq=False)
class MomentsRelease:
    """Moments of each class (``classes``, by sorted label) with the guarantee in both units.

    ``private`` and ``events`` as in ``Release``.
    """

    classes: tuple[ClassMoments, ...]
    element: Guarantee
    record: Guarantee
    private: bool
    events: tuple[Event, ...]


@dataclass(frozen=True, eq=False)
class RecordMoments(RecordMechanism):
    """Mean and covariance of each class under (epsilon, delta) for a whole row.

    Rows are projected publicly to ``dimension`` coordinates (``basis``, ``shape``, ``seed``: see ``public_basis``).
    ``radius``: public bound on their L2 norm, longer rows are shortened to it.

    None of these may be read from the data, and none has a value that suits all; choose from what is known without it:
        ``radius``     1 for embeddings of length 1; for p values from 0 to h about half of the longest row there can
        be, ``h sqrt(p) / 2``. One that is too small shortens nearly every row and leaves only directions; one that is
        too large wastes budget, as noise grows with it
        ``spread``     how far rows are from the mean of their class: half of ``radius`` for images, less where classes
        are narrow. The noise on the covariance grows with its square
        ``basis``      "dct" for images and signals, whose low frequencies tell most; a matrix from public data where
        there is some; "random" otherwise
        ``dimension``  the covariance of a class has dimension^2/2 numbers, all with noise: 24 to 48 for a hundred rows
        a class, 64 to 100 for thousands

    ``method``:
        ``"centred"``  the mean first, then the second moment of the rows around the released mean, in a ball of radius
        ``spread`` (default half of ``radius``). Noise falls with the square of ``spread``; rows that are further away
        are shortened, which costs little. Replacing a row moves the mean by 2 radius/n, then the second moment by
        sqrt(2) spread^2/n
        ``"joint"``    mean and second moment around 0 at once: replacing a row of the unit ball moves the pair by at
        most sqrt(4.5)/n
    """

    epsilon: float
    delta: float
    dimension: int
    radius: float
    spread: float | None = None
    basis: str | npt.ArrayLike = "random"
    shape: tuple[int, ...] | None = None
    seed: int = 0
    method: str = "centred"

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)
        check_count(self.dimension, "dimension", at_most=MOST_NUMBERS)
        check_scale(self.radius, "radius")
        if self.spread is not None:
            check_scale(self.spread, "spread")
        check_seed(self.seed)
        check_choice(self.method, "method", METHODS)
        object.__setattr__(self, "shape", check_shape(self.shape))
        if isinstance(self.basis, str):
            check_choice(self.basis, "basis", BASES)
        else:
            check_basis(self.basis)

    def project(self, X: npt.ArrayLike) -> FloatArray:
        """Rows (n, p) in the public basis, (n, dimension): where the moments and fabricated rows live."""
        rows = check_rows(X)
        return in_basis(rows, self.public_basis(rows.shape[1]))

    def public_basis(self, width: int) -> FloatArray:
        """The public basis (width, dimension) that queries go through as the rows did."""
        return public_basis(self.basis, width, self.dimension, seed=self.seed, shape=self.shape)

    def released_width(self, width: int) -> int:
        """Columns of fabricated rows."""
        return int(self.public_basis(width).shape[1])

    @property
    def adjacency(self) -> str:
        """How neighbours differ in one record."""
        return "one row replaced by any other of its public class"

    def release(self, X: npt.ArrayLike, y: npt.ArrayLike, **options: Any) -> MomentsRelease:
        """Moments of the rows ``X`` (n, p) of each class in ``y`` (n,).

        Options of every release: ``ledger``, ``generator`` and ``ids`` (n,), as in ``ElementLaplace.release``.
        """
        step = self._centred if self.method == "centred" else self._joint
        return self._release(X, y, step, 1.0, "moments", **options)

    def release_means(self, X: npt.ArrayLike, y: npt.ArrayLike, **options: Any) -> MomentsRelease:
        """The first half of a centred release: means only, for sites that pool them before ``release_spreads``.

        The two halves together cost what ``release`` costs.
        """
        return self._release(X, y, self._mean, _MEAN_SHARE, "means", **options)

    def release_spreads(
        self, X: npt.ArrayLike, y: npt.ArrayLike, centres: Sequence[ClassMoments], **options: Any
    ) -> MomentsRelease:
        """The second half: second moments around public ``centres``, those of ``pool_moments`` of all sites' means."""
        means = {part.label: part.moments.mean for part in centres}
        missing = sorted(set(np.unique(np.asarray(y)).tolist()) - set(means))
        if missing:
            raise InputError(f"centres must hold every class of y, got none for {missing[0]!r}")
        if any(mean.shape != (self.dimension,) for mean in means.values()):
            raise InputError(f"centres must have {self.dimension} coordinates, got {centres[0].moments.width}")
        if not all(np.abs(mean).max() <= LARGEST_VALUE for mean in means.values()):
            raise InputError(f"centres must be finite, and no further out than {LARGEST_VALUE:g}")

        def step(label: Any, rows: FloatArray, mu: float, source: NoiseGenerator) -> ClassMoments:
            return self._spread(label, rows, means[label], mu, source)

        return self._release(X, y, step, 1.0 - _MEAN_SHARE, "spreads", **options)

    def _release(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        step: "Step",
        share: float,
        what: str,
        *,
        ledger: Ledger | None = None,
        generator: NoiseGenerator | None = None,
        ids: Sequence[Any] | npt.NDArray[Any] | None = None,
    ) -> MomentsRelease:
        source = check_generator(generator)
        rows = self.project(X)
        labels = check_labels(y, len(rows))
        # Sampling error for twice the numbers: each half may then count as many as the whole has.
        whole = Budget(self.epsilon, self.delta).event(self.dimension * (self.dimension + 3))
        slack = whole.slack if share == 1.0 else whole.slack / 2
        event = replace(whole, mu=whole.mu * math.sqrt(share) * (1 - 1e-15), slack=slack)
        note = f"RecordMoments({self.epsilon:g}, {self.delta:g}, {self.dimension}) {what}"
        rows = only(rows, charge(ledger, (event,), rows, ids, source, note, together=True))
        names = np.unique(labels).tolist()
        classes = tuple(step(label, rows[labels == label], event.mu, source) for label in names)
        # A half costs less than the whole; together they cost what the whole does.
        epsilon = min(self.epsilon, epsilon_for((event,), self.delta))
        element, record = (replace(promise, epsilon=epsilon) for promise in self.guarantees(np.shape(X)[1]))
        return MomentsRelease(classes, element, record, source.private, (event,))

    @property
    def ball(self) -> float:
        """How far rows may be from the mean of their class."""
        return self.radius / 2 if self.spread is None else self.spread

    def _sum(self, rows: FloatArray, sensitivity: float, mu: float, source: NoiseGenerator) -> Floats:
        """Noisy sum (k,) of rows in the unit ball."""
        total = unit_grid(rows, self.radius).sum(axis=0).astype(np.int64)
        return add_noise(Part((self.dimension,), sensitivity, sensitivity), total, mu, source)

    def _second(self, rows: FloatArray, radius: float, sensitivity: float, mu: float, source: NoiseGenerator) -> Floats:
        """Noisy second moment (k, k) of rows around 0, clipped to the ball of ``radius``."""
        grid, part = unit_grid(rows, radius), Part(2 * (self.dimension,), sensitivity, sensitivity, 1.0, 2, True)
        return np.asarray(radius**2 * add_noise(part, exact_product(grid, grid), mu, source))

    def _mean(self, label: Any, rows: FloatArray, mu: float, source: NoiseGenerator) -> ClassMoments:
        mean = self.radius / len(rows) * self._sum(rows, MEAN_SENSITIVITY, mu, source)
        return ClassMoments(label, Moments(len(rows), self.dimension, mean, np.zeros(2 * mean.shape)), math.inf)

    def _spread(self, label: Any, rows: FloatArray, centre: Floats, mu: float, source: NoiseGenerator) -> ClassMoments:
        scatter = self._second(rows - centre, self.ball, SECOND_SENSITIVITY, mu, source)
        moments = Moments(len(rows), self.dimension, centre, scatter)
        return ClassMoments(label, moments, self.ball**2 * SECOND_SENSITIVITY / mu / len(rows))

    def _centred(self, label: Any, rows: FloatArray, mu: float, source: NoiseGenerator) -> ClassMoments:
        mean = self._mean(label, rows, mu * math.sqrt(_MEAN_SHARE), source).moments.mean
        return self._spread(label, rows, mean, mu * math.sqrt(1.0 - _MEAN_SHARE) * (1 - 1e-15), source)

    def _joint(self, label: Any, rows: FloatArray, mu: float, source: NoiseGenerator) -> ClassMoments:
        n = len(rows)
        mean = self.radius / n * self._sum(rows, PAIR_SENSITIVITY, mu, source)
        scatter = self._second(rows, self.radius, PAIR_SENSITIVITY, mu, source) - n * np.outer(mean, mean)
        moments = Moments(n, self.dimension, mean, scatter)
        return ClassMoments(label, moments, self.radius**2 * PAIR_SENSITIVITY / mu / n)


Step = Callable[[Any, FloatArray, float, NoiseGenerator], ClassMoments]


def check_labels(y: npt.ArrayLike, n: int) -> npt.NDArray[Any]:
    """Labels (n,), one per row."""
    labels = np.asarray(y)
    if labels.shape != (n,):
        raise InputError(f"y must have a label for each of the {n} rows of X, got shape {labels.shape}")
    if labels.dtype.kind not in "iubfUS":
        raise InputError(f"y must hold numbers or strings, got dtype {labels.dtype}")
    if labels.dtype.kind == "f":
        check_finite(labels, "y")
    return labels


def pool_moments(releases: Sequence[MomentsRelease]) -> tuple[ClassMoments, ...]:
    """Moments of all sites' rows by class, from each site's own noisy release: post-processing, no further cost.

    Sites that release around their own means add the noise of these means to the covariance. For many small sites
    pool ``release_means`` first and then ``release_spreads`` around the result.
    """
    parts = [part for release in releases for part in release.classes]
    return tuple(_pool([part for part in parts if part.label == label]) for label in sorted({p.label for p in parts}))


def _pool(parts: Sequence[ClassMoments]) -> ClassMoments:
    moments = sum((part.moments for part in parts[1:]), parts[0].moments)
    noise = math.sqrt(sum((part.moments.n * part.noise) ** 2 for part in parts)) / moments.n
    return ClassMoments(parts[0].label, moments, noise)


def _check_classes(classes: Sequence[ClassMoments]) -> None:
    if not classes:
        raise InputError("classes must hold the moments of at least one class, got none")


def fabricate_rows(
    classes: Sequence[ClassMoments], count: int, *, radius: float, seed: int = 0
) -> tuple[Floats, npt.NDArray[Any]]:
    """``count`` Gaussian rows per class with the released mean and covariance, in the ball of ``radius``.

    Returns rows (count x classes, k) and their labels. Post-processing: the seed is no secret and costs nothing.
    """
    check_count(count, "count")
    check_number(radius, "radius", above=0)
    _check_classes(classes)
    rows = []
    for part in classes:
        values, vectors = part.eigen()
        normals = seeded_generator(seed, "privacy", "fabricate", repr(part.label)).standard_normal((count, len(values)))
        rows.append(clip_rows(part.moments.mean + normals * np.sqrt(values) @ vectors.T, radius))
    return np.vstack(rows), np.repeat([part.label for part in classes], count)


def discriminant_scores(classes: Sequence[ClassMoments], rows: npt.ArrayLike) -> Floats:
    """Quadratic discriminant of projected ``rows`` (n, k) straight from the moments: (n, classes), smaller is closer.

    ``(x-m)' inv(S) (x-m) + log det S``, where S is the covariance with half the noise's spectral norm added to its
    eigenvalues: directions drowned by noise count little.
    """
    _check_classes(classes)
    points = check_rows(rows, "rows", width=classes[0].moments.width).astype(np.float64)
    scores = np.empty((len(points), len(classes)))
    for column, part in enumerate(classes):
        values, vectors = part.eigen()
        values = values + 0.5 * part.noise_norm
        scores[:, column] = np.square((points - part.moments.mean) @ vectors) @ (1.0 / values) + np.log(values).sum()
    return scores

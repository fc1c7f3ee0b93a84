"""Mechanisms that release rows or labels: noise on every element, on every row as a whole, or randomised response.

Each is a frozen description. ``guarantees(width)`` says what a release would promise, in both units, before there is
one; ``release`` clips to the public bounds, charges the ledger, then adds the noise. No number that shapes the
release is read from the data. Nothing is clipped after the noise.

DP-KAHM Definitions 9-11 and SFM Definitions 4-5 say what is promised for one element; we say it for records as well.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_count, check_number, check_rows
from kernfed.base.labels import ClassIndex
from kernfed.errors import InputError
from kernfed.privacy.accounting import (
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    StaircaseEvent,
    analytic_gaussian_mu,
    epsilon_for,
)
from kernfed.privacy.generator import WORD, Coin, NoiseGenerator, blocks, check_generator, uniform
from kernfed.privacy.ledger import Ledger
from kernfed.privacy.noise import SAMPLING_ERROR, SMOOTHING, DiscreteGaussian, DiscreteLaplace, DiscreteStaircase, Noise
from kernfed.privacy.release import (
    NUDGE,
    RECORD_DELTA,
    SMALLEST_DELTA,
    Mechanism,
    Release,
    charge,
    check_epsilon,
    check_width,
    only,
)
from kernfed.promise import Guarantee
from kernfed.statistics.bounds import (
    MOST_NUMBERS,
    check_basis,
    check_bound,
    check_grid,
    check_scale,
    check_seed,
    clip_rows,
    grid_step,
    in_basis,
    nearest,
    public_basis,
    saturate,
    toward_zero,
)

# What one element of a record may lose. Beyond, the exact noise takes seconds to prepare, and a record has no privacy.
_LARGEST_LOSS = 1000.0


@dataclass(frozen=True)
class _ElementNoise(Mechanism):
    """Independent noise on each element, scaled to a change of one element by ``d`` (DP-KAHM Definition 10)."""

    epsilon: float
    d: float
    bounds: tuple[float, float] = ()  # type: ignore[assignment]  # required, with a message of its own

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_scale(self.d, "d")
        low, high = _check_bounds(self.bounds)
        object.__setattr__(self, "bounds", (low, high))
        check_number(self.epsilon * (high - low) / self.d, "epsilon (hi - lo) / d", at_most=_LARGEST_LOSS)
        check_grid(max(abs(low), abs(high), self.d), self.step, "bounds")

    @property
    def step(self) -> float:
        """Grid step: a power of two, at most d/1000 and a thousandth of d/epsilon."""
        return grid_step(self.d / (1000.0 * max(1.0, self.epsilon)))

    @property
    def shift(self) -> int:
        """Steps that a change by d may amount to."""
        return math.ceil(self.d / self.step)

    @property
    def reach(self) -> int:
        """Steps between the bounds: what a whole row may change by in each element."""
        low, high = nearest(np.array(self.bounds), self.step)
        return int(high - low)

    @property
    @abstractmethod
    def noise(self) -> Noise:
        """Law of an element's noise, in grid steps."""

    @property
    def atom(self) -> float:
        """Probability that an element is released as it is."""
        return 0.0

    @property
    def publishes_values(self) -> bool:
        """Whether there is an atom."""
        return self.atom > 0

    @abstractmethod
    def events(self, width: int) -> tuple[Event, ...]:
        """What one record of ``width`` elements pays."""

    def guarantees(self, width: int, *, record_delta: float = RECORD_DELTA) -> tuple[Guarantee, Guarantee]:
        """Element and record guarantee of rows with ``width`` elements, the record's at ``record_delta``.

        With an atom no delta below ``1 - (1 - atom)^width`` is possible; it is then added to ``record_delta``.
        """
        check_width(width, record_delta)
        return _element_guarantees(self, width, record_delta)

    def release(
        self,
        X: npt.ArrayLike,
        *,
        ledger: Ledger | None = None,
        generator: NoiseGenerator | None = None,
        ids: Sequence[Any] | npt.NDArray[Any] | None = None,
        record_delta: float = RECORD_DELTA,
    ) -> Release:
        """Noisy copy of ``X`` (n, p), values outside the bounds clipped to them first.

        ``ids`` (n,) name the persons for the ledger; without them the release is charged to everyone.
        """
        rows = check_rows(X)
        source = check_generator(generator)
        element, record = self.guarantees(rows.shape[1], record_delta=record_delta)
        events = self.events(rows.shape[1])
        rows = only(rows, charge(ledger, events, rows, ids, source, repr(self)))
        grid = nearest(np.clip(saturate(rows), *self.bounds), self.step)
        grid += self.noise.sample(grid.shape, source)
        return Release(grid * self.step, element, record, source.private, events, self.step)


@lru_cache(maxsize=64)  # composing the elements of a wide row takes a second
def _element_guarantees(mechanism: _ElementNoise, width: int, record_delta: float) -> tuple[Guarantee, Guarantee]:
    bounds, d = mechanism.bounds, mechanism.d
    words = f"one element changing by at most d = {d:g}"
    delta = min(mechanism.atom + mechanism.noise.sampling_error, 1.0)
    element = Guarantee(mechanism.epsilon, delta, "element", words, bounds, d)
    floor = -math.expm1(width * math.log1p(-mechanism.atom)) * (1 + 1e-12)
    delta = min(record_delta + floor, math.nextafter(1.0, 0.0))
    words = f"one row of {width} elements replaced by any other"
    epsilon = epsilon_for(mechanism.events(width), delta)
    return element, Guarantee(epsilon, delta, "record", words, bounds, d)


def _check_bounds(bounds: Any) -> tuple[float, float]:
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
        raise InputError(f"bounds must be (lo, hi), known without looking at the data, got {bounds!r}")
    low = check_bound(bounds[0], "bounds[0]")
    return low, check_bound(bounds[1], "bounds[1]", above=low)


@dataclass(frozen=True)
class ElementLaplace(_ElementNoise):
    """DP-KAHM Algorithm 1 on a grid: discrete Laplace noise of scale d/epsilon on every element.

    ``delta > 0`` adds the paper's atom (74): with that probability an element is released as it is. The default has
    none, since raw values can be recognised among the noisy ones.

    >>> element, record = ElementLaplace(1.0, d=1.0, bounds=(0.0, 1.0)).guarantees(784)
    >>> print(record)
    record: (382.4, 1e-05)-differential privacy for one row of 784 elements replaced by any other, \
values clipped to the public bounds [0, 1]
    """

    delta: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.delta, "delta", at_least=0, below=1)

    @property
    def atom(self) -> float:
        """The paper's delta."""
        return self.delta

    @property
    def noise(self) -> DiscreteLaplace:
        """Law of an element's noise, in grid steps."""
        rate = Fraction(self.epsilon) / self.shift / Fraction(NUDGE)
        return DiscreteLaplace(rate, max(self.reach, self.shift), self.delta)

    def events(self, width: int) -> tuple[Event, ...]:
        """One Laplace event per element, shifted by the whole range."""
        slack = width * self.noise.sampling_error
        return (LaplaceEvent(self.epsilon / self.shift, self.reach, self.delta, width, slack),)


@dataclass(frozen=True)
class ElementStaircase(_ElementNoise):
    """Staircase noise on every element: the same epsilon as Laplace with a smaller mean |v|, above all for large ones.

    The mean |v| is ``d exp(epsilon/2)/(exp(epsilon) - 1)`` against Laplace's ``d/epsilon``.
    """

    @property
    def step(self) -> float:
        """Grid step, also at most a sixteenth of the staircase's inner step."""
        return min(super().step, grid_step(self.d / (16.0 * (1.0 + math.exp(min(self.epsilon, 40.0) / 2)))))

    @property
    def noise(self) -> DiscreteStaircase:
        """Law of an element's noise, in grid steps."""
        epsilon = Fraction(self.epsilon) / Fraction(NUDGE)
        return DiscreteStaircase.optimal(epsilon, self.shift, max(self.reach, self.shift))

    def events(self, width: int) -> tuple[Event, ...]:
        """One staircase event per element; if the range exceeds d, a pure event of as many epsilons as d fits in it.

        Losses are -epsilon, 0 or epsilon, so the curve at 0, the total variation, gives the probability of the last.
        """
        noise = self.noise
        slack = width * noise.sampling_error
        if self.reach > self.shift:
            return (PureEvent(-(-self.reach // self.shift) * self.epsilon, width, slack),)
        mass = noise.variation(self.reach) / -math.expm1(-self.epsilon) * (1 + 1e-9)
        return (StaircaseEvent(self.epsilon, min(1.0, mass), width, slack),)


@dataclass(frozen=True, eq=False)
class RecordGaussian(Mechanism):
    """Gaussian noise on rows clipped to the L2 ball of ``radius``: (epsilon, delta) for a whole row.

    Replacing a row moves it by at most twice the radius, which must be public; ``RecordMoments`` says how to choose it.
    ``projection`` asks for a public projection before clipping: a number of dimensions (random directions from
    ``seed``) or orthonormal columns (p, k) declared public. The released rows then have k columns; ``project`` maps
    queries likewise.
    """

    epsilon: float
    delta: float
    radius: float
    projection: int | npt.ArrayLike | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_number(self.delta, "delta", at_least=SMALLEST_DELTA, below=1)
        check_scale(self.radius, "radius")
        check_seed(self.seed)
        if self.projection is not None and np.ndim(self.projection) == 0:
            check_count(self.projection, "projection", at_most=MOST_NUMBERS)
        elif self.projection is not None:
            check_basis(self.projection)

    def project(self, X: npt.ArrayLike) -> FloatArray:
        """Rows (n, p) in the public basis, (n, k); unchanged without a projection."""
        rows = check_rows(X)
        basis = self.public_basis(rows.shape[1])
        return rows if basis is None else in_basis(rows, basis)

    def public_basis(self, width: int) -> FloatArray | None:
        """The public basis (width, k) that queries go through as the rows did, or None without a projection."""
        if self.projection is None:
            return None
        if np.ndim(self.projection) == 0:
            return public_basis("random", width, int(self.projection), seed=self.seed)  # type: ignore[arg-type]
        return public_basis(self.projection, width, np.shape(self.projection)[-1])

    def released_width(self, width: int) -> int:
        """Columns of the released rows."""
        basis = self.public_basis(width)
        return width if basis is None else int(basis.shape[1])

    def law(self, width: int) -> tuple[DiscreteGaussian, float, GaussianEvent]:
        """Noise of an element in grid steps, the step, and what a record of ``width`` released elements pays."""
        slack = width * SAMPLING_ERROR
        mu = analytic_gaussian_mu(self.epsilon, self.delta - slack)
        sigma = 2 * self.radius / mu * NUDGE
        step = grid_step(sigma / 1024)
        noise = DiscreteGaussian(Fraction(sigma / step) ** 2 + SMOOTHING, math.ceil(2 * self.radius / step))
        return noise, step, GaussianEvent(mu, 1, slack)

    def guarantees(self, width: int, *, record_delta: float = RECORD_DELTA) -> tuple[Guarantee, Guarantee]:
        """Element and record guarantee of rows of ``width`` columns: an element is protected as part of its row.

        The row that is spoken of is the released one, of as many elements as a projection leaves.
        """
        check_width(width, record_delta)
        clipped = f"rows clipped to L2 norm {self.radius:g}"
        element = Guarantee(self.epsilon, self.delta, "element", f"one element changing by any amount, {clipped}")
        words = f"one row of {self.released_width(width)} elements replaced by any other, {clipped}"
        return element, Guarantee(self.epsilon, self.delta, "record", words)

    def release(
        self,
        X: npt.ArrayLike,
        *,
        ledger: Ledger | None = None,
        generator: NoiseGenerator | None = None,
        ids: Sequence[Any] | npt.NDArray[Any] | None = None,
    ) -> Release:
        """Noisy rows (n, p), or (n, k) after a projection; rows outside the ball are moved to its surface first."""
        source = check_generator(generator)
        given = check_rows(X)
        rows = self.project(given)
        noise, step, event = self.law(rows.shape[1])
        element, record = self.guarantees(given.shape[1])
        note = f"RecordGaussian({self.epsilon:g}, {self.delta:g}, radius={self.radius:g}), {rows.shape[1]} columns"
        rows = only(rows, charge(ledger, (event,), rows, ids, source, note))
        grid = toward_zero(clip_rows(saturate(rows), self.radius), step)
        grid += noise.sample(grid.shape, source)
        return Release(grid * step, element, record, source.private, (event,), step)


@dataclass(frozen=True)
class RandomizedLabels(Mechanism):
    """Labels kept with probability ``e^epsilon / (e^epsilon + C - 1)``, else replaced by one of the C - 1 others.

    ``classes``: all C labels there can be, public and not read from the data. A label that is not among them becomes
    the first of them, without a word: to refuse it would tell of one row with certainty. Labels are public by
    themselves; this makes them private.
    """

    epsilon: float
    classes: tuple[Any, ...]

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        classes = tuple(np.asarray(self.classes).tolist()) if np.ndim(self.classes) == 1 else ()
        if len(classes) < 2 or len(set(classes)) != len(classes):
            raise InputError(f"classes must be two or more different labels, got {self.classes!r}")
        object.__setattr__(self, "classes", classes)

    @cached_property
    def _keep(self) -> Coin:
        with localcontext() as context:
            context.prec = 120
            others = (len(self.classes) - 1) * (-Decimal(self.epsilon)).exp()
            return Coin.of(1 / (1 + others), 4 * WORD)

    def guarantees(self, width: int = 1, *, record_delta: float = RECORD_DELTA) -> tuple[Guarantee, Guarantee]:
        """The label is one element of the record and all of it that is released: one epsilon for both."""
        check_width(width, record_delta)
        element = Guarantee(self.epsilon, 0.0, "element", "one label replaced by any other")
        return element, Guarantee(self.epsilon, 0.0, "record", "the label of one row replaced by any other")

    def release(
        self,
        y: npt.ArrayLike,
        *,
        ledger: Ledger | None = None,
        generator: NoiseGenerator | None = None,
        ids: Sequence[Any] | npt.NDArray[Any] | None = None,
    ) -> Release:
        """Random labels for ``y`` (n,)."""
        source = check_generator(generator)
        numbers = self._numbers(y)
        events = (PureEvent(self.epsilon),)
        pays = charge(ledger, events, numbers, ids, source, f"RandomizedLabels({self.epsilon:g})")
        numbers = np.where(pays, numbers, 0)
        count = len(self.classes)
        for block in blocks(len(numbers)):
            size = block.stop - block.start
            other = (numbers[block] + 1 + uniform(source, count - 1, size)) % count
            numbers[block] = np.where(self._keep.toss(source, size), numbers[block], other)
        element, record = self.guarantees()
        return Release(np.asarray(self.classes)[numbers], element, record, source.private, events)

    def _numbers(self, y: npt.ArrayLike) -> npt.NDArray[np.int64]:
        labels = np.asarray(y)
        if labels.ndim != 1 or not len(labels):
            raise InputError(f"y must be a vector of labels, got shape {labels.shape}")
        return self.numbers(labels)

    def numbers(self, labels: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Place (n,) of each label among the declared classes, 0 where it is none of them."""
        return ClassIndex(self.classes).numbers(labels, "first").astype(np.int64)

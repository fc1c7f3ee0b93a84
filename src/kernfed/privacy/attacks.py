"""Attacks on noisy rows by their exact likelihood: no test tells two rows apart better (Neyman and Pearson 1933).

The attacker knows the mechanism: its law, its grid and its bounds are public. What differs is what else is known.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from kernfed.base.checks import FloatArray, check_count, check_rows
from kernfed.base.random import generator
from kernfed.errors import InputError
from kernfed.privacy.generator import Bools, Ints
from kernfed.privacy.mechanism import ElementLaplace, ElementStaircase, RecordGaussian
from kernfed.privacy.noise import DiscreteGaussian, DiscreteLaplace, DiscreteStaircase, Floats, Noise
from kernfed.privacy.roc import Attack, roc
from kernfed.statistics.bounds import clip_rows, nearest, toward_zero

#: What adds the noise: rows (n, p) to released values (n, k).
ReleaseRows = Callable[[FloatArray], npt.NDArray[Any]]
Mechanism = ElementLaplace | ElementStaircase | RecordGaussian

# Elements released at a time.
_BLOCK = 1 << 22
# A row outside the bounds is this many times as far out: a mechanism that forgets to clip gives itself away.
_FAR = 100.0
#: Added to the score of a canary that is released exactly as it is. Ratios follow the stated law and do not look for
#: noise that is missing; under that law an element without noise has the largest ratio anyway, a row hardly occurs.
EXACT_HIT = 1e6


@dataclass(frozen=True, eq=False)
class RowLaw:
    """What is public about a release: integer ``noise`` on a grid of ``step``, added to ``grid(rows)`` (n, width)."""

    noise: Noise
    step: float
    width: int
    grid: Callable[[FloatArray], Ints]

    def integers(self, values: npt.NDArray[Any], count: int) -> Ints:
        """Released ``values`` (count, width) as the integers nearest to them."""
        rows = check_rows(values, "released values")
        if rows.shape != (count, self.width):
            raise InputError(f"released values must have shape {(count, self.width)}, got {rows.shape}")
        limit = 2.0**52 * self.step  # beyond, integers would overflow
        return nearest(np.clip(rows, -limit, limit), self.step)


def row_law(mechanism: Mechanism, width: int) -> RowLaw:
    """The law of a mechanism for rows of ``width`` elements."""
    check_count(width, "width")
    if isinstance(mechanism, RecordGaussian):
        released = mechanism.released_width(width)
        noise, step, _ = mechanism.law(released)
        radius = mechanism.radius
        return RowLaw(noise, step, released, lambda X: toward_zero(clip_rows(mechanism.project(X), radius), step))
    if isinstance(mechanism, (ElementLaplace, ElementStaircase)):
        bounds, step = mechanism.bounds, mechanism.step
        return RowLaw(mechanism.noise, step, width, lambda X: nearest(np.clip(X.astype(np.float64), *bounds), step))
    names = "ElementLaplace, ElementStaircase or RecordGaussian"
    raise InputError(
        f"mechanism must release rows ({names}), got {type(mechanism).__name__}; use audit_pair for others"
    )


@singledispatch
def log_mass(noise: Noise, k: npt.ArrayLike) -> Floats:
    """Logarithm of the mass at the integers ``k``, in closed form for the laws of this package: masses underflow."""
    return np.log(np.maximum(noise.pmf(k), np.finfo(np.float64).tiny))


@log_mass.register
def _laplace(noise: DiscreteLaplace, k: npt.ArrayLike) -> Floats:
    rate = float(noise.rate)
    body = np.log1p(-noise.atom) + np.log(np.tanh(rate / 2)) - rate * np.abs(np.asarray(k))
    if noise.atom == 0:
        return np.asarray(body)
    return np.where(np.asarray(k) == 0, np.log(noise.pmf(0)), body)


@log_mass.register
def _staircase(noise: DiscreteStaircase, k: npt.ArrayLike) -> Floats:
    return np.asarray(np.log(noise.pmf(0)) - float(noise.epsilon) * noise.levels(k))


@log_mass.register
def _gaussian(noise: DiscreteGaussian, k: npt.ArrayLike) -> Floats:
    return np.asarray(np.log(noise.pmf(0)) - np.square(np.asarray(k, dtype=np.float64)) / (2 * float(noise.variance)))


def log_ratio(noise: Noise, noisy: Ints, first: Ints, second: Ints) -> Floats:
    """Log-likelihood ratio of each noisy integer for ``first`` against ``second``.

    Rounded to 1e-9: outcomes that are equally likely by the law must have equal scores.
    """
    return np.round(log_mass(noise, noisy - first) - log_mass(noise, noisy - second), 9)


def known_pair(
    release: ReleaseRows,
    law: RowLaw,
    rows: npt.ArrayLike,
    others: npt.ArrayLike,
    *,
    trials: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Attack:
    """The attacker that differential privacy is about: knows a row and its substitute, sees the noisy row.

    In each trial a row of ``rows`` (n, p) is released and attacked, and so is its substitute from ``others`` (m, p);
    the score is the log-likelihood ratio of the two.
    """
    data, substitutes = check_pair(rows, others)
    count = check_count(trials, "trials", at_least=2)
    rng = generator(seed, "privacy", "audit", "known pair")
    first, second = (_draw(len(part), count, rng) for part in (data, substitutes))
    inside, outside = np.empty(count), np.empty(count)
    for block in row_blocks(count, data.shape[1]):
        x, z = data[first[block]], substitutes[second[block]]
        for scores, truth in ((inside, x), (outside, z)):
            noisy = law.integers(release(truth), len(truth))
            scores[block] = log_ratio(law.noise, noisy, law.grid(x), law.grid(z)).sum(axis=1)
    knows = "the row, the row that would be in its place, and which noisy row to look at"
    return Attack("known pair", knows, roc(inside, outside, confidence=confidence))


def known_row(
    release: ReleaseRows,
    law: RowLaw,
    rows: npt.ArrayLike,
    others: npt.ArrayLike,
    *,
    trials: int = 1000,
    references: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
) -> Attack:
    """The attacker knows a row and sees its noisy row, or that of somebody else in its place.

    The score of a row x is ``log p(y | x) / q(y)``, q the noisy copies of rows that the attacker has of the same
    population: up to ``references`` rows, half of ``others`` (m, p). The other half are the substitutes.
    """
    data, known, substitutes, rng = _population(rows, others, references, "known row", seed)
    count = check_count(trials, "trials", at_least=2)
    first, second = (_draw(len(part), count, rng) for part in (data, substitutes))
    inside, outside = np.empty(count), np.empty(count)
    for block in row_blocks(count, data.shape[1]):
        x = data[first[block]]
        for scores, truth in ((inside, x), (outside, substitutes[second[block]])):
            noisy = law.integers(release(truth), len(truth))
            likelihood = log_mass(law.noise, noisy - law.grid(x)).sum(axis=1)
            scores[block] = likelihood - _log_background(law, noisy, known)
    knows = f"the row, {len(known)} rows of the same population, and which noisy row to look at"
    return Attack("known row", knows, roc(inside, outside, confidence=confidence))


def unknown_position(
    release: ReleaseRows,
    law: RowLaw,
    rows: npt.ArrayLike,
    others: npt.ArrayLike,
    *,
    candidates: int = 500,
    references: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
) -> Attack:
    """The attacker knows a row, not where it would be: sees all noisy rows of one release of ``rows`` (n, p).

    The score of a row x is ``log mean_i p(y_i | x) / q(y_i)``, q as in ``known_row``: the likelihood ratio of x in a
    place drawn at random among noisy rows y_i from q. Up to ``candidates`` rows of each kind are tried. They are tried
    on the same release, so the intervals, made for independent scores, are approximate.
    """
    check_count(candidates, "candidates")
    data, known, substitutes, rng = _population(rows, others, references, "unknown position", seed)
    noisy = law.integers(release(data), len(data))
    background = _log_background(law, noisy, known)[:, None]
    inside, outside = (
        logsumexp(log_likelihoods(law.noise, noisy, law.grid(part)) - background, axis=0) - np.log(len(noisy))
        for part in (data[rng.permutation(len(data))[:candidates]], substitutes[:candidates])
    )
    knows = f"the row, {len(known)} rows of the same population, not which of the {len(data)} noisy rows it is"
    return Attack("unknown position", knows, roc(inside, outside, confidence=confidence))


def _population(
    rows: npt.ArrayLike, others: npt.ArrayLike, references: int, name: str, seed: int
) -> tuple[FloatArray, FloatArray, FloatArray, np.random.Generator]:
    """Rows of the data, rows that the attacker knows of the same population, and rows that are in neither."""
    data, population = check_pair(rows, others)
    check_count(references, "references")
    if len(population) < 4:
        raise InputError(f"others must have at least 4 rows, half of them for the attacker, got {len(population)}")
    rng = generator(seed, "privacy", "audit", name)
    mixed, half = population[rng.permutation(len(population))], len(population) // 2
    return data, mixed[:half][:references], mixed[half:], rng


def _log_background(law: RowLaw, noisy: Ints, known: FloatArray) -> Floats:
    """``log q(y)`` of each noisy row: the mean likelihood over the rows that the attacker knows."""
    logs = log_likelihoods(law.noise, noisy, law.grid(known))
    return np.asarray(logsumexp(logs, axis=1) - np.log(len(known)))


def log_likelihoods(noise: Noise, noisy: Ints, rows: Ints) -> Floats:
    """Log-likelihood (n, m) of noisy row i (n, k) if it comes from row j (m, k)."""
    constant = noisy.shape[1] * float(log_mass(noise, 0))
    if isinstance(noise, DiscreteLaplace) and noise.atom == 0:
        return np.asarray(constant - float(noise.rate) * cdist(noisy, rows, "cityblock"))
    if isinstance(noise, DiscreteGaussian):
        return np.asarray(constant - cdist(noisy, rows, "sqeuclidean") / (2 * float(noise.variance)))
    return np.column_stack([log_mass(noise, noisy - row).sum(axis=1) for row in rows])


def element_canaries(mechanism: ElementLaplace | ElementStaircase) -> tuple[float, float]:
    """Two values of an element that differ by d, or by the whole range if that is less."""
    low, high = mechanism.bounds
    return low, min(low + mechanism.d, high)


def record_canaries(mechanism: Mechanism, width: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Two rows (width,) that are as far apart as clipping allows, given far outside of what it allows."""
    if isinstance(mechanism, RecordGaussian):
        direction = generator(seed, "privacy", "audit", "direction").standard_normal(width)
        direction *= _FAR * mechanism.radius / max(float(np.linalg.norm(mechanism.project(direction[None]))), 1e-300)
        return direction, -direction
    low, high = mechanism.bounds
    far = _FAR * (high - low)
    return np.full(width, high + far), np.full(width, low - far)


def run_canaries(release: ReleaseRows, law: RowLaw, first: FloatArray, second: FloatArray, included: Bools) -> Floats:
    """Scores of canaries of one release: ``first`` where ``included``, else ``second``.

    ``included`` (n,) chooses between the rows ``first`` and ``second`` (p,) and gives scores (n,); ``included`` (n, p)
    chooses element by element and gives scores (n, p).
    """
    by_row = included.ndim == 1
    chosen = included[:, None] if by_row else included
    scores = []
    for block in row_blocks(len(included), len(first)):
        truth = np.where(chosen[block], first, second)
        noisy = law.integers(release(truth), len(truth))
        x, z = law.grid(first[None]), law.grid(second[None])
        ratios, same_x, same_z = log_ratio(law.noise, noisy, x, z), noisy == x, noisy == z
        if by_row:
            ratios, same_x, same_z = ratios.sum(axis=1), same_x.all(axis=1), same_z.all(axis=1)
        scores.append(ratios + EXACT_HIT * (same_x.astype(np.float64) - same_z))
    return np.concatenate(scores)


def row_blocks(count: int, width: int) -> Iterator[slice]:
    """Slices over ``count`` rows of ``width`` elements, a few million elements each."""
    size = max(1, _BLOCK // width)
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def check_pair(rows: npt.ArrayLike, others: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Rows of the data and rows that are not in it, of one width."""
    first = check_rows(rows, "rows")
    return first, check_rows(others, "others", width=first.shape[1])


def _draw(size: int, count: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """``count`` indices below ``size``, each as often as any other up to one."""
    return np.concatenate([rng.permutation(size) for _ in range(-(-count // size))])[:count]

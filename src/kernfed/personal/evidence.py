"""All sites in their own principal axes: what any spread of coefficients and noise of targets is worth.

Site j has rows ``y = X beta_j + noise`` with noise of variance s k and ``beta_j ~ N(m, t I)``. In the axes of X'X the
residuals ``y - X m`` are independent with variances ``s k + t e_i``, e_i the eigenvalues of X'X, and s k in the n - r
directions without features. Means and spreads by marginal likelihood need no more than these numbers, also where m and
t are those of one of several components and k one of several levels of noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from kernfed.base.checks import FloatArray, IntArray

#: Levels of noise k: how much noisier than others a site may be.
LEVELS = 10.0 ** np.linspace(-2.0, 2.0, 9)
#: The ratio of spread to noise is searched in this many units of the logarithm around the scale of the data.
_RANGE = 18.0
#: Noise is at least this share of the mean square of the targets: data without noise have a finite likelihood.
_LEAST_NOISE = 1e-10


@dataclass(frozen=True, eq=False)
class Spectra:
    """Sites one after another: axes (R, d), eigenvalues (R,) of X'X, targets (R, q) along the axes.

    sites : (R,) whose axis it is. starts : (B,) first axis of every site. counts : (B,) rows. rest : (B,) squares of
    the targets beside the axes.
    """

    axes: FloatArray
    values: FloatArray
    targets: FloatArray
    sites: IntArray
    starts: IntArray
    counts: IntArray
    rest: FloatArray

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[FloatArray, FloatArray]], counts: Sequence[int]) -> "Spectra":
        """Spectra of rows (r, d) with targets (r, q), each site's standing for ``counts`` rows."""
        parts = [_spectrum(X, Y) for X, Y in rows]
        sizes = [len(values) for _, values, _, _ in parts]
        return cls(
            np.concatenate([axes for axes, _, _, _ in parts]),
            np.concatenate([values for _, values, _, _ in parts]),
            np.concatenate([targets for _, _, targets, _ in parts]),
            np.repeat(np.arange(len(parts)), sizes),
            np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.intp),
            np.asarray(counts, dtype=np.int64),
            np.array([rest for _, _, _, rest in parts]),
        )

    @property
    def n_targets(self) -> int:
        """Number of target columns q."""
        return int(self.targets.shape[1])

    @property
    def beside(self) -> FloatArray:
        """Directions (B,) of every site's rows and targets that have no features."""
        sizes = np.diff(np.append(self.starts, len(self.values)))
        return np.asarray(self.n_targets * (self.counts - sizes), dtype=np.float64)

    def per_site(self, numbers: FloatArray) -> FloatArray:
        """Sums (B, ...) over each site's axes."""
        return np.asarray(np.add.reduceat(numbers, self.starts, axis=0))

    def residuals(self, mean: FloatArray) -> FloatArray:
        """``y - X m`` (R, q) along the axes, for coefficients m (d, q)."""
        return np.asarray(self.targets - np.sqrt(self.values)[:, None] * (self.axes @ mean))

    def combine(self, numbers: FloatArray) -> FloatArray:
        """Sums (B, d, q) over each site's axes of axis times numbers (R, q)."""
        ends = [*self.starts[1:].tolist(), len(self.values)]
        return np.stack([self.axes[a:b].T @ numbers[a:b] for a, b in zip(self.starts.tolist(), ends, strict=True)])

    def variances(self, spread: float, noise: float) -> FloatArray:
        """``s k + t e`` (R, L) of every axis and level."""
        return np.asarray(noise * LEVELS + spread * self.values[:, None])

    def log_densities(self, squares: FloatArray, spread: float, noise: float) -> FloatArray:
        """Log density (B, L) of each site's targets at every level, for squared residuals (R,) summed over targets."""
        variance = self.variances(spread, noise)
        inner = self.per_site(self.n_targets * np.log(variance) + squares[:, None] / variance)
        outer = self.beside[:, None] * np.log(noise * LEVELS) + self.rest[:, None] / (noise * LEVELS)
        return np.asarray(-0.5 * (inner + outer + self.n_targets * self.counts[:, None] * np.log(2 * np.pi)))

    def fit(
        self,
        masses: Sequence[FloatArray],
        squares: Sequence[FloatArray],
        ratios: FloatArray,
        turn: int,
        *,
        wide: bool = False,
    ) -> tuple[FloatArray, float]:
        """Ratios t/s (C,) of C components and noise s that are likelier than those given.

        masses : of each component (R, L), the probability that an axis' site is in it at a level. squares : the same
        times expected squared residuals. For given ratios the best noise has a closed form, so a search over one of
        them, number ``turn``, is in one dimension: near the one given, or ``wide`` around the scale of the data.
        """
        total = float(self.counts.sum()) * self.n_targets
        size = float(np.square(self.targets).sum() + self.rest.sum()) / total
        least = _LEAST_NOISE * (size if size > 1e-250 else 1.0)
        weights = sum((self.per_site(mass) for mass in masses), np.zeros((len(self.counts), len(LEVELS))))
        sizes = np.diff(np.append(self.starts, len(self.values)))[:, None]
        base, fixed = float((self.rest[:, None] * weights / sizes / LEVELS).sum()), 0.0

        def terms(number: int, ratio: float) -> tuple[float, float]:
            factor = LEVELS + ratio * self.values[:, None]
            return float((squares[number] / factor).sum()), float((masses[number] * np.log(factor)).sum())

        for number, ratio in enumerate(ratios):
            if number != turn:
                square, logs = terms(number, float(ratio))
                base, fixed = base + square, fixed + logs

        def loss(log_ratio: float) -> float:
            square, logs = terms(turn, float(np.exp(log_ratio)))
            noise = max((base + square) / total, least)
            return 0.5 * (total * float(np.log(noise)) + self.n_targets * (fixed + logs) + (base + square) / noise)

        middle = -np.log(float(self.values.mean()) or 1.0)
        if wide:
            grid = np.linspace(middle - _RANGE, middle + _RANGE, 25)
            centre = grid[int(np.argmin([loss(point) for point in grid]))]
        else:
            centre = float(np.clip(np.log(max(ratios[turn], 1e-300)), middle - _RANGE, middle + _RANGE))
        minimum = minimize_scalar(loss, bounds=(centre - 2, centre + 2), method="bounded", options={"xatol": 1e-3})
        best = np.array(ratios, dtype=np.float64)
        best[turn] = np.exp(minimum.x)
        return best, max((base + terms(turn, float(best[turn]))[0]) / total, least)


def _spectrum(X: FloatArray, Y: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, float]:
    """Axes (r, d), eigenvalues (r,), targets (r, q) along the axes and squares beside; at least one axis."""
    left, values, axes = np.linalg.svd(X, full_matrices=False)
    kept = values > 1e-12 * values[0]
    kept[0] = True
    targets = left[:, kept].T @ Y
    rest = max(0.0, float(np.square(Y).sum() - np.square(targets).sum()))
    return axes[kept], values[kept] ** 2, targets, rest

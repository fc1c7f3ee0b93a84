"""All sites in their own principal axes: what any spread of coefficients and noise of targets is worth.

Site j has rows ``y = X beta_j + noise`` with noise of variance s and ``beta_j ~ N(m, t I)``. In the axes of X'X the
residuals ``y - X m`` are independent with variances ``s + t e_i``, e_i the eigenvalues of X'X, and s in the n - r
directions without features. Spread t and noise s by marginal likelihood need no more than these numbers, also where
m and t are those of one of several components.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from kernfed._validation import FloatArray, IntArray

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
    def beside(self) -> float:
        """Directions of all rows and targets that have no features."""
        return float(self.n_targets * (self.counts.sum() - len(self.values)))

    def per_site(self, numbers: FloatArray) -> FloatArray:
        """Sums (B, ...) over each site's axes."""
        return np.asarray(np.add.reduceat(numbers, self.starts, axis=0))

    def residuals(self, mean: FloatArray) -> FloatArray:
        """``y - X m`` (R, q) along the axes, for coefficients m (d, q)."""
        return np.asarray(self.targets - np.sqrt(self.values)[:, None] * (self.axes @ mean))

    def shrunk(self, residuals: FloatArray, spread: float, noise: float) -> FloatArray:
        """Posterior means (B, d, q) of ``beta_j - m`` given residuals (R, q)."""
        gain = spread * np.sqrt(self.values) / (noise + spread * self.values)
        scaled = gain[:, None] * residuals
        ends = [*self.starts[1:].tolist(), len(self.values)]
        return np.stack([self.axes[a:b].T @ scaled[a:b] for a, b in zip(self.starts.tolist(), ends, strict=True)])

    def log_likelihood(self, squares: FloatArray, shares: FloatArray, spreads: FloatArray, noise: float) -> float:
        """Expected log density of all targets.

        squares : (R, G) squared residuals along the axes, summed over targets, in each of G components. shares :
        (R, G) probability of the components for the axis' site. spreads : (G,) of the components.
        """
        variance = noise + self.values[:, None] * spreads
        inner = (shares * (self.n_targets * np.log(variance) + squares / variance)).sum()
        outer = self.beside * np.log(noise) + self.rest.sum() / noise
        return float(-0.5 * (self._total * np.log(2 * np.pi) + inner + outer))

    @property
    def _total(self) -> float:
        return float(self.counts.sum()) * self.n_targets

    def fit(self, squares: FloatArray, shares: FloatArray, ratios: FloatArray, turn: int, *,
            wide: bool = False) -> tuple[FloatArray, float]:  # fmt: skip
        """Ratios of spread to noise (G,) and noise with a larger ``log_likelihood``, arguments as there.

        For given ratios the best noise has a closed form, so a search over one ratio, that of component ``turn``, is in
        one dimension: near the one given, or ``wide`` around the scale of the data. The other ratios stay.
        """
        size = float(np.square(self.targets).sum() + self.rest.sum()) / self._total
        least = _LEAST_NOISE * (size if size > 1e-250 else 1.0)
        others = np.arange(len(ratios)) != turn
        factors = 1 + self.values[:, None] * ratios[others]
        base = float((shares[:, others] * squares[:, others] / factors).sum() + self.rest.sum())
        fixed = self.n_targets * float((shares[:, others] * np.log(factors)).sum())
        share, square = shares[:, turn], shares[:, turn] * squares[:, turn]

        def noise_and_loss(log_ratio: float) -> tuple[float, float]:
            factor = 1 + np.exp(log_ratio) * self.values
            total = base + float((square / factor).sum())
            noise = max(total / self._total, least)
            spent = self.n_targets * float((share * np.log(factor)).sum()) + fixed
            return noise, 0.5 * (self._total * float(np.log(noise)) + spent + total / noise)

        def loss(log_ratio: float) -> float:
            return noise_and_loss(log_ratio)[1]

        middle = -np.log(float(self.values.mean()) or 1.0)
        if wide:
            grid = np.linspace(middle - _RANGE, middle + _RANGE, 25)
            centre = grid[int(np.argmin([loss(point) for point in grid]))]
        else:
            centre = float(np.clip(np.log(max(ratios[turn], 1e-300)), middle - _RANGE, middle + _RANGE))
        found = minimize_scalar(loss, bounds=(centre - 2, centre + 2), method="bounded", options={"xatol": 1e-3})
        best = ratios.copy()
        best[turn] = np.exp(found.x)
        return best, noise_and_loss(float(found.x))[0]


def _spectrum(X: FloatArray, Y: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, float]:
    """Axes (r, d), eigenvalues (r,), targets (r, q) along the axes and squares beside; at least one axis."""
    left, values, axes = np.linalg.svd(X, full_matrices=False)
    kept = values > 1e-12 * values[0]
    kept[0] = True
    targets = left[:, kept].T @ Y
    rest = max(0.0, float(np.square(Y).sum() - np.square(targets).sum()))
    return axes[kept], values[kept] ** 2, targets, rest

"""Data of the synthetic studies of KME: concept shift (6.1) and covariate shift (6.2)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernfed_papers.arrays import FloatArray
from kernfed_papers.draws import generator

Array = npt.NDArray[np.float64]
Rows = tuple[Array, Array]

#: Variance of the label noise: KME Table 1, and KME 6.2.
CONCEPT_NOISE, COVARIATE_NOISE = 2.0, 0.04
#: Centres of the sites spread by v_1^2 and v_2^2, and the second group is at mu_0 (KME Table 2).
_SPREADS, _CENTRE = (0.01, 0.3), 2.0


@dataclass(frozen=True, eq=False)
class ConceptShift:
    """Rows by site, the coefficients (B, d) they were made with, and each site's group (B,), 0 or 1."""

    sites: tuple[Rows, ...]
    coefficients: Array
    groups: npt.NDArray[np.intp]

    def errors(self, coefficients: FloatArray) -> FloatArray:
        """Expected squared error (B,) of coefficients (B, d) or (1, d) on new rows of each site, noise included.

        x ~ N(1, I), so ``E (x'a)^2 = |a|^2 + (1'a)^2``.
        """
        steps = coefficients - self.coefficients
        return np.asarray(CONCEPT_NOISE + np.square(steps).sum(axis=1) + np.square(steps.sum(axis=1)))


def concept_shift(
    spread: float, seed: int, repetition: int, *, n_sites: int = 100, n_rows: int = 10, width: int = 20
) -> ConceptShift:
    """KME (20)-(21): two groups of opposite coefficients, and around them each site's own of variance ``spread``.

    The draws do not depend on ``spread``, so points of a curve are compared on the same federations.
    """
    draws = generator(seed, "kme concept shift", str(repetition))
    centre = draws.standard_normal(width)
    groups = draws.integers(2, size=n_sites)
    own = draws.standard_normal((n_sites, width))
    beta = (2 * groups - 1)[:, None] * np.sqrt(1 - spread) * centre + np.sqrt(spread) * own
    X = 1.0 + draws.standard_normal((n_sites, n_rows, width))
    noise = np.sqrt(CONCEPT_NOISE) * draws.standard_normal((n_sites, n_rows))
    y = np.einsum("knd,kd->kn", X, beta) + noise
    return ConceptShift(tuple(zip(X, y, strict=True)), beta, groups)


@dataclass(frozen=True, eq=False)
class CovariateShift:
    """Rows by site, each site's group (B,) 0, 1 or 2, and test rows of the first site."""

    sites: tuple[Rows, ...]
    groups: npt.NDArray[np.intp]
    test: Rows


def covariate_shift(
    seed: int,
    repetition: int,
    *,
    group_sizes: tuple[int, int, int] = (30, 30, 40),
    n_rows: int = 20,
    width: int = 4,
    n_test: int = 2000,
    deviation: float = 1.0,
) -> CovariateShift:
    """KME (26): two groups of normal rows around centres of each site's own, and one uniform on [-6, 6]^d.

    ``deviation`` is sigma_1 = sigma_2, which KME does not print.
    """
    draws = generator(seed, "kme covariate shift", str(repetition))
    groups = np.repeat(np.arange(3), group_sizes)
    sites = []
    for place, group in enumerate(groups):
        size = n_rows + (n_test if place == 0 else 0)
        if group == 2:
            X = draws.uniform(-6, 6, (size, width))
        else:
            centre = _CENTRE * group + np.sqrt(_SPREADS[group]) * draws.standard_normal(width)
            X = centre + deviation * draws.standard_normal((size, width))
        y = regression(X) + np.sqrt(COVARIATE_NOISE) * draws.standard_normal(size)
        sites.append((X, y))
    X, y = sites[0]
    return CovariateShift(((X[:n_rows], y[:n_rows]), *sites[1:]), groups, (X[n_rows:], y[n_rows:]))


def regression(X: Array) -> Array:
    """The common regression function of KME 6.2, of rows (n, d): ``sin(3 x_1) + 0.5 x_2^2 + 0.1 sum_(i >= 3) x_i``."""
    return np.asarray(np.sin(3 * X[:, 0]) + 0.5 * X[:, 1] ** 2 + 0.1 * X[:, 2:].sum(axis=1))

"""How much the sites differ, and what that does to FedNewton: measured on the exchanges that solve the problem."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kernfed.base.checks import FloatArray
from kernfed.base.random import generator
from kernfed.base.threads import single_blas_thread
from kernfed.ridge.solvers import System, average, conjugate_step, start_conjugate


@dataclass(frozen=True)
class SiteHeterogeneity:
    """One site: its share p_j, and how it differs from all.

    data : empirical Delta_D_j, the spectral norm of ``C_D - C_Dj`` (FedNewton, caption of Figure 4)
    model : proxy of Delta_f_j, the root mean square over its rows of the common minus its own prediction
    effective_dimension : empirical N_j(lambda) of FedNewton Assumption 1
    """

    share: float
    data: float
    model: float
    effective_dimension: float


@dataclass(frozen=True)
class Heterogeneity:
    """Heterogeneity of a federation; what was not asked for is None.

    largest_eigenvalue : of ``P^-1 H``, from below. FedNewton converges if and only if it is less than 2
    upsilon : FedNewton Theorem 1 with the sites' own rows as their distributions, ``sum p_j d_j (1 + d_j)``,
        ``d_j = Delta_D_j / lambda``. Below 1 FedNewton converges; above it nothing follows
    effective_dimension : of all rows, estimated with random probes
    """

    largest_eigenvalue: float | None = None
    upsilon: float | None = None
    effective_dimension: float | None = None
    sites: Mapping[str, SiteHeterogeneity] | None = None

    @property
    def newton_diverges(self) -> bool:
        """Whether FedNewton is known to diverge; False where no eigenvalue above 2 was seen."""
        return self.largest_eigenvalue is not None and self.largest_eigenvalue > 2


class SiteSystem(System, Protocol):
    """A system whose sites can be looked at one by one."""

    @property
    def masses(self) -> Mapping[str, float]:
        """Mass of every site."""

    def apply_by_site(self, V: FloatArray) -> dict[str, FloatArray]:
        """``H_j V`` of every site: one exchange."""


@dataclass(frozen=True, eq=False)
class _Probes:
    """The system ``H X = V`` for random right-hand sides."""

    system: System
    linear: FloatArray
    constant: float = 0.0

    def apply(self, V: FloatArray) -> FloatArray:
        """``H V``."""
        return self.system.apply(V)

    def solve(self, R: FloatArray) -> FloatArray:
        """``P^-1 R``."""
        return self.system.solve(R)


def probe_spectrum(
    system: System, regularization: float, *, seed: int, probes: int = 4, steps: int = 12
) -> tuple[float | None, float | None]:
    """Largest eigenvalue of ``P^-1 H`` and effective dimension ``tr(C H^-1)``, by conjugate gradients on random signs.

    2 x steps exchanges of M x probes numbers. The eigenvalue is approached from below; the dimension is
    ``M - lambda mean(v' H^-1 v)`` (Hutchinson), None for lambda = 0.
    """
    M = len(system.linear)
    signs = generator(seed, "ridge", "probes").choice([-1.0, 1.0], size=(M, min(probes, M)))
    probed = _Probes(system, signs)
    state = start_conjugate(probed, np.zeros_like(signs))
    for _ in range(steps):
        further = conjugate_step(probed, state)
        if further is None:
            break
        state = further
    inverse = float((signs * state.weights).sum() / signs.shape[1])
    return state.largest_eigenvalue, M - regularization * inverse if regularization else None


def data_heterogeneity(system: SiteSystem, *, seed: int, steps: int = 12) -> dict[str, float]:
    """``|C_D - C_Dj|`` of every site, from below, by Lanczos iteration for all sites side by side.

    steps exchanges of M x (number of sites) numbers: column j iterates for site j.
    """
    names = sorted(system.masses)
    M = len(system.linear)
    V = np.stack([generator(seed, "ridge", "lanczos", name).standard_normal(M) for name in names], axis=1)
    V /= np.linalg.norm(V, axis=0)
    bases, images = [np.zeros((M, 0)) for _ in names], [np.zeros((M, 0)) for _ in names]
    for _ in range(min(steps, M)):
        by_site = system.apply_by_site(V)
        with single_blas_thread():
            common = average(by_site, system.masses)
            V = V.copy()
            for column, name in enumerate(names):
                difference = common[:, column] - by_site[name][:, column]
                bases[column] = np.column_stack([bases[column], V[:, column]])
                images[column] = np.column_stack([images[column], difference])
                V[:, column] = _next_vector(bases[column], difference)
    with single_blas_thread():
        return {name: _norm_on(bases[column], images[column]) for column, name in enumerate(names)}


def _next_vector(basis: FloatArray, vector: FloatArray) -> FloatArray:
    """The part of ``vector`` (M,) beside an orthonormal ``basis`` (M, k), of length 1; zero if there is none."""
    size = float(np.linalg.norm(vector))
    for _ in range(2):
        vector = vector - basis @ (basis.T @ vector)
    length = float(np.linalg.norm(vector))
    return vector / length if length > 1e-12 * size else np.zeros_like(vector)


def _norm_on(basis: FloatArray, images: FloatArray) -> float:
    """Spectral norm of a symmetric operator on the span of ``basis`` (M, k), whose images are known."""
    inner = basis.T @ images
    return float(np.abs(np.linalg.eigvalsh((inner + inner.T) / 2)).max(initial=0.0))


def model_heterogeneity(
    weights: FloatArray, image: FloatArray, own: FloatArray, linear: FloatArray, regularization: float
) -> float:
    """Root mean square of f - f_j over a site's rows: ``<D, C_j D>`` of ``D = W - W_j``.

    image : ``H_j W`` (M, C); own, linear : the site's W_j and b_j, of which ``H_j W_j = b_j``.
    """
    difference = weights - own
    return float(np.sqrt(max(0.0, float(np.vdot(difference, image - linear - regularization * difference)))))


def empirical_upsilon(shares: Mapping[str, float], data: Mapping[str, float], regularization: float) -> float | None:
    """``sum p_j (1 + d_j) d_j``, ``d_j = Delta_D_j / lambda``: FedNewton Theorem 1 with C = C_D and C_j = C_Dj.

    There P_j = 1 and R_j = R = 0, and it bounds the contraction per round in the norm of H. None for lambda = 0.
    """
    if regularization == 0:
        return None
    ratios = {name: data[name] / regularization for name in data}
    return float(sum(shares[name] * ratios[name] * (1 + ratios[name]) for name in sorted(ratios)))


def measure_heterogeneity(
    system: SiteSystem,
    weights: FloatArray,
    own: Mapping[str, tuple[FloatArray, FloatArray]],
    dimensions: Mapping[str, float],
    regularization: float,
    *,
    seed: int,
    seen: float | None = None,
) -> Heterogeneity:
    """The whole report at ``weights``: about 40 exchanges. own : W_j and b_j; dimensions : N_j(lambda) of every site.

    seen : an eigenvalue of ``P^-1 H`` that is known already.
    """
    total = sum(system.masses.values())
    shares = {name: mass / total for name, mass in system.masses.items()}
    largest, dimension = probe_spectrum(system, regularization, seed=seed)
    data = data_heterogeneity(system, seed=seed)
    images = system.apply_by_site(weights)
    sites = {
        name: SiteHeterogeneity(
            shares[name],
            data[name],
            model_heterogeneity(weights, images[name], *own[name], regularization),
            dimensions[name],
        )
        for name in sorted(shares)
    }
    eigenvalues = [value for value in (largest, seen) if value is not None]
    upsilon = empirical_upsilon(shares, data, regularization)
    return Heterogeneity(max(eigenvalues, default=None), upsilon, dimension, sites)

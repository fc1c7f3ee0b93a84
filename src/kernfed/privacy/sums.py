"""Exact sums of bounded rows, and the Gaussian noise on them.

Sums in floating point depend on the order of rows, so replacing one row can move them by more than the row itself
(Casacuberta et al. 2022). Here rows are integers of at most ``2^BITS`` in L2 norm; float64 adds their products without
rounding, and the noise is an integer too. Constraining a row and adding noise are separate steps: where sites can add
their integer sums under encryption, noise is added once, to the total.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from kernfed.base.checks import check_number
from kernfed.errors import InputError
from kernfed.privacy.accounting import GaussianEvent, analytic_gaussian_mu
from kernfed.privacy.generator import Ints, NoiseGenerator
from kernfed.privacy.noise import SAMPLING_ERROR, SMOOTHING, DiscreteGaussian, Floats
from kernfed.privacy.release import NUDGE, SMALLEST_DELTA, check_epsilon

# Noise of scale 2^(2 BITS)/mu must fit int64 with its tail.
_SMALLEST_MU = 1e-5


@dataclass(frozen=True)
class Budget:
    """(epsilon, delta) for one record, in terms of Gaussian noise: squared mu are shared out and add up."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_number(self.delta, "delta", at_least=SMALLEST_DELTA, below=1)

    def event(self, numbers: int) -> GaussianEvent:
        """What one record pays for ``numbers`` released numbers, however mu is shared out among them."""
        slack = numbers * SAMPLING_ERROR
        mu = analytic_gaussian_mu(self.epsilon, self.delta - slack)
        if mu < _SMALLEST_MU:
            raise InputError(
                f"epsilon and delta must allow noise of less than {1 / _SMALLEST_MU:g} rows, got {self.epsilon!r} and "
                f"{self.delta!r}, which take {1 / mu:.3g}"
            )
        return GaussianEvent(mu, 1, slack)


def add_gaussian(total: Ints, sensitivity: float, scale: float, mu: float, generator: NoiseGenerator) -> Floats:
    """Noisy ``total / scale`` where one record moves ``total / scale`` by at most ``sensitivity`` in L2.

    ``mu`` is the share of this release: noise of standard deviation sensitivity/mu.
    """
    noise = noise_law(sensitivity, scale, mu)
    return np.asarray((total + noise.sample(total.shape, generator)) / scale)


def noise_law(sensitivity: float, scale: float, mu: float) -> DiscreteGaussian:
    """Noise of ``add_gaussian``, in steps of ``1 / scale``."""
    sigma = sensitivity / mu * NUDGE
    return DiscreteGaussian(Fraction(sigma * scale) ** 2 + SMOOTHING, math.ceil(sensitivity * scale))


def add_symmetric_gaussian(
    total: Ints, sensitivity: float, scale: float, mu: float, generator: NoiseGenerator
) -> Floats:
    """``add_gaussian`` for a symmetric matrix, whose sensitivity is in the Frobenius norm.

    The norm counts an entry off the diagonal twice: as a vector the matrix is its diagonal and sqrt(2) times its upper
    triangle. So noise off the diagonal has a standard deviation smaller by sqrt(2).
    """
    upper = np.triu_indices(len(total), 1)
    noisy = np.zeros(total.shape)
    noisy[upper] = add_gaussian(total[upper], sensitivity / math.sqrt(2) * (1 + 1e-15), scale, mu, generator)
    noisy += noisy.T
    noisy[np.diag_indices_from(noisy)] = add_gaussian(np.diag(total), sensitivity, scale, mu, generator)
    return noisy

"""Noise against its exact law: what is computed from the sampler's own numbers, and what is drawn."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.stats import chisquare

from kernfed.privacy.generator import NoiseGenerator
from kernfed.privacy.noise import (
    SMOOTHING,
    TAIL,
    DiscreteGaussian,
    DiscreteLaplace,
    DiscreteStaircase,
    _draw,
    _geometric_bits,
    _table,
)

LAWS = {
    "laplace": DiscreteLaplace(Fraction(1, 5), 10),
    "laplace narrow": DiscreteLaplace(Fraction(3), 1),
    "laplace with atom": DiscreteLaplace(Fraction(1, 3), 4, 0.25),
    "staircase": DiscreteStaircase(Fraction(1), 7, 3, 7),
    "staircase flat": DiscreteStaircase(Fraction(1, 2), 5, 5, 5),
    "staircase steep": DiscreteStaircase(Fraction(2), 4, 1, 9),
    "gaussian": DiscreteGaussian(Fraction(30), 5),
    "gaussian narrow": DiscreteGaussian(Fraction(1, 2), 1),
}


@pytest.mark.parametrize("name", LAWS)
def test_masses_sum_to_one_and_are_symmetric(name):
    k = np.arange(-3000, 3001)
    mass = LAWS[name].pmf(k)
    assert math.isclose(mass.sum(), 1.0, rel_tol=1e-13)
    assert np.array_equal(mass, mass[::-1])


@pytest.mark.parametrize("name", LAWS)
def test_draws_have_the_law(name):
    law, count = LAWS[name], 200_000
    drawn = law.sample((count // 50, 50), NoiseGenerator(11))
    assert drawn.shape == (count // 50, 50)
    assert drawn.dtype == np.int64
    k = np.arange(-400, 401)
    expected = count * law.pmf(k)
    common = k[expected > 10]
    observed = np.array([(drawn == value).sum() for value in common])
    rest = count - observed.sum()
    expected = count * law.pmf(common)
    counts, means = np.append(observed, rest), np.append(expected, count - expected.sum())
    keep = means > 5
    assert chisquare(counts[keep], means[keep] * counts[keep].sum() / means[keep].sum()).pvalue > 1e-4


@pytest.mark.parametrize("variance", [Fraction(2**21), Fraction(2**40) + Fraction(1, 3)])
def test_large_gaussians_have_the_law(variance):
    """Binned by the continuous distribution function, which is exact to 1e-3 of a bin at these scales."""
    drawn = _draw(variance, 1, 1 << 15, NoiseGenerator(5)) / math.sqrt(variance)
    edges = np.array([float(mpmath.erfinv(2 * q - 1) * mpmath.sqrt(2)) for q in np.linspace(0.02, 0.98, 49)])
    counts = np.bincount(np.searchsorted(edges, drawn), minlength=50)
    assert chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize(("epsilon", "shift"), [(0.5, 1000), (3.0, 3000)])
def test_neighbouring_laplace_masses_differ_by_at_most_exp_epsilon(epsilon, shift):
    law = DiscreteLaplace(Fraction(epsilon) / shift)
    k = np.arange(-3 * shift, 3 * shift + 1)
    with np.errstate(divide="raise"):
        ratios = np.log(law.pmf(k) / law.pmf(k - shift))
    assert math.isclose(ratios.max(), epsilon, rel_tol=1e-12)
    assert math.isclose(ratios.min(), -epsilon, rel_tol=1e-12)


@pytest.mark.parametrize("inner", [1, 4, 12])
@pytest.mark.parametrize("shift", [1, 5, 12])
def test_neighbouring_staircase_masses_differ_by_at_most_exp_epsilon(inner, shift):
    law = DiscreteStaircase(Fraction(3, 2), 12, inner)
    k = np.arange(-60, 61)
    assert set(np.unique(law.levels(k - shift) - law.levels(k))) <= {-1, 0, 1}
    assert np.abs(np.log(law.pmf(k) / law.pmf(k - shift))).max() <= 1.5 + 1e-12


@pytest.mark.parametrize("inner", [1, 4, 12])
@pytest.mark.parametrize("shift", [0, 1, 2, 7, 11, 12])
def test_staircase_variation(inner, shift):
    law = DiscreteStaircase(Fraction(3, 2), 12, inner)
    k = np.arange(-600, 601)
    assert math.isclose(
        law.variation(shift), np.abs(law.pmf(k) - law.pmf(k - shift)).sum() / 2, rel_tol=1e-12, abs_tol=1e-15
    )


def test_digits_of_a_geometric_variable_give_its_law():
    """From the coins' own numerators, in rationals: the law of the digits is geometric on 0 .. 2^digits - 1."""
    rate = Fraction(2)
    coins = _geometric_bits(rate, 0)
    ones = [Fraction(coin.numerator, 1 << coin.precision) for coin in coins]
    q = mpmath.exp(-2)
    with mpmath.workprec(400):
        q = mpmath.exp(-2)
        normal = (1 - q) / (1 - q ** (2 ** len(coins)))
        for value in range(2 ** len(coins)):
            mass = math.prod(p if value >> i & 1 else 1 - p for i, p in enumerate(ones))
            exact = normal * q**value
            error = abs(mpmath.mpf(mass.numerator) / mass.denominator / exact - 1)
            assert error < mpmath.mpf(2) ** -120


@pytest.mark.parametrize("rate", [Fraction(1, 1500), Fraction(1, 3), Fraction(20)])
@pytest.mark.parametrize("reach", [0, 10, 40])
def test_what_the_support_leaves_out_is_bounded(rate, reach):
    law = DiscreteLaplace(rate, reach)
    largest = 2 ** len(law._bits)
    beyond = mpmath.exp(-mpmath.mpf(rate.numerator) / rate.denominator * (largest - reach))
    assert float(beyond) <= law.sampling_error * (1 + 1e-9)
    assert law.sampling_error <= math.exp(-TAIL)


@pytest.mark.parametrize("variance", [Fraction(1, 2), Fraction(50), Fraction(2**18)])
def test_gaussian_tables_against_high_precision(variance):
    table = _table(variance, 20)
    sigma = math.sqrt(variance)
    with mpmath.workprec(600):
        v = mpmath.mpf(variance.numerator) / variance.denominator
        last = len(table.bounds)
        total = (
            mpmath.nsum(lambda k: mpmath.exp(-(k**2) / (2 * v)), [-math.inf, math.inf], method="d")
            if v < 5
            else (mpmath.sqrt(2 * mpmath.pi * v) * (1 + 2 * mpmath.exp(-2 * mpmath.pi**2 * v)))
        )
        for k in (0, 1, int(sigma), int(5 * sigma), int(11 * sigma), last - 1):
            below = table.bounds[k - 1] if k else 0
            mass = mpmath.mpf(table.bounds[k] - below) / mpmath.mpf(2) ** table.precision
            exact = (2 if k else 1) * mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * v)) / total
            assert abs(mass / exact - 1) < mpmath.mpf(2) ** -80


def test_the_sum_of_two_gaussians_is_one():
    """The law of x + 128 y, summed exactly, for the smallest variance that is drawn in two parts."""
    variance = 1 << 20
    fine, coarse = DiscreteGaussian(Fraction(1 << 18)), DiscreteGaussian(Fraction(variance - (1 << 18), 4**7))
    y = np.arange(-150, 151)
    for x in (0, 1, 63, 64, 1000, 5000):
        mass = (coarse.pmf(y) * fine.pmf(x - 128 * y)).sum()
        assert math.isclose(mass, DiscreteGaussian(Fraction(variance)).pmf(x), rel_tol=1e-11)


def test_grid_gaussian_is_as_private_as_the_continuous_one():
    """The hockey-stick divergence of the grid noise of variance v + SMOOTHING, summed, against that of variance v."""
    from kernfed.privacy.accounting import gaussian_delta

    sigma, shift = 100.0, 60
    law = DiscreteGaussian(Fraction(sigma) ** 2 + SMOOTHING)
    k = np.arange(-1500, 1501)
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        delta = np.maximum(law.pmf(k) - math.exp(epsilon) * law.pmf(k - shift), 0).sum()
        continuous = float(gaussian_delta(shift / sigma, epsilon))
        assert 0.98 * continuous < delta <= continuous


def test_a_tie_in_a_table_is_decided_by_the_bits_after_it():
    table = _table(Fraction(50), 20)
    rest = table.precision - 64

    class Script(NoiseGenerator):
        low = 0

        def words(self, count):
            return np.full(count, table.first[3], dtype=np.uint64)

        def integer(self, bits):
            assert bits == rest
            return self.low

    source = Script()
    low = table.bounds[3] & ((1 << rest) - 1)
    source.low = low - 1
    assert table.sizes(source, 1).tolist() == [3]
    source.low = low
    assert table.sizes(source, 1).tolist() == [4]


@pytest.mark.parametrize(("epsilon", "mean"), [(1, 0.9595), (3, 0.2348), (8, 0.0183)])
def test_mean_size_of_staircase_noise(epsilon, mean):
    width = 60_000
    law = DiscreteStaircase.optimal(Fraction(epsilon), width)
    k = np.arange(1, 50 * width // epsilon)
    assert math.isclose(2 * (k * law.pmf(k)).sum() / width, mean, rel_tol=3e-3)
    for inner in (law.inner - 400, law.inner + 400):
        if inner > 0:
            other = DiscreteStaircase(Fraction(epsilon), width, inner)
            assert (k * other.pmf(k)).sum() > (k * law.pmf(k)).sum()

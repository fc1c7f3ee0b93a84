"""Likelihoods against the exact laws, and attacks against closed forms."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import norm

from kernfed.privacy import ElementLaplace, ElementStaircase, NoiseGenerator, RecordGaussian, RecordMoments
from kernfed.privacy.attacks import (
    EXACT_HIT,
    RowLaw,
    known_pair,
    known_row,
    log_likelihoods,
    log_mass,
    log_ratio,
    record_canaries,
    row_law,
    run_canaries,
    unknown_position,
)
from kernfed.privacy.noise import DiscreteGaussian, DiscreteLaplace, DiscreteStaircase

LAWS = {
    "laplace": DiscreteLaplace(Fraction(1, 10)),
    "laplace with atom": DiscreteLaplace(Fraction(1, 10), 0, 0.2),
    "staircase": DiscreteStaircase.optimal(Fraction(2), 20),
    "gaussian": DiscreteGaussian(Fraction(400)),
    "narrow gaussian": DiscreteGaussian(Fraction(1, 2)),
}
MECHANISMS = {
    "laplace": ElementLaplace(1.0, d=1.0, bounds=(0.0, 1.0)),
    "laplace with atom": ElementLaplace(1.0, d=1.0, bounds=(0.0, 1.0), delta=0.1),
    "staircase": ElementStaircase(1.0, d=1.0, bounds=(0.0, 1.0)),
    "gaussian": RecordGaussian(1.0, 1e-5, radius=2.0),
    "gaussian projected": RecordGaussian(1.0, 1e-5, radius=2.0, projection=3),
}


class OtherNoise:
    """A law that the package does not know: only its masses can be asked for."""

    sampling_error = 0.0

    def pmf(self, k):
        return LAWS["laplace"].pmf(k)

    def sample(self, shape, generator):
        return LAWS["laplace"].sample(shape, generator)


def releaser(mechanism, seed=1):
    source = NoiseGenerator(seed)
    return lambda X: mechanism.release(X, generator=source).values


@pytest.fixture(params=LAWS)
def noise(request):
    return LAWS[request.param]


def test_log_mass_is_the_logarithm_of_the_mass(noise):
    k = np.arange(-25, 26)
    np.testing.assert_allclose(log_mass(noise, k), np.log(noise.pmf(k)), rtol=1e-9)
    np.testing.assert_allclose(log_mass(OtherNoise(), k), np.log(LAWS["laplace"].pmf(k)), rtol=1e-9)


def test_log_mass_does_not_underflow(noise):
    far = log_mass(noise, [10**6, 10**6 + 1000])
    assert np.isfinite(far).all()
    assert far[1] < far[0] < -1000
    assert np.isfinite(log_mass(OtherNoise(), 10**6))


def test_likelihoods_of_all_pairs(noise, rng):
    noisy, rows = rng.integers(-40, 40, (7, 5)), rng.integers(-40, 40, (4, 5))
    noisy[0] = rows[0]  # the atom
    naive = [[sum(float(log_mass(noise, y - x)) for y, x in zip(a, b, strict=True)) for b in rows] for a in noisy]
    np.testing.assert_allclose(log_likelihoods(noise, noisy, rows), naive, rtol=1e-12)


def test_ratio_of_equally_likely_outcomes_is_one_number():
    """In the tails a Laplace ratio is exactly +-rate times the shift; rounding must not make it many numbers."""
    noise = DiscreteLaplace(Fraction(1, 1000) + Fraction(1, 10**12))
    tails = log_ratio(noise, np.arange(1000, 100000), np.full(99000, 1000), np.zeros(99000, dtype=np.int64))
    assert len(np.unique(tails)) == 1
    assert tails[0] == pytest.approx(1.0)


@pytest.mark.parametrize("name", MECHANISMS)
def test_law_is_that_of_the_release(name, rng):
    """What is released minus the law's grid is on the grid, and has the law's mean size."""
    mechanism = MECHANISMS[name]
    rows = rng.normal(0, 2, (400, 5))
    law = row_law(mechanism, 5)
    values = releaser(mechanism)(rows)
    noise = values / law.step - law.grid(rows)
    assert np.array_equal(noise, np.rint(noise))
    drawn = law.noise.sample((20000,), NoiseGenerator(3))
    assert np.abs(noise).mean() == pytest.approx(np.abs(drawn).mean(), rel=0.1)


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
@pytest.mark.parametrize("projection", [None, 3])
def test_known_pair_against_the_closed_form(epsilon, projection):
    """Two rows on opposite sides of the ball: the ratio is Gaussian, and the area is Phi(mu/sqrt 2)."""
    mechanism = RecordGaussian(epsilon, 1e-5, radius=2.0, projection=projection)
    first, second = record_canaries(mechanism, 6, 0)
    law = row_law(mechanism, 6)
    attack = known_pair(releaser(mechanism), law, first[None], second[None], trials=5000)
    mu = mechanism.law(projection or 6)[2].mu
    assert attack.roc.auc == pytest.approx(norm.cdf(mu / math.sqrt(2)), abs=0.015)
    assert attack.roc.auc_interval[0] < norm.cdf(mu / math.sqrt(2)) < attack.roc.auc_interval[1]


def images(rng, count):
    """Rows like those of handwritten digits: 784 elements, a fifth of them not 0."""
    return rng.random((count, 784)) * (rng.random((count, 784)) < 0.2)


def expected_area(noise, differences):
    """Area of the likelihood ratio by the central limit theorem, from exact moments of each element's ratio."""
    k = np.arange(-400000, 400001)
    mass = noise.pmf(k)
    sizes = np.unique(differences)
    grid = np.linspace(0, sizes.max(), 40).astype(np.int64)
    ratios = [log_mass(noise, k) - log_mass(noise, k + shift) for shift in grid]
    mean = np.array([mass @ ratio for ratio in ratios])
    variance = np.array([mass @ ratio**2 for ratio in ratios]) - mean**2
    means, variances = (np.interp(differences, grid, part).sum(axis=1) for part in (mean, variance))
    return norm.cdf((means[:, None] + means) / np.sqrt(variances[:, None] + variances)).mean()


@pytest.mark.parametrize(("epsilon", "least"), [(0.1, 0.6), (0.5, 0.97), (1.0, 0.999)])
def test_element_noise_does_not_hide_records(epsilon, least, rng):
    """784 elements at a small element epsilon: who knows a row and its substitute recognises it."""
    mechanism = ElementLaplace(epsilon, d=1.0, bounds=(0.0, 1.0))
    law = row_law(mechanism, 784)
    rows, others = images(rng, 100), images(rng, 100)
    attack = known_pair(releaser(mechanism), law, rows, others, trials=1500)
    expected = expected_area(law.noise, np.abs(law.grid(rows) - law.grid(others)))
    assert attack.roc.auc > least
    assert attack.roc.auc == pytest.approx(expected, abs=0.025)
    assert known_row(releaser(mechanism), law, rows, others, trials=300).roc.auc < attack.roc.auc + 0.01


@pytest.mark.shared_data
def test_digits_by_element_epsilon(shared_data):
    """MNIST at element epsilon 0.1 and 1: who knows a row and the population recognises it in its noisy row."""
    with np.load(shared_data / "mnist.npz") as arrays:
        rows = arrays["x_test"][:1000].reshape(1000, -1) / 255.0
    for epsilon, known, unknown in ((0.1, (0.63, 0.74), (0.45, 0.56)), (1.0, (0.99, 1.0), (0.75, 1.0))):
        mechanism = ElementLaplace(epsilon, d=1.0, bounds=(0.0, 1.0))
        law = row_law(mechanism, 784)
        attack = known_row(releaser(mechanism), law, rows[:500], rows[500:])
        hidden = unknown_position(releaser(mechanism), law, rows[:500], rows[500:])
        assert known[0] < attack.roc.auc <= known[1]
        assert unknown[0] < hidden.roc.auc <= unknown[1]


@pytest.mark.parametrize("attack", [known_pair, known_row, unknown_position])
@pytest.mark.parametrize(("epsilon", "low", "high"), [(0.001, 0.4, 0.6), (40.0, 0.99, 1.0)])
def test_much_noise_hides_and_little_does_not(attack, epsilon, low, high, rng):
    mechanism = ElementLaplace(epsilon, d=1.0, bounds=(0.0, 1.0))
    rows, others = rng.random((150, 8)), rng.random((300, 8))
    found = attack(releaser(mechanism), row_law(mechanism, 8), rows, others)
    assert low <= found.roc.auc <= high
    assert found.name in str(found)


def test_unknown_position_of_one_row_is_a_known_row():
    """A single noisy row: its place is known, so the scores are likelihood ratios of that row."""
    mechanism = ElementLaplace(20.0, d=1.0, bounds=(0.0, 1.0))
    others = np.array([[0.0], [0.2], [0.9], [1.0]])
    found = unknown_position(releaser(mechanism), row_law(mechanism, 1), np.array([[0.5]]), others)
    assert (found.roc.members, found.roc.others) == (1, 2)
    assert found.roc.auc == 1.0


def test_fewer_rows_than_trials_and_the_reverse(rng):
    mechanism = MECHANISMS["gaussian"]
    law = row_law(mechanism, 3)
    for size in (1, 50):
        attack = known_pair(releaser(mechanism), law, rng.normal(size=(size, 3)), rng.normal(size=(7, 3)), trials=20)
        assert (attack.roc.members, attack.roc.others) == (20, 20)


def test_released_values_off_the_grid_are_taken_to_it(rng):
    """A foreign implementation with textbook floating-point noise can be attacked all the same."""
    mechanism = ElementLaplace(1.0, d=1.0, bounds=(0.0, 1.0))
    rows = np.full((1, 30), 1.0)
    attack = known_pair(lambda X: X + rng.laplace(0, 1, X.shape), row_law(mechanism, 30), rows, 0 * rows, trials=400)
    assert attack.roc.auc > 0.99


@pytest.mark.parametrize("name", MECHANISMS)
def test_record_canaries_are_at_the_ends_of_the_clipped_range(name):
    mechanism = MECHANISMS[name]
    first, second = record_canaries(mechanism, 4, 0)
    law = row_law(mechanism, 4)
    gap = (law.grid(first[None]) - law.grid(second[None])) * law.step
    largest = 2 * mechanism.radius if isinstance(mechanism, RecordGaussian) else 1.0
    size = np.linalg.norm(gap) if isinstance(mechanism, RecordGaussian) else np.abs(gap).min()
    assert size == pytest.approx(largest, rel=0.01)


def test_canaries_by_row_and_by_element():
    law = RowLaw(LAWS["laplace"], 1.0, 2, lambda X: np.rint(X).astype(np.int64))
    included = np.array([[True, False], [False, False]])
    first, second = np.array([40.0, 10.0]), np.zeros(2)
    by_element = run_canaries(lambda X: X, law, first, second, included)
    hit = EXACT_HIT
    np.testing.assert_allclose(by_element, [[4.0 + hit, -1.0 - hit], [-4.0 - hit, -1.0 - hit]])
    by_row = run_canaries(lambda X: X, law, first, second, included[:, 0])
    np.testing.assert_allclose(by_row, [5.0 + hit, -5.0 - hit])
    noisy = run_canaries(lambda X: X + 3, law, first, second, included[:, 0])
    np.testing.assert_allclose(noisy, [5.0, -3.8])


def attack_with(attack=known_pair, release=None, rows=None, others=None, **options):
    mechanism = MECHANISMS["laplace"]
    rows, others = (np.zeros((5, 2)) if part is None else part for part in (rows, others))
    return attack(release or releaser(mechanism), row_law(mechanism, 2), rows, others, **options)


BAD = [
    (lambda: attack_with(rows=np.zeros(5)), "rows must be a matrix"),
    (lambda: attack_with(others=np.zeros((5, 3))), "others must have 2 columns"),
    (lambda: attack_with(rows=[[np.nan, 0]]), "rows must be finite"),
    (lambda: attack_with(trials=1), "trials must be >= 2"),
    (lambda: attack_with(trials=2.5), "trials must be an integer"),
    (lambda: attack_with(release=lambda X: X[1:]), "released values must have shape"),
    (lambda: attack_with(release=lambda X: X[:, :1]), r"released values must have shape \(2000, 2\), got"),
    (lambda: attack_with(release=lambda X: X[0]), "released values must be a matrix"),
    (lambda: attack_with(release=lambda X: X * np.inf), "released values must"),
    (lambda: attack_with(known_row, others=np.zeros((3, 2))), "others must have at least 4 rows"),
    (lambda: attack_with(known_row, references=0), "references must be >= 1"),
    (lambda: attack_with(unknown_position, others=np.zeros((3, 2))), "others must have at least 4 rows"),
    (lambda: attack_with(unknown_position, candidates=0), "candidates must be >= 1"),
    (lambda: attack_with(confidence=0.0), "confidence must be > 0"),
    (lambda: row_law(RecordMoments(1.0, 1e-5, 2, 1.0), 3), "mechanism must release rows"),
    (lambda: row_law(MECHANISMS["laplace"], 0), "width must be >= 1"),
]


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()

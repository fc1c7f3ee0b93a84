"""Coverage from counts with noise: the ladder counts rows, the noise bound holds, and so does the coverage."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from kernfed.abstain import BINS, NoisyConformal, probability_bins, read_coverage
from kernfed.abstain.bins import (
    BITS,
    PLACES,
    ladder_sums,
    last_odds_bin,
    lengths,
    noise_bound,
    odds_places,
    rows_beyond,
    rungs,
    sensitivity,
)
from kernfed.errors import InputError
from kernfed.privacy import DiscreteGaussian, RecordHistogram
from kernfed.privacy.values import mechanism_to_values
from kernfed.promise import Terms

CLASSES = np.array(["a", "b", "c"])
MECHANISM = RecordHistogram(1.0, 1e-5)
ASKED = {"mechanism": mechanism_to_values(MECHANISM), "labels": None}
SPENT = {"spent": {"s": (1.0, 1e-5)}, "charges": {"s": 1}}
TERMS = Terms(ASKED["mechanism"], None, "rows and targets", *MECHANISM.guarantees(3), request=ASKED, **SPENT)


def record_of(places, noise=None, deviation=4.0, strange=None):
    """A record of rows in these places; without noise it has the smallest deviation there can be, 6e-5 rows."""
    added = np.zeros(PLACES, dtype=np.int64) if noise is None else noise
    nearest = None if strange is None else ladder_sums(strange) + added
    return NoisyConformal(ladder_sums(places) + added, nearest, deviation, len(places), 1, TERMS)


# The ladder --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_going_down_the_ladder_counts_the_rows_beyond_each_place(seed):
    rng = np.random.default_rng(seed)
    cases = [
        rng.integers(0, PLACES + 1, size=500),
        np.zeros(7, dtype=int),
        np.full(3, PLACES),
        rng.integers(40, 45, 90),
    ]
    for places in cases:
        naive = [(places > place).sum() for place in range(PLACES)]
        np.testing.assert_allclose(rows_beyond(ladder_sums(places)), naive, atol=1e-7)


def test_the_sensitivity_is_that_of_the_worst_pair():
    columns = rungs().astype(float)
    pairs = [np.linalg.norm(columns[:, a] - columns[:, b]) for a in range(PLACES + 1) for b in range(a)]
    assert max(pairs) <= sensitivity() <= max(pairs) * (1 + 1e-12)
    assert np.linalg.norm(columns, axis=0).max() < sensitivity()
    # What a count costs: three times the noise of a single one, and not nine times.
    assert sensitivity() * lengths().max() < 3.1


def test_places_are_unions_of_bins():
    places = odds_places(np.arange(BINS))
    assert (np.diff(places) >= 0).all()
    assert set(places.tolist()) == set(range(PLACES))
    for place in range(PLACES):
        assert last_odds_bin(place) == np.flatnonzero(places == place)[-1]


# The noise bound ---------------------------------------------------------------------------------------------------


def exact_tail(weights, variance, bound):
    """P(sum of weights times independent discrete Gaussians > bound), by adding up masses."""
    reach = math.ceil(12 * math.sqrt(variance))
    law = DiscreteGaussian(Fraction(variance))
    total = np.array([1.0])
    for weight in weights:
        own = np.zeros(2 * weight * reach + 1)
        own[:: max(weight, 1)] = law.pmf(np.arange(-reach, reach + 1))
        total = np.convolve(total, own)
    values = np.arange(len(total)) - (len(total) - 1) // 2
    return total[values > bound].sum()


@pytest.mark.parametrize("weights", [(1,), (1, 1), (3, 4), (1, 2, 2), (5, 1, 1)])
@pytest.mark.parametrize("risk", [0.1, 3e-3, 1e-3, 1e-5])
def test_the_noise_bound_is_exceeded_no_more_often_than_stated(weights, risk):
    length = math.hypot(*weights)
    for variance in (16, 400, 10_000):
        assert exact_tail(weights, variance, length * noise_bound(math.sqrt(variance), risk)) <= risk
    assert exact_tail(weights, 10_000, length * noise_bound(100.0, risk)) >= 0.5 * risk  # and it is not a wild guess


# Thresholds and p-values -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.99])
def test_without_noise_the_threshold_is_that_of_the_theorem_in_whole_places(coverage):
    rng = np.random.default_rng(1)
    for n in (5, 60, 999):
        places = np.minimum(rng.poisson(30, size=n), PLACES)
        record = record_of(places)
        rank = math.ceil((n + 1) * (coverage + record.risk(coverage)))
        expected = np.sort(places)[rank - 1] if rank <= n else PLACES
        assert (record.thresholds(CLASSES, coverage) == last_odds_bin(min(expected, PLACES - 1))).all()


def test_rows_in_no_set_make_all_sets_full():
    record = record_of(np.where(np.arange(100) < 20, PLACES, 10))
    assert (record.thresholds(CLASSES, 0.7) == last_odds_bin(10)).all()
    assert (record.thresholds(CLASSES, 0.9) == BINS - 1).all()


def simulated(rng, n, epsilon, turns):
    """Coverage of sets of 0.9 by a threshold with fresh rows and fresh noise, and their thresholds without noise."""
    deviation = math.sqrt(RecordHistogram(epsilon, 1e-5).law().variance)
    for _ in range(turns):
        odds = rng.normal(-2.0, 2.0, size=n)
        places = odds_places(probability_bins(1 / (1 + np.exp(odds))))
        noise = np.rint(rng.normal(0.0, deviation, PLACES)).astype(np.int64)
        threshold = record_of(places, noise, deviation).thresholds(CLASSES[:1], 0.9)[0]
        new = probability_bins(1 / (1 + np.exp(rng.normal(-2.0, 2.0, size=2000))))
        yield (new <= threshold).mean()


@pytest.mark.parametrize(("n", "epsilon"), [(300, 1.0), (300, 3.0), (2000, 1.0), (2000, 3.0)])
def test_the_coverage_holds_over_rows_and_noise_together(n, epsilon):
    covered = np.array(list(simulated(np.random.default_rng([n, int(epsilon)]), n, epsilon, 100)))
    assert covered.mean() >= 0.9
    if n * epsilon >= 2000:
        assert covered.mean() <= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("n", [150, 500, 1500])
def test_the_coverage_holds_over_thousands_of_draws(n):
    for epsilon in (0.5, 1.0, 3.0, 10.0):
        covered = np.array(list(simulated(np.random.default_rng([n, int(10 * epsilon)]), n, epsilon, 3000)))
        assert covered.mean() >= 0.9


def test_a_threshold_is_too_low_no_more_often_than_the_noise_may():
    """For these very rows, over noise alone: at most 3 % of the miscoverage, or of whatever coverage is asked for."""
    rng = np.random.default_rng(5)
    deviation = math.sqrt(MECHANISM.law().variance)
    places = np.minimum(rng.poisson(30, size=800), PLACES)
    for coverage in (0.5, 0.9):
        record = record_of(places)
        true = record.thresholds(CLASSES[:1], coverage)[0]
        noise = np.rint(rng.normal(0.0, deviation, (4000, PLACES))).astype(np.int64)
        low = [record_of(places, own, deviation).thresholds(CLASSES[:1], coverage)[0] < true for own in noise]
        assert np.mean(low) <= record.risk(coverage) + 4 * math.sqrt(record.risk(coverage) / 4000)


def test_p_values_of_known_kinds_are_small_no_more_often_than_they_say():
    rng = np.random.default_rng(7)
    mechanism = RecordHistogram(3.0, 1e-5, strangers=True)
    deviation = math.sqrt(mechanism.law().variance)
    small = {0.02: [], 0.05: [], 0.2: []}
    for _ in range(100):
        strange = np.exp(rng.normal(size=1000))
        places = np.clip(np.floor((np.log2(strange) + 4) * 8) + 1, 0, PLACES - 1).astype(int)
        noise = np.rint(rng.normal(0.0, deviation, PLACES)).astype(np.int64)
        values = record_of(places, noise, deviation, strange=places).p_values(np.exp(rng.normal(size=1000)))
        for level, shares in small.items():
            shares.append((values <= level).mean())
    for level, shares in small.items():
        assert np.mean(shares) <= level
    assert np.mean(small[0.2]) > 0.1  # and they are of use
    smallest = record_of(places, strange=places).p_values(np.array([0.0, np.inf]))
    assert smallest[0] == 1.0
    assert smallest[1] == pytest.approx(1 / 1001 + 1e-3, abs=1e-6)


def test_what_noise_does_not_allow_is_refused_in_a_sentence():
    record = record_of(np.arange(50))
    for options in ({"conditional": "class"}, {"conditional": "new site"}, {"site": "s"}, {"prior": "uniform"}):
        with pytest.raises(InputError, match="of all rows together"):
            record.thresholds(CLASSES, 0.9, **options)
    with pytest.raises(InputError, match="strangers=True"):
        record.p_values(np.ones(2))
    with pytest.raises(InputError, match="of all rows together"):
        record_of(np.arange(50), strange=np.arange(50)).p_values(np.ones(2), "class")
    assert "with noise" in str(record)


def test_files_keep_it_and_hostile_ones_are_refused():
    record = replace(record_of(np.arange(80), strange=np.arange(80)), deviation=2.0 ** (BITS + 3), missing={"t": "off"})
    arrays, values = record.to_parts(CLASSES)
    again = read_coverage(arrays, values, CLASSES)
    np.testing.assert_array_equal(again.thresholds(CLASSES, 0.8), record.thresholds(CLASSES, 0.8))
    np.testing.assert_array_equal(again.p_values(np.ones(3)), record.p_values(np.ones(3)))
    assert (again.rows, again.sites, again.missing, again.privacy) == (80, 1, {"t": "off"}, TERMS)
    for wrong in ({"noise": 0.0}, {"noise": "x"}, {"rows": 0}, {"rows": 1.5}, {"sites": 0}, {"unit": 0.0}):
        with pytest.raises(InputError):
            read_coverage(arrays, {**values, **wrong}, CLASSES)
    for array in (np.zeros(PLACES), np.zeros(3, dtype=np.int64), np.full(PLACES, 2**63 - 1)):
        with pytest.raises(InputError):
            read_coverage({**arrays, "conformal.counts": array}, values, CLASSES)

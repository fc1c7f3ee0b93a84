"""Held-out bounds: coverage computed exactly where it can be, simulated end to end, and their edges."""

import numpy as np
import pytest
from scipy.stats import binom

from kernfed.guarantees import Bound, clopper_pearson, heldout_bounds, hoeffding
from kernfed.guarantees.heldout import clopper_pearson_value, hoeffding_value

VALUES = {"clopper-pearson": clopper_pearson_value, "hoeffding": hoeffding_value}
ALONE = {"clopper-pearson": clopper_pearson, "hoeffding": hoeffding}


def count_distribution(chances):
    """Probabilities of 0..n errors when row i is wrong with probability ``chances[i]``: a chain of convolutions."""
    found = np.array([1.0])
    for chance in chances:
        found = np.convolve(found, [1 - chance, chance])
    return found


def pooled_value(method, errors, rows, confidence):
    return heldout_bounds({"a": (errors, rows)}, confidence, method=method).pooled.value


@pytest.mark.parametrize("method", VALUES)
@pytest.mark.parametrize("rows", [1, 2, 13, 80])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_exact_coverage_at_one_site(method, rows, confidence):
    bounds = np.array([ALONE[method](errors, rows, confidence).value for errors in range(rows + 1)])
    for error in np.linspace(0, 1, 201):
        covered = binom.pmf(np.arange(rows + 1), rows, error) @ (bounds >= error)
        assert covered >= confidence - 1e-12


@pytest.mark.parametrize("method", VALUES)
@pytest.mark.parametrize("confidence", [0.75, 0.95])
def test_exact_coverage_of_pooled_rows_that_are_not_alike(rng, method, confidence):
    for rows in (1, 2, 3, 10, 30):
        bounds = np.array([pooled_value(method, errors, rows, confidence) for errors in range(rows + 1)])
        for spread in (0.01, 0.3, 1.0, 100.0):
            for centre in (0.02, 0.5, 0.98, 0.999):
                chances = rng.beta(spread * centre, spread * (1 - centre), rows)
                covered = count_distribution(chances) @ (bounds >= chances.mean() - 1e-12)
                assert covered >= confidence - 1e-9, (rows, chances)


def test_the_top_of_the_pooled_bound_is_needed():
    """One row that is rarely right among rows that never are: there the plain binomial bound holds too rarely."""
    rows, confidence = 50, 0.95
    plain = clopper_pearson_value(rows - 1, rows, confidence)
    chances = np.append(np.ones(rows - 1), 1 - 0.051)  # right with a probability that is above 1 - confidence
    assert chances.mean() > plain  # so one correct answer, of probability 0.051, breaks the plain bound
    assert pooled_value("clopper-pearson", rows - 1, rows, confidence) == 1


@pytest.mark.parametrize("method", VALUES)
def test_simulated_coverage_per_site_and_pooled(rng, method):
    errors, sizes, confidence, repeats = np.array([0.02, 0.2, 0.5]), np.array([60, 100, 25]), 0.9, 1000
    draws = rng.binomial(sizes, errors, (repeats, 3))
    truth = float(errors @ sizes / sizes.sum())
    held = np.zeros((repeats, 4), dtype=bool)
    for turn, wrong in enumerate(draws):
        found = heldout_bounds({str(q): (int(wrong[q]), int(sizes[q])) for q in range(3)}, confidence, method=method)
        held[turn] = [*(found.sites[str(q)].value >= errors[q] for q in range(3)), found.pooled.value >= truth]
    margin = 3 * np.sqrt(confidence * (1 - confidence) / repeats)
    assert (held.mean(axis=0) >= confidence - margin).all()
    if method == "clopper-pearson":  # and not by being far too large
        assert held[:, 3].mean() < 0.95


@pytest.mark.parametrize("method", VALUES)
def test_simultaneous_bounds_hold_together(rng, method):
    errors, size, sites, repeats = 0.1, 40, 6, 500
    draws = rng.binomial(size, errors, (repeats, sites))
    together = {False: 0, True: 0}
    for wrong in draws:
        counts = {str(q): (int(wrong[q]), size) for q in range(sites)}
        for simultaneous in together:
            found = heldout_bounds(counts, 0.8, method=method, simultaneous=simultaneous)
            together[simultaneous] += all(bound.value >= errors for bound in (*found.sites.values(), found.pooled))
    assert together[True] >= 0.8 * repeats
    if method == "clopper-pearson":
        assert together[False] < 0.8 * repeats


def test_against_numbers_known_elsewhere():
    assert clopper_pearson(0, 100).value == pytest.approx(1 - 0.05 ** (1 / 100))  # P(no error) = (1 - p)^n
    assert clopper_pearson(100, 100).value == 1
    assert hoeffding(30, 200, 0.99).value == pytest.approx(0.15 + np.sqrt(np.log(100) / 400))
    assert hoeffding(1, 1).value == 1


@pytest.mark.parametrize("rows", [1, 7, 200])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_the_binomial_bound_is_the_smaller_one(rows, confidence):
    for errors in range(rows + 1):
        assert clopper_pearson(errors, rows, confidence).value <= hoeffding(errors, rows, confidence).value + 1e-12


def test_bounds_say_what_they_are():
    found = heldout_bounds({"b": (1, 50), "a": (3, 60), "none": (0, 0)})
    assert list(found.sites) == ["a", "b"]
    assert all(isinstance(bound, Bound) and bound.reliable for bound in (*found.sites.values(), found.pooled))
    assert str(found).count("\n") == 2
    assert "fixed before" in str(found.pooled)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hoeffding(3, 0), "rows must be >= 1"),
        (lambda: hoeffding(3, 2), "errors must be <= 2"),
        (lambda: clopper_pearson(-1, 2), "errors must be >= 0"),
        (lambda: clopper_pearson(1.0, 2), "errors must be an integer"),
        (lambda: clopper_pearson(1, 2, 1.0), "confidence must be < 1"),
        (lambda: heldout_bounds({"a": (0, 0)}), "at least one site"),
        (lambda: heldout_bounds({"a": 3}), "must be .errors, rows."),
        (lambda: heldout_bounds([(1, 2)]), "must map sites"),
        (lambda: heldout_bounds({"a": (1, 2)}, 0.6), "use 'hoeffding'"),
        (lambda: heldout_bounds({"a": (1, 2)}, method="guess"), "method must be one of"),
    ],
)
def test_bad_counts_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_an_evaluation_is_taken_as_it_is(rng):
    import kernfed as kf

    X, y = rng.standard_normal((300, 4)), rng.integers(0, 2, 300)
    X[:, 0] += y
    with kf.Federation.local({"a": (X[:200], y[:200]), "b": (X[200:], y[200:])}, holdout=0.3) as federation:
        found = kf.evaluate(
            kf.FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None).fit(
                federation
            ),
            federation,
        )
        numbers = kf.evaluate(kf.RidgeLearner("exact", task="regress", features="given").fit(federation), federation)
    counts = {site: (outcome.errors, outcome.rows) for site, outcome in found.sites.items()}
    assert all(0 < errors < rows for errors, rows in counts.values())
    assert heldout_bounds(found, simultaneous=True) == heldout_bounds(counts, simultaneous=True)
    for wrong in (numbers, found.pooled, found.sites["a"], None, 3):
        with pytest.raises(ValueError, match="or be the evaluation of a classifier, got"):
            heldout_bounds(wrong)

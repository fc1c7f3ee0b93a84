"""Printed bounds: proven ones hold in simulation, and every published counterexample breaks the claim it is about."""

import math

import numpy as np
import pytest

import kernfed.guarantees as guarantees
from kernfed.guarantees import (
    CATALOG,
    SiteShape,
    excess_risk_rate,
    federated_error_rate,
    generalization_error,
    generalized_risk,
    hypothesis_error,
    loss_rademacher,
    membership_gap,
    rademacher,
    rademacher_printed,
    sample_complexity,
    sample_risk,
)
from kernfed.kahm.compose import KAHM


def test_sample_risk_holds_at_its_confidence():
    """SFM Theorem 1, for a map of two values and a target that it cannot express."""
    draws, rows, broken = np.random.default_rng(0), 50, 0
    phi, target = np.array([0.9, 0.2]), np.array([0.3, 0.8])  # values at x = 0 and x = 1, each of probability 1/2
    exact = phi * (phi * target).mean()
    for _ in range(2000):
        x = draws.integers(2, size=rows)
        y = draws.uniform(size=rows) < target[x]
        sample = phi * (phi[x] * y).mean()
        broken += np.square(sample - exact).mean() > sample_risk(rows, 0.5).value
    assert broken / 2000 <= 0.5
    assert sample_risk(rows).reliable


def test_counterexample_to_the_risk_of_the_generalized_solution():
    """SFM Theorems 2-4: a constant map of energy 1/2 and the target x in {0, 1}; the error stays at a quarter."""
    rows, phi = 1_000_000, math.sqrt(0.5)
    y = np.random.default_rng(0).integers(2, size=rows)  # the target itself, without disturbance
    solution = phi / (rows * phi**2) * (phi * y).sum()  # (83)
    error = ((solution - 0) ** 2 + (solution - 1) ** 2) / 2
    claimed = generalized_risk(rows, phi**2)
    assert error == pytest.approx(0.25, abs=1e-3)
    assert claimed.value == pytest.approx(0.032, abs=1e-3)
    assert claimed.kind == "counterexample"
    assert not claimed.reliable


def test_counterexample_to_the_complexity_of_the_hypothesis_space():
    """SFM Theorem 5: rows of a continuous distribution have measure zero, so a map may take any values at them."""
    draws, rows, own = np.random.default_rng(0), 1000, 500
    found = []
    for _ in range(200):
        signs = draws.choice([-1, 1], size=rows)
        phi = np.where(np.arange(rows) < own, 1.0, signs > 0)  # one on the class, elsewhere as the signs want
        found.append((signs * phi * phi[:own].mean()).mean())
    assert np.mean(found) == pytest.approx(0.25, abs=0.005)
    assert rademacher_printed(rows).value == pytest.approx(0.0316, abs=1e-4)
    assert np.mean(found) > 7 * rademacher_printed(rows).value


@pytest.mark.parametrize("rows", [10_000, 1_000_000])
def test_counterexample_to_the_error_of_hypotheses(rows):
    """SFM Theorems 6-7, Proposition 2: coin-toss labels, a map that is right at every row and constant elsewhere."""
    draws = np.random.default_rng(0)
    x, y = draws.uniform(size=rows), draws.integers(2, size=rows)
    remembered = dict(zip(x.tolist(), y.tolist(), strict=True))

    def phi(points):
        return np.array([remembered.get(point, float(point < 0.5)) for point in points.tolist()])

    fresh = draws.uniform(size=20_000)
    assert (phi(x[:1000]) == y[:1000]).all()  # Assumption 2
    assert np.square(phi(fresh)).mean() == pytest.approx(y.mean(), abs=0.02)  # (85)
    error = np.square(phi(fresh) - 0.5).mean()
    assert error == 0.25
    assert error > hypothesis_error(rows, float(y.mean())).value


def test_complexity_on_given_rows_holds():
    """GIKM Theorem 3: the supremum over the convex hull is the largest of ``sum_i sign_i phi_i`` times phi."""
    draws = np.random.default_rng(1)
    for rows in (5, 50, 500):
        phi = draws.uniform(size=rows)
        signs = draws.choice([-1.0, 1.0], size=(3000, rows))
        along = signs @ phi
        supremum = np.where(along > 0, along * phi.max(), along * phi.min())
        assert supremum.mean() / rows <= rademacher(rows).value
        assert loss_rademacher(rows).value == 2 * rademacher(rows).value


def test_other_classes_are_fitted_nearly_as_well_in_a_box():
    """GIKM Assumption 2 cannot hold on [-1, 1]^p: the membership of a stranger is close to 1."""
    draws = np.random.default_rng(2)
    machine = KAHM().fit(np.tanh(draws.normal(size=(80, 64))))
    strangers = np.sign(draws.normal(size=(50, 64)))
    images = machine.image(strangers)
    inside = np.abs(images).max(axis=1) <= 1
    loss = 1 - np.exp(-machine.distance(strangers) / 64)
    assert inside.any()
    assert loss[inside].max() <= membership_gap(64).value


def test_sample_complexity_inverts_the_error():
    rows = math.ceil(sample_complexity(0.05, 0.9).value)
    assert generalization_error(rows, None, 0.9).value <= 0.05 < generalization_error(rows - 1, None, 0.9).value
    assert generalization_error(100, 0.2).value == pytest.approx(generalization_error(100).value + 0.2)


@pytest.mark.parametrize(("rows", "exponent"), [(10, -2), (1000, -1.5), (20_000, -1), (300_000, 0)])
def test_rate_of_a_site_falls_with_its_rows_as_printed(rows, exponent):
    """FedNewton Theorem 3 with r = gamma = 1/2 and |D| = 1e6: cases change at 100, 10,000 and 100,000 rows."""

    def federated(count):  # the site counts alone, the others bring the rows
        sites = [SiteShape(1.0, count), SiteShape(0.0, 1_000_000 - count)]
        return excess_risk_rate(sites, 0.5, 0.5, 1, 1).value - excess_risk_rate(sites, 0.5, 0.5, 0, 1).value

    assert federated(2 * rows) / federated(rows) == pytest.approx(2.0**exponent)
    assert not excess_risk_rate([SiteShape(1.0, 10)], 0.5, 1, 1, 1).reliable


def test_rates_grow_with_shift_and_shrink_with_rounds():
    still, moved = [SiteShape(1.0, 100)], [SiteShape(1.0, 100, 0.1, 0.2)]
    assert excess_risk_rate(moved, 0.5, 0.5, 0.5, 2).value > excess_risk_rate(still, 0.5, 0.5, 0.5, 2).value
    assert excess_risk_rate(moved, 0.5, 0.5, 0.5, 9).value < excess_risk_rate(moved, 0.5, 0.5, 0.5, 2).value
    first = federated_error_rate(moved, 0.1, 5.0, 0.5, 1).value
    assert federated_error_rate(moved, 0.1, 5.0, 0.5, 2).value == pytest.approx(first / 2)
    assert federated_error_rate(still, 0.1, 5.0, 0.5, 1).value < first
    assert federated_error_rate(still, 0.1, 5.0, 1e300, 5).value == math.inf


@pytest.mark.parametrize("theorem", CATALOG, ids=lambda theorem: f"{theorem.paper} {theorem.number}")
def test_catalog_names_functions_that_exist_and_are_public(theorem):
    assert theorem.function in guarantees.__all__
    assert callable(getattr(guarantees, theorem.function))
    assert theorem.remark


@pytest.mark.parametrize(
    ("bound", "function"),
    [
        (sample_risk(10), "sample_risk"),
        (generalized_risk(10, 0.5), "generalized_risk"),
        (rademacher_printed(10), "rademacher_printed"),
        (hypothesis_error(10, 0.5), "hypothesis_error"),
        (rademacher(10), "rademacher"),
        (loss_rademacher(10), "loss_rademacher"),
        (generalization_error(10), "generalization_error"),
        (sample_complexity(0.1), "sample_complexity"),
        (excess_risk_rate([SiteShape(1.0, 10)], 0.5, 1, 1, 1), "excess_risk_rate"),
        (federated_error_rate([SiteShape(1.0, 10)], 0.1, 1, 1, 1), "federated_error_rate"),
        (guarantees.image_norm(KAHM().fit(np.eye(4)), form="printed"), "image_norm"),
        (guarantees.distance_ratio(KAHM().fit(np.eye(4)), form="printed"), "distance_ratio"),
    ],
)
def test_functions_say_the_status_that_the_catalog_says(bound, function):
    statuses = {theorem.status for theorem in CATALOG if theorem.function == function}
    assert statuses == {bound.kind}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sample_risk(0), "rows must be"),
        (lambda: sample_risk(10, 1.0), "confidence must be"),
        (lambda: generalized_risk(10, 0.0), "energy must be"),
        (lambda: hypothesis_error(10, 0.5, 1.5), "training_error must be"),
        (lambda: sample_complexity(0.0), "error must be"),
        (lambda: excess_risk_rate([], 0.5, 1, 1, 1), "shares of the sites"),
        (lambda: excess_risk_rate([SiteShape(0.5, 10)], 0.5, 1, 1, 1), "shares of the sites"),
        (lambda: excess_risk_rate([SiteShape(1.0, 10)], 0.2, 0.1, 1, 1), "2 regularity"),
        (lambda: SiteShape(1.0, 0), "rows must be"),
        (lambda: federated_error_rate([SiteShape(1.0, 9)], 0.1, 1, 1, 1, delta=0.9), "delta must be"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

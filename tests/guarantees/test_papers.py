"""Printed bounds: proven ones hold in simulation, and every published counterexample breaks the claim it is about."""

import math
import re
from operator import attrgetter
from pathlib import Path

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
from kernfed.guarantees.bound import grouped_theorems
from kernfed.guarantees.machines import hypothesis_gap, smoothing_error, solution_gap
from kernfed.kahm.compose import KAHM
from kernfed.kahm.folding import folding_feature, hull_kernel, membership_probability
from kernfed.privacy.smoothing import modelling_error, smooth_once


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
    machine = KAHM(scale=None).fit(np.tanh(draws.normal(size=(80, 64))))
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


def test_sample_complexity_is_said_as_rows_that_suffice():
    text = str(sample_complexity(0.01))
    assert text.startswith("272,889 rows suffice for an error of at most 0.01 with probability 0.95, if the rows are")
    assert math.ceil(sample_complexity(0.01).value) == 272_889
    assert "at most 2" not in text


def test_every_function_of_the_learning_space_is_as_near_to_the_solution():
    """GIKM Theorem 5: whatever the weights, a sum of kernels is the membership times something in [1 - gap, 1]."""
    draws = np.random.default_rng(3)
    machine = KAHM(scale=None).fit(np.tanh(draws.normal(size=(40, 6))))
    own, queries = machine.distance(np.tanh(draws.normal(size=(40, 6)))), machine.distance(draws.normal(size=(30, 6)))
    kernel = hull_kernel(queries, own, 6)  # (19)
    weights = np.vstack([draws.dirichlet(np.full(40, 0.1), size=50), np.eye(40)])
    gaps = np.abs(kernel @ weights.T - membership_probability(queries, 6)[:, None])
    bound = solution_gap(own, 6)
    assert bound.reliable
    assert 0.5 * bound.value < gaps.max() <= bound.value
    assert solution_gap(np.zeros(3), 6).value == 0


def test_counterexample_to_memberships_as_probabilities():
    """GIKM Lemma 2: over ten classes in [-1, 1]^784 they come to more than 9, and probabilities to 1."""
    draws = np.random.default_rng(4)
    queries = np.tanh(draws.normal(size=(20, 784)))
    total = np.zeros(20)
    for _ in range(10):
        machine = KAHM(scale=None).fit(np.tanh(draws.normal(size=(30, 784))))
        assert np.abs(machine.image(queries)).max() <= 1
        total += membership_probability(machine.distance(queries), 784)
    assert total.min() > 10 * (1 - membership_gap(784).value) > 9
    status = next(theorem.status for theorem in CATALOG if (theorem.paper, theorem.number) == ("GIKM", "Lemma 2"))
    assert status == "counterexample"


def test_the_feature_map_is_as_far_from_the_hypothesis_space_as_its_own_rows_are_missed():
    """SFM Proposition 1: the member (111) is the map times its mean over the rows of the class."""
    draws = np.random.default_rng(5)
    own, fresh = folding_feature(draws.random((60, 3)))[:, 0], folding_feature(draws.random((200, 3)))[:, 0]
    assert np.abs(fresh * own.mean() - fresh).max() == pytest.approx(hypothesis_gap(own).value)
    assert hypothesis_gap(np.ones(7)).value == 0  # Assumption 2, and the proposition as it is printed
    assert hypothesis_gap(own).assumptions[0].endswith("SFM Assumption 3")


@pytest.mark.parametrize(("count", "width", "scale"), [(30, 4, 1.0), (12, 8, 5.0), (50, 2, 0.01), (3, 1, 40.0)])
def test_smoothing_shrinks_rows_at_least_as_said(count, width, scale):
    """DP-KAHM Theorem 6: the errors vanish with the rows, whose mean square falls like 1 / steps."""
    rows = np.random.default_rng(6).normal(3.0, scale, size=(count, width))
    start = float(np.square(rows).mean())
    for step in range(8):
        bound = smoothing_error(start, count, width, step)
        left = start / (1 + 4 * step * start / count)
        assert np.square(rows).mean() <= left * (1 + 1e-12)
        assert modelling_error(rows) <= bound.value
        assert bound.value == pytest.approx(np.sqrt(width * count * left) * (np.sqrt(count) + count * 1e6))
        rows = smooth_once(rows)
    assert smoothing_error(start, count, width, 10**12).value < 1e-2 * smoothing_error(start, count, width, 0).value
    assert smoothing_error(0.0, count, width, 0).value == 0


NUMBERED = {
    "DP-KAHM": [f"Theorem {number}" for number in range(1, 7)],
    "GIKM": [*(f"Theorem {number}" for number in range(1, 9)), "Lemma 1", "Lemma 2", "Lemma 3"],
    "SFM": [*(f"Theorem {number}" for number in range(1, 10)), *(f"Proposition {number}" for number in (1, 2, 3))],
    "FedNewton": [f"Theorem {number}" for number in range(1, 5)],
    "KME": ["Lemma 4.3", "Theorem 4.4", "Corollary 4.6", "Theorem 5.2"],
}


@pytest.mark.parametrize("paper", NUMBERED)
def test_every_theorem_lemma_and_proposition_has_a_status(paper):
    assert sorted(NUMBERED[paper]) == sorted(theorem.number for theorem in CATALOG if theorem.paper == paper)


def test_the_page_on_guarantees_lists_them_all():
    page = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text(encoding="utf-8")
    rows = [
        f"| {statement} | `{function}` | {status} | {remark} |"
        for statement, function, status, remark in grouped_theorems(tuple(NUMBERED))
    ]
    start = page.index("| statement | function | status | remark |")
    found = page[start : page.index("\n\n", start)].splitlines()
    assert found[2:] == rows, "the table must be:\n" + "\n".join(rows)


def test_no_line_of_its_examples_is_cut_on_a_screen():
    page = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL) for line in block.splitlines()]
    assert max(map(len, lines)) <= 88


@pytest.mark.parametrize("theorem", CATALOG, ids=lambda theorem: f"{theorem.paper} {theorem.number}")
def test_catalog_names_functions_that_exist_and_are_public(theorem):
    home, _, name = theorem.function.rpartition(".")
    assert home in ("", "dpkahm", "gikm", "sfm")
    assert home or name in guarantees.__all__
    assert callable(attrgetter(theorem.function)(guarantees))
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
        (solution_gap([0.1], 3), "solution_gap"),
        (hypothesis_gap([1.0]), "hypothesis_gap"),
        (smoothing_error(1.0, 5, 2, 1), "smoothing_error"),
        (excess_risk_rate([SiteShape(1.0, 10)], 0.5, 1, 1, 1), "excess_risk_rate"),
        (federated_error_rate([SiteShape(1.0, 10)], 0.1, 1, 1, 1), "federated_error_rate"),
        (guarantees.image_norm(KAHM(scale=None).fit(np.eye(4)), form="printed"), "image_norm"),
        (guarantees.distance_ratio(KAHM(scale=None).fit(np.eye(4)), form="printed"), "distance_ratio"),
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
        (lambda: solution_gap([-1.0], 3), "distances must be >= 0, got -1"),
        (lambda: solution_gap(1.0, 3), r"distances must be a vector of at least one number, got shape \(\)"),
        (lambda: solution_gap([], 3), "distances must be a vector of at least one number"),
        (lambda: hypothesis_gap([[1.0]]), "features must be a vector"),
        (lambda: hypothesis_gap([0.5, 1.5]), "features must be <= 1, got 1.5"),
        (lambda: hypothesis_gap([math.nan]), "features"),
        (lambda: smoothing_error(-1.0, 5, 2, 1), "mean_square must be"),
        (lambda: smoothing_error(1.0, 5, 2, -1), "steps must be"),
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

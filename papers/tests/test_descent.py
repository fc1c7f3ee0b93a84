"""FedAvg and FedProx on the ridge objective, against their literal transcription."""

import numpy as np
import pytest

import oracles.ridge as oracle
from kernfed.federation import Federation, Payload, Policy, RidgeLearner
from kernfed.ridge import RidgeParameters
from kernfed_papers.baselines.descent import DescentLearner, LocalObjective
from oracles.ridge_sites import class_sites, value_sites

DKRR = {"n_components": 30, "bandwidth": 2.0, "scale": None, "fit_intercept": False}


def fit(data, *, task="classify", regularization=0.1, **options):
    start = RidgeLearner("dkrr", **DKRR, task=task, regularization=regularization)
    with Federation.local(data, seed=7) as federation:
        return start.fit(federation), DescentLearner(start, **options).fit(federation)


def mapped(model, data):
    features = model.parameters.feature_map()
    return [(features.transform(data[name][0]), model.parameters.targets(data[name][1])) for name in sorted(data)]


@pytest.mark.parametrize("task", ["classify", "regress"])
@pytest.mark.parametrize("sizes", [None, (50, 9)], ids=["usual", "a site of fewer rows than features"])
def test_rounds_are_those_of_the_paper(task, sizes):
    sites = class_sites if task == "classify" else value_sites
    data = sites() if sizes is None else sites(sizes)
    start, fedavg = fit(data, task=task, rounds=3, rate=0.5)
    rows = mapped(start, data)
    first = oracle.dkrr(rows, 0.1)
    np.testing.assert_allclose(start.weights_, first, atol=1e-12)
    np.testing.assert_allclose(fedavg.weights_, oracle.fedavg(rows, 0.1, first, 3, 0.5), atol=1e-12)
    _, fedprox = fit(data, task=task, rounds=3, rate=0.5, proximal=0.2)
    np.testing.assert_allclose(fedprox.weights_, oracle.fedavg(rows, 0.1, first, 3, 0.5, 0.2), atol=1e-12)
    _, exactly = fit(data, task=task, rounds=3, steps="exact", proximal=0.2)
    np.testing.assert_allclose(exactly.weights_, oracle.fedprox(rows, 0.1, first, 3, 0.2), atol=1e-11)
    assert [model.method for model in (fedavg, fedprox, exactly)] == ["fedavg", "fedprox", "fedprox"]


def test_without_proximal_term_exact_rounds_stay_at_the_average_of_local_solutions():
    start, after = fit(class_sites(), rounds=3, steps="exact", proximal=0.0)
    np.testing.assert_allclose(after.weights_, start.weights_, rtol=1e-9, atol=1e-12)


def test_no_rounds_are_the_average_of_local_solutions():
    start, after = fit(class_sites(), rounds=0)
    np.testing.assert_array_equal(after.weights_, start.weights_)


def test_order_of_sites_changes_no_bit():
    data = class_sites()
    _, model = fit(data, rounds=2)
    np.testing.assert_array_equal(fit(dict(reversed(data.items())), rounds=2)[1].weights_, model.weights_)


def test_gradient_steps_that_are_too_long_end_with_finite_weights():
    _, model = fit(class_sites(), rounds=500, rate=1e3)
    assert model.stopped_ == "diverged"
    assert np.isfinite(model.weights_).all()


@pytest.mark.parametrize("n", [3, 15])  # through the Gram matrix of rows and through that of columns
@pytest.mark.parametrize("mu", [0.0, 1e-6, 0.3])
def test_the_local_minimiser_is_the_least_squares_solution_held_near_the_weights(rng, n, mu):
    X, y = rng.standard_normal((n, 4)), rng.standard_normal((n, 1))
    local = LocalObjective.of(X, y, RidgeParameters(4, features="given", task="regress"))
    W = rng.standard_normal((4, 1))
    found = local.proximal_minimiser(W, proximal=mu, regularization=1e-3)
    np.testing.assert_allclose(found, oracle.fedprox([(X, y)], 1e-3, W, 1, mu), atol=1e-9)
    found = local.descend(W, steps=2, rate=0.1, proximal=mu, regularization=1e-3)
    np.testing.assert_allclose(found, oracle.fedavg([(X, y)], 1e-3, W, 1, 0.1, mu), atol=1e-13)


def ask(values, weights=None, policy=None):
    """What site "s0" says to a round with these values."""
    X, y = class_sites()["s0"]
    parameters = RidgeParameters(X.shape[1], n_components=30, classes=(0, 1, 2)).to_values()
    usual = {"parameters": parameters, "steps": 2, "rate": 0.1, "proximal": 0.0}
    question = Payload({"weights": np.zeros((30, 3)) if weights is None else weights}, {**usual, **values})
    policies = {} if policy is None else {"policies": {"s0": policy}}
    with Federation.local({"s0": (X, y)}, **policies) as federation:
        return federation.ask("descent_round", question, min_replies=0).missing["s0"]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"steps": -1}, "steps must be"),
        ({"steps": "all"}, "steps must be"),
        ({"proximal": -1.0}, "proximal must be"),
        ({"rate": 0.0}, "rate must be"),
        ({"parameters": {"width": 3}}, "cannot be followed"),
    ],
)
def test_questions_that_cannot_be_are_refused(values, told):
    found = ask(values)
    assert (found.code, told in found.reason) == ("bad question", True)


def test_weights_of_another_shape_are_refused():
    assert "weights must be finite of shape (30, 3)" in ask({}, np.zeros((29, 3))).reason


def test_too_many_steps_are_refused():
    found = ask({"steps": 10**9})
    assert (found.code, "max_steps = 100,000" in found.reason) == ("limit", True)


def test_a_descent_ends_when_its_time_is_over():
    """Below the limit of steps, and above that of time."""
    found = ask({"steps": 10**9}, policy=Policy(tasks=("*",), max_steps=10**12, task_seconds=0.5))
    assert (found.code, "computes at most 0.5 s for a question" in found.reason) == ("limit", True)


def test_a_start_with_an_intercept_is_refused():
    with Federation.local(class_sites()) as federation, pytest.raises(ValueError, match="fit_intercept=False"):
        DescentLearner(RidgeLearner("dkrr")).fit(federation)

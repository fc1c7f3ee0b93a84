"""Federated ridge regression: every method against the pooled closed form."""

import warnings
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.utils.class_weight import compute_class_weight
from threadpoolctl import threadpool_limits

from kernfed.data.datasets import fednewton_synthetic
from kernfed.errors import DivergenceWarning
from kernfed.federation import Federation, FoldingLearner, evaluate
from kernfed.federation.ridge.learner import RidgeLearner
from kernfed.files import load
from kernfed.ridge import METHODS
from oracles import ridge as oracle
from oracles.ridge_sites import SMALL, class_sites, features_of, fit, value_sites


@pytest.mark.parametrize("task", ["classify", "regress"])
def test_exact_is_the_pooled_closed_form(task):
    data = class_sites() if task == "classify" else value_sites()
    model = fit("exact", data, task=task)
    phi, y = oracle.pooled(features_of(model, data))
    expected = oracle.closed_form(phi, y, 1e-3)
    np.testing.assert_allclose(model.weights_, expected, atol=1e-10 * np.abs(expected).max())
    sklearn = Ridge(alpha=1e-3 * len(phi), fit_intercept=False).fit(phi, y)
    np.testing.assert_allclose(model.weights_, sklearn.coef_.T.reshape(expected.shape), atol=1e-10)
    assert model.history_[-1].objective == pytest.approx(oracle.objective(phi, y, expected, 1e-3), rel=1e-11)


@pytest.mark.parametrize("regularization", [1e-2, 1e-6])
@pytest.mark.parametrize("task", ["classify", "regress"])
def test_conjugate_is_the_pooled_closed_form_within_m_rounds(task, regularization):
    data = class_sites() if task == "classify" else value_sites()
    model = fit("conjugate", data, task=task, regularization=regularization, rounds=30, tolerance=0.0)
    expected = oracle.closed_form(*oracle.pooled(features_of(model, data)), regularization)
    assert np.abs(model.weights_ - expected).max() <= 1e-8 * np.abs(expected).max()
    objectives = model.history_table()["objective"]
    assert all(b <= a * (1 + 1e-12) for a, b in pairwise(objectives))


def test_newton_and_dkrr_are_those_of_the_paper():
    data = class_sites()
    common = {"rounds": 3, "regularization": 0.1}
    dkrr = fit("dkrr", data, **common)
    sites = features_of(dkrr, data)
    start = oracle.dkrr(sites, 0.1)
    np.testing.assert_allclose(dkrr.weights_, start, atol=1e-12)
    newton = fit("newton", data, **common)
    np.testing.assert_allclose(newton.weights_, oracle.newton(sites, 0.1, start, 3), atol=1e-11)
    phi, y = oracle.pooled(sites)
    assert newton.history_[-1].objective == pytest.approx(oracle.objective(phi, y, newton.weights_, 0.1), rel=1e-10)


@pytest.mark.parametrize("n", [80, 12], ids=["more rows than features", "fewer"])
@pytest.mark.parametrize("method", METHODS)
def test_with_one_site_every_method_is_the_closed_form(method, n):
    data = value_sites([n])
    model = fit(method, data, task="regress", rounds=3)
    expected = oracle.closed_form(*features_of(model, data)[0], 1e-3)
    np.testing.assert_allclose(model.weights_, expected, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("method", ["conjugate", "newton"])
def test_no_rounds_is_the_average_of_local_solutions(method):
    model = fit(method, class_sites(), rounds=0)
    np.testing.assert_array_equal(model.weights_, fit("dkrr", class_sites()).weights_)
    assert [entry.round for entry in model.history_] == [0]


@pytest.mark.parametrize("method", METHODS)
def test_order_of_sites_and_number_of_threads_change_no_bit(method):
    data = class_sites((600, 20, 5000))
    options = {"rounds": 2, "regularization": 0.1, "n_components": 600}  # products large enough to be spread
    reference = fit(method, data, **options).weights_
    np.testing.assert_array_equal(fit(method, dict(reversed(data.items())), **options).weights_, reference)
    for threads in (1, 2):
        with threadpool_limits(threads):
            np.testing.assert_array_equal(fit(method, data, **options).weights_, reference)
    assert not np.array_equal(fit(method, data, **options, seed=8).weights_, reference)


def test_given_features_are_taken_as_they_are():
    data = value_sites()
    model = fit("conjugate", data, task="regress", features="given", rounds=6)
    X, y = oracle.pooled([(X, y) for X, y in data.values()])
    np.testing.assert_allclose(model.weights_[:, 0], oracle.closed_form(X, y, 1e-3), atol=1e-9)
    np.testing.assert_allclose(model.predict(X[:3]), X[:3] @ model.weights_[:, 0], atol=1e-14)


@pytest.mark.parametrize("method", ["exact", "conjugate"])
def test_balanced_weights_are_those_of_the_whole_federation(method):
    data = class_sites()
    model = fit(method, data, class_weight="balanced", rounds=30)
    phi, targets = oracle.pooled(features_of(model, data))
    y = np.concatenate([data[name][1] for name in sorted(data)])
    weights = compute_class_weight("balanced", classes=np.unique(y), y=y)
    np.testing.assert_allclose(model.parameters.class_weights, weights)
    ridge = Ridge(alpha=1e-3 * len(y), fit_intercept=False, solver="cholesky")
    expected = ridge.fit(phi, targets, sample_weight=weights[y]).coef_.T
    np.testing.assert_allclose(model.weights_, expected, atol=1e-8 * np.abs(expected).max())
    explicit = fit(method, data, class_weight=dict(enumerate(weights)), rounds=30)
    np.testing.assert_allclose(explicit.weights_, model.weights_, atol=1e-12)


def test_labels_keep_their_type_and_order():
    names = np.array(["ash", "birch", "cedar"])
    data = {site: (X, names[y]) for site, (X, y) in class_sites().items()}
    model, numbered = fit("conjugate", data), fit("conjugate", class_sites())
    X = data["s0"][0]
    np.testing.assert_array_equal(model.predict(X), names[numbered.predict(X)])
    assert model.score(X, data["s0"][1]) > 0.5
    assert model.classes_.tolist() == names.tolist()


def test_a_class_that_only_one_site_knows_is_predicted():
    data = class_sites()
    data = {site: (X[y != 2], y[y != 2]) if site != "s0" else (X, y) for site, (X, y) in data.items()}
    model = fit("conjugate", data, rounds=30)
    assert (model.predict(data["s0"][0]) == 2).any()


@pytest.mark.parametrize("method", ["conjugate", "newton"])
def test_a_round_sends_two_matrices_each_way(method):
    data = class_sites()
    with Federation.local(data) as federation:
        learner = RidgeLearner(method, rounds=3, n_components=500, regularization=1.0, tolerance=0, fit_intercept=False)
        model = learner.fit(federation)
        asked = {(entry.site, entry.task): entry.messages for entry in federation.traffic}
    floats = 2 * 500 * 3 * 8 * len(data)
    for entry in model.history_[1:]:
        assert floats <= entry.bytes_up <= 1.2 * floats
        assert floats <= entry.bytes_down <= 1.2 * floats
        assert entry.seconds > 0
    assert (asked["s0", "ridge_solve"], asked["s0", "ridge_apply"]) == (3, 4)


def test_exact_and_dkrr_ask_once_after_the_survey():
    for method, task in (("exact", "ridge_moments"), ("dkrr", "ridge_start")):
        with Federation.local(class_sites()) as federation:
            RidgeLearner(method, **SMALL).fit(federation)
            asked = {entry.task: entry.messages for entry in federation.traffic}
        assert asked == {"ridge_survey": 1, task: 1}


def test_values_to_regress_do_not_travel():
    data = value_sites()
    with Federation.local(data) as federation:
        replies = {}
        carry = federation.engine.carry
        federation.engine.carry = lambda q, s, t: replies.setdefault(len(replies), carry(q, s, t))
        RidgeLearner("conjugate", task="regress", **SMALL).fit(federation)
    for y in data["s0"][1][:5]:
        assert all(repr(float(y)).encode() not in reply for reply in replies[0].values())


def test_the_median_bandwidth_is_that_of_the_sites():
    data = {name: (10 * X, y) for name, (X, y) in value_sites((50, 60, 70)).items()}
    bandwidth = fit("dkrr", data, task="regress", bandwidth="median").parameters.bandwidth
    X = np.concatenate([X for X, _ in data.values()])
    distances = np.linalg.norm(X[:, None] - X, axis=2)[np.triu_indices(len(X), 1)]
    assert bandwidth == pytest.approx(np.median(distances), rel=0.1)
    odd = {**data, "a": (data["s0"][0][:9] / 100, data["s0"][1][:9])}
    with_odd = fit("dkrr", odd, task="regress", bandwidth="median").parameters.bandwidth
    assert with_odd == pytest.approx(bandwidth, rel=0.1)
    single = {name: (X[:1], y[:1]) for name, (X, y) in data.items()}
    assert fit("dkrr", single, task="regress", bandwidth="median").parameters.bandwidth == 1.0


def test_tolerance_stops_early():
    model = fit("conjugate", class_sites(), rounds=50, tolerance=1e-3)
    assert model.stopped_ == "tolerance"
    phi, y = oracle.pooled(features_of(model, class_sites()))
    assert (
        model.history_[-1].gradient_norm
        <= 1e-3 * np.linalg.norm(phi.T @ y / len(phi))
        < model.history_[-2].gradient_norm
    )


# Regularisation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["conjugate", "newton"])
def test_the_regularisation_of_the_smallest_leave_one_out_error_is_chosen(method):
    data = value_sites((40, 20, 35))
    path = [1e-4, 1e-1, 10.0]
    with Federation.local(data) as federation, warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)
        model = RidgeLearner(method, **{**SMALL, "regularization": path}, task="regress", rounds=40).fit(federation)
        asked = {entry.task: entry.messages for entry in federation.traffic}
    sites = features_of(model, data)
    expected = {value: oracle.leave_one_out(sites, value) for value in path}
    assert model.path_ == pytest.approx(expected, rel=1e-5)
    assert model.regularization_ == min(expected, key=expected.get) == 1e-4
    assert (asked["ridge_start"], asked["ridge_validate"]) == (1, 1)
    if method != "newton":
        pooled = oracle.closed_form(*oracle.pooled(sites), model.regularization_)
        np.testing.assert_allclose(model.weights_, pooled, atol=1e-7 * np.abs(pooled).max())


@pytest.mark.parametrize("method", ["exact", "conjugate"])
def test_without_regularisation_the_smallest_solution_is_found(method):
    data = value_sites((6, 4, 5))
    model = fit(method, data, task="regress", regularization=0.0, rounds=30)
    phi, y = oracle.pooled(features_of(model, data))
    np.testing.assert_allclose(model.weights_, np.linalg.lstsq(phi, y, rcond=None)[0], atol=1e-6)


# Heterogeneity ------------------------------------------------------------------------------------------------------


def test_newton_warns_when_it_diverges_names_the_remedy_and_returns():
    data = value_sites([6] * 8)
    with Federation.local(data) as federation:
        learner = RidgeLearner("newton", **{**SMALL, "regularization": 1e-6}, task="regress", rounds=6)
        with pytest.warns(DivergenceWarning, match=r"largest eigenvalue .* method='conjugate'"):
            model = learner.fit(federation)
    sites = features_of(model, data)
    expected = oracle.newton(sites, 1e-6, oracle.dkrr(sites, 1e-6), 6)
    np.testing.assert_allclose(model.weights_, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
    largest = np.linalg.eigvals(oracle.preconditioned(sites, 1e-6)).real.max()
    assert 2 < model.heterogeneity_.largest_eigenvalue <= largest * (1 + 1e-6)
    assert model.heterogeneity_.largest_eigenvalue > 0.9 * largest
    assert fit("conjugate", data, task="regress", regularization=1e-6, rounds=8).history_[-1].objective < 1


def test_newton_that_diverges_beyond_numbers_ends_with_finite_weights():
    with Federation.local(value_sites([6] * 8)) as federation:
        learner = RidgeLearner("newton", **{**SMALL, "regularization": 1e-9}, task="regress", rounds=1000)
        with pytest.warns(DivergenceWarning):
            model = learner.fit(federation)
    assert model.stopped_ == "diverged"
    assert np.isfinite(model.weights_).all()
    assert len(model.history_) < 1000


@pytest.mark.parametrize("method", METHODS)
def test_heterogeneity_is_measured_where_it_is_asked_for(method, tmp_path):
    data = class_sites()
    model = fit(method, data, diagnose=True, regularization=0.1, rounds=2)
    report = model.heterogeneity_
    sites = features_of(model, data)
    C = oracle.pooled(sites)[0].T @ oracle.pooled(sites)[0] / sum(len(phi) for phi, _ in sites)
    for (phi, _), entry in zip(sites, report.sites.values(), strict=True):
        assert entry.data == pytest.approx(np.linalg.norm(C - phi.T @ phi / len(phi), 2), rel=1e-3)
    largest = np.linalg.eigvals(oracle.preconditioned(sites, 0.1)).real.max()
    assert report.largest_eigenvalue == pytest.approx(largest, rel=1e-3)
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").heterogeneity_ == report


@pytest.mark.slow
def test_hundred_sites_of_a_hundred_rows_where_newton_explodes_and_conjugate_does_not():
    """FedNewton Figure 3, left: with frequencies of variance 0.1 the synthetic task has too few rows per site."""
    task = fednewton_synthetic(100, 100)
    options = {"task": "regress", "n_components": 200, "bandwidth": 0.1**-0.5, "regularization": 1e-6, "rounds": 8}

    def error(model):
        return np.mean((replace(model, range_=None).predict(task.x_test) - task.y_test) ** 2)

    with Federation.local(task.sites) as federation:
        exact, conjugate = (error(RidgeLearner(m, **options).fit(federation)) for m in ("exact", "conjugate"))
        with pytest.warns(DivergenceWarning):
            newton = error(RidgeLearner("newton", **options).fit(federation))
    assert exact < 0.7
    assert abs(conjugate - exact) < 0.01 * exact
    assert newton > 1e6


def test_models_are_evaluated_at_the_sites():
    with Federation.local(class_sites((120, 60, 90)), holdout=0.3) as federation:
        model = RidgeLearner("conjugate", **SMALL).fit(federation)
        assert evaluate(model, federation).accuracy > 0.5


def test_factors_go_when_rows_are_forgotten(rng):
    """Whatever a site keeps for ridge regressions is made of its rows, so none of it may outlive a forgotten one."""
    data = {name: (rng.standard_normal((30, 4)), np.arange(30) % 2) for name in ("a", "b")}
    with Federation.local(data) as federation:
        folding = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        RidgeLearner("conjugate", n_components=10, bandwidth=1.0, regularization=1e-3).fit(federation)
        store = federation.engine.site("a").store
        assert store.names("ridge")
        folding.forget("a", rows=[3])
        assert not store.names("ridge")
        assert federation.engine.site("b").store.names("ridge")

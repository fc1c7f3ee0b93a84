"""Priors, gains, predictors, clusters of weights, sites that join, and files."""

from dataclasses import replace

import numpy as np
import pytest

from kernfed.errors import FileFormatError
from kernfed.files import load
from kernfed.personal.fit import (
    aggregation_weights,
    fit_groups,
    fit_weighted,
    grand_mean_weights,
    local_weights,
    oracle_weights,
    site_prior,
    site_statistics,
)
from kernfed.personal.groups import find_groups, group_coefficients
from kernfed.personal.model import PersonalModel, SiteModel, weight_clusters
from kernfed.personal.prior import SitePrior, cross_fitted_gain, group_prior, ridge_alone
from kernfed.personal.statistics import Coordinates, Problem, SiteStatistics
from kernfed.personal.weights import EmbeddingKernel
from oracles import personal as oracle


def regression(sigma=0.1, B=30, seed=0):
    rows, beta, labels = oracle.concept_shift(sigma, seed, B=B)
    names = [f"s{k:02d}" for k in range(B)]
    problem = Problem(20)
    sites = {name: site_statistics(problem, X, y) for name, (X, y) in zip(names, rows, strict=True)}
    return problem, sites, dict(zip(names, rows, strict=True)), beta, labels


def digits_like(rng, B=8, n=20):
    """Three classes whose features are swapped at every second site."""
    sites = {}
    for k in range(B):
        y = rng.integers(0, 3, n)
        X = np.eye(3)[(y if k % 2 else 2 - y)] + 0.3 * rng.standard_normal((n, 3))
        sites[f"s{k}"] = (X, np.array(["a", "b", "c"])[y])
    return sites


def prior(mean, covariance, noise):
    return SitePrior(np.ones((1, 1)), mean[None], covariance[None], np.array([noise]))


# Priors -------------------------------------------------------------------------------------------------------------


def test_one_term_is_the_posterior_mean(rng):
    X, Y = rng.standard_normal((6, 4)), rng.standard_normal((6, 2))
    mean, root = rng.standard_normal((4, 2)), rng.standard_normal((4, 4))
    C = root @ root.T + 0.1 * np.eye(4)
    found, members = prior(mean, C, 0.7).fit(X, Y)
    np.testing.assert_allclose(found, oracle.posterior_mean(X, Y, mean, C, 0.7), atol=1e-8)
    assert members.tolist() == [[1.0]]


def test_terms_and_levels_are_weighed_by_their_densities(rng):
    X, Y = rng.standard_normal((6, 4)), rng.standard_normal((6, 1))
    means, noises, shares = rng.standard_normal((2, 4, 1)), np.array([0.7, 3.0]), np.array([[0.2, 0.1], [0.3, 0.4]])
    C = np.stack([0.5 * np.eye(4), 0.5 * np.eye(4)])
    found, members = SitePrior(shares, means, C, noises).fit(X, Y)
    logs = [[oracle.marginal_log_likelihood([(X, Y)], mean, 0.5, noise) for noise in noises] for mean in means]
    expected = shares * np.exp(np.array(logs) - np.max(logs))
    expected /= expected.sum()
    np.testing.assert_allclose(members, expected, rtol=1e-8)
    fits = [[oracle.posterior_mean(X, Y, mean, C[0], noise) for noise in noises] for mean in means]
    np.testing.assert_allclose(found, np.einsum("gl,gldq->dq", expected, np.array(fits)), atol=1e-8)


def test_statistics_and_rows_give_the_same_fit(rng):
    X, Y = rng.standard_normal((30, 4)), rng.standard_normal((30, 2))
    shares, noises = np.full((2, 2), 0.25), np.array([0.7, 1.4])
    two = SitePrior(shares, rng.standard_normal((2, 4, 2)), np.stack([np.eye(4), 2 * np.eye(4)]), noises)
    small, targets = Coordinates(np.zeros(4), np.zeros(2), 0.0).compress(SiteStatistics.from_rows(X, Y))
    a, b = two.fit(X, Y), two.fit(small, targets, 30)
    np.testing.assert_allclose(a[0], b[0], atol=1e-8)
    np.testing.assert_allclose(a[1], b[1], atol=1e-8)


@pytest.mark.parametrize("sigma", [0.1, 1.0])
def test_the_others_and_ones_own_rows_make_the_fit_of_all(sigma):
    """The prior of site 3 from the others, with its own rows, gives what all sites together gave it."""
    _, sites, _, _, _ = regression(sigma)
    entries = list(sites.values())
    common = Coordinates.pooled(entries, intercept=False)
    groups = find_groups(entries, common)
    whole = group_coefficients(entries, common, groups)
    theirs = group_prior(entries, common, groups, 3)
    X, Y = common.compress(entries[3])
    np.testing.assert_allclose(theirs.fit(X, Y, entries[3].n)[0], whole[3], atol=0.05)


@pytest.mark.parametrize("own", [0.0, 0.3, 1.0])
def test_the_prior_of_a_weighted_risk_gives_its_minimiser(own):
    problem, sites, _, _, _ = regression(B=5)
    W = np.full((5, 5), (1 - own) / 4)
    np.fill_diagonal(W, own)
    model = fit_weighted(problem, sites, W, 0.3)
    theirs = site_prior(model, sites, 2, regularization=np.full(5, 0.3))
    X, Y = model.coordinates_.compress(list(sites.values())[2])
    np.testing.assert_allclose(theirs.fit(X, Y, 10)[0], model.coefficients_[2], atol=1e-7)


def test_priors_that_cannot_be_are_refused():
    good = prior(np.zeros((2, 1)), np.eye(2), 1.0).to_arrays()
    for change, message in [
        ({"covariances": np.eye(3)[None]}, "a prior needs"),
        ({"shares": np.ones(1)}, "a prior needs"),
        ({"noises": np.zeros(1)}, "noise"),
        ({"means": np.full((1, 2, 1), np.inf)}, "finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            SitePrior.from_arrays({**good, **change})


# Gains --------------------------------------------------------------------------------------------------------------


def test_a_perfect_prior_gains_and_a_wrong_one_loses(rng):
    beta = rng.standard_normal((5, 1))
    X = rng.standard_normal((12, 5))
    Y = X @ beta + 0.5 * rng.standard_normal((12, 1))
    right, wrong = (prior(m, 1e-3 * np.eye(5), 0.25) for m in (beta, -beta))
    assert cross_fitted_gain(X, Y, right).gain > 0 > cross_fitted_gain(X, Y, wrong).gain


def test_gains_never_see_the_row_they_predict(rng):
    """Twelve rows: the errors are those of fits on the rows of the other parts."""
    X, Y = rng.standard_normal((12, 3)), rng.standard_normal((12, 1))
    none = prior(np.zeros((3, 1)), np.eye(3), 1.0)
    together, alone = [], []
    for i in range(12):
        kept = np.arange(12) % 10 != i % 10
        together.append(((Y[i] - X[i] @ none.fit(X[kept], Y[kept])[0]) ** 2).item())
        alone.append(((Y[i] - X[i] @ ridge_alone(X[kept], Y[kept])) ** 2).item())
    found = cross_fitted_gain(X, Y, none)
    assert (found.alone, found.together, found.rows) == pytest.approx((np.mean(alone), np.mean(together), 12))


def test_gains_of_classes_count_wrong_labels(rng):
    Y = np.eye(2)[rng.integers(0, 2, 20)]
    X = Y + 0.1 * rng.standard_normal((20, 2))
    centre = Y.mean(axis=0)
    sure = prior(np.eye(2), 1e-6 * np.eye(2), 1.0)
    assert cross_fitted_gain(X, Y - centre, sure, centre).together == 0.0


def test_one_row_is_predicted_by_the_prior_alone():
    ones = prior(np.ones((2, 1)), np.eye(2), 1.0)
    found = cross_fitted_gain(np.ones((1, 2)), np.full((1, 1), 3.0), ones)
    assert (found.alone, found.together, found.rows) == (9.0, 1.0, 1)


# Models -------------------------------------------------------------------------------------------------------------


def test_weights_of_the_baselines():
    assert grand_mean_weights([1, 3]).tolist() == [[0.25, 0.75], [0.25, 0.75]]
    assert local_weights(2).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert oracle_weights(["a", "b", "a"], [1, 5, 3]).tolist() == [[0.25, 0, 0.75], [0, 1, 0], [0.25, 0, 0.75]]


def test_predictions_with_an_intercept_follow_an_offset(rng):
    problem = Problem(2)
    rows = {f"s{k}": (rng.standard_normal((40, 2)) + 5, rng.standard_normal(40)) for k in range(3)}
    rows = {name: (X, X @ [1.0, -2.0] + 1000 + 0.1 * y) for name, (X, y) in rows.items()}
    model, _ = fit_groups(problem, {name: site_statistics(problem, *site) for name, site in rows.items()})
    for name, (X, y) in rows.items():
        assert model.for_site(name).score(X, y) > 0.99
    with pytest.raises(ValueError, match="probabilities need"):
        model.for_site("s0").predict_proba(rows["s0"][0])
    with pytest.raises(ValueError, match="no model for site 'x'; there are 's0'"):
        model.for_site("x")
    answer = model.for_site("s0").answer(rows["s0"][0])
    np.testing.assert_array_equal(answer.labels, model.for_site("s0").predict(rows["s0"][0]))
    assert (answer.probabilities, answer.scores, answer.site) == (None, None, None)


@pytest.mark.parametrize(("kind", "size"), [("ridge", (3, 3)), ("logistic", (12,))])
def test_an_answer_is_all_of_it_from_one_computation(rng, kind, size):
    problem = Problem(3, "classify", ("a", "b", "c"))
    coordinates = Coordinates(np.zeros(3), np.zeros(3), 0.0)
    model = SiteModel(problem, kind, coordinates, rng.standard_normal(size))
    X = rng.standard_normal((20, 3))
    answer = model.answer(X)
    np.testing.assert_array_equal(answer.labels, model.predict(X))
    np.testing.assert_array_equal(answer.probabilities, model.predict_proba(X))
    np.testing.assert_array_equal(answer.scores, -model.decision_function(X))
    np.testing.assert_array_equal(answer.score, model.scores(X).min(axis=1))


@pytest.mark.parametrize("features", ["given", "fourier"])
def test_classes_by_site(rng, features):
    rows = digits_like(rng)
    problem = Problem(3, "classify", ("a", "b", "c"), features, 60, 1.0, 3)
    model, groups = fit_groups(problem, {name: site_statistics(problem, *site) for name, site in rows.items()})
    assert groups.count == 2
    for name, (X, y) in rows.items():
        predictor = model.for_site(name)
        assert predictor.score(X, y) > 0.9
        np.testing.assert_allclose(predictor.predict_proba(X).sum(axis=1), 1.0)
    assert len(set(model.groups_.values())) == 2
    assert model.groups_["s0"] == model.groups_["s2"] != model.groups_["s1"]
    with pytest.raises(ValueError, match="not among the 3 classes"):
        model.join(np.zeros((1, 3)), np.array(["z"]))


def test_a_site_that_joins_is_as_well_off_as_one_that_took_part():
    problem, sites, rows, _, labels = regression()
    last = list(sites)[-1]
    whole, _ = fit_groups(problem, sites, intercept=False)
    before, _ = fit_groups(problem, {name: site for name, site in sites.items() if name != last}, intercept=False)
    joined = before.join(*rows[last])
    np.testing.assert_allclose(joined.model.coefficients_, whole.for_site(last).coefficients_, atol=0.3)
    assert joined.own + sum(joined.weights.values()) == pytest.approx(1.0)
    same = sum(w for w, label in zip(joined.weights.values(), labels, strict=False) if label == labels[-1])
    assert same > 0.9 * sum(joined.weights.values())
    with pytest.raises(ValueError, match="weights='auto'"):
        fit_weighted(problem, sites, np.eye(len(sites)), 0.1).join(*rows[last])


def test_aggregation_from_rows_in_one_place(rng):
    rows = {f"s{k}": (rng.standard_normal((30, 2)) + 4 * (k % 2), rng.standard_normal((30, 1))) for k in range(6)}
    W = aggregation_weights(rows, EmbeddingKernel(2, 1, columns="features", bandwidth=2.0), (0.1, 0.1))
    same = np.add.outer(np.arange(6), np.arange(6)) % 2 == 0
    assert (W * same).sum() > 0.95 * 6


# Clusters -----------------------------------------------------------------------------------------------------------


def test_clusters_of_weights(rng):
    labels = np.repeat([0, 1, 2], [4, 6, 5])
    W = (labels[:, None] == labels) * rng.uniform(0.5, 1.0, (15, 15)) + 0.01 * rng.uniform(size=(15, 15))
    W = 0.5 * np.eye(15) + 0.5 * W / W.sum(axis=1, keepdims=True)
    order = rng.permutation(15)
    found = np.array(weight_clusters(W[np.ix_(order, order)]))
    assert len({(a, b) for a, b in zip(found, labels[order], strict=True)}) == 3


def test_degenerate_clusters():
    assert weight_clusters(np.eye(4)) == [0, 1, 2, 3]
    assert weight_clusters([[1.0]]) == [0]
    assert weight_clusters(np.full((5, 5), 0.2)) == [0] * 5
    assert weight_clusters([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]) == [0, 0, 1]


# Files --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["auto", "given"])
def test_models_survive_a_file(rng, tmp_path, rule):
    rows = digits_like(rng)
    problem = Problem(3, "classify", ("a", "b", "c"))
    sites = {name: site_statistics(problem, *site) for name, site in rows.items()}
    model = fit_groups(problem, sites)[0] if rule == "auto" else fit_weighted(problem, sites, np.eye(8), 0.1)
    model.save(tmp_path / "model.kfd")
    again = load(tmp_path / "model.kfd")
    assert isinstance(again, PersonalModel)
    assert (again.sites, again.rule, again.groups_) == (model.sites, rule, model.groups_)
    X = rows["s0"][0]
    np.testing.assert_array_equal(again.for_site("s0").decision_function(X), model.for_site("s0").decision_function(X))
    model.for_site("s1").save(tmp_path / "site.kfd")
    np.testing.assert_array_equal(load(tmp_path / "site.kfd").predict(X), model.for_site("s1").predict(X))
    if rule == "auto":
        joined = [found.join(*rows["s0"]).model.coefficients_ for found in (again, model)]
        np.testing.assert_allclose(*joined)


def test_files_with_weights_that_are_none_are_refused(tmp_path):
    problem, sites, _, _, _ = regression(B=3)
    model = fit_weighted(problem, sites, np.eye(3), 0.1)
    replace(model, weights_=np.full((3, 3), 0.5)).save(tmp_path / "bad.kfd")
    with pytest.raises(FileFormatError, match="sum to 1"):
        load(tmp_path / "bad.kfd")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "rank"}, "task"),
        ({"task": "classify"}, "classes"),
        ({"classes": (1, 2)}, "classes"),
        ({"features": "fourier", "bandwidth": -1.0}, "bandwidth must be > 0"),
        ({"features": "fourier", "n_components": 3}, "even"),
        ({"width": 0}, "width"),
        ({"task": "classify", "classes": (2, 1)}, "sorted"),
    ],
)
def test_problems_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Problem(**{"width": 3, **options})

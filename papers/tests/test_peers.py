"""Peers: from the sums of sites as from pooled rows, and as their formulas say."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis

from kernfed.data import Dataset, partition_dirichlet
from kernfed_papers.baselines import deep_analytic
from kernfed_papers.baselines.deep_analytic import layer_answers, sandwiched
from kernfed_papers.baselines.fishermix import fisher_basis, fishermix, train_cosine
from kernfed_papers.baselines.heads import SUM_PEERS
from kernfed_papers.baselines.peers import averaged_answers, choose_deep, deep_answers, head_answers, site_sums
from kernfed_papers.baselines.sums import ClassSums

CLASSES = 4


@pytest.fixture(scope="module")
def data():
    x, y = make_classification(
        700,
        10,
        n_informative=6,
        n_redundant=0,
        n_classes=CLASSES,
        n_clusters_per_class=1,
        class_sep=1.5,
        random_state=0,
    )
    x = x.astype(np.float32)
    return Dataset("made", x[:500], y[:500], x[500:], y[500:], tuple("abcd"), "made")


@pytest.fixture(scope="module")
def sites(data):
    parts = partition_dirichlet(data.y_train, 7, 0.3, 0)
    return {f"s{number}": (data.x_train[part], data.y_train[part]) for number, part in enumerate(parts)}


@pytest.fixture(scope="module")
def sums(data):
    return ClassSums.of(data.x_train, data.y_train, CLASSES, by_class=True)


def predicted(name, sums, point, queries):
    (head,) = SUM_PEERS[name].heads(sums, [point])
    return head(queries.astype(float))


@pytest.mark.parametrize("by_class", [False, True])
def test_sums_of_sites_are_those_of_pooled_rows(data, sites, by_class):
    pooled = ClassSums.of(data.x_train, data.y_train, CLASSES, by_class=by_class)
    together = site_sums(sites, CLASSES, by_class=by_class)
    for name in ("counts", "totals", "squares"):
        np.testing.assert_allclose(getattr(together, name), getattr(pooled, name), rtol=1e-12, atol=1e-9)


def test_covariances_come_of_sums(data, sums):
    x, y = data.x_train.astype(float), data.y_train
    np.testing.assert_allclose(sums.total, np.cov(x.T, bias=True), atol=1e-9)
    own = [np.cov(x[y == number].T, bias=True) for number in range(CLASSES)]
    np.testing.assert_allclose(sums.covariance(2), own[2], atol=1e-9)
    weights = np.bincount(y) / len(y)
    np.testing.assert_allclose(sums.within, np.tensordot(weights, own, 1), atol=1e-9)


@pytest.mark.parametrize("name", SUM_PEERS)
def test_heads_do_not_depend_on_how_rows_are_spread(data, sites, name):
    peer = SUM_PEERS[name]
    everywhere, note = head_answers(peer, data, sites)
    pooled, _ = head_answers(peer, data, {"all": (data.x_train, data.y_train)})
    assert everywhere.tolist() == pooled.tolist()
    assert (everywhere == data.y_test).mean() > 0.7
    assert all(f"{axis.name} in " in note for axis in peer.axes)


@pytest.fixture(scope="module")
def ridge_weights(data):
    """Of a ridge regression with a constant column (11, C), written out."""
    x = np.hstack([data.x_train, np.ones((500, 1))]).astype(float)
    gram = x.T @ x
    return np.linalg.solve(gram + 0.1 * np.trace(gram) / 11 * np.eye(11), x.T @ np.eye(CLASSES)[data.y_train])


def test_afl_is_ridge_with_a_constant_column(data, sums, ridge_weights):
    expected = (data.x_test @ ridge_weights[:-1] + ridge_weights[-1]).argmax(axis=1)
    assert predicted("AFL", sums, (0.1,), data.x_test).tolist() == expected.tolist()


def test_fed3r_is_the_same_with_weights_of_length_one(data, sums, ridge_weights):
    unit = ridge_weights / np.linalg.norm(ridge_weights[:-1], axis=0)
    expected = (data.x_test @ unit[:-1] + unit[-1]).argmax(axis=1)
    assert predicted("Fed3R", sums, (0.1,), data.x_test).tolist() == expected.tolist()


def test_linear_discriminants_are_scikit_learn_s(data, sums):
    model = LinearDiscriminantAnalysis(solver="lsqr").fit(data.x_train.astype(float), data.y_train)
    assert (predicted("GH-LDA", sums, (1e-12,), data.x_test) == model.predict(data.x_test)).mean() > 0.99


def test_quadratic_discriminants_are_scikit_learn_s(data, sums):
    model = QuadraticDiscriminantAnalysis().fit(data.x_train.astype(float), data.y_train)
    assert (predicted("GH-QDA", sums, (1e-12, 1e-12), data.x_test) == model.predict(data.x_test)).mean() > 0.99


def test_a_quadratic_discriminant_with_the_pooled_covariance_is_linear(data, sums):
    quadratic = predicted("GH-QDA", sums, (1.0, 1e-12), data.x_test)
    assert (quadratic == predicted("GH-LDA", sums, (1e-12,), data.x_test)).mean() > 0.99


def test_fedcgs_uses_the_covariance_of_all_rows(data, sums):
    inverse = np.linalg.inv(sums.total)
    logits = data.x_test @ inverse @ sums.means.T - np.diag(sums.means @ inverse @ sums.means.T) / 2 + sums.log_priors
    assert predicted("FedCGS", sums, (1e-12,), data.x_test).tolist() == logits.argmax(axis=1).tolist()


def test_a_class_that_nobody_has_is_never_answered(data):
    for name, peer in SUM_PEERS.items():
        wider = ClassSums.of(data.x_train, data.y_train, CLASSES + 1, by_class=peer.by_class)
        answers = predicted(name, wider, tuple(0.01 for _ in peer.axes), data.x_test)
        assert set(answers) <= set(range(CLASSES)), name


def test_the_fisher_basis_separates_classes_and_whitens_them(sums):
    basis = fisher_basis(sums, 1e-9)
    assert basis.shape == (10, CLASSES - 1)
    np.testing.assert_allclose(basis.T @ sums.within @ basis, np.eye(CLASSES - 1), atol=1e-6)
    ratios = np.diag(basis.T @ sums.between @ basis)
    assert (np.diff(ratios) <= 1e-9).all()
    rest = np.linalg.eigvals(np.linalg.solve(sums.within, sums.between)).real
    assert ratios.sum() == pytest.approx(rest.sum(), rel=1e-4)


def test_the_cosine_head_points_at_classes(rng):
    centres = np.array([[3.0, 0], [0, 3], [-3, -3]])
    labels = np.repeat(np.arange(3), 50)
    rows = centres[labels] + rng.standard_normal((150, 2)) / 2
    weights = train_cosine(rows, labels, rng.standard_normal((3, 2)), 0.1)
    np.testing.assert_allclose(np.linalg.norm(weights, axis=1), 1)
    assert ((rows @ weights.T).argmax(axis=1) == labels).all()


def test_fishermix_sees_only_sums(data, sites):
    fixed = (replace(axis, values=(0.1,), lowest=0.1, highest=0.1) for axis in fishermix(0).axes)
    peer = replace(fishermix(0), axes=tuple(fixed))
    pooled, _ = head_answers(peer, data, {"all": (data.x_train, data.y_train)})
    assert (head_answers(peer, data, sites)[0] == pooled).mean() > 0.99
    assert (pooled == data.y_test).mean() > 0.7


def test_the_sandwiched_least_squares_is_a_minimum(rng):
    hidden, head, left = rng.standard_normal((40, 6)), rng.standard_normal((5, 3)), rng.standard_normal((40, 3))
    strength = 0.3
    step = sandwiched(hidden.T @ hidden, hidden.T @ left, head, strength).astype(float)
    gradient = hidden.T @ (hidden @ step @ head - left) @ head.T + strength * step
    assert np.abs(gradient).max() < 1e-4 * np.abs(hidden.T @ left @ head.T).max()


def test_deep_layers_are_the_same_from_sites_and_help(data, sites, monkeypatch):
    monkeypatch.setattr(deep_analytic.layer_answers, "__kwdefaults__", {"width": 40, "layers": 20})
    pooled = list(layer_answers({"all": (data.x_train, data.y_train)}, data.x_test, CLASSES, 1.0, seed=0, layers=4))
    spread = list(layer_answers(sites, data.x_test, CLASSES, 1.0, seed=0, layers=4))
    assert len(pooled) == 5
    assert min((a == b).mean() for a, b in zip(pooled, spread, strict=True)) > 0.99
    right = [(answer == data.y_test).mean() for answer in pooled]
    assert max(right[1:]) > right[0]
    choice = choose_deep(data)
    predicted, note = deep_answers(data, sites, choice, 0)
    assert (predicted == data.y_test).mean() > 0.8
    assert "lambda in " in note
    assert f"{2 * int(choice['layers']) + 1} exchanges" in note


def test_averaging_is_looked_at_after_rounds_and_its_rate_is_chosen(data, sites):
    answers = averaged_answers(data, sites, 0, rounds=(1, 6), hidden=8)
    assert [done.rounds for done in answers] == [1, 6]
    assert "rate in " in answers[0].note
    assert answers[1].bytes_up > answers[0].bytes_up > 0
    assert (answers[1].predicted == data.y_test).mean() > 0.6

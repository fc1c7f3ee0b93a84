import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from kernfed.personal import gradient as logistic
from kernfed.personal.gradient import (
    LogisticRisk,
    minimise,
    n_parameters,
    probabilities,
    split_parameters,
    weighted_risks,
)


def make(rng, n=200, width=6, classes=4):
    X = rng.standard_normal((n, width)) * np.arange(1, width + 1)
    return X, (X @ rng.standard_normal((width, classes)) + 3 * rng.gumbel(size=(n, classes))).argmax(axis=1)


def naive(theta, X, y, classes, regularization):
    """Loss of one parameter vector, row by row."""
    matrix, offsets = theta[:-classes].reshape(X.shape[1], classes), theta[-classes:]
    total = 0.0
    for row, label in zip(X, y, strict=True):
        scores = row @ matrix + offsets
        total -= scores[label] - np.log(np.exp(scores).sum())
    return total / len(X) + 0.5 * regularization * (matrix**2).sum()


@pytest.mark.parametrize("block", [10**9, 30])
@pytest.mark.parametrize(("n", "width", "classes"), [(20, 3, 4), (1, 1, 2), (7, 2, 3)])
def test_losses_and_gradients_of_many_targets(rng, monkeypatch, block, n, width, classes):
    monkeypatch.setattr(logistic, "_BLOCK", block)
    X, y = make(rng, n, width, classes)
    theta = rng.standard_normal((5, n_parameters(width, classes)))
    losses, gradients = LogisticRisk(X, y, classes, 0.3)(theta)
    for vector, loss, gradient in zip(theta, losses, gradients, strict=True):
        assert loss == pytest.approx(naive(vector, X, y, classes, 0.3))
        steps = 1e-6 * np.eye(len(vector))
        slopes = [naive(vector + s, X, y, classes, 0.3) - naive(vector - s, X, y, classes, 0.3) for s in steps]
        np.testing.assert_allclose(gradient, np.array(slopes) / 2e-6, atol=1e-6)


@pytest.mark.parametrize("regularization", [1e-3, 1.0])
def test_one_target_is_scikit_learn(rng, regularization):
    X, y = make(rng)
    risk = LogisticRisk(X, y, 4, regularization)
    found = minimise(weighted_risks([[1.0]], lambda t: [risk(t)]), np.zeros((1, n_parameters(6, 4))), tolerance=1e-9)
    reference = LogisticRegression(C=1 / (len(X) * regularization), tol=1e-9, max_iter=10_000).fit(X, y)
    (matrix,), _ = split_parameters(found.parameters, 6, 4)
    np.testing.assert_allclose(matrix.T, reference.coef_, atol=1e-5)
    np.testing.assert_allclose(probabilities(found.parameters, X, 4), reference.predict_proba(X), atol=1e-5)


def test_weighted_sites_are_scikit_learn_with_weighted_rows(rng):
    sites = [make(rng, n) for n in (30, 80, 50)]
    W = np.array([[0.7, 0.1, 0.2], [0.0, 1.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    risks = [LogisticRisk(X, y, 4, 0.05) for X, y in sites]
    found = minimise(weighted_risks(W, lambda t: [risk(t) for risk in risks]), np.zeros((3, 28)), tolerance=1e-9)
    assert found.converged.all()
    X, y = (np.concatenate([site[part] for site in sites]) for part in (0, 1))
    for shares, theta in zip(W, found.parameters, strict=True):
        rows = np.concatenate([np.full(len(site[1]), w / len(site[1])) for site, w in zip(sites, shares, strict=True)])
        reference = LogisticRegression(C=1 / 0.05, tol=1e-9, max_iter=10_000).fit(X, y, sample_weight=rows)
        np.testing.assert_allclose(probabilities(theta, X, 4), reference.predict_proba(X), atol=1e-5)


def test_large_scores_do_not_overflow():
    losses, gradients = LogisticRisk([[1e4], [-1e4]], [0, 1], 2)(np.array([[1e3, -1e3, 0, 0], [-1e3, 1e3, 0, 0]]))
    assert losses.tolist() == [0.0, 2e7]
    assert np.isfinite(gradients).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": [0, 2]}, r"y must be in 0 \.\. 1, got 0 \.\. 2"),
        ({"y": [0, -1]}, r"got -1 \.\. 0"),
        ({"y": [0]}, "y must be 2 class numbers"),
        ({"y": [0.0, 1.0]}, "y must be 2 class numbers, got float64"),
        ({"X": [[0.0], [np.nan]]}, "X must be finite"),
        ({"n_classes": 1}, "n_classes must be >= 2"),
        ({"regularization": -1.0}, "regularization must be >= 0"),
    ],
)
def test_bad_input_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        LogisticRisk(**{"X": [[0.0], [1.0]], "y": [0, 1], "n_classes": 2, **change})


@pytest.mark.parametrize("theta", [np.zeros(4), np.zeros((1, 5))])
def test_parameters_of_another_shape_are_refused(theta):
    with pytest.raises(ValueError, match=r"parameters must have shape \(targets, 4\) for 1 columns and 2 classes"):
        LogisticRisk([[0.0], [1.0]], [0, 1], 2)(theta)

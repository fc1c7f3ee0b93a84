"""Priors of ridge models: what scores are made for, and where they go."""

import numpy as np
import pytest

from kernfed.errors import InputError
from kernfed.federation import Federation, RidgeLearner

RARE = {"a": 0.9, "b": 0.1}


def two_classes(rng, rows=3000):
    """Overlapping Gaussians, the second class rare: Bayes' threshold for shares is known."""
    y = np.where(rng.random(rows) < RARE["b"], "b", "a")
    X = rng.standard_normal((rows, 1)) + 2.0 * (y == "b")[:, None]
    return X, y


def learned(X, y, **settings):
    with Federation.local({"s0": (X[::2], y[::2]), "s1": (X[1::2], y[1::2])}) as federation:
        return RidgeLearner(**{"features": "given", **settings}).fit(federation)


def threshold(model, prior=None):
    """Where labels change from a to b."""
    grid = np.linspace(-3, 6, 2001)[:, None]
    return float(grid[(model.predict(grid, prior=prior) == "b").argmax(), 0])


@pytest.mark.parametrize("class_weight", [None, "balanced", {"a": 1.0, "b": 3.0}])
def test_a_logistic_head_moves_to_the_threshold_of_bayes(rng, class_weight):
    X, y = two_classes(rng)
    model = learned(X, y, head="logistic", regularization=1e-6, rounds=100, class_weight=class_weight)
    share = (y == "b").mean()
    for prior, odds in (("uniform", 0.0), ("training", np.log((1 - share) / share)), ({"a": 1, "b": 4}, -np.log(4))):
        assert threshold(model, prior) == pytest.approx(1.0 + odds / 2.0, abs=0.1)


def test_balanced_scores_stay_for_uniform_shares_unless_told(rng):
    X, y = two_classes(rng)
    plain, balanced = learned(X, y), learned(X, y, class_weight="balanced")
    assert (plain.prior, balanced.prior) == ("training", "uniform")
    np.testing.assert_array_equal(balanced.predict(X), balanced.predict(X, prior="uniform"))
    np.testing.assert_array_equal(plain.predict(X), plain.predict(X, prior="training"))
    assert threshold(balanced, "training") > threshold(balanced) + 0.5
    assert threshold(plain, "uniform") < threshold(plain) - 0.5
    weighed = learned(X, y, class_weight={"a": 1.0, "b": 9.0})
    assert weighed.prior["b"] == pytest.approx(0.5, abs=0.05)
    np.testing.assert_array_equal(weighed.predict(X), weighed.classes_[weighed.decision_function(X).argmax(axis=1)])


def test_labels_are_those_of_the_probabilities(rng):
    X, y = two_classes(rng, 300)
    for model in (learned(X, y), learned(X, y, regularization=0.1)):  # with a temperature, and without
        for prior in (None, "uniform", {"a": 0.3, "b": 0.7}):
            answer = model.answer(X, prior=prior)
            np.testing.assert_array_equal(answer.labels, model.predict(X, prior=prior))
            np.testing.assert_array_equal(answer.labels, model.classes_[answer.probabilities.argmax(axis=1)])
            np.testing.assert_allclose(answer.probabilities, model.predict_proba(X, prior=prior))
            np.testing.assert_allclose(answer.probabilities.sum(axis=1), 1.0)
    assert (learned(X, y, regularization=0.1).predict(X, prior="uniform") == "b").sum() > (y == "b").sum()


def test_values_have_no_prior(rng):
    X, _ = two_classes(rng, 60)
    model = learned(X, X[:, 0], task="regress")
    with pytest.raises(InputError, match="prior is for a model made with task='classify'"):
        model.predict(X, prior="uniform")

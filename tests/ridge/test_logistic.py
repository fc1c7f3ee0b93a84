"""A logistic head from gradients and the bound of round one, against scikit-learn at convergence."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from kernfed.errors import InputError
from kernfed.federation import Federation, RidgeLearner
from oracles.ridge_sites import class_sites

RIDGE = {"features": "given", "regularization": 0.05, "head": "logistic", "rounds": 400, "tolerance": 1e-9}


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("balanced", [False, True])
def test_it_ends_where_scikit_learn_ends(balanced, intercept):
    data = class_sites()
    settings = {"fit_intercept": intercept, "class_weight": "balanced" if balanced else None}
    with Federation.local(data) as federation:
        model = RidgeLearner(**RIDGE, **settings).fit(federation)
    X, y = (np.concatenate([rows[place] for rows in data.values()]) for place in (0, 1))
    C = 1 / (0.05 * len(y))
    pooled = LogisticRegression(C=C, tol=1e-12, max_iter=10_000, **settings).fit(X, y)
    assert model.stopped_ == "tolerance"
    np.testing.assert_allclose(model.weights_, (pooled.coef_ - pooled.coef_.mean(axis=0)).T, atol=1e-6)
    np.testing.assert_allclose(model.predict_proba(X), pooled.predict_proba(X), atol=1e-6)
    assert model.temperature_ == 1.0


def test_the_objective_falls_and_a_round_is_one_exchange():
    with Federation.local(class_sites()) as federation:
        model = RidgeLearner(**{**RIDGE, "rounds": 6}).fit(federation)
        asked = {entry.task: entry.messages for entry in federation.traffic}
    objectives = [entry.objective for entry in model.history_[1:]]
    assert objectives[-1] < objectives[0]
    assert asked["ridge_gradient"] == 6
    assert model.choices_.exchanges == sum(asked.values()) == 8
    assert model.stopped_ == "rounds"


@pytest.mark.parametrize("settings", [{"task": "regress"}, {"method": "conjugate"}])
def test_only_classes_by_exact_sums(settings):
    with pytest.raises(InputError, match="head='logistic' is for method='exact' and task='classify'"):
        RidgeLearner(head="logistic", **settings).options()

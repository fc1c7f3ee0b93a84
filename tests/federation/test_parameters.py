"""Learners of problems on features as scikit-learn's tools take them: cloned, changed by name, searched over."""

from inspect import Parameter, signature
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid

from kernfed.errors import InputError
from kernfed.federation import Federation, PersonalLearner, RidgeLearner
from kernfed.kernels import FourierFeatures
from kernfed.privacy import RecordEmbedding, RecordRidge
from oracles.ridge_sites import class_sites

LEARNERS = [
    RidgeLearner(),
    RidgeLearner("conjugate", tolerance=1e-6, regularization=[0.1, 1.0], class_weight={0: 1.0, 1: 2.0, 2: 1.0}),
    RidgeLearner("exact", features="given", privacy=RecordRidge(1.0, 1e-5, 1.0, 1.0)),
    PersonalLearner(),
    PersonalLearner(np.eye(3), model=(8, 4), columns=[0, 2], bandwidth=[1.0, 2.0, 3.0]),
    PersonalLearner(
        (0.0, 0.5), model="none", privacy=RecordEmbedding(1.0, 1e-5, FourierFeatures(6, 40, 1.0, kind="paired"))
    ),
]


@pytest.mark.parametrize("learner", LEARNERS, ids=str)
def test_a_clone_has_the_same_parameters_and_nothing_is_changed_by_the_check(learner: Any) -> None:
    before = learner.get_params()
    copy = clone(learner)
    assert type(copy) is type(learner)
    assert repr(copy) == repr(learner)
    copy.options()
    assert all(learner.get_params()[name] is value for name, value in before.items())


@pytest.mark.parametrize("kind", [RidgeLearner, PersonalLearner])
def test_only_the_first_parameter_has_a_position_and_all_are_assigned_as_they_are(kind: Any) -> None:
    _, first, *others = signature(kind.__init__).parameters.values()
    assert first.kind is Parameter.POSITIONAL_OR_KEYWORD
    assert all(parameter.kind is Parameter.KEYWORD_ONLY for parameter in others)
    marks = {name: object() for name in kind().get_params()}
    assert all(getattr(kind(**marks), name) is mark for name, mark in marks.items())
    with pytest.raises(InputError, match="has no parameter 'lambda'"):
        kind().set_params(**{"lambda": 1.0})


@pytest.mark.parametrize(
    ("learner", "grid"),
    [
        (
            RidgeLearner(n_components=20, bandwidth=3.0),
            {"method": ["exact", "dkrr"], "regularization": [1e-3, 1.0], "fit_intercept": [None, False]},
        ),
        (
            PersonalLearner(gains=False, task="classify"),
            {"weights": ["auto", "local", (0.1, 0.1)], "fit_intercept": [True, False]},
        ),
    ],
    ids=["ridge", "personal"],
)
def test_a_search_over_parameters(learner: Any, grid: Any) -> None:
    with Federation.local(class_sites(), seed=7) as federation:
        for params in ParameterGrid(grid):
            searched = clone(learner).set_params(**params).fit(federation)
            direct = type(learner)(**{**learner.get_params(), **params}).fit(federation)
            np.testing.assert_array_equal(searched.weights_, direct.weights_)
    assert learner.get_params()["fit_intercept"] in (None, True)

"""Estimators with their defaults are federations of one site, to the bit, whatever the site is called."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_digits, load_iris, load_wine

import kernfed as kf
from kernfed.errors import InputError
from kernfed.federation import Federation, Model


def digits():
    X, y = load_digits(return_X_y=True)
    return X[:300], y[:300]


TABLES = {
    "iris": lambda: load_iris(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "digits": digits,
    "float32": lambda: (load_iris().data.astype(np.float32), load_iris().target),
    "words": lambda: (load_iris().data, np.array(["a", "b", "c"])[load_iris().target]),
}
CLASSIFIERS = {
    "KAHMClassifier": (kf.KAHMClassifier, kf.FoldingLearner),
    "FusionClassifier": (kf.FusionClassifier, kf.FusionLearner),
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_is_its_federation_of_one(name, table):
    estimator, learner = CLASSIFIERS[name]
    X, y = TABLES[table]()
    fitted = estimator().fit(X, y)
    with Federation.local({"hospital 7": (X, y)}) as federation:
        model = learner().fit(federation)
        np.testing.assert_array_equal(fitted.predict_proba(X), model.predict_proba(X))
        np.testing.assert_array_equal(fitted.scores(X), model.scores(X))
        np.testing.assert_array_equal(fitted.predict(X, prior="uniform"), model.predict(X, prior="uniform"))


def test_a_regressor_is_its_federation_of_one():
    X, y = load_diabetes(return_X_y=True)
    fitted = kf.FusionRegressor(random_state=5).fit(X, y)
    with Federation.local({"plant": (X, y)}, seed=5) as federation:
        model = kf.FusionLearner(task="regress").fit(federation)
    np.testing.assert_array_equal(fitted.predict(X), model.predict(X))
    assert 0.4 < fitted.score(X, y) < 1


@pytest.mark.parametrize("name", [*CLASSIFIERS, "FusionRegressor"])
def test_an_estimator_answers_alike_from_its_file_and_by_every_method(name, tmp_path):
    X, y = TABLES["wine"]()
    y = y.astype(float) if name == "FusionRegressor" else y
    model = getattr(kf, name)().fit(X, y)
    assert isinstance(model, Model)
    model.save(tmp_path / "model.kfd")
    again = kf.load(tmp_path / "model.kfd")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.get_params() == model.get_params()
    if name != "FusionRegressor":
        answer = model.answer(X)
        np.testing.assert_array_equal(answer.labels, model.predict(X))
        np.testing.assert_array_equal(answer.probabilities, model.predict_proba(X))
        np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
        np.testing.assert_array_equal(answer.labels, model.classes_[answer.probabilities.argmax(axis=1)])
    summary = model.describe()
    assert (summary.kind, summary.width) == (name, 13)


def test_weights_of_classes_are_those_of_the_learner():
    X, y = TABLES["iris"]()
    rare = np.concatenate([np.arange(50), np.arange(50, 60), np.arange(100, 150)])
    X, y = X[rare], y[rare]
    fitted = kf.FusionClassifier(class_weight="balanced", n_components=100).fit(X, y)
    learner = kf.FusionLearner(ridge=kf.RidgeLearner(class_weight="balanced", n_components=100))
    with Federation.local({"x": (X, y)}) as federation:
        np.testing.assert_array_equal(fitted.predict_proba(X), learner.fit(federation).predict_proba(X))


@pytest.mark.parametrize("name", [*CLASSIFIERS, "FusionRegressor"])
def test_the_model_behind_an_estimator_knows_its_columns(name):
    pandas = pytest.importorskip("pandas")
    X, y = TABLES["iris"]()
    frame = pandas.DataFrame(X, columns=list("abcd"))
    model = getattr(kf, name)().fit(frame, y.astype(float) if name == "FusionRegressor" else y)
    assert model.model_.feature_names_in_ == tuple("abcd")
    for one in (model, model.model_):
        with pytest.raises(ValueError, match="order"):
            one.predict(frame[list("dcba")])


def test_who_decided_is_said_as_by_the_model():
    X, y = TABLES["iris"]()
    model = kf.KAHMClassifier().fit(X, y)
    np.testing.assert_array_equal(model.explain(X[:5]).label, model.predict(X[:5]))


def test_values_that_are_words_are_refused():
    with pytest.raises(InputError, match="y must be numbers"):
        kf.FusionRegressor().fit(np.eye(4), np.array(list("abcd")))


def test_one_class_is_refused():
    with pytest.raises(InputError, match="at least 2 classes"):
        kf.FusionClassifier().fit(np.zeros((4, 2)), np.ones(4, dtype=int))

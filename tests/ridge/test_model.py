"""The model: predictions, probabilities, scores, files."""

import numpy as np
import pytest

from kernfed.errors import FileFormatError
from kernfed.files import Record, from_record, load, to_record
from kernfed.kernels.predictor import project_on_simplex
from kernfed.ridge import Heterogeneity, RidgeModel, RidgeParameters, RidgeRound, SiteHeterogeneity


@pytest.fixture
def classifier(rng):
    parameters = RidgeParameters(3, n_components=8, bandwidth=2.0, seed=4, classes=("a", "b", "c"))
    site = SiteHeterogeneity(1.0, 0.1, 0.2, 3.0)
    history = (RidgeRound(0, None, None, 1, 2, 0.5), RidgeRound(1, 2.0, 0.1, 3, 4, 5.0))
    return RidgeModel(
        parameters,
        rng.standard_normal((8, 3)),
        "newton",
        history,
        "diverged",
        Heterogeneity(2.5, 7.0, 3.0, {"north": site}),
        {1e-3: 0.4, 1.0: 0.5},
        {"south": "gone"},
    )


@pytest.fixture
def regressor(rng):
    return RidgeModel(RidgeParameters(4, features="given", task="regress"), rng.standard_normal((4, 1)), "exact")


def test_predictions_are_the_largest_value_of_the_features_times_weights(rng, classifier):
    X = rng.standard_normal((2500, 3))
    values = classifier.parameters.feature_map().transform(X) @ classifier.weights_
    np.testing.assert_allclose(classifier.decision_function(X), values, atol=1e-12)
    np.testing.assert_array_equal(classifier.scores(X), -classifier.decision_function(X))
    labels = np.array(["a", "b", "c"])[values.argmax(axis=1)]
    np.testing.assert_array_equal(classifier.predict(X), labels)
    assert classifier.score(X, labels) == 1.0
    assert classifier.score(X, np.roll(labels, 1)) < 1.0


def test_probabilities_agree_with_predictions(rng, classifier):
    X = rng.standard_normal((50, 3))
    found = classifier.predict_proba(X)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert found.min() >= 0
    np.testing.assert_array_equal(classifier.classes_[found.argmax(axis=1)], classifier.predict(X))


def test_an_answer_is_all_of_it_from_one_computation(rng, classifier, regressor):
    X = rng.standard_normal((50, 3))
    answer = classifier.answer(X)
    np.testing.assert_array_equal(answer.labels, classifier.predict(X))
    np.testing.assert_array_equal(answer.probabilities, classifier.predict_proba(X))
    np.testing.assert_array_equal(answer.scores, classifier.scores(X))
    np.testing.assert_array_equal(answer.score, answer.scores.min(axis=1))
    assert (answer.site, answer.batch, answer.sites, answer.missing) == (None, None, (), {})
    X = rng.standard_normal((9, 4))
    values = regressor.answer(X)
    np.testing.assert_array_equal(values.labels, regressor.predict(X))
    assert (values.probabilities, values.scores, values.score) == (None, None, None)


def test_projected_probabilities_are_nearer_than_any_other(rng):
    values = rng.standard_normal((30, 4))
    found = project_on_simplex(values)
    distance = np.linalg.norm(values - found, axis=1)
    others = rng.dirichlet(np.ones(4), size=(200, 30))
    assert (np.linalg.norm(values - others, axis=2) >= distance - 1e-12).all()


def test_regression_predicts_values(rng, regressor):
    X = rng.standard_normal((9, 4))
    np.testing.assert_allclose(regressor.predict(X), (X @ regressor.weights_)[:, 0], atol=1e-14)
    assert regressor.score(X, regressor.predict(X)) == 1.0
    for name in ("decision_function", "scores", "predict_proba"):
        what = "probabilities" if name == "predict_proba" else "decision values"
        with pytest.raises(ValueError, match=f"{what} need a model made with task='classify', .*; use predict"):
            getattr(regressor, name)(X)


@pytest.mark.parametrize("X", [np.zeros((2, 5)), np.zeros(3), [[np.nan, 0, 0]], np.zeros((0, 3))])
def test_queries_that_cannot_be_are_refused(classifier, X):
    with pytest.raises(ValueError, match="X must"):
        classifier.predict(X)


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_files_hold_everything(rng, kind, request, tmp_path):
    model = request.getfixturevalue(kind)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    for name in ("parameters", "method", "history_", "stopped_", "heterogeneity_", "path_", "missing_"):
        assert getattr(again, name) == getattr(model, name), name
    X = rng.standard_normal((5, model.n_features_in_))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


@pytest.mark.parametrize("weights", [np.zeros((7, 3)), np.zeros((8, 2)), np.zeros((8, 3), dtype=np.float32)])
def test_damaged_records_are_refused(classifier, weights):
    record = to_record(classifier)
    with pytest.raises(FileFormatError, match="weights must be float64 of shape"):
        from_record(Record({"weights": weights}, record.values))


def test_history_is_a_table(classifier):
    table = classifier.history_table()
    assert list(table) == ["round", "objective", "gradient_norm", "bytes_up", "bytes_down", "seconds"]
    assert table["round"] == [0, 1]
    assert table["objective"] == [None, 2.0]


def test_printing_a_model_is_one_line_without_its_weights(classifier, regressor):
    assert str(classifier).startswith(
        "RidgeModel of 3 classes from 3 columns by 'newton', 1 round(s), stopped: diverged"
    )
    assert str(regressor).startswith("RidgeModel of values from 4 columns by 'exact', stopped")
    assert "\n" not in repr(classifier)

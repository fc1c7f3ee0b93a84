"""Classifier and regressor in scikit-learn's world."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, load_wine, make_friedman1
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from kernfed import KAHM, DeepKAHM, KAHMClassifier, KAHMRegressor, WideKAHM
from kernfed.base.random import generator
from kernfed.errors import FileFormatError
from kernfed.files import Record, from_record, load, to_record
from kernfed.kahm.bank import Bank
from kernfed.kahm.folding import MEASURES, folding
from kernfed.kahm.left_out import (
    fit_temperature,
    left_out_scores,
    softmin,
    temperature_losses,
    usual_temperature,
)
from kernfed.kahm.machine import explicit_images, fit_machine
from kernfed.kahm.spectrum import regularization


@parametrize_with_checks(
    [
        KAHMClassifier(),
        KAHMClassifier(measure="rms", layers=2, dtype="float32", batch_size=1000, partition="kmeans", scale=None),
        KAHMRegressor(),
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return train_test_split(np.tanh(X / 16), y, test_size=0.3, random_state=0, stratify=y)


@pytest.mark.parametrize("measure", MEASURES)
def test_every_measure_classifies_digits(digits, measure):
    x_train, x_test, y_train, y_test = digits
    model = KAHMClassifier(measure=measure, batch_size=1000, partition="kmeans", scale=None).fit(x_train, y_train)
    assert model.score(x_test, y_test) > 0.97


@pytest.mark.parametrize("partition", ["kmeans", "order", "random"])
def test_batches_and_layers(digits, partition):
    x_train, x_test, y_train, y_test = digits
    model = KAHMClassifier(batch_size=40, partition=partition, layers=3, dtype="float32", scale=None).fit(
        x_train, y_train
    )
    assert len(model.bank_.machines) == sum(round(np.count_nonzero(y_train == c) / 40) for c in range(10))
    assert model.score(x_test, y_test) > 0.97


@pytest.mark.parametrize("kind", [str, bool, float, np.int8, object, "U3"])
def test_labels_of_any_type(kind, rng):
    X = np.concatenate([rng.standard_normal((20, 3)), rng.standard_normal((20, 3)) + 5])
    y = np.repeat([0, 1], 20).astype(str if kind is object else kind).astype(kind)
    model = KAHMClassifier(batch_size=1000, partition="kmeans", scale=None).fit(X, y)
    assert (model.predict(X) == y).mean() > 0.95
    assert model.predict(X).dtype == np.unique(y).dtype


def test_pipeline_grid_search_and_cross_validation():
    X, y = load_iris(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), KAHMClassifier(batch_size=1000, partition="kmeans", scale=None))
    search = GridSearchCV(pipeline, {"kahmclassifier__measure": ["distance", "rms"]}, cv=3).fit(X, y)
    assert search.best_score_ > 0.9
    assert cross_val_score(pipeline, X, y, cv=3).mean() > 0.9
    assert clone(pipeline).get_params()["kahmclassifier__batch_size"] == 1000


def test_scores_decision_and_probabilities_agree(digits):
    x_train, x_test, y_train, _ = digits
    model = KAHMClassifier(batch_size=1000, partition="kmeans", scale=None).fit(x_train, y_train)
    scores, probabilities = model.scores(x_test), model.predict_proba(x_test)
    assert (model.decision_function(x_test) == -scores).all()
    assert (model.classes_[scores.argmin(axis=1)] == model.predict(x_test)).all()
    assert (model.classes_[probabilities.argmax(axis=1)] == model.predict(x_test)).all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert model.fallback_share(x_test) == 0


def test_probabilities_are_calibrated(digits):
    """The temperature makes held-out probabilities nearly as likely as the best temperature for the held-out rows."""
    x_train, x_test, y_train, y_test = digits
    model = KAHMClassifier(batch_size=1000, partition="kmeans", scale=None).fit(x_train, y_train)
    scores = model.scores(x_test)

    def loss(temperature: float) -> float:
        return float(-np.log(softmin(scores, temperature)[np.arange(len(y_test)), y_test]).mean())

    ideal = fit_temperature(scores, y_test)
    assert loss(model.temperature_) < loss(ideal) + 0.01
    assert loss(ideal / 10) > loss(ideal) + 0.05  # so that the test can fail
    assert loss(ideal * 10) > loss(ideal) + 0.05


@pytest.mark.parametrize("options", [{}, {"layers": 2, "subspace_dim": 4}])
def test_left_out_rows_are_scored_by_machines_that_never_saw_them(options, rng):
    X, y = rng.standard_normal((60, 8)), np.repeat([0, 1], [20, 40])
    model = KAHMClassifier(batch_size=20, partition="order", scale=None, **options).fit(X, y)
    scores, classes = left_out_scores(model.bank_, "rms", np.random.default_rng(3), **options)
    assert len(scores) == len(classes) == 6  # a tenth of each of three machines
    draws = np.random.default_rng(3)
    start = 0
    for number, own in zip(draws.permutation(3), draws.spawn(3), strict=True):
        rows = X[20 * number : 20 * number + 20]
        left = np.sort(own.choice(20, 2, replace=False))
        machine = fit_machine(np.delete(rows, left, axis=0), **options)
        found = model.bank_.machine_scores(rows[left], "rms")
        alone = explicit_images(machine, rows[left])
        found[:, number] = folding(
            "rms", alone.squared_distance, np.linalg.norm(rows[left], axis=1), np.linalg.norm(alone.image, axis=1)
        )
        expected = np.column_stack([found[:, 0], found[:, 1:].min(axis=1)])
        np.testing.assert_allclose(scores[start : start + 2], expected, rtol=1e-6, atol=1e-9)
        assert (classes[start : start + 2] == int(number > 0)).all()
        start += 2
    again = left_out_scores(model.bank_, model.measure, generator(0, "calibrate"), **options)
    assert model.temperature_ == fit_temperature(*again)


def test_machines_of_one_row_leave_nothing_out(rng):
    model = KAHMClassifier(batch_size=1, partition="kmeans", scale=None).fit(rng.standard_normal((3, 2)), [0, 1, 2])
    scores, classes = left_out_scores(model.bank_, "rms", rng)
    assert scores.shape == (0, 3)
    assert len(classes) == 0
    assert model.temperature_ == 1.0


def test_few_rows_that_are_all_right_do_not_make_certain(rng):
    """Left-out rows without an error suggest a temperature of zero; the prior knows how much scores vary."""
    scores = np.array([[0.1, 2.0], [0.2, 2.5], [0.3, 2.2], [2.4, 0.3], [2.1, 0.1], [2.2, 0.2]])
    labels = np.repeat([0, 1], 3)
    usual = np.std([0.1, 0.2, 0.3]) / 3
    assert usual_temperature(scores, labels) == pytest.approx(usual)
    assert fit_temperature(scores, labels) == pytest.approx(usual, rel=0.05)
    # With many rows their likelihood decides: the prior moves the best temperature by less than a percent.
    many, truth = rng.exponential(size=(4000, 3)), np.zeros(4000, dtype=int)
    grid = np.exp(np.linspace(-6, 6, 4001))
    probable = np.array([rng.choice(3, p=row) for row in softmin(many, 0.5)])
    best = grid[temperature_losses(many, probable, grid).argmin()]
    assert fit_temperature(many, probable) == pytest.approx(best, rel=0.01)
    assert fit_temperature(many[:, :1], truth) == usual_temperature(many[:, :1], truth)  # one class


@pytest.mark.parametrize("count", [2, 3, 5])
def test_probabilities_of_few_rows_are_not_far_from_the_truth(count):
    X, y = load_wine(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    for seed in range(5):
        draws = np.random.default_rng(seed)
        rows = np.concatenate([draws.permutation(np.flatnonzero(y == label))[:count] for label in range(3)])
        others = np.setdiff1d(np.arange(len(y)), rows)
        found = (
            KAHMClassifier(batch_size=1000, partition="kmeans", scale=None)
            .fit(X[rows], y[rows])
            .predict_proba(X[others])
        )
        assert log_loss(y[others], found) < np.log(3)  # better than knowing nothing


def test_temperature_of_scores_without_information():
    assert fit_temperature(np.full((4, 2), np.inf), np.zeros(4, dtype=int)) == 1.0
    assert fit_temperature(np.full((4, 2), 3.0), np.zeros(4, dtype=int)) == 3.0


def test_regressor_is_the_printed_combination(rng):
    """DP-KAHM (32) with lambda of (28), written out."""
    X, y = rng.standard_normal((40, 3)), rng.standard_normal((40, 2)) + 3
    model = KAHMRegressor(standardize=False, batch_size=1000, partition="kmeans", scale=None).fit(X, y)
    whitened = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[0] * np.sqrt(39)
    kernel = np.exp(-np.square(whitened[:, None] - whitened).sum(axis=2) / 6)
    tau = 2 * np.square(y).sum() / y.size
    error = tau / 4
    for _ in range(300):
        residual = y - kernel @ np.linalg.solve(kernel + (error + tau) * np.eye(40), y)
        error = np.square(residual).sum() / y.size
    memberships = np.linalg.solve(kernel + (error + tau) * np.eye(40), kernel)
    np.testing.assert_allclose(model.predict(X), (memberships.T @ y) / memberships.sum(axis=0)[:, None], atol=1e-9)


def test_regressor_learns_and_does_not_mind_units():
    X, y = make_friedman1(600, random_state=0)
    half = 400
    score = (
        KAHMRegressor(batch_size=1000, partition="kmeans", scale=None).fit(X[:half], y[:half]).score(X[half:], y[half:])
    )
    assert score > Ridge().fit(X[:half], y[:half]).score(X[half:], y[half:]) + 0.05
    moved = (
        KAHMRegressor(batch_size=1000, partition="kmeans", scale=None)
        .fit(X[:half], 1e3 * y[:half] + 7)
        .score(X[half:], 1e3 * y[half:] + 7)
    )
    assert moved == pytest.approx(score, abs=1e-9)
    wide = KAHMRegressor(batch_size=100, random_state=1, partition="kmeans", scale=None).fit(X[:half], y[:half])
    assert len(wide.bank_.machines) == 4
    assert wide.score(X[half:], y[half:]) > 0.6


@pytest.mark.parametrize("outputs", [None, 1, 3])
def test_regressor_survives_a_file(rng, tmp_path, outputs):
    X = rng.standard_normal((150, 4))
    y = rng.standard_normal(150 if outputs is None else (150, outputs))
    far = np.concatenate([rng.standard_normal((40, 4)), 1e6 * rng.standard_normal((5, 4))])  # the last fall back
    model = KAHMRegressor(batch_size=50, partition="kmeans", scale=None).fit(pd.DataFrame(X, columns=list("abcd")), y)
    model.save(tmp_path / "model.kfd")
    again = load(tmp_path / "model.kfd")
    far = pd.DataFrame(far, columns=list("abcd"))
    np.testing.assert_array_equal(again.predict(far), model.predict(far))
    assert again.get_params() == model.get_params()
    assert again.feature_names_in_.tolist() == list("abcd")
    with pytest.raises(ValueError, match="feature names"):
        again.predict(far[list("dcba")])


@pytest.mark.parametrize("name", ["coefficients", "responses", "levels", "shift", "scale"])
def test_damaged_regressors_are_refused(rng, name):
    record = to_record(
        KAHMRegressor(batch_size=1000, partition="kmeans", scale=None).fit(
            rng.standard_normal((20, 2)), rng.standard_normal(20)
        )
    )
    for array in (record.arrays[name][:-1], record.arrays[name].astype(np.float32)):
        with pytest.raises(FileFormatError, match=r"must be float64 of shape|damaged"):
            from_record(Record({**record.arrays, name: array}, record.values))


def test_an_answer_is_all_of_it_from_one_scoring(digits, monkeypatch):
    x_train, x_test, y_train, _ = digits
    model = KAHMClassifier(batch_size=50, partition="kmeans", scale=None).fit(x_train, y_train)
    scored = []
    score = Bank.scores
    monkeypatch.setattr(Bank, "scores", lambda *given: scored.append(1) or score(*given))
    answer = model.answer(x_test)
    assert len(scored) == 1
    np.testing.assert_array_equal(answer.labels, model.predict(x_test))
    np.testing.assert_array_equal(answer.probabilities, model.predict_proba(x_test))
    np.testing.assert_array_equal(answer.scores, model.scores(x_test))
    np.testing.assert_array_equal(answer.score, answer.scores.min(axis=1))
    assert set(answer.site.tolist()) == {"site"}
    assert set(answer.batch.tolist()) <= set(range(len(model.bank_.machines)))
    values = KAHMRegressor(batch_size=1000, partition="kmeans", scale=None).fit(x_train, y_train).answer(x_test)
    assert values.labels.shape == (len(x_test),)
    assert (values.probabilities, values.scores) == (None, None)


def test_regressor_degenerate_responses(rng):
    X = rng.standard_normal((10, 2))
    np.testing.assert_allclose(
        KAHMRegressor(batch_size=1000, partition="kmeans", scale=None).fit(X, np.full(10, 4.0)).predict(X), 4.0
    )
    np.testing.assert_allclose(
        KAHMRegressor(batch_size=1000, partition="kmeans", scale=None)
        .fit(np.ones((10, 2)), np.arange(10.0))
        .predict(X),
        4.5,
    )


def test_fixed_point_is_unique_and_reached(rng):
    """DP-KAHM Theorem 1: lambda - tau is the fixed point of (21), from any start."""
    spectrum, energies = rng.exponential(size=50) * 20, rng.exponential(size=50)
    level = regularization(spectrum, energies, 7)
    tau = 2 * energies.sum() / 350
    for start in (1e-9, tau / 4, tau / 2):
        error = start
        for _ in range(500):
            error = float(np.square((error + tau) / (spectrum + error + tau)) @ energies) / 350
        assert level == pytest.approx(error + tau, rel=1e-13)


BAD_FITS = [
    (KAHM(scale=None), np.zeros(3), "must be a matrix"),
    (KAHM(scale=None), np.zeros((0, 3)), "at least 1 row"),
    (KAHM(scale=None), np.zeros((3, 0)), "at least 1 column"),
    (KAHM(scale=None), [[1.0, np.nan]], "finite, got nan at index"),
    (KAHM(scale=None), [[1.0, np.inf]], "finite, got inf"),
    (KAHM(scale=None), [["a", "b"]], "real numbers"),
    (KAHM(subspace_dim=0, scale=None), np.eye(3), "subspace_dim must be >= 1, got 0"),
    (KAHM(subspace_dim="all", scale=None), np.eye(3), "subspace_dim must be one of 'auto'"),
    (KAHM(dtype="float16", scale=None), np.eye(3), "dtype must be one of"),
    (DeepKAHM(layers=0, scale=None), np.eye(3), "layers must be >= 1, got 0"),
    (DeepKAHM(layers=1.5, scale=None), np.eye(3), "layers must be an integer"),
    (WideKAHM(batch_size=-1, partition="kmeans", scale=None), np.eye(3), "batch_size must be >= 1, got -1"),
    (WideKAHM(partition="halves", batch_size=1000, scale=None), np.eye(3), "partition must be one of"),
]


@pytest.mark.parametrize(("model", "rows", "message"), BAD_FITS)
def test_bad_rows_and_parameters(model, rows, message):
    with pytest.raises(ValueError, match=message):
        model.fit(rows)


BAD_CLASSIFIERS = [
    ({"measure": "manhattan"}, "measure must be one of"),
    ({"batch_size": 0}, "batch_size must be >= 1"),
    ({"layers": -2}, "layers must be >= 1"),
    ({"partition": "x"}, "partition must be one of"),
    ({"subspace_dim": 2.5}, "subspace_dim must be an integer"),
    ({"dtype": "int"}, "dtype must be one of"),
    ({"random_state": -1}, "random_state must be >= 0"),
]


@pytest.mark.parametrize(("parameters", "message"), BAD_CLASSIFIERS)
def test_bad_classifier_parameters(parameters, message, rng):
    with pytest.raises(ValueError, match=message):
        KAHMClassifier(**parameters).fit(rng.standard_normal((20, 3)), np.arange(20) % 2)


def test_queries_are_checked(rng):
    machine = KAHM(scale=None).fit(rng.standard_normal((9, 3)))
    with pytest.raises(ValueError, match="must have 3 columns as at training, got 4"):
        machine.distance(np.zeros((2, 4)))
    with pytest.raises(ValueError, match="finite"):
        machine.image([[np.nan, 0, 0]])
    with pytest.raises(ValueError, match="measure must be one of"):
        machine.folding(np.zeros((1, 3)), "rmse")
    for unfitted in (KAHM(scale=None), DeepKAHM(scale=None), WideKAHM(batch_size=1000, partition="kmeans", scale=None)):
        with pytest.raises(NotFittedError):
            unfitted.distance(np.zeros((1, 3)))


def test_one_class_is_refused(rng):
    with pytest.raises(ValueError, match="at least 2 classes, got 1 class"):
        KAHMClassifier(batch_size=1000, partition="kmeans", scale=None).fit(rng.standard_normal((5, 2)), ["a"] * 5)


def test_column_names_are_remembered(rng):
    table = pd.DataFrame(rng.standard_normal((20, 2)), columns=["left", "right"])
    model = KAHMClassifier(batch_size=1000, partition="kmeans", scale=None).fit(table, np.arange(20) % 2)
    assert model.feature_names_in_.tolist() == ["left", "right"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table[["right", "left"]])


@pytest.mark.slow
@pytest.mark.shared_data
def test_mnist_reaches_the_published_accuracy(shared_data):
    """GIKM Table 1 publishes 98.70 %; at least 98.6 % of the 10,000 test images."""
    with np.load(shared_data / "mnist.npz") as data:
        x_train, y_train = np.tanh(data["x_train"].reshape(-1, 784) / 255.0), data["y_train"]
        x_test, y_test = np.tanh(data["x_test"].reshape(-1, 784) / 255.0), data["y_test"]
    model = KAHMClassifier(dtype="float32", random_state=0, batch_size=1000, partition="kmeans", scale=None).fit(
        x_train, y_train
    )
    assert model.score(x_test, y_test) >= 0.986

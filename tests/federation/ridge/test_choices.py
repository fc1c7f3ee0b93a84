"""What a ridge regression chooses by itself: bandwidth, scale and regularisation; and what it keeps of the choice."""

import numpy as np
import pytest

import kernfed as kf
from contracts.engines import lying
from kernfed.federation import Federation, RidgeLearner
from kernfed.ridge import RidgeModel
from kernfed.ridge.leave_one_out import FACTORS
from oracles import ridge as oracle
from oracles.ridge_sites import class_sites, features_of, value_sites


def learn(data, **settings) -> RidgeModel:
    with Federation.local(data, seed=3) as federation:
        return RidgeLearner(**{"n_components": 40, **settings}).fit(federation)


@pytest.mark.parametrize("task", ["classify", "regress"])
def test_everything_is_chosen_by_leaving_rows_out(task):
    data = class_sites() if task == "classify" else value_sites()
    with Federation.local(data, seed=3) as federation:
        model = RidgeLearner(n_components=40, task=task).fit(federation)
        asked = {entry.task: entry.messages for entry in federation.traffic}
    assert asked.pop("ridge_left_out") == 2
    assert asked == dict.fromkeys(["ridge_survey", "ridge_columns", "ridge_trials", "ridge_moments"], 1)
    choices = model.choices_
    assert choices.exchanges == 6
    assert (choices.regularization, choices.bandwidth) == ("left out", "left out")
    assert set(choices.widths) == {(scale, factor) for scale in ("entries", "columns") for factor in FACTORS}
    assert choices.scale == min(choices.widths, key=lambda name: choices.widths[name])[0]
    phi, targets = oracle.pooled(features_of(model, data))
    for value in sorted(model.path_)[::4]:
        squares, wrong = oracle.pooled_leave_one_out(phi, targets, value)
        assert model.path_[value] == pytest.approx(squares, rel=1e-6)
        assert task == "regress" or choices.errors[value][1] == pytest.approx(wrong, abs=1e-9)
    if task == "classify":
        assert model.regularization_ == min(choices.errors, key=lambda value: choices.errors[value][0])
    else:
        assert model.regularization_ == min(model.path_, key=model.path_.__getitem__)
    assert "left out" in str(model)
    assert f"{choices.exchanges} exchange(s)" in str(model)


def test_eigenvectors_travel_once_where_the_best_regularisation_is_far_from_the_middle(rng):
    """Targets that no column explains want a large one, targets without noise a small one."""
    for explained, far in ((0.0, np.greater), (1.0, np.less)):
        rows = {site: rng.standard_normal((60, 3)) for site in "ab"}
        noise = (1 - explained) * rng.standard_normal(60)
        data = {site: (X, explained * X.sum(axis=1) + noise) for site, X in rows.items()}
        with Federation.local(data, seed=3) as federation:
            model = RidgeLearner(features="given", scale=None, task="regress").fit(federation)
            asked = {entry.task: entry.messages for entry in federation.traffic}
        assert asked["ridge_left_out"] == 1
        middle = sorted(model.path_)[len(model.path_) // 2]
        assert far(model.regularization_, middle)


@pytest.mark.parametrize("features", ["fourier", "given"])
def test_units_do_not_matter(rng, features):
    data = class_sites()
    queries = rng.standard_normal((50, 6))
    expected = learn(data, features=features).predict(queries)
    for unit in (1e-6, 1e6):
        scaled = {site: (X * unit, y) for site, (X, y) in data.items()}
        np.testing.assert_array_equal(learn(scaled, features=features).predict(queries * unit), expected)


@pytest.mark.parametrize("features", ["fourier", "given"])
def test_columns_of_unlike_units_are_scaled_each_by_its_own(rng, features):
    """One column tells the classes, others are noise in units a thousand times as large."""
    X = rng.standard_normal((150, 4))
    y = (X[:, 0] > 0).astype(int)
    X = X * [1.0, 1e3, 1e3, 1e3]
    data = {f"s{i}": (X[i::3], y[i::3]) for i in range(3)}
    model = learn(data, features=features, n_components=100)
    assert model.choices_.scale == "columns"
    by_columns = learn(data, features=features, n_components=100, scale="columns")
    np.testing.assert_array_equal(by_columns.weights_, model.weights_)
    assert model.score(X, y) > learn(data, features=features, n_components=100, scale=None).score(X, y) - 0.01


def test_a_narrow_bandwidth_is_chosen_for_fine_waves(rng):
    X = rng.uniform(-3, 3, (400, 1))
    y = (np.sin(6 * X[:, 0]) > 0).astype(int)
    data = {"a": (X[::2], y[::2]), "b": (X[1::2], y[1::2])}
    chosen = learn(data, n_components=200)
    assert chosen.parameters.bandwidth < learn(data, n_components=200, bandwidth="median").parameters.bandwidth
    assert chosen.score(X, y) > 0.9


def test_given_numbers_are_taken_as_they_are():
    data = class_sites()
    with Federation.local(data) as federation:
        RidgeLearner(n_components=20, bandwidth=2.0, regularization=0.1).fit(federation)
        asked = {entry.task: entry.messages for entry in federation.traffic}
    assert asked == {"ridge_survey": 1, "ridge_moments": 1}


def test_in_rounds_the_averages_are_left_out():
    model = learn(class_sites(), method="conjugate", rounds=30)
    assert model.choices_.regularization == "averages left out"
    assert model.choices_.bandwidth == "median"
    assert len(model.path_) == 9
    assert model.regularization_ == min(model.path_, key=model.path_.__getitem__)
    given = learn(class_sites(), method="dkrr", features="given")
    assert given.choices_.regularization == "averages left out"


def test_released_sums_have_the_rule():
    mechanism = kf.privacy.RecordRidge(50.0, 1e-5, 1.0, 1.0)
    data = {site: (X / 10, y) for site, (X, y) in class_sites((300, 300, 300)).items()}
    with pytest.warns(kf.errors.LedgerNotKept):
        model = learn(data, features="given", privacy=mechanism)
    assert model.choices_.regularization == "sums"
    X = np.concatenate([X for X, _ in data.values()])
    assert model.regularization_ == pytest.approx((X**2).sum() / len(X) ** 2, rel=0.2)


def test_features_are_at_most_twice_the_rows():
    data = class_sites()
    rows = sum(len(y) for _, y in data.values())
    with Federation.local(data) as federation:
        options = RidgeLearner().options()
        assert options.components(rows) == max(250, 2 * rows)
        assert options.components(10**6) == 2000
        model = RidgeLearner(bandwidth=2.0, regularization=0.1).fit(federation)
    assert model.parameters.n_components == 250


def test_a_choice_is_in_the_file(tmp_path):
    model = learn(class_sites(), class_weight="balanced")
    model.save(tmp_path / "model.kfd")
    again = kf.load(tmp_path / "model.kfd")
    assert again.choices_ == model.choices_
    assert model.choices_.balanced
    assert (again.temperature_, again.prior, again.head) == (model.temperature_, "uniform", "squared")
    assert again.class_counts_ == model.class_counts_
    X = class_sites()["s0"][0]
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.predict(X, prior="training"), model.predict(X, prior="training"))


def test_probabilities_of_a_chosen_model_are_those_of_its_temperature():
    data = class_sites()
    model = learn(data)
    X = data["s0"][0]
    values = model.decision_function(X) / model.temperature_
    raised = np.exp(values - values.max(axis=1, keepdims=True))
    np.testing.assert_allclose(model.predict_proba(X), raised / raised.sum(axis=1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize(
    ("task", "change"),
    [
        ("ridge_left_out", lambda a: {**a, "0": a["0"] * -1.0}),
        ("ridge_trials", lambda a: {**a, "1.scatter": a["1.scatter"] * -1.0}),
        ("ridge_columns", lambda a: {**a, "squares": -a["squares"]}),
        ("ridge_columns", lambda a: {**a, "rows": a["rows"] + 1}),
    ],
)
def test_a_site_that_answers_what_cannot_be_is_left_out(task, change):
    data = class_sites()

    def lie(payload):
        return kf.federation.Payload(change(payload.arrays), payload.values)

    with Federation.local(data, seed=3) as honest:
        federation = Federation(lying(honest.engine, "s1", lie, task), seed=3)
        with pytest.warns(kf.errors.MissingSites, match="'s1'"):
            model = RidgeLearner(n_components=40).fit(federation, min_replies=2)
    rest = learn({site: data[site] for site in ("s0", "s2")})
    np.testing.assert_allclose(model.weights_, rest.weights_, atol=1e-9 * np.abs(rest.weights_).max())

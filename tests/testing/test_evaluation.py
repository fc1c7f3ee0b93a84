"""Evaluation from counts: the same numbers as pooling the test rows, without pooling them."""

import json

import numpy as np
import pytest

import kernfed as kf
from kernfed.errors import TooFewReplies
from kernfed.federation import Fault, Policy
from kernfed.testing.evaluation import evaluate_rows
from kernfed.testing.exchange import model_question
from kernfed.testing.outcomes import BINS, Evaluation, Outcome, RegressionEvaluation, count_outcomes, error_sums
from kernfed.testing.predictors import is_regressor
from kernfed.testing.statistics import Errors, Outcomes


@pytest.fixture
def sites(rng):
    centres = 3 * rng.standard_normal((4, 5))
    labels = rng.integers(0, 4, (3, 60))
    return {f"site-{i}": (centres[y] + rng.standard_normal((60, 5)), y) for i, y in enumerate(labels)}


def naive_counts(classes, truth, probabilities):
    confusion = np.zeros((len(classes) + 1, len(classes)), dtype=int)
    calibration = np.zeros((BINS, 3))
    for label, row in zip(truth, probabilities, strict=True):
        guess = int(np.argmax(row))
        known = [number for number, name in enumerate(classes) if name == label]
        confusion[known[0] if known else len(classes), guess] += 1
        place = min(int(row[guess] * BINS), BINS - 1)
        calibration[place] += [1, bool(known) and known[0] == guess, row[guess]]
    return confusion, calibration


def test_counts_are_the_naive_ones(rng):
    classes = np.array(["a", "b", "c"])
    probabilities = rng.dirichlet([1, 1, 1], 200)
    probabilities[:3] = np.eye(3)  # confidence 1 belongs to the last bin
    truth = np.array(["a", "b", "c", "unknown"])[rng.integers(0, 4, 200)]
    confusion, calibration = naive_counts(classes, truth, probabilities)
    found = count_outcomes(classes, truth, probabilities)
    assert (found.confusion == confusion).all()
    np.testing.assert_allclose(found.calibration, calibration)
    assert found.rows == 200
    assert found.correct == np.trace(confusion)


def test_perfectly_calibrated_counts_have_no_error():
    calibration = np.zeros((BINS, 3))
    calibration[7] = [100, 75, 75.0]
    assert Outcome(np.array([[75, 25], [0, 0], [0, 0]]), calibration).calibration_error == 0.0


@pytest.mark.parametrize("hold", ["sites", "machines"])
def test_sites_count_what_the_caller_would_count(sites, hold):
    with kf.Federation.local(sites, holdout=0.3) as federation:
        model = kf.FoldingLearner(measure="distance", hold=hold, batch_size=100, partition="order", scale=None).fit(
            federation
        )
        found = kf.evaluate(model, federation)
        kept = {name: federation.engine.site(name).held_out() for name in federation.sites}
        expected = evaluate_rows(model, {name: (rows.X, rows.y) for name, rows in kept.items()})
        information = {entry.information for entry in federation.traffic if entry.task.startswith("test_")}
    assert set(found.sites) == set(sites)
    for name, outcome in found.sites.items():
        assert (outcome.confusion == expected.sites[name].confusion).all()
        assert (outcome.calibration == expected.sites[name].calibration).all()
    assert found.accuracy > 0.8
    assert information == {"counts"}


def test_held_out_rows_are_not_learned_from_and_stay_the_same(sites):
    with kf.Federation.local(sites, holdout=0.25, seed=4) as federation:
        site = federation.engine.site("site-1")
        kept, learned = site.held_out(), site.rows()
        assert len(np.intersect1d(kept.ids, learned.ids)) == 0
        assert len(kept.ids) + len(learned.ids) == 60
        assert 5 <= len(kept.ids) <= 28
        model = kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        assert model.members_["site-1"].rows == len(learned.ids)
        site.forget_rows(learned.ids[:3])
        assert (site.held_out().ids == kept.ids).all()  # a row's part never changes


@pytest.mark.parametrize(
    "learner",
    [
        kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None),
        kf.FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None),
        kf.RidgeLearner("exact", task="regress", features="given"),
    ],
)
def test_without_held_out_rows_at_any_site_there_is_nothing_to_tell(sites, learner):
    with kf.Federation.local(sites) as federation:
        model = learner.fit(federation)
        for options in ({}, {"holdout": {}}):
            with pytest.raises(
                ValueError, match=r"Federation.local\(..., holdout=0.2\), or .* holdout=\{site: \(X, y\)"
            ):
                kf.evaluate(model, federation, **options)
        federation.engine.faults["site-1"] = Fault("dead")
        if getattr(model, "connection", None) is None:
            with pytest.raises(ValueError, match="no site keeps rows aside"):
                kf.evaluate(model, federation, min_replies=1)


def test_a_site_without_held_out_rows_is_listed_among_the_others(sites):
    few = {**sites, "site-1": (sites["site-1"][0][:1], sites["site-1"][1][:1])}  # of one row none is kept aside
    with kf.Federation.local(few, holdout=0.1) as federation:
        assert not len(federation.engine.site("site-1").held_out().y)
        for hold in ("sites", "machines"):
            found = kf.evaluate(
                kf.FoldingLearner(hold=hold, measure="rms", batch_size=100, partition="order", scale=None).fit(
                    federation
                ),
                federation,
            )
            assert found.sites["site-1"].rows == 0
            assert np.isnan(found.sites["site-1"].accuracy)
            assert found.to_json()["sites"]["site-1"]["accuracy"] is None
            assert found.accuracy > 0.5


def test_given_rows_and_unknown_labels(sites):
    with kf.Federation.local(sites) as federation:
        model = kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        X, y = sites["site-0"]
        found = kf.evaluate(model, federation, holdout={"new": (X, np.where(y == 0, 99, y))})
    assert found.pooled.confusion[-1].sum() == found.pooled.unknown == (y == 0).sum()
    assert found.pooled.errors == found.pooled.rows - found.pooled.correct >= found.pooled.unknown
    assert found.accuracy < 1
    assert f"{(y == 0).sum()} row(s) have labels that the model does not know" in str(found)
    assert "does not know" not in str(
        evaluate_rows(kf.KAHMClassifier(batch_size=1000, partition="kmeans", scale=None).fit(X, y), {"a": (X, y)})
    )


@pytest.mark.parametrize("hold", ["sites", "machines"])
def test_labels_of_another_type_are_refused(sites, hold):
    words = {name: (X, np.array(["a", "b", "c", "d"])[y]) for name, (X, y) in sites.items()}
    told = "labels of site 'site-0' are {}, and the model's classes are {} such as"
    with kf.Federation.local(sites, holdout=0.3) as numbered, kf.Federation.local(words, holdout=0.3) as worded:
        for learned, tested, expected in (
            (numbered, worded, ("text", "numbers")),
            (worded, numbered, ("numbers", "text")),
        ):
            model = kf.FoldingLearner(hold=hold, measure="rms", batch_size=100, partition="order", scale=None).fit(
                learned
            )
            rows = {name: (site.X, site.y) for name in sites for site in [tested.engine.site(name).held_out()]}
            with pytest.raises(kf.errors.SchemaMismatch, match=told.format(*expected)):
                evaluate_rows(model, rows)
            with pytest.raises(TooFewReplies, match=told.format(*expected)):
                kf.evaluate(model, tested)


def test_labels_that_are_objects_are_of_the_type_they_hold(sites):
    X, y = sites["site-0"]
    words = np.array(["a", "b", "c", "d"], dtype=object)[y]
    assert (
        evaluate_rows(
            kf.KAHMClassifier(batch_size=1000, partition="kmeans", scale=None).fit(X, words), {"a": (X, words)}
        ).pooled.unknown
        == 0
    )
    assert (
        evaluate_rows(
            kf.KAHMClassifier(batch_size=1000, partition="kmeans", scale=None).fit(X, y > 1),
            {"a": (X, (y > 1).astype(float))},
        ).pooled.unknown
        == 0
    )


def test_labels_of_which_none_is_known_are_refused(sites):
    others = {name: (X, y + 10) for name, (X, y) in sites.items()}
    told = "knows none of the labels of the .* rows it is tested on; its classes are 0, 1, 2, 3; look at the column"
    with kf.Federation.local(sites) as federation:
        model = kf.FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None).fit(
            federation
        )
        with pytest.raises(ValueError, match=told):
            kf.evaluate(model, federation, holdout=others)
        one = kf.evaluate(model, federation, holdout={**sites, "site-1": others["site-1"]})
    assert one.sites["site-1"].accuracy == 0
    assert "site-1     60 row(s) have labels that the model does not know" in str(one)
    with kf.Federation.local(others, holdout=0.3) as federation, pytest.raises(ValueError, match=told):
        kf.evaluate(model, federation)


def test_policy_and_missing_sites(sites):
    policies = {name: Policy(tasks=("describe", "folding_fit", "scores", "machines")) for name in sites}
    with kf.Federation.local(sites, holdout=0.3, policies=policies) as federation:
        model = kf.FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None).fit(
            federation
        )
        refused = "allows describe, folding_fit, scores, machines, not 'test_model:outcomes'"
        with pytest.raises(TooFewReplies, match=refused):
            kf.evaluate(model, federation)
    with kf.Federation.local(sites, holdout=0.3) as federation:
        model = kf.FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None).fit(
            federation
        )
        federation.engine.faults["site-2"] = Fault("dead")
        found = kf.evaluate(model, federation, min_replies=1)
    assert set(found.sites) == {"site-0", "site-1"}
    assert "cannot be reached" in found.missing["site-2"]
    assert "site-2" in str(found)


def test_other_models_are_evaluated_too(sites):
    X = np.concatenate([rows for rows, _ in sites.values()])
    y = np.concatenate([labels for _, labels in sites.values()])
    model = kf.KAHMClassifier(batch_size=1000, partition="kmeans", scale=None).fit(X, y)
    with kf.Federation.local(sites, holdout=0.5) as federation:
        assert kf.evaluate(model, federation).accuracy > 0.9


def test_the_number_of_questions_does_not_grow_with_the_sites(sites):
    asked = {}
    for count in (1, 3):
        with kf.Federation.local(dict(list(sites.items())[:count]), holdout=0.3) as federation:
            model = kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
            before = {entry.task: entry.messages for entry in federation.traffic if entry.site == "site-0"}
            kf.evaluate(model, federation)
            after = {entry.task: entry.messages for entry in federation.traffic if entry.site == "site-0"}
            asked[count] = {task: after[task] - before.get(task, 0) for task in after}
    assert (
        asked[1]
        == asked[3]
        == {
            "describe": 0,
            "folding_fit": 0,
            "scores": 1,
            "held_out_queries": 1,
            "test_scores": 1,
        }
    )


def test_nobody_learns_the_probabilities_of_others_rows(sites):
    with kf.Federation.local(sites, holdout=0.3) as federation:
        model = kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        kf.evaluate(model, federation)
        sent = {entry.site: entry.bytes_down for entry in federation.traffic if entry.task == "test_scores"}
        for name, size in sent.items():
            own = 8 * len(federation.engine.site(name).held_out().ids) * len(model.classes_)
            assert own < size < own + 1000


def test_no_site_gives_its_queries(sites):
    policies = {name: Policy(tasks=("describe", "folding_fit", "scores")) for name in sites}
    with kf.Federation.local(sites, holdout=0.3, policies=policies) as federation:
        model = kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        found = kf.evaluate(model, federation, min_replies=0)
        assert not found.sites
        assert set(found.missing) == set(sites)


# Regression --------------------------------------------------------------------------------------------------------


@pytest.fixture
def valued(rng):
    """Sites whose y are numbers far from 0, which sums of squares would not survive."""
    slope = rng.standard_normal(5)
    rows = {f"site-{i}": rng.standard_normal((40 + 10 * i, 5)) for i in range(3)}
    return {
        name: (X, 1e6 * (1 + i) + X @ slope + 0.1 * rng.standard_normal(len(X)))
        for i, (name, X) in enumerate(rows.items())
    }


def naive_errors(truth, predicted):
    errors = [float(p) - float(t) for t, p in zip(truth, predicted, strict=True)]
    mean = sum(map(float, truth)) / len(truth)
    squared = sum(e * e for e in errors)
    return (
        squared / len(errors),
        sum(map(abs, errors)) / len(errors),
        1 - squared / sum((float(t) - mean) ** 2 for t in truth),
    )


def test_sums_of_sites_are_the_errors_of_the_pooled_rows(valued):
    with kf.Federation.local(valued, holdout=0.4, seed=3) as federation:
        model = kf.RidgeLearner("exact", task="regress", features="given", n_components=5).fit(federation)
        found = kf.evaluate(model, federation)
        kept = {name: federation.engine.site(name).held_out() for name in federation.sites}
        information = {entry.information for entry in federation.traffic if entry.task.startswith("test_")}
        given = kf.evaluate(model, federation, holdout={name: (rows.X, rows.y) for name, rows in kept.items()})
    X, y = (np.concatenate([getattr(rows, part) for rows in kept.values()]) for part in ("X", "y"))
    for sums, rows, truth in [(found.pooled, X, y), *((found.sites[n], kept[n].X, kept[n].y) for n in kept)]:
        expected = naive_errors(truth, model.predict(rows))
        np.testing.assert_allclose((sums.mean_squared_error, sums.mean_absolute_error, sums.r2), expected, rtol=1e-9)
        assert sums.rows == len(truth)
    assert given == found
    assert found.r2 == found.pooled.r2
    assert information == {"statistics"}
    json.dumps(found.to_json(), allow_nan=False)
    assert len(str(found).splitlines()) == 5


def test_sums_of_errors_of_nothing_and_of_constants(rng):
    nothing = error_sums(np.zeros(0), np.zeros(0))
    assert nothing + nothing == nothing
    assert np.isnan(nothing.r2)
    assert RegressionEvaluation({"a": nothing}).to_json()["pooled"] == {
        "rows": 0,
        "mean_squared_error": None,
        "mean_absolute_error": None,
        "r2": None,
    }
    same = error_sums(np.full(4, 7.0), np.full(4, 8.0))
    assert (same.mean_squared_error, same.mean_absolute_error) == (1.0, 1.0)
    assert np.isnan(same.r2)
    assert nothing + same == same + nothing == same
    truth, guess = rng.standard_normal(30), rng.standard_normal(30)
    parts = sum((error_sums(truth[i::3], guess[i::3]) for i in range(3)), nothing)
    np.testing.assert_allclose(parts.r2, error_sums(truth, guess).r2, rtol=1e-12)


def test_what_a_regressor_cannot_be_tested_on(valued, sites):
    with kf.Federation.local(valued, holdout=0.3) as federation:
        model = kf.RidgeLearner("exact", task="regress", features="given", n_components=5).fit(federation)
    words = {name: (X, np.array(["no", "yes"])[y % 2]) for name, (X, y) in sites.items()}
    with pytest.raises(ValueError, match="tested on numbers, y of site 'site-0'"):
        kf.evaluate(model, federation, holdout=words)
    with kf.Federation.local(words, holdout=0.3) as federation:
        assert "tested on numbers" in kf.evaluate(model, federation, min_replies=0).missing["site-0"]
    with kf.Federation.local(sites, holdout=0.3) as federation:
        classifier = kf.RidgeLearner("exact", features="given", n_components=5).fit(federation)
        replies = federation.ask("test_model", model_question(classifier, Errors()), min_replies=0)
        assert "that classifies has no errors" in replies.missing["site-0"].reason


@pytest.mark.parametrize(
    "lie",
    [
        {"rows": -1},
        {"rows": 2.0},
        {"squared": -1.0},
        {"spread": float("inf")},
        {"mean": float("nan")},
        {"mean": "much"},
        {"absolute": 2.0},
        {"squared": [1.0]},
    ],
)
def test_sums_that_cannot_be_are_refused(lie):
    sums = {"rows": 2, "squared": 1.0, "absolute": 1.0, "mean": 0.0, "spread": 1.0}
    Errors().check({name: np.asarray(value) for name, value in sums.items()})
    with pytest.raises(ValueError, match=r"must be|no 2 errors have"):
        Errors().check({name: np.asarray(value) for name, value in {**sums, **lie}.items()})
    with pytest.raises(ValueError, match="spread must be"):
        Errors().check({name: np.asarray(value) for name, value in sums.items() if name != "spread"})


def test_evaluation_prints_one_line_per_site():
    outcome = count_outcomes(np.array([0, 1]), np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]))
    lines = str(Evaluation(np.array([0, 1]), {"a": outcome, "b": outcome})).splitlines()
    assert lines[0].split() == ["site", "rows", "accuracy", "balanced", "AUC", "calibration", "error"]
    assert lines[-1].startswith("all sites")
    assert "66.67%" in lines[-1]


# Personalised models -----------------------------------------------------------------------------------------------


def opposed(rng, task):
    """Sites whose labels, or values, mean opposite things: the predictor of another site is wrong everywhere."""
    found = {}
    for number, name in enumerate("abcd"):
        X = rng.standard_normal((80, 4))
        values = X @ [3.0, -1.0, 0.0, 0.0] * (-1) ** number + 0.1 * rng.standard_normal(80)
        found[name] = (X, values if task == "regress" else np.where(values > 0, "yes", "no"))
    return found


@pytest.mark.parametrize("task", ["classify", "regress"])
def test_each_site_is_tested_by_its_own_predictor(rng, task):
    with kf.Federation.local(opposed(rng, task), holdout=0.3) as federation:
        model = kf.PersonalLearner().fit(federation)
        found = kf.evaluate(model, federation)
        kept = {name: federation.engine.site(name).held_out() for name in federation.sites}
        given = kf.evaluate(model, federation, holdout={name: (rows.X, rows.y) for name, rows in kept.items()})
        sent = {(e.site, e.information): e.messages for e in federation.traffic if e.task.startswith("test_")}
    assert not found.missing
    assert set(found.sites) == set("abcd")
    for name, rows in kept.items():
        own = model.for_site(name)
        if task == "classify":
            confusion, calibration = naive_counts(model.classes_, rows.y, own.predict_proba(rows.X))
            assert (found.sites[name].confusion == confusion).all()
            np.testing.assert_allclose(found.sites[name].calibration, calibration)
            assert (given.sites[name].confusion == confusion).all()
            assert found.sites[name].accuracy > 0.9
        else:
            sums = found.sites[name]
            expected = naive_errors(rows.y, own.predict(rows.X))
            np.testing.assert_allclose((sums.mean_squared_error, sums.mean_absolute_error, sums.r2), expected)
            assert sums.r2 > 0.9
            assert given == found
    assert sent == dict.fromkeys([(name, "counts" if task == "classify" else "statistics") for name in kept], 1)


@pytest.mark.parametrize("task", ["classify", "regress"])
def test_sites_without_a_predictor_are_reported(rng, task):
    data = opposed(rng, task)
    with kf.Federation.local({name: data[name] for name in "abc"}) as federation:
        federation.engine.faults["b"] = Fault("dead")
        with pytest.warns(kf.errors.MissingSites):
            model = kf.PersonalLearner(gains=False).fit(federation, min_replies=2)
    expected = {
        "b": "no model for site 'b'; it is missing: site 'b' cannot be reached",
        "d": "no model for site 'd'; there are 'a', 'c'",
    }
    with kf.Federation.local(data, holdout=0.3) as federation:
        found = kf.evaluate(model, federation)
        given = kf.evaluate(model, federation, holdout=data)
        assert {entry.site for entry in federation.traffic} == {"a", "c"}, "who has no predictor is not asked"
        federation.engine.faults["c"] = Fault("dead")
        with pytest.raises(TooFewReplies, match="needs 2 replies and got 1"):
            kf.evaluate(model, federation)
        fewer = kf.evaluate(model, federation, min_replies=1)
    for each in (found, given):
        assert dict(each.missing) == expected
        assert set(each.sites) == {"a", "c"}
        assert "missing: no model for site 'd'" in str(each)
    assert set(fewer.sites) == {"a"}
    assert "cannot be reached" in fewer.missing["c"]


@pytest.mark.parametrize("task", ["classify", "regress"])
def test_models_that_predict_for_nobody_here_are_refused(rng, task):
    data = opposed(rng, task)
    with kf.Federation.local({name: data[name] for name in "ab"}, holdout=0.3) as federation:
        model = kf.PersonalLearner().fit(federation)
        weights = kf.PersonalLearner("printed", model="none").fit(federation)
        for rows in (None, data):
            with pytest.raises(ValueError, match="this model has weights only; fit with model='ridge'"):
                kf.evaluate(weights, federation, holdout=rows)
            with pytest.raises(ValueError, match=r"expected a model that predicts|cannot be tested"):
                kf.evaluate("a model", federation, holdout=rows)
        with pytest.raises(ValueError, match="no model for site 'c'; there are 'a', 'b'; a personalised model"):
            kf.evaluate(model, federation, holdout={"c": data["c"]})
    with kf.Federation.local({"d": data["d"]}, holdout=0.3) as federation:
        with pytest.raises(ValueError, match="no model for site 'd'"):
            kf.evaluate(model, federation)
        assert not list(federation.traffic)


def test_a_regressor_has_no_classes(valued, sites):
    with kf.Federation.local(valued) as federation:
        ridge = kf.RidgeLearner("exact", task="regress", features="given", n_components=5).fit(federation)
        personal = kf.PersonalLearner(gains=False).fit(federation)
    X, y = valued["site-0"]
    assert all(
        map(
            is_regressor,
            [
                ridge,
                personal,
                personal.for_site("site-0"),
                kf.KAHMRegressor(batch_size=1000, partition="kmeans", scale=None).fit(X, y),
            ],
        )
    )
    with kf.Federation.local(sites) as federation:
        found = [
            learner.fit(federation)
            for learner in (
                kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None),
                kf.FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None),
                kf.RidgeLearner(n_components=5),
                kf.PersonalLearner(gains=False),
            )
        ]
    assert not any(
        map(
            is_regressor,
            [
                *found,
                found[-1].for_site("site-0"),
                kf.KAHMClassifier(batch_size=1000, partition="kmeans", scale=None).fit(*sites["site-0"]),
            ],
        )
    )


def test_a_site_counts_only_for_a_model_that_predicts(rng):
    data = opposed(rng, "classify")
    with kf.Federation.local(data, holdout=0.3) as federation:
        whole = model_question(kf.PersonalLearner(gains=False).fit(federation), Outcomes(2))
        assert set(federation.ask("test_model", whole, min_replies=0).missing) == set(data)


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.5, 3.0])
def test_probabilities_that_are_none_are_refused(value):
    """Weights of 1e300 in a file make NaN of every score, which used to end in an index out of bounds."""
    probabilities = np.array([[0.5, 0.5], [value, 0.5]])
    with pytest.raises(ValueError, match="probabilities must be between 0 and 1"):
        count_outcomes(np.array([0, 1]), np.array([0, 1]), probabilities)

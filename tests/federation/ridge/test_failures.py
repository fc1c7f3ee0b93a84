"""Federated ridge regression: sites that are lost, that refuse, that remember, and input that cannot be."""

import numpy as np
import pytest

from kernfed.errors import InputError, MissingSites, SchemaMismatch, TooFewReplies
from kernfed.federation import Fault, Federation, Payload, Policy
from kernfed.federation.ridge import METHOD, tasks
from kernfed.federation.ridge.learner import RidgeLearner
from kernfed.federation.ridge.tasks import discard_factors
from oracles.ridge_sites import SMALL, class_sites, fit, value_sites

RIDGE_TASKS = tuple(name for names in METHOD.tasks.values() for name in names)

# Lost sites ---------------------------------------------------------------------------------------------------------


class Losing:
    """A federation that loses a site at the n-th question of a task."""

    def __init__(self, data, site, task, number, kind="dead"):
        self.federation = Federation.local(data, seed=7)
        exchange, engine = self.federation.exchange, self.federation.engine
        asked = []

        def counting(asks, *args, **options):
            asked.extend(ask.task for ask in asks)
            if asked.count(task) == number:
                engine.faults[site] = Fault(kind)
            return exchange(asks, *args, **options)

        self.federation.exchange = counting


@pytest.mark.parametrize("kind", ["dead", "garbage"])
@pytest.mark.parametrize("method", ["conjugate", "newton"])
def test_a_site_lost_on_the_way_ends_training_with_the_last_complete_round(method, kind):
    options = {"rounds": 8, "regularization": 0.1}
    # in round 3: two rounds are complete, and apply is asked once before
    federation = Losing(class_sites(), "s2", "ridge_apply", 4, kind).federation
    with pytest.warns(MissingSites, match="1 site.s. missing, training ended after round 2: 's2'"):
        model = RidgeLearner(method, **{**SMALL, **options}).fit(federation)
    assert (model.stopped_, list(model.missing_)) == ("sites lost", ["s2"])
    expected = fit(method, class_sites(), **{**options, "rounds": 2})
    np.testing.assert_array_equal(model.weights_, expected.weights_)
    assert [entry.round for entry in model.history_] == [0, 1, 2]


@pytest.mark.parametrize("class_weight", [None, "balanced"])
@pytest.mark.parametrize(
    ("method", "task", "number"),
    [
        ("conjugate", "ridge_apply", 4),
        ("conjugate", "ridge_start", 1),
        ("newton", "ridge_solve", 2),
        ("exact", "ridge_moments", 1),
        ("dkrr", "ridge_start", 1),
        ("conjugate", "ridge_survey", 1),
    ],
)
def test_the_others_go_on_with_their_own_weights_where_that_is_allowed(method, task, number, class_weight):
    data = class_sites()
    options = {"rounds": 40, "regularization": 0.1, "class_weight": class_weight}
    federation = Losing(data, "s2", task, number).federation
    with pytest.warns(MissingSites, match="the model is that of the others"):
        model = RidgeLearner(method, **{**SMALL, **options}).fit(federation, min_replies=2)
    rest = {name: data[name] for name in ("s0", "s1")}
    expected = fit("exact" if method != "dkrr" else "dkrr", rest, **options)
    np.testing.assert_allclose(model.weights_, expected.weights_, atol=1e-9)
    assert list(model.missing_) == ["s2"]
    assert model.parameters.class_weights == expected.parameters.class_weights


@pytest.mark.parametrize(
    ("method", "task", "number"),
    [
        ("conjugate", "ridge_means", 1),
        ("conjugate", "ridge_apply", 4),
        ("exact", "ridge_moments", 1),
    ],
)
def test_the_intercept_is_that_of_the_sites_that_remain(method, task, number):
    data = value_sites()
    data = {name: (X + place, y + 100 * place) for place, (name, (X, y)) in enumerate(data.items())}
    options = {"task": "regress", "rounds": 40, "fit_intercept": True}
    federation = Losing(data, "s2", task, number).federation
    with pytest.warns(MissingSites, match="the model is that of the others"):
        model = RidgeLearner(method, **{**SMALL, **options}).fit(federation, min_replies=2)
    expected = fit("exact", {name: data[name] for name in ("s0", "s1")}, **options)
    np.testing.assert_allclose(model.weights_, expected.weights_, atol=1e-8 * np.abs(expected.weights_).max())
    np.testing.assert_allclose(model.intercept_, expected.intercept_, rtol=1e-8)


def test_a_class_that_leaves_with_its_site_is_not_predicted():
    data = class_sites()
    data = {site: (X[y != 2], y[y != 2]) if site != "s2" else (X, y) for site, (X, y) in data.items()}
    federation = Losing(data, "s2", "ridge_apply", 4).federation
    with pytest.warns(MissingSites):
        model = RidgeLearner("conjugate", **SMALL, rounds=40).fit(federation, min_replies=1)
    assert model.classes_.tolist() == [0, 1]
    expected = fit("exact", {name: data[name] for name in ("s0", "s1")})
    np.testing.assert_allclose(model.weights_, expected.weights_, atol=1e-8)


@pytest.mark.parametrize("rounds", [0, 3])
def test_a_site_lost_before_the_first_round_leaves_no_trace(rounds):
    federation = Losing(class_sites(), "s2", "ridge_apply", 1).federation
    with pytest.warns(MissingSites):
        model = RidgeLearner("conjugate", **SMALL, rounds=rounds).fit(federation, min_replies=2)
    rest = {name: data for name, data in class_sites().items() if name != "s2"}
    np.testing.assert_array_equal(model.weights_, fit("conjugate", rest, rounds=rounds).weights_)


@pytest.mark.parametrize(("task", "min_replies"), [("ridge_survey", None), ("ridge_start", None), ("ridge_start", 3)])
def test_without_a_complete_round_there_is_no_model(task, min_replies):
    federation = Losing(class_sites(), "s2", task, 1).federation
    with pytest.raises(TooFewReplies, match="needs 3 replies and got 2; 's2': site 's2' cannot be reached"):
        RidgeLearner("conjugate", **SMALL).fit(federation, min_replies=min_replies)


def test_a_site_lost_while_heterogeneity_is_measured_has_taken_part():
    federation = Losing(class_sites(), "s2", "ridge_dimension", 1).federation
    with pytest.warns(MissingSites, match="heterogeneity was not measured"):
        model = RidgeLearner("conjugate", **SMALL, diagnose=True, rounds=2).fit(federation)
    np.testing.assert_array_equal(model.weights_, fit("conjugate", class_sites(), rounds=2).weights_)
    assert not model.missing_


# Stores and policies ------------------------------------------------------------------------------------------------


def test_factors_are_kept_in_the_store_and_used_by_other_processes(tmp_path, monkeypatch):
    data = class_sites()
    with Federation.local(data, store=tmp_path) as federation:
        first = RidgeLearner("conjugate", **SMALL).fit(federation)
    kept = sorted(tmp_path.glob("*/ridge/*.safetensors"))
    assert len(kept) == 3
    monkeypatch.setattr(tasks, "fit_local", None)  # may not be called
    with Federation.local(data, store=tmp_path) as federation:
        again = RidgeLearner("conjugate", **SMALL).fit(federation)
        RidgeLearner("newton", **SMALL, rounds=0).fit(federation)
    np.testing.assert_array_equal(again.weights_, first.weights_)


def test_other_rows_other_parameters_and_damage_make_factors_anew(tmp_path):
    data = class_sites()

    def run(rows, **options):
        with Federation.local(rows, store=tmp_path) as federation:
            return RidgeLearner("conjugate", **{**SMALL, **options}).fit(federation).weights_

    first = run(data)
    other = run({**data, "s0": (data["s0"][0] + 1, data["s0"][1])})
    assert not np.allclose(first, other)
    for number in range(6):
        run(data, regularization=1.0 + number)
    assert len(list(tmp_path.glob("*s0/ridge/*.safetensors"))) == 4
    for place in tmp_path.glob("*/ridge/*.safetensors"):
        place.write_bytes(place.read_bytes()[:-9])
    np.testing.assert_array_equal(run(data), first)


def test_forgotten_rows_leave_the_factors():
    data = class_sites()
    with Federation.local(data, seed=7) as federation:
        learner = RidgeLearner("conjugate", **SMALL)
        learner.fit(federation)
        site = federation.engine.site("s0")
        site.forget_rows(np.arange(10))
        again = learner.fit(federation)
        expected = fit("conjugate", {**data, "s0": (data["s0"][0][10:], data["s0"][1][10:])})
        np.testing.assert_array_equal(again.weights_, expected.weights_)
        assert len(site.store.names("ridge")) == 1
        discard_factors(site)
        assert site.store.names("ridge") == []


def test_rows_forgotten_during_training_stop_the_site():
    data = class_sites()
    with Federation.local(data, seed=7) as federation:
        exchange = federation.exchange

        def forgetting(asks, *args, **options):
            if asks[0].task == "ridge_apply":
                federation.engine.site("s0").forget_rows(np.array([0]))
            return exchange(asks, *args, **options)

        federation.exchange = forgetting
        with pytest.warns(MissingSites, match="keeps nothing of this problem"):
            RidgeLearner("conjugate", **SMALL, rounds=3).fit(federation)


@pytest.mark.parametrize(
    ("task", "V", "values", "message"),
    [
        ("ridge_apply", np.zeros((29, 1)), {}, "V must have 30 rows"),
        ("ridge_apply", np.zeros(30), {}, "V must have 30 rows"),
        ("ridge_solve", np.full((30, 1), np.nan), {}, "V must be finite"),
        ("ridge_solve", np.zeros((30, 1)), {"regularization": 1.0}, "has regularization"),
        ("ridge_solve", np.zeros((30, 1)), {"handle": "0123"}, "keeps nothing of this problem"),
        ("ridge_start", np.zeros((30, 1)), {"parameters": {"width": 3}}, "parameters cannot be followed"),
        ("ridge_survey", np.zeros((30, 1)), {"task": "rank", "median": False}, "task must be one of"),
    ],
)
def test_questions_that_cannot_be_are_refused(task, V, values, message):
    with Federation.local(class_sites(), seed=7) as federation:
        RidgeLearner("conjugate", **SMALL, rounds=0).fit(federation)
        handle = federation.engine.site("s0").store.names("ridge")[0]
        question = Payload({"V": V}, {"handle": handle, "regularization": 1e-3, **values})
        refusal = federation.ask(task, question, sites=["s0"], min_replies=0).missing["s0"]
    assert message in refusal.reason


@pytest.mark.parametrize("left_out", RIDGE_TASKS[:4])
def test_a_policy_decides_which_statistics_leave(left_out):
    policy = Policy(tasks=tuple(name for name in RIDGE_TASKS if name != left_out))
    with Federation.local(class_sites(), policies={"s1": policy}) as federation:
        if left_out in ("ridge_survey", "ridge_start"):
            with pytest.raises(TooFewReplies, match="policy of site 's1' allows"):
                RidgeLearner("conjugate", **SMALL).fit(federation)
        else:
            with pytest.warns(MissingSites, match="policy of site 's1' allows"):
                assert RidgeLearner("conjugate", **SMALL).fit(federation).stopped_ == "sites lost"


def test_a_site_that_requires_privacy_takes_no_part():
    with Federation.local(
        class_sites(), policies={"s1": Policy(("*",), require_privacy=True, max_record_epsilon=50.0)}
    ) as federation:
        with pytest.raises(TooFewReplies, match="requires privacy"):
            RidgeLearner("conjugate", **SMALL).fit(federation)
        with pytest.warns(MissingSites):
            assert list(RidgeLearner("conjugate", **SMALL).fit(federation, min_replies=2).missing_) == ["s1"]


def test_a_site_without_rows_says_so():
    with Federation.local(class_sites()) as federation:
        site = federation.engine.site("s1")
        site.forget_rows(site.rows().ids)
        with pytest.raises(TooFewReplies, match="'s1' has no rows"):
            RidgeLearner("conjugate", **SMALL).fit(federation)


# Bad input ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "sgd"}, "method must be one of 'conjugate'"),
        ({"rounds": -1}, "rounds must be >= 0"),
        ({"rounds": 2.5}, "rounds must be an integer"),
        ({"n_components": 0}, "n_components must be >= 1"),
        ({"bandwidth": 0.0}, "bandwidth must be > 0"),
        ({"bandwidth": "mean"}, "bandwidth must be one of 'median'"),
        ({"bandwidth": [1.0, -1.0]}, "bandwidth must be > 0"),
        ({"regularization": -1e-3}, "regularization must be >= 0"),
        ({"task": "rank"}, "task must be one of"),
        ({"features": "rbf"}, "features must be one of"),
        ({"class_weight": "even"}, "class_weight must be one of 'balanced'"),
        ({"class_weight": {0: -1.0}}, r"class_weight\[0\] must be > 0"),
        ({"class_weight": 3}, "class_weight must be None, 'balanced' or"),
        ({"class_weight": "balanced", "task": "regress"}, "class_weight is for task='classify'"),
        ({"privacy": 1.0}, "privacy must be None"),
        ({"tolerance": -1}, "tolerance must be >= 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        RidgeLearner(**options).options()
    with Federation.local(class_sites()) as federation:
        with pytest.raises(InputError, match=message):
            RidgeLearner(**options).fit(federation)
        assert not list(federation.traffic)  # nothing was asked


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        ({"a": ([[0.0]], [1]), "b": ([[1.0]], [1])}, {}, ValueError, "at least 2 classes together"),
        ({"a": ([[0.0]], ["x"]), "b": ([[1.0]], ["y"])}, {"task": "regress"}, TooFewReplies, "y must be numbers"),
        ({"a": ([[0.0]], [0.5]), "b": ([[1.0]], [1.0])}, {}, TooFewReplies, "use task='regress'"),
        ({"a": ([[0.0]], [1]), "b": ([[1.0, 2.0]], [2])}, {}, SchemaMismatch, "width"),
        ({"a": ([[0.0]], [1]), "b": ([[1.0]], ["y"])}, {}, SchemaMismatch, "type of labels"),
        ({"a": ([[0.0]], [1]), "b": ([[1.0]], [2])}, {"class_weight": {1: 1.0}}, ValueError, "none for 2"),
        ({"a": ([[0.0]], [1]), "b": ([[1.0]], [2])}, {"bandwidth": [1.0, 2.0]}, TooFewReplies, "length 1"),
    ],
)
def test_data_that_cannot_be_learned_from_is_refused(data, options, error, message):
    with Federation.local(data) as federation, pytest.raises(error, match=message):
        RidgeLearner("conjugate", **{**SMALL, **options}).fit(federation)


@pytest.mark.parametrize("method", ["exact", "conjugate", "dkrr"])
def test_constant_columns_and_equal_rows_do_no_harm(method):
    data = {"a": (np.ones((5, 3)), [0, 1, 0, 1, 1]), "b": (np.zeros((2, 3)), [0, 0]), "c": (np.ones((1, 3)), [1])}
    model = fit(method, data, features="given")
    assert np.isfinite(model.weights_).all()
    assert model.predict(np.ones((1, 3))).tolist() == [1]

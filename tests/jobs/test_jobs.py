"""Jobs over a federation, whoever opens it: one answer for models that are whole and models whose sites answer."""

import numpy as np
import pytest

import kernfed as kf
from kernfed.errors import InputError
from kernfed.jobs import jobs
from oracles.federation import sites_data


@pytest.fixture
def data(rng):
    return sites_data(rng, ["a", "b", "c"])


@pytest.fixture
def queries(data):
    return np.concatenate([X[:5] for X, _ in data.values()])


def test_sites_answer_as_the_whole_model_does(data, queries):
    learner = kf.FoldingLearner(batch_size=8, partition="order", scale=None)
    with kf.Federation.local(data) as federation:
        at_sites = jobs.train(federation, learner).model
        whole = jobs.train(federation, learner.set_params(hold="machines")).model
        found = jobs.predict(jobs.connected(at_sites, federation), queries, min_replies=3)
    here = jobs.predict(whole, queries, min_replies=3)  # it asks nobody
    assert list(found.columns) == list(here.columns)
    for name, values in here.columns.items():
        np.testing.assert_array_equal(found.columns[name], values)
    assert found.to_json(explain=True, whole=True).keys() == {"counts", "predictions", "shares"}
    assert sum(found.to_json(explain=True)["shares"].values()) == pytest.approx(1.0)


def test_a_machine_gives_distances_and_states_no_coverage(data, queries):
    machine = kf.KAHM().fit(data["a"][0])
    predicted = jobs.predict(machine, queries)
    np.testing.assert_array_equal(predicted.columns["distance"], machine.distance(queries))
    assert predicted.to_json(whole=True).keys() == {"quartiles", "distances"}
    with pytest.raises(InputError, match="this KAHM states no coverage"):
        jobs.predict(machine, queries, coverage=0.9)


def test_training_with_a_test_calibrates_and_tells_figures(data):
    with kf.Federation.local(data, holdout=0.25) as federation:
        trained = jobs.train(federation, kf.FoldingLearner(batch_size=8), test=True)
        figures = jobs.figures(jobs.evaluate(trained.model, federation))
    assert {**figures, "calibrated": True} == dict(trained.tested)
    assert trained.to_json()["sites"] == ["a", "b", "c"]
    assert trained.to_json()["missing"] == {}


def test_a_whole_site_that_is_gone_is_forgotten_without_a_question(data):
    with kf.Federation.local(data) as federation:
        model = jobs.train(federation, kf.FoldingLearner(batch_size=8, partition="order", scale=None)).model
    with kf.Federation.local({name: data[name] for name in "ac"}) as others:
        changed = jobs.Change("forget", "b").apply(model, others)
        assert (len(others.traffic), list(changed.to_json()["missing"])) == (0, ["b"])
    assert changed.model.sites == ("a", "c")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (jobs.Change("forget", "z"), "'z' is no site of the model"),
        (jobs.Change("add-site", "a"), "'a' takes part already"),
    ],
)
def test_a_change_that_cannot_be_is_refused(data, change, match):
    with kf.Federation.local(data) as federation:
        model = jobs.train(federation, kf.FoldingLearner(batch_size=8, partition="order", scale=None)).model
    with pytest.raises(InputError, match=match):
        change.check(model)

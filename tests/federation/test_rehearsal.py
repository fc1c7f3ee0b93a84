"""Plans: the learner's program on made-up rows, right in size."""

import numpy as np
import pytest

import kernfed as kf
from kernfed.federation.planning import planned_traffic
from kernfed.site.fields import Given, make_learner


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 3
    X = rng.normal(size=(120, 4)) + labels[:, None]
    return {name: (X[part::2], labels[part::2]) for part, name in enumerate(("a", "b"))}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ridge", {"method": "exact", "components": 12, "bandwidth": "2.5"}),
        ("ridge", {"method": "newton", "components": 12, "rounds": 2}),
        ("ridge", {"method": "exact", "features-kind": "given", "task": "regress"}),
        ("personal", {"gains": "no"}),
        ("folding", {"batch-size": "100", "partition": "order", "scale": "none"}),
        ("folding", {}),
    ],
)
def test_a_rehearsal_counts_what_the_training_sends(rows, name, values):
    learner = make_learner(name, Given(values))
    planned = planned_traffic(learner, rows)
    with kf.Federation.local(rows) as federation:
        learner.fit(federation)
        real = federation.traffic
    for entry, sent in zip(planned.to_json(), real.to_json(), strict=True):
        for key in ("site", "task", "information", "messages", "scalars_up"):
            assert entry[key] == sent[key]
        assert entry["bytes_up"] == pytest.approx(sent["bytes_up"], abs=60)
        assert entry["bytes_down"] == pytest.approx(sent["bytes_down"], abs=60)


def test_what_sites_have_still_to_choose_is_about_as_large(rows):
    learner = make_learner("fusion", Given())
    planned = planned_traffic(learner, rows)
    with kf.Federation.local(rows) as federation:
        learner.fit(federation)
        real = federation.traffic
    assert [(e.site, e.task, e.messages) for e in planned] == [(e.site, e.task, e.messages) for e in real]
    assert planned.bytes_up == pytest.approx(real.bytes_up, rel=0.05)
    assert planned.bytes_down == pytest.approx(real.bytes_down, rel=0.05)


def test_queries_that_sites_score_are_planned(rows):
    learner = make_learner("folding", Given())
    planned = {(entry.site, entry.task): entry for entry in planned_traffic(learner, rows, queries=5)}
    assert {planned[site, "scores"].scalars_up for site in rows} == {5 * 3}


def test_rows_are_not_looked_at(rows):
    learner = make_learner("ridge", Given({"method": "exact", "components": 12, "bandwidth": "2.5"}))
    blank = {name: (np.full_like(X, np.nan), y) for name, (X, y) in rows.items()}
    assert planned_traffic(learner, blank).to_json() == planned_traffic(learner, rows).to_json()


def test_every_class_is_there_however_few_rows_are_made_up(rows, monkeypatch):
    monkeypatch.setattr("kernfed.federation.planning.REHEARSED", 1)
    # Given, not chosen: of so few rows other candidates are tried.
    given = {"method": "exact", "components": 12, "bandwidth": "2.5", "regularization": "0.1"}
    learner = make_learner("ridge", Given(given))
    whole = planned_traffic(learner, rows)
    with kf.Federation.local(rows) as federation:
        learner.fit(federation)
        assert [entry.scalars_up for entry in whole] == [entry.scalars_up for entry in federation.traffic]

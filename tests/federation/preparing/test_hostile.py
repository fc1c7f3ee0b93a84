"""A coordinator that writes preparations to read rows: what a site says follows from the plans, not from cells."""

import sys
import warnings

import numpy as np
import pytest

import kernfed as kf
from kernfed.base.fields import Field
from kernfed.data import raw_table
from kernfed.data.preparation_plans import Plan
from kernfed.errors import KernfedError
from kernfed.federation import Federation, Payload, Policy
from kernfed.privacy import ElementLaplace, RecordGaussian, RecordMoments, RecordRidge
from kernfed.site.release.books import charges

TINY, HUGE = 5e-324, sys.float_info.max
THRESHOLD = 10.0
FOLDING = {"measure": "rms", "rows_per_class": 6}
LEARNERS = {
    "moments": lambda: kf.FoldingLearner(privacy=RecordMoments(0.5, 1e-6, 2, radius=1.0), **FOLDING),
    "gaussian": lambda: kf.FoldingLearner(privacy=RecordGaussian(0.5, 1e-6, radius=1.0), **FOLDING),
    "laplace": lambda: kf.FoldingLearner(privacy=ElementLaplace(0.1, d=2.0, bounds=(-1.0, 1.0)), **FOLDING),
    "ridge": lambda: kf.RidgeLearner(
        "exact", features="given", task="classify", privacy=RecordRidge(0.5, 1e-6, 1.0, 1.0), regularization=0.1
    ),
}
NUMBER = {"name": "a", "kind": "number"}
LOGARITHM = {"curve": "log", "offset": THRESHOLD, "unit": TINY}
HOSTILE = {
    "above": {**NUMBER, "low": THRESHOLD, "high": HUGE, "center": THRESHOLD, "spread": TINY},
    "below": {**NUMBER, "low": -HUGE, "high": THRESHOLD, "center": THRESHOLD, "spread": TINY},
    "logarithm": {**NUMBER, "low": -HUGE, "high": HUGE, "center": 0.0, "spread": TINY, **LOGARITHM},
    "center": {**NUMBER, "low": -HUGE, "high": HUGE, "center": -HUGE, "spread": 1.0},
}
ALLOWED = {**NUMBER, "low": THRESHOLD, "high": 1e9, "center": THRESHOLD, "spread": 1.0}


def told(extreme, plan, learner):
    """All that a coordinator sees of a site: outcomes, sizes of replies, and the number of charges."""
    draws = np.random.default_rng(1)
    cells = draws.normal(0, 1, 40)
    cells[0] = extreme
    table = raw_table({"a": cells, "b": draws.normal(0, 1, 40)})
    y = np.array(["no", "yes"] * 20)
    policy = Policy(("*",), max_record_epsilon=50.0)
    other = {"name": "b", "kind": "number", "low": -3.0, "high": 3.0, "center": 0.0, "spread": 1.0}
    outcomes = []
    with Federation.local({"s": (table, y)}, policies={"s": policy}) as federation, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for plans in ([{**NUMBER, **other, "name": "a"}, other], [plan, other]):
            asked = Payload(values={"preparation": plans, "remarks": []})
            for ask in (lambda asked=asked: federation.ask("prepare", asked), lambda: learner().fit(federation)):
                try:
                    ask()
                    outcomes.append("answered")
                except KernfedError as error:
                    outcomes.append(str(error))
        sizes = [(entry.task, entry.information, entry.messages, entry.bytes_up) for entry in federation.traffic]
        site = federation.engine.site("s")
        with site.store.locked():
            return outcomes, sizes, charges(site)


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("way", HOSTILE)
def test_no_reply_and_no_charge_tells_what_is_beyond_a_threshold(way, learner):
    sides = [told(extreme, HOSTILE[way], LEARNERS[learner]) for extreme in (0.5, 1e6)]
    assert sides[0] == sides[1]
    assert sides[0][0][:2] == ["answered", "answered"]
    assert "the question cannot be followed" in sides[0][0][2]


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("way", HOSTILE)
def test_nor_would_it_if_a_plan_of_any_size_were_accepted(monkeypatch, way, learner):
    """Limits of settings are one guard, and cutting prepared values to a public bound the other."""
    monkeypatch.setattr(Plan, "check", lambda _: None)
    monkeypatch.setattr(Field, "check", lambda _, value, __: value)
    sides = [told(extreme, HOSTILE[way], LEARNERS[learner]) for extreme in (0.5, 1e6, 1e308)]
    assert sides[0] == sides[1] == sides[2]
    assert sides[0][0] == ["answered"] * 4


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_step_of_modest_size_is_charged_on_both_sides(learner):
    sides = [told(extreme, ALLOWED, LEARNERS[learner]) for extreme in (0.5, 1e6)]
    assert sides[0] == sides[1]
    assert sides[0][0] == ["answered"] * 4

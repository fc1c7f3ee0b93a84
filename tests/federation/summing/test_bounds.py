"""What a site replies in a masked sum does not depend on whether its entries fit the bounds that the asker wrote."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from kernfed.errors import LedgerNotKept, TooFewReplies
from kernfed.federation import Federation, FoldingLearner, Payload, RidgeLearner
from kernfed.federation.engines.local import question_for
from kernfed.federation.summing import released
from kernfed.kahm.model import FoldingModel
from kernfed.privacy import RecordMoments
from kernfed.secure.committee.fixed import Block, Layout
from kernfed.site.protocol.message import decode_question, decode_reply
from kernfed.site.protocol.task import methods, question_parts
from kernfed.testing.exchange import whole_question
from kernfed.testing.statistics import FACTORS, Coverage, Outcomes, Temperatures
from oracles.federation import sites_data

SITES = ("a", "b", "c")
#: Additive parts of tests, by their names in policies: functions of the number of classes.
STATISTICS = {
    "test_model:outcomes": Outcomes,
    "test_model:temperatures": lambda classes: Temperatures(classes, FACTORS),
    "test_model:coverage": Coverage,
}
BOUNDS = (5e-324, 1e-9, 0.5, 30.0, 1e15)


@pytest.fixture
def federation(rng):
    with Federation.local(sites_data(rng, SITES), holdout=0.4) as federation:
        yield federation


@pytest.fixture
def replies(federation, monkeypatch):
    """Task, site, size and refusal of every reply that a site sends."""
    seen, carry = [], federation.engine.deliver

    def deliver(question, sites, timeout, take):
        def kept(site, reply, *rest):
            known = decode_question(question_for(question, site))
            seen.append((known.task, site, len(reply), decode_reply(reply, known, site).refusal))
            take(site, reply, *rest)

        carry(question, sites, timeout, kept)

    monkeypatch.setattr(federation.engine, "deliver", deliver)
    return seen


def additive_question(name, federation):
    """A question of an additive task, and shapes of its answer."""
    if name == "ridge_sums":
        model = RidgeLearner("exact", n_components=8, bandwidth=2.0, regularization=0.1).fit(federation)
        question = Payload(values={"parameters": model.parameters.to_values()})
    else:
        machines = FoldingLearner("distance", batch_size=10, hold="machines", scale=None).fit(federation)
        question = whole_question(machines, federation, STATISTICS[name](len(machines.classes_)))
    answer = federation.engine.site("a").as_owner(name.partition(":")[0], question)
    return question, {array: values.shape for array, values in answer.arrays.items()}


def masked_kinds(replies):
    """Size and refusal of replies with masked vectors, each kind once; the list is emptied."""
    kinds = {(size, refusal) for task, _, size, refusal in replies if task in ("sum_masked", "folding_shares")}
    replies.clear()
    return kinds


def test_there_are_additive_tasks():
    declared = {name for method in methods() for names in method.tasks.values() for name in names}
    additive = {name for name, part in question_parts().items() if part.additive and name.partition(":")[0] in declared}
    assert additive == {*STATISTICS, "ridge_sums"}


@pytest.mark.parametrize("name", [*STATISTICS, "ridge_sums"])
def test_a_bound_below_or_above_a_sites_entries_gets_the_same_reply(federation, replies, name):
    question, shapes = additive_question(name, federation)
    replies.clear()
    kinds = set()
    for bound in BOUNDS:
        arrays = {array: (shape, bound) for array, shape in shapes.items()}
        total = federation.sum(name.partition(":")[0], question, arrays, committee="secure")
        assert total.sites == SITES
        assert all(np.abs(values).max(initial=0.0) <= 3 * bound + 2.0**-50 for values in total.arrays.values())
        kinds |= masked_kinds(replies)
    assert len(kinds) == 1
    assert kinds.pop()[1] is None


def test_the_sums_of_the_other_sites_are_unaffected(data):
    for factor in (1e-3, 1.0, 1e100, 1e300):  # squares of the last are infinite
        told = {**data, "s3": (data["s3"][0] * factor, data["s3"][1])}
        with Federation.local(told) as federation:
            total = federation.sum(
                "toy_gram", Payload(), {"gram": ((3, 3), 1e4), "rows": ((1,), 1e6)}, committee="secure"
            )
        others = sum(X.T @ X for site, (X, _) in told.items() if site != "s3")
        with np.errstate(over="ignore", invalid="ignore"):
            own = np.nan_to_num(told["s3"][0].T @ told["s3"][0], nan=0.0, posinf=1e4, neginf=-1e4)
        np.testing.assert_allclose(total.arrays["gram"], others + np.clip(own, -1e4, 1e4), atol=1e-8)
        assert total.arrays["rows"] == [60]


def test_a_model_that_overflows_on_some_rows_gets_the_same_reply(federation, replies):
    """Otherwise weights could be chosen that compare the values of a row with any limit.

    Such a row counts as any other: were all rows of its site left out with it, the total would tell the site.
    """
    settings = {"features": "given", "regularization": 0.1, "scale": None, "fit_intercept": False}
    model = RidgeLearner("exact", **settings).fit(federation)
    fits, fails = (hostile_question(model, size, federation) for size in (1.0, 1.7e308))
    site = federation.engine.site("a")
    shapes = {name: part.shape for name, part in site.as_owner("test_model", fits).arrays.items()}
    replies.clear()
    arrays = {name: (shape, 2.0**40) for name, shape in shapes.items()}
    totals = [federation.sum("test_model", question, arrays, committee="secure") for question in (fits, fails)]
    assert [total.arrays["outcomes.confusion"].sum() for total in totals] == [aside(federation)] * 2
    federation.sum(
        "test_model", fails, {"outcomes.confusion": ((7,), 1.0)}, committee="secure"
    )  # arrays that it does not have
    kinds = masked_kinds(replies)
    assert {refusal for _, refusal in kinds} == {None}
    assert len(kinds) == 2  # by the number of entries


def aside(federation):
    """Rows that all sites keep aside."""
    sites = [federation.engine.site(name) for name in SITES]
    return sum(len(site.held_out().y) for site in sites)


def test_a_row_without_scores_changes_a_sum_by_that_row_alone(rng):
    """It is in no set of classes, as strange as can be, and as likely of one class as of another."""
    model = FoldingLearner("distance", batch_size=10, hold="machines", scale=None)
    data = sites_data(rng, SITES)
    with Federation.local(data, holdout=0.4) as federation:
        machines = model.fit(federation)
        classes, site = len(machines.classes_), federation.engine.site("a")
        asked = [whole_question(machines, federation, statistic(classes)) for statistic in STATISTICS.values()]

        def answers():
            return {name: array for own in asked for name, array in site.as_owner("test_model", own).arrays.items()}

        before = answers()
        broken_row = site.held_out().X[0].copy()

        def scores(self, X, honest=FoldingModel.scores):
            if (broken_row == X).all(axis=1).any():
                raise FloatingPointError("a row that overflows")
            return honest(self, X)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(FoldingModel, "scores", scores)
            after = answers()
    for name in ("outcomes.confusion", "coverage.counts", "coverage.nearest"):
        moved = after[name] - before[name]
        assert (moved.sum(), np.abs(moved).sum() in (0, 2)) == (0, True)
    assert (after["coverage.counts"] != before["coverage.counts"]).any()
    assert after["temperatures.rows"] == before["temperatures.rows"]
    assert (after["temperatures.losses"] != before["temperatures.losses"]).any()


def test_labels_that_are_no_class_are_neither_named_nor_refused(federation, replies):
    """A refusal that names one tells all labels of a site, one question for each."""
    model = RidgeLearner("exact", n_components=8, bandwidth=2.0, regularization=0.1).fit(federation)
    classes = model.parameters.classes
    total = 0
    for known in (classes, classes[:1], (*classes, classes[-1] + 1)):
        parameters = replace(model.parameters, classes=known)
        size = 8 + len(known)
        arrays = {"products": ((size * (size + 1) // 2,), 1e6), "sums": ((size,), 1e6), "mass": ((1,), 1e6)}
        question = Payload(values={"parameters": parameters.to_values()})
        total = federation.sum("ridge_sums", question, arrays, committee="secure").arrays
        assert total["mass"] == [sum(len(federation.engine.site(name).rows().y) for name in SITES)]
    assert {refusal for _, refusal in masked_kinds(replies)} == {None}
    assert total["sums"][-1] == 0.0  # nobody has the class that was made up


@pytest.mark.parametrize(
    "hostile",
    [
        {"bandwidth": 1e-306},
        {"bandwidth": 5e-324},
        {"bandwidth": 1e300},
        {"class_weights": (1e308, 1.0)},
        {"class_weights": (5e-324, 1.0)},
        {"class_weights": (float("nan"), 1.0)},
        {"class_weights": (-1.0, 1.0)},
    ],
)
def test_a_ridge_problem_at_the_ends_of_numbers_is_refused_by_every_site(federation, replies, hostile):
    """A bandwidth by which the angles of large values overflow would tell which site has one."""
    model = RidgeLearner("exact", n_components=8, bandwidth=2.0, regularization=0.1).fit(federation)
    count = len(model.parameters.classes)
    if "class_weights" in hostile:
        hostile = {"class_weights": hostile["class_weights"] + (1.0,) * (count - 2)}
    question = Payload(values={"parameters": replace(model.parameters, **hostile).to_values()})
    size = 8 + count
    arrays = {"products": ((size * (size + 1) // 2,), 1e6), "sums": ((size,), 1e6), "mass": ((1,), 1e6)}
    replies.clear()
    with pytest.raises((TooFewReplies, ValueError)):
        federation.sum("ridge_sums", question, arrays, committee="secure")
    assert {refusal.code for _, refusal in masked_kinds(replies)} <= {"bad question"}


def hostile_question(model, size, federation):
    weights = np.zeros_like(model.weights_)
    weights[0, :2] = size, -size
    hostile = replace(model, weights_=weights, temperature_=1.0)
    return whole_question(hostile, federation, Outcomes(len(model.classes_)))


def test_a_bound_on_shares_of_noise_gets_the_same_reply(federation, replies, monkeypatch):
    """It would tell how many rows a site has, or how many of a class."""
    honest_layout, kinds = released.share_layout, set()
    mechanism = RecordMoments(20.0, 1e-5, 5, radius=8.0)
    for bound in (0.5, 2.0**33, None):

        def layout(shared, part, sites, bound=bound):
            blocks = honest_layout(shared, part, sites).blocks
            return Layout({name: Block(b.shape, bound or b.bound, 0, b.deviation) for name, b in blocks.items()})

        monkeypatch.setattr(released, "share_layout", layout)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LedgerNotKept)
            learner = FoldingLearner("distance", privacy=mechanism, sum="secure", rows_per_class=20, scale=None)
            learner.fit(federation)
        kinds |= masked_kinds(replies)
    assert {refusal for _, refusal in kinds} == {None}
    assert len(kinds) <= 2  # parts of a sum are of different sizes

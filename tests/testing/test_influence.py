"""Influence of sites on each other's answers: what is left out, who is named, and what liars cannot do about it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kernfed as kf
from contracts.engines import Tampering, read_message, with_payload
from kernfed.errors import InputError, NotConnected, TooFewReplies
from kernfed.federation import Federation, LocalEngine, Payload, Policy
from kernfed.federation.fusion.learner import recorded_learner
from kernfed.federation.ridge.pooling import ask_site_sums
from kernfed.testing.exchange import model_question
from kernfed.testing.influence import Losses, measure_influence

LIAR, PARTNER = "site-2", "site-5"
FOLDING: dict[str, Any] = {"batch_size": 50, "partition": "order", "scale": None}
RIDGE: dict[str, Any] = {"n_components": 60, "bandwidth": 1.5, "regularization": 1e-3}
Lie = Callable[[Payload], Payload]


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    """Digits over eight sites, each of which has all classes."""
    digits = kf.data.load_dataset("digits", scaling="unit")
    parts = np.array_split(np.random.default_rng(0).permutation(len(digits.y_train))[:960], 8)
    return {f"site-{place}": (digits.x_train[part], digits.y_train[part]) for place, part in enumerate(parts)}


def shifted(rows: dict[str, Any], *liars: str) -> dict[str, Any]:
    """The same rows with labels of the liars moved to the next class."""
    return {name: (X, (y + 1) % 10 if name in liars else y) for name, (X, y) in rows.items()}


def federation(rows: dict[str, Any], **options: Any) -> Federation:
    return Federation.local(rows, holdout=0.25, **options)


LEARNERS: dict[str, Callable[[], Any]] = {
    "folding": lambda: kf.FoldingLearner(**FOLDING),
    "machines": lambda: kf.FoldingLearner(hold="machines", **FOLDING),
    "ridge": lambda: kf.RidgeLearner(**RIDGE),
    "fusion": lambda: kf.FusionLearner(kf.FoldingLearner(**FOLDING), kf.RidgeLearner(**RIDGE), weight=1.0),
    "whole fusion": lambda: kf.FusionLearner(
        kf.FoldingLearner(**FOLDING), kf.RidgeLearner(**RIDGE), weight=1.0, hold="machines"
    ),
}


# Leaving out ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregate", ["min", "kth"])
def test_machines_without_a_site_are_those_of_the_others(rows: Any, aggregate: str) -> None:
    learner = kf.FoldingLearner(aggregate=aggregate, **FOLDING)
    model = replace(learner.fit(federation(rows)), calibrated_=0.3)
    queries = rows["site-0"][0][:30]
    likely = model.probabilities_without(queries, [(LIAR,), (LIAR, PARTNER)])
    np.testing.assert_array_equal(likely[0], model.predict_proba(queries))
    for number, left in enumerate([(LIAR,), (LIAR, PARTNER)], 1):
        others = federation({name: own for name, own in rows.items() if name not in left})
        alone = replace(learner.fit(others), calibrated_=0.3)
        np.testing.assert_allclose(likely[number], alone.predict_proba(queries), atol=1e-12)


@pytest.mark.parametrize(
    "settings",
    [{}, {"class_weight": "balanced"}, {"features": "given"}, {"fit_intercept": False}, {"aggregate": "median"}],
)
def test_a_head_without_a_site_is_that_of_the_others(rows: Any, settings: dict[str, Any]) -> None:
    data = federation(rows)
    head = kf.RidgeLearner(**{**RIDGE, **settings}).fit(data)
    if settings.get("class_weight"):  # weights of classes stay what they were
        weights = dict(zip(head.classes_.tolist(), head.parameters.class_weights, strict=True))
        learner = kf.RidgeLearner(**{**RIDGE, "class_weight": weights})
    else:
        learner = recorded_learner(head)
    without = ask_site_sums(data, head).without([LIAR])
    alone = learner.fit(data.only([name for name in data.sites if name != LIAR]))
    np.testing.assert_allclose(without.weights_, alone.weights_, rtol=1e-8, atol=1e-10)
    if head.intercept_ is not None:
        np.testing.assert_allclose(without.intercept_, alone.intercept_, atol=1e-10)


def test_a_fusion_without_a_site_is_that_of_the_others(rows: Any) -> None:
    data, queries = federation(rows), rows["site-0"][0][:30]
    model = LEARNERS["fusion"]().fit(data)
    heads = [ask_site_sums(data, model.ridge).without([LIAR])]
    likely = model.probabilities_without(queries, [(LIAR,), (PARTNER,)], heads)
    np.testing.assert_array_equal(likely[0], model.predict_proba(queries))
    kept = [name for name in data.sites if name != LIAR]
    machines = kf.FoldingLearner(**FOLDING).fit(data.only(kept))
    alone = replace(model, folding=machines, ridge=heads[0])
    np.testing.assert_allclose(likely[1], alone.predict_proba(queries), atol=1e-9)
    assert not np.array_equal(likely[2], likely[0])  # the machines of the partner, and the head of all


def test_sums_that_changed_since_are_noticed(rows: Any) -> None:
    head = kf.RidgeLearner(**RIDGE).fit(federation(rows))
    with pytest.raises(InputError, match="do not make this head"):
        ask_site_sums(federation(shifted(rows, LIAR)), head)


# Who is named -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(LEARNERS))
def test_a_site_of_false_labels_is_named_and_no_honest_one(rows: Any, kind: str) -> None:
    for liars in ((), (LIAR,)):
        data = federation(shifted(rows, *liars))
        model = LEARNERS[kind]().fit(data)
        tested = kf.evaluate(model, data, influence=True)
        assert tested.influence is not None
        assert tested.influence.named == liars
        assert tested.accuracy == kf.evaluate(model, data).accuracy
        assert tested.to_json()["influence"]["named"] == list(liars)
        worst = tested.influence.sites[0]
        assert (worst.sites == (LIAR,) and worst.z > 3) == bool(liars)


def test_machines_here_and_at_their_sites_have_the_same_influence(rows: Any) -> None:
    data = federation(shifted(rows, LIAR))
    at_sites, here = (LEARNERS[kind]().fit(data) for kind in ("folding", "machines"))
    one, other = (measure_influence(model, data) for model in (at_sites, here))
    for first, second in zip(one.sites, other.sites, strict=True):
        assert first.sites == second.sites
        assert first.z == pytest.approx(second.z, rel=1e-3)  # probabilities travel in single precision


def test_two_that_say_the_same_hide_each_other_and_are_found_together(rows: Any) -> None:
    """Both answer 0 for class 3, whatever the query: with either one left out the other still decides."""

    def stolen(payload: Payload) -> Payload:
        scores = payload.arrays["scores"].copy()
        scores[:, payload.values["classes"]["labels"].index(3)] = 0.0
        return Payload({**payload.arrays, "scores": scores}, payload.values)

    data = lying(rows, {"scores": stolen}, (LIAR, PARTNER))
    model = kf.FoldingLearner(**FOLDING).fit(data)
    influence = kf.evaluate(model, data, influence=True).influence
    assert influence is not None
    assert not any(own.named for own in influence.sites)
    assert influence.named == (LIAR, PARTNER)
    assert f"{LIAR} with {PARTNER}" in influence.words()
    assert influence.to_json()["together"][0]["sites"] == [LIAR, PARTNER]


def test_a_regressor_is_judged_by_its_errors(rows: Any) -> None:
    values = {name: (X, X @ np.linspace(-1, 1, X.shape[1])) for name, (X, y) in rows.items()}
    for liars in ((), (LIAR,)):
        told = {name: (X, -y if name in liars else y) for name, (X, y) in values.items()}
        data = federation(told)
        model = kf.RidgeLearner(task="regress", **RIDGE).fit(data)
        tested = kf.evaluate(model, data, influence=True)
        assert tested.influence is not None
        assert tested.influence.named == liars
        assert tested.to_json()["influence"]["sites"][0]["points"] is None


def test_rows_that_are_here_name_a_site_of_a_whole_model(rows: Any) -> None:
    digits = kf.data.load_dataset("digits", scaling="unit")
    aside = {f"tester-{place}": (digits.x_test[place::6], digits.y_test[place::6]) for place in range(6)}
    model = LEARNERS["whole fusion"]().fit(federation(shifted(rows, LIAR)))
    tested = kf.evaluate(model, federation(rows), aside, influence=True)
    assert tested.influence is not None
    assert tested.influence.named == (LIAR,)
    assert not tested.influence.head  # only sites can tell the sums without one of them
    with pytest.raises(InputError, match="only machines can be left out here"):
        kf.evaluate(kf.RidgeLearner(**RIDGE).fit(federation(rows)), federation(rows), aside, influence=True)


# Liars, refusals, privacy -----------------------------------------------------------------------------------------


def lying(rows: dict[str, Any], lies: dict[str, Lie], liars: tuple[str, ...]) -> Federation:
    """A federation in which ``liars`` change their answers to some tasks."""

    def change(site: str, reply: bytes) -> bytes:
        task = read_message(reply)[0]["task"]
        return with_payload(reply, lies[task]) if site in liars and task in lies else reply

    return Federation(Tampering(LocalEngine.from_data(rows, holdout=0.25), change))


def against(first: int) -> Lie:
    """All of a tester's rows would be right without the set number ``first``, and are wrong with it."""

    def lie(payload: Payload) -> Payload:
        arrays = {name: array.copy() for name, array in payload.arrays.items()}
        rows = arrays["influence.rows"]
        arrays["influence.gain"][first], arrays["influence.square"][first] = 2.0 * rows, 4.0 * rows
        return Payload(arrays, payload.values)

    return lie


@pytest.mark.parametrize("kind", ["folding", "ridge"])
def test_a_tester_that_lies_cannot_name_an_honest_site(rows: Any, kind: str) -> None:
    told = lying(rows, dict.fromkeys(("test_model", "test_scores"), against(0)), (LIAR,))
    influence = measure_influence(LEARNERS[kind]().fit(told), told)
    assert influence.named == ()


def test_a_site_that_is_silent_for_the_test_is_named_as_missing(rows: Any) -> None:
    data = federation(rows)
    model = kf.FoldingLearner(**FOLDING).fit(data)
    asked: list[str] = []

    def silent(site: str, reply: bytes) -> bytes | None:
        task = read_message(reply)[0]["task"]
        asked.append(task)
        return None if site == LIAR and task == "scores" else reply

    told = Federation(Tampering(data.engine, silent))
    with pytest.raises(TooFewReplies, match=LIAR):
        measure_influence(model.connect(told), told, min_replies=5)
    assert "scores" in asked


def test_two_heads_of_many_false_rows_are_found_together(rows: Any) -> None:
    """Each alone claims so much that leaving it out changes next to nothing: the other still decides."""
    X, y = rows[LIAR]
    false = (np.concatenate([X] * 60), np.concatenate([(y + 1) % 10] * 60))
    data = federation({**rows, LIAR: false, PARTNER: false})
    model = kf.RidgeLearner(**RIDGE).fit(data, max_share=1.0)
    influence = measure_influence(model, data)
    assert influence.named == (LIAR, PARTNER)


def test_a_class_that_only_a_liar_claims_does_not_save_it(rows: Any) -> None:
    """A liar with false labels invents a class of its own, beside, of twice its rows."""
    X, y = rows[LIAR]
    made_up = (np.concatenate([X, X + 9, X + 9]), np.concatenate([(y + 1) % 10, np.full(2 * len(y), 99)]))
    data = federation({**rows, LIAR: made_up})
    influence = measure_influence(kf.FoldingLearner(**FOLDING).fit(data), data)
    assert influence.named == (LIAR,)


def test_counts_that_one_site_does_not_tell_change_nothing_for_others(rows: Any) -> None:
    """Site 0 alone has class 8; without its ownership it could be named for that."""
    data = {name: own if name == "site-0" else (own[0][own[1] != 8], own[1][own[1] != 8]) for name, own in rows.items()}
    asked = federation(data)
    model = kf.FoldingLearner(**FOLDING).fit(asked)
    members = {name: replace(own, counts=()) if name == LIAR else own for name, own in model.members_.items()}
    complete, lacking = (measure_influence(own, asked) for own in (model, replace(model, members_=members)))
    least = [{own.sites: own.least for own in told.sites}[("site-0",)] for told in (complete, lacking)]
    assert least[1] >= 0.9 * least[0] > 0.01


def test_a_liar_does_not_choose_the_unit_of_errors(rows: Any) -> None:
    values = {name: (X, X @ np.linspace(-1, 1, X.shape[1])) for name, (X, y) in rows.items()}
    values[LIAR] = (values[LIAR][0], -values[LIAR][1])

    def huge(payload: Payload) -> Payload:
        false = {"errors.squared": np.asarray(1e9)} if "errors.squared" in payload.arrays else {}
        return Payload({**payload.arrays, **false}, payload.values)

    data = lying(values, {"test_model": huge}, (LIAR,))
    tested = kf.evaluate(kf.RidgeLearner(task="regress", **RIDGE).fit(data), data, influence=True)
    assert tested.influence is not None
    assert tested.influence.named == (LIAR,)


def test_rows_of_ones_own_are_queries_as_any_to_sites(rows: Any) -> None:
    digits = kf.data.load_dataset("digits", scaling="unit")
    data = federation(shifted(rows, LIAR))
    model = LEARNERS["folding"]().fit(data)
    tested = kf.evaluate(model, data, {"mine": (digits.x_test, digits.y_test)}, influence=True)
    assert tested.influence is not None
    assert tested.influence.named == (LIAR,)
    assert {entry.task for entry in data.traffic} <= {"describe", "folding_fit", "scores", "folding_choose"}


def score_question(scores: Any) -> Payload:
    """Probabilities (n, 1 + V, C) of rows that went out as queries."""
    values = {"classes": {"dtype": "<i8", "labels": list(range(scores.shape[2]))}}
    return Payload({"influence.scores": scores}, {**values, "statistics": {"influence": {"sets": scores.shape[1] - 1}}})


@pytest.mark.parametrize("shape", [(0, 2, 10), (30, 1, 10), (30, 2001, 10), (30, 2, 9)])
def test_scores_of_another_shape_are_refused(rows: Any, shape: tuple[int, ...]) -> None:
    data = federation({"site-0": rows["site-0"]})
    for dtype in (np.float32, np.uint8):
        replies = data.ask("test_scores", score_question(np.zeros(shape, dtype=dtype)), min_replies=0)
        assert {refusal.code for refusal in replies.missing.values()} == {"bad question"}


def test_limits_of_a_policy_hold_for_the_questions(rows: Any) -> None:
    small = federation(rows, policies=dict.fromkeys(rows, Policy(("*",), require_privacy=False, max_numbers=500)))
    question = score_question(np.zeros((30, 9, 10), dtype=np.float32))
    replies = small.ask("test_scores", question, min_replies=0)
    assert {refusal.code for refusal in replies.missing.values()} == {"limit"}


@pytest.mark.parametrize("kind", ["folding", "ridge"])
def test_sums_that_cannot_be_are_missing_by_name(rows: Any, kind: str) -> None:
    def absurd(payload: Payload) -> Payload:
        return Payload({**payload.arrays, "influence.gain": payload.arrays["influence.gain"] + 1e9}, payload.values)

    told = lying(rows, dict.fromkeys(("test_model", "test_scores"), absurd), (LIAR,))
    model = LEARNERS[kind]().fit(told)
    with pytest.raises(TooFewReplies, match=LIAR):
        measure_influence(model, told)


def test_what_cannot_be_had_is_said(rows: Any) -> None:
    data = federation(rows)
    ridge, folding = (LEARNERS[kind]().fit(data) for kind in ("ridge", "folding"))
    with pytest.raises(InputError, match="nobody sees a site's part"):
        kf.evaluate(ridge, data, sum="secure", influence=True)
    with pytest.raises(NotConnected, match="connect"):
        measure_influence(replace(folding, connection=None), data)
    for other in (kf.RidgeLearner(head="logistic", rounds=2, **RIDGE), kf.RidgeLearner("conjugate", **RIDGE)):
        with pytest.raises(InputError, match="squared head by method='exact'"):
            measure_influence(other.fit(data), data)
    with pytest.raises(InputError, match="PersonalModel"):
        measure_influence(kf.PersonalLearner("local", gains=False).fit(data), data)
    with pytest.raises(InputError, match="keeps rows aside"):
        measure_influence(kf.RidgeLearner(**RIDGE).fit(Federation.local(rows)), Federation.local(rows))
    with pytest.raises(InputError, match="liars"):
        kf.evaluate(ridge, data, influence=True, liars=-1)


def test_few_sites_are_told_that_nobody_can_be_named(rows: Any) -> None:
    data = federation({name: shifted(rows, LIAR)[name] for name in ("site-1", LIAR, "site-3")})
    influence = kf.evaluate(kf.FoldingLearner(**FOLDING).fit(data), data, influence=True).influence
    assert influence is not None
    assert influence.named == ()
    assert "obody can be named" in str(influence)


def test_sites_that_require_privacy_refuse(rows: Any) -> None:
    question = model_question(LEARNERS["ridge"]().fit(federation(rows)), Losses(10, (("a",),)))
    guarded = federation(rows, policies=dict.fromkeys(rows, Policy(("*",), max_record_epsilon=1.0)))
    for task in ("test_model", "test_scores"):
        replies = guarded.ask(task, question, min_replies=0)
        assert not len(replies)
        assert {refusal.code for refusal in replies.missing.values()} == {"policy"}


@pytest.mark.parametrize(
    "change",
    [
        {"sets": []},
        {"sets": "all"},
        {"sets": [["a", "b", "c"]]},
        {"sets": [[1]]},
        {"sets": [["a"]] * 3000},
    ],
)
def test_sets_that_cannot_be_followed_are_refused(rows: Any, change: dict[str, Any]) -> None:
    data = federation(rows)
    question = model_question(LEARNERS["ridge"]().fit(data), Losses(10, (("a",),)))
    values = {**question.values, "statistics": {"influence": {"sets": [["a"]], "scale": 1.0, **change}}}
    replies = data.ask("test_model", Payload(question.arrays, values), min_replies=0)
    assert {refusal.code for refusal in replies.missing.values()} == {"bad question"}


@pytest.mark.parametrize("shape", [(2, 60), (2, 61, 10), (2, 60, 9), (9, 60, 10)])
def test_heads_of_another_shape_are_refused(rows: Any, shape: tuple[int, ...]) -> None:
    data = federation(rows)
    question = model_question(LEARNERS["ridge"]().fit(data), Losses(10, (("a",), ("b",))))
    heads = {"influence.weights": np.zeros(shape), "influence.intercepts": np.zeros((shape[0], shape[-1]))}
    replies = data.ask("test_model", Payload({**question.arrays, **heads}, question.values), min_replies=0)
    assert {refusal.code for refusal in replies.missing.values()} == {"bad question"}

"""Programs: learners that run in step share exchanges, and a bundle is answered part by part."""

import numpy as np
import pytest

import kernfed as kf
from contracts.engines import Tampering
from kernfed.errors import MessageError, TooFewReplies
from kernfed.federation import Federation, Payload, Policy
from kernfed.federation.engines.local import LocalEngine
from kernfed.federation.program import Ask, together
from kernfed.site.journal import journal_place, read_journal
from kernfed.site.protocol.message import (
    MOST_PARTS,
    Question,
    decode_bundle,
    decode_reply,
    encode_bundle,
    encode_question,
)

OPEN = Policy(("*",))
CLOSED = Policy(("describe", "scores", "folding_fit"))


def rows(n=40, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    return rng.normal(size=(n, 3)) + y[:, None], y


@pytest.fixture
def data():
    return {"a": rows(), "b": rows(seed=1), "c": rows(seed=2)}


def describing(times, sites=None, min_replies=None):
    widths = []
    for _ in range(times):
        replies = yield Ask("describe", Payload(), sites, min_replies)
        widths.append(sorted(replies.payloads))
    return widths


def test_programs_in_step_make_as_many_exchanges_as_the_longest(data):
    with Federation.local(data) as federation:
        one, three, none = federation.run(together(describing(1), describing(3, ["b"]), describing(0)))
        assert (one, three, none) == ([["a", "b", "c"]], [["b"]] * 3, [])
        assert federation.traffic.exchanges == 3
        assert sum(entry.messages for entry in federation.traffic) == 3 + 3


def test_programs_may_be_put_together_twice(data):
    with Federation.local(data) as federation:
        (inner, alone) = federation.run(together(together(describing(1), describing(2)), describing(2)))
        assert inner == ([["a", "b", "c"]], [["a", "b", "c"]] * 2)
        assert alone == [["a", "b", "c"]] * 2
        assert federation.traffic.exchanges == 2


def test_what_too_few_sites_answer_is_raised_in_its_program_alone(data):
    def careful():
        try:
            yield Ask("held_out_queries", Payload())
        except TooFewReplies as error:
            return sorted(error.missing)
        return "answered"

    with Federation.local(data, policies=dict.fromkeys(data, CLOSED)) as federation:
        refused, described = federation.run(together(careful(), describing(1)))
        assert (refused, described) == (["a", "b", "c"], [["a", "b", "c"]])
        with pytest.raises(TooFewReplies, match="held_out_queries"):
            federation.run(together(describing(2), (ask for ask in [Ask("held_out_queries", Payload())])))


def test_each_part_of_a_bundle_is_judged_journalled_and_refused_by_itself(tmp_path, data):
    with Federation.local(data, policies=dict.fromkeys(data, CLOSED), store=tmp_path) as federation:
        asks = [
            Ask("describe", Payload()),
            Ask("held_out_queries", Payload(), None, 0),
            Ask("nonsense", Payload(), None, 0),
        ]
        described, refused, unknown = federation.exchange(asks)
        assert sorted(described.payloads) == ["a", "b", "c"]
        assert {refusal.code for refusal in refused.missing.values()} == {"policy"}
        assert {refusal.code for refusal in unknown.missing.values()} == {"unknown task"}
    lines = [line for line in read_journal(journal_place(tmp_path, "a")) if line["event"] == "asked"]
    assert [(line["task"], line["outcome"]) for line in lines] == [
        ("describe", "answered"),
        ("held_out_queries", "refused"),
        ("nonsense", "refused"),
    ]


def test_bytes_of_the_parts_are_those_that_were_carried(data):
    engine = Tampering(LocalEngine.from_data(data), lambda _, reply: reply)
    federation = Federation(engine)
    federation.exchange([Ask("describe", Payload()), Ask("describe", Payload(values={"more": 1}))])
    assert federation.traffic.bytes_down == 3 * len(engine.asked[0])


def hostile_bundles():
    question = encode_question(Question("run", "id", "describe", Payload()))
    bundle = encode_bundle([question, question])
    return {
        "nested": encode_bundle([bundle, question]),
        "cut": bundle[:-5],
        "too many": encode_bundle([question] * (MOST_PARTS + 1)),
        "empty": encode_bundle([]),
    }


@pytest.mark.parametrize("kind", hostile_bundles())
def test_a_hostile_bundle_is_refused_and_never_raises(kind, data):
    site = LocalEngine.from_data({"a": data["a"]}).site("a")
    asked = Question("run", "id", "describe", Payload())
    parts = decode_bundle(site.answer(hostile_bundles()[kind]), "the reply")
    refusals = [decode_reply(part, asked, "a").refusal for part in parts]
    assert refusals[0] is not None
    assert refusals[0].code == "bad question"


def test_a_reply_with_other_parts_than_were_asked_is_refused(data):
    def shorter(_, reply):
        parts = decode_bundle(reply, "the reply")
        return encode_bundle(parts[:-1])

    class Shorter(Tampering):
        def _edited(self, site, reply):
            return shorter(site, reply)

    federation = Federation(Shorter(LocalEngine.from_data(data), shorter))
    asks = [Ask("describe", Payload(), None, 0) for _ in range(3)]
    for outcome in federation.exchange(asks):
        assert {refusal.code for refusal in outcome.missing.values()} == {"bad reply"}


def test_a_bundle_holds_two_messages_at_least():
    with pytest.raises(MessageError, match="2 to"):
        decode_bundle(hostile_bundles()["empty"], "the reply")


# Fusion ---------------------------------------------------------------------------------------------------------------


def test_a_default_fusion_asks_seven_times(data):
    with Federation.local(data) as federation:
        model = kf.FusionLearner().fit(federation)
        assert model.exchanges_ == federation.traffic.exchanges == 7


@pytest.mark.filterwarnings("ignore::kernfed.errors.MissingSites")
def test_no_row_travels_where_there_is_no_head_to_weigh(data):
    policy = Policy(("describe", "folding_choose", "folding_fit", "scores", "fusion_sample", "fusion_losses"))
    with Federation.local(data, policies=dict.fromkeys(data, policy)) as federation:
        model = kf.FusionLearner().fit(federation)
        assert sorted(model.headless_) == ["a", "b", "c"]
        assert "rows" not in {entry.information for entry in federation.traffic}


@pytest.mark.filterwarnings("ignore::kernfed.errors.MissingSites")
def test_a_site_lost_after_its_sums_is_in_no_part(data):
    with Federation.local(data) as federation:
        exchange, engine = federation.exchange, federation.engine

        def losing(asks, *args, **options):
            if any(ask.task == "folding_fit" for ask in asks):
                engine.faults["c"] = kf.federation.Fault("dead")
            outcome = exchange(asks, *args, **options)
            engine.faults.pop("c", None)
            return outcome

        federation.exchange = losing
        model = kf.FusionLearner().fit(federation, min_replies=2)
        with Federation.local({"a": data["a"], "b": data["b"]}) as two:
            expected = kf.FusionLearner().fit(two)
        assert model.folding.sites == ("a", "b")
        np.testing.assert_array_equal(model.ridge.weights_, expected.ridge.weights_)
        assert model.predict(data["c"][0]).shape == (40,)

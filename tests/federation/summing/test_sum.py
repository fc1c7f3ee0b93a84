"""Sums over a federation: the same integers masked or not, and a defined end whatever goes wrong."""

import shutil
import threading
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

from federation.summing.conftest import ARRAYS
from kernfed.data.columns import raw_table
from kernfed.data.preparation import Preparation
from kernfed.data.preparation_plans import CategoryPlan
from kernfed.errors import InputError, PolicyError, TooFewReplies
from kernfed.federation import Fault, Federation, Payload, Policy, Site, SiteStore
from kernfed.federation.engines.local import LocalEngine, question_for
from kernfed.federation.summing.tasks import generation_of, helper_site, identity_at, preparation_of
from kernfed.secure import Committee
from kernfed.site.protocol.message import Question, decode_question, decode_reply, encode_question

BOTH = pytest.mark.parametrize("corrupt", [False, True])


def same(one, other):
    return all((one.integers[name] == other.integers[name]).all() for name in ARRAYS)


@BOTH
def test_masked_or_not_the_integers_are_the_same(data, corrupt):
    with Federation.local(data) as federation:
        clear = federation.sum("toy_gram", Payload(), ARRAYS)
        masked = federation.sum("toy_gram", Payload(), ARRAYS, committee=Committee(corrupt=corrupt))
        again = federation.sum(
            "toy_gram", Payload(values={"factor": 0.5}), ARRAYS, committee=Committee(corrupt=corrupt)
        )
        told = {entry.task: entry.information for entry in federation.traffic}
    assert same(clear, masked)
    np.testing.assert_allclose(masked.arrays["gram"], sum(X.T @ X for X, _ in data.values()), atol=1e-12)
    assert masked.arrays["rows"] == [60]
    assert (masked.sites, masked.masked, clear.masked) == (tuple(sorted(data)), True, False)
    assert again.exchanges == (3 if corrupt else 2)
    assert told["sum_masked"] == told["sum_answer"] == "masked"
    np.testing.assert_allclose(again.arrays["gram"], masked.arrays["gram"] / 2, atol=1e-12)


@BOTH
def test_sites_and_members_that_fail(data, corrupt):
    committee = Committee(("s1", "s2", "s3", "s4")[: 4 if corrupt else 3], corrupt)
    with Federation.local(data) as federation:
        federation.sum("toy_gram", Payload(), ARRAYS, committee=committee, sites=["s2", "s3", "s4"])
        engine: LocalEngine = federation.engine
        engine.faults = {"s0": Fault("dead"), "s1": Fault("garbage")}
        total = federation.sum("toy_gram", Payload(), ARRAYS, committee=committee, sites=["s2", "s3", "s4"])
        assert total.sites == ("s2", "s3", "s4")
        engine.faults["s2"] = Fault("dead")
        with pytest.raises(TooFewReplies, match="needs"):
            federation.sum("toy_gram", Payload(), ARRAYS, committee=committee, sites=["s3", "s4", "s0"], min_replies=2)


def test_members_without_noise_have_one_set_of_a_task(data):
    committee = Committee(("s0", "s1", "s2"))
    with Federation.local(data) as federation:
        federation.sum("toy_gram", Payload(), ARRAYS, committee=committee)
        with pytest.raises(TooFewReplies, match="the difference would tell of 1 of them"):
            federation.sum("toy_gram", Payload(), ARRAYS, committee=committee, sites=["s0", "s1", "s2", "s3"])
        federation.engine.site("s3").add_rows(np.ones((1, 3)), [1])
        with pytest.raises(TooFewReplies, match="rows have changed since at 1 site"):
            federation.sum("toy_gram", Payload(), ARRAYS, committee=committee)


def test_what_could_wrap_is_cut_where_it_is_masked_and_refused_by_name_where_it_is_seen(data):
    big = {**data, "s3": (data["s3"][0] * 1e3, data["s3"][1])}
    with Federation.local(big) as federation:
        masked = federation.sum("toy_gram", Payload(), ARRAYS, committee="secure")
        clear = federation.sum("toy_gram", Payload(), ARRAYS, min_replies=3)
    own = np.clip(big["s3"][0].T @ big["s3"][0], -1e4, 1e4)
    assert np.abs(own).max() == 1e4
    np.testing.assert_allclose(masked.arrays["gram"], clear.arrays["gram"] + own, atol=1e-8)
    assert (masked.sites, clear.sites) == (tuple(sorted(big)), ("s0", "s1", "s2", "s4"))
    assert "at most 10000 in size" in clear.missing["s3"].reason


def test_only_additive_tasks(data):
    with Federation.local(data) as federation:
        for name in ["toy_list", "describe", "nothing"]:
            with pytest.raises(InputError, match="no task whose answers can be added"):
                federation.sum(name, Payload(), ARRAYS)
        with pytest.raises(InputError, match="leave check out"):
            federation.sum("toy_gram", Payload(), ARRAYS, committee="secure", check=lambda *_: None)
        with pytest.raises(InputError, match="sum must be None"):
            federation.sum("toy_gram", Payload(), ARRAYS, committee="safe")


def test_helpers_serve_and_are_asked_nothing_else(data):
    helpers = [f"h{i}" for i in range(3)]
    everyone = {**data, **{name: helper_site(name, policy=Policy.open()) for name in helpers}}
    with Federation.local(everyone, helpers=helpers) as federation:
        total = federation.sum("toy_gram", Payload(), ARRAYS, committee="secure")
        assert federation.sites == total.sites == tuple(sorted(data))
        asked = {entry.site for entry in federation.traffic if entry.task == "sum_answer"}
    assert asked == set(helpers)


def test_too_few_for_a_committee(data):
    two = {site: data[site] for site in ["s0", "s1"]}
    with Federation.local(two) as federation, pytest.raises(InputError, match="a committee of 3 members"):
        federation.sum("toy_gram", Payload(), ARRAYS, committee="secure")


# Policies ----------------------------------------------------------------------------------------------------------

SUMS = ("sum_open", "sum_masked", "sum_sign", "sum_answer")


def pinned(tmp_path, data, **changes):
    """Policies of sites that know each other and answer the task masked only."""
    keys = {site: identity_at(_folder(tmp_path, site)).public for site in data}
    members = {site: keys[site] for site in ["s0", "s1", "s2"]}
    about = {"tasks": SUMS, "masked": ("toy_gram",), "committee": members, "roster": keys, **changes}
    return dict.fromkeys(data, Policy(**about))


def _folder(tmp_path, site):
    place = tmp_path / f"site-{site}"
    place.mkdir(exist_ok=True)
    return place


def test_a_task_that_is_answered_masked_only(data, tmp_path):
    policies = pinned(tmp_path, data)
    with Federation.local(data, store=tmp_path, policies=policies) as federation:
        total = federation.sum("toy_gram", Payload(), ARRAYS, committee=Committee(("s0", "s1", "s2")))
        assert total.arrays["rows"] == [60]
        with pytest.raises(TooFewReplies, match="allows"):
            federation.sum("toy_gram", Payload(), ARRAYS)
        with pytest.raises(TooFewReplies, match="member 's3' is not pinned here"):
            federation.sum("toy_gram", Payload(), ARRAYS, committee=Committee(("s0", "s1", "s3")))


def test_a_wrong_key(data, tmp_path):
    policies = pinned(tmp_path, data)
    (tmp_path / "site-s1" / "sum.key").write_bytes(bytes(range(32)))
    with (
        Federation.local(data, store=tmp_path, policies=policies) as federation,
        pytest.raises(TooFewReplies, match="'s1' has another key than the one that is pinned here"),
    ):
        federation.sum("toy_gram", Payload(), ARRAYS, committee=Committee(("s0", "s1", "s2")))


def test_a_set_smaller_than_the_policy_wants(data, tmp_path):
    policies = pinned(tmp_path, data, min_sum_sites=5)
    with (
        Federation.local(data, store=tmp_path, policies=policies) as federation,
        pytest.raises(TooFewReplies, match="over at least 5 sites"),
    ):
        federation.sum("toy_gram", Payload(), ARRAYS, committee=Committee(("s0", "s1", "s2")), min_replies=4)


def test_policies_that_cannot_be():
    with pytest.raises(PolicyError, match="masked needs committee and roster"):
        Policy(masked=("toy_gram",))
    with pytest.raises(PolicyError, match="64 hexadecimal digits"):
        Policy(committee={"a": "short"})
    with pytest.raises(PolicyError, match="3 members, or 4"):
        Policy(committee={"a": "0" * 64})
    with pytest.raises(PolicyError, match="two honest sites"):
        Policy(corrupt_sites=2)


def test_required_privacy_refuses_sums_without_noise(data):
    policy = Policy(tasks=("*",), max_record_epsilon=1.0)
    with (
        Federation.local(data, policies={"s2": policy}) as federation,
        pytest.raises(TooFewReplies, match="requires privacy"),
    ):
        federation.sum("toy_gram", Payload(), ARRAYS, committee="secure")


def test_the_same_run_is_sent_once(data, monkeypatch):
    """Whoever repeats the question of a run, under a new id, gets nothing more."""
    with Federation.local(data) as federation:
        asked = []
        carry = federation.engine.deliver

        def deliver(question, sites, timeout, take):
            asked.append(decode_question(question_for(question, sites[0])))
            carry(question, sites, timeout, take)

        monkeypatch.setattr(federation.engine, "deliver", deliver)
        federation.sum("toy_gram", Payload(), ARRAYS, committee="secure")
        before = next(question for question in asked if question.task == "sum_masked")
        again = Question("run", "another", before.task, before.payload)
        reply = decode_reply(federation.engine.site("s0").answer(encode_question(again)), again, "s0")
    assert reply.refusal is not None
    assert reply.refusal.code == "repeated run"


def test_few_answers_wait_at_a_time(data, monkeypatch):
    """The local engine lets a site compute once there is room for its answer."""
    many = {f"t{i:02}": data["s0"] for i in range(30)}
    with Federation.local(many) as federation:
        engine, waiting, most, lock = federation.engine, 0, 0, threading.Lock()
        answer = type(engine.site("t00")).answer

        def counted(site, question, caller=None):
            nonlocal waiting, most
            reply = answer(site, question, caller)
            with lock:
                waiting += 1
                most = max(most, waiting)
            return reply

        def take(*_):
            nonlocal waiting
            with lock:
                waiting -= 1

        monkeypatch.setattr(type(engine.site("t00")), "answer", counted)
        engine.deliver(encode_question(Question("run", "id", "describe", Payload())), sorted(many), 30.0, take)
    assert (waiting, most <= 4) == (0, True)


@pytest.fixture(scope="module")
def kills():
    """The kills of ``benchmarks/sum_kills.py``, which has 200 random runs."""
    spec = spec_from_file_location("sum_kills", Path(__file__).parents[3] / "benchmarks" / "sum_kills.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_random_kills_end_in_the_exact_sum_or_in_a_refusal(kills, tmp_path):
    ends = [kills.one_run(seed, tmp_path / str(seed)) for seed in range(3)]
    assert sum(killed for _, killed in ends) > 0
    assert {end for end, _ in ends} <= {"sum", "sum_open", "sum_masked", "sum_sign", "sum_answer"}


@pytest.mark.parametrize("task", ["sum_sign", "sum_answer"])
def test_a_member_killed_before_every_write_comes_back_to_the_same_answer(kills, data, tmp_path, task):
    engine = kills.KillingEngine(data, tmp_path)
    engine.asked_again = {"s1"}
    federation, exact = Federation(engine), sum(X.T @ X for X, _ in data.values())
    for write in range(1, 30):
        before, engine.kills = engine.killed, {task: {"s1": write}}
        total = federation.sum("killed_gram", Payload(), ARRAYS, committee=Committee(("s0", "s1", "s2", "s3"), True))
        np.testing.assert_allclose(total.arrays["gram"], exact, atol=1e-9)
        if engine.killed == before:
            break
    assert engine.killed >= 2


def test_a_site_with_a_new_key_is_asked_for_it_after_a_refusal(data):
    committee = Committee(("s0", "s1", "s2"))
    with Federation.local(data) as federation:
        federation.sum("toy_gram", Payload(), ARRAYS, committee=committee)
        (federation.engine.site("s4").store.path / "sum.key").unlink()
        with pytest.raises(TooFewReplies, match="another key for site 's4'"):
            federation.sum("toy_gram", Payload(), ARRAYS, committee=committee)
        assert not federation.sum_keys
        fresh = Committee(("s0", "s1", "s3"))
        with pytest.raises(TooFewReplies, match="rows have changed since at 1 site"):  # its generation is another, too
            federation.sum("toy_gram", Payload(), ARRAYS, committee=fresh)


def prepared_site(name, words, path):
    """A site with one column of words, which members know by a token and by the digest of its preparation."""
    return Site(name, raw_table({"name": words}), np.arange(len(words)) % 2, store=SiteStore(path))


def flag(word, why=""):
    return Preparation((CategoryPlan("name", why, values=(word,), other=False),))


def test_the_token_of_the_data_is_the_same_under_every_preparation_and_another_for_other_cells(tmp_path):
    """It compares no prepared rows, and whoever prepares the rows again hides no change of them."""
    site = prepared_site("s", ["ann", "bob"] * 10, tmp_path / "s")
    tokens, digests = set(), set()
    with site.store.locked():
        for word in ("ann", "zoe", "yan", "ann"):
            site.data.prepare(flag(word))
            tokens.add(generation_of(site))
            digests.add(preparation_of(site))
        assert (len(tokens), len(digests)) == (1, 3)
    (tmp_path / "t").mkdir()
    shutil.copy(tmp_path / "s" / "sum.key", tmp_path / "t")  # the same key: tokens differ by the cells alone
    other = prepared_site("s", ["ann", "bob"] * 9 + ["ann", "zoe"], tmp_path / "t")
    with other.store.locked():
        assert generation_of(other) not in tokens


def flag_federation(words):
    sites = {f"s{number}": (raw_table({"name": own}), np.arange(len(own)) % 2) for number, own in enumerate(words)}
    return Federation.local(sites)


@BOTH
def test_sites_that_are_prepared_in_several_ways_are_not_added_up(corrupt):
    """Were the others made zeros by a word that nobody has, the sum would be that of one site."""
    with flag_federation([["ann", "bob"] * 10] * 4) as federation:
        for name in federation.sites:
            word = "ann" if name == "s0" else "nobody"
            federation.ask("prepare", Payload(values={"preparation": flag(word).to_values()}), sites=[name])
        committee = Committee(("s0", "s1", "s2", "s3") if corrupt else ("s0", "s1", "s2"), corrupt)
        with pytest.raises(TooFewReplies, match="most have, and 's0' not; let all agree"):
            federation.sum("toy_flags", Payload(), {"count": ((1,), 100.0)}, committee=committee)
        federation.ask("prepare", Payload(values={"preparation": flag("ann").to_values()}))
        total = federation.sum("toy_flags", Payload(), {"count": ((1,), 100.0)}, committee=committee)
    assert total.arrays["count"].tolist() == [20.0]


def test_a_row_that_was_forgotten_is_not_hidden_by_another_preparation():
    with flag_federation([["ann", "bob"] * 10] * 4) as federation:
        committee = Committee(("s0", "s1", "s2"))
        ask = lambda: federation.sum("toy_flags", Payload(), {"count": ((1,), 100.0)}, committee=committee)  # noqa: E731
        federation.ask("prepare", Payload(values={"preparation": flag("ann").to_values()}))
        ask()
        federation.engine.site("s0").as_owner("forget_rows", Payload({"ids": np.array([0])}))
        federation.ask("prepare", Payload(values={"preparation": flag("ann", "another reason").to_values()}))
        with pytest.raises(TooFewReplies, match="rows have changed since at 1 site"):
            ask()

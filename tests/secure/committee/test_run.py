"""A masked sum is the exact sum over a named set, whoever vanishes; anything else ends in a refusal."""

import itertools
import shutil
from dataclasses import replace

import numpy as np
import pytest

from kernfed.errors import InputError, ProtocolError
from kernfed.secure.committee.contribution import contribute, digest_of
from kernfed.secure.committee.coordinator import MaskedTotal
from kernfed.secure.committee.keys import Identity
from kernfed.secure.committee.member import MaskSums, drop_one_time_keys
from kernfed.secure.committee.reports import Reports, signed_words


@pytest.mark.parametrize("corrupt", [False, True])
def test_sum_is_that_of_the_integers(make_cast, corrupt):
    cast = make_cast(corrupt)
    terms = cast.terms()
    np.testing.assert_array_equal(cast.run(terms), cast.exact(terms))


@pytest.mark.parametrize("corrupt", [False, True])
def test_sites_and_members_may_vanish(make_cast, corrupt):
    cast, needed = make_cast(corrupt), 3 if corrupt else 2
    sites = ["s0", "s2", "s5", "s4"]
    for members in itertools.combinations(cast.members, needed):
        terms = cast.terms(task="/".join(members))
        np.testing.assert_array_equal(cast.run(terms, sites, members), cast.exact(terms, sites))


def test_too_few_members_give_no_sum(make_cast):
    cast = make_cast(False)
    total = cast.gather(cast.terms())
    with pytest.raises(ProtocolError, match="2 members"):
        total.unmask(cast.answer(total, ["m1"]))
    four = make_cast(True)
    total = four.gather(four.terms())
    signed = four.sign(total, ["m1", "m2", "m3"])
    with pytest.raises(ProtocolError, match="told by 1 only"):
        total.unmask(four.answer(total, ["m1", "m2"], signed))


def test_two_signatures_are_no_quorum(make_cast):
    cast = make_cast(True)
    total = cast.gather(cast.terms())
    signed = cast.sign(total, ["m1", "m2"])
    with pytest.raises(InputError, match="3 members must have signed"):
        cast.answer(total, ["m1"], {**signed, "m3": signed["m1"], "stranger": signed["m2"]})


def test_a_set_that_is_too_small(make_cast):
    cast = make_cast(False)
    with pytest.raises(InputError, match="at least 3 sites"):
        cast.answer(cast.gather(cast.terms(), ["s0", "s1"]))
    noisy = {"noise": {"kind": "test"}, "adjacency": "one row replaced", "honest": 4, "corrupt_sites": 1}
    with pytest.raises(InputError, match="at least 5 sites"):
        cast.answer(cast.gather(cast.terms(**noisy), ["s0", "s1", "s2", "s3"]))


def test_a_second_set_for_the_same_run(make_cast):
    cast = make_cast(False)
    terms = cast.terms(noise={"kind": "test"}, adjacency="one row replaced", honest=3)
    whole = cast.gather(terms)
    cast.answer(whole)
    smaller = MaskedTotal(terms)
    for site in ["s0", "s1", "s2"]:
        smaller.add(site, cast.contribution(terms, site))
    with pytest.raises(InputError, match="another set already"):
        cast.answer(smaller)


@pytest.mark.parametrize("corrupt", [False, True])
def test_the_same_set_again_gives_the_same_bytes(make_cast, corrupt):
    cast = make_cast(corrupt)
    total = cast.gather(cast.terms())
    first, again = cast.answer(total), cast.answer(total)
    for name, answer in first.items():
        np.testing.assert_array_equal(answer.digests, again[name].digests)
        assert all((answer.sums[index] == again[name].sums[index]).all() for index in answer.sums)
    assert not list(cast.members["m1"].folder.glob("*.key")), "the key of an answered run is still there"


def test_messages_of_a_site(make_cast):
    cast = make_cast(False)
    terms, other = cast.terms(), cast.terms()
    total = MaskedTotal(terms)
    total.add("s0", cast.contribution(terms, "s0"))
    with pytest.raises(InputError, match="already"):
        total.add("s0", cast.contribution(terms, "s0"))
    with pytest.raises(InputError, match="not signed by it, or not for this run"):
        total.add("s1", cast.contribution(other, "s1"))
    with pytest.raises(InputError, match="not signed by it"):
        total.add("s2", cast.contribution(terms, "s1"))
    changed = cast.contribution(terms, "s3")
    changed = replace(changed, masked=changed.masked + np.uint64(1))
    with pytest.raises(InputError, match="not signed by it"):
        total.add("s3", changed)
    assert total.reports.sites == ("s0",)


def test_a_lying_member_stops_the_run(make_cast):
    cast = make_cast(True)
    total = cast.gather(cast.terms())
    told = cast.answer(total)
    index = next(iter(told["m1"].sums))
    told["m1"].digests[index, 0] ^= 1
    with pytest.raises(ProtocolError, match="one of them is wrong"):
        total.unmask(told)
    wrong = {**told["m2"].to_arrays()}
    name = next(name for name in wrong if name.startswith("sum"))
    wrong[name] = wrong[name] + 1
    with pytest.raises(InputError, match="does not have the digest"):
        MaskSums.from_arrays(total.terms, "m2", wrong)


def test_keys_that_are_not_pinned(make_cast):
    cast, others = make_cast(False), make_cast(False, sites=5)
    with pytest.raises(InputError, match="pinned"):
        cast.answer(others.gather(others.terms()))
    terms = others.terms()
    with pytest.raises(InputError, match="another key for site 's0'"):
        cast.contribution(terms, "s0")


def test_a_dropped_key_ends_the_run(make_cast):
    cast = make_cast(False)
    total = cast.gather(cast.terms())
    assert drop_one_time_keys(cast.members["m1"].folder) == 1
    with pytest.raises(InputError, match="no key for this run any more"):
        cast.answer(total)


# Differences -------------------------------------------------------------------------------------------------------


def test_without_noise_a_task_has_one_set(make_cast):
    cast = make_cast(False)
    cast.run(cast.terms())
    with pytest.raises(InputError, match="difference would tell of 1 of them"):
        cast.run(cast.terms(), ["s0", "s1", "s2", "s3", "s4"])
    cast.run(cast.terms(task="another"), ["s0", "s1", "s2", "s3", "s4"])
    cast.run(cast.terms())


def test_with_noise_another_set_is_another_release(make_cast):
    cast, noise = make_cast(False), {"noise": {"kind": "test"}, "adjacency": "one row replaced", "honest": 3}
    cast.run(cast.terms(**noise))
    cast.run(cast.terms(**noise), ["s0", "s1", "s2", "s3"])


def test_changed_rows_wait_for_enough_sites(make_cast):
    cast = make_cast(False)
    new = bytes([1]) * 16
    cast.run(cast.terms())
    with pytest.raises(InputError, match="changed since at 1 site"):
        cast.answer(cast.gather(cast.terms(), None, {"s1": new}))
    three = dict.fromkeys(["s0", "s1", "s2"], new)
    cast.answer(cast.gather(cast.terms(), None, three))
    with pytest.raises(InputError, match="changed since at 1 site"):
        cast.answer(cast.gather(cast.terms(), None, {**three, "s3": new}))


# A coordinator with one of four members ----------------------------------------------------------------------------


def honest_quorums(cast, total):
    """Signatures that a coordinator with m4's key can collect under a set, and why members refuse."""
    signed, refused = {"m4": cast.members["m4"].identity.sign(total.reports.signed)}, {}
    for name in ["m1", "m2", "m3"]:
        try:
            signed[name] = cast.members[name].sign(total.reports, total.boxes_for(name))
        except InputError as error:
            refused[name] = str(error)
    return signed, refused


def sums_had(cast, total):
    """Whether coordinator and m4 together come to the sum: m4's seeds and one honest answer suffice."""
    signed, _ = honest_quorums(cast, total)
    for name in ["m1", "m2", "m3"]:
        try:
            cast.members[name].answer(total.reports, total.boxes_for(name), signed)
        except InputError:
            continue
        return True
    return False


def test_two_sets_of_one_run_never_both_have_quorums(make_cast):
    cast = make_cast(True)
    terms = cast.terms(noise={"kind": "test"}, adjacency="one row replaced", honest=3)
    whole = cast.gather(terms)
    less = MaskedTotal(terms)
    for site in whole.reports.sites[1:]:
        less.add(site, cast.contribution(terms, site))
    # One honest member is shown the whole set, two the smaller one; m4 signs both.
    first = {"m4": cast.members["m4"].identity.sign(whole.reports.signed), **cast.sign(whole, ["m1"])}
    second = {"m4": cast.members["m4"].identity.sign(less.reports.signed), **cast.sign(less, ["m2", "m3"])}
    assert cast.members["m2"].answer(less.reports, less.boxes_for("m2"), second).sums
    for name in ["m1", "m2", "m3"]:
        with pytest.raises(InputError, match=r"3 members must have signed|another set already"):
            cast.members[name].answer(whole.reports, whole.boxes_for(name), first)
    assert not sums_had(cast, whole)


def test_several_runs_of_near_equal_questions(make_cast):
    cast = make_cast(True)
    assert sums_had(cast, cast.gather(cast.terms()))
    for changes in [{}, {"min_sites": 4}, {"corrupt_sites": 1, "honest": 2}]:
        assert not sums_had(cast, cast.gather(cast.terms(**changes), ["s0", "s1", "s2", "s3", "s4"]))


def test_two_runs_at_once_have_one_set(make_cast):
    cast = make_cast(True)
    whole, less = cast.gather(cast.terms()), cast.gather(cast.terms(), ["s0", "s1", "s2", "s3", "s4"])
    first, second = honest_quorums(cast, whole)[0], honest_quorums(cast, less)[0]
    assert len(first) == 4
    assert len(second) == 1


def test_invented_sites_are_nobody(make_cast):
    cast = make_cast(True, sites=6)
    known = dict(cast.sites)
    for i in range(3):
        cast.sites[f"z{i}"], cast.vectors[f"z{i}"] = Identity.make(), np.zeros(40)
    terms = cast.terms()
    assert len(terms.roster) == len(known) + 3
    assert not sums_had(cast, cast.gather(terms, ["s0", "z0", "z1", "z2"]))


def test_replayed_seeds_do_not_open(make_cast):
    cast = make_cast(False)
    old = cast.gather(cast.terms())
    new = cast.gather(cast.terms())
    with pytest.raises(InputError, match="not the one that it signed"):
        cast.members["m1"].answer(new.reports, old.boxes_for("m1"), {})
    mixed = Reports(new.terms, {**new.reports.by_site, "s0": old.reports.by_site["s0"]})
    with pytest.raises(InputError, match="not for this run"):
        cast.members["m2"].answer(mixed, new.boxes_for("m2"), {})


def test_a_member_restored_from_a_backup(make_cast, tmp_path):
    cast = make_cast(True)
    terms = cast.terms()
    whole = cast.gather(terms)
    backup = tmp_path / "backup"
    shutil.copytree(tmp_path / "castTrue640" / "m3", backup)
    assert sums_had(cast, whole)
    restored = cast.restored("m3", backup)
    less = MaskedTotal(terms)
    for site in whole.reports.sites[1:]:
        less.add(site, cast.contribution(terms, site))
    # It has forgotten the first set and signs another; the other honest members have not.
    signed = {
        "m3": restored.sign(less.reports, less.boxes_for("m3")),
        "m4": cast.members["m4"].identity.sign(less.reports.signed),
    }
    for name in ["m1", "m2"]:
        with pytest.raises(InputError, match="another set already"):
            cast.members[name].sign(less.reports, less.boxes_for(name))
    with pytest.raises(InputError, match="3 members must have signed"):
        restored.answer(less.reports, less.boxes_for("m3"), signed)


def test_three_of_four_pinned_members_are_no_committee(make_cast):
    """Without quorums one corrupt member and a coordinator that equivocates would get two sums."""
    cast = make_cast(True)
    whole = cast.terms()
    three = replace(whole, committee=whole.committee[:3], corrupt=False)
    total = cast.gather(three)
    for name in ["m1", "m2", "m3"]:
        with pytest.raises(InputError, match="all 4 members"):
            cast.members[name].answer(total.reports, total.boxes_for(name), {})


@pytest.mark.parametrize("corrupt", [False, True])
def test_a_site_whose_boxes_do_not_open_is_named_and_spoils_nothing(make_cast, corrupt):
    cast = make_cast(corrupt)
    terms, other = cast.terms(), cast.terms()
    total = MaskedTotal(terms)
    for site in ["s0", "s1", "s2"]:
        total.add(site, cast.contribution(terms, site))
    sent = contribute(other, "s3", terms.layout.encode({"x": cast.vectors["s3"]}), cast.sites["s3"])
    boxes = sent.boxes
    digests = tuple(digest_of(box) for box in boxes)
    words = signed_words(terms.id, "s3", digest_of(sent.masked), digests, sent.generation, sent.preparation)
    total.add("s3", replace(sent, signature=cast.sites["s3"].sign(words)))
    with pytest.raises(InputError, match="of site 's3', sealed seeds do not open"):
        cast.answer(total)
    without = cast.terms()
    np.testing.assert_array_equal(cast.run(without, ["s0", "s1", "s2"]), cast.exact(without, ["s0", "s1", "s2"]))

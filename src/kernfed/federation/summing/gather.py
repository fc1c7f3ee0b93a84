"""What asks for a masked sum: keys of the parties, their masked vectors, signatures, sums of the masks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernfed.base.checks import check_count
from kernfed.errors import InputError, KernfedError, TooFewReplies
from kernfed.federation.asking import Federation
from kernfed.federation.program import Ask, Program
from kernfed.federation.summing.tasks import TERMS, question_hash
from kernfed.secure.committee.contribution import Contribution
from kernfed.secure.committee.coordinator import MaskedTotal
from kernfed.secure.committee.fixed import Layout, Words, fit_layout
from kernfed.secure.committee.keys import SIGNATURE, OneTimeKey, check_key
from kernfed.secure.committee.member import MaskSums
from kernfed.secure.committee.reports import as_bytes
from kernfed.secure.committee.terms import ANSWERS, QUORUM, Committee, RunTerms, Seat, read_setting
from kernfed.site.protocol.message import Payload, Refusal
from kernfed.site.protocol.task import find_task
from kernfed.site.protocol.traffic import Replies, Total

#: Keys that a member is asked for at once; when they are used up it is asked again.
_AT_ONCE = 8


def seats_and_roster(
    federation: Federation, setting: Committee, sites: Sequence[str], needed: int
) -> Program[tuple[tuple[Seat, ...], dict[str, str], Mapping[str, Refusal], int]]:
    """Members with a key for one run each, keys of the sites that can be asked, who is missing, and exchanges made."""
    missing: dict[str, Refusal] = {}
    exchanges = 0
    candidates = list(setting.members or (*federation.helpers, *federation.sites))
    if len(candidates) < setting.size:
        raise InputError(
            f"a committee of {setting.size} members is needed, and there are {len(candidates)} sites and helpers; let "
            "others help (Federation.local(..., helpers=...))"
        )
    members: list[str] = []
    while len(members) < setting.size and candidates:
        wanted = setting.size - len(members)
        members, candidates = members + candidates[:wanted], candidates[wanted:]
        exchanges += yield from _ask_keys(federation, members, sites, missing)
        members = [member for member in members if _once(federation).get(member)]
    if len(members) < setting.size:
        raise TooFewReplies("sum_open", setting.size, Replies(dict.fromkeys(members, Payload()), missing))
    known = federation.sum_keys["identity"]
    roster = {site: known[site] for site in sites if site in known}
    if len(roster) < needed:
        raise TooFewReplies("sum_open", needed, Replies(dict.fromkeys(roster, Payload()), missing))
    seats = tuple(Seat(name, known[name], _once(federation)[name].pop(0)) for name in sorted(members))
    return seats, roster, {site: missing[site] for site in sites if site in missing}, exchanges


def _once(federation: Federation) -> dict[str, list[OneTimeKey]]:
    once: dict[str, list[OneTimeKey]] = federation.sum_keys.setdefault("once", {})
    return once


def _ask_keys(
    federation: Federation, members: Sequence[str], sites: Sequence[str], missing: dict[str, Refusal]
) -> Program[int]:
    """Ask for whatever keys are not at hand; who does not tell theirs is ``missing``. Returns how many exchanges."""
    identities, once = federation.sum_keys.setdefault("identity", {}), _once(federation)
    empty = [member for member in members if not once.get(member) and member not in missing]
    strangers = [site for site in sites if site not in identities and site not in missing]
    counts = {**dict.fromkeys(strangers, 0), **dict.fromkeys(empty, _AT_ONCE)}
    if not counts:
        return 0
    questions = {site: Payload(values={"count": count}) for site, count in counts.items()}
    replies = yield Ask("sum_open", questions, min_replies=0, check=_check_keys)
    for site, answer in replies:
        identities[site] = answer.values["key"]
        once.setdefault(site, []).extend(_keys_in(answer))
    missing.update(replies.missing)
    return 1


def _keys_in(answer: Payload) -> list[OneTimeKey]:
    return [OneTimeKey(public, signature) for public, signature in answer.values["once"]]


def _check_keys(site: str, answer: Payload) -> None:
    own: Any = check_key(answer.values["key"])
    for key in _keys_in(answer):
        key.check(own, site)


Check = Callable[[str, Payload], None] | None


@dataclass(frozen=True)
class Noise:
    """What of a sum is noise: its description as plain values, how neighbours differ, and t, who adds it."""

    about: Mapping[str, Any]
    adjacency: str
    honest: int


def gather_sum(
    federation: Federation,
    task: str,
    payload: Payload,
    arrays: Mapping[str, tuple[tuple[int, ...], float]],
    *,
    committee: Any,
    sites: Sequence[str],
    min_replies: int | None,
    check: Check,
) -> Program[Total]:
    """The sum of what an additive task answers; see ``Federation.sum``."""
    known = find_task(task)
    if known is None or not all(part.additive for part in known.asked(payload)):
        raise InputError(f"{task!r} is no task whose answers can be added; declare it with @task(..., additive=True)")
    setting, asked = read_setting(committee), sorted(set(sites))
    layout = fit_layout(arrays, max(1, len(asked)))
    if setting is None:
        return _gather_clear(task, payload, layout, asked, min_replies, check)
    if check is not None:
        raise InputError("nobody sees a masked answer, so that none can be checked; leave check out")
    return gather_masked(federation, "sum_masked", task, payload, layout, setting, asked, min_replies)


def _gather_clear(
    task: str, payload: Payload, layout: Layout, sites: Sequence[str], min_replies: int | None, check: Check
) -> Program[Total]:
    """The sum of answers that are seen, as the integers that masked ones are."""
    total: Words = np.zeros(layout.size, dtype=np.uint64)

    def take(site: str, answer: Payload) -> None:
        if check is not None:
            check(site, answer)
        layout.check_bounds(answer.arrays)
        np.add(total, layout.encode(answer.arrays), out=total)

    replies = yield Ask(task, payload, sites, min_replies, take, keep=False)
    return Total(layout.decode(total), layout.integers(total), tuple(replies.payloads), replies.missing, masked=False)


def gather_masked(
    federation: Federation,
    ask: str,
    task: str,
    payload: Payload,
    layout: Layout,
    setting: Committee,
    sites: Sequence[str],
    min_replies: int | None,
    noise: Noise | None = None,
    hear: Check = None,
) -> Program[Total]:
    """The sum of vectors that sites send masked to the question ``ask``, about ``task``.

    Without ``min_replies`` all sites must report. ``hear(site, answer)`` reads what a site says beside its vector.
    """
    needed = len(sites) if min_replies is None else check_count(min_replies, "min_replies")
    enough = needed if noise is None else max(needed, noise.honest + setting.corrupt_sites)
    seats, roster, missing, opened = yield from seats_and_roster(federation, setting, sites, enough)
    terms = RunTerms(
        task,
        question_hash(task, payload),
        roster,
        seats,
        setting.corrupt,
        needed,
        layout,
        0 if noise is None else noise.honest,
        setting.corrupt_sites,
        None if noise is None else noise.about,
        "" if noise is None else noise.adjacency,
    )
    total = MaskedTotal(terms)

    def take(site: str, answer: Payload) -> None:
        if hear is not None:
            hear(site, answer)
        total.add(site, Contribution.from_arrays(terms, answer.arrays))

    question = Payload({**payload.arrays, TERMS: as_bytes(terms.to_bytes())}, payload.values)
    try:
        replies = yield Ask(ask, question, sorted(roster), terms.needed, take, keep=False)
        vector = yield from _unmasked(total)
    except KernfedError:
        federation.sum_keys.clear()  # perhaps somebody has others now: they are asked for again
        raise
    return Total(
        layout.decode(vector),
        layout.integers(vector),
        total.reports.sites,
        {**missing, **replies.missing},
        True,
        terms.id,
        setting.exchanges + opened,
    )


def _unmasked(total: MaskedTotal) -> Program[Words]:
    """The sum without its masks, from the members: one exchange, or two where one of them may be corrupt."""
    terms, reports = total.terms, total.reports
    members = [seat.name for seat in terms.committee]
    told = {TERMS: as_bytes(terms.to_bytes()), **reports.to_arrays()}
    own = {member: {**told, "own": total.boxes_for(member)} for member in members}
    quorum: dict[str, Any] = {}
    if terms.corrupt:
        asked = {member: Payload(arrays) for member, arrays in own.items()}
        signed = yield Ask("sum_sign", asked, min_replies=QUORUM, check=_check_signature)
        quorum = {f"quorum.{member}": answer.arrays["signature"] for member, answer in signed}
    questions = {member: Payload({**arrays, **quorum}) for member, arrays in own.items()}
    needed = QUORUM if terms.corrupt else ANSWERS

    def check(member: str, answer: Payload) -> None:
        MaskSums.from_arrays(terms, member, answer.arrays)

    answers: Replies = yield Ask("sum_answer", questions, min_replies=needed, check=check)
    return total.unmask({member: MaskSums.from_arrays(terms, member, answer.arrays) for member, answer in answers})


def _check_signature(_: str, answer: Payload) -> None:
    if answer.arrays["signature"].shape != (SIGNATURE,):
        raise InputError("a signature was expected")

"""Keys for the sums to come: of every site the long-lived one, of members also keys for several runs, asked at once."""

from collections.abc import Mapping, Sequence
from typing import Any

from kernfed.errors import InputError, TooFewReplies
from kernfed.federation.asking import Federation
from kernfed.federation.program import Ask, Program
from kernfed.secure.committee.keys import OneTimeKey, check_key
from kernfed.secure.committee.setting import Committee
from kernfed.secure.committee.terms import Seat
from kernfed.site.protocol.message import Payload, Refusal
from kernfed.site.protocol.replies import Replies

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

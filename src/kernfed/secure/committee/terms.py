"""The terms of a run, and the committee that a caller asks for."""

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

from kernfed.base.checks import check_count
from kernfed.errors import InputError
from kernfed.secure.committee.fixed import Layout
from kernfed.secure.committee.keys import OneTimeKey, check_key

SECURE = "secure"


@dataclass(frozen=True)
class Committee:
    """A committee of members of a federation, sites or helpers without data.

    members : their names; without any, the first of all by name. corrupt : whether one member may be corrupt and work
    with the coordinator: then there are 4 members, they sign the set of sites, and a sum takes 3 exchanges; otherwise
    there are 3, who follow the protocol and may be curious, and it takes 2. corrupt_sites : c, how many sites may work
    with the coordinator. honest : t, how many honest sites together add the noise of one release; without it, all that
    must report but the corrupt ones.

    >>> Committee().size, Committee(corrupt=True).size
    (3, 4)
    """

    members: tuple[str, ...] = ()
    corrupt: bool = False
    corrupt_sites: int = 0
    honest: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.corrupt, bool):
            raise InputError(f"corrupt must be True or False, got {self.corrupt!r}; more than one is not supported")
        if not isinstance(self.members, tuple) or not all(isinstance(name, str) for name in self.members):
            raise InputError(f"members must be a tuple of names, got {self.members!r:.80}")
        if self.members and len(set(self.members)) != self.size:
            raise InputError(
                f"a committee has {self.size} different members where corrupt={self.corrupt}, got {len(self.members)}"
            )
        check_count(self.corrupt_sites, "corrupt_sites", at_least=0)
        if self.honest is not None:
            check_count(self.honest, "honest")

    @property
    def size(self) -> int:
        """How many members there are."""
        return MEMBERS[self.corrupt]

    @property
    def exchanges(self) -> int:
        """How many exchanges a sum takes, once the keys of the run are there."""
        return 3 if self.corrupt else 2


def read_setting(given: Any) -> Committee | None:
    """A committee from a learner's ``sum``: None (no masks), "secure", or a ``Committee``."""
    if given is None or isinstance(given, Committee):
        return given
    if given == SECURE:
        return Committee()
    raise InputError(f"sum must be None, {SECURE!r} or a kernfed.secure.Committee, got {given!r:.80}")


#: Members of a committee, by whether one of them may be corrupt and work with the coordinator.
MEMBERS = {False: 3, True: 4}
#: How many of four members sign a set: any two such quorums have two members in common, one of whom is honest.
QUORUM = 3
#: Members who must answer: any two hold all seeds between them.
ANSWERS = 2
#: Bytes of terms, at most: a roster of a hundred thousand sites.
_LONGEST = 20_000_000
_PURPOSE = b"kernfed masked sum 1\0"
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Seat:
    """A member of the committee: its name, its long-lived key, and its key for this run."""

    name: str
    key: str
    once: OneTimeKey

    def __post_init__(self) -> None:
        check_key(self.key, f"the key of member {self.name!r}")
        check_key(self.once.public, f"the key for one run of member {self.name!r}")
        self.once.check(self.key, self.name)


@dataclass(frozen=True)
class RunTerms:
    """What is summed, over whom, and what it takes to be told.

    task, question : the task, and the digest of what it is asked. roster : long-lived keys of the sites that may take
    part. committee : its members. corrupt : whether one member may be corrupt. honest : t, the number of honest sites
    whose shares of noise make up the noise of a release. corrupt_sites : c, the number of sites assumed to be corrupt.
    min_sites : the smallest set that is answered for. layout : the vector. noise : what of it is noise, as plain
    values, or None. adjacency : how neighbours differ that the noise makes alike. nonce : makes every run another one.
    """

    task: str
    question: str
    roster: Mapping[str, str]
    committee: tuple[Seat, ...]
    corrupt: bool
    min_sites: int
    layout: Layout
    honest: int = 0
    corrupt_sites: int = 0
    noise: Mapping[str, Any] | None = None
    adjacency: str = ""
    nonce: str = field(default_factory=lambda: secrets.token_hex(32))

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.question) or not _DIGEST.fullmatch(self.nonce):
            raise InputError("question and nonce of a run must be 64 hexadecimal digits")
        for site, key in self.roster.items():
            check_key(key, f"the key of site {site!r}")
        if len(set(self.roster.values())) != len(self.roster):
            raise InputError("every site of a roster must have a key of its own")
        self._check_committee()
        check_count(self.honest, "honest", at_least=0 if self.noise is None else 1)
        check_count(self.corrupt_sites, "corrupt_sites", at_least=0)
        check_count(self.min_sites, "min_sites", at_least=2)
        if (self.noise is None) == bool(self.adjacency):
            raise InputError("a run has noise and an adjacency, or neither")
        if self.needed > len(self.roster):
            raise InputError(f"a set of at least {self.needed} sites is needed, and the roster has {len(self.roster)}")
        self.layout.check_room(len(self.roster))

    def _check_committee(self) -> None:
        if not isinstance(self.corrupt, bool) or len(self.committee) != MEMBERS[self.corrupt]:
            raise InputError(
                f"a committee has 3 members, or 4 where one may be corrupt, got {len(self.committee)} for corrupt="
                f"{self.corrupt!r}; more corrupt members are not supported"
            )
        names = [seat.name for seat in self.committee]
        if names != sorted(set(names)) or len({seat.key for seat in self.committee}) != len(names):
            raise InputError("members must be in the order of their names, each with a key of its own")
        for seat in self.committee:
            if self.roster.get(seat.name, seat.key) != seat.key:
                raise InputError(f"member {seat.name!r} has another key than as a site")

    @property
    def needed(self) -> int:
        """The smallest set that is answered for: enough sites, and among them t honest ones with c corrupt."""
        return max(self.min_sites, self.honest + self.corrupt_sites)

    def place(self, member: str) -> int:
        """Which member of the committee this is; its place is the index of the streams it knows nothing of."""
        for place, seat in enumerate(self.committee):
            if seat.name == member:
                return place
        raise InputError(f"{member!r} is not a member of this committee")

    def held(self, member: str) -> tuple[int, ...]:
        """Indices of the streams whose seeds a member gets: all but its own."""
        own = self.place(member)
        return tuple(index for index in range(len(self.committee)) if index != own)

    def assigned(self, member: str) -> tuple[int, ...]:
        """Indices of which a member sends the sums; of the others that it holds it sends digests. Two send each."""
        count, own = len(self.committee), self.place(member)
        return tuple(index for index in self.held(member) if (own - index) % count in (1, 2))

    def to_bytes(self) -> bytes:
        """The terms as text, in one way only."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        values |= {
            "roster": dict(self.roster),
            "committee": [asdict(seat) for seat in self.committee],
            "layout": self.layout.to_values(),
            "noise": None if self.noise is None else dict(self.noise),
        }
        return json.dumps(values, sort_keys=True, allow_nan=False, separators=(",", ":")).encode()

    @cached_property
    def id(self) -> str:
        """The hash of all of it."""
        return hashlib.sha256(_PURPOSE + self.to_bytes()).hexdigest()

    @classmethod
    def from_bytes(cls, data: bytes) -> "RunTerms":
        """Terms from ``to_bytes``; anything else raises ``InputError``."""
        if len(data) > _LONGEST:
            raise InputError(f"the terms of a run must have at most {_LONGEST:,} bytes, got {len(data):,}")
        try:
            values = json.loads(data)
            seats = tuple(
                Seat(str(seat["name"]), seat["key"], OneTimeKey(**seat["once"])) for seat in values["committee"]
            )
            roster = {str(site): key for site, key in values["roster"].items()}
            about = {**values, "committee": seats, "roster": roster, "layout": Layout.from_values(values["layout"])}
            terms = cls(**about)
            same = terms.to_bytes() == data
        except json.JSONDecodeError as error:
            raise InputError(
                f"the terms of a run must be JSON, as to_bytes writes it; at character {error.pos}: {error.msg}"
            ) from None
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError, OverflowError) as error:
            raise InputError(f"the terms of a run cannot be followed: {str(error)[:300]}") from None
        if not same:
            raise InputError("the terms of a run must be written in the one way that has their hash")
        return terms

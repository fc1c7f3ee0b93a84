"""A member of the committee: it signs one set per run, answers for one, and remembers both before it replies.

What it remembers is on disk before anything leaves, in this order: the set of the run, the answer, and then the key for
the run is deleted. Killed in between, it gives the same bytes to the same question, and nothing to another.

Without noise the difference of two sums tells of those who are in one of them only. So a member remembers every set
that it stood for in a task, with what stands for each site's data, and stands for no other: the same sites, whose data
are as they were, or have changed at ``min_sites`` of them at least.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kernfed.errors import InputError
from kernfed.files import Record, sync_folder
from kernfed.secure.committee.contribution import box_size, digest_of
from kernfed.secure.committee.fixed import Words
from kernfed.secure.committee.keys import (
    SEED,
    Identity,
    OneTimeKey,
    about,
    add_stream,
    is_signed,
    make_one_time,
    open_box,
    write_secret,
)
from kernfed.secure.committee.reports import DIGEST, Bytes, Reports
from kernfed.secure.committee.terms import QUORUM, RunTerms

#: Where a member keeps what it stood for, its last answers, and the sets of tasks without noise.
RUNS, ANSWERS, SETS = "sum-runs", "sum-answers", "sum-sets"
#: Answers that are kept for whoever asks again, and keys for one run that nobody has used.
_KEPT_ANSWERS, _KEPT_KEYS = 3, 64


class Memory(Protocol):
    """Records that are whole or absent, and on disk when ``write`` returns; a site's store is one."""

    def read(self, *names: str) -> Record | None:
        """The record of these names, or None."""

    def write(self, record: Record, *names: str) -> None:
        """Put a record under these names."""

    def delete(self, *names: str) -> None:
        """Remove a record, if there is one."""

    def newest(self, *folder: str) -> list[str]:
        """Names in a folder, those written last first."""


@dataclass(frozen=True)
class Pins:
    """Whom a party knows: keys of members and of sites by name, where None takes whatever the terms say.

    min_sites, corrupt_sites : the smallest set it takes part in, and how many corrupt sites must be provided for.
    """

    committee: Mapping[str, str] | None = None
    roster: Mapping[str, str] | None = None
    min_sites: int = 2
    corrupt_sites: int = 0

    def check(self, terms: RunTerms) -> None:
        """Refuse terms with members or sites that are not pinned, or that ask for less than is demanded here."""
        if self.committee is not None:
            _check_pinned({seat.name: seat.key for seat in terms.committee}, self.committee, "member")
            if len(terms.committee) != len(self.committee):  # three of four would let one corrupt member do harm
                raise InputError(f"the committee must be all {len(self.committee)} members that are pinned here")
        if self.roster is not None:
            _check_pinned(terms.roster, self.roster, "site")
        if terms.needed < self.min_sites or terms.corrupt_sites < self.corrupt_sites:
            raise InputError(
                f"sums are over at least {self.min_sites} sites with {self.corrupt_sites} assumed corrupt here, this "
                f"run has {terms.needed} and {terms.corrupt_sites}"
            )


def _check_pinned(given: Mapping[str, str], pinned: Mapping[str, str], what: str) -> None:
    for name, key in given.items():
        if pinned.get(name) != key:
            known = "is not pinned here" if name not in pinned else "has another key than the one that is pinned here"
            raise InputError(f"{what} {name!r} {known}")


@dataclass(frozen=True, eq=False)
class MaskSums:
    """A member's answer: digests (m, 32) of the sums of all streams it holds, and those sums that it was assigned.

    The digest of the stream that it does not hold is zeros.
    """

    digests: Bytes
    sums: Mapping[int, Words] = field(default_factory=dict)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays for a message and for the store."""
        return {"digests": self.digests, **{f"sum{index}": part.view(np.int64) for index, part in self.sums.items()}}

    @classmethod
    def from_arrays(cls, terms: RunTerms, member: str, arrays: Mapping[str, npt.NDArray[Any]]) -> "MaskSums":
        """Answer from ``to_arrays``, whose sums have the digests that it tells."""
        expected = {f"sum{index}": index for index in terms.assigned(member)}
        if set(arrays) != {"digests", *expected} or arrays["digests"].shape != (len(terms.committee), DIGEST):
            raise InputError(f"expected digests and {', '.join(expected)}, got {', '.join(sorted(arrays))}")
        sums = {}
        for name, index in expected.items():
            part = arrays[name]
            if part.shape != (terms.layout.size,) or part.dtype != np.int64:
                raise InputError(f"{name} must hold {terms.layout.size} words, got {part.shape} of {part.dtype}")
            if digest_of(part) != arrays["digests"][index].tobytes():
                raise InputError(f"{name} does not have the digest that is told of it")
            sums[index] = part.view(np.uint64)
        return cls(arrays["digests"], sums)


@dataclass(frozen=True)
class Member:
    """A member by name, with its long-lived key, its memory, the folder of its keys for one run, and whom it knows."""

    name: str
    identity: Identity
    memory: Memory
    folder: Path
    pins: Pins = Pins()

    def open(self, count: int) -> list[OneTimeKey]:
        """So many new keys, each for one run; the oldest that nobody has used are deleted."""
        made = []
        for _ in range(count):
            private, key = make_one_time(self.identity)
            write_secret(self._key_file(key.public), private)
            made.append(key)
        by_age = sorted(self.folder.glob("*.key"), key=lambda place: place.stat().st_mtime_ns)
        for old in by_age[: max(0, len(by_age) - _KEPT_KEYS)]:
            _delete(old)
        return made

    def sign(self, reports: Reports, boxes: Bytes) -> bytes:
        """Signature of a set: one set per run, and without noise one per task. All ``boxes`` must open."""
        self._check(reports)
        if self.memory.read(RUNS, reports.terms.id) is None:
            self._opened(reports, boxes)
        self._stand_for(reports)
        return self.identity.sign(reports.signed)

    def answer(self, reports: Reports, boxes: Bytes, quorum: Mapping[str, bytes]) -> MaskSums:
        """Sums of the streams over a set, from the members' boxes (n, bytes) in the order of its sites; once per run.

        Where a member may be corrupt a ``quorum`` of signatures, by member, must stand under the set.
        """
        terms = reports.terms
        if terms.corrupt:
            check_quorum(reports, quorum)
        self._check(reports)
        kept = self.memory.read(ANSWERS, terms.id)
        seeds = self._opened(reports, boxes) if kept is None else []
        self._stand_for(reports)
        if kept is None:
            sums = self._sums(terms, seeds)
            self.memory.write(Record(sums.to_arrays()), ANSWERS, terms.id)
            for old in self.memory.newest(ANSWERS)[_KEPT_ANSWERS:]:
                self.memory.delete(ANSWERS, old)
        else:
            sums = MaskSums.from_arrays(terms, self.name, kept.arrays)
        _delete(self._key_file(self._own_key(terms)))
        return sums

    def _check(self, reports: Reports) -> None:
        """Refuse a set with parties that are not known here, or that is no set of this run."""
        terms = reports.terms
        self.pins.check(terms)
        own = self.pins.committee is None or self.pins.committee.get(self.name) == self.identity.public
        if not own or terms.committee[terms.place(self.name)].key != self.identity.public:
            raise InputError(f"the committee has another key for member {self.name!r} than its own")
        reports.check()

    def _stand_for(self, reports: Reports) -> None:
        """Remember that this set is the one of its run, and of its task without noise; any other is refused."""
        terms = reports.terms
        known = self.memory.read(RUNS, terms.id)
        if known is not None:
            if known.values["set"] != reports.digest:
                raise InputError("this run has another set already; a run is answered for one set only")
            return
        if terms.noise is None:
            self._remember_task(reports)
        self.memory.write(Record({}, {"set": reports.digest, "task": terms.task}), RUNS, terms.id)

    def _remember_task(self, reports: Reports) -> None:
        """Keep the set of a task without noise, or refuse one whose difference from an earlier one tells too much."""
        name = hashlib.sha256(reports.terms.task.encode()).hexdigest()
        kept = self.memory.read(SETS, name)
        earlier = [] if kept is None else list(kept.values["sets"])
        now = {site: report.generation.hex() for site, report in reports.by_site.items()}
        for before in earlier:
            check_difference(before, now, max(reports.terms.needed, self.pins.min_sites), reports.terms.task)
        if now not in earlier:
            self.memory.write(Record({}, {"task": reports.terms.task, "sets": [*earlier, now]}), SETS, name)

    def _opened(self, reports: Reports, boxes: Bytes) -> list[bytes]:
        """What is in the boxes of all sites; one that does not open is refused by name, before anything is remembered.

        Otherwise a site could spoil a task for good: its set would be the one that members stand for.
        """
        terms, run = reports.terms, reports.terms.id
        place = terms.place(self.name)
        if boxes.shape != (len(reports.by_site), box_size(terms)) or boxes.dtype != np.uint8:
            raise InputError(f"a box of {box_size(terms)} bytes is needed from each of {len(reports.by_site)} sites")
        private = self._private_key(terms)
        said = SEED * len(terms.held(self.name))
        seeds = []
        for site, box in zip(reports.sites, boxes, strict=True):
            if digest_of(box) != reports.by_site[site].boxes[place]:
                raise InputError(f"the box of site {site!r} is not the one that it signed")
            try:
                seeds.append(open_box(box.tobytes(), private, about(run, site, self.name, said)))
            except InputError as error:
                raise InputError(f"of site {site!r}, {error}; sum without it") from None
        return seeds

    def _sums(self, terms: RunTerms, seeds: list[bytes]) -> MaskSums:
        held = terms.held(self.name)
        digests = np.zeros((len(terms.committee), DIGEST), dtype=np.uint8)
        sums = {}
        for position, index in enumerate(held):  # one stream after the other: one vector in the cache at a time
            total = np.zeros(terms.layout.size, dtype=np.uint64)
            for content in seeds:
                add_stream(total, content[SEED * position : SEED * (position + 1)])
            digests[index] = np.frombuffer(digest_of(total), dtype=np.uint8)
            if index in terms.assigned(self.name):
                sums[index] = total
        return MaskSums(digests, sums)

    def _own_key(self, terms: RunTerms) -> str:
        return terms.committee[terms.place(self.name)].once.public

    def _key_file(self, public: str) -> Path:
        return self.folder / f"{public}.key"

    def _private_key(self, terms: RunTerms) -> bytes:
        place = self._key_file(self._own_key(terms))
        if not place.exists():
            raise InputError(
                f"member {self.name!r} has no key for this run any more: it was used, is too old, or was dropped after "
                "a restored backup; start a new run"
            )
        return place.read_bytes()


def check_difference(before: Mapping[str, str], now: Mapping[str, str], min_sites: int, task: str) -> None:
    """Refuse a set whose sum, less an earlier one of the same task, would be that of a few sites."""
    if set(before) != set(now):
        raise InputError(
            f"without noise {task!r} was summed over another set of sites, and the difference would tell of "
            f"{len(set(before) ^ set(now))} of them; sum over the same sites, or with noise"
        )
    changed = sum(before[site] != now[site] for site in now)
    if 0 < changed < min_sites:
        raise InputError(
            f"without noise {task!r} was summed before, and rows have changed since at {changed} site(s) only: the "
            f"difference would tell of them; wait until rows at {min_sites} sites have changed, or sum with noise"
        )


def check_quorum(reports: Reports, quorum: Mapping[str, bytes]) -> None:
    """Refuse a set under which fewer than three members' signatures stand."""
    seats = {seat.name: seat.key for seat in reports.terms.committee}
    signed = [name for name in quorum if name in seats and is_signed(seats[name], reports.signed, quorum[name])]
    if len(signed) < QUORUM:
        raise InputError(f"{QUORUM} members must have signed the set, got {len(signed)}")


def drop_one_time_keys(folder: Path) -> int:
    """Delete all keys for one run, as after a restored backup: no run that is under way will be answered."""
    places = list(folder.glob("*.key")) if folder.is_dir() else []
    for place in places:
        _delete(place)
    return len(places)


def _delete(place: Path) -> None:
    if place.exists():
        place.unlink(missing_ok=True)
        sync_folder(place.parent)

"""How a sum is to be masked: who the committee is, and what is assumed of it and of the sites."""

from dataclasses import dataclass
from typing import Any

from kernfed.base.checks import check_count
from kernfed.errors import InputError
from kernfed.secure.committee.terms import MEMBERS

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

"""Who has reported in a run: for every site the digests of what it sent and its signature, as members see them."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.errors import InputError
from kernfed.secure.committee.keys import SIGNATURE, is_signed
from kernfed.secure.committee.terms import RunTerms

Bytes = npt.NDArray[np.uint8]
#: Bytes of a digest, of what stands for the data of a site, and of the digest of their preparation.
DIGEST, GENERATION, PREPARATION = 32, 16, 32
#: The generation of a site that does not tell whether its data have changed: noise makes that unnecessary.
UNTOLD = bytes(GENERATION)
#: The preparation of a site whose rows are learned from as they are.
UNPREPARED = bytes(PREPARATION)
_CONTRIBUTED = b"kernfed masked vector\0"
_SET = b"kernfed set of sites\0"


@dataclass(frozen=True)
class Report:
    """What one site sent: digests of its masked vector and of its box for each member, and what it is made of.

    ``generation`` stands for the data of the site: the same while they are, and telling nothing else. The digest of how
    they are prepared, ``preparation``, is public.
    """

    vector: bytes
    boxes: tuple[bytes, ...]
    generation: bytes
    preparation: bytes
    signature: bytes

    def check(self, terms: RunTerms, site: str) -> None:
        """Refuse a report that the site on the roster did not sign, for this run."""
        key = terms.roster.get(site)
        if key is None:
            raise InputError(f"{site!r} is not on the roster of this run")
        words = signed_words(terms.id, site, self.vector, self.boxes, self.generation, self.preparation)
        if not is_signed(key, words, self.signature):
            raise InputError(f"the report of site {site!r} is not signed by it, or not for this run")


def signed_words(
    run: str, site: str, vector: bytes, boxes: tuple[bytes, ...], generation: bytes, preparation: bytes
) -> bytes:
    """What a site signs of its contribution."""
    name = site.encode()
    begin = [_CONTRIBUTED, bytes.fromhex(run), len(name).to_bytes(4, "big"), name]
    return b"".join([*begin, vector, generation, preparation, *boxes])


@dataclass(frozen=True)
class Reports:
    """The set of a run: reports by site. It is what members sign, and what they answer for."""

    terms: RunTerms
    by_site: Mapping[str, Report]

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites, sorted."""
        return tuple(sorted(self.by_site))

    @property
    def signed(self) -> bytes:
        """What a member signs: run and set."""
        whole = hashlib.sha256()
        for site in self.sites:
            report, name = self.by_site[site], site.encode()
            whole.update(len(name).to_bytes(4, "big") + name + report.vector)
            whole.update(report.generation + report.preparation + report.signature + b"".join(report.boxes))
        return _SET + bytes.fromhex(self.terms.id) + whole.digest()

    @property
    def digest(self) -> str:
        """Fingerprint of run and set."""
        return hashlib.sha256(self.signed).hexdigest()

    def check(self) -> None:
        """Refuse a set that is too small, is prepared in several ways, or holds a report its site did not sign.

        A coordinator who has all sites but one make zeros of their rows would get the sum of that one.
        """
        if len(self.by_site) < self.terms.needed:
            raise InputError(
                f"a set of at least {self.terms.needed} sites is answered for in this run, got {len(self.by_site)}"
            )
        for site, report in self.by_site.items():
            report.check(self.terms, site)
        (usual, _), *others = Counter(self.by_site[site].preparation for site in self.sites).most_common()
        if others:
            odd = [site for site in self.sites if self.by_site[site].preparation != usual]
            raise InputError(
                "the sites of a sum must have prepared their rows in one way, which most have, and "
                f"{', '.join(map(repr, odd[:10]))} not; let all agree on a preparation again, or sum without them"
            )

    def to_arrays(self) -> dict[str, Bytes]:
        """Arrays of bytes, for a message: names end in a zero each."""
        reports = [self.by_site[site] for site in self.sites]
        m = len(self.terms.committee)
        boxes = b"".join(b"".join(report.boxes) for report in reports)
        return {
            "sites": as_bytes(b"".join(site.encode() + b"\0" for site in self.sites)),
            "vectors": as_bytes(b"".join(report.vector for report in reports)).reshape(-1, DIGEST),
            "boxes": as_bytes(boxes).reshape(-1, m, DIGEST),
            "generations": as_bytes(b"".join(report.generation for report in reports)).reshape(-1, GENERATION),
            "preparations": as_bytes(b"".join(report.preparation for report in reports)).reshape(-1, PREPARATION),
            "signatures": as_bytes(b"".join(report.signature for report in reports)).reshape(-1, SIGNATURE),
        }

    @classmethod
    def from_arrays(cls, terms: RunTerms, arrays: Mapping[str, npt.NDArray[Any]]) -> "Reports":
        """Reports from ``to_arrays``; signatures and size are not checked yet."""
        try:
            names = arrays["sites"].tobytes().decode().split("\0")[:-1]
        except UnicodeDecodeError:
            raise InputError("names of sites must be text") from None
        n, m = len(names), len(terms.committee)
        if names != sorted(set(names)):
            raise InputError("the sites of a set must be in the order of their names, each once")
        shapes = {
            "vectors": (n, DIGEST),
            "boxes": (n, m, DIGEST),
            "generations": (n, GENERATION),
            "preparations": (n, PREPARATION),
            "signatures": (n, SIGNATURE),
        }
        for name, shape in shapes.items():
            if arrays[name].shape != shape or arrays[name].dtype != np.uint8:
                raise InputError(f"{name} of a set must be bytes of shape {shape}, got {arrays[name].shape}")
        by_site = {
            site: Report(
                arrays["vectors"][i].tobytes(),
                tuple(box.tobytes() for box in arrays["boxes"][i]),
                arrays["generations"][i].tobytes(),
                arrays["preparations"][i].tobytes(),
                arrays["signatures"][i].tobytes(),
            )
            for i, site in enumerate(names)
        }
        return cls(terms, by_site)


def as_bytes(data: bytes) -> Bytes:
    """Bytes as an array (n,)."""
    return np.frombuffer(data, dtype=np.uint8)

"""What a site sends: its vector with a stream added per member, and the seeds, sealed for all members but that one."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.errors import InputError
from kernfed.secure.committee.fixed import Words
from kernfed.secure.committee.keys import SEED, SIGNATURE, Identity, about, add_stream, draw_seed, seal, sealed_size
from kernfed.secure.committee.reports import (
    GENERATION,
    PREPARATION,
    UNPREPARED,
    UNTOLD,
    Bytes,
    Report,
    as_bytes,
    signed_words,
)
from kernfed.secure.committee.terms import RunTerms


@dataclass(frozen=True, eq=False)
class Contribution:
    """A masked vector (d,), a box for each member (m, bytes), what stands for data and preparation, and a signature."""

    masked: Words
    boxes: Bytes
    generation: bytes
    preparation: bytes
    signature: bytes

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays for a message."""
        return {
            "masked": self.masked.view(np.int64),
            "boxes": self.boxes,
            "generation": as_bytes(self.generation),
            "preparation": as_bytes(self.preparation),
            "signature": as_bytes(self.signature),
        }

    @classmethod
    def from_arrays(cls, terms: RunTerms, arrays: Mapping[str, npt.NDArray[Any]]) -> "Contribution":
        """Contribution from ``to_arrays``, of the shapes that the terms ask for."""
        m = len(terms.committee)
        expected = {
            "masked": ((terms.layout.size,), np.int64),
            "boxes": ((m, box_size(terms)), np.uint8),
            "generation": ((GENERATION,), np.uint8),
            "preparation": ((PREPARATION,), np.uint8),
            "signature": ((SIGNATURE,), np.uint8),
        }
        if set(arrays) != set(expected):
            raise InputError(f"expected {', '.join(expected)}, got {', '.join(sorted(arrays))}")
        for name, (shape, kind) in expected.items():
            if arrays[name].shape != shape or arrays[name].dtype != kind:
                raise InputError(f"{name} must have shape {shape}, got {arrays[name].shape} of {arrays[name].dtype}")
        return cls(
            arrays["masked"].view(np.uint64),
            arrays["boxes"],
            arrays["generation"].tobytes(),
            arrays["preparation"].tobytes(),
            arrays["signature"].tobytes(),
        )

    def report(self) -> Report:
        """What members see of it."""
        boxes = tuple(digest_of(box) for box in self.boxes)
        return Report(digest_of(self.masked), boxes, self.generation, self.preparation, self.signature)


def contribute(
    terms: RunTerms,
    site: str,
    vector: Words,
    identity: Identity,
    generation: bytes = UNTOLD,
    preparation: bytes = UNPREPARED,
) -> Contribution:
    """The contribution of a site whose vector (d,) this is; seeds are new, and nobody keeps them."""
    if terms.roster.get(site) != identity.public:
        raise InputError(f"the roster of the run has another key for site {site!r} than its own, {identity.public}")
    if vector.shape != (terms.layout.size,) or vector.dtype != np.uint64:
        raise InputError(f"a vector of {terms.layout.size} words was expected, got {vector.shape} of {vector.dtype}")
    seeds = [draw_seed() for _ in terms.committee]
    masked = vector.copy()
    for seed in seeds:
        add_stream(masked, seed)
    run, boxes = terms.id, []
    for seat in terms.committee:
        content = b"".join(seeds[index] for index in terms.held(seat.name))
        boxes.append(seal(content, seat.once.public, about(run, site, seat.name, len(content))))
    sealed = as_bytes(b"".join(boxes)).reshape(len(boxes), -1)
    digests = tuple(digest_of(box) for box in sealed)
    signature = identity.sign(signed_words(run, site, digest_of(masked), digests, generation, preparation))
    return Contribution(masked, sealed, generation, preparation, signature)


def box_size(terms: RunTerms) -> int:
    """Bytes of the box of one site for one member."""
    return sealed_size(SEED * (len(terms.committee) - 1))


def digest_of(array: npt.NDArray[Any]) -> bytes:
    """SHA-256 of the bytes of an array."""
    return hashlib.sha256(np.ascontiguousarray(array).data).digest()

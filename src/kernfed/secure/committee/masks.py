"""Streams of random words from a seed: AES-256 in counter mode, added to vectors modulo 2^64.

A seed is used for one stream of one run and never again, so the counter starts at 0.
"""

import secrets

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from kernfed.errors import InputError
from kernfed.secure.committee.fixed import Words

#: Bytes of a seed.
SEED = 32
#: Words made at a time: they stay in the cache while they are added.
_BLOCK = 1 << 15
_ZEROS = bytes(8 * _BLOCK)


def draw_seed() -> bytes:
    """A new seed from the operating system."""
    return secrets.token_bytes(SEED)


def add_stream(total: Words, seed: bytes) -> None:
    """Add the stream of ``seed`` to ``total`` (d,), in place and modulo 2^64."""
    if len(seed) != SEED:
        raise InputError(f"a seed must have {SEED} bytes, got {len(seed)}")
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    for start in range(0, len(total), _BLOCK):
        part = total[start : start + _BLOCK]
        part += np.frombuffer(stream.update(_ZEROS[: 8 * len(part)]), dtype="<u8")

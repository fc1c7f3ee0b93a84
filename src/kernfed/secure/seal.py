"""Microsoft SEAL through ``tenseal.sealapi``: contexts, bytes and arithmetic.

``sealapi`` objects save to and load from files only. Here they pass through a file in memory that has no name in
the file system (Linux), elsewhere through a file in a private directory that is removed at once.
"""

import os
import secrets
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from kernfed.errors import ProtocolError
from kernfed.secure.arithmetic import PLAIN_MODULUS, Ring, Slots
from kernfed.secure.message import Part


def sealapi() -> Any:
    """The module, or one sentence that says what to install."""
    try:
        return import_module("tenseal.sealapi")
    except ImportError:
        raise ImportError("scheme 'bfv' needs SEAL: pip install -e '.[fhe]' in a clone of kernfed") from None


@contextmanager
def _scratch() -> Iterator[Path]:
    """A file that only this process can open, gone afterwards."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("kernfed", os.MFD_CLOEXEC)
        try:
            yield Path(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
    else:
        with tempfile.TemporaryDirectory(prefix="kernfed-") as folder:  # mode 0700
            yield Path(folder) / "object"


def dump(item: Any) -> bytes:
    """A SEAL object as bytes."""
    with _scratch() as path:
        item.save(str(path))
        return path.read_bytes()


def load_all(kinds: Sequence[str], context: Any, parts: Sequence[Part]) -> list[Any]:
    """One SEAL object of each kind, in this order."""
    if len(parts) != len(kinds):
        raise ProtocolError(f"expected {len(kinds)} parts ({', '.join(kinds)}), got {len(parts)}")
    return [load(kind, context, part) for kind, part in zip(kinds, parts, strict=True)]


def load(kind: str, context: Any, data: Part) -> Any:
    """A SEAL object of class ``kind`` from bytes that may be hostile: SEAL checks them against the context."""
    item = getattr(sealapi(), kind)()
    with _scratch() as path:
        path.write_bytes(data)
        try:
            item.load(context, str(path))
        except (RuntimeError, ValueError, IndexError, MemoryError) as error:
            raise ProtocolError(f"malformed {kind}: {error}") from None
    return item


@dataclass(frozen=True)
class Seal:
    """Context, encoder and evaluator of a ring. Levels count primes: level 1 is the last of the chain."""

    ring: Ring
    context: Any
    encoder: Any
    evaluator: Any
    ids: dict[int, list[int]]
    primes: list[int]

    def plaintext(self, slots: Slots) -> Any:
        """A plaintext of all slots, values in 0..t-1."""
        plain = sealapi().Plaintext()
        self.encoder.encode(slots.tolist(), plain)
        return plain

    def zero(self, encryptor: Any, level: int) -> Any:
        """A fresh public-key encryption of zero with ``level`` primes."""
        cipher = sealapi().Ciphertext()
        encryptor.encrypt_zero(self.ids[level], cipher)
        return cipher

    def encrypt(self, encryptor: Any, slots: Slots, level: int) -> bytes:
        """A fresh public-key encryption with ``level`` primes."""
        cipher = self.zero(encryptor, level)
        self.evaluator.add_plain_inplace(cipher, self.plaintext(slots))
        return dump(cipher)

    def cipher(self, data: Part, level: int) -> Any:
        """A ciphertext of two polynomials at this level, or :class:`ProtocolError`."""
        most = 2 * level * self.ring.degree * 8 + 4096
        if len(data) > most:
            raise ProtocolError(f"malformed ciphertext: {len(data)} bytes, at most {most} expected")
        cipher = load("Ciphertext", self.context, data)
        if cipher.size() != 2 or cipher.is_ntt_form() or cipher.parms_id() != self.ids[level]:
            raise ProtocolError("malformed ciphertext: not two polynomials at the level of the protocol")
        if cipher.is_transparent():
            raise ProtocolError("malformed ciphertext: it encrypts nothing")
        return cipher

    def noise(self, bound: int, level: int) -> Any:
        """The pair (e, 0), e with coefficients uniform on -bound..bound: added to a ciphertext it floods it."""
        width = (bound.bit_length() + 1 + 64 + 7) // 8  # 64 bits more than needed: bias below 2^-64
        raw = secrets.token_bytes(width * self.ring.degree)
        draws = [
            int.from_bytes(raw[i : i + width], "little") % (2 * bound + 1) - bound for i in range(0, len(raw), width)
        ]
        residues = np.array([[draw % prime for draw in draws] for prime in self.primes[:level]], dtype="<u8")
        return self._cipher_of(np.stack([residues, np.zeros_like(residues)]), level)

    def _cipher_of(self, polynomials: Any, level: int) -> Any:
        """A ciphertext with these residues (size, level, N), through SEAL's file format without compression."""
        size, primes, degree = polynomials.shape
        values = polynomials.astype("<u8").tobytes()
        start = dump(sealapi().Plaintext("0"))[:5]  # magic, header size and version of this SEAL
        array = _section(start, struct.pack("<Q", polynomials.size) + values)
        fields = struct.pack("<4Q?3QdQ", *self.ids[level], False, size, degree, primes, 1.0, 1)
        cipher = load("Ciphertext", self.context, _section(start, fields + array))
        flat = polynomials.ravel()
        for place in (0, degree - 1, size * primes * degree // 2 - 1, flat.size - 1):
            if cipher.dyn_array().at(place) != int(flat[place]):
                raise RuntimeError("this version of SEAL writes ciphertexts in a form kernfed does not know")
        return cipher


def _section(start: bytes, content: bytes) -> bytes:
    """SEAL's header (16 bytes, no compression) before ``content``."""
    return start + bytes(3) + struct.pack("<Q", 16 + len(content)) + content


@lru_cache(maxsize=4)
def seal(ring: Ring) -> Seal:
    """Context of a ring; SEAL refuses a ring below 128 bits of security."""
    api = sealapi()
    parameters = api.EncryptionParameters(api.SCHEME_TYPE.BFV)
    parameters.set_poly_modulus_degree(ring.degree)
    parameters.set_coeff_modulus(api.CoeffModulus.Create(ring.degree, ring.sizes))
    parameters.set_plain_modulus(PLAIN_MODULUS)
    context = api.SEALContext(parameters, True, api.SEC_LEVEL_TYPE.TC128)
    if not context.parameters_set():
        raise RuntimeError(f"SEAL refuses the parameters: {context.parameters_error_message()}")
    ids, data = {}, context.first_context_data()
    primes = [modulus.value() for modulus in data.parms().coeff_modulus()]
    while data is not None:
        ids[data.chain_index() + 1] = data.parms_id()
        data = data.next_context_data()
    return Seal(ring, context, api.BatchEncoder(context), api.Evaluator(context), ids, primes)


@dataclass(frozen=True)
class SealBackend:
    """Arithmetic on SEAL ciphertexts, none of which is changed."""

    seal: Seal
    relinearisation: Any
    rotation: Any

    def _new(self, operation: str, *arguments: Any) -> Any:
        result = sealapi().Ciphertext()
        getattr(self.seal.evaluator, operation)(*arguments, result)
        return result

    def add(self, a: Any, b: Any) -> Any:
        """Slotwise sum."""
        return self._new("add", a, b)

    def subtract(self, a: Any, b: Any) -> Any:
        """Slotwise difference."""
        return self._new("sub", a, b)

    def add_plain(self, a: Any, values: Slots) -> Any:
        """Sum with a plain vector."""
        return self._new("add_plain", a, self.seal.plaintext(values))

    def add_constant(self, a: Any, constant: int) -> Any:
        """A constant polynomial is the same in every slot."""
        return self._new("add_plain", a, sealapi().Plaintext(f"{constant:x}"))

    def scale(self, a: Any, constant: int) -> Any:
        """Product with a constant polynomial."""
        return self._new("multiply_plain", a, sealapi().Plaintext(f"{constant:x}"))

    def multiply_plain(self, a: Any, values: Slots) -> Any:
        """Slotwise product with a plain vector."""
        return self._new("multiply_plain", a, self.seal.plaintext(values))

    def inner(self, pairs: Sequence[tuple[Any, Any]]) -> Any:
        """Products are summed as three polynomials, then relinearised once."""
        total = None
        for a, b in pairs:
            term = self._new("square", a) if a is b else self._new("multiply", a, b)
            total = term if total is None else self._new("add", total, term)
        return self._new("relinearize", total, self.relinearisation)

    def rotate(self, a: Any, steps: int) -> Any:
        """Both rows rotated left."""
        return self._new("rotate_rows", a, steps, self.rotation)

    def switch(self, a: Any, level: int) -> Any:
        """The same message with fewer primes in its modulus."""
        return self._new("mod_switch_to", a, self.seal.ids[level])

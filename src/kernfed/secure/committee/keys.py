"""Parties of a committee as keys: masks, sealed boxes and signatures."""

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from kernfed.errors import InputError, StoreError
from kernfed.files import open_private, private_folder, sync_folder
from kernfed.secure.committee.fixed import Words

#: Bytes of a private key, and of a public one; of a signature.
KEY, SIGNATURE = 32, 64
_TEXT = re.compile(r"[0-9a-f]{64}")
#: What a signature of a key for one run is about, so that it can be taken for nothing else.
_ONE_TIME = b"kernfed key for one run\0"


def check_key(text: object, name: str = "a key") -> str:
    """A public key as text."""
    if not isinstance(text, str) or not _TEXT.fullmatch(text):
        raise InputError(f"{name} must be 64 hexadecimal digits, as `kernfed key` prints them, got {text!r:.80}")
    return text


@dataclass(frozen=True)
class Identity:
    """A long-lived key: its owner signs with it, and is known by its public half."""

    private: bytes

    @classmethod
    def make(cls) -> "Identity":
        """A new one."""
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    @property
    def public(self) -> str:
        """The public key, as text."""
        return Ed25519PrivateKey.from_private_bytes(self.private).public_key().public_bytes_raw().hex()

    def sign(self, message: bytes) -> bytes:
        """Signature of a message; the same message has the same one."""
        return Ed25519PrivateKey.from_private_bytes(self.private).sign(message)


def is_signed(public: str, message: bytes, signature: bytes) -> bool:
    """Whether the owner of ``public`` signed the message."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(check_key(public))).verify(signature, message)
    except InvalidSignature:
        return False
    return True


@dataclass(frozen=True)
class OneTimeKey:
    """The public half of a key for one run, signed by its owner."""

    public: str
    signature: str

    def check(self, owner: str, name: str) -> None:
        """Refuse a key that member ``name``, whose long-lived key is ``owner``, did not sign."""
        signature = bytes.fromhex(self.signature)
        if not is_signed(owner, _ONE_TIME + bytes.fromhex(check_key(self.public)), signature):
            raise InputError(f"the key for one run of member {name!r} is not signed by its long-lived key")


def make_one_time(identity: Identity) -> tuple[bytes, OneTimeKey]:
    """A new key for one run: the private half, and the signed public one."""
    return one_time_of(identity, X25519PrivateKey.generate().private_bytes_raw())


def one_time_of(identity: Identity, private: bytes) -> tuple[bytes, OneTimeKey]:
    """A key for one run of which this is the private half."""
    public = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    return private, OneTimeKey(public.hex(), identity.sign(_ONE_TIME + public).hex())


# Files ------------------------------------------------------------------------------------------------------------


def read_identity(place: Path) -> Identity | None:
    """The long-lived key in a file, or None where there is no file; a damaged one is refused, never replaced."""
    if not place.exists():
        return None
    private = place.read_bytes()
    if len(private) != KEY:
        raise StoreError(f"the key {place} is damaged: {len(private)} bytes instead of {KEY}; restore it")
    return Identity(private)


def keep_identity(place: Path) -> Identity:
    """The long-lived key in a file, which is made where there is none."""
    known = read_identity(place)
    if known is None:
        known = Identity.make()
        write_secret(place, known.private)
    return known


def write_secret(place: Path, secret: bytes) -> None:
    """Write a few secret bytes to a new file for the owner's eyes only, and to the disk before this returns."""
    private_folder(place.parent)
    part = place.with_name(f".{place.name}.part")
    part.unlink(missing_ok=True)
    descriptor = open_private(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.write(descriptor, secret)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    part.replace(place)
    sync_folder(place.parent)


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


_TAG = 16
#: The key of a box is used once, so its nonce can be fixed.
_NONCE = bytes(12)
_PURPOSE = b"kernfed sealed seeds\0"


def sealed_size(length: int) -> int:
    """Bytes of a box with ``length`` bytes in it."""
    return KEY + length + _TAG


def about(run: str, sender: str, receiver: str, length: int) -> bytes:
    """What a box is about, in one way only."""
    parts = [run.encode(), sender.encode(), receiver.encode(), str(length).encode()]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def seal(content: bytes, receiver: str, said: bytes) -> bytes:
    """A box for whoever has the private half of the key ``receiver``; ``said`` is what it is ``about``."""
    fresh = X25519PrivateKey.generate()
    public = fresh.public_key().public_bytes_raw()
    shared = fresh.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(receiver)))
    return public + ChaCha20Poly1305(_box_key(shared, public, bytes.fromhex(receiver))).encrypt(_NONCE, content, said)


def open_box(box: bytes, private: bytes, said: bytes) -> bytes:
    """What is in a box; one that was made for somebody or something else, or altered, is refused."""
    own = X25519PrivateKey.from_private_bytes(private)
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(box[:KEY]))
        key = _box_key(shared, box[:KEY], own.public_key().public_bytes_raw())
        return ChaCha20Poly1305(key).decrypt(_NONCE, box[KEY:], said)
    except (InvalidTag, ValueError):
        raise InputError("sealed seeds do not open: they are of another run, sender or receiver, or altered") from None


def _box_key(shared: bytes, fresh: bytes, receiver: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt=None, info=_PURPOSE + fresh + receiver).derive(shared)

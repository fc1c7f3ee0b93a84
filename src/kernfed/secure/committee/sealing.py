"""A few bytes for one receiver: X25519 with a fresh key, HKDF-SHA256, ChaCha20-Poly1305.

What the box is about (run, sender, receiver, length) is authenticated with it: in another run, from another sender or
for another receiver it does not open.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from kernfed.errors import InputError
from kernfed.secure.committee.keys import KEY

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

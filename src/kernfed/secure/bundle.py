"""What a key holder lets others have, as one body: the key for the sites, and the evaluation keys for the server."""

import hashlib
from dataclasses import dataclass

from kernfed.errors import ProtocolError
from kernfed.secure.message import read_header
from kernfed.secure.protocol import KeyHolder, Server

#: Schemes whose key for the sites is public. In "tfhe" it can decrypt, so that it must not pass through a server.
PUBLIC_KEY_SCHEMES = ("bfv", "plain")
_LENGTH = 8


@dataclass(frozen=True)
class PublicKeys:
    """A key to encrypt with, and a server that can evaluate; neither decrypts."""

    site_key: bytes
    server: Server


def pack_keys(holder: KeyHolder) -> bytes:
    """The keys of a holder that are no secret: the length of the key for the sites in 8 bytes, it, and the others."""
    site_key = holder.site_key
    return len(site_key).to_bytes(_LENGTH, "little") + site_key + holder.evaluation_keys


def name_of_keys(body: bytes) -> str:
    """SHA-256 of packed keys: whoever remembers them under it cannot be given others in their place."""
    return hashlib.sha256(body).hexdigest()


def open_keys(body: bytes) -> PublicKeys:
    """The keys in bytes that may be hostile, or :class:`ProtocolError`."""
    length = int.from_bytes(body[:_LENGTH], "little")
    if len(body) < _LENGTH or length > len(body) - _LENGTH:
        raise ProtocolError("keys must be the length of the key for the sites, this key, and the evaluation keys")
    site_key, evaluation = body[_LENGTH : _LENGTH + length], body[_LENGTH + length :]
    for message in (site_key, evaluation):
        scheme = read_header(message)[0].scheme
        if scheme not in PUBLIC_KEY_SCHEMES:
            told = " or ".join(PUBLIC_KEY_SCHEMES)
            raise ProtocolError(f"a server elsewhere combines by {told}, whose keys do not decrypt, got {scheme!r}")
    return PublicKeys(site_key, Server(evaluation))

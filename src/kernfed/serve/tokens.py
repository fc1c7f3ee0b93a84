"""Tokens of callers: each has a name, and a secret of which the file keeps only a hash.

A token has 256 random bits, so that its plain SHA-256 cannot be turned around by trying.
"""

import datetime
import hashlib
import json
import re
import secrets
from pathlib import Path
from typing import Any

from kernfed.base.plain import read_json
from kernfed.errors import InputError
from kernfed.files import atomic_path

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PREFIX = "kfd_"
#: Bytes of a file of tokens, at most.
_LARGEST = 10_000_000


def new_token(path: Path, name: str) -> str:
    """Make a token for ``name``, who must have none, and keep its hash in the file, which is made where there is none.

    The token itself is nowhere else than in what this returns.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"a caller's name must be 1 to 64 letters, digits and . _ @ -, got {name!r:.80}")
    callers = _read(path) if path.exists() else {}
    if name in callers:
        raise InputError(f"{path} has a token for {name!r} already; revoke it first with --revoke-token {name}")
    token = _PREFIX + secrets.token_urlsafe(32)
    made = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    _write(path, {**callers, name: {"sha256": _hash(token), "made": made}})
    return token


def revoke_token(path: Path, name: str) -> None:
    """Take a caller's token out of the file; a gateway that runs refuses it from its next request on."""
    callers = _read(path)
    if name not in callers:
        raise InputError(f"{path} has no token for {name!r:.80}; there are {', '.join(sorted(callers)[:20]) or 'none'}")
    _write(path, {other: entry for other, entry in callers.items() if other != name})


class Tokens:
    """The callers of a file, read again whenever it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: tuple[int, ...] = ()
        self._names: dict[str, str] = {}
        self._refresh()

    def caller(self, token: str) -> str | None:
        """Whose token it is; None where it is nobody's."""
        self._refresh()
        return self._names.get(_hash(token))

    def _refresh(self) -> None:
        """Read the file where it is another than before; one that cannot be read lets nobody in."""
        try:
            state = self._path.stat()
        except OSError as error:
            self._version, self._names = (), {}
            raise InputError(f"{self._path}: {error.strerror}; make it with kernfed serve --new-token NAME") from None
        version = (state.st_mtime_ns, state.st_ino, state.st_size)
        if version != self._version:
            self._version, self._names = (), {}
            self._names = {entry["sha256"]: name for name, entry in _read(self._path).items()}
            self._version = version


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        callers = read_json(path.read_bytes(), str(path), most=_LARGEST)["callers"]
        wrong = [
            name
            for name, entry in callers.items()
            if not (_NAME.fullmatch(name) and _DIGEST.fullmatch(entry["sha256"]))
        ]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; make it with kernfed serve --new-token NAME") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        told = f" ({error})" if isinstance(error, InputError) else ""
        raise InputError(f"{path} is no file of tokens, as kernfed serve --new-token NAME writes it{told}") from None
    if wrong:
        raise InputError(f"{path}: the entry of {wrong[0]!r:.80} is no name with a hash")
    return dict(callers)


def _write(path: Path, callers: dict[str, Any]) -> None:
    with atomic_path(path, private=True) as temporary:
        temporary.write_text(json.dumps({"callers": callers}, indent=1) + "\n", encoding="utf-8")

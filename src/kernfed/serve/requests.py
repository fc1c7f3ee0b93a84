"""Who may ask a gateway, how much, and for which columns; and the error that says why a request is not answered."""

import datetime
import hashlib
import json
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernfed.base.checks import FloatArray
from kernfed.base.model import Model
from kernfed.base.plain import read_json
from kernfed.data.preparation import Preparation
from kernfed.errors import InputError, KernfedError
from kernfed.files import atomic_path


class RequestError(KernfedError):
    """A request that is not answered: a status of HTTP, one sentence, and where it helps, seconds to wait."""

    def __init__(self, status: int, sentence: str, *, wait: float | None = None) -> None:
        super().__init__(sentence)
        self.status, self.wait = status, wait


@dataclass(frozen=True)
class Limits:
    """What a caller may ask for.

    rows, bytes : of one request. rate : requests of one caller in a second, 0 for any number. waiting : numbers in rows
    that wait for their turn, over all callers. bodies : bytes of all requests that are being read. seconds : for a body
    to arrive. encrypted_rows : of one request for an encrypted answer, a ciphertext holds 64 to 128. key_bytes,
    key_seconds : of one upload of keys. key_holders : whose keys are remembered, each some 200 MB of memory.
    """

    rows: int = 10_000
    bytes: int = 16_000_000
    rate: float = 200.0
    waiting: int = 20_000_000
    bodies: int = 64_000_000
    seconds: float = 30.0
    encrypted_rows: int = 1024
    key_bytes: int = 512_000_000
    key_seconds: float = 300.0
    key_holders: int = 4


class Rate:
    """Requests of every caller in a second, at most ``rate``; a second's worth may come at once. 0 is no limit."""

    def __init__(self, rate: float) -> None:
        self._rate, self._most = rate, max(1.0, rate)
        #: What each caller may still ask now, and when that was so.
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, caller: str) -> None:
        """Count a request of ``caller``; refuse it where it is one too many."""
        if not self._rate:
            return
        now = time.monotonic()
        left, then = self._left.get(caller, (self._most, now))
        left = min(self._most, left + (now - then) * self._rate)
        if left < 1.0:
            self._left[caller] = (left, now)
            raise RequestError(
                429,
                f"at most {self._rate:g} requests in a second are answered; send several rows in one request",
                wait=(1.0 - left) / self._rate,
            )
        self._left[caller] = (left - 1.0, now)


#: Characters of one cell of text, at most: columns of text take as much for every row as for the longest.
MOST_CHARACTERS = 1_000


@dataclass(frozen=True)
class Columns:
    """What a model needs of a row. names : of its columns in order, () where they have none; width : how many."""

    names: tuple[str, ...]
    width: int
    preparation: Preparation | None = None

    @classmethod
    def of(cls, model: Model) -> "Columns":
        """The columns of a model: raw ones where it prepares them."""
        if model.preparation is not None:
            return cls(model.preparation.used, len(model.preparation.used), model.preparation)
        return cls(model.column_names, int(model.n_features_in_))


def check_words(name: str, longest: int) -> None:
    """Refuse a column of text whose longest cell is too long."""
    if longest > MOST_CHARACTERS:
        raise RequestError(
            422, f"cells of column {name!r:.80} must have at most {MOST_CHARACTERS:,} characters, one has {longest:,}"
        )


def prepared(table: Any, preparation: Preparation) -> FloatArray:
    """The matrix of a raw table or an Arrow table."""
    try:
        return preparation.apply(table)[0]
    except InputError as error:
        raise RequestError(422, str(error)[:500]) from None


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

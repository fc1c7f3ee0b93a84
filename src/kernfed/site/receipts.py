"""Receipts: what a site writes when rows are forgotten or added, so that it can be checked later what became of them.

They are a chain of lines (``base.chain``) in the folder ``receipts`` of the site's store, and nobody can ask for them.
Each is signed by the site's long-lived key, together with the hash of the line before:

event          "forgotten" or "added"; time, site and asked_by say when, where and who asked
ids            HMACs of the rows' ids under a secret of the site: whoever has the secret and an id finds the row
rows           HMACs of the fingerprints of the rows to learn from, before and after
forgotten      how many rows the site was asked to forget by then, in all
before, after  hash of all that is kept for models; of ``after`` what it is made of, thing by thing
touched        what changed: before and after, and how many parts (machines) were fitted again
choices        what was chosen with rows in sight, and whether it was made anew; null where it is kept elsewhere, or is
               made when somebody next asks
environment    processor and libraries that the bits depend on; software has the version and the protocol
ledger         charges of the privacy ledger and hash of the last: what was released stays released, and stays paid

``check_receipts`` finds without anything else: any byte that was changed in a line or in ``head``, lines that were
taken out of the middle, put in or moved, an end that is gone while ``head`` is not, and a line that another key signed.
Only a head, or a key, that was noted elsewhere shows an end that was cut off together with ``head``, and receipts that
somebody who has the site's key, or replaced it, wrote anew.
"""

import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed._version import __version__
from kernfed.base.chain import BEGUN, ChainedLines, parsed
from kernfed.base.threads import environment
from kernfed.errors import FileFormatError, InputError, Refused, StoreError
from kernfed.files import Record
from kernfed.secure.committee.keys import check_key, is_signed, keep_identity, read_identity
from kernfed.site.journal import Snapshot, check_journal
from kernfed.site.protocol.message import PROTOCOL
from kernfed.site.protocol.task import methods, resolve
from kernfed.site.site import Site
from kernfed.site.store import KEY_FILE, SiteStore

#: The folder of the receipts in a store, and the file of the key of the ids.
FOLDER, SECRET_FILE = "receipts", "receipts.key"
FORMAT = "kernfed receipts 1"
EVENTS = ("forgotten", "added")
#: What a signature is about, so that it can be taken for nothing else.
_SIGNED = b"kernfed receipt\0"
#: In the working memory of a site: what was described, and of which file.
_CACHE = "receipts"
#: A type, one of several shapes, a list of a shape, or a mapping of shapes: see ``_fits``.
Shape = type | tuple["Shape", ...] | list["Shape"] | dict[str, "Shape"]


@dataclass(frozen=True)
class Kept:
    """What a site keeps for a model. ``digest`` is of all of it but when and for whom it was made.

    ``generation`` is 0 for what may change without a receipt. ``content`` is the digest of what a model file may hold
    of it, "" where none does. ``choices`` were made with rows in sight. ``parts`` stand for what is fitted by itself,
    ``ids`` (n,) are the rows in it, and ``computed`` names the environments in which it was computed.
    """

    name: str
    generation: int
    digest: str
    content: str = ""
    choices: Mapping[str, Any] = field(default_factory=dict)
    parts: frozenset[str] = frozenset()
    ids: npt.NDArray[np.int64] | None = None
    computed: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, int]:
        """Handle and generation: these stay when a newer training takes over the name."""
        return self.name.partition(".")[0], self.generation

    def to_values(self) -> dict[str, Any]:
        """What a receipt says of it."""
        return {"name": self.name, "generation": self.generation, "digest": self.digest, "content": self.content}


@dataclass(frozen=True)
class Trace:
    """What a model file refers to at a site: handle and generation as in ``Kept.key``.

    ``content`` is the digest of what it holds of that itself, "" for nothing. ``head`` says whether it holds something
    else that was made of the site's rows, which nobody can hold against a receipt.
    """

    key: tuple[str, int]
    content: str = ""
    head: bool = False


@dataclass(frozen=True)
class ReceiptBook:
    """What a method tells receipts of the records in one folder of the store.

    describe : (name, record) -> ``Kept``. remake : (site, record) -> the record made again from the rows that the site
    holds now, or the reason in words why it is not; it raises ``StoreError`` where rows are others than then. trace :
    (model, site's name) -> ``Trace`` of a model file, or None. attack : "module:name" of (site,
    record, rows, seed) -> membership attacks on rows before and after they are forgotten, or None. elsewhere : what is
    chosen with rows in sight, and kept with the model and not at the site.
    """

    folder: str = ""
    describe: Callable[[str, Record], Kept] | None = None
    remake: Callable[[Site, Record], Record | str] | None = None
    trace: Callable[[Any, str], Trace | None] | None = None
    attack: str = ""
    elsewhere: tuple[str, ...] = ()


def receipt_books() -> list[ReceiptBook]:
    """What all methods tell receipts, one entry for each that keeps something."""
    return [resolve(method.receipts) for method in methods() if method.receipts]


def kept_state(store: SiteStore, known: dict[str, tuple[Any, Kept]] | None = None) -> dict[str, Kept]:
    """What a store keeps for models, by name; what is damaged is left out, for nobody uses it.

    ``known`` spares reading files that were described before.
    """
    state: dict[str, Kept] = {}
    for book in receipt_books():
        if book.describe is None:
            continue
        for name in store.names(book.folder):
            full, file = f"{book.folder}/{name}", store.identity(book.folder, name)
            if known is not None and full in known and known[full][0] == file:
                state[full] = known[full][1]
                continue
            try:
                record = store.read(book.folder, name)
                assert record is not None
                state[full] = book.describe(full, record)
            except (FileFormatError, KeyError, ValueError, TypeError):
                continue
            if known is not None:
                known[full] = (file, state[full])
    return state


def state_hash(kept: Iterable[Mapping[str, Any]]) -> str:
    """Hash of all that is kept, from what receipts say of it."""
    said = sorted((entry["name"], entry["generation"], entry["digest"]) for entry in kept)
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


class PendingReceipt:
    """A receipt of what happens between now and ``write``; the site's store is locked meanwhile."""

    def __init__(self, site: Site) -> None:
        self._site = site
        # A damaged key is told of now, and not when the rows are gone.
        folder = site.store.path
        self._secret, self._identity = keep_identity(folder / SECRET_FILE).private, keep_identity(folder / KEY_FILE)
        self._before = self._state()
        self._rows = rows_fingerprint(site)

    def write(self, event: str, ids: npt.NDArray[np.int64]) -> None:
        """Write down that rows ``ids`` were forgotten or added, and what that has changed."""
        site, store = self._site, self._site.store
        secret, identity = self._secret, self._identity
        before, after, state = self._before, self._state(), store.read_state()
        kept = [entry.to_values() for entry in after.values()]
        body = {
            "event": event,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "site": site.name,
            "asked_by": site.asked_by,
            "ids": sorted(row_tag(secret, event, int(number)) for number in set(ids.tolist())),
            "ids_key": secret_fingerprint(secret),
            "rows": {"before": rows_tag(secret, self._rows), "after": rows_tag(secret, rows_fingerprint(site))},
            "forgotten": len(state["forgotten"]),
            "before": {"state": state_hash(entry.to_values() for entry in before.values())},
            "after": {"state": state_hash(kept), "kept": kept},
            "touched": list(_touched(before, after)),
            "choices": list(_choices(before, after, state.get("preparation"))),
            "software": {"kernfed": __version__, "protocol": PROTOCOL},
            "environment": environment(),
            "policy": site.policy.digest,
            "ledger": None if not state.get("ledger") else [state["ledger"]["count"], state["ledger"]["head"]],
            "key": identity.public,
        }
        lines = ChainedLines(store.path / FOLDER, {"format": FORMAT, "site": site.name}, durable=not site.temporary)
        lines.append(lambda chain: _signed({**body, "follows": chain}, identity.sign))

    def _state(self) -> dict[str, Kept]:
        known = self._site.cache.setdefault(_CACHE, {})
        state = kept_state(self._site.store, known)
        for gone in set(known) - set(state):
            del known[gone]
        return state


def _signed(body: Mapping[str, Any], sign: Callable[[bytes], bytes]) -> dict[str, Any]:
    return {**body, "signature": sign(signed_bytes(body)).hex()}


def signed_bytes(receipt: Mapping[str, Any]) -> bytes:
    """What the signature of a receipt is of: all that it says but the signature, and what the chain adds to a line."""
    said = {name: value for name, value in receipt.items() if name not in ("n", "chain", "signature")}
    return _SIGNED + json.dumps(said, sort_keys=True).encode()


def rows_fingerprint(site: Site) -> str:
    """Fingerprint of the rows to learn from; "" where there are none yet."""
    try:
        return site.rows().digest
    except Refused:  # a raw table that is not prepared
        return ""


def _touched(before: Mapping[str, Kept], after: Mapping[str, Kept]) -> Iterable[dict[str, Any]]:
    """What is not as it was, name by name; a thing that has only another name is."""
    stayed = {entry.digest for entry in before.values()}
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if new is not None and (new.digest in stayed if old is None else new.digest == old.digest):
            continue
        yield {
            "name": name,
            "before": None if old is None else old.to_values(),
            "after": None if new is None else new.to_values(),
            "fitted": None if new is None else len(new.parts - (frozenset() if old is None else old.parts)),
        }


def _choices(
    before: Mapping[str, Kept], after: Mapping[str, Kept], preparation: str | None
) -> Iterable[dict[str, Any]]:
    """What had been chosen before, and whether it is chosen anew."""
    for name, old in sorted(before.items()):
        new = after.get(name)
        if new is not None and new.digest == old.digest:
            continue
        for choice, value in old.choices.items():
            anew = None if new is None else new.choices.get(choice) != value
            yield {"choice": choice, "of": name, "value": value, "anew": anew}
    if preparation is not None:
        yield {"choice": "preparation", "of": "all rows", "value": preparation, "anew": False}
    for book in receipt_books():
        for choice in book.elsewhere:
            yield {"choice": choice, "of": "models elsewhere", "value": None, "anew": None}


# The key of the ids -----------------------------------------------------------------------------------------------


def read_secret(store: Path) -> bytes | None:
    """The key of the ids in a site's store, 32 random bytes kept as identities are; None where there is none."""
    kept = read_identity(store / SECRET_FILE)
    return None if kept is None else kept.private


def row_tag(secret: bytes, event: str, number: int) -> str:
    """What stands for a row: nobody who lacks the key can tell which, or whether a row of another event is the same."""
    return hmac.new(secret, f"{event} {number}".encode(), hashlib.sha256).hexdigest()[:32]


def rows_tag(secret: bytes, fingerprint: str) -> str:
    """What stands for all rows together."""
    return hmac.new(secret, f"rows {fingerprint}".encode(), hashlib.sha256).hexdigest()[:32]


def secret_fingerprint(secret: bytes) -> str:
    """Sixteen digits by which another key is noticed."""
    return hashlib.sha256(b"kernfed receipt key" + secret).hexdigest()[:16]


# Reading ----------------------------------------------------------------------------------------------------------

#: What a receipt must say: whoever shows or compares it need not ask again.
_KEPT: Shape = {"name": str, "generation": int, "digest": str, "content": str}
_SAYS: dict[str, Shape] = {
    "time": str,
    "site": str,
    "asked_by": str,
    "ids": [str],
    "ids_key": str,
    "rows": {"after": str},
    "forgotten": int,
    "before": {},
    "after": {"state": str, "kept": [_KEPT]},
    "touched": [{"before": (_KEPT, NoneType), "after": (_KEPT, NoneType), "fitted": (int, NoneType)}],
    "choices": [{"choice": object, "of": object, "anew": (bool, NoneType)}],
    "software": {},
    "environment": {},
    "key": str,
    "follows": str,
    "signature": str,
}


@dataclass
class ReceiptCheck:
    """Receipts in their order, the head of their chain, who signed, and in words what is wrong with them."""

    receipts: list[dict[str, Any]] = field(default_factory=list)
    head: str = ""
    keys: tuple[str, ...] = ()
    problems: list[str] = field(default_factory=list)


def check_receipts(folder: Path, pinned: str | None = None, key: str | None = None) -> ReceiptCheck:
    """Receipts in a folder of a store. ``pinned`` is a head, and ``key`` a public key, that was noted elsewhere."""
    if key is not None:
        check_key(key, "--key")
    chain = check_journal(folder, pinned)
    check = ReceiptCheck(head=chain.head if chain.lines else "", problems=list(chain.problems))
    chains, previous = {}, ""
    for raw in Snapshot.of(folder).lines():
        if (line := parsed(raw)) is None:
            continue  # the check of the chain says what of it
        number = line["n"]
        if raw != (json.dumps(line) + "\n").encode():
            check.problems.append(f"line {number} is not written as it was")
        if line.get("event") in EVENTS:
            wrong = _wrong(line, previous, key)
            check.problems += [f"line {number}: {problem}" for problem in wrong]
            check.receipts += [] if wrong else [line]
        elif line.get("event") == BEGUN and line.get("format") != FORMAT:
            check.problems.append(f"line {number} begins {line.get('format')!r:.40}, expected {FORMAT!r}")
        chains[number] = previous = str(line["chain"])
    check.problems += _wrong_head(folder, chains)
    check.keys = tuple(dict.fromkeys(str(receipt.get("key")) for receipt in check.receipts))
    check.problems += _wrong_keys(folder.parent, check.keys)
    return check


def _wrong(line: dict[str, Any], previous: str, key: str | None) -> list[str]:
    """What is wrong with a receipt that follows the hash ``previous``."""
    kinds = {name: shape if isinstance(shape, type) else type(shape) for name, shape in _SAYS.items()}
    missing = [name for name, kind in kinds.items() if not isinstance(line.get(name), kind)]
    if missing or not _fits(line, _SAYS):
        return [f"the receipt does not say its {missing[0] if missing else 'states as receipts do'}"]
    problems = []
    if line["follows"] != previous:
        problems.append("the receipt was signed after another line than the one before it")
    try:
        if not is_signed(line["key"], signed_bytes(line), bytes.fromhex(line["signature"])):
            problems.append("the signature is not that of the receipt's key")
    except (InputError, ValueError):
        problems.append("the receipt has no key, or no signature")
    if key is not None and line["key"] != key:
        problems.append("the receipt is signed by another key than the one that was noted")
    return problems


def _fits(value: Any, shape: Shape) -> bool:
    """Whether a value has a shape; a mapping may have other entries beside those of its shape."""
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(name in value and _fits(value[name], shape[name]) for name in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(entry, shape[0]) for entry in value)
    if isinstance(shape, tuple):
        return any(_fits(value, one) for one in shape)
    return isinstance(value, shape)


def _wrong_head(folder: Path, chains: dict[int, str]) -> list[str]:
    """The note of the end must be of a line that is there, to the byte; an older one is what a kill may leave."""
    try:
        head = (folder / "head").read_bytes()
    except OSError:
        return ["the note of the end of the receipts is gone"] if chains else []
    notes = {f"{number:015d} {chain}\n".encode() for number, chain in chains.items()}
    return [] if head in notes else ["the note of the end of the receipts is of no line: it was changed, or lines were"]


def _wrong_keys(store: Path, keys: tuple[str, ...]) -> list[str]:
    """Receipts of one site have one key, that of its store, if that is here."""
    problems = ["receipts are signed by several keys"] if len(keys) > 1 else []
    try:
        identity = read_identity(store / KEY_FILE)
    except StoreError as error:
        return [*problems, str(error)]
    if keys and identity is None:
        problems.append(f"the site's key {KEY_FILE} is not in the store")
    elif identity is not None and keys and identity.public != keys[-1]:
        problems.append(f"the site's key {KEY_FILE} is another one than that of its receipts")
    return problems


def public_key_of(store: Path) -> str | None:
    """The public half of the key in a store; None where there is none."""
    identity = read_identity(store / KEY_FILE)
    return None if identity is None else identity.public

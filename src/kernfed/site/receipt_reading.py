"""Receipts are read and checked: every line byte for byte, its place in the chain, its signature.

What is found without anything else: any byte that was changed in a line or in ``head``, lines that were taken out of
the middle, put in or moved, an end that is gone while ``head`` is not, and a line that another key signed. What is
found only by a head, or a key, that was noted elsewhere: an end that was cut off together with ``head``, and receipts
that somebody who has the site's key, or replaced it, wrote anew.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernfed.base.chain import BEGUN, parsed
from kernfed.errors import InputError, StoreError
from kernfed.secure.committee.keys import check_key, is_signed, read_identity
from kernfed.site.journal_reading import Snapshot, check_journal
from kernfed.site.receipts import EVENTS, FORMAT, signed_bytes
from kernfed.site.store import KEY_FILE

#: What a receipt must say, and of what type.
_SAYS = {
    "time": str,
    "site": str,
    "asked_by": str,
    "ids": list,
    "ids_key": str,
    "rows": dict,
    "forgotten": int,
    "before": dict,
    "after": dict,
    "touched": list,
    "choices": list,
    "software": dict,
    "environment": dict,
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
        line = parsed(raw)
        if line is None:
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
        previous = str(line["chain"])
        chains[line["n"]] = previous
    check.problems += _wrong_head(folder, chains)
    check.keys = tuple(dict.fromkeys(str(receipt.get("key")) for receipt in check.receipts))
    check.problems += _wrong_keys(folder.parent, check.keys)
    return check


def _wrong(line: dict[str, Any], previous: str, key: str | None) -> list[str]:
    """What is wrong with a receipt that follows the hash ``previous``."""
    missing = [name for name, kind in _SAYS.items() if not isinstance(line.get(name), kind)]
    if missing or not _is_whole(line):
        return [f"the receipt does not say its {missing[0] if missing else 'states as receipts do'}"]
    problems = []
    if line["follows"] != previous:
        problems.append("the receipt was signed after another line than the one before it")
    try:
        signature = bytes.fromhex(line["signature"])
        if not is_signed(line["key"], signed_bytes(line), signature):
            problems.append("the signature is not that of the receipt's key")
    except (InputError, ValueError):
        problems.append("the receipt has no key, or no signature")
    if key is not None and line["key"] != key:
        problems.append("the receipt is signed by another key than the one that was noted")
    return problems


def _is_whole(line: dict[str, Any]) -> bool:
    """Whether what a receipt lists is what receipts list: whoever shows it, or compares it, need not ask again."""

    def kept(entry: Any) -> bool:
        kinds = {"name": str, "generation": int, "digest": str, "content": str}
        return isinstance(entry, dict) and all(isinstance(entry.get(name), kind) for name, kind in kinds.items())

    def touched(entry: Any) -> bool:
        return (
            isinstance(entry, dict)
            and all(name in entry and (entry[name] is None or kept(entry[name])) for name in ("before", "after"))
            and isinstance(entry.get("fitted", ""), int | None)
        )

    def chosen(entry: Any) -> bool:
        return (
            isinstance(entry, dict) and entry.get("anew", "") in (True, False, None) and {"of", "choice"} <= set(entry)
        )

    return (
        isinstance(line["after"].get("kept"), list)
        and isinstance(line["after"].get("state"), str)
        and all(map(kept, line["after"]["kept"]))
        and all(map(touched, line["touched"]))
        and all(map(chosen, line["choices"]))
        and all(isinstance(tag, str) for tag in line["ids"])
        and isinstance(line["rows"].get("after"), str)
    )


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

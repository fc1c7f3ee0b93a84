"""What a site's receipts say is held against its store, its rows and a model file. Nothing is changed.

The newest state is made again from the rows that the site holds now, by the choices that it records, and must come out
with the same hash. Where it was computed on another processor or with another BLAS last bits may differ: what comes out
otherwise there is *not comparable*, which is no finding. Earlier states are gone with their rows; of them there are
receipts, which must form a chain, be signed, and lead to what the store keeps now.

Files are checked byte for byte: a changed byte that changes no meaning is noticed, too. JSON says the same with other
blanks, or with other letters in the number of a character; so the text of a file is compared with the text that its
content makes.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kernfed.base.model import Model
from kernfed.base.plain import read_json, read_json_file
from kernfed.base.threads import fingerprint
from kernfed.errors import FileFormatError, KernfedError, StoreError
from kernfed.files import load
from kernfed.site.receipts import (
    FOLDER,
    SECRET_FILE,
    Kept,
    ReceiptBook,
    ReceiptCheck,
    Trace,
    check_receipts,
    kept_state,
    read_secret,
    receipt_books,
    row_tag,
    rows_fingerprint,
    rows_tag,
    secret_fingerprint,
    state_hash,
)
from kernfed.site.site import Site
from kernfed.site.store import SiteStore

#: What becomes of a state that is made again. Only "different" is a finding.
SAME, DIFFERENT, NOT_COMPARABLE, BY_HASH = "same", "different", "not comparable", "by hash only"


@dataclass(frozen=True)
class Remade:
    """One thing that the site keeps: whether it comes out the same when it is made again, and ``why`` in words."""

    name: str
    generation: int
    verdict: str
    why: str = ""


@dataclass
class Verification:
    """What came of it: ``problems`` in words, none where all holds; ``notes`` are no findings.

    ``remade`` is empty where the site's rows were not given. ``model`` says how a model file descends from receipts.
    """

    site: str
    check: ReceiptCheck
    remade: list[Remade] = field(default_factory=list)
    model: str = ""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Plain values for programs."""
        receipts = self.check.receipts
        return {
            "site": self.site,
            "holds": self.holds,
            "receipts": len(receipts),
            "forgotten": sum(len(receipt["ids"]) for receipt in receipts if receipt.get("event") == "forgotten"),
            "added": sum(len(receipt["ids"]) for receipt in receipts if receipt.get("event") == "added"),
            "head": self.check.head,
            "keys": list(self.check.keys),
            "remade": [vars(entry) for entry in self.remade],
            "model": self.model,
            "problems": self.problems,
            "notes": self.notes,
        }


def verify(
    store: SiteStore,
    site: Site | None = None,
    *,
    model: Path | None = None,
    name: str = "",
    head: str | None = None,
    key: str | None = None,
) -> Verification:
    """Check a site's receipts, and its store by them.

    ``site`` has the rows from which the newest state is made again; ``model`` is a file that should descend from a
    state of site ``name``; ``head`` and ``key`` were noted elsewhere.
    """
    with (store if site is None else site.store).locked():
        return _verify(store, site, model, name, check_receipts(store.path / FOLDER, head, key))


def _verify(store: SiteStore, site: Site | None, model: Path | None, name: str, check: ReceiptCheck) -> Verification:
    named = site.name if site is not None else name or (str(check.receipts[-1].get("site")) if check.receipts else "")
    result = Verification(named, check, problems=list(check.problems))
    result.problems += _damaged_files(store)
    try:
        state = store.read_state()
    except StoreError as error:
        result.problems.append(str(error))
        return result
    kept = kept_state(store)
    if not check.problems:
        _follow(result, kept)
        _check_ids(result, store, state["forgotten"], site)
    result.problems += _forgotten_rows(store, kept, state["forgotten"])
    if site is not None:
        result.remade = list(_remade(site, store, kept))
        result.problems += [
            f"{entry.name} of generation {entry.generation} is not what its rows make: {entry.why}"
            for entry in result.remade
            if entry.verdict == DIFFERENT
        ]
    if model is not None:
        _descent(result, kept, model)
    return result


def _damaged_files(store: SiteStore) -> list[str]:
    """Files of a store that are not byte for byte what was written."""
    folder = store.path
    places = [folder / "state.json", *sorted(folder.rglob("*.safetensors"))]
    wrong = {place: inexact(place) for place in places if place.exists()}
    problems = [f"{place.relative_to(folder)} is damaged: {why}" for place, why in wrong.items() if why is not None]
    for place in places[1:]:
        if wrong[place] is None:
            try:
                store.read(*place.relative_to(folder).with_suffix("").parts)
            except FileFormatError as error:
                problems.append(str(error))
    return problems


def _follow(result: Verification, kept: Mapping[str, Kept]) -> None:
    """Hold receipts against each other, and what the store keeps now against the newest."""
    before = None
    for receipt in result.check.receipts:
        if state_hash(receipt["after"]["kept"]) != receipt["after"]["state"]:
            result.problems.append(f"line {receipt['n']}: the hash of the state is not that of what it lists")
        if receipt["site"] != result.site:
            result.problems.append(f"line {receipt['n']} is of site {receipt['site']!r:.60}")
        if before is not None and receipt["forgotten"] < before["forgotten"]:
            result.problems.append(f"line {receipt['n']}: fewer rows are forgotten than before")
        before = receipt
    if before is None:
        result.notes.append("there are no receipts: nothing was forgotten or added since kernfed writes them")
        return
    listed = {_key(entry): entry for entry in before["after"]["kept"] if entry["generation"]}
    now = {entry.key: entry for entry in kept.values() if entry.generation}
    for known in listed.keys() & now.keys():
        if listed[known]["digest"] != now[known].digest:
            result.problems.append(f"{known[0]} of generation {known[1]} is not the one of line {before['n']}")
    newest: dict[str, int] = {}
    for name, generation in listed:
        newest[name] = max(generation, newest.get(name, 0))
    for name, generation in sorted(now.keys() - listed.keys()):
        if generation <= newest.get(name, 0):
            result.problems.append(f"{name} of generation {generation} was gone at line {before['n']}, and is back")
        else:
            result.notes.append(f"{name} of generation {generation} was trained after the newest receipt")
    for name, generation in sorted(listed.keys() - now.keys()):
        result.notes.append(f"{name} of generation {generation} is not kept any more")


def _key(entry: Mapping[str, Any]) -> tuple[str, int]:
    return str(entry["name"]).partition(".")[0], int(entry["generation"])


def _check_ids(result: Verification, store: SiteStore, forgotten: list[int], site: Site | None) -> None:
    """Whether the rows that receipts speak of are those that the site has forgotten, by the key of the ids."""
    receipts = result.check.receipts
    if not receipts:
        if (store.path / SECRET_FILE).exists():
            result.problems.append(f"there are no receipts, and {SECRET_FILE} says that there were some")
        return
    newest = receipts[-1]
    if len(forgotten) > newest["forgotten"]:
        result.problems.append(
            f"{len(forgotten) - newest['forgotten']} row(s) were forgotten without a receipt, by a process that was "
            "killed: forget the same rows again"
        )
    try:
        secret = read_secret(store.path)
    except StoreError as error:
        result.problems.append(str(error))
        return
    if secret is None or secret_fingerprint(secret) != newest["ids_key"]:
        result.problems.append(f"{SECRET_FILE} is gone or another one: nobody can tell which rows receipts speak of")
        return
    tags = {row_tag(secret, "forgotten", number) for number in forgotten}
    for receipt in receipts:
        if receipt["event"] == "forgotten" and not tags.issuperset(receipt["ids"]):
            result.problems.append(f"line {receipt['n']} has forgotten rows that the site does not list as forgotten")
    if site is not None and rows_tag(secret, rows_fingerprint(site)) != newest["rows"]["after"]:
        result.notes.append("the rows to learn from are not those of the newest receipt: the table has changed")


def _forgotten_rows(store: SiteStore, kept: Mapping[str, Kept], forgotten: list[int]) -> Iterator[str]:
    """Where a forgotten row is still in."""
    for name, entry in kept.items():
        if entry.ids is not None and np.isin(entry.ids, forgotten).any():
            yield f"{name} holds a row that was forgotten"
    try:
        added = store.read("rows")
    except FileFormatError:
        return  # it is among the damaged files
    if added is not None and np.isin(added.arrays["ids"], forgotten).any():
        yield "rows.safetensors holds a row that was forgotten"


def _remade(site: Site, store: SiteStore, kept: Mapping[str, Kept]) -> Iterator[Remade]:
    """Everything that is kept, made again from the rows."""
    for book in receipt_books():
        if book.remake is None or book.describe is None:
            continue
        for name in store.names(book.folder):
            entry = kept.get(f"{book.folder}/{name}")
            if entry is not None:
                yield _made_again(site, store, book, name, entry)


def _made_again(site: Site, store: SiteStore, book: ReceiptBook, name: str, entry: Kept) -> Remade:
    assert book.remake is not None
    assert book.describe is not None
    record = store.read(book.folder, name)
    assert record is not None
    try:
        made = book.remake(site, record)
    except StoreError as error:
        return Remade(entry.name, entry.generation, DIFFERENT, str(error))
    if isinstance(made, str):
        return Remade(entry.name, entry.generation, BY_HASH, made)
    if book.describe(entry.name, made).digest == entry.digest:
        return Remade(entry.name, entry.generation, SAME)
    if entry.computed != (fingerprint(),):
        why = "it was computed on another processor, or with other libraries, whose last bits may differ"
        return Remade(entry.name, entry.generation, NOT_COMPARABLE, why)
    return Remade(entry.name, entry.generation, DIFFERENT, "the same rows and choices give other bits here")


# A model file -----------------------------------------------------------------------------------------------------


def _descent(result: Verification, kept: Mapping[str, Kept], place: Path) -> None:
    """Whether a model file refers to, or holds, what the site keeps now, or kept at a receipt."""
    wrong = inexact(place) if place.is_file() else "it is not there"
    if wrong is not None:
        result.problems.append(f"{place.name} is damaged: {wrong}")
        return
    try:
        model = load(place)
    except KernfedError as error:
        result.problems.append(str(error))
        return
    traces = [book.trace(model, result.site) for book in receipt_books() if book.trace is not None]
    trace = next((trace for trace in traces if trace is not None), None)
    if trace is None:
        kind = type(model).__name__
        result.model = (
            f"{place.name}, a {kind}, refers to nothing that site {result.site!r} keeps, and does not say of which "
            "rows it was made: make it again after rows were forgotten"
        )
        (result.problems if isinstance(model, Model) and model.members_ else result.notes).append(result.model)
        return
    now = next((entry for entry in kept.values() if entry.key == trace.key), None)
    line = _last_line_with(result.check.receipts, trace)
    if now is not None and trace.content in ("", now.content):
        result.model = f"{place.name} descends from the state in force"
        if trace.head and line is not None and line["event"] == "forgotten":
            result.notes.append(f"nobody can tell whether its head was made before line {line['n']}: make it again")
        return
    if line is None:
        result.model = f"{place.name} descends from no state of site {result.site!r} that is kept or on a receipt"
        result.problems.append(result.model)
        return
    older = f"{place.name} is from before line {line['n']}, by which rows were {line['event']}"
    if trace.content or trace.head:
        result.model = f"{older}: it still holds {'machines' if trace.content else 'a head'} of then"
        result.problems.append(result.model)
    else:
        result.model = f"{older}: the site does not answer for it any more"
        result.notes.append(result.model)


def _last_line_with(receipts: list[dict[str, Any]], trace: Trace) -> dict[str, Any] | None:
    """The newest receipt that changed what a model refers to."""
    newest: dict[str, Any] | None = None
    for receipt in receipts:
        before = [entry["before"] for entry in receipt["touched"] if entry["before"] is not None]
        if any(_key(old) == trace.key and trace.content in ("", old["content"]) for old in before):
            newest = receipt
    return newest


def inexact(place: Path) -> str | None:
    """What is wrong with a file of the store or of a model, in words; None where nothing is."""
    try:
        if place.suffix == ".json":
            return _unlike(place.read_text(encoding="utf-8"), read_json_file(place), True)
        return _inexact_arrays(place.read_bytes())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"it cannot be read: {str(error)[:100]}"


def _inexact_arrays(content: bytes) -> str | None:
    """A file of arrays: eight bytes of length, a header in JSON filled up with blanks, and the arrays end to end."""
    size = int.from_bytes(content[:8], "little")
    if 8 + size > len(content):  # before as many blanks are made as a damaged length says
        return f"it has {len(content):,} bytes instead of at least {8 + size:,}"
    text = content[8 : 8 + size].decode()
    header = read_json(text)
    if text != json.dumps(header, separators=(",", ":"), ensure_ascii=False).ljust(size):
        return "its header is not what it was written as"
    about = header.pop("__metadata__", {})
    ends = [0]
    for begin, end in sorted(entry["data_offsets"] for entry in header.values()):
        if begin != ends[-1]:
            return "its arrays do not follow each other"
        ends.append(end)
    if len(content) != 8 + size + ends[-1]:
        return f"it has {len(content):,} bytes instead of {8 + size + ends[-1]:,}"
    said = about.get("kernfed", about.get("values", "{}"))  # of a model, or of a record in a store
    if str(int(about.get("checksum", "0"))) != about.get("checksum", "0"):
        return "its checksum is not written as a number is"
    return _unlike(said, read_json(said), "kernfed" in about)


def _unlike(text: str, said: Any, ordered: bool) -> str | None:
    return None if text == json.dumps(said, sort_keys=ordered) else "its text is not what its content is written as"

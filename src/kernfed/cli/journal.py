"""``kernfed journal``, ``kernfed approve`` and ``kernfed models``: what a site was asked, lets through, and keeps."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernfed.base.text import TextTable
from kernfed.cli.command import Command
from kernfed.cli.console import Json, emit
from kernfed.cli.options import check_output
from kernfed.errors import InputError

if TYPE_CHECKING:
    from datetime import timedelta

    from kernfed.site.approval import Approvals, Held
    from kernfed.site.journal import Journal

app = typer.Typer(
    name="journal", help="What a site was asked, by whom, and what left: show, check, export.", no_args_is_help=True
)
SHOW_EXAMPLE = "Example: kernfed journal show store/site-a --refused --last 20"
CHECK_EXAMPLE = "Example: kernfed journal check store/site-a --head 1234:9f86d081..."
EXPORT_EXAMPLE = "Example: kernfed journal export store/site-a --out journal-2026-11.jsonl"

Place = Annotated[Path, typer.Argument(help="The site's store, a folder of stores (with --name), or an exported file.")]
Name = Annotated[str | None, typer.Option(help="Name of the site, in a folder of several stores.")]
_COLUMNS = ("line", "time (UTC)", "asked by", "on behalf of", "what", "rows", "outcome", "left", "bytes", "charges")


@app.command("show", cls=Command, epilog=SHOW_EXAMPLE)
def show(
    store: Place,
    name: Name = None,
    task: Annotated[str | None, typer.Option(help="Only questions of this task.")] = None,
    caller: Annotated[str | None, typer.Option(help="Only what was asked by, or on behalf of, this name.")] = None,
    refused: Annotated[bool, typer.Option("--refused", help="Only what was refused.")] = False,
    since: Annotated[str | None, typer.Option(help="Only from this time on: 2026-11-17 or 2026-11-17T21:30.")] = None,
    until: Annotated[str | None, typer.Option(help="Only before this time.")] = None,
    last: Annotated[int, typer.Option(help="At most so many lines, the last ones.", min=1)] = 50,
    json: Json = False,
) -> None:
    """Show who asked what, and what left. Names "on behalf of" are what the question says, and worth no more."""
    from collections import deque

    from kernfed.site.journal import journal_place, read_journal

    lines = read_journal(journal_place(store, name))
    chosen = _chosen(lines, task=task, caller=caller, refused=refused, since=_moment(since), until=_moment(until))
    kept: deque[dict[str, Any]] = deque(maxlen=last)
    matching = 0
    for line in chosen:
        matching += 1
        kept.append(line)
    title = f"{matching:,} line{'' if matching == 1 else 's'}" + (f", the last {last}" if matching > last else "")
    emit({"matching": matching, "lines": list(kept)}, json, TextTable(_COLUMNS, [_cells(line) for line in kept], title))


@app.command("check", cls=Command, epilog=CHECK_EXAMPLE)
def check(
    store: Place,
    name: Name = None,
    head: Annotated[str | None, typer.Option(help="A head that was noted earlier, number:hash.")] = None,
    json: Json = False,
) -> None:
    """Check that no line was changed, taken out or put in. The exit code is 1 where one was.

    Note the head that is printed elsewhere, and give it to a later check: without it nobody can tell a journal that
    was cut off together with its own note of its end, or written anew with all its hashes.
    """
    from kernfed.site.journal import check_journal, journal_place

    place = journal_place(store, name)
    verdict = check_journal(place, head)
    whole = "every line follows from the one before" + (", and the line of the head is there" if head else "")
    torn = f"; {verdict.torn} torn by a kill and closed, for which no reply has left" if verdict.torn else ""
    emit(
        {
            "whole": not verdict.problems,
            "lines": verdict.lines,
            "first": verdict.first,
            "last": verdict.last,
            "torn": verdict.torn,
            "head": verdict.head,
            "problems": verdict.problems,
        },
        json,
        f"{verdict.lines:,} lines, numbered {verdict.first:,} to {verdict.last:,}{torn}",
        *(f"PROBLEM: {problem}" for problem in verdict.problems),
        *([] if verdict.problems else [whole]),
        f"head: {verdict.head}",
    )
    if verdict.problems:
        raise typer.Exit(1)


@app.command("export", cls=Command, epilog=EXPORT_EXAMPLE)
def export(
    store: Place,
    out: Annotated[Path, typer.Option(help="File to write: lines of JSON, which `journal check` reads.")],
    name: Name = None,
    json: Json = False,
) -> None:
    """Copy all lines as they are into one file, and print its head, by which later copies can be held against it."""
    from kernfed.site.journal import check_journal, export_journal, journal_place

    place = journal_place(store, name)
    check_output("--out", out)
    export_journal(place, out)
    verdict = check_journal(out)
    state = "" if not verdict.problems else f"; {len(verdict.problems)} problem(s), see kernfed journal check"
    emit(
        {"out": out, "lines": verdict.lines, "head": verdict.head, "problems": verdict.problems},
        json,
        f"{verdict.lines:,} lines written to {out}{state}",
        f"head: {verdict.head}",
    )


def _chosen(
    lines: Iterable[dict[str, Any]],
    *,
    task: str | None,
    caller: str | None,
    refused: bool,
    since: str | None,
    until: str | None,
) -> Iterator[dict[str, Any]]:
    for line in lines:
        time = str(line.get("time", ""))
        if (
            (task is None or line.get("task") == task)
            and (caller is None or caller in (line.get("asked_by"), line.get("on_behalf_of"), line.get("caller")))
            and (not refused or line.get("outcome") == "refused")
            and (since is None or time >= since)
            and (until is None or time < until)
        ):
            yield line


def _moment(text: str | None) -> str | None:
    """A day or a time as the journal writes it."""
    from datetime import UTC, datetime

    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"a time must be as 2026-11-17 or 2026-11-17T21:30, got {text!r:.40}") from None
    known = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return known.isoformat(timespec="milliseconds")


def _cells(line: Mapping[str, Any]) -> tuple[str, ...]:
    """One line of the table; what somebody outside chose cannot steer a terminal."""
    event = line.get("event")
    what = line.get("task", "") if event in ("asked", "owner") else " ".join([str(event), str(line.get("task", ""))])
    code, asked = line.get("code"), event == "asked"
    by = line.get("asked_by")
    cells = (
        line["n"],
        str(line.get("time", ""))[:23].replace("T", " "),
        ("?" if asked else "") if by is None else by,
        line.get("on_behalf_of", line.get("caller", "")),
        what or ("(unreadable)" if asked else ""),
        line.get("rows", ""),
        f"{line.get('outcome', '')}{f': {code}' if code else ''}",
        line.get("leaves", ""),
        line.get("bytes_out", ""),
        "." if line.get("charges") is None else line["charges"],
    )
    return tuple(printable(str(cell)) for cell in cells)


def printable(text: str) -> str:
    """A name that somebody outside chose, short and without signs that steer a terminal."""
    shown = text if len(text) <= 40 else f"{text[:37]}..."
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in shown)


approve_app = typer.Typer(
    name="approve",
    help="At a site: what its policy holds (approve = [...] in site.toml), and what of it goes through.",
    no_args_is_help=True,
)
LIST_EXAMPLE = "Example: kernfed approve list store/site-a"
ALLOW_EXAMPLE = "Example: kernfed approve allow store/site-a 3f9c21ab --for 8h"
WITHDRAW_EXAMPLE = "Example: kernfed approve withdraw store/site-a 77b01c2e"

Store = Annotated[Path, typer.Argument(help="The site's store, or a folder of stores (with --name).")]
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
_LONGEST_DAYS = 366


@approve_app.command("list", cls=Command, epilog=LIST_EXAMPLE)
def list_(store: Store, name: Name = None, json: Json = False) -> None:
    """List the questions that wait, and what is approved. A caller marked (said) is only what the question says."""
    from dataclasses import asdict

    held, approved = _open(store, name)[0].read()
    waiting = [
        (entry.key, entry.task, _caller(entry.caller, entry.known), str(entry.rows), entry.since) for entry in held
    ]
    going = [
        (entry.key, entry.task, _caller(entry.caller, entry.known), entry.question[:8] or "any", entry.until)
        for entry in approved
    ]
    emit(
        {
            "waiting": [{"key": entry.key, **asdict(entry)} for entry in held],
            "approved": [{"key": entry.key, **asdict(entry)} for entry in approved],
        },
        json,
        TextTable(("key", "task", "caller", "rows", "asked first (UTC)"), waiting, f"{len(held)} waiting"),
        TextTable(("key", "task", "caller", "question", "until (UTC)"), going, f"{len(approved)} approved"),
    )


@approve_app.command("allow", cls=Command, epilog=ALLOW_EXAMPLE)
def allow(
    store: Store,
    key: Annotated[str | None, typer.Argument(help="What `kernfed approve list` calls it.")] = None,
    lasting: Annotated[str, typer.Option("--for", help="How long: 30m, 8h, 7d.")] = "24h",
    identical: Annotated[bool, typer.Option("--identical", help="Only this very question, not its task.")] = False,
    task: Annotated[str | None, typer.Option(help="Instead of a key: a task, before it is asked.")] = None,
    caller: Annotated[str | None, typer.Option(help="With --task: who will ask, as the connection says.")] = None,
    said: Annotated[bool, typer.Option("--said", help="With --caller: a name that the caller gives itself.")] = False,
    name: Name = None,
    json: Json = False,
) -> None:
    """Let a task through for one caller until some time. Whoever asks must ask again."""
    from dataclasses import asdict

    approvals, journal = _open(store, name)
    about = _about(approvals, key, task, caller, known=not said, identical=identical)
    approval = approvals.approve(about, _duration(lasting), identical=identical, journal=journal)
    what = "this very question" if identical else "whatever it asks of it"
    shown = _caller(approval.caller, approval.known)
    emit(
        {"key": approval.key, **asdict(approval)},
        json,
        f"{approval.task} goes through for {shown}, {what}, until {approval.until} (key {approval.key})",
    )


@approve_app.command("withdraw", cls=Command, epilog=WITHDRAW_EXAMPLE)
def withdraw(
    store: Store,
    key: Annotated[str, typer.Argument(help="What `kernfed approve list` calls the approval.")],
    name: Name = None,
    json: Json = False,
) -> None:
    """Approve something no longer: the next question of the kind waits again."""
    from dataclasses import asdict

    approvals, journal = _open(store, name)
    ended = approvals.withdraw(key, journal=journal)
    shown = _caller(ended.caller, ended.known)
    emit({"key": ended.key, **asdict(ended)}, json, f"{ended.task} waits again for {shown}")


def _open(store: Path, name: str | None) -> "tuple[Approvals, Journal]":
    """Approvals and journal of a store in which a site has been asked something."""
    from kernfed.site.approval import Approvals
    from kernfed.site.journal import Journal, journal_place
    from kernfed.site.store import SiteStore

    folder = journal_place(store, name)
    if not folder.is_dir():
        raise InputError(f"approvals are in a site's store, got the file {folder}")
    memory = SiteStore(folder.parent)
    return Approvals(memory), Journal(memory, "")


def _about(
    approvals: "Approvals", key: str | None, task: str | None, caller: str | None, *, known: bool, identical: bool
) -> "Held":
    """What shall go through: a question that waits, or a task and a caller."""
    from kernfed.site.approval import Held
    from kernfed.site.protocol.task import policy_names

    if (key is None) == (task is None) or (task is None) != (caller is None):
        raise InputError("name the key of what waits, or both --task and --caller")
    if key is not None:
        if not known:
            raise InputError("--said belongs to --caller; what waits under a key has its caller")
        return approvals.waiting(key)
    assert task is not None
    assert caller is not None
    if task not in policy_names():
        raise InputError(f"--task must be one of {', '.join(policy_names())}, got {task!r:.60}")
    if identical:
        raise InputError("--identical is of a question that waits: name its key")
    return Held(task, caller, known, "", "", 0)


def _duration(text: str) -> "timedelta":
    from datetime import timedelta

    parts = re.fullmatch(r"(\d{1,6})([mhd])", text.strip())
    lasting = timedelta(**{_UNITS[parts[2]]: int(parts[1])}) if parts else timedelta()
    if not timedelta() < lasting <= timedelta(days=_LONGEST_DAYS):
        raise InputError(f"--for must be a time as 30m, 8h or 7d, at most {_LONGEST_DAYS}d, got {text!r:.40}")
    return lasting


def _caller(name: str, known: bool) -> str:
    return printable(name) if known else f"{printable(name)} (said)"


# Models ------------------------------------------------------------------------------------------------------------

MODELS_EXAMPLE = "Example: kernfed models store/site-a --model model.kfd"


def models(
    store: Annotated[Path, typer.Argument(help="The site's store, or a folder of stores (with --name).")],
    name: Name = None,
    model: Annotated[Path | None, typer.Option(help="A model file: mark the training that it uses here.")] = None,
    site: Annotated[str | None, typer.Option(help="With --model: the site, where its folder does not say it.")] = None,
    json: Json = False,
) -> None:
    """List the trainings that a site keeps, the newest first: handle, generation, when, of how many rows, who asked.

    A model file names one of them, and works for as long as it is kept; to go back to an older model, load its file.
    The policy's keep_models says how many are kept.
    """
    from dataclasses import asdict

    from kernfed.site.store import SiteStore, list_models

    folder = _one_store(store, name)
    kept = list_models(SiteStore(folder))
    used = None if model is None else _used_training(model, site or name or folder.name.removeprefix("site-"))
    rows = [
        (
            entry.handle,
            str(entry.generation) if entry.generation else "damaged",
            entry.method,
            entry.made[:19].replace("T", " ") or "?",
            "." if entry.rows is None else f"{entry.rows:,}",
            "released" if entry.private else "as they are",
            printable(entry.asked_by) or "?",
            *([] if model is None else ["this file" if (entry.handle, entry.generation) == used else ""]),
        )
        for entry in kept
    ]
    columns = ("handle", "generation", "learner", "made (UTC)", "rows", "rows are", "asked by")
    title = f"{len(kept)} training{'' if len(kept) == 1 else 's'} kept"
    remark = [] if used is None or any((e.handle, e.generation) == used for e in kept) else [_GONE]
    emit(
        {"models": [asdict(entry) for entry in kept], "used": used},
        json,
        TextTable((*columns, *([] if model is None else ["used by"])), rows, title),
        *remark,
    )


_GONE = "the training that this file uses is not kept here any more: use another file, or train again"


def _one_store(store: Path, name: str | None) -> Path:
    """The folder of a store: the one named, or the one of site ``name`` in a folder of stores."""
    from urllib.parse import quote

    places = [store] if name is None else [store / f"site-{quote(name, safe='')}"]
    if name is None and not (store / "state.json").is_file():
        places = sorted(place.parent for place in store.glob("site-*/state.json"))
    kept = [place for place in places if (place / "state.json").is_file()]
    if not kept:
        raise InputError(f"{store} holds no store of a site; name the folder that the site has kept")
    if len(kept) > 1:
        sites = ", ".join(place.name.removeprefix("site-") for place in kept[:20])
        raise InputError(f"{store} holds the stores of several sites, {sites}; name one with --name")
    return kept[0]


def _used_training(path: Path, site: str) -> tuple[str, int]:
    """Handle and generation that a model file names at a site."""
    from kernfed.federation import load

    loaded: Any = load(path)
    machines = getattr(loaded, "folding", loaded)
    members = getattr(machines, "members_", None)
    if members is None or not hasattr(machines, "handle"):
        raise InputError(f"--model must use machines at sites, a {type(loaded).__name__} is whole: its file is enough")
    if site not in members:
        sites = ", ".join(list(members)[:20])
        raise InputError(f"the model has no site {site!r}; name it with --site, there are {sites}")
    return str(machines.handle), int(members[site].generation)

"""``kernfed journal``: what a site was asked, by whom, and what left: shown, checked and exported, at the site."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from kernfed.cli.console import Json, TextTable, emit
from kernfed.cli.running import Command
from kernfed.cli.tables import check_output
from kernfed.errors import InputError

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
    told = f"{matching:,} line{'' if matching == 1 else 's'}" + (f", the last {last}" if matching > last else "")
    emit({"matching": matching, "lines": list(kept)}, json, TextTable(_COLUMNS, [_cells(line) for line in kept], told))


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

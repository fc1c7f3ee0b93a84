"""``kernfed approve``: questions that a site's policy holds, let through at the site, for a caller and for a time."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernfed.cli.console import Json, TextTable, emit
from kernfed.cli.journal import Name, printable
from kernfed.cli.running import Command
from kernfed.errors import InputError

if TYPE_CHECKING:
    from datetime import timedelta

    from kernfed.site.approval import Approvals, Held
    from kernfed.site.journal import Journal

app = typer.Typer(
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


@app.command("list", cls=Command, epilog=LIST_EXAMPLE)
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


@app.command("allow", cls=Command, epilog=ALLOW_EXAMPLE)
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


@app.command("withdraw", cls=Command, epilog=WITHDRAW_EXAMPLE)
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
    from kernfed.site.journal import Journal
    from kernfed.site.journal_reading import journal_place
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

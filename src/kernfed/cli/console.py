"""Printing of commands: results on stdout, notes and progress on stderr, numbers for people.

Heavy imports happen inside functions, so that ``kernfed --help`` answers at once.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from kernfed.base.text import TextTable, aligned, plain

#: The ``--json`` option of every command.
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]


def emit(result: Mapping[str, Any], as_json: bool, *views: TextTable | str) -> None:
    """Print a command's result: ``result`` as one JSON object, or else its ``views`` for people."""
    if as_json:
        print(json.dumps(plain(result), allow_nan=False))
        return
    for view in views:
        show(view)


def show(view: TextTable | str) -> None:
    """Print a table or a line on stdout; plain aligned text unless stdout is a terminal."""
    if isinstance(view, str):
        print(view)
    elif sys.stdout.isatty():
        _show_rich(view)
    else:
        print(aligned(view))


def note(text: str) -> None:
    """Print a remark on stderr."""
    print(text, file=sys.stderr)


def _show_rich(table: TextTable) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD)
    for place, name in enumerate(table.columns):
        drawn.add_column(name, justify="right" if table.numeric(place) else "left")
    for row in table.rows:
        drawn.add_row(*(Text(cell) for cell in row))
    console = Console()
    if table.title:  # a line of its own: a rich title wraps at the width of the table
        console.print(Text(table.title, style="bold"))
    console.print(drawn)


@contextmanager
def progress(description: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Progress on stderr for work over two seconds; shown on a terminal only, and gone at the end.

    Yields ``advance(steps=1, description=None)``. Without ``total`` the bar only shows that work goes on.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda *_: None
        return
    count = [MofNCompleteColumn()] if total is not None else []
    words = TextColumn("{task.description}", markup=False)
    columns = (SpinnerColumn(), words, BarColumn(), *count, TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(description, total=total)

        def advance(steps: int = 1, description: str | None = None) -> None:
            bar.update(task, advance=steps, description=description)

        yield advance

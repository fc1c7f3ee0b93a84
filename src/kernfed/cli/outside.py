"""Commands that other packages bring, declared by an entry point of the group ``kernfed.commands``.

Entry points are read when such a command is called: looking for them takes longer than all of ``kernfed --help``.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Literal

import typer

from kernfed.cli.running import Command, Commands

#: Entry points by which other packages declare commands, by name.
ENTRY_POINTS = "kernfed.commands"
#: Plain text for pipes and files.
MARKUP: Literal["rich"] | None = "rich" if sys.stdout.isatty() else None


@dataclass(frozen=True)
class OutsideCommand:
    """A command of another package: the function, whose signature holds its options, and the example in its help."""

    run: Callable[..., None]
    example: str = ""


class OpenCommands(Commands):
    """The group of all commands, those of other packages included; what they declare goes before what stands in."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Name, command and remaining arguments of what was called."""
        own = self.commands.get(args[0])
        if own is None or getattr(own.callback, "stands_in", False):
            outside = find_command(args[0])
            if outside is not None:
                return args[0], outside, args[1:]
        return super().resolve_command(ctx, args)


def find_command(name: str) -> Any:
    """The command of this name that another package declares, or None."""
    declared = [entry.load() for entry in entry_points(group=ENTRY_POINTS, name=name)]
    if not declared:
        return None
    app = typer.Typer(add_completion=False, rich_markup_mode=MARKUP, pretty_exceptions_enable=False)
    app.command(name, cls=Command, epilog=declared[0].example)(declared[0].run)
    return typer.main.get_command(app)

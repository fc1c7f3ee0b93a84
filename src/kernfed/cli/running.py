"""How a command ends: exit codes, and one sentence instead of a traceback."""

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from kernfed.errors import KernfedError, TooFewReplies

BAD_INPUT = 2
INTERNAL = 1
INTERRUPTED = 130
#: What the user can mend: everything the package raises on purpose, wrong values and files, a missing extra.
INPUT_ERRORS = (KernfedError, ValueError, OSError, ImportError)


class Command(TyperCommand):
    """A command whose help reads the same in a pipe as on a terminal."""

    def get_help(self, ctx: Any) -> str:
        """The help as plain text; on a terminal it is printed at once, and this is empty."""
        return super().get_help(ctx).replace("\\[", "[")  # escaped for a terminal, whether or not there is one


class Commands(TyperGroup):
    """The group of all commands, which ends every run in the same way, also under a test runner."""

    def main(  # type: ignore[override]  # the other options of the stock loop mean nothing here
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **_: Any
    ) -> NoReturn:
        """Run the command line ``args`` and exit with its code."""
        arguments = list(sys.argv[1:] if args is None else args)
        try:
            code = self._run(arguments or ["--help"], prog_name or "kernfed")
            sys.stdout.flush()
        except BrokenPipeError:  # whoever read our output has seen enough; nothing more may be written at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = INTERNAL
        sys.exit(code)

    def _run(self, arguments: list[str], prog_name: str) -> int:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning  # type: ignore[assignment]  # it needs the text only
                with self.make_context(prog_name, arguments) as context:
                    self.invoke(context)
        except typer.Exit as end:
            return end.exit_code
        except (KeyboardInterrupt, typer.Abort):
            print("interrupted", file=sys.stderr)
            return INTERRUPTED
        except BrokenPipeError:
            raise
        except Exception as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # a group without its command; on a terminal the help
                print(error.format_message())  # type: ignore[attr-defined]  # is out already and this is empty
                return 0
            if os.environ.get("KERNFED_DEBUG", "0") not in ("", "0"):
                raise
            print(f"kernfed: {sentence(error)}", file=sys.stderr)
            return BAD_INPUT if is_bad_input(error) else INTERNAL
        return 0


def is_bad_input(error: Exception) -> bool:
    """Whether the user can mend it."""
    return isinstance(error, INPUT_ERRORS) or hasattr(error, "format_message")  # of the option parser


def sentence(error: Exception) -> str:
    """What happened, on one line."""
    if hasattr(error, "format_message"):  # of the option parser; its class has no public name that lasts
        context = getattr(error, "ctx", None)
        text = f"{error.format_message()} (see {context.command_path if context else 'kernfed'} --help)"
    elif isinstance(error, TooFewReplies):  # what each site said, without the way there
        text = "; ".join(
            f"site {site!r}: {refusal.reason.partition(chr(10))[0]}" for site, refusal in error.missing.items()
        )
    elif isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror or type(error).__name__}"
    elif is_bad_input(error):
        text = str(error) or type(error).__name__
    else:
        text = f"internal error, {type(error).__name__}: {error}; set KERNFED_DEBUG=1 to see where"
    return " ".join(text.split())


def _show_warning(message: Warning | str, *_: Any) -> None:
    print(f"kernfed: warning: {message}", file=sys.stderr)

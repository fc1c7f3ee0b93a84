"""Classes of commands: how a run ends, options that learners declare, and commands that other packages bring."""

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import entry_points
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from kernfed.errors import InputError, KernfedError, TooFewReplies

if TYPE_CHECKING:
    from kernfed.site.fields import Setting

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
    """Whether an error is about what the user gave, and not a fault of the program."""
    return isinstance(error, INPUT_ERRORS) or hasattr(error, "format_message")  # of the option parser


def sentence(error: Exception) -> str:
    """One line of text that says what happened and, for options, where their help is."""
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
        known = self.commands.get(args[0])
        if known is None or getattr(known.callback, "stands_in", False):
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


class LearningCommand(Command):
    """A command with the settings of all learners as options; what was given is a ``Learning`` in ``ctx.obj``."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Options of the command, those of learners, and --help."""
        *options, help_option = super().get_params(ctx)
        return [*options, *self._learning, help_option]

    def invoke(self, ctx: Any) -> Any:
        """Run the command, with the settings that were given in ``ctx.obj``."""
        from kernfed.jobs.learning import Learning

        given = {option.name: ctx.params.pop(option.name) for option in self._learning}
        learner = given.pop("learner", "folding")  # machines are the first to use a mechanism alone
        values = {name.replace("_", "-"): value for name, value in given.items() if value is not None}
        ctx.obj = Learning(learner, values)
        return super().invoke(ctx)

    @cached_property
    def _learning(self) -> list[Any]:
        from kernfed.jobs.learning import USUAL_LEARNER
        from kernfed.site.fields import learners, settings_by_name

        learner = typer.Option("--learner", help="How to learn; of the options below, those of this learner count.")
        chosen = Parameter(
            "learner",
            Parameter.KEYWORD_ONLY,
            default=USUAL_LEARNER,
            annotation=Annotated[_one_of(learners()), learner],
        )
        return _options([chosen, *(_parameter(owners) for owners in settings_by_name().values())])


class ReleasingCommand(LearningCommand):
    """A command with the settings of a mechanism only."""

    @cached_property
    def _learning(self) -> list[Any]:
        from kernfed.site.release.settings import PRIVACY

        return _options([_parameter({"": setting}) for setting in PRIVACY if setting.name not in self.without])

    #: Settings of what comes after a release.
    without = ("smoothing", "label-epsilon", "classes")


def _options(parameters: list[Parameter]) -> list[Any]:
    """Options of the command line for the parameters of a function."""

    def function(**_: Any) -> None:
        pass

    function.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(function)
    return list(typer.main.get_command(app).params)


def _parameter(owners: Mapping[str, "Setting"]) -> Parameter:
    """The parameter for a setting that one learner has, or several: ``{learner: its setting}``."""
    from kernfed.site.fields import describe

    first = next(iter(owners.values()))
    kind: Any = type(first.usual)
    choices = dict.fromkeys(choice for setting in owners.values() for choice in setting.choices)
    limit: Any = first.at_least
    return Parameter(
        first.name.replace("-", "_"),
        Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            (_one_of(choices) if choices else kind) | None,
            typer.Option(f"--{first.name}", help=describe(owners), min=limit),
        ],
    )


def _one_of(choices: Iterable[str]) -> Any:
    """The type of an option with these choices. Its values are strings; those of an ``Enum`` are not in every typer."""
    return Literal[tuple(choices)]


BENCH_EXAMPLE = "Example: kernfed bench gikm-table-1 --seed 0"


def bench() -> None:
    """Run a published table again, print it beside the published numbers, and keep the result; or list the tables."""
    raise InputError(
        "the published tables are a package of their own, kernfed-papers, which is not installed; in a clone of the "
        "repository: pip install --editable papers"
    )


#: Gives way to the command of that name that another package declares.
bench.stands_in = True  # type: ignore[attr-defined]

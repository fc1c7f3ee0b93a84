"""The options of learners, as one object: commands that plan and commands that train take the same.

They come from the tables that methods declare (``kernfed.site.fields``), which are loaded when such a command
is called: that takes longer than all of ``kernfed --help``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kernfed.cli.running import Command
from kernfed.errors import InputError

if TYPE_CHECKING:
    from kernfed.data import Table
    from kernfed.site.fields import Setting

#: The learner where none is named.
USUAL_LEARNER = "fusion"


@dataclass(frozen=True)
class Learning:
    """A learner by name, and its settings as far as they were given."""

    learner: str = USUAL_LEARNER
    values: Mapping[str, Any] = field(default_factory=dict)

    def usually(self, **usual: Any) -> "Learning":
        """The same with other defaults, for settings that this learner has."""
        from kernfed.site.fields import learner_settings

        names = learner_settings(self.learner).names
        return replace(self, values={**{k: v for k, v in usual.items() if k in names}, **self.values})

    def make(self, table: "Table") -> Any:
        """The learner for the rows of a table, which has labels."""
        import numpy as np

        from kernfed.site.fields import Given, make_learner

        classes = tuple(np.unique(table.y).tolist())  # type: ignore[arg-type]  # commands that learn read labels
        learner = make_learner(self.learner, Given(self.values, "--", table.X.shape[1], classes))
        if getattr(learner, "task", "classify") == "classify" and len(classes) < 2:
            raise InputError(f"the label must have at least 2 classes, every row has {classes[0]!r}")
        return learner


class LearningCommand(Command):
    """A command with the settings of all learners as options; what was given is a ``Learning`` in ``ctx.obj``."""

    usual_learner = USUAL_LEARNER

    def get_params(self, ctx: Any) -> list[Any]:
        """The command's own options, those of learners, and --help."""
        *own, asking_for_help = super().get_params(ctx)
        return [*own, *self._learning, asking_for_help]

    def invoke(self, ctx: Any) -> Any:
        """Run the command, with the settings that were given in ``ctx.obj``."""
        given = {option.name: ctx.params.pop(option.name) for option in self._learning}
        learner = given.pop("learner", self.usual_learner)
        values = {name.replace("_", "-"): value for name, value in given.items() if value is not None}
        ctx.obj = Learning(learner, values)
        return super().invoke(ctx)

    @cached_property
    def _learning(self) -> list[Any]:
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
    """A command with the settings of a mechanism only, which machines are the first to use."""

    usual_learner = "folding"

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
    """The parameter for a setting that one learner has, or several: ``{learner: its own of that name}``."""
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

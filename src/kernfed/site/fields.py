"""Settings of learners by name: one table per method, for the options of commands and the configuration of jobs.

A value is text or a number, as a run's configuration can hold it. Empty text and 0 stand for "not given": the learner
then does what it does by default. A method names its table in ``Method.jobs``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernfed.base.checks import check_choice
from kernfed.errors import InputError
from kernfed.site.protocol.task import Method, methods, resolve

Value = str | int | float


@dataclass(frozen=True)
class Setting:
    """One setting of a learner.

    usual : what the learner does unless it is given, for whoever reads the help; its type is that of the values.
    choices : what it may be, where that is a short list. at_least : the smallest number it may be. parameter : the
    learner's name for it, by default the same with underscores. read : (value, name in messages) -> what the learner
    takes, by default the value.
    """

    name: str
    help: str
    usual: Value = ""
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    parameter: str = ""
    read: Callable[[Any, str], Any] | None = None

    @property
    def absent(self) -> Value:
        """What stands for "not given"."""
        return type(self.usual)()

    @property
    def argument(self) -> str:
        """The learner's parameter."""
        return self.parameter or self.name.replace("-", "_")


@dataclass(frozen=True)
class Given:
    """Settings that somebody gave, by name; those not given are absent.

    prefix : what stands before a name in messages, "--" on the command line. width, classes : columns and labels of the
    rows, where these are at hand.
    """

    values: Mapping[str, Value] = field(default_factory=dict)
    prefix: str = ""
    width: int | None = None
    classes: tuple[Any, ...] | None = None

    def get(self, name: str) -> Any:
        """The value of a setting, or None."""
        return self.values.get(name)

    def shown(self, name: str) -> str:
        """The name of a setting in messages."""
        return f"{self.prefix}{name}"


@dataclass(frozen=True)
class LearnerSettings:
    """What a method declares: its table, how settings become arguments of the learner, and how a run of it is planned.

    arguments : by default each setting is one argument. plan : "module:function", (learner, schemas, queries, seed=) ->
    ``Traffic``, for a method that knows the size of its messages beforehand.
    """

    table: tuple[Setting, ...]
    arguments: Callable[[Given], dict[str, Any]] | None = None
    plan: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all settings."""
        return tuple(setting.name for setting in self.table)


def learners() -> dict[str, Method]:
    """Methods that learn, by name."""
    return {method.name: method for method in methods() if method.jobs}


def learner_settings(name: str) -> LearnerSettings:
    """What the method of this name declares."""
    settings: LearnerSettings = resolve(learners()[name].jobs)
    return settings


def settings_by_name() -> dict[str, dict[str, Setting]]:
    """All settings, ``{setting: {learner: its setting of that name}}``; those of one name are of one type."""
    every: dict[str, dict[str, Setting]] = {}
    for learner in learners():
        for setting in learner_settings(learner).table:
            every.setdefault(setting.name, {})[learner] = setting
    for name, owners in every.items():
        if len({type(setting.usual) for setting in owners.values()}) > 1:
            raise InputError(f"setting {name!r} must be of one type, {', '.join(owners)} differ")
    return every


def describe(owners: Mapping[str, Setting]) -> str:
    """What a setting is, whose, and what it is unless given."""
    first = next(iter(owners.values()))
    usual = {learner: setting.usual for learner, setting in owners.items() if setting.usual != setting.absent}
    text = f"{' and '.join(owners)}: {first.help}" if any(owners) else first.help
    if not usual:
        return text
    values = dict.fromkeys(usual.values())
    alike = len(values) == 1 and len(usual) == len(owners)
    said = values if alike else [f"{value} ({learner})" for learner, value in usual.items()]
    return f"{text.removesuffix('.')}; default {', '.join(map(str, said))}."


def make_learner(name: str, given: Given) -> Any:
    """The learner of a method, with the arguments that settings describe; a setting of other learners is refused."""
    check_choice(name, given.shown("learner"), tuple(learners()))
    settings = learner_settings(name)
    for other in given.values:
        if other not in settings.names:
            owners = " or ".join(settings_by_name()[other])
            raise InputError(
                f"{given.shown(other)} is for {given.shown('learner')} {owners}, not for {name}; leave it out"
            )
    arguments = settings.arguments or (lambda given: plain_arguments(settings.table, given))
    learner: Any = resolve(learners()[name].learner)(**arguments(given))
    return learner


def plain_arguments(table: tuple[Setting, ...], given: Given) -> dict[str, Any]:
    """Arguments of a learner of which each setting of ``table`` is one, as far as they were given."""
    arguments: dict[str, Any] = {}
    for setting in table:
        value, shown = given.get(setting.name), given.shown(setting.name)
        if value is None:
            continue
        if setting.choices:
            check_choice(value, shown, setting.choices)
        if setting.at_least is not None and not value >= setting.at_least:
            raise InputError(f"{shown} must be >= {setting.at_least:g}, got {value!r}")
        arguments[setting.argument] = value if setting.read is None else setting.read(value, shown)
    return arguments

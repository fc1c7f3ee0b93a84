"""Settings of learners by name: one table per method, for the options of commands and the configuration of jobs.

A value is text or a number, as a run's configuration can hold it. Empty text and 0 stand for "not given": the learner
then does what it does by default. A method names its table in ``Method.jobs``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernfed.base.checks import check_choice
from kernfed.base.fields import Field
from kernfed.errors import InputError
from kernfed.site.protocol.task import Method, methods, resolve

Value = str | int | float


#: One setting of a learner is a declared field: ``usual`` is what the learner does unless it is given.
Setting = Field


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
    """What a method declares: its table, and how settings become arguments of the learner (by default each is one)."""

    table: tuple[Setting, ...]
    arguments: Callable[[Given], dict[str, Any]] | None = None

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
    arguments = settings.arguments or (lambda values: plain_arguments(settings.table, values))
    learner: Any = resolve(learners()[name].learner)(**arguments(given))
    return learner


def plain_arguments(table: tuple[Setting, ...], given: Given) -> dict[str, Any]:
    """Arguments of a learner of which each setting of ``table`` is one, as far as they were given."""
    values = {setting: given.get(setting.name) for setting in table}
    return {
        setting.argument: setting.given(value, given.shown(setting.name))
        for setting, value in values.items()
        if value is not None
    }


# How texts are read that stand for more than text -----------------------------------------------------------------


def read_number(text: str, name: str) -> float:
    """The number that ``text`` says; ``name`` stands in the message where it says none."""
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name} must be a number, got {text!r}") from None


def read_bandwidth(text: str, name: str) -> float | str:
    """``median``, or a number."""
    try:
        return text if text == "median" else float(text)
    except ValueError:
        raise InputError(f"{name} must be median or a number, got {text!r}") from None


def read_yes(text: str, name: str) -> bool:
    """Whether ``yes`` or ``no`` is yes."""
    return check_choice(text, name, ("yes", "no")) == "yes"

"""Settings of a ``FusionLearner``, for commands and jobs: those of its parts, and its own."""

from dataclasses import replace
from typing import Any

from kernfed.errors import InputError
from kernfed.federation.folding.learner import FoldingLearner
from kernfed.federation.folding.settings import SETTINGS as FOLDING
from kernfed.federation.ridge.learner import RidgeLearner
from kernfed.federation.ridge.settings import AGGREGATE
from kernfed.federation.ridge.settings import SETTINGS as RIDGE
from kernfed.fusion.parts import VISITS
from kernfed.site.fields import Given, LearnerSettings, Setting, plain_arguments


def _weight(text: str, name: str) -> float | str:
    """``auto``, or a number."""
    try:
        return text if text == "auto" else float(text)
    except ValueError:
        raise InputError(f"{name} must be auto or a number of at least 0, got {text!r}") from None


OWN = (
    Setting("weight", "Of machines beside the head: auto, or a number; 0 is the head alone.", "auto", read=_weight),
    Setting("visit", "always, or unsure: the head answers alone where it is sure.", "always", tuple(VISITS)),
)
#: What the fusion decides for both parts.
_SHARED = ("hold", "privacy", "task")
_FOLDING = tuple(setting for setting in FOLDING.table if setting.name not in _SHARED)
_RIDGE = (
    *(setting for setting in RIDGE.table if setting.name not in {own.name for own in FOLDING.table} | {"task"}),
    replace(AGGREGATE, name="head-aggregate", parameter="aggregate", help="Of the head: " + AGGREGATE.help),
)
_BOTH = (
    *(setting for setting in FOLDING.table if setting.name in ("hold", "privacy")),
    *(setting for setting in RIDGE.table if setting.name == "task"),
)


def _part(settings: LearnerSettings, given: Given) -> dict[str, Any]:
    """Arguments of a part's learner, of the settings that are its own."""
    own = replace(given, values={name: value for name, value in given.values.items() if name in settings.names})
    make = settings.arguments or (lambda given: plain_arguments(settings.table, given))
    return make(own)


def _arguments(given: Given) -> dict[str, Any]:
    folding = _part(FOLDING, given)
    ridge = plain_arguments(_RIDGE, given)
    if "scale" in folding:  # one setting for both parts
        ridge["scale"] = folding["scale"]
    shared: dict[str, Any] = {name: folding.pop(name) for name in ("hold", "privacy", "sum") if name in folding}
    task = given.get("task")
    return {
        **plain_arguments(OWN, given),
        **shared,
        **({} if task is None else {"task": task}),
        "folding": FoldingLearner(**folding) if folding else None,
        "ridge": RidgeLearner(**ridge) if ridge else None,
    }


SETTINGS = LearnerSettings((*OWN, *_FOLDING, *_RIDGE, *_BOTH), _arguments)

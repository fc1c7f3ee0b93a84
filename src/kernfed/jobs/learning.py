"""A learner by name with the settings that were given, for the labels of a table."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.data import Table
from kernfed.errors import InputError
from kernfed.site.fields import Given, Value, learner_settings, make_learner

#: The learner where none is named: of commands, of a hub's jobs and of Flower's.
USUAL_LEARNER = "fusion"
#: More different whole numbers than the first are classes only if somebody says so; so are more than the second where
#: fewer rows than the third share one, on average.
_MANY, _SOME, _ROWS_EACH = 50, 20, 10
#: Share of the largest class from which classes are unequal.
_UNEQUAL = 0.7


@dataclass(frozen=True)
class Learning:
    """A learner by name, and its settings as far as they were given; ``prefix`` stands before names in messages."""

    learner: str = USUAL_LEARNER
    values: Mapping[str, Value] = field(default_factory=dict)
    prefix: str = "--"

    @property
    def private(self) -> bool:
        """Whether a release under differential privacy is asked for."""
        return "privacy" in self.values

    def usually(self, **usual: Value) -> "Learning":
        """The same with other defaults, for settings that this learner has."""
        names = learner_settings(self.learner).names
        return replace(self, values={**{k: v for k, v in usual.items() if k in names}, **self.values})

    def make(self, table: Table | None = None) -> Any:
        """The learner, for the rows of a table with labels or, without one, for rows at sites elsewhere."""
        if table is None:
            return make_learner(self.learner, Given(self.values, self.prefix))
        assert table.y is not None
        classes = tuple(np.unique(table.y).tolist())
        learner = make_learner(self.learner, Given(self.values, self.prefix, table.X.shape[1], classes))
        if getattr(learner, "task", "classify") == "classify" and len(classes) < 2:
            raise InputError(f"the label must have at least 2 classes, every row has {classes[0]!r}")
        return learner

    def for_labels(self, y: npt.NDArray[Any], label: str) -> tuple["Learning", str]:
        """The same for what labels (n,) are, classes or values to regress on; and a sentence: which of them, and why.

        A learner that knows classes only makes room for ridge where labels are values.
        """
        task, why = _task(self.values.get("task"), y, label)
        values = {name: value for name, value in self.values.items() if name != "task"}
        if "task" in learner_settings(self.learner).names:
            return replace(self, values={**values, "task": task}), why
        if task == "classify":
            return replace(self, values=values), why
        return replace(self, learner="ridge", values={**values, "task": task}), f"{why}, with --learner ridge"


def _task(given: Any, y: npt.NDArray[Any], label: str) -> tuple[str, str]:
    """``classify`` or ``regress``, and why."""
    if given is not None:
        return given, f"{label!r}: {'classes' if given == 'classify' else 'values'}, as --task says"
    distinct = len(np.unique(y))
    if y.dtype.kind == "f" and (y != np.floor(y)).any():
        return "regress", f"{label!r} holds fractions: learning values (regression)"
    numbers = y.dtype.kind in "iuf"
    if numbers and (distinct > _MANY or (distinct > _SOME and len(y) < _ROWS_EACH * distinct)):
        raise InputError(
            f"{label!r} holds {distinct:,} different whole numbers in {len(y):,} rows: say --task classify if each "
            "is a class, or --task regress if they are amounts"
        )
    return "classify", f"{label!r} holds {distinct} different {'numbers' if numbers else 'words'}: learning classes"


def imbalance(y: npt.NDArray[Any]) -> list[str]:
    """What to know of classes that are far from equal, in sentences."""
    labels, counts = np.unique(y, return_counts=True)
    largest, share = labels[counts.argmax()], counts.max() / counts.sum()
    if share < max(_UNEQUAL, 1.5 / len(labels)) or len(labels) < 2:
        return []
    return [
        f"Classes are unequal: always saying {largest.item()!r} would be right for {share:.1%} of these rows, so that "
        "accuracy alone says little; look at balanced accuracy (kernfed evaluate)."
    ]

"""Answers of a model that knows when it does not know: sets of classes, and rows unlike everything."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.abstain import probability_bins
from kernfed.base.answer import Answer
from kernfed.base.checks import FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class CoveredAnswer(Answer):
    """An answer with a coverage.

    sets : (n, C) which classes are in each row's set. abstained : (n,) rows whose set has not one class, or which are
    unlike everything. p_value : (n,) of "nothing like this was ever seen", None for models without machines.
    """

    sets: npt.NDArray[np.bool_]
    abstained: npt.NDArray[np.bool_]
    p_value: FloatArray | None = None


def abstained(model: Any, answer: Answer, rows: FloatArray, share: float, options: Mapping[str, Any]) -> CoveredAnswer:
    """The answer for rows (n, p) with sets of coverage 1 - ``share``, as ``predict(rows, abstain=share)`` abstains."""
    likely, distances = model.conforming(rows, **options)
    sets = probability_bins(likely) <= model.conformal_.thresholds(model.classes_, 1 - share)
    unsure = sets.sum(axis=1) != 1
    strangers = distances is not None and model.conformal_.nearest is not None
    p_value = model.conformal_.p_values(distances) if strangers else None
    if p_value is not None:
        unsure |= p_value <= share
    own = {one.name: getattr(answer, one.name) for one in fields(Answer)}
    return CoveredAnswer(**own, sets=sets, abstained=unsure, p_value=p_value)

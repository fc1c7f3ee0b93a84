"""How sites' scores become one answer: the smallest (the papers), or the k-th smallest (survives k - 1 liars)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed._validation import FloatArray
from kernfed.answer import Answer

AGGREGATES = ("min", "kth")


def combine(scores: FloatArray, holds: npt.NDArray[np.bool_], aggregate: str, k: int, absent: float) -> FloatArray:
    """Scores (n, C) of the federation from scores (Q, n, C) by site, of which only those with ``holds`` (Q, C) count.

    "min" is GIKM Definition 3 (18) and SFM Definition 2 (105). "kth" is the k-th smallest among the sites that hold
    the class, or the largest where fewer do. A class that nobody holds scores ``absent``.
    """
    hidden = np.where(holds[:, None, :], scores, np.inf)
    if aggregate == "min":
        combined = hidden.min(axis=0)
    else:
        place = np.clip(np.minimum(k, holds.sum(axis=0)) - 1, 0, None)
        ordered = np.sort(hidden, axis=0)
        combined = np.take_along_axis(ordered, place[None, None, :], axis=0)[0]
    return np.where(holds.any(axis=0), combined, absent)


def unprotected(holds: npt.NDArray[np.bool_], aggregate: str, k: int) -> npt.NDArray[np.bool_]:
    """Which classes (C,) one wrong site can decide: all with "min" or k = 1, else those of fewer than k holders."""
    if aggregate == "min" or k == 1:
        return np.ones(holds.shape[1], dtype=bool)
    few: npt.NDArray[np.bool_] = holds.sum(axis=0) < k
    return few


def exposure(classes: npt.NDArray[Any], holds: npt.NDArray[np.bool_], aggregate: str, k: int) -> str | None:
    """Which classes (C,) "kth" does not protect from wrong sites, in words; None if it protects all, and of "min"."""
    names = [repr(label) for label in classes[unprotected(holds, aggregate, k)].tolist()]
    if aggregate == "min" or not names:
        return None
    if k == 1:
        return "with k=1 a single wrong site can decide every class"
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return (
        f"wrong sites can decide {len(names)} of {len(classes)} classes, which fewer than k={k} of {len(holds)} "
        f"site(s) hold: {listed}"
    )


@dataclass(frozen=True)
class Explanation:
    """Who decided: per query the label, the site that was nearest in that class, its batch, and the score (n,)."""

    label: npt.NDArray[Any]
    site: npt.NDArray[Any]
    batch: npt.NDArray[np.intp]
    score: FloatArray

    @classmethod
    def of(cls, answer: Answer) -> "Explanation":
        """The part of a folding model's answer that says who decided."""
        assert answer.site is not None
        assert answer.batch is not None
        assert answer.score is not None
        return cls(answer.labels, answer.site, answer.batch, answer.score)

    def shares(self) -> dict[str, float]:
        """Each site's share of winning answers, largest first."""
        names, counts = np.unique(self.site, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return {str(names[i]): float(counts[i] / len(self.site)) for i in order}

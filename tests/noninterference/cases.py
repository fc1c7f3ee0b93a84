"""Policies and rows on which noninterference is tested, and honest questions for them."""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.site.policy import Policy
from kernfed.site.rows import Rows
from kernfed.testing.verify.questions import Facts, Recording, record_questions

ROWS, WIDTH = 12, 3
#: Labels by the name of their kind.
LABELS: dict[str, npt.NDArray[Any]] = {
    "numbers": np.arange(ROWS) % 3,
    "two": np.array([0] * 7 + [1] * 5),
    "words": np.array(list("aab" * 4)),
    "floats": np.arange(ROWS) % 3 * 1.0,
    "targets": np.random.default_rng(5).normal(size=ROWS),
    "whole targets": np.arange(ROWS),
}


def policy(**settings: Any) -> Policy:
    return Policy(**{"tasks": ("*",), "max_record_epsilon": 20.0, "max_features": 64, **settings})


#: Kind of labels and policy.
CASES: dict[str, tuple[str, Policy]] = {
    "public classes": ("numbers", policy()),
    "few rows per class": ("two", policy(min_rows_per_class=6)),
    "a small budget": ("numbers", policy(max_record_epsilon=5.0)),
    "gaussian rows only": ("words", policy(mechanisms=("record-gaussian",))),
    "moments only": ("numbers", policy(mechanisms=("record-moments",))),
    "sums and embeddings only": ("floats", policy(mechanisms=("record-ridge", "record-embedding"))),
    "elements only": ("numbers", policy(mechanisms=("element-laplace", "element-staircase"))),
    "private labels": ("numbers", policy(private_labels=True)),
    "private words, few rows": ("words", policy(private_labels=True, min_rows_per_class=5)),
    "targets": ("targets", policy(labels="targets")),
    "targets, few rows": ("targets", policy(labels="targets", min_rows_per_class=5)),
    "whole targets": ("whole targets", policy(labels="targets", queries_per_day=5)),
    "persons": ("numbers", policy(max_record_epsilon=30.0)),
}


def rows_of(case: str) -> Rows:
    X = np.random.default_rng(4).uniform(-1.0, 1.0, size=(ROWS, WIDTH))
    persons = np.array([f"p{number // 2}" for number in range(ROWS)]) if case == "persons" else None
    return Rows(X, LABELS[CASES[case][0]], np.arange(ROWS, dtype=np.int64) + 100, persons)


@cache
def _recorded(labels: str) -> Recording:
    rows = Rows(np.zeros((ROWS, WIDTH)), LABELS[labels], np.arange(ROWS, dtype=np.int64))
    rules = policy(labels="targets") if "targets" in labels else policy()
    return record_questions(Facts.of("site", rows, rules))


def recording(case: str) -> Recording:
    """Honest questions, recorded once for alike labels: what they ask for fits all budgets but the small ones."""
    labels = CASES[case][0]
    return _recorded({"two": "numbers", "floats": "numbers", "whole targets": "targets"}.get(labels, labels))

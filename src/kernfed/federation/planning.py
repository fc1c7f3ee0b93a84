"""What a learner would send and receive, before anything is asked of a site.

A method that knows its messages beforehand declares a plan of its own, to the byte; what sites have still to choose
(the learner is ``undecided``) is counted at the most it can come to. Every other learner is rehearsed: it is run, in
this process, on made-up rows of the same shape with the sites' own labels, and its traffic is the plan.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.base.random import generator
from kernfed.errors import KernfedWarning
from kernfed.federation.asking import Federation
from kernfed.site.fields import learner_settings
from kernfed.site.protocol.schema import Schema
from kernfed.site.protocol.task import resolve
from kernfed.site.protocol.traffic import Traffic

#: Rows of a site that are made up, beside one of each class: their number is in few messages, as a few digits.
REHEARSED = 500


@dataclass(frozen=True)
class Plan:
    """What would be exchanged: to the byte where ``exact``, about right where it was ``rehearsed``, else at most."""

    traffic: Traffic
    exact: bool
    rehearsed: bool = False


def plan_learner(
    name: str,
    learner: Any,
    rows: Mapping[str, tuple[FloatArray, npt.NDArray[Any]]],
    columns: Sequence[str] = (),
    *,
    queries: int = 0,
    seed: int = 0,
) -> Plan:
    """The traffic of training the learner of method ``name`` on ``{site: (X, y)}`` and of then scoring ``queries``."""
    own = learner_settings(name).plan
    if not own or getattr(learner, "sum", None) is not None:  # how many messages a masked sum takes is its own matter
        return Plan(rehearse(learner, rows, columns, queries=queries, seed=seed), exact=False, rehearsed=True)
    schemas = {}
    for site, (X, y) in rows.items():
        labels, counts = np.unique(y, return_counts=True)
        schemas[site] = Schema(X.shape[1], tuple(labels.tolist()), tuple(counts.tolist()), tuple(columns))
    return Plan(resolve(own)(learner, schemas, queries, seed=seed), exact=not getattr(learner, "undecided", False))


def rehearse(
    learner: Any,
    rows: Mapping[str, tuple[FloatArray, npt.NDArray[Any]]],
    columns: Sequence[str] = (),
    *,
    queries: int = 0,
    seed: int = 0,
) -> Traffic:
    """Traffic of a training on made-up rows: sizes are those of the real one, rounds those that such rows need.

    Machines that leave their sites have as many rows as theirs; queries are put where sites answer them.
    """
    stand_ins = {}
    leave = getattr(learner, "hold", "sites") == "machines"
    for site, (X, y) in sorted(rows.items()):
        most = len(y) if leave else REHEARSED
        kept = np.union1d(np.arange(min(len(y), most)), np.unique(y, return_index=True)[1])
        stand_ins[site] = (generator(seed, site, "rehearsal").normal(size=(len(kept), X.shape[1])), y[kept])
    with (
        TemporaryDirectory(prefix="kernfed-plan-") as folder,
        Federation.local(stand_ins, seed=seed, columns=columns, store=folder) as federation,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", KernfedWarning)  # they would be about made-up rows
        model = learner.fit(federation)
        if queries and getattr(model, "connection", None) is not None:
            width = next(iter(rows.values()))[0].shape[1]
            model.scores(generator(seed, "", "rehearsal").normal(size=(queries, width)))
        return federation.traffic

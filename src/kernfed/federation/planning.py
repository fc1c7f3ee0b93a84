"""What a learner would send and receive, before anything is asked of a site.

A plan drives the learner's program in this process, on made-up rows of the same shape with the labels of the sites,
and counts its messages.
"""

import warnings
from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.base.random import generator
from kernfed.errors import KernfedWarning
from kernfed.federation.asking import Federation
from kernfed.site.protocol.traffic import Traffic

#: Rows of a site that are made up, beside one of each class: their number is in few messages, as a few digits.
REHEARSED = 500


def planned_traffic(
    learner: Any,
    rows: Mapping[str, tuple[FloatArray, npt.NDArray[Any]]],
    columns: Sequence[str] = (),
    *,
    queries: int = 0,
    seed: int = 0,
) -> Traffic:
    """Traffic of a training on ``{site: (X, y)}`` and of then scoring ``queries``, by made-up rows of that shape.

    Sizes of messages are those of the real training, rounds those that such rows need.

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

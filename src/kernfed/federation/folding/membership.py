"""A membership attack on rows that are forgotten: what it finds before, and whether anything is left to find after."""

import numpy as np
import numpy.typing as npt

from kernfed.base.labels import ClassIndex
from kernfed.base.random import generator
from kernfed.base.threads import single_blas_thread
from kernfed.federation.folding.generations import holds_same_rows
from kernfed.federation.folding.machines import SiteMachines, machines_of_record, reduced
from kernfed.files import Record
from kernfed.privacy.roc import Attack, roc
from kernfed.site.rows import Rows
from kernfed.site.site import Site

#: Rows of each kind that an attack needs to say anything.
_FEWEST = 5


def attack_forgetting(site: Site, record: Record, count: int, seed: int) -> tuple[Attack, Attack] | None:
    """Membership attacks on rows before and after they are forgotten, beside rows that were never in; in memory only.

    Of the machines' rows two samples of ``count`` are drawn. Without the second, the first are members and the second
    are like them but were never in. Then the first are forgotten, too, in the way all rows are: now both are outside,
    and nobody can tell them apart unless something of the first has stayed. The score is the row's measure for its own
    class: what ``scores`` answers to whoever has the row.
    """
    kept = machines_of_record(record)
    rows = site.rows(every_class=True)
    if kept.private is not None or not holds_same_rows(kept, rows):
        return None
    own = rows.take(np.isin(rows.ids, kept.ids))
    count = min(count, len(own.ids) // 4)
    if count < _FEWEST:
        return None
    drawn = generator(seed, site.name, "forgetting attack").permutation(len(own.ids))[: 2 * count]
    first, second = own.take(drawn[:count]), own.take(drawn[count:])
    before = reduced(kept, own.take(~np.isin(own.ids, second.ids)))
    after = None if before is None else reduced(before, own.take(~np.isin(own.ids, own.ids[drawn])))
    if before is None or after is None:
        return None
    knows = "the row and its label, and asks for its scores"
    return (
        Attack("before", knows, roc(_nearness(before, first), _nearness(before, second))),
        Attack("after", knows, roc(_nearness(after, first), _nearness(after, second))),
    )


def _nearness(machines: SiteMachines, rows: Rows) -> npt.NDArray[np.float64]:
    """How near each row (n,) is to the machines of its own class; the far end where none are left."""
    with single_blas_thread():
        answers = machines.bank().scores(machines.parameters.scaled(rows.X), machines.parameters.measure)
    columns = ClassIndex(machines.classes).numbers(rows.y, "minus-one")
    own = answers.values[np.arange(len(columns)), columns]
    return -np.where(columns >= 0, own, answers.values.max()).astype(np.float64)

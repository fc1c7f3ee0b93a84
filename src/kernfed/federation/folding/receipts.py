"""What receipts say of machines, and the attack that measures whether forgotten rows left a trace."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.labels import ClassIndex
from kernfed.base.random import generator
from kernfed.base.threads import single_blas_thread
from kernfed.errors import StoreError
from kernfed.federation.folding.generations import holds_same_rows
from kernfed.federation.folding.machines import (
    FOLDER,
    SiteMachines,
    fit_batches,
    machines_of_record,
    record_of_machines,
    reduced,
)
from kernfed.federation.folding.release import Recipe, fabricated_rows, fingerprint, read_recipe
from kernfed.files import Record, content_digest, labels_from_values
from kernfed.kahm.model import FoldingModel
from kernfed.kahm.model_file import pack_machines
from kernfed.privacy import RecordMoments
from kernfed.privacy.roc import Attack, roc
from kernfed.site.receipts import Kept, ReceiptBook, Trace
from kernfed.site.release.kept import read_release
from kernfed.site.release.permit import name_by_row, name_of_once
from kernfed.site.rows import Rows
from kernfed.site.site import Site


def describe(name: str, record: Record) -> Kept:
    """Machines as receipts know them; when and for whom they were made is not part of what they are."""
    values, arrays = record.values, record.arrays
    computed = tuple(map(str, values.get("origin", {}).get("computed", ("unknown",))))
    labels = labels_from_values(values["labels"])
    said = {name: value for name, value in values.items() if name != "origin"}
    ids: npt.NDArray[np.int64] = arrays["ids"]
    cuts = np.cumsum(arrays["shapes"][:-1, 0])
    return Kept(
        name,
        int(values["generation"]),
        content_digest({**said, "computed": list(computed)}, arrays),
        _content({key: array for key, array in arrays.items() if key != "ids"}, _groups(labels)),
        _choices(values),
        frozenset(_part(*entry) for entry in zip(labels.tolist(), np.split(ids, cuts), strict=True)),
        ids if values.get("private") is None else None,  # else they may be those of blank or of fabricated rows
        computed,
    )


def _groups(labels: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return ClassIndex(np.unique(labels)).numbers(labels).astype(np.int64)


def _content(machines: dict[str, npt.NDArray[Any]], groups: npt.NDArray[np.int64]) -> str:
    """Digest of machines and of the classes they are of, as a model file may hold them."""
    return content_digest({}, {**machines, "groups": groups})


def _part(label: Any, batch: npt.NDArray[np.int64]) -> str:
    return hashlib.sha256(repr(label).encode() + b"\0" + batch.tobytes()).hexdigest()[:16]


def _choices(values: Any) -> dict[str, Any]:
    """What was, or may have been, chosen by rows: how a class is divided, and the unit of the columns."""
    given = values["parameters"]
    divided = f"{given['partition']}, batches of {given['batch_size']}, seed {given['seed']}"
    scale = given.get("scale")
    unit = "none" if scale is None else hashlib.sha256(repr(sorted(scale.items())).encode()).hexdigest()[:16]
    return {"division into batches": divided, "unit": unit}


def remake(site: Site, record: Record) -> Record | str:
    """The record of machines fitted from scratch on the rows held now, with the division that it records."""
    kept = machines_of_record(record)
    if kept.private is not None:
        return _remake_released(site, kept, kept.private)
    rows = site.rows(every_class=True)
    if not holds_same_rows(kept, rows):
        raise StoreError("it is made of rows that the site does not hold any more, or holds otherwise")
    return _fitted_again(kept, rows, None)


def _remake_released(site: Site, kept: SiteMachines, private: Mapping[str, Any]) -> Record | str:
    """Machines fitted again on what was released of the rows: it was drawn once, and the store has it."""
    recipe = read_recipe(private["recipe"])
    if recipe.labels is not None and not recipe.by_row:
        return "moments by randomised labels are not made again"
    rows = site.rows(every_class=recipe.labels is not None)
    if fingerprint(site, rows, randomized=recipe.labels is not None) != kept.data:
        return "the site's rows have changed since, and what is released of them may have"
    mechanism = recipe.mechanism
    moments = isinstance(mechanism, RecordMoments)
    release = read_release(site, (name_of_once if moments else name_by_row)(site, mechanism, rows))
    if release is None:
        return "what was released of the rows is not kept any more"
    if isinstance(mechanism, RecordMoments):
        return _fitted_again(kept, fabricated_rows(site.name, recipe, mechanism, release, kept.parameters.seed), recipe)
    arrays = release.arrays
    if not np.isin(kept.ids, arrays["ids"]).all():
        return "what was released of the rows is not kept any more"
    return _fitted_again(kept, Rows(arrays["rows"], np.zeros(len(arrays["ids"])), arrays["ids"]), recipe)


def _fitted_again(kept: SiteMachines, rows: Rows, recipe: Recipe | None) -> Record:
    """The record of machines of the same membership, fitted from scratch; labels are those of the membership."""
    shape = None if recipe is None else recipe.shape
    made = fit_batches(rows, kept.parameters, list(kept.labels), list(kept.batches), shape=shape)
    return record_of_machines(replace(kept, machines=made.machines, labels=made.labels, batches=made.batches))


def trace(model: Any, site: str) -> Trace | None:
    """Handle and generation of a site's machines that a model refers to, and the digest of those that it holds."""
    if not isinstance(model, FoldingModel) or site not in model.members_:
        return None
    content = ""
    if model.banks_ is not None:
        bank = model.banks_[site]
        content = _content(pack_machines(bank.machines), np.asarray(bank.groups, dtype=np.int64))
    return Trace((f"{FOLDER}/{model.handle}", model.members_[site].generation), content)


BOOK = ReceiptBook(FOLDER, describe, remake, trace, "kernfed.federation.folding.receipts:attack_forgetting")


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

"""What receipts say of machines: their digest, what was chosen with rows in sight, and the same machines made again."""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.errors import StoreError
from kernfed.federation.folding.generations import holds_same_rows
from kernfed.federation.folding.machines import (
    FOLDER,
    SiteMachines,
    fit_batches,
    machines_of_record,
    record_of_machines,
)
from kernfed.federation.site.receipts import Kept, ReceiptBook
from kernfed.federation.site.site import Site
from kernfed.files import Record, content_digest, labels_from_values
from kernfed.kahm.model import FoldingModel
from kernfed.kahm.packing import pack_machines


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
    return np.searchsorted(np.unique(labels), labels).astype(np.int64)


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
        return "it is made of what was released, which is drawn once and not drawn again"
    rows = site.rows(every_class=True)
    if not holds_same_rows(kept, rows):
        raise StoreError("it is made of rows that the site does not hold any more, or holds otherwise")
    made = fit_batches(rows, kept.parameters, list(kept.labels), list(kept.batches))
    return record_of_machines(
        SiteMachines(
            kept.parameters, made.machines, made.labels, made.batches, kept.generation, kept.data, None, kept.origin
        )
    )


def trace(model: Any, site: str) -> tuple[tuple[str, int], str] | None:
    """Handle and generation of a site's machines that a model refers to, and the digest of those that it holds."""
    if not isinstance(model, FoldingModel) or site not in model.members_:
        return None
    content = ""
    if model.banks_ is not None:
        bank = model.banks_[site]
        content = _content(pack_machines(bank.machines), np.asarray(bank.groups, dtype=np.int64))
    return (f"{FOLDER}/{model.handle}", model.members_[site].generation), content


BOOK = ReceiptBook(FOLDER, describe, remake, trace, "kernfed.federation.folding.membership:attack_forgetting")

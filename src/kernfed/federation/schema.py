"""What a site says of its data before anything is computed, and whether sites agree."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed._validation import check_count
from kernfed.files import labels_from_values, labels_to_values

#: More rows or columns than this are a lie; sums of them stay exact.
_MOST = 2**40


class SchemaMismatch(ValueError):
    """Sites describe their data differently, so their answers cannot be combined."""


@dataclass(frozen=True)
class Schema:
    """Description of one site's data, or of a federation's.

    width : columns of X. columns : their names, or (). scaling and encoder : the site's own words for how features were
    made (encoder as "name@hash"). counts : rows per class label, in sorted order of ``classes``.
    """

    width: int
    classes: tuple[Any, ...]
    counts: tuple[int, ...]
    columns: tuple[str, ...] = ()
    scaling: str = ""
    encoder: str = ""

    @property
    def labels(self) -> npt.NDArray[Any]:
        """Class labels (C,)."""
        return np.array(self.classes)

    @property
    def n_rows(self) -> int:
        """Rows of all classes."""
        return sum(self.counts)

    def to_values(self) -> dict[str, Any]:
        """Plain values for a message."""
        values = asdict(self)
        values["classes"] = labels_to_values(self.labels) if self.classes else {"dtype": "<i8", "labels": []}
        return {**values, "counts": list(self.counts), "columns": list(self.columns)}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "Schema":
        """Schema from ``to_values``, checked."""
        classes = labels_from_values(values["classes"]).tolist()
        counts = [check_count(count, "count", at_most=_MOST) for count in values["counts"]]
        if len(counts) != len(classes) or len(set(classes)) != len(classes):
            raise ValueError(f"a schema needs one count per class, got {classes[:20]} and {counts[:20]}")
        width = check_count(values["width"], "width", at_most=_MOST)
        columns = tuple(str(name) for name in values["columns"])
        if len(columns) not in (0, width):
            raise ValueError(f"a schema needs a name for each of {width} columns or none, got {len(columns)}")
        return cls(width, tuple(classes), tuple(counts), columns, str(values["scaling"]), str(values["encoder"]))


def agree(schemas: Mapping[str, Schema]) -> Schema:
    """Schema of the federation: the sites' common description, all their classes, counts added.

    Sites that differ from the majority in width, columns, scaling, encoder or type of labels are named.
    """
    if not schemas:
        raise ValueError("at least 1 site must describe its data, got none")
    differences = []
    for name in ("width", "columns", "scaling", "encoder"):
        found = {site: getattr(schema, name) for site, schema in schemas.items()}
        differences += _odd_ones(name, found)
    kinds = {site: _kind(schema) for site, schema in schemas.items() if schema.classes}
    differences += _odd_ones("type of labels", kinds)
    if differences:
        raise SchemaMismatch("sites disagree: " + "; ".join(differences))
    totals: Counter[Any] = Counter()
    for schema in schemas.values():
        totals.update(dict(zip(schema.classes, schema.counts, strict=True)))
    first = next(iter(schemas.values()))
    classes = tuple(sorted(totals))
    counts = tuple(totals[label] for label in classes)
    return Schema(first.width, classes, counts, first.columns, first.scaling, first.encoder)


def _kind(schema: Schema) -> str:
    return "text" if all(isinstance(label, str) for label in schema.classes) else "number"


def _odd_ones(name: str, found: Mapping[str, Any]) -> list[str]:
    counted = Counter(found.values())
    if len(counted) <= 1:
        return []
    usual, _ = counted.most_common(1)[0]
    odd = [f"{site!r} has {_short(value)}" for site, value in sorted(found.items()) if value != usual]
    more = f" and {len(odd) - 5} more" if len(odd) > 5 else ""
    return [f"{name} is {_short(usual)} at most sites, but {', '.join(odd[:5])}{more}"]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."

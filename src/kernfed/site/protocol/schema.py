"""What a site says of its data before anything is computed, and whether sites agree."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import check_count, name_differences
from kernfed.base.warn import warn
from kernfed.errors import InputError, ManyClasses, SchemaMismatch
from kernfed.files import labels_from_values, labels_to_values

#: More rows or columns than this are a lie; sums of them stay exact.
_MOST = 2**40
#: Whole floating-point labels of more than so many kinds, with fewer rows each, are rather values than classes.
_MANY_CLASSES, _ROWS_PER_CLASS = 20, 5


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
            raise InputError(f"a schema needs one count per class, got {classes[:20]} and {counts[:20]}")
        width = check_count(values["width"], "width", at_most=_MOST)
        columns = tuple(str(name) for name in values["columns"])
        if len(columns) not in (0, width):
            raise InputError(f"a schema needs a name for each of {width} columns or none, got {len(columns)}")
        return cls(width, tuple(classes), tuple(counts), columns, str(values["scaling"]), str(values["encoder"]))


def agree(schemas: Mapping[str, Schema]) -> Schema:
    """Schema of the federation: the sites' common description, all their classes, counts added.

    Sites that differ from the majority in width, columns, scaling, encoder or type of labels are named.
    """
    if not schemas:
        raise InputError("at least 1 site must describe its data, got none")
    differences = [told for name, values in _compared(schemas).items() for told in _odd_ones(name, values)]
    if differences:
        raise SchemaMismatch("sites disagree: " + "; ".join(differences))
    totals: Counter[Any] = Counter()
    for schema in schemas.values():
        totals.update(dict(zip(schema.classes, schema.counts, strict=True)))
    first = next(iter(schemas.values()))
    classes = tuple(sorted(totals))
    counts = tuple(totals[label] for label in classes)
    return Schema(first.width, classes, counts, first.columns, first.scaling, first.encoder)


def odd_sites(schemas: Mapping[str, Schema]) -> dict[str, str]:
    """Why each site cannot learn with the others: it differs from what more than half of all describe alike.

    Nobody where no such half exists: then ``agree`` says what differs. Labels with fractions count too.
    """
    compared = _compared(schemas)
    compared["labels with fractions"] = {
        site: fraction_reason(schema.labels) is not None for site, schema in schemas.items() if schema.classes
    }
    reasons: dict[str, str] = {}
    for name, values in compared.items():
        if len(set(values.values())) <= 1:
            continue
        usual, sites = Counter(values.values()).most_common(1)[0]
        if 2 * sites <= len(values):
            return {}
        for site, value in values.items():
            if value != usual:
                told = name_differences(value, usual) if name == "columns" else f"has {_short(value)}"
                reasons.setdefault(site, f"site {site!r} differs from most in {name}: it {told}, they {_short(usual)}")
    return reasons


def _compared(schemas: Mapping[str, Schema]) -> dict[str, dict[str, Any]]:
    """What sites must have in common, by name and site."""
    compared: dict[str, dict[str, Any]] = {
        name: {site: getattr(schema, name) for site, schema in schemas.items()}
        for name in ("width", "columns", "scaling", "encoder")
    }
    kinds = {site: label_kind(schema.labels) for site, schema in schemas.items() if schema.classes}
    return {**compared, "type of labels": kinds}


def label_kind(labels: npt.NDArray[Any]) -> str:
    """Kind of labels, which all sites must share: "text", "boolean" or "number"."""
    return {"U": "text", "O": "text", "b": "boolean"}.get(labels.dtype.kind, "number")


def fraction_reason(labels: npt.NDArray[Any]) -> str | None:
    """Why labels (n,) cannot be classes, if they are floating-point numbers with fractions."""
    if labels.dtype.kind != "f" or not (broken := labels[labels != np.floor(labels)]).size:
        return None
    return (
        f"y holds {len(np.unique(broken))} different fraction(s), such as {broken[0].item()!r}, which are values "
        "and no classes; to regress use RidgeLearner(task='regress')"
    )


def check_classes(schema: Schema) -> None:
    """Refuse labels of a federation that cannot be classes; a ``ManyClasses`` warning where they hardly are."""
    labels = schema.labels
    if len(labels) < 2:
        raise InputError(f"the sites must have at least 2 classes together, got {labels.tolist()}")
    reason = fraction_reason(labels)
    if reason is not None:
        raise InputError(reason)
    if labels.dtype.kind == "f" and len(labels) > _MANY_CLASSES and schema.n_rows < _ROWS_PER_CLASS * len(labels):
        warn(
            f"{len(labels)} classes in {schema.n_rows} rows, labelled by floating-point numbers: if they are "
            "values, regress with RidgeLearner(task='regress'); if they are classes, make y integers",
            ManyClasses,
        )


def _odd_ones(name: str, values: Mapping[str, Any]) -> list[str]:
    counted = Counter(values.values())
    if len(counted) <= 1:
        return []
    usual, _ = counted.most_common(1)[0]
    columns = name == "columns"
    odd = [
        f"{site!r} {name_differences(value, usual) if columns else f'has {_short(value)}'}"
        for site, value in sorted(values.items())
        if value != usual
    ]
    more = f" and {len(odd) - 5} more" if len(odd) > 5 else ""
    told = f"{name} {'are' if columns else 'is'} {_short(usual)} at most sites, but {', '.join(odd[:5])}{more}"
    return [f"{told} (all need the same names in the same order, or none)" if columns else told]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."

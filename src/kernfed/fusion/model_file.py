"""File format of the fusion: a record of its own that holds those of its parts."""

from collections.abc import Mapping
from typing import Any

from kernfed.abstain import read_coverage
from kernfed.base.checks import check_choice, check_count, check_number
from kernfed.base.plain import read_reasons
from kernfed.base.prior import prior_from_values, prior_to_values
from kernfed.errors import InputError
from kernfed.files import Record, from_record, register, to_record
from kernfed.fusion.model import FusionModel
from kernfed.fusion.parts import VISITS, FusionChoice, Visit
from kernfed.kahm.model import FoldingModel
from kernfed.ridge.model import RidgeModel

#: How a weight came about.
CHOSEN = ("rows", "default", "given")


def nested(parts: Mapping[str, Any]) -> Record:
    """Models in one record: arrays as "part.name", values by part; None for a part that is not there."""
    arrays: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, model in parts.items():
        if model is None:
            values[name] = None
            continue
        record = to_record(model)
        arrays |= {f"{name}.{own}": array for own, array in record.arrays.items()}
        values[name] = dict(record.values)
    return Record(arrays, values)


def unnested(record: Record, name: str, kind: type) -> Any:
    """The part ``name`` of a record made by ``nested``, which must be of a ``kind``; None where it is not there."""
    values = record.values[name]
    if values is None:
        return None
    own = {key.removeprefix(f"{name}."): array for key, array in record.arrays.items() if key.startswith(f"{name}.")}
    model = from_record(Record(own, values))
    if type(model) is not kind:
        raise InputError(f"{name} must be a {kind.__name__}, got a {type(model).__name__}")
    return model


def choice_to_values(choice: FusionChoice) -> dict[str, Any]:
    """Plain values for files."""
    errors = [[weight, error] for weight, error in choice.errors.items()]
    return {"how": choice.how, "rows": choice.rows, "sites": list(choice.sites), "errors": errors}


def choice_from_values(values: Mapping[str, Any]) -> FusionChoice:
    """A choice from ``choice_to_values``, checked."""
    sites = values["sites"]
    if not isinstance(sites, list) or not all(isinstance(site, str) for site in sites):
        raise InputError(f"sites must be names, got {sites!r:.60}")
    return FusionChoice(
        check_choice(values["how"], "how", CHOSEN),
        check_count(values["rows"], "rows", at_least=0),
        tuple(sites),
        {check_number(w, "weight", at_least=0): check_number(e, "error") for w, e in values["errors"]},
    )


def _dump(model: FusionModel) -> Record:
    parts = nested({"folding": model.folding, "ridge": model.ridge})
    visit = model.visit_
    values: dict[str, Any] = {
        **parts.values,
        "weight": model.weight_,
        "temperature": model.temperature_,
        "choice": choice_to_values(model.choice_),
        "visit": [visit.when, visit.threshold, visit.travelled, visit.given_up],
        "prior": prior_to_values(model.prior, model.classes_),
        "missing": dict(model.missing_),
        "headless": dict(model.headless_),
        "exchanges": model.exchanges_,
    }
    arrays = dict(parts.arrays)
    if model.conformal_ is not None:
        counted, values["conformal"] = model.conformal_.to_parts(model.classes_)
        arrays |= counted
    return Record(arrays, values)


def _load(record: Record) -> FusionModel:
    values = record.values
    folding, ridge = unnested(record, "folding", FoldingModel), unnested(record, "ridge", RidgeModel)
    when, threshold, travelled, given_up = values["visit"]
    visit = Visit(
        check_choice(when, "visit", VISITS),
        check_number(threshold, "threshold", at_least=0),
        None if travelled is None else check_number(travelled, "travelled"),
        None if given_up is None else check_number(given_up, "given up"),
    )
    bare = FusionModel(folding, ridge)
    if folding is not None and ridge is not None and _widths_differ(folding, ridge):
        raise InputError("machines and head must have the same columns")
    return FusionModel(
        folding,
        ridge,
        check_number(values["weight"], "weight", at_least=0),
        check_number(values["temperature"], "temperature", above=0),
        choice_from_values(values["choice"]),
        visit,
        prior_from_values(values["prior"], bare.classes_),
        read_reasons(values["missing"]),
        read_reasons(values["headless"]),
        check_count(values["exchanges"], "exchanges", at_least=0),
        conformal_=read_coverage(record.arrays, values.get("conformal"), bare.classes_),
    )


def _widths_differ(folding: FoldingModel, ridge: RidgeModel) -> bool:
    width = folding.n_features_in_ if folding.basis is None else folding.basis.shape[1]
    return bool(ridge.n_features_in_ != width)


register("FusionModel", 1, FusionModel, _dump, _load)

"""File format of the folding model: a handle on machines at their sites, or the machines themselves."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.abstain import read_coverage
from kernfed.base.checks import check_choice, check_count, check_number
from kernfed.base.plain import MOST_COLUMNS, check_classes_sorted, read_columns, read_reasons, read_text
from kernfed.base.prior import prior_from_values, prior_to_values
from kernfed.base.threads import single_blas_thread
from kernfed.data.preparation import preparation_values, read_preparation
from kernfed.errors import InputError
from kernfed.files import Record, labels_from_values, labels_to_values, register
from kernfed.kahm.bank import Bank
from kernfed.kahm.choice import Chosen
from kernfed.kahm.model import FoldingModel, FoldingParameters, Member
from kernfed.kahm.packing import pack_machines, unpack_machines
from kernfed.promise import Terms, read_terms_of_0_1


def _dump(model: FoldingModel) -> Record:
    values = {
        "parameters": model.parameters.to_values(),
        "handle": model.handle,
        "width": model.n_features_in_,
        "classes": labels_to_values(model.classes_),
        "hold": model.hold,
        "members": {name: _member_values(member) for name, member in sorted(model.members_.items())},
        "missing": dict(model.missing_),
        "columns": list(model.feature_names_in_),
    }
    values |= preparation_values(model.preparation)
    if model.chosen is not None:
        values["chosen"] = model.chosen.to_values()
    if model.prior != "training":
        values["prior"] = prior_to_values(model.prior, model.classes_)
    arrays: dict[str, npt.NDArray[Any]] = {}
    if model.calibrated_ is not None:
        values["calibrated"] = model.calibrated_
    if len(model.trusted_classes):
        given = model.trusted_classes
        values["trusted"] = given if isinstance(given, str) else list(given)
    if model.privacy is not None:
        values["privacy"] = model.privacy.to_values()
    if model.banks_ is not None:
        arrays = pack_machines([machine for site in model.sites for machine in model.banks_[site].machines])
        arrays["groups"] = np.concatenate([model.banks_[site].groups for site in model.sites]).astype(np.int64)
    if model.basis is not None:
        arrays["basis"] = model.basis
    if model.conformal_ is not None:
        counted, values["conformal"] = model.conformal_.to_parts(model.classes_)
        arrays |= counted
    return Record(arrays, values)


def _load(record: Record) -> FoldingModel:
    values = record.values
    members = {
        name: Member(**{**entry, **{key: tuple(entry.get(key, ())) for key in ("classes", "left_out", "counts")}})
        for name, entry in values["members"].items()
    }
    trusted = values.get("trusted", ())
    if not isinstance(trusted, (str, list, tuple)) or any(not isinstance(one, (str, int, float)) for one in trusted):
        raise InputError(f"trusted must be labels, got {trusted!r:.60}")
    classes = check_classes_sorted(labels_from_values(values["classes"]), at_least=0)
    width = check_count(values["width"], "width", at_most=MOST_COLUMNS)
    check_choice(values["hold"], "hold", ("sites", "machines"))
    if not members:
        raise InputError("a model needs at least one member")
    for name, member in members.items():
        _check_member(name, member, len(classes))
    basis = record.arrays.get("basis")
    if basis is not None and (basis.dtype != np.float64 or basis.ndim != 2 or len(basis) != width):
        raise InputError(f"the public basis must be float64 with {width} rows, got {basis.dtype} of {basis.shape}")
    banks = None
    if values["hold"] == "machines":
        banks = _load_banks(record, members, width if basis is None else basis.shape[1])
    calibrated = values.get("calibrated")
    if calibrated is not None:
        check_number(calibrated, "calibrated", above=0)
    return FoldingModel(
        FoldingParameters.from_values(values["parameters"]),
        read_text(values["handle"], "handle"),
        classes,
        width,
        members,
        read_reasons(values["missing"]),
        read_columns(values["columns"], width),
        banks,
        privacy=Terms.from_values(values["privacy"]) if "privacy" in values else None,
        calibrated_=calibrated,
        basis=basis,
        trusted_classes=trusted if isinstance(trusted, str) else tuple(trusted),
        preparation=read_preparation(values, width),
        chosen=Chosen.from_values(values["chosen"]) if "chosen" in values else None,
        prior=prior_from_values(values.get("prior", "training"), classes),
        conformal_=read_coverage(record.arrays, values.get("conformal"), classes),
    )


def _member_values(member: Member) -> dict[str, Any]:
    """Plain values; labels that are left out, and counts, only where there are some."""
    values = asdict(member)
    rare = {name: list(values.pop(name)) for name in ("left_out", "counts")}
    return values | {name: entries for name, entries in rare.items() if entries}


def _load_banks(record: Record, members: Mapping[str, Member], width: int) -> dict[str, Bank]:
    """The machines of every member, of ``width`` columns each."""
    machines, groups = unpack_machines(record.arrays), record.arrays["groups"]
    count = sum(member.machines for member in members.values())
    if len(machines) != count or groups.shape != (count,) or groups.dtype != np.int64 or machines[0].width != width:
        raise InputError("the machines do not belong to the members")
    banks, start = {}, 0
    for name in sorted(members):
        end = start + members[name].machines
        classes = len(members[name].classes) + len(members[name].left_out)
        own = groups[start:end].tolist()
        if set(own) != set(range(classes)):
            raise InputError(f"the machines of {name!r} do not cover its classes")
        with single_blas_thread():
            banks[name] = Bank.assemble(machines[start:end], own, classes)
        start = end
    return banks


def _with_terms_as_data(record: Record) -> Record:
    """Version 1 said in pairs and sentences what version 2 says as data."""
    if "privacy" not in record.values:
        return record
    return Record(record.arrays, {**record.values, "privacy": read_terms_of_0_1(record.values["privacy"]).to_values()})


def _check_member(name: str, member: Member, classes: int) -> None:
    numbers = member.classes
    if (
        not (numbers or member.left_out)
        or len(set(numbers)) != len(numbers)
        or not all(type(n) is int and 0 <= n < classes for n in numbers)
    ):
        raise InputError(f"member {name!r} has classes {numbers} of {classes}")
    for field_name in ("generation", "machines", "rows"):
        check_count(getattr(member, field_name), field_name)
    for count in member.counts:
        check_count(count, "counts", at_least=0)
    if member.counts and len(member.counts) != len(numbers) + len(member.left_out):
        raise InputError(f"member {name!r} has {len(member.counts)} counts for {len(numbers)} classes")
    if any(not isinstance(label, (str, int, float)) for label in member.left_out):
        raise InputError(f"member {name!r} has labels {member.left_out!r:.80} that are none")
    if member.temperature is not None:
        check_number(member.temperature, "temperature", above=0)


register("FoldingModel", 2, FoldingModel, _dump, _load, migrations={1: _with_terms_as_data})

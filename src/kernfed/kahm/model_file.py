"""Machines as arrays, and the file of the folding model: a handle on machines at their sites, or the machines."""

from collections.abc import Iterator, Mapping, Sequence
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
from kernfed.kahm.machine import EXTRA_ROWS, Layer, Machine
from kernfed.kahm.model import FoldingModel, FoldingParameters, Member
from kernfed.kahm.spectrum import MAX_SUBSPACE_DIM, spans
from kernfed.promise import Terms, read_terms_of_0_1

Arrays = dict[str, npt.NDArray[Any]]


def pack_machines(machines: Sequence[Machine]) -> Arrays:
    """Arrays from which ``unpack_machines`` makes the same machines, to the bit.

    ``shapes`` (M, 5): rows, dimension, directions, layers, spanning; the others are the machines' arrays end to end.
    """
    layers = [layer for machine in machines for layer in machine.layers]
    shapes = [(m.n_rows, m.subspace_dim, m.directions.shape[0], len(m.layers), int(m.spanning)) for m in machines]
    return {
        "shapes": np.array(shapes, dtype=np.int64).reshape(-1, 5),
        "mean": np.stack([m.mean for m in machines]),
        "directions": _flat([m.directions for m in machines]),
        "scores": _flat([m.scores for m in machines]),
        "exponent": _flat([layer.exponent for layer in layers]),
        "image": _flat([layer.image for layer in layers]),
        "regularization": np.array([layer.regularization for layer in layers]),
    }


def machine_size(rows: int, width: int, layers: int, subspace_dim: int | None) -> int:
    """How many numbers a machine of ``rows`` rows holds at most."""
    dim = min(MAX_SUBSPACE_DIM if subspace_dim is None else subspace_dim, width, rows - 1)
    spanning = spans(rows, width)
    directions, held = (rows - 1, rows - 1) if spanning else (dim, width)
    depth = max(1, min(layers, dim))
    per_layer = sum((dim - level + 1) * rows for level in range(depth)) + depth * (held + EXTRA_ROWS) * rows
    return width + directions * width + rows * dim + per_layer


def unpack_machines(arrays: Mapping[str, npt.NDArray[Any]]) -> list[Machine]:
    """Machines from ``pack_machines``; arrays that do not fit together raise ``ValueError``."""
    shapes, means = arrays["shapes"], arrays["mean"]
    if shapes.ndim != 2 or shapes.shape[1] != 5 or means.ndim != 2 or len(means) != len(shapes) or (shapes < 0).any():
        raise InputError(f"machines need shapes (M, 5) and means (M, p), got {shapes.shape} and {means.shape}")
    if shapes.dtype != np.int64 or means.dtype != np.float64:
        raise InputError(f"shapes must be int64 and means float64, got {shapes.dtype} and {means.dtype}")
    take = {name: _Reader(name, arrays[name]) for name in ("directions", "scores", "exponent", "image")}
    if len({arrays[name].dtype for name in take}) > 1:
        raise InputError("directions, scores, exponent and image must have one dtype, got several")
    levels = _levels(arrays["regularization"], sum(shapes[:, 3].tolist()))
    width = means.shape[1]
    machines = []
    for (rows, dim, count, depth, spanning), mean in zip(shapes.tolist(), means, strict=True):
        held = (count if spanning else width) + EXTRA_ROWS
        if depth < 1 or rows < 1 or depth > max(dim, 1) or dim > count or spanning > 1 or not width:
            raise InputError(f"a machine has {rows} rows, {dim} of {count} dimensions and {depth} layers")
        directions, scores = take["directions"](count, width), take["scores"](rows, dim)
        layers = tuple(
            Layer(take["exponent"](rows, dim - level + 1), take["image"](held, rows), float(next(levels)))
            for level in range(depth)
        )
        machines.append(Machine(mean, directions, bool(spanning), scores, layers))
    for reader in take.values():
        reader.finish()
    return machines


def _levels(regularization: npt.NDArray[Any], layers: int) -> Iterator[float]:
    """Regularisation of every layer, in order."""
    if regularization.shape != (layers,) or regularization.dtype != np.float64 or (regularization < 0).any():
        raise InputError(
            f"regularization must be a number of at least 0 for each of {layers} layers, got {regularization.dtype} "
            f"of {regularization.shape}"
        )
    return iter(regularization.tolist())


class _Reader:
    """Takes matrices from a flat array, in order and exactly."""

    def __init__(self, name: str, flat: npt.NDArray[Any]) -> None:
        if flat.ndim != 1 or flat.dtype not in (np.float32, np.float64):
            raise InputError(f"{name} must be a flat array of floats, got shape {flat.shape} of {flat.dtype}")
        self._name, self._flat, self._place = name, flat, 0

    def __call__(self, rows: int, columns: int) -> npt.NDArray[Any]:
        end = self._place + rows * columns
        if end > self._flat.size:
            raise InputError(f"{self._name} ends early: {end} numbers needed, {self._flat.size} there")
        matrix = self._flat[self._place : end].reshape(rows, columns)
        self._place = end
        return matrix

    def finish(self) -> None:
        if self._place != self._flat.size:
            raise InputError(f"{self._name} has {self._flat.size - self._place} numbers too many")


def _flat(matrices: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate([matrix.ravel() for matrix in matrices])


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

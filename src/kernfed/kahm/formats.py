"""File formats of the KAHM estimators."""

from dataclasses import replace
from typing import Any

import numpy as np

from kernfed.errors import InputError
from kernfed.files import Record, labels_from_values, labels_to_values, register
from kernfed.kahm.bank import Bank
from kernfed.kahm.classifier import KAHMClassifier
from kernfed.kahm.compose import KAHM, DeepKAHM, WideKAHM
from kernfed.kahm.packing import pack_machines, unpack_machines
from kernfed.kahm.regressor import Branch, KAHMRegressor


def _dump_hull(model: Any) -> Record:
    arrays = pack_machines(model.bank_.machines)
    arrays["batch_rows"] = np.concatenate(model.batches_).astype(np.int64)
    return Record(arrays, {"parameters": model.get_params()})


def _load_hull(kind: type) -> Any:
    def load(record: Record) -> Any:
        model = kind(**record.values["parameters"])
        machines = unpack_machines(record.arrays)
        cuts = np.cumsum([machine.n_rows for machine in machines])[:-1]
        batches = np.split(record.arrays["batch_rows"].astype(np.intp), cuts)
        return model._adopt(machines, batches)

    return load


def _dump_classifier(model: KAHMClassifier) -> Record:
    arrays = pack_machines(model.bank_.machines)
    arrays["groups"] = model.bank_.groups.astype(np.int64)
    values = {
        "parameters": model.get_params(),
        "classes": labels_to_values(model.classes_),
        "temperature": model.temperature_,
        "feature_names": _feature_names(model),
    }
    return Record(arrays, values)


def _load_classifier(record: Record) -> KAHMClassifier:
    model = KAHMClassifier(**record.values["parameters"])
    machines = unpack_machines(record.arrays)
    model.classes_ = labels_from_values(record.values["classes"])
    groups = record.arrays["groups"]
    if groups.shape != (len(machines),) or set(groups.tolist()) != set(range(len(model.classes_))):
        raise InputError(f"groups must name {len(model.classes_)} classes for {len(machines)} machines")
    model.bank_ = Bank.assemble(machines, groups.tolist(), len(model.classes_))
    model.temperature_ = float(record.values["temperature"])
    _remember_columns(model, record)
    return model


def _dump_regressor(model: KAHMRegressor) -> Record:
    branches = model.branches_
    arrays = pack_machines(model.bank_.machines)
    arrays["coefficients"] = np.concatenate([branch.coefficients for branch in branches])
    arrays["responses"] = np.concatenate([branch.responses for branch in branches])
    arrays["levels"] = np.array([branch.layer.regularization for branch in branches])
    arrays["shift"], arrays["scale"] = model.shift_, model.scale_
    values = {"parameters": model.get_params(), "flat": model.flat_, "feature_names": _feature_names(model)}
    return Record(arrays, values)


def _load_regressor(record: Record) -> KAHMRegressor:
    model = KAHMRegressor(**record.values["parameters"])
    machines, arrays = unpack_machines(record.arrays), record.arrays
    rows, outputs = sum(machine.n_rows for machine in machines), len(arrays["shift"])
    expected = {
        "coefficients": (rows, outputs + 2),
        "responses": (rows, outputs),
        "levels": (len(machines),),
        "scale": (outputs,),
        "shift": (outputs,),
    }
    for name, shape in expected.items():
        array = arrays[name]
        if array.shape != shape or array.dtype != np.float64:
            raise InputError(f"{name} must be float64 of shape {shape}, got {array.dtype} of {array.shape}")
    cuts = np.cumsum([machine.n_rows for machine in machines])[:-1]
    parts = zip(*(np.split(arrays[name], cuts) for name in ("coefficients", "responses")), strict=True)
    model.branches_ = [
        Branch(machine, replace(machine.layers[0], regularization=float(level)), coefficients, responses)
        for machine, level, (coefficients, responses) in zip(machines, arrays["levels"], parts, strict=True)
    ]
    model.bank_ = Bank.assemble(machines, list(range(len(machines))), len(machines))
    model.shift_, model.scale_, model.flat_ = arrays["shift"], arrays["scale"], bool(record.values["flat"])
    _remember_columns(model, record)
    return model


def _feature_names(model: Any) -> list[str]:
    return list(getattr(model, "feature_names_in_", []))


def _remember_columns(model: Any, record: Record) -> None:
    """Number and names of the columns of X, as scikit-learn keeps them."""
    model.n_features_in_ = model.bank_.width
    if record.values["feature_names"]:
        model.feature_names_in_ = np.array(record.values["feature_names"], dtype=object)


for _kind in (KAHM, DeepKAHM, WideKAHM):
    register(_kind.__name__, 1, _kind, _dump_hull, _load_hull(_kind))
register("KAHMClassifier", 1, KAHMClassifier, _dump_classifier, _load_classifier)
register("KAHMRegressor", 1, KAHMRegressor, _dump_regressor, _load_regressor)

"""File formats of the KAHM estimators."""

from typing import Any

import numpy as np

from kernfed.errors import InputError
from kernfed.files import Record, labels_from_values, labels_to_values, register
from kernfed.kahm.bank import Bank
from kernfed.kahm.classifier import KAHMClassifier
from kernfed.kahm.compose import KAHM, DeepKAHM, WideKAHM
from kernfed.kahm.packing import pack_machines, unpack_machines


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
        "feature_names": getattr(model, "feature_names_in_", np.array([])).tolist(),
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
    model.n_features_in_ = model.bank_.width
    if record.values["feature_names"]:
        model.feature_names_in_ = np.array(record.values["feature_names"], dtype=object)
    return model


for _kind in (KAHM, DeepKAHM, WideKAHM):
    register(_kind.__name__, 1, _kind, _dump_hull, _load_hull(_kind))
register("KAHMClassifier", 1, KAHMClassifier, _dump_classifier, _load_classifier)

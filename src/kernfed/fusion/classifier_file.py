"""File format of the classifier: a record of its own that holds those of its parts."""

from collections.abc import Mapping

import numpy as np
from sklearn.utils.validation import check_is_fitted

from kernfed.base.checks import check_number
from kernfed.base.plain import check_classes_sorted, read_columns
from kernfed.base.prior import prior_from_values, prior_to_values
from kernfed.errors import InputError
from kernfed.files import Record, labels_from_values, labels_to_values, register
from kernfed.fusion.classifier import FusionClassifier
from kernfed.fusion.model_file import nested, unnested
from kernfed.kahm.classifier import KAHMClassifier
from kernfed.ridge.model import RidgeModel


def _dump_classifier(model: FusionClassifier) -> Record:
    check_is_fitted(model, "head_")
    parts = nested({"machines": model.machines_, "head": model.head_})
    settings = {name: value for name, value in model.get_params().items() if name != "prior"}
    if isinstance(model.class_weight, Mapping):
        settings["class_weight"] = [[label, weight] for label, weight in model.class_weight.items()]
    values = {
        **parts.values,
        "settings": settings,
        "prior": prior_to_values(model.prior, model.classes_),
        "classes": labels_to_values(model.classes_),
        "columns": list(getattr(model, "feature_names_in_", ())),
        "weight": model.weight_,
        "temperature": model.temperature_,
    }
    return Record(parts.arrays, values)


def _load_classifier(record: Record) -> FusionClassifier:
    values = record.values
    machines, head = unnested(record, "machines", KAHMClassifier), unnested(record, "head", RidgeModel)
    classes = check_classes_sorted(labels_from_values(values["classes"]))
    if machines is None or head is None or {len(head.classes_), len(machines.classes_)} != {len(classes)}:
        raise InputError(f"machines and head must have {len(classes)} classes")
    if head.n_features_in_ != machines.n_features_in_:
        raise InputError("machines and head must have the same columns")
    settings = dict(values["settings"])
    if isinstance(settings.get("class_weight"), list):
        settings["class_weight"] = dict(settings["class_weight"])
    model = FusionClassifier(**settings, prior=prior_from_values(values["prior"], classes))
    model.machines_, model.head_, model.classes_ = machines, head, classes
    model.n_features_in_ = head.n_features_in_
    columns = read_columns(values["columns"], model.n_features_in_)
    if columns:
        model.feature_names_in_ = np.array(columns, dtype=object)
    model.weight_ = check_number(values["weight"], "weight", at_least=0)
    model.temperature_ = check_number(values["temperature"], "temperature", above=0)
    return model


register("FusionClassifier", 1, FusionClassifier, _dump_classifier, _load_classifier)

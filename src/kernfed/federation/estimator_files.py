"""Files of estimators: their parameters, and the model that they have learned."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from kernfed.base.checks import check_number
from kernfed.base.plain import check_classes_sorted, read_columns
from kernfed.base.prior import prior_from_values, prior_to_values
from kernfed.errors import InputError
from kernfed.federation.estimators import SITE, FusionClassifier, FusionRegressor, KAHMClassifier, OneSite
from kernfed.files import Record, labels_from_values, labels_to_values, register
from kernfed.fusion.model import FusionModel
from kernfed.fusion.model_file import nested, unnested
from kernfed.kahm.bank import Bank
from kernfed.kahm.choice import Chosen, candidates, usual
from kernfed.kahm.formats import feature_names, read_scaling, scaling_values, unscaled, with_parameters
from kernfed.kahm.members import FoldingParameters, Member
from kernfed.kahm.model import FoldingModel
from kernfed.kahm.model_file import pack_machines, unpack_machines
from kernfed.kahm.spectrum import check_subspace_dim
from kernfed.ridge.model import RidgeModel

Estimator = TypeVar("Estimator", bound=OneSite)


# Machines -----------------------------------------------------------------------------------------------------------


def _dump_kahm(model: KAHMClassifier) -> Record:
    arrays = pack_machines(model.bank_.machines)
    arrays["groups"] = model.bank_.groups.astype(np.int64)
    values = {
        "parameters": {**model.get_params(), "prior": prior_to_values(model.prior, model.classes_)},
        "classes": labels_to_values(model.classes_),
        "temperature": model.temperature_,
        "scaling": scaling_values(model),
        "chosen": None if model.chosen_ is None else model.chosen_.to_values(),
        "feature_names": feature_names(model),
    }
    return Record(arrays, values)


def _load_kahm(record: Record) -> KAHMClassifier:
    model: KAHMClassifier = with_parameters(KAHMClassifier, record)
    machines, groups = unpack_machines(record.arrays), record.arrays["groups"]
    model.classes_ = check_classes_sorted(labels_from_values(record.values["classes"]), at_least=2)
    model.prior = prior_from_values(model.prior, model.classes_)
    count = len(model.classes_)
    if groups.shape != (len(machines),) or set(groups.tolist()) != set(range(count)):
        raise InputError(f"groups must name {count} classes for {len(machines)} machines")
    bank = Bank.assemble(machines, groups.tolist(), count)
    chosen = None if record.values["chosen"] is None else Chosen.from_values(record.values["chosen"])
    temperature = check_number(record.values["temperature"], "temperature", above=0)
    taken = usual(candidates(model.scale, model.batch_size, model.partition)) if chosen is None else chosen.candidate
    parameters = FoldingParameters(
        model.measure,
        *taken.division,
        model.layers,
        check_subspace_dim(model.subspace_dim),
        model.dtype,
        seed=0 if model.random_state is None else model.random_state,
        scale=read_scaling(record, bank.width),
    )
    rows = np.bincount(bank.groups, weights=[machine.n_rows for machine in machines], minlength=count).astype(int)
    member = Member(tuple(range(count)), 1, len(machines), int(rows.sum()), temperature, counts=tuple(rows.tolist()))
    model.model_ = FoldingModel(
        parameters,
        SITE,
        model.classes_,
        bank.width,
        {SITE: member},
        banks_={SITE: bank},
        chosen=chosen,
        prior=model.prior,
    )
    return _with_columns(model, record.values["feature_names"], bank.width)


# Machines and a head, or a head alone ---------------------------------------------------------------------------------


def _dump_fusion(model: OneSite) -> Record:
    check_is_fitted(model, "model_")
    parts = nested({"model": model.model_})
    settings = {name: value for name, value in model.get_params().items() if name != "prior"}
    if isinstance(settings.get("class_weight"), Mapping):
        settings["class_weight"] = [[label, weight] for label, weight in settings["class_weight"].items()]
    values: dict[str, Any] = {**parts.values, "settings": settings, "columns": feature_names(model)}
    if isinstance(model, FusionClassifier):
        values["prior"] = prior_to_values(model.prior, model.classes_)
    return Record(parts.arrays, values)


def _load_fusion(record: Record) -> FusionClassifier:
    fused = _fusion_of(record)
    if fused.folding is None:
        raise InputError("a FusionClassifier has machines")
    settings = dict(record.values["settings"])
    if isinstance(settings.get("class_weight"), list):
        settings["class_weight"] = dict(settings["class_weight"])
    prior = prior_from_values(record.values["prior"], fused.classes_)
    model = FusionClassifier(**settings, prior=prior)
    model.model_, model.classes_ = fused, fused.classes_
    return _with_columns(model, record.values["columns"], fused.n_features_in_)


def _load_regressor(record: Record) -> FusionRegressor:
    fused = _fusion_of(record)
    if fused.folding is not None or fused.ridge is None:
        raise InputError("a FusionRegressor has a head and no machines")
    model = FusionRegressor(**record.values["settings"])
    model.model_ = fused
    return _with_columns(model, record.values["columns"], fused.n_features_in_)


def _fusion_of(record: Record) -> FusionModel:
    fused: FusionModel | None = unnested(record, "model", FusionModel)
    if fused is None:
        raise InputError("the model is missing")
    return fused


def _fused(record: Record) -> Record:
    """Version 1 had both parts with numbers in the place of labels."""
    values = record.values
    machines: KAHMClassifier | None = unnested(record, "machines", KAHMClassifier)
    head: RidgeModel | None = unnested(record, "head", RidgeModel)
    classes = check_classes_sorted(labels_from_values(values["classes"]))
    if machines is None or head is None or {len(head.classes_), len(machines.classes_)} != {len(classes)}:
        raise InputError(f"machines and head must have {len(classes)} classes")
    if head.n_features_in_ != machines.n_features_in_:
        raise InputError("machines and head must have the same columns")
    fused = FusionModel(
        replace(machines.model_, classes_=classes),
        replace(head, parameters=replace(head.parameters, classes=tuple(classes.tolist()))),
        weight_=check_number(values["weight"], "weight", at_least=0),
        temperature_=check_number(values["temperature"], "temperature", above=0),
        prior=prior_from_values(values["prior"], classes),
    )
    parts = nested({"model": fused})
    kept = {name: values[name] for name in ("settings", "columns", "prior")}
    return Record(parts.arrays, {**parts.values, **kept})


def _with_columns(model: Estimator, names: Any, width: int) -> Estimator:
    """The estimator with number and names of the columns of X, as scikit-learn keeps them."""
    model.n_features_in_ = width
    columns = read_columns(names, width)
    if columns:
        model.feature_names_in_ = np.array(columns, dtype=object)
    return model


register("KAHMClassifier", 2, KAHMClassifier, _dump_kahm, _load_kahm, migrations={1: unscaled})
register("FusionClassifier", 2, FusionClassifier, _dump_fusion, _load_fusion, migrations={1: _fused})
register("FusionRegressor", 1, FusionRegressor, _dump_fusion, _load_regressor)

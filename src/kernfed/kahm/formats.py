"""File formats of the KAHM estimators."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from kernfed.base.checks import check_choice, check_count
from kernfed.base.plain import read_columns
from kernfed.base.prior import PRIORS
from kernfed.errors import InputError
from kernfed.files import Record, register
from kernfed.kahm.bank import Bank
from kernfed.kahm.choice import (
    candidate_from_values,
    candidate_values,
    check_batch_size,
    check_partition,
    check_scale,
)
from kernfed.kahm.compose import KAHM, DeepKAHM, WideKAHM
from kernfed.kahm.folding import MEASURES
from kernfed.kahm.model_file import pack_machines, unpack_machines
from kernfed.kahm.regressor import Branch, KAHMRegressor
from kernfed.kahm.spectrum import DTYPES, check_subspace_dim
from kernfed.kernels.rows import Scaling


def _dump_hull(model: Any) -> Record:
    arrays = pack_machines(model.bank_.machines)
    arrays["batch_rows"] = np.concatenate(model.batches_).astype(np.int64)
    return Record(arrays, {"parameters": model.get_params(), "scaling": scaling_values(model)})


def _load_hull(kind: type) -> Any:
    def load(record: Record) -> Any:
        model = with_parameters(kind, record)
        machines = unpack_machines(record.arrays)
        rows, numbers = sum(machine.n_rows for machine in machines), record.arrays["batch_rows"]
        if numbers.dtype != np.int64 or numbers.ndim != 1 or not np.array_equal(np.sort(numbers), np.arange(rows)):
            raise InputError(f"batch_rows must be the {rows} numbers of rows, each once")
        if kind is not WideKAHM and len(machines) != 1:
            raise InputError(f"a {kind.__name__} has one machine, got {len(machines)}")
        cuts = np.cumsum([machine.n_rows for machine in machines])[:-1]
        scaling = read_scaling(record, machines[0].width)
        return model._adopt(machines, np.split(numbers.astype(np.intp), cuts), scaling)

    return load


#: What parameters of estimators may be; these are also used by whoever fits the model again.
_CHECKS: dict[str, Callable[[Any], Any]] = {
    "batch_size": check_batch_size,
    "dtype": lambda value: check_choice(value, "dtype", DTYPES),
    "layers": lambda value: check_count(value, "layers"),
    "measure": lambda value: check_choice(value, "measure", MEASURES),
    "n_jobs": lambda value: value is None or check_count(value, "n_jobs", at_least=-1024, at_most=1024),
    "partition": check_partition,
    "scale": check_scale,
    "prior": lambda value: isinstance(value, list) or value is None or check_choice(value, "prior", PRIORS),
    "random_state": lambda value: value is None or check_count(value, "random_state", at_least=0),
    "standardize": lambda value: check_choice(str(value), "standardize", ("True", "False")),
    "subspace_dim": check_subspace_dim,
}


def with_parameters(kind: type, record: Record) -> Any:
    """An estimator that is not fitted yet, with the parameters of a file."""
    model = kind(**record.values["parameters"])
    for name, value in model.get_params().items():
        _CHECKS[name](value)
    return model


def _dump_regressor(model: KAHMRegressor) -> Record:
    branches = model.branches_
    arrays = pack_machines(model.bank_.machines)
    arrays["coefficients"] = np.concatenate([branch.coefficients for branch in branches])
    arrays["responses"] = np.concatenate([branch.responses for branch in branches])
    arrays["levels"] = np.array([branch.layer.regularization for branch in branches])
    arrays["shift"], arrays["scale"] = model.shift_, model.scale_
    values = {"parameters": model.get_params(), "flat": model.flat_, "feature_names": feature_names(model)}
    values |= {"scaling": scaling_values(model), "chosen": candidate_values(model.chosen_)}
    return Record(arrays, values)


def _load_regressor(record: Record) -> KAHMRegressor:
    model: KAHMRegressor = with_parameters(KAHMRegressor, record)
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
    model.scaling_ = read_scaling(record, model.bank_.width)
    model.chosen_ = candidate_from_values(record.values["chosen"])
    model.shift_, model.scale_, model.flat_ = arrays["shift"], arrays["scale"], record.values["flat"]
    if not isinstance(model.flat_, bool) or outputs < 1 or (model.flat_ and outputs != 1):
        raise InputError(f"flat must be true or false, and true for one output only, got {model.flat_!r:.40}")
    remember_columns(model, record)
    return model


def scaling_values(model: Any) -> dict[str, Any] | None:
    """Plain values of how rows are brought to one unit; None where they are taken as they are."""
    return None if model.scaling_ is None else dict(model.scaling_.to_values())


def read_scaling(record: Record, width: int) -> Scaling | None:
    """How rows of ``width`` columns are brought to one unit, or None."""
    values = record.values["scaling"]
    scaling = None if values is None else Scaling.from_values(values)
    if scaling is not None and scaling.width not in (None, width):
        raise InputError(f"the scaling must be of {width} columns, got {scaling.width}")
    return scaling


def unscaled(record: Record) -> Record:
    """Version 1 took rows as they are, and was told how to divide them."""
    parameters = {**record.values["parameters"], "scale": None}
    values = {**record.values, "parameters": parameters, "scaling": None, "chosen": None}
    if "flat" in values:  # a regressor always knows how its rows were divided
        values["chosen"] = [None, 1.0, parameters["batch_size"], parameters["partition"]]
    return Record(record.arrays, values)


def feature_names(model: Any) -> list[str]:
    """Names of the columns of X, [] without."""
    return list(model.column_names)


def remember_columns(model: Any, record: Record) -> None:
    """Number and names of the columns of X, as scikit-learn keeps them."""
    model.n_features_in_ = model.bank_.width
    names = read_columns(record.values["feature_names"], model.n_features_in_)
    if names:
        model.feature_names_in_ = np.array(names, dtype=object)


for _kind in (KAHM, DeepKAHM, WideKAHM):
    register(_kind.__name__, 2, _kind, _dump_hull, _load_hull(_kind), migrations={1: unscaled})
register("KAHMRegressor", 2, KAHMRegressor, _dump_regressor, _load_regressor, migrations={1: unscaled})

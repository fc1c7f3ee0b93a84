"""A model as MLflow's ``pyfunc``: logged, registered and served like any other. Needs ``pip install mlflow``.

``kernfed.export.mlflow.save_model("model.kfd", "folder")``, then ``mlflow.pyfunc.load_model("folder").predict(rows)``.
Only models that are whole: machines that stay at their sites are asked by ``kernfed serve``.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

from kernfed._version import __version__
from kernfed.errors import InputError
from kernfed.federation import Model, load
from kernfed.testing.predictors import answer_columns, predictor_for

try:
    import mlflow.pyfunc
except ImportError:
    raise ImportError("kernfed.export.mlflow needs mlflow: pip install mlflow") from None

#: Under which name MLflow keeps the model's file.
ARTIFACT = "model"


_PythonModel: Any = mlflow.pyfunc.PythonModel


class KernfedModel(_PythonModel):  # type: ignore[misc]  # MLflow has no types where it is not installed
    """Predicts with a model file among the artifacts; ``site`` is whose predictor answers, of a personalised model."""

    def __init__(self, site: str = "") -> None:
        self._site = site
        self._model: Model | None = None

    def load_context(self, context: Any) -> None:
        """Read the model of the artifact."""
        self._model = whole_model(context.artifacts[ARTIFACT], self._site)

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]  # MLflow would read hints
        """A data frame with the columns of ``kernfed predict``: prediction, probabilities, and who decided."""
        del context, params  # of MLflow's signature
        import pandas  # MLflow brings it

        rows = model_input if hasattr(model_input, "columns") else np.asarray(model_input)
        model = self._model
        if model is None:
            raise InputError("the model is not loaded: use mlflow.pyfunc.load_model")
        names = list(model.column_names)
        if names and hasattr(rows, "columns") and model.preparation is None:
            absent = [name for name in names if name not in rows.columns]
            if absent:
                raise InputError(f"the rows have no column {absent[0]!r}")
            rows = rows[names]
        return pandas.DataFrame(answer_columns(model.answer(rows), list(model.classes_)))


def whole_model(path: str | os.PathLike[str], site: str = "") -> Model:
    """The model of a file that answers by itself; of a personalised one the predictor of ``site``."""
    model = predictor_for(load(path), site, "site")
    if not isinstance(model, Model):
        raise InputError(f"a {type(model).__name__} does not answer rows, expected a model of kernfed train")
    if model.hold == "sites":
        raise InputError(f"{path}: the machines of this model are at its sites; serve it with kernfed serve")
    return model


def save_model(path: str | os.PathLike[str], folder: str | os.PathLike[str], *, site: str = "", **options: Any) -> None:
    """Write the model file ``path`` as an MLflow model into ``folder``; ``options`` as of ``pyfunc.save_model``."""
    mlflow.pyfunc.save_model(str(folder), **_settings(path, site), **options)


def log_model(path: str | os.PathLike[str], name: str = "model", *, site: str = "", **options: Any) -> Any:
    """Log the model file ``path`` in the active MLflow run; ``options`` are those of ``mlflow.pyfunc.log_model``."""
    return mlflow.pyfunc.log_model(name, **_settings(path, site), **options)


def _settings(path: str | os.PathLike[str], site: str) -> dict[str, Any]:
    whole_model(path, site)  # refuses here what could not answer there
    return {
        "python_model": KernfedModel(site),
        "artifacts": {ARTIFACT: str(Path(path).resolve())},
        "pip_requirements": [f"kernfed=={__version__}"],
    }

"""Models under MLflow, where it is installed."""

import warnings

import numpy as np
import pytest

import kernfed as kf
from kernfed.errors import InputError

with warnings.catch_warnings():  # of what MLflow itself imports
    warnings.simplefilter("ignore")
    mlflow = pytest.importorskip("mlflow.pyfunc", reason="MLflow is not installed: pip install mlflow")
    pandas = pytest.importorskip("pandas")
    from kernfed.export.mlflow import KernfedModel, save_model, whole_model

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place, rng = tmp_path_factory.mktemp("models"), np.random.default_rng(2)
    data = {site: (rng.normal(size=(30, 2)), np.arange(30) % 2) for site in "ab"}
    with kf.Federation.local(data, columns=("u", "v"), store=place / "store") as federation:
        kf.RidgeLearner(n_components=8, regularization=0.1).fit(federation).save(place / "ridge.kfd")
        kf.FoldingLearner(batch_size=30).fit(federation).save(place / "sites.kfd")
    return place


def test_a_saved_model_answers_as_before(folder):
    save_model(folder / "ridge.kfd", folder / "mlflow")
    loaded = mlflow.load_model(str(folder / "mlflow"))
    assert isinstance(loaded.unwrap_python_model(), KernfedModel)
    rows = pandas.DataFrame({"v": [0.5, 1.0], "other": [1, 2], "u": [-1.0, 2.0]})
    model = kf.load(folder / "ridge.kfd")
    told = loaded.predict(rows)
    expected = model.answer(rows[["u", "v"]])
    assert told["prediction"].tolist() == expected.labels.tolist()
    np.testing.assert_array_equal(told["probability of 1"], expected.probabilities[:, 1])
    np.testing.assert_array_equal(loaded.predict(rows[["u", "v"]].to_numpy())["prediction"], expected.labels)


def test_a_model_that_cannot_answer_there_is_refused_here(folder):
    with pytest.raises(InputError, match="kernfed serve"):
        whole_model(folder / "sites.kfd")
    with pytest.raises(InputError, match="kernfed serve"):
        save_model(folder / "sites.kfd", folder / "none")
    assert not (folder / "none").exists()

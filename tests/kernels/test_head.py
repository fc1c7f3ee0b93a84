"""Heads as ONNX files: another runtime computes the same labels and probabilities."""

import json
from dataclasses import replace

import numpy as np
import pytest

from kernfed.errors import InputError
from kernfed.federation import Federation, FusionLearner, PersonalLearner, RidgeLearner
from kernfed.fusion import FusionModel

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install onnxruntime")
pytest.importorskip("onnx", reason="needs the extra onnx: pip install -e '.[onnx]' in a clone of kernfed")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(11)
    y = np.array(["low", "middle", "top"])[np.minimum(np.arange(90) % 4, 2)]
    X = rng.standard_normal((90, 4)) + 1.5 * (y == "top")[:, None] - (y == "low")[:, None]
    return {"a": (X[:50], y[:50]), "b": (X[50:], y[50:])}, 3 * rng.standard_normal((200, 4))


def outputs(path, X):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(None, {"rows": X}), strict=True)), session


def check(model, path, X, **prior):
    made, session = outputs(path, X)
    expected = model.predict_proba(X, **prior)
    np.testing.assert_allclose(made["probabilities"], expected, rtol=0, atol=1e-7)
    apart = np.sort(expected, axis=1)
    sure = apart[:, -1] - apart[:, -2] > 1e-6
    assert sure.sum() > 100
    np.testing.assert_array_equal(made["label"][sure], model.predict(X, **prior)[sure])
    return session


@pytest.mark.parametrize(
    "settings",
    [
        {"features": "given"},
        {"n_components": 30},
        {"n_components": 30, "head": "logistic"},
        {"n_components": 30, "class_weight": "balanced"},
    ],
)
def test_a_ridge_model_computes_the_same_elsewhere(data, tmp_path, settings):
    sites, X = data
    fitted = RidgeLearner(regularization=0.01, **settings).fit(Federation.local(sites))
    for prior in ("training", "uniform", {"low": 0.1, "middle": 0.2, "top": 0.7}):
        model = replace(fitted, prior=prior)
        model.to_onnx(tmp_path / "head.onnx")
        session = check(model, tmp_path / "head.onnx", X)
    told = session.get_modelmeta().custom_metadata_map
    assert json.loads(told["classes"]) == ["low", "middle", "top"]


def test_without_a_temperature_probabilities_are_the_nearest(data, tmp_path):
    sites, X = data
    fitted = RidgeLearner(regularization=0.01, n_components=30).fit(Federation.local(sites, columns="wxyz"))
    for prior in ("training", "uniform"):
        model = replace(fitted, temperature_=None, prior=prior)
        model.to_onnx(tmp_path / "head.onnx")
        session = check(model, tmp_path / "head.onnx", X)
        assert (outputs(tmp_path / "head.onnx", X)[0]["probabilities"] == 0).any()
    assert json.loads(session.get_modelmeta().custom_metadata_map["columns"]) == ["w", "x", "y", "z"]


def test_a_regression_has_values(data, tmp_path):
    sites, X = data
    values = {name: (rows, rows @ np.arange(4.0)) for name, (rows, _) in sites.items()}
    model = RidgeLearner(task="regress", regularization=1e-6, n_components=40).fit(Federation.local(values))
    model.to_onnx(tmp_path / "head.onnx")
    made, _ = outputs(tmp_path / "head.onnx", X)
    assert list(made) == ["value"]
    np.testing.assert_allclose(made["value"], model.predict(X), rtol=1e-6, atol=1e-6)


def test_integers_stay_integers(data, tmp_path):
    sites, X = data
    numbered = {name: (rows, (y == "top") * 7) for name, (rows, y) in sites.items()}
    model = RidgeLearner(regularization=0.1, features="given").fit(Federation.local(numbered))
    model.to_onnx(tmp_path / "head.onnx")
    label = outputs(tmp_path / "head.onnx", X)[0]["label"]
    assert label.dtype == np.int64
    assert set(label.tolist()) == {0, 7}


@pytest.mark.parametrize("features", ["given", pytest.param("fourier", marks=pytest.mark.slow)])
def test_a_personal_predictor_computes_the_same_elsewhere(data, tmp_path, features):
    sites, X = data
    model = PersonalLearner(features=features).fit(Federation.local(sites)).for_site("a")
    model.to_onnx(tmp_path / "head.onnx")
    check(model, tmp_path / "head.onnx", X)


@pytest.mark.slow
def test_the_head_of_a_fusion_is_exported_by_name(data, tmp_path):
    sites, X = data
    fused = FusionLearner(hold="machines").fit(Federation.local(sites, holdout=0.2))
    with pytest.raises(InputError, match="part='head'"):
        fused.to_onnx(tmp_path / "head.onnx")
    fused.to_onnx(tmp_path / "head.onnx", part="head")
    made, _ = outputs(tmp_path / "head.onnx", X)
    expected = fused._head_probabilities(fused.head_values(X), None)
    np.testing.assert_allclose(made["probabilities"], expected, rtol=0, atol=1e-7)
    alone = FusionModel(None, fused.ridge)
    alone.to_onnx(tmp_path / "alone.onnx")
    check(alone, tmp_path / "alone.onnx", X)
    with pytest.raises(InputError, match="machines alone"):
        FusionModel(fused.folding, None).to_onnx(tmp_path / "none.onnx")
    assert not (tmp_path / "none.onnx").exists()


def test_values_are_clipped_elsewhere_too(tmp_path):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((60, 4))
    y = X @ [1.0, 2.0, -1.0, 0.5]
    sites = {"a": (X[:30], y[:30]), "b": (X[30:], y[30:])}
    model = RidgeLearner(task="regress", features="given", regularization=0.01).fit(Federation.local(sites))
    model.to_onnx(tmp_path / "head.onnx")
    far = 100 * rng.standard_normal((50, 4))
    value = outputs(tmp_path / "head.onnx", far)[0]["value"]
    np.testing.assert_allclose(value, model.predict(far), rtol=0, atol=1e-9)
    assert (value.min(), value.max()) == (y.min(), y.max())

"""Predictions of values stay within the range of the values in training, wherever that range is known."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from contracts.engines import lying
from kernfed.errors import FileFormatError, InputError, MissingSites
from kernfed.federation import Federation, LocalEngine, Payload, Policy, RidgeLearner
from kernfed.federation.ridge.plausible import common_range, read_range
from kernfed.files import Record, from_record, load, save, to_record
from kernfed.privacy import RecordRidge
from kernfed.ridge import METHODS
from oracles.ridge_sites import Data, value_sites

FAR = np.vstack([np.full((1, 4), 1e3), np.full((1, 4), -1e3), 100 * np.eye(4), -100 * np.eye(4)])
OPTIONS: Any = {"task": "regress", "features": "given", "regularization": 1e-3}


def ends(data: Data) -> tuple[float, float]:
    values = np.concatenate([y for _, y in data.values()])
    return float(values.min()), float(values.max())


@pytest.fixture(scope="module")
def data() -> Data:
    return value_sites((60, 20, 35))


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_predictions_far_outside_the_data_are_within_the_range_of_training(
    data: Data, method: str, intercept: bool
) -> None:
    federation = Federation.local(data)
    options = OPTIONS | {"regularization": 30.0, "fit_intercept": intercept}
    model = RidgeLearner(method, rounds=3, **options).fit(federation)
    low, high = ends(data)
    predicted = model.predict(1e6 * FAR)
    assert predicted.min() == low
    assert predicted.max() == high
    assert model.range_ == (low, high)
    assert model.answer(1e6 * FAR).labels.tolist() == predicted.tolist()


def test_with_noise_the_range_is_the_public_bound_of_targets(data: Data, tmp_path: Any) -> None:
    mechanism = RecordRidge(epsilon=10.0, delta=1e-5, radius=10.0, target_radius=2.0)
    model = RidgeLearner(privacy=mechanism, **OPTIONS).fit(Federation.local(data, store=tmp_path))
    assert model.range_ == (-2.0, 2.0)
    assert np.abs(model.predict(FAR)).max() <= 2.0


def test_classes_have_no_range_and_their_sites_are_not_asked(data: Data) -> None:
    sites = {name: (X, (y > np.median(y)).astype(int)) for name, (X, y) in data.items()}
    assert RidgeLearner(features="given", regularization=0.1).fit(Federation.local(sites)).range_ is None


def test_targets_of_which_none_may_be_told_have_no_range(data: Data) -> None:
    policy = Policy(labels="targets", tasks=("*",))
    for method in ("exact", "dkrr"):
        with Federation.local(data, policies={"s1": policy}) as federation:
            assert RidgeLearner(method, **OPTIONS).fit(federation).range_ is None


def test_a_site_may_leave_its_range_out(data: Data) -> None:
    def without(payload: Payload) -> Payload:
        return Payload({name: array for name, array in payload.arrays.items() if name != "range"}, payload.values)

    for method, task in (("exact", "ridge_moments"), ("dkrr", "ridge_start")):
        federation = Federation(lying(LocalEngine.from_data(data), "s1", without, task))
        model = RidgeLearner(method, **OPTIONS).fit(federation)
        assert model.range_ is None
        assert np.abs(model.predict(1e6 * FAR)).max() > 1e6


@pytest.mark.parametrize(("method", "task"), [("exact", "ridge_moments"), ("dkrr", "ridge_start")])
@pytest.mark.parametrize(
    "wrong",
    [[np.nan, 1.0], [0.0, np.inf], [1.0, -1.0], [-1.0, 2.0**1000], [-(2.0**1000), 1.0], [0.0, 1e-9], [0.0, 1.0, 2.0]],
)
def test_a_range_that_no_rows_have_is_refused_by_name(data: Data, method: str, task: str, wrong: list[float]) -> None:
    def lie(payload: Payload) -> Payload:
        return Payload({**payload.arrays, "range": np.array(wrong)}, payload.values)

    federation = Federation(lying(LocalEngine.from_data(data), "s1", lie, task))
    with pytest.warns(MissingSites, match="s1"):
        model = RidgeLearner(method, **OPTIONS).fit(federation, min_replies=2)
    assert "range" in model.missing_["s1"]
    assert model.range_ == ends({name: rows for name, rows in data.items() if name != "s1"})


def test_a_minority_of_sites_moves_the_range_of_most_by_its_width() -> None:
    honest = [(0.0, 10.0), (1.0, 11.0), (-1.0, 9.0)]
    assert common_range(honest, "sum") == common_range(honest, "median") == (-1.0, 11.0)
    low, high = common_range([*honest, (-1e9, 1e9)], "median") or (0.0, 0.0)
    assert -12 < low < high < 22
    assert common_range([*honest, None], "sum") is None


def test_values_far_from_0_have_the_range_that_they_have() -> None:
    y = 1e8 + np.array([0.0, 1.0, 3.0])
    scatter = float(((y - y.mean()) ** 2).sum())
    assert read_range({"range": y[[0, 2]]}, 3, scatter, y.mean(), y.mean()) == (y[0], y[2])
    with pytest.raises(InputError, match="mean"):
        read_range({"range": y[[0, 2]] + 1e4}, 3, 1e12, y.mean(), y.mean())


def test_a_file_keeps_the_range_and_an_earlier_file_has_none(data: Data, tmp_path: Any) -> None:
    model = RidgeLearner(**OPTIONS).fit(Federation.local(data))
    save(model, tmp_path / "model.kfd")
    again = load(tmp_path / "model.kfd")
    assert again.range_ == model.range_
    np.testing.assert_array_equal(again.predict(FAR), model.predict(FAR))
    plain = from_record(to_record(replace(model, range_=None)))
    assert plain.range_ is None
    assert np.abs(plain.predict(1e6 * FAR)).max() > 1e6


@pytest.mark.parametrize("wrong", [[1.0, 0.0], [0.0], "ab", [0.0, True], [0.0, float("nan")]])
def test_a_damaged_range_in_a_file_is_refused(data: Data, wrong: Any) -> None:
    record = to_record(RidgeLearner(**OPTIONS).fit(Federation.local(data)))
    values = {**record.values, "values": {**record.values["values"], "range": wrong}}
    with pytest.raises(FileFormatError, match="range"):
        from_record(Record(record.arrays, values))

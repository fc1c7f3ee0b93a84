"""FedNewton's table and figures: settings, data, and every column against the oracles."""

import json
from dataclasses import replace

import numpy as np
import pytest

from kernfed.data import load_dataset
from kernfed.federation import Federation
from kernfed.ridge import RidgeModel, RidgeParameters
from kernfed_papers.experiments import fednewton_mnist, fednewton_synthetic, fednewton_table_3
from kernfed_papers.experiments.fednewton_curves import (
    CURVES,
    curves_by_round,
    first_that_helps,
    newton_helps,
    round_points,
)
from kernfed_papers.experiments.fednewton_settings import (
    EVEN,
    LARGEST,
    SETTINGS,
    SYNTHETIC,
    Setting,
    learn,
    load_scaled,
    mean_and_deviation,
    mean_squared_error,
    spread,
)
from kernfed_papers.published import TABLES, published
from kernfed_papers.published.fednewton import TABLE_3_DEVIATIONS
from kernfed_papers.rows import slice_rows
from kernfed_papers.runner import run_experiment
from oracles import ridge as oracle

SMALL = Setting(0.3, 1e-2, 0.1, 0.5, 0.5)
COLUMNS = (*fednewton_table_3._PUBLISHED, *fednewton_table_3._OURS)


def digits():
    data = load_dataset("digits", scaling="unit")
    return replace(data, x_train=data.x_train.astype(np.float64), x_test=data.x_test.astype(np.float64))


@pytest.mark.parametrize(
    ("row", "column", "value", "deviation"),
    [
        ("dna", "DKRR", 90.91, 0.50),
        ("dna", "FedNewton # 8", 88.19, 11.58),
        ("letter", "FedAvg", 77.11, 0.17),
        ("Sensorless", "FedNewton # 4", 96.44, 0.17),
        ("shuttle", "FedProx", 98.51, 0.07),
        ("mnist", "FedNewton # 1", 95.53, 0.13),
    ],
)
def test_cells_of_table_3_are_those_in_print(row, column, value, deviation):
    assert published("FedNewton", 3, row, column) == fednewton_table_3.printed(row, column) == value
    assert fednewton_table_3.printed_deviation(row, column) == deviation


def test_every_cell_of_table_3_has_a_deviation_and_every_row_a_setting():
    table = TABLES["FedNewton", 3]
    assert set(table.rows) == set(TABLE_3_DEVIATIONS) == set(SETTINGS)
    assert {len(values) for values in TABLE_3_DEVIATIONS.values()} == {len(table.columns)}
    assert [column for column, *_ in fednewton_table_3._PUBLISHED] == list(table.columns)
    assert fednewton_table_3.printed("dna", "conjugate # 1") is None


# Settings -----------------------------------------------------------------------------------------------------------


def test_columns_are_scaled_by_the_training_rows(tmp_path, monkeypatch, rng):
    x = rng.uniform(-3, 5, (40, 3))
    x[:, 1] = 7.0
    np.savez(
        tmp_path / "sensorless.npz", x_train=x[:30], y_train=np.arange(30) % 3, x_test=x[30:], y_test=np.zeros(10, int)
    )
    monkeypatch.setenv("KERNFED_DATA", str(tmp_path))
    data = load_scaled("Sensorless")
    for column in (0, 2):
        low, high = x[:30, column].min(), x[:30, column].max()
        np.testing.assert_allclose(data.x_test[:, column], 2 * (x[30:, column] - low) / (high - low) - 1, atol=1e-6)
    np.testing.assert_array_equal(data.x_train[:, 1], -1)


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "low", "high"), [("mnist", 0, 1), ("usps", -1, 1), ("pendigits", 0, 100), ("letter", -1, 1)]
)
def test_rows_are_scaled_as_the_protocol_says(shared_data, monkeypatch, name, low, high):
    monkeypatch.setenv("KERNFED_DATA", str(shared_data))
    data = load_scaled(name)
    assert (data.x_train.min(), data.x_train.max()) == pytest.approx((low, high), abs=1e-6)


def test_both_readings_of_sigma():
    assert (SYNTHETIC.bandwidth, SYNTHETIC.literal_bandwidth) == (10.0, pytest.approx(0.1**0.5))


@pytest.mark.parametrize("alpha", [0.5, EVEN])
def test_rows_are_spread_and_none_is_lost(alpha):
    data = slice_rows(digits(), 200, 20, 0)
    sites = spread(data, 4, alpha, 3)
    assert sorted(np.concatenate([X for X, _ in sites.values()]).tolist()) == sorted(data.x_train.tolist())
    sizes = {len(y) for _, y in sites.values()}
    assert (sizes == {50}) == (alpha == EVEN)


@pytest.mark.parametrize("size", [1.0, 1e99, 1e149, 1e200])
def test_errors_are_numbers_however_large(size):
    model = RidgeModel(RidgeParameters(2, "given", task="regress"), np.full((2, 1), size), "newton")
    X = np.array([[1.0, 0.0], [0.5, 0.5], [0.25, 0.0]])
    expected = min(LARGEST, 0.6875 * size * size)
    assert mean_squared_error(model, X, np.zeros(3)) == pytest.approx(expected)
    assert mean_squared_error(model, X, model.predict(X)) == 0


@pytest.mark.parametrize("size", [0.0, 1.0, LARGEST])
def test_mean_and_deviation_of_trials(size):
    mean, deviation = mean_and_deviation([size, size / 2, size])
    assert mean == pytest.approx(size * 5 / 6)
    assert deviation == pytest.approx(size * np.std([1, 0.5, 1], ddof=1))
    assert mean_and_deviation([size]) == (size, None)


# Table 3 ------------------------------------------------------------------------------------------------------------


def test_every_column_is_what_its_name_says():
    data = slice_rows(digits(), 300, 200, 0)
    trial = fednewton_table_3.run_trial(data, SMALL, COLUMNS, 0.5, seed=4, n_components=50)
    with Federation.local(spread(data, 10, 0.5, 4), seed=4) as federation:
        parameters = learn(federation, SMALL, "dkrr", n_components=50).parameters
    transform = parameters.feature_map().transform
    sites = [(transform(X), parameters.targets(y)) for X, y in spread(data, 10, 0.5, 4).values()]
    start = oracle.dkrr(sites, SMALL.regularization)
    expected = {
        "DKRR": start,
        "FedAvg": oracle.fedavg(sites, SMALL.regularization, start, 8, SMALL.rate),
        "FedProx": oracle.fedprox(sites, SMALL.regularization, start, 8, SMALL.proximal),
        "FedNewton # 1": oracle.newton(sites, SMALL.regularization, start, 1),
        "FedNewton # 2": oracle.newton(sites, SMALL.regularization, start, 2),
        "conjugate # 8": oracle.closed_form(*oracle.pooled(sites), SMALL.regularization),
        "exact": oracle.closed_form(*oracle.pooled(sites), SMALL.regularization),
    }
    scores = {name: transform(data.x_test) @ weights for name, weights in expected.items()}
    for name, values in scores.items():
        assert trial.accuracy[name] == pytest.approx(100 * (values.argmax(axis=1) == data.y_test).mean()), name
    assert set(trial.accuracy) == {column for column, *_ in COLUMNS}
    largest = np.linalg.eigvals(oracle.preconditioned(sites, SMALL.regularization)).real.max()
    assert 0.9 * largest < trial.eigenvalue <= largest * (1 + 1e-9)
    floats = 2 * 50 * 10 * 8 * 10
    assert floats <= trial.bytes_up <= 1.2 * floats
    assert floats <= trial.bytes_down <= 1.2 * floats
    pooled = fednewton_table_3.pooled_accuracy(data, SMALL, SMALL.bandwidth, 4, 50)
    assert pooled == pytest.approx(trial.accuracy["exact"])


@pytest.mark.shared_data
def test_dna_fits_the_reading_and_not_the_text(shared_data, monkeypatch):
    monkeypatch.setenv("KERNFED_DATA", str(shared_data))
    data, setting = load_scaled("dna"), SETTINGS["dna"]
    accuracies = [
        fednewton_table_3.pooled_accuracy(data, setting, b, 0, 2000)
        for b in (setting.bandwidth, setting.literal_bandwidth)
    ]
    assert accuracies[0] == pytest.approx(92.0, abs=1.5)
    assert accuracies[1] < 60


@pytest.mark.slow
@pytest.mark.shared_data
def test_the_quick_slice_of_table_3(shared_data, monkeypatch):
    monkeypatch.setenv("KERNFED_DATA", str(shared_data))
    rows = {(row.label, row.unit): row for row in fednewton_table_3.run(0, True)}
    assert {label.split(":")[0] for label, _ in rows} == set(SETTINGS)
    assert rows["Sensorless: DKRR", "%"].note == "not run: needs sensorless.npz in the folder KERNFED_DATA"
    newton = rows["dna: FedNewton # 8", "%"]
    assert (newton.published, newton.note) == (88.19, "2 trials; published ± 11.58")
    assert newton.ours < rows["dna: DKRR", "%"].ours
    best = rows["pendigits: exact", "%"].ours
    assert rows["pendigits: conjugate # 8", "%"].ours == pytest.approx(best, abs=0.6)
    assert rows["pendigits: pooled", "%"].ours == best


@pytest.mark.shared_data
def test_figure_2_counts_every_row_once(shared_data, monkeypatch):
    monkeypatch.setenv("KERNFED_DATA", str(shared_data))
    picture, smallest, largest = run_experiment("fednewton-figure-2", folder=None).rows
    counts = np.array(picture.matrix)
    assert counts.shape == (10, 3)
    np.testing.assert_array_equal(counts.sum(axis=0), np.bincount(load_dataset("dna").y_train))
    assert (smallest.ours, largest.ours) == (counts.sum(axis=1).min(), counts.sum(axis=1).max())


# Figures ------------------------------------------------------------------------------------------------------------


def test_where_newton_begins_to_help():
    values = {"exact": [1.0, 2.0], "DKRR": [1.1, 2.1], "FedNewton # 8": [1.05, 1.95]}
    assert newton_helps(values)
    assert not newton_helps({**values, "FedNewton # 8": [1.0, 1e9]})
    row = first_that_helps({100: False, 150: True, 200: False, 300: True, 250: True}, 260)
    assert (row.published, row.ours) == (260, 250)
    nowhere = first_that_helps({100: True, 200: False}, 260)
    assert nowhere.ours is None
    assert nowhere.note.startswith("not run: in no case")


def test_curves_by_round_have_a_level_line():
    curves = curves_by_round({"A": "newton"}, (0, 2))
    assert curves == (("A, 0", "newton", 0), ("A, 2", "newton", 2), ("exact", "exact", 1))
    rows = list(round_points({"A, 0": [3.0, 5.0], "A, 2": [1.0, 1.0], "exact": [1.0, 1.0]}, "u", ", b"))
    assert [(row.series, row.x, row.ours) for row in rows] == [
        ("A, b", 0, 4.0),
        ("A, b", 2, 1.0),
        ("exact, b", 0, 1.0),
        ("exact, b", 2, 1.0),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["4-model", "5-synthetic"])
def test_synthetic_figures_have_all_curves_and_finite_numbers(name):
    result = run_experiment(f"fednewton-figure-{name}", quick=True, folder=None)
    json.dumps(result.to_json(), allow_nan=False)
    series = {row.series for row in result.rows if row.series}
    expected = (
        {"FedAvg", "FedProx", "FedNewton", "conjugate", "exact"} if name == "5-synthetic" else {c[0] for c in CURVES}
    )
    assert series == expected
    for curve in series:
        assert len({row.x for row in result.rows if row.series == curve}) >= 2
    assert all(row.deviation is not None for row in result.rows if row.series)


@pytest.mark.slow
def test_newton_explodes_where_conjugate_does_not():
    rows = fednewton_synthetic.run_explosion(0, True)
    at = {(row.series, row.x): row.ours for row in rows if row.series}
    for reading in ("deviation 0.1", "variance 0.1"):
        assert at[f"FedNewton, {reading}", 8] > 1e6
        assert at[f"conjugate, {reading}", 8] == pytest.approx(at[f"exact, {reading}", 8], rel=0.05)
        assert at[f"conjugate, {reading}", 0] == at[f"FedNewton, {reading}", 0]
        away = next(row.ours for row in rows if row.label == f"conjugate, round 8, {reading}: away from exact")
        assert away == pytest.approx(100 * abs(at[f"conjugate, {reading}", 8] / at[f"exact, {reading}", 8] - 1))


@pytest.mark.slow
def test_more_heterogeneous_sites_are_seen_as_such():
    rows = fednewton_synthetic.run_data_heterogeneity(0, True)
    measured = [row.ours for row in rows if row.label.startswith("data heterogeneity")]
    assert 0 < measured[0] < measured[1] / 2


@pytest.mark.slow
def test_a_seed_decides_every_trial():
    rows = fednewton_synthetic.run_rounds(0, True)
    assert fednewton_synthetic.run_rounds(0, True) == rows
    assert fednewton_synthetic.run_rounds(1, True) != rows


@pytest.mark.slow
@pytest.mark.shared_data
def test_the_quick_slices_of_mnist(shared_data, monkeypatch):
    monkeypatch.setenv("KERNFED_DATA", str(shared_data))
    at = {(row.series, row.x): row.ours for row in fednewton_mnist.run_sample_size(0, True) if row.series}
    assert at["exact", 60] == at["exact", 150] > 60
    assert at["FedNewton # 8", 60] < at["DKRR", 60] < at["conjugate # 8", 60]
    rounds = {(row.series, row.x): row.ours for row in fednewton_mnist.run_rounds(0, True) if row.series}
    assert rounds["FedAvg", 0] == rounds["conjugate", 0] < rounds["conjugate", 2]

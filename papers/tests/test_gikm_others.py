import math

import numpy as np
import pytest

from kernfed_papers.runner import run_experiment


def test_figure_3_is_the_printed_curve_and_a_measured_error():
    rows = run_experiment("gikm-figure-3", folder=None).rows
    curve = [row for row in rows if row.series]
    assert len(curve) == 26
    for row in curve:
        failure = float(row.series.rsplit(" ", 1)[1])
        expected = (4 + math.sqrt(math.log(1 / failure) / 2)) ** 2 / row.x**2
        assert expected <= row.ours <= expected + 1.001
    measured, bound = rows[-2:]
    assert measured.ours > bound.ours  # where Assumption 2 fails the bound says nothing
    assert "gap" in bound.note
    assert len(run_experiment("gikm-figure-3", quick=True, folder=None).rows) < len(rows)


def test_table_17_runs_on_features_that_are_brought(tmp_path, monkeypatch, rng):
    centres = rng.standard_normal((25, 12))
    labels = np.arange(250) % 25
    for split in (2, 3):
        x = centres[labels] + 0.05 * rng.standard_normal((250, 12))
        np.savez(
            tmp_path / f"freiburg_groceries_resnet50_{split}.npz",
            x_train=x,
            y_train=labels,
            x_test=x[:50],
            y_test=labels[:50],
        )
    monkeypatch.setenv("KERNFED_DATA", str(tmp_path))
    rows = run_experiment("gikm-table-17", folder=None).rows
    accuracies = [row for row in rows if row.unit == "%"]
    assert [row.published for row in accuracies] == [89.69, 87.79, 88.02, 88.44, 87.99]
    assert [row.ours for row in accuracies] == [None, pytest.approx(100), pytest.approx(100), None, None]
    assert "membership-mappings 87.06" in accuracies[1].note


def test_table_17_is_not_run_without_them(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNFED_DATA", str(tmp_path))
    result = run_experiment("gikm-table-17", folder=None)
    assert not result.rows
    assert "freiburg_groceries_resnet50_1.npz" in result.not_run

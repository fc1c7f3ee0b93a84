"""Figures 6, 9, 13 and 15, Tables 3, 4 and 11 of DP-KAHM."""

import numpy as np
import pytest

from kernfed.data import Dataset
from kernfed.kahm import DeepKAHM
from kernfed_papers.experiments import dpkahm_figures, dpkahm_groceries, dpkahm_table_5, dpkahm_time
from kernfed_papers.published.dpkahm import SECONDS
from kernfed_papers.runner import run_experiment


@pytest.fixture
def images(rng, monkeypatch):
    """Smooth random pictures in the place of MNIST, most of them eights."""
    waves = np.sin(np.outer(rng.uniform(0.1, 0.6, 12), np.arange(784)))
    x = np.clip(0.5 + 0.1 * rng.standard_normal((200, 12)) @ waves, 0, 1).astype(np.float32)
    y = np.where(np.arange(200) < 150, 8, 3)
    data = Dataset("mnist", x, y, x[::2], y[::2], (), "")
    for module in (dpkahm_figures, dpkahm_table_5):
        monkeypatch.setattr(module, "load_rows", lambda *_: data)
        monkeypatch.setattr(module, "missing_data", lambda _: "")
    return data


def test_layers_are_those_of_the_deep_machine(images):
    rows = dpkahm_figures.run_layers(0, True)
    eights = dpkahm_figures._eights(0, 61)
    machine = DeepKAHM(subspace_dim=20, layers=5, scale=None).fit(eights[1:])
    assert rows[-1].ours == pytest.approx(machine.distance(eights[:1])[0], rel=1e-6)
    assert rows[-1].ours == min(row.ours for row in rows[1:-1])
    assert [row.x for row in rows[1:-1]] == [1, 2, 3, 4, 5]
    assert np.shape(rows[0].matrix) == np.shape(rows[-1].matrix) == (28, 28)
    np.testing.assert_allclose(np.ravel(rows[0].matrix), eights[0], atol=0.005)
    assert images.y_train[0] == 8


@pytest.mark.usefixtures("images")
def test_fabricated_digits_are_nearer_than_noisy_ones():
    raw, *rows = dpkahm_figures.run_fabricated(0, True)
    assert raw.ours == 0
    for row in rows:
        assert np.shape(row.matrix) == (28, 28 * 5)
        assert 0 < row.ours < float(row.note.split()[-1])


@pytest.mark.usefixtures("images")
def test_histograms_are_densities():
    rows = dpkahm_figures.run_histograms(
        dpkahm_table_5.MNIST, "(32, 20)", {"Def. 12": (0.98, 0.3), "Def. 15": (0.97, 0.05)}, 0, True
    )
    curves = {row.series for row in rows if row.series}
    assert len(curves) == 4
    for curve in curves:
        points = [(row.x, row.ours) for row in rows if row.series == curve]
        step = points[1][0] - points[0][0]
        assert sum(height for _, height in points) * step == pytest.approx(1.0)
    assert [row.published for row in rows if row.unit == "mis"] == [0.3, 0.05]
    assert not any("not private" in row.note for row in rows)


def test_absent_figures_are_not_run(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNFED_DATA", str(tmp_path))
    for name in ("dpkahm-figure-6", "dpkahm-figure-15"):
        assert "npz in the folder KERNFED_DATA" in run_experiment(name, folder=None).not_run
    rows = dpkahm_figures.run_histograms(dpkahm_table_5.FREIBURG, "(16, 20)", {"Def. 12": (0.888, 0.5132)}, 0, True)
    assert [(row.published, row.ours) for row in rows] == [(0.888, None), (0.5132, None)]


def test_groceries_of_one_split(tmp_path, monkeypatch, rng):
    centres = rng.uniform(-0.7, 0.7, (5, 40))
    y = np.arange(200) % 5
    x = np.clip(centres[y] + 0.1 * rng.standard_normal((200, 40)), -1, 1)
    np.savez(tmp_path / "freiburg_groceries_fc6_2.npz", x_train=x, y_train=y, x_test=x[:50] + 0.01, y_test=y[:50])
    monkeypatch.setenv("KERNFED_DATA", str(tmp_path))
    accuracy = run_experiment("dpkahm-table-3", quick=True, folder=None).rows
    assert [row.ours for row in accuracy] == [None, 100.0, None, None, None]  # and no mean of what is not there
    assert accuracy[1].published == 87.16
    areas = run_experiment("dpkahm-table-4", quick=True, folder=None).rows
    assert [row.ours for row in areas] == [None, 1.0, None, None, None]
    assert areas[4].published == 0.9945


def test_areas_are_averaged_over_classes():
    scores = np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 3.0], [1.5, 1.4]])
    answers = np.array([0, 1, 0, 0])
    # Class 0: three rows of it against one, of which two score above and one (the last) above as well: 1.0.
    assert dpkahm_groceries.ranking_quality(scores, np.array([0, 1]), answers) == 1.0
    wrong = dpkahm_groceries.ranking_quality(scores[:, ::-1], np.array([0, 1]), answers)
    assert wrong == 0.0
    # A class that no test row has, or every test row, has no curve.
    assert dpkahm_groceries.ranking_quality(np.c_[scores, [9, 9, 9, 9.0]], np.array([0, 1, 2]), answers) == 1.0


def test_every_printed_size_is_measured():
    assert [count * width for count, width in dpkahm_time.SHAPES] == list(SECONDS)
    rows = dpkahm_time.run(0, True)
    assert rows[0].published == 0.0193
    assert all(row.ours >= 0 and row.unit == "seconds" for row in rows)
    assert all(row.x == 100 * 1000 for row in rows if row.label.startswith("N = 100,"))

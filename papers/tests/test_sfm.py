import numpy as np
import pytest

from kernfed.errors import DataError
from kernfed_papers.experiments.sfm_settings import CIFAR10, NEWSGROUPS, XGLUE, best_other
from kernfed_papers.experiments.sfm_table_5 import _READINGS, public_bound, smooth_sites
from kernfed_papers.rows import load_rows, slice_rows
from kernfed_papers.runner import run_experiment

#: Rows that each experiment has to have in a quick run on the data at hand.
QUICK = {
    "sfm-table-1": "20Newsgroup (all-MiniLM-L6-v2), alpha = 5: SFM",
    "sfm-table-2": "CIFAR-10-LT (EfficientNet-Lite0), rho = 100: SFM",
    "sfm-table-5": "20Newsgroup (all-MiniLM-L6-v2), d = 1, epsilon = 8: smoothed, private rule",
    "sfm-table-6": "20Newsgroup (all-MiniLM-L6-v2): 8 bits",
    "sfm-table-7": "CIFAR-10-LT (EfficientNet-Lite0), rho = 100: SFM-4",
    "sfm-table-8": "20Newsgroup (all-MiniLM-L6-v2), alpha = 5: SFM-2",
    "sfm-table-9": "CIFAR-10-LT (EfficientNet-Lite0), rho = 100: N_b = 50",
    "sfm-table-10": "20Newsgroup (all-MiniLM-L6-v2), alpha = 5: SFM",
}


def bring(folder, name, rng, *, classes=4, rows=200, groups=None):
    """Embeddings of clusters that anything can tell apart."""
    centres = rng.standard_normal((classes, 8))
    parts = {}
    for part in ("train", "test"):
        parts[f"y_{part}"] = np.arange(rows) % classes
        parts[f"x_{part}"] = centres[parts[f"y_{part}"]] + 0.02 * rng.standard_normal((rows, 8))
    if groups is not None:
        parts["group_train"] = np.array(groups)[np.arange(rows) // classes % len(groups)]
    np.savez(folder / f"{name}.npz", **parts)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNFED_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize("name", QUICK)
def test_the_quick_slices(shared_data, monkeypatch, name):
    monkeypatch.setenv("KERNFED_DATA", str(shared_data))
    rows = {row.label: row for row in run_experiment(name, quick=True, folder=None).rows}
    assert 30 < rows[QUICK[name]].ours < 95


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("number", range(1, 11))
def test_without_data_nothing_is_run(number):
    result = run_experiment(f"sfm-table-{number}", folder=None)
    assert not result.rows
    assert "KERNFED_DATA" in result.not_run


def test_the_paper_s_own_features_fill_the_column_without_a_remark(folder, rng):
    bring(folder, "20ng_mxbai", rng)
    every_row = run_experiment("sfm-table-1", quick=True, folder=None).rows
    rows = {row.label: row for row in every_row if row.unit == "%"}
    ours = rows["20Newsgroup, alpha = 5: SFM"]
    assert (ours.published, ours.ours) == (85.3, 100)
    assert ours.note == "best other method in print: C2A 71.6"
    assert (ours.series, ours.x) == ("SFM, alpha = 5", 1)
    assert rows["20Newsgroup, alpha = 5: FedAvg, linear, 3 rounds"].series == "FedAvg, linear, alpha = 5"
    assert rows["20Newsgroup: pooled rows, KAHM"].ours == 100


def test_languages_stay_apart(folder, rng):
    bring(folder, "xglue_nc_distiluse_paraphrase", rng, groups=["de", "en", "fr"])
    (loaded,) = XGLUE.loaded(False, 0)
    data, parts = loaded.spread(2, 0)
    assert len(parts) == 99
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(data.y_train)))
    assert all(len(set(loaded.groups[part])) == 1 for part in parts)
    (quick,) = XGLUE.loaded(True, 0)
    assert len(quick.groups) == len(quick.data.y_train)
    rows = {row.label: row for row in run_experiment("sfm-table-10", quick=True, folder=None).rows}
    assert rows["XGLUE-NC, alpha = 5: both"].published == 82.54
    assert rows["XGLUE-NC, alpha = 5: both"].ours == 100
    assert rows["XGLUE-NC, alpha = 5: paraphrase-multilingual"].ours is None


@pytest.mark.parametrize("number", [3, 5, 8, 10])
def test_files_of_several_languages_must_name_them(folder, rng, number):
    bring(folder, "xglue_nc_distiluse_paraphrase", rng)
    with pytest.raises(DataError, match="needs group_train, the language of every training row; it has none"):
        run_experiment(f"sfm-table-{number}", quick=True, folder=None)


def test_tails_are_long(folder, rng):
    bring(folder, "cifar10_resnet50", rng, classes=10, rows=1000)
    (loaded,) = CIFAR10.loaded(False, 0)
    data, parts = loaded.spread(50, 0)
    counts = np.bincount(data.y_train)
    assert (counts[0], counts[-1]) == (100, 2)
    assert len(parts) == 20
    assert len(data.y_test) == 1000


def test_encoders_that_differ_are_named(folder, rng):
    bring(folder, "20ng_mxbai", rng)
    (loaded,) = NEWSGROUPS.loaded(True, 0)
    assert loaded.name == "20Newsgroup"
    assert loaded.note == ""
    assert NEWSGROUPS.sources[1].encoder == "all-MiniLM-L6-v2"
    assert best_other(2, "rho = 10") == "best other method in print: CREFF 80.71"


def test_bounds_of_elements_need_no_data():
    assert public_bound(400) == pytest.approx(1.5)
    near, whole = (reading.mechanism(2.0, 400) for reading in _READINGS)
    assert (near.d, whole.d) == (1, 3)
    assert near.bounds == whole.bounds == (-1.5, 1.5)
    assert near.delta == 1e-5


@pytest.mark.parametrize("rule", ["oracle", "coupled_bootstrap"])
def test_smoothing_brings_rows_back_class_by_class(rule, rng):
    data = slice_rows(load_rows("digits", "unit"), 200, 10, 0)
    noisy = data.x_train + rng.laplace(scale=0.5, size=data.x_train.shape)
    parts = [np.arange(0, 200, 2), np.arange(1, 200, 2)]
    smoothed = smooth_sites(noisy, data, parts, 0.5 * np.sqrt(2), rule, 100)
    before, after = (np.linalg.norm(rows - data.x_train) for rows in (noisy, smoothed))
    assert after < 0.7 * before
    alone = parts[1][data.y_train[parts[1]] == 3]
    moved = noisy.copy()
    moved[parts[0]] += 1  # another site changes nothing here
    again = smooth_sites(moved, data, parts, 0.5 * np.sqrt(2), rule, 100)
    assert np.array_equal(again[alone], smoothed[alone])

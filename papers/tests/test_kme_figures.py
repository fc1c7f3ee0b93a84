from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from kernfed.personal.prior import PENALTIES, effective_rows
from kernfed_papers.experiments import kme_figure_1, kme_figure_2, kme_figure_3
from kernfed_papers.experiments.kme_data import concept_shift, covariate_shift
from kernfed_papers.experiments.kme_styles import Styles


def left_out_error(task, target, weights, penalty):
    """Sum of squared errors on a target's own rows, each predicted by a fit without it."""
    errors = []
    for left in range(len(task.sites[target][1])):
        rows = [(X, y, np.full(len(y), w / len(y))) for (X, y), w in zip(task.sites, weights, strict=True)]
        rows[target][2][left] = 0.0
        X, y, v = (np.concatenate([part[place] for part in rows]) for place in range(3))
        b = np.linalg.solve(X.T @ (v[:, None] * X) + penalty * np.eye(X.shape[1]), X.T @ (v * y))
        errors.append(task.sites[target][1][left] - task.sites[target][0][left] @ b)
    return np.square(errors).sum()


@pytest.mark.parametrize("alone", [True, False])
def test_lambda_is_chosen_by_leaving_out_own_rows(rng, alone):
    task = concept_shift(0.3, 0, 0, n_sites=3, n_rows=5, width=4)
    W = np.eye(3) if alone else rng.dirichlet(np.ones(3), 3)
    coefficients = kme_figure_1.own_ridge(task, W)
    for target, weights in enumerate(W):
        X, y = (np.concatenate([site[part] for site in task.sites]) for part in (0, 1))
        v = np.repeat(weights / 5, 5)
        unit = float(v @ np.square(X).sum(axis=1)) / effective_rows(W, [5, 5, 5])[target]
        best = min(unit * PENALTIES, key=lambda penalty: left_out_error(task, target, weights, penalty))
        expected = Ridge(alpha=best, fit_intercept=False).fit(X, y, sample_weight=v)
        np.testing.assert_allclose(coefficients[target], expected.coef_, rtol=1e-5, atol=1e-8)


@pytest.mark.slow
def test_quick_curves_of_concept_shift():
    rows = kme_figure_1.run(0, True)
    assert rows == kme_figure_1.run(0, True)
    errors = {(row.series, row.x): row.ours for row in rows if row.series}
    assert {x for _, x in errors} == {0.0, 1.0}
    assert {series for series, _ in errors} == {
        "Local",
        "GrandMean",
        "Oracle",
        "printed constants",
        "constants 1",
        "printed constants and solver",
        "auto",
    }
    assert errors["auto", 0.0] < errors["Local", 0.0]
    assert errors["auto", 1.0] < errors["Oracle", 1.0]
    assert min(errors.values()) > 2  # the variance of the noise
    own = {row.label: row.ours for row in rows if not row.series}
    assert own["weight on itself, printed constants, at 0"] > own["weight on itself, constants 1, at 0"]


@pytest.mark.slow
def test_quick_curves_of_covariate_shift():
    pytest.importorskip("torch")
    rows = kme_figure_2.run(0, True)
    assert len([row for row in rows if row.series]) == 12
    pictures = [row for row in rows if row.matrix]
    assert len(pictures) == 3
    for row in pictures:
        np.testing.assert_allclose(np.sum(row.matrix, axis=1), 1, atol=0.02)
        assert 0.5 < row.ours <= 1


@pytest.mark.slow
def test_networks_of_several_tasks_at_once_are_each_alone():
    pytest.importorskip("torch")
    tasks = [covariate_shift(0, number, group_sizes=(2, 1, 1), n_test=50) for number in range(2)]
    weights = [np.array([0.5, 0.5, 0.0, 0.0]), np.array([0.25, 0.25, 0.25, 0.25])]
    together = kme_figure_2.network_errors(tasks, weights, (8,), 0, 30)
    alone = kme_figure_2.network_errors(tasks[:1], weights[:1], (8,), 0, 30)  # fewer rows, so no padding
    assert together[0] == pytest.approx(alone[0], rel=1e-4)


def test_without_torch_the_networks_are_not_run(monkeypatch):
    def missing():
        raise ImportError("networks need PyTorch")

    monkeypatch.setattr(kme_figure_2, "require_torch", missing)
    rows = kme_figure_2.run(0, True)
    assert len(rows) == 36
    assert {row.note for row in rows} == {"not run: networks need PyTorch"}
    assert all(row.ours is None for row in rows)


def classes(rng, turn):
    x = rng.standard_normal((90, 3))
    return x, (x @ turn).argmax(axis=1)


def two_styles(rng):
    turns = [rng.standard_normal((3, 4)) for _ in range(2)]
    rows = [classes(rng, turns[site // 3]) for site in range(6)]
    sites, tests = (tuple((x[part], y[part]) for x, y in rows) for part in (slice(30), slice(30, None)))
    return Styles(sites, tests, 4, np.repeat([0, 1], 3))


def test_accuracies_are_those_of_scikit_learn(rng):
    study = two_styles(rng)
    accuracies = kme_figure_3.accuracies(study, np.eye(6))
    for value, (x, y), test in zip(accuracies, study.sites, study.tests, strict=True):
        reference = LogisticRegression(C=1 / (30 * 1e-3), max_iter=5000).fit(x, y)
        assert value == pytest.approx(reference.score(*test), abs=0.04)
    common = kme_figure_3.accuracies(study, np.full((1, 6), 1 / 6))
    assert common.shape == (6,)


@pytest.mark.slow
def test_rows_of_a_study(rng):
    study = two_styles(rng)
    rows = kme_figure_3.study_rows("probe", lambda _: study, 0, 2)
    by_label = {row.label: row for row in rows}
    assert by_label["probe: Oracle, mean over sites"].ours > by_label["probe: GrandMean, mean over sites"].ours
    assert by_label["probe: sites where auto is behind Local"].ours <= 100
    curve = [row.ours for row in rows if row.series == "auto, probe"]
    assert curve == sorted(curve)
    assert len(curve) == 6
    unknown = kme_figure_3.study_rows("probe", lambda _: replace(study, styles=None), 0, 1)
    assert not any("Oracle" in row.label for row in unknown)


def test_absent_data_are_not_run(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNFED_DATA", str(tmp_path))
    rows = kme_figure_3.run(0, True)
    assert [row.note for row in rows] == [
        "not run: needs femnist.npz in the folder KERNFED_DATA",
        "not run: needs usps.npz in the folder KERNFED_DATA",
    ]

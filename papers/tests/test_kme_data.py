import numpy as np
import pytest

from kernfed.data import load_dataset
from kernfed.personal.weights import EmbeddingKernel
from kernfed_papers.experiments import kme_styles
from kernfed_papers.experiments.kme_data import concept_shift, covariate_shift, regression
from kernfed_papers.experiments.kme_styles import digits_by_origin, domains_by_site, reduce_pixels, writers
from kernfed_papers.experiments.kme_weights import Aggregation, grand_mean, oracle


def test_two_groups_of_opposite_coefficients():
    task = concept_shift(0.0, 0, 3)
    assert len(task.sites) == 100
    assert task.sites[0][0].shape == (10, 20)
    signs = 2 * task.groups - 1
    np.testing.assert_allclose(task.coefficients, np.outer(signs, signs[0] * task.coefficients[0]))
    residuals = np.concatenate([y - X @ b for (X, y), b in zip(task.sites, task.coefficients, strict=True)])
    assert residuals.var() == pytest.approx(2, rel=0.15)
    assert np.concatenate([X for X, _ in task.sites]).mean() == pytest.approx(1, abs=0.03)


def test_spread_changes_the_coefficients_only():
    near, far, other = concept_shift(0.1, 0, 0), concept_shift(1.0, 0, 0), concept_shift(1.0, 0, 1)
    assert np.array_equal(near.sites[5][0], far.sites[5][0])
    assert not np.array_equal(other.sites[5][0], far.sites[5][0])
    assert np.square(far.coefficients).mean() == pytest.approx(1, rel=0.1)
    assert abs(np.corrcoef(far.coefficients[0], far.coefficients[1])[0, 1]) < 0.6  # nothing in common


def test_expected_errors_are_those_on_many_rows(rng):
    task = concept_shift(0.5, 0, 0, n_sites=3)
    guess = rng.standard_normal((3, 20))
    X = 1 + rng.standard_normal((200_000, 20))
    for error, a, b in zip(task.errors(guess), guess, task.coefficients, strict=True):
        assert error == pytest.approx(2 + np.square(X @ (a - b)).mean(), rel=0.02)
    assert task.errors(task.coefficients).tolist() == [2, 2, 2]


def test_three_groups_of_features_and_one_function():
    task = covariate_shift(0, 0, n_rows=200)
    centres = np.array([X.mean() for X, _ in task.sites])
    assert np.bincount(task.groups).tolist() == [30, 30, 40]
    assert [centres[task.groups == g].mean() for g in range(3)] == pytest.approx([0, 2, 0], abs=0.2)
    assert max(np.abs(X).max() for X, _ in task.sites[60:]) <= 6
    X, y = task.test
    assert len(y) == 2000
    assert len(task.sites[0][1]) == 200
    assert np.var(y - regression(X)) == pytest.approx(0.04, rel=0.1)
    assert regression(np.array([[0.5, 2.0, 1.0, -3.0]])) == pytest.approx(np.sin(1.5) + 2 - 0.2)


def test_weights_of_the_baselines():
    assert grand_mean([1, 3]).tolist() == [[0.25, 0.75]]
    assert oracle(np.array([0, 1, 0]), [1, 5, 3]).tolist() == [[0.25, 0, 0.75], [0, 1, 0], [0.25, 0, 0.75]]


def test_the_printed_solver_stops_between_equal_weights_and_the_minimum():
    task = covariate_shift(0, 0, group_sizes=(8, 0, 8))
    aggregation = Aggregation.of(EmbeddingKernel(4, 1, columns="features"), [(X, y[:, None]) for X, y in task.sites])
    exact, printed = aggregation.exact((1.0, 1.0)), aggregation.printed_solver((1.0, 1.0))
    for weights in (exact, printed):
        assert weights.min() >= 0
        np.testing.assert_allclose(weights.sum(axis=1), 1)
    assert np.square(printed).sum() < np.square(exact).sum()  # more spread
    assert aggregation.exact("printed").diagonal().mean() > exact.diagonal().mean()


def test_pixels_are_reduced_by_area(rng):
    images = rng.uniform(size=(3, 28 * 28)).astype(np.float32)
    reduced = reduce_pixels(images)
    assert reduced.shape == (3, 256)
    np.testing.assert_allclose(reduced.mean(axis=1), images.mean(axis=1), rtol=1e-4)
    blocks = images.reshape(3, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(3, -1)
    np.testing.assert_allclose(reduce_pixels(images, 28, 14), blocks, rtol=1e-4)
    assert reduce_pixels(np.ones((1, 784), np.float32)) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.shared_data
def test_digits_of_two_origins(shared_data, monkeypatch):
    monkeypatch.setenv("KERNFED_DATA", str(shared_data))
    study, again, other = (digits_by_origin(0, repetition, 6) for repetition in (0, 0, 1))
    assert np.array_equal(study.sites[4][0], again.sites[4][0])
    assert not np.array_equal(study.sites[4][0][:20], other.sites[4][0][:20])
    assert all(x.shape[1] == 256 and 20 <= len(y) <= 60 for x, y in study.sites)
    usps = {row.tobytes() for row in load_dataset("usps", scaling="unit").x_train}
    assert [all(row.tobytes() in usps for row in x) for x, _ in study.sites] == [True] * 3 + [False] * 3
    assert study.styles.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.shared_data
def test_domains_are_divided_without_overlap(shared_data, monkeypatch):
    monkeypatch.setenv("KERNFED_DATA", str(shared_data))
    study = domains_by_site(0, 0)
    assert np.bincount(study.styles).tolist() == [12, 12, 6, 3]
    rows = [row.tobytes() for x, _ in (*study.sites, *study.tests) for row in x]
    assert len(rows) == 958 + 1123 + 295 + 157
    assert min(len(y) for _, y in study.tests) > 25


def test_writers_are_sites(tmp_path, monkeypatch, rng):
    monkeypatch.setenv("KERNFED_DATA", str(tmp_path))
    y, group = np.arange(60) % 3, np.repeat(["b", "a", "c"], 20)
    arrays = {"x_train": rng.standard_normal((60, 4)), "y_train": y, "x_test": np.zeros((1, 4)), "y_test": [0]}
    np.savez(tmp_path / "femnist.npz", **arrays, group_train=group)
    study = writers("femnist", 0, 0, n_sites=2)
    assert [len(labels) for _, labels in (*study.sites, *study.tests)] == [16, 16, 4, 4]
    first = {row.tobytes() for row in arrays["x_train"][group == "a"].astype(np.float32)}
    assert {row.tobytes() for part in (study.sites, study.tests) for row in part[0][0]} == first
    assert (study.n_classes, study.styles) == (3, None)
    np.savez(tmp_path / "femnist.npz", **arrays)
    with pytest.raises(ValueError, match="needs group_train"):
        kme_styles.writers("femnist", 0, 0)

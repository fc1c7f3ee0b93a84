"""The synthetic task of FedNewton."""

import numpy as np
import pytest

from kernfed.data.datasets import fednewton_synthetic


def test_shapes_and_names():
    task = fednewton_synthetic(12, 7, 0.1, 0.1, seed=3, width=4, n_test=20)
    assert list(task.sites) == [f"site {number:02d}" for number in range(12)]
    assert all(X.shape == (7, 4) and y.shape == (7,) for X, y in task.sites.values())
    np.testing.assert_array_equal(task.y_test, -np.abs(task.x_test.sum(axis=1)))


def test_without_heterogeneity_all_sites_follow_the_common_task():
    task = fednewton_synthetic(3, 20_000)
    for X, y in task.sites.values():
        np.testing.assert_allclose(X.mean(axis=0), 0, atol=0.04)
        noise = y + np.abs(X.sum(axis=1))
        assert noise.mean() == pytest.approx(0, abs=0.02)
        assert noise.var() == pytest.approx(0.2, rel=0.05)


def test_alpha_and_beta_are_variances_of_means_and_weights():
    means, weights = [], []
    for X, y in fednewton_synthetic(200, 60, alpha=9.0, beta=0.04).sites.values():
        means.append(X.mean(axis=0))
        if (y < -3).all():  # all rows are on one side of the kink, where the task is linear
            found = np.linalg.lstsq(X, y, rcond=None)[0]
            weights.append(found * np.sign(found.sum()))
    assert np.var(means) == pytest.approx(9.0, rel=0.1)
    assert len(weights) > 50
    assert np.mean(weights) == pytest.approx(1.0, abs=0.03)
    assert np.var(weights) == pytest.approx(0.04, rel=0.2)


def test_a_site_does_not_depend_on_the_others():
    few, many = fednewton_synthetic(2, 5, seed=1), fednewton_synthetic(9, 5, seed=1)
    np.testing.assert_array_equal(few.sites["site 1"][0], many.sites["site 1"][0])
    assert not np.array_equal(few.sites["site 0"][0], few.sites["site 1"][0])
    assert not np.array_equal(few.sites["site 0"][0], fednewton_synthetic(2, 5, seed=2).sites["site 0"][0])


@pytest.mark.parametrize(
    "wrong", [{"n_sites": 0}, {"n_per_site": 0}, {"alpha": -1.0}, {"beta": float("nan")}, {"width": 0}, {"seed": -1}]
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        fednewton_synthetic(**{"n_sites": 2, "n_per_site": 3, **wrong})

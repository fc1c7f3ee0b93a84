"""Grids that grow at their edges, and rows that choose."""

import numpy as np
import pytest

from kernfed_papers.baselines.tuning import Axis, choose, folds, stratified


def peak(*best):
    """Accuracy that falls with the distance from a point, in powers of ten; says what it was asked."""
    asked = []

    def accuracies(points):
        asked.extend(points)
        return [90 - sum(abs(np.log10(a / b)) for a, b in zip(point, best, strict=True)) for point in points]

    return accuracies, asked


@pytest.mark.parametrize(
    ("best", "values"), [(1e-3, (1e-4, 1e-3, 0.01, 0.1, 1.0)), (10.0, (0.01, 0.1, 1.0, 10.0, 100))]
)
def test_an_optimum_on_the_edge_widens_the_grid_until_it_is_inside(best, values):
    accuracies, asked = peak(best)
    choice = choose([Axis("C", (0.01, 0.1, 1.0))], accuracies)
    assert choice["C"] == pytest.approx(best)
    assert choice.axes[0].values == pytest.approx(values)
    assert len(asked) == len(set(asked)) == len(values)
    assert f"C = {best:.3g} of C in {values[0]:.3g}" in str(choice)
    assert not choice.on_edge


def test_both_axes_grow_and_every_point_is_asked_once():
    accuracies, asked = peak(100.0, 1.0)
    choice = choose([Axis("C", (1.0, 10.0)), Axis("gamma", (0.1, 1.0, 10.0))], accuracies)
    assert choice.point == (100.0, 1.0)
    assert len(asked) == len(set(asked)) == 4 * 3


def test_an_axis_ends_where_its_setting_does():
    accuracies, _ = peak(0.01)
    choice = choose([Axis("k", (2, 4), step=2, lowest=1, whole=True)], accuracies)
    assert choice["k"] == 1
    assert choice.axes[0].values == (1, 2, 4)
    assert not choice.on_edge


def test_an_optimum_that_runs_away_is_said_to_be_on_the_edge():
    choice = choose([Axis("C", (1.0, 10.0))], lambda points: [point[0] for point in points])
    assert choice.on_edge == ("C",)
    assert "still on the edge: C" in str(choice)


def test_on_a_plateau_the_middle_counts():
    choice = choose([Axis("C", (1.0, 2.0, 4.0, 8.0, 16.0))], lambda points: [50.0] * len(points))
    assert choice["C"] == 4
    assert len(choice.axes[0].values) == 5


def test_folds_divide_few_rows_and_spread_classes(rng):
    labels = rng.permutation(np.repeat([0, 1, 2], [600, 90, 9]))
    seen = []
    for fitted, left in folds(labels, "a set", 350):
        assert not set(fitted) & set(left)
        assert set(labels[fitted]) == {0, 1, 2}
        seen.append(left)
    rows = np.concatenate(seen)
    assert len(rows) == len(set(rows)) == 350
    assert np.bincount(labels[rows]).tolist() == pytest.approx([300, 45, 4.5], abs=1)


def test_a_stratified_part_keeps_every_class_and_does_not_change():
    labels = np.repeat([0, 1, 2], [1000, 20, 1])
    rows = stratified(labels, 100, "a set")
    assert np.bincount(labels[rows]).tolist() == pytest.approx([97, 2, 1], abs=1)
    assert rows.tolist() == stratified(labels, 100, "a set").tolist() != stratified(labels, 100, "other").tolist()
    assert len(stratified(labels, 5000, "a set")) == 1021

import numpy as np
import pytest

from kernfed.errors import InputError
from kernfed.kernels.rows import ColumnStatistics, Scaling, typical_statistics


def test_statistics_of_parts_add_up_to_those_of_all_rows(rng):
    rows = rng.standard_normal((90, 3)) * [1.0, 1e-3, 5.0] + [1e6, 0.0, -7.0]
    parts = [ColumnStatistics.of(part) for part in (rows[:10], rows[10:60], rows[60:])]
    total, whole = parts[0] + parts[1] + parts[2], ColumnStatistics.of(rows)
    assert total.n == whole.n == 90
    np.testing.assert_allclose(total.mean, whole.mean, rtol=1e-15)
    np.testing.assert_allclose(total.squares, rows.var(axis=0) * 90, rtol=1e-9)  # an offset of 1e6 costs no digits
    assert total + ColumnStatistics.of(rows[:0]) is total


def test_columns_come_to_one_spread_and_entries_to_one_size(rng):
    rows = rng.standard_normal((200, 4)) * [1.0, 10.0, 0.1, 0.0] + [3.0, 1e4, 0.0, 0.1]
    statistics = ColumnStatistics.of(rows)
    columns = Scaling.of(statistics, "columns", 0.3)
    scaled = columns.apply(rows)
    np.testing.assert_allclose(scaled.mean(axis=0), 0.0, atol=1e-9)
    np.testing.assert_allclose(scaled.std(axis=0), [0.3, 0.3, 0.3, 0.0], atol=1e-9)
    np.testing.assert_allclose(columns.restore(scaled), rows, rtol=1e-12)
    entries = Scaling.of(statistics, "entries", 0.3)
    assert np.sqrt(np.mean(entries.apply(rows) ** 2)) == pytest.approx(0.3)
    assert (columns.width, entries.width) == (4, None)
    assert Scaling.of(ColumnStatistics.of(np.zeros((3, 2))), "entries", 1.0).apply(np.ones((1, 2))).tolist() == [[1, 1]]


def test_the_typical_unit_is_not_that_of_one_wrong_site(rng):
    honest = [ColumnStatistics.of(rng.standard_normal((50, 2))) for _ in range(4)]
    liar = ColumnStatistics(50, np.array([1e9, 0.0]), np.array([1e18, 1.0]))
    spread = typical_statistics([*honest, liar]).spread
    assert (np.abs(spread - 1.0) < 0.4).all()
    assert (typical_statistics(honest[:1]).spread == honest[0].spread).all()


def test_a_scaling_comes_back_from_its_values_and_nothing_else_does():
    scaling = Scaling("columns", 0.3, (0.1, 1 / 3), (2.0, 1e-300))
    assert Scaling.from_values(scaling.to_values()) == scaling
    good = scaling.to_values()
    wrong = [
        {**good, "kind": "rows"},
        {**good, "unit": 0.0},
        {**good, "spread": [1.0, 0.0]},
        {**good, "spread": [1.0]},
        {**good, "centre": [float("nan"), 0.0]},
        {**good, "centre": "ab"},
        {**good, "kind": "entries"},
        {**good, "more": 1},
        [1, 2],
    ]
    for values in wrong:
        with pytest.raises(InputError):
            Scaling.from_values(values)
    with pytest.raises(InputError, match="rescale"):
        ColumnStatistics.of(np.array([[1e200], [-1e200]]))
    for mean, squares in (
        (np.zeros(2), np.array([-1.0, 0.0])),
        (np.array([1e200, 0.0]), np.zeros(2)),
        (np.zeros(3),) * 2,
    ):
        with pytest.raises(InputError):
            ColumnStatistics.from_arrays(3, {"mean": mean, "squares": squares}, width=2)

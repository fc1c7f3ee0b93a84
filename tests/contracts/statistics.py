"""What every statistic must do: one suite, run for each of them.

A subclass makes the statistic, and rows for it from a generator of random numbers.
"""

import json
import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernfed.errors import InputError
from kernfed.privacy.generator import NoiseGenerator
from kernfed.privacy.noisy_sum import NoisySum
from kernfed.statistics import LabelledRows, Statistic, statistic_class, statistic_of

HOSTILE_VALUES = (None, "1", "x", math.nan, math.inf, -1.0, -3, 10**400, [1.0], [[1.0]], {}, {"a": 1}, b"1", 1 << 60)
HOSTILE_NUMBERS = (math.inf, -math.inf, math.nan, 1e308, -1e308, 5e-324, 0.0, 1.0, -1.0, 0.5, 3.0)
WRONG_LABELS = ("zzz", "", 7, -1, 1e308, math.nan, math.inf, True)
#: Room for rounding: floats of the sums, and the grid's rounding towards zero.
ROUNDING = 1e-9

#: The suite is inherited by the tests of each statistic, which hypothesis takes for an accident.
SEARCH = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.differing_executors])


def together(*parts: LabelledRows) -> LabelledRows:
    return LabelledRows(np.concatenate([part.X for part in parts]), np.concatenate([part.y for part in parts]))


class StatisticContract(ABC):
    """Sums, bounds, grid, parameters and noise."""

    name: str

    @abstractmethod
    def statistic(self) -> Statistic[Any]:
        """The statistic with parameters of a small problem."""

    @abstractmethod
    def rows(self, rng: np.random.Generator, n: int) -> LabelledRows:
        """Rows of any kind, inside the public bounds, on them and beyond."""

    def hostile(self, rng: np.random.Generator, n: int) -> LabelledRows:
        """Rows of values that nobody expects, with labels that are none."""
        rows = self.rows(rng, n)
        X = rng.choice(HOSTILE_NUMBERS, size=rows.X.shape)
        if rows.y.dtype.kind == "f":
            return LabelledRows(X, rng.choice(HOSTILE_NUMBERS, size=rows.y.shape))
        return LabelledRows(
            X, np.array([WRONG_LABELS[i] for i in rng.integers(len(WRONG_LABELS), size=n)], dtype=object)
        )

    # Sums ---------------------------------------------------------------------------------------------------------

    def test_it_is_registered(self) -> None:
        assert self.statistic().name == self.name
        assert statistic_class(self.name) is type(self.statistic())

    @pytest.mark.parametrize("seed", range(5))
    def test_sums_add_over_disjoint_rows(self, seed: int) -> None:
        rng, statistic = np.random.default_rng(seed), self.statistic()
        one, other, none = self.rows(rng, 7), self.rows(rng, 5), self.rows(rng, 0)
        whole = together(one, other, none)
        for kind in ("sums", "integers"):
            parts = [getattr(statistic, kind)(rows) for rows in (one, other, none)]
            for name, array in getattr(statistic, kind)(whole).items():
                added = sum(part[name] for part in parts)
                np.testing.assert_allclose(array, added, rtol=1e-12, atol=1e-12)
                assert kind == "sums" or (array == added).all()
                assert array.shape == statistic.parts[name].shape
                assert not parts[2][name].any()

    def test_long_sums_are_added_in_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        statistic, rows = self.statistic(), self.rows(np.random.default_rng(1), 60)
        exact, whole = statistic.integers(rows), statistic.sums(rows)
        monkeypatch.setattr("kernfed.statistics.statistic.BLOCK_ROWS", 7)
        for name, array in statistic.integers(rows).items():
            np.testing.assert_array_equal(array, exact[name])
            np.testing.assert_allclose(statistic.sums(rows)[name], whole[name], rtol=1e-12, atol=1e-12)

    def test_the_order_of_rows_does_not_matter_on_the_grid(self) -> None:
        rng, statistic = np.random.default_rng(2), self.statistic()
        rows, order = self.rows(rng, 40), rng.permutation(40)
        mixed = statistic.integers(LabelledRows(rows.X[order], rows.y[order]))
        for name, array in statistic.integers(rows).items():
            assert array.dtype == np.int64
            np.testing.assert_array_equal(array, mixed[name])

    @pytest.mark.parametrize("seed", range(5))
    def test_integers_are_the_sums_on_the_grid(self, seed: int) -> None:
        statistic, rows = self.statistic(), self.rows(np.random.default_rng(seed), 20)
        exact = statistic.sums(rows)
        for name, array in statistic.integers(rows).items():
            part = statistic.parts[name]
            room = 20 * max(part.degree, 1) * 2.0**-15 if part.degree else 0.0
            np.testing.assert_allclose(array / part.unit, exact[name], atol=room + ROUNDING)

    # Bounds -------------------------------------------------------------------------------------------------------

    def losses(self, before: LabelledRows, after: LabelledRows, kind: str) -> None:
        """Refuse a movement beyond the bound of a part, or of parts whose bound is one of all of them together."""
        statistic = self.statistic()
        for sums in ("sums", "integers"):
            there, here = (getattr(statistic, sums)(rows) for rows in (before, after))
            moved: dict[str, float] = {}
            for name, part in statistic.parts.items():
                gap = (there[name].astype(np.float64) - here[name]) / (part.unit if sums == "integers" else 1.0)
                moved[part.joint or name] = moved.get(part.joint or name, 0.0) + float(np.square(gap).sum())
            for name, part in statistic.parts.items():
                bound = getattr(part, kind)
                assert math.sqrt(moved[part.joint or name]) <= bound * (1 + ROUNDING) + ROUNDING, (name, kind)

    @SEARCH
    @given(seed=st.integers(0, 2**32 - 1), hostile=st.booleans(), opposite=st.booleans())
    def test_no_neighbour_is_further_away_than_stated(self, seed: int, hostile: bool, opposite: bool) -> None:
        rng = np.random.default_rng(seed)
        rest, one = self.rows(rng, 3), self.rows(rng, 1)
        other = (self.hostile if hostile else self.rows)(rng, 1)
        if opposite:
            other = LabelledRows(-one.X, one.y)
        self.losses(together(rest, one), together(rest, other), "replaced")
        self.losses(together(rest, one), rest, "added")
        self.losses(together(rest, other), rest, "added")

    def test_bounds_are_no_wild_guess(self) -> None:
        """Some pair of random neighbours moves some part by a third of its bound, and more."""
        rng, statistic, largest = np.random.default_rng(5), self.statistic(), 0.0
        for _ in range(100):
            one, other = (statistic.sums(self.rows(rng, 1)) for _ in range(2))
            moved = (
                np.linalg.norm(one[name] - other[name]) / part.replaced
                for name, part in statistic.parts.items()
                if part.replaced
            )
            largest = max(largest, *moved)
        assert largest > 1 / 3

    @SEARCH
    @given(seed=st.integers(0, 2**32 - 1))
    def test_hostile_rows_give_finite_sums_within_the_bound(self, seed: int) -> None:
        rng, statistic = np.random.default_rng(seed), self.statistic()
        rows = self.hostile(rng, 4)
        for kind in ("sums", "integers"):
            for name, array in getattr(statistic, kind)(rows).items():
                part = statistic.parts[name]
                assert np.isfinite(array).all()
                most = 4 * part.most * (part.unit if kind == "integers" else 1.0)
                assert np.abs(array).max(initial=0.0) <= most * (1 + ROUNDING)

    def test_flat_numbers_come_back(self) -> None:
        statistic = self.statistic()
        for name, array in statistic.integers(self.rows(np.random.default_rng(3), 20)).items():
            part = statistic.parts[name]
            flat = part.flat(array)
            assert flat.shape == (part.numbers,)
            np.testing.assert_array_equal(part.full(flat), array)

    def test_what_is_read_of_exact_sums_is_finite(self) -> None:
        statistic = self.statistic()
        rows = self.rows(np.random.default_rng(4), 30)
        assert statistic.read(statistic.sums(rows), 30, dict.fromkeys(statistic.parts, 0.0)) is not None

    # Parameters ---------------------------------------------------------------------------------------------------

    def test_parameters_travel_and_come_back(self) -> None:
        statistic = self.statistic()
        values, arrays = statistic.to_values()
        again = statistic_of(self.name, json.loads(json.dumps(values, allow_nan=False)), arrays)
        assert again.to_values()[0] == values
        assert dict(again.parts) == dict(statistic.parts)
        rows = self.rows(np.random.default_rng(6), 10)
        for name, array in statistic.integers(rows).items():
            np.testing.assert_array_equal(again.integers(rows)[name], array)

    def test_hostile_parameters_are_refused_before_there_are_rows(self) -> None:
        values, arrays = self.statistic().to_values()
        hostile: list[Any] = [None, [], "x", {**values, "more": 1}]
        hostile += [{key: value for key, value in values.items() if key != name} for name in values]
        for wrong in hostile:
            with pytest.raises(InputError):
                statistic_of(self.name, wrong, arrays)
        for name, given_value in values.items():
            for wrong in HOSTILE_VALUES:
                if wrong is None and given_value is None:
                    continue
                try:
                    made = statistic_of(self.name, {**values, name: wrong}, arrays)
                except InputError:
                    continue
                # What is not refused is a scale, a label, a seed, a bound, or nothing in the place of a map.
                assert all(math.isfinite(part.replaced) and part.numbers < 1 << 27 for part in made.parts.values())
                assert wrong == 1 << 60 or name in ("classes", "seed", "low", "high", "shape", "weights", "features")
        for name in arrays:
            for array in (np.full(np.shape(arrays[name]), np.nan), np.zeros((2, 2, 2)), np.array(["x"])):
                with pytest.raises(InputError):
                    statistic_of(self.name, values, {**arrays, name: array})
        with pytest.raises(InputError):
            statistic_of(self.name, values, {**arrays, "more": np.zeros(1)})

    def test_other_names_are_refused(self) -> None:
        for name in (None, "x", 1, ["ridge_sums"]):
            with pytest.raises(InputError, match="a statistic must be one of"):
                statistic_of(name, {})

    # Noise --------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("honest", [1, 4])
    @pytest.mark.parametrize("adjacency", ["replace", "add-or-remove"])
    def test_noise_has_the_stated_deviation(self, honest: int, adjacency: str) -> None:
        statistic = self.statistic()
        noisy = NoisySum(statistic, 1.0, 1e-5, honest, adjacency)
        none, source = statistic.integers(self.rows(np.random.default_rng(7), 0)), NoiseGenerator(9)
        draws: dict[str, list[Any]] = {name: [] for name in statistic.parts}
        while sum(map(np.size, draws[next(iter(draws))])) < 4000:
            shares = [noisy.share(none, source) for _ in range(honest)]
            for name in draws:
                draws[name].append(np.sum([share[name] for share in shares], axis=0))
        for name, part in statistic.parts.items():
            whole = np.stack([part.full(flat) for flat in draws[name]]) / part.unit
            if part.symmetric:
                above = whole[..., *np.triu_indices(part.shape[-1], 1)]
                whole = np.diagonal(whole, axis1=-2, axis2=-1)
                if above.size > 500:
                    assert above.std() == pytest.approx(noisy.spread(name, honest) / math.sqrt(2), rel=0.12)
            stated = noisy.deviation(name) / part.unit
            assert noisy.spread(name, honest) == pytest.approx(stated, rel=1e-3, abs=10 / part.unit)
            if whole.size > 500:
                assert whole.std() == pytest.approx(noisy.spread(name, honest), rel=0.12)

    def test_all_parts_together_cost_what_is_stated(self) -> None:
        """Squared mu of the parts, those with one bound for both counted once, are at most that of the event."""
        noisy = NoisySum(self.statistic(), 2.0, 1e-5)
        spent = {
            (noisy.mu(name), part.share > 0.5 or name): noisy.mu(name) ** 2
            for name, part in noisy.statistic.parts.items()
        }
        assert sum(spent.values()) <= noisy.event.mu**2 * (1 + 1e-12)
        assert sum(spent.values()) >= 0.99 * noisy.event.mu**2

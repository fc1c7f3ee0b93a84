"""What every mechanism must do: one suite, run for each of them.

A subclass makes the mechanism for an epsilon, releases rows with it and says where rows end that it clips.
"""

import json
import math
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kernfed.errors import BudgetExceeded, InputError
from kernfed.privacy import Ledger, Mechanism, NoiseGenerator
from kernfed.privacy.names import mechanism_class, mechanism_name
from kernfed.privacy.values import describe_mechanism, mechanism_from_values, mechanism_to_values

Rows = npt.NDArray[np.float64]
#: Rows and columns of what is released here, and how far out a row is that must be clipped.
N, WIDTH, FAR = 64, 3, 1e6
HOSTILE = (None, "1", "x", math.nan, math.inf, -1.0, 0.0, True, 10**400, [1.0], [[1.0]], {}, {"a": 1}, b"1")


class WatchedGenerator(NoiseGenerator):
    """A private generator that writes down how many charges the ledger held at every draw."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger, self.charges_at_draws = ledger, []

    def words(self, count: int) -> Any:
        self.charges_at_draws.append(len(self.ledger.entries()))
        return super().words(count)


class MechanismContract(ABC):
    """Values, guarantees, noise, charges and clipping."""

    #: The name in ``kernfed.privacy.names``; None for a mechanism that no message carries.
    name: str | None

    @abstractmethod
    def mechanism(self, epsilon: float = 1.0) -> Any:
        """The mechanism for rows of ``WIDTH`` columns."""

    def release(self, mechanism: Any, X: Rows, **options: Any) -> Any:
        """What the mechanism releases of rows X (N, WIDTH)."""
        return mechanism.release(X, **options)

    def numbers(self, released: Any) -> Rows:
        """The released numbers in one vector."""
        return np.asarray(released.values, dtype=np.float64).ravel()

    @abstractmethod
    def boundary(self) -> float:
        """The L2 norm, along the first axis, at which a row is clipped."""

    def rows(self, first: float = 0.0) -> Rows:
        """N rows well inside, but for the first, which lies along the first axis, at ``first`` times the boundary."""
        X = np.random.default_rng(3).uniform(-0.1, 0.1, (N, WIDTH))
        X[0] = 0.0
        X[0, 0] = first * self.boundary()
        return X

    # Values -------------------------------------------------------------------------------------------------------

    def values(self) -> dict[str, Any]:
        if self.name is None:
            pytest.skip("no message carries this mechanism")
        return mechanism_to_values(self.mechanism())

    def test_values_travel_and_come_back(self) -> None:
        values = self.values()
        again = mechanism_from_values(json.loads(json.dumps(values, allow_nan=False)))
        assert type(again) is type(self.mechanism()) is mechanism_class(values["kind"])
        assert mechanism_name(again) == self.name == values["kind"]
        assert mechanism_to_values(again) == values
        assert again.guarantees(WIDTH) == self.mechanism().guarantees(WIDTH)
        assert describe_mechanism(values).startswith(f"{self.name}(epsilon=1.0")

    def test_hostile_values_are_refused(self) -> None:
        values = self.values()
        hostile = [None, [], "x", {}, {**values, "kind": "x"}, {**values, "kind": None}, {**values, "more": 1}]
        hostile += [{key: value for key, value in values.items() if key != name} for name in values]
        names = [name for name in ("epsilon", "delta", "radius", "d") if values.get(name)]
        hostile += [{**values, name: value} for name in names for value in HOSTILE]
        for wrong in hostile:
            with pytest.raises(InputError):
                mechanism_from_values(wrong).guarantees(WIDTH)

    def test_it_is_frozen(self) -> None:
        with pytest.raises(AttributeError):
            self.mechanism().epsilon = 50.0

    # Guarantees ---------------------------------------------------------------------------------------------------

    def test_guarantees_are_stated_in_both_units_and_fall_with_epsilon(self) -> None:
        stated = [self.mechanism(epsilon).guarantees(WIDTH) for epsilon in (0.25, 1.0, 4.0)]
        for element, record in stated:
            assert (element.unit, record.unit) == ("element", "record")
            assert 0 < element.epsilon <= record.epsilon < math.inf
            assert 0 <= element.delta < 1
            assert 0 <= record.delta < 1
            assert element.adjacency
            assert record.adjacency
        for unit in (0, 1):
            epsilons = [pair[unit].epsilon for pair in stated]
            assert epsilons == sorted(set(epsilons))

    def test_a_release_states_what_was_stated_before(self) -> None:
        assert isinstance(self.mechanism(), Mechanism)
        released = self.release(self.mechanism(), self.rows())
        for told, stated in zip((released.element, released.record), self.mechanism().guarantees(WIDTH), strict=True):
            assert (1 - 1e-6) * stated.epsilon <= told.epsilon <= stated.epsilon
            assert replace(told, epsilon=stated.epsilon) == stated

    @pytest.mark.parametrize("width", [0, -1, 1.5, "3", None])
    def test_a_width_that_is_none_has_no_guarantee(self, width: Any) -> None:
        with pytest.raises(InputError, match="width"):
            self.mechanism().guarantees(width)

    def test_the_public_basis_fits_what_is_released(self) -> None:
        mechanism = self.mechanism()
        basis, released = mechanism.public_basis(WIDTH), mechanism.released_width(WIDTH)
        if basis is None:
            assert released == WIDTH
        else:
            assert basis.shape == (WIDTH, released)
            np.testing.assert_allclose(basis.T @ basis, np.eye(released), atol=1e-9)
            np.testing.assert_array_equal(mechanism.project(self.rows()), self.rows() @ basis)

    # Noise --------------------------------------------------------------------------------------------------------

    def test_noise_differs_between_draws(self) -> None:
        first, second = (self.release(self.mechanism(), self.rows()) for _ in range(2))
        assert first.private
        assert not np.array_equal(self.numbers(first), self.numbers(second))

    def test_a_seed_repeats_the_noise_and_is_not_private(self) -> None:
        one, again, other = (
            self.release(self.mechanism(), self.rows(), generator=NoiseGenerator(seed)) for seed in (5, 5, 6)
        )
        np.testing.assert_array_equal(self.numbers(one), self.numbers(again))
        assert not np.array_equal(self.numbers(one), self.numbers(other))
        assert not one.private

    def test_generators_that_are_no_secret_are_refused(self) -> None:
        with pytest.raises(InputError, match="generator must be"):
            self.release(self.mechanism(), self.rows(), generator=np.random.default_rng(0))

    # Charges ------------------------------------------------------------------------------------------------------

    def ledger(self, path: Path) -> Ledger:
        """A ledger with room for one release, and not for two."""
        _, record = self.mechanism().guarantees(WIDTH)
        return Ledger(path / "ledger.jsonl", 1.001 * record.epsilon, max(record.delta, 1e-9))

    def test_the_charge_is_on_disk_before_anything_is_drawn(self, tmp_path: Path) -> None:
        ledger = self.ledger(tmp_path)
        source = WatchedGenerator(ledger)
        self.release(self.mechanism(), self.rows(), ledger=ledger, generator=source, ids=np.arange(N))
        assert set(source.charges_at_draws) == {1}
        assert 0 < ledger.spent().epsilon <= ledger.epsilon
        assert ledger.spent([N + 1]).epsilon == 0  # somebody else

    def test_beyond_the_budget_nothing_is_drawn(self, tmp_path: Path) -> None:
        ledger = self.ledger(tmp_path)
        self.release(self.mechanism(), self.rows(), ledger=ledger)
        source = WatchedGenerator(ledger)
        with pytest.raises(BudgetExceeded):
            self.release(self.mechanism(), self.rows(), ledger=ledger, generator=source)
        assert source.charges_at_draws == []
        assert len(ledger.entries()) == 1

    def test_noise_of_a_seed_is_not_charged(self, tmp_path: Path) -> None:
        ledger = self.ledger(tmp_path)
        with pytest.raises(InputError, match="private releases only"):
            self.release(self.mechanism(), self.rows(), ledger=ledger, generator=NoiseGenerator(1))
        assert ledger.entries() == ()

    def test_everyone_is_named_or_nobody(self, tmp_path: Path) -> None:
        ledger = self.ledger(tmp_path)
        with pytest.raises(InputError, match="ids must name each"):
            self.release(self.mechanism(), self.rows(), ledger=ledger, ids=np.arange(N - 1))
        assert ledger.entries() == ()

    # Clipping -----------------------------------------------------------------------------------------------------

    def change(self, first: float) -> float:
        """By how much the release moves, under the same noise, where the first row turns to its opposite."""
        there, back = (
            self.numbers(self.release(self.mechanism(), self.rows(sign * first), generator=NoiseGenerator(2)))
            for sign in (1.0, -1.0)
        )
        return float(np.linalg.norm(there - back))

    def test_a_row_far_out_moves_the_release_no_more_than_one_on_the_boundary(self) -> None:
        on_it = self.change(1.0)
        assert 0 < self.change(0.5) < on_it  # rows do move the release
        assert self.change(FAR) <= 1.02 * on_it  # but for the grid

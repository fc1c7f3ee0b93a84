"""What every mechanism must do: one suite, run for each of them.

A subclass makes the mechanism for an epsilon, releases rows with it and says where rows end that it clips.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kernfed.errors import BudgetExceeded, InputError
from kernfed.privacy import DiscreteGaussian, DiscreteLaplace, DiscreteStaircase, Ledger, Mechanism, NoiseGenerator
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

    # Sensitivity --------------------------------------------------------------------------------------------------

    @abstractmethod
    def statistic(self, mechanism: Any, X: Rows) -> Sequence[tuple[Rows, float]]:
        """What noise is added to, by released part, and by how much one row may move it; called where noise is zero."""

    @staticmethod
    def distance(one: Rows, other: Rows) -> float:
        """How far a part has moved, in the norm of its sensitivity."""
        return float(np.linalg.norm(one - other))

    def replaced(self, rng: np.random.Generator, X: Rows) -> Rows:
        """The rows with the first replaced: by one inside, on the boundary, just outside, or absurdly far out."""
        direction = rng.standard_normal(WIDTH)
        direction[rng.random(WIDTH) < 0.2] = 0.0
        length = float(np.linalg.norm(direction)) or 1.0
        scale = rng.choice([rng.random(), 1.0, 1.0 + 1e-9, FAR, 1e300])
        other = X.copy()
        other[0] = direction / length * scale * (1.0 if scale == 1e300 else self.boundary())
        return other

    @pytest.mark.parametrize("seed", range(4))
    def test_one_row_moves_what_is_released_no_further_than_stated(
        self, seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for law in (DiscreteGaussian, DiscreteLaplace, DiscreteStaircase):
            monkeypatch.setattr(law, "sample", _no_noise)
        rng, mechanism, largest = np.random.default_rng(seed), self.mechanism(), 0.0
        X = self.rows(1.0)
        for _ in range(100):
            one, other = self.replaced(rng, X), self.replaced(rng, X)
            if rng.random() < 0.3:  # the opposite row: the worst there can be for a mean
                other[0] = -one[0]
            parts = zip(self.statistic(mechanism, one), self.statistic(mechanism, other), strict=True)
            for (here, stated), (there, _) in parts:
                assert np.isfinite(here).all()
                moved = self.distance(here, there)
                assert moved <= stated * (1 + 1e-4), (one[0], other[0])
                largest = max(largest, moved / stated)
        assert largest > 0.5  # and the statement is not a wild guess

    # Rows that nobody expects -------------------------------------------------------------------------------------

    def extremes(self) -> Sequence[Any]:
        """The mechanism with its parameters at the ends of what is legal."""
        return (self.mechanism(1e-3), self.mechanism(), self.mechanism(90.0))

    @pytest.mark.parametrize("far", [0.0, 5e-324, 1e-200, 1e30, 1e100, 1e300, np.finfo(np.float64).max])
    def test_no_row_can_raise_warn_or_become_infinite(self, far: float) -> None:
        """Where one could, a question with chosen parameters would tell of the rows, and nobody would be charged."""
        for mechanism in self.extremes():
            X = self.rows()
            X[1], X[2], X[3, 1] = far, -far, far
            released = self.release(mechanism, X, generator=NoiseGenerator(3))
            assert np.isfinite(self.numbers(released)).all()
            cut = self.release(mechanism, np.clip(X, -1e100, 1e100), generator=NoiseGenerator(3))
            np.testing.assert_array_equal(self.numbers(released), self.numbers(cut))

    def test_single_precision_is_no_limit(self) -> None:
        X = self.rows().astype(np.float32)
        X[1] = np.finfo(np.float32).max
        for mechanism in self.extremes():
            assert np.isfinite(self.numbers(self.release(mechanism, X, generator=NoiseGenerator(3)))).all()

    def test_parameters_have_ends(self) -> None:
        values = self.values()
        scales = [name for name in ("radius", "target_radius", "spread", "d") if name in values]
        for name in scales:
            for wrong in (5e-324, 1e-300, 1e-31, 1e31, 1e300, math.nan, math.inf, -math.inf):
                with pytest.raises(InputError):
                    mechanism_from_values({**values, name: wrong})
        if "seed" in values:
            with pytest.raises(InputError):
                mechanism_from_values({**values, "seed": 1 << 64})

    # Persons whose budget is spent --------------------------------------------------------------------------------

    def test_those_who_cannot_pay_are_left_out_without_a_word(self, tmp_path: Path) -> None:
        """In their place stands a row that is the same whoever they are: nothing of theirs is in the release."""
        mechanism, ledger = self.mechanism(), self.ledger(tmp_path)
        ledger.leave_out = True
        self.release(mechanism, self.rows(), ledger=ledger, ids=np.arange(N))
        newcomers = np.where(np.arange(N) < 2, np.arange(N), np.arange(N) + N)  # the first two have paid
        before = ledger.chain()
        pays: list[Any] = []
        monkeypatch = pytest.MonkeyPatch()
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "charge", _noting(pays))
            released = self.release(mechanism, self.rows(), ledger=ledger, ids=newcomers)
        assert pays[0].tolist() == [False, False] + [True] * (N - 2)
        assert self.numbers(released).shape == self.numbers(self.release(mechanism, self.rows())).shape
        assert len(ledger.chain()) == len(before) + 1
        assert not ledger.entries()[-1].concerns(ledger.keys([0, 1])).any()
        with pytest.raises(BudgetExceeded):  # where nobody can, that is said: it follows from what was asked before
            self.release(mechanism, self.rows(), ledger=ledger, ids=newcomers)

    def test_what_is_left_out_leaves_no_trace(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        mechanism = self.mechanism()
        # Noise from a seed is no private release; here two of them are compared, and no ledger takes them.
        monkeypatch.setattr(Ledger, "charge", lambda *_, **__: np.arange(N) > 0)
        ledger = self.ledger(tmp_path)
        one, other = (
            self.numbers(self.release(mechanism, self.rows(first), ledger=ledger, generator=NoiseGenerator(7)))
            for first in (1.0, -FAR)
        )
        np.testing.assert_array_equal(one, other)


def _no_noise(law: Any, shape: Any, source: Any) -> Any:  # noqa: ARG001  as every law samples
    return np.zeros(shape, dtype=np.int64)


def _noting(pays: list[Any]) -> Any:
    charge = Ledger.charge

    def noted(ledger: Ledger, *arguments: Any, **options: Any) -> Any:
        pays.append(charge(ledger, *arguments, **options))
        return pays[-1]

    return noted

"""Mechanisms on a tape charge as ever, and release what they are supplied with."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernfed.kernels.features import FourierFeatures
from kernfed.privacy import (
    ElementLaplace,
    ElementStaircase,
    Ledger,
    RandomizedLabels,
    RecordEmbedding,
    RecordGaussian,
    RecordHistogram,
    RecordMoments,
    RecordRidge,
)
from kernfed.privacy.names import MECHANISMS, mechanism_name
from kernfed.testing.verify.tape import Tape, playing, taped_mechanisms

ROWS = 8
MADE: list[Any] = [
    ElementLaplace(1.0, d=1.0, bounds=(-1.0, 1.0)),
    ElementStaircase(1.0, d=1.0, bounds=(-1.0, 1.0)),
    RecordGaussian(1.0, 1e-6, radius=1.0),
    RecordMoments(1.0, 1e-6, 2, radius=1.0),
    RecordRidge(1.0, 1e-6, 1.0, 1.0),
    RecordEmbedding(1.0, 1e-6, FourierFeatures(3, 4, 1.0, seed=1, kind="paired")),
    RecordHistogram(1.0, 1e-6, strangers=True),
    RandomizedLabels(1.0, (0, 1)),
]


def released(mechanism: Any, X: Any, ledger: Ledger) -> bytes:
    """Every number that a mechanism released."""
    y = np.arange(ROWS) % 2
    places = np.where(np.abs(X[:, 0]) > 1, 3, 7)
    given = {
        "RecordHistogram": (places, places),
        "RecordMoments": (X, y),
        "RecordRidge": (X, y * 1.0),
        "RandomizedLabels": (y,),
    }
    made = mechanism.release(*given.get(type(mechanism).__name__, (X,)), ledger=ledger, ids=np.arange(ROWS))
    for name in ("values", "vector", "counts"):
        if hasattr(made, name):
            return bytes(getattr(made, name).tobytes())
    if hasattr(made, "regularization"):
        return bytes(made.moments.joint_scatter.tobytes() + np.float64(made.regularization).tobytes())
    return b"".join(part.moments.mean.tobytes() + part.moments.scatter.tobytes() for part in made.classes)


def test_every_mechanism_is_here() -> None:
    assert sorted(map(mechanism_name, MADE)) == sorted(MECHANISMS)


@pytest.mark.parametrize("mechanism", MADE, ids=mechanism_name)
def test_a_tape_decides_what_is_released_and_rows_do_not(
    mechanism: Any, rng: np.random.Generator, tmp_path: Path
) -> None:
    ledgers = [Ledger(tmp_path / f"{number}.jsonl", 50.0, 1e-5) for number in range(4)]
    X = rng.normal(size=(ROWS, 3))
    with taped_mechanisms():
        with playing(Tape(1)):
            first = released(mechanism, X, ledgers[0])
        with playing(Tape(1)):
            second = released(mechanism, 1e300 * X, ledgers[1])
        with playing(Tape(2)):
            other = released(mechanism, X, ledgers[2])
        drawn = released(mechanism, X, ledgers[3])  # no tape is playing
    assert first == second
    assert other != first
    assert drawn != first
    events = [[entry.events for entry in ledger.entries()] for ledger in ledgers]
    assert events[0] == events[1] == events[2] == events[3] != []


def test_mechanisms_are_as_before_afterwards() -> None:
    before = RecordGaussian.release
    with taped_mechanisms():
        assert RecordGaussian.release is not before
    assert RecordGaussian.release is before


def test_the_second_call_releases_something_else(rng: np.random.Generator, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl", 50.0, 1e-5)
    X = rng.normal(size=(ROWS, 3))
    with taped_mechanisms(), playing(Tape(1)):
        assert released(MADE[2], X, ledger) != released(MADE[2], X, ledger)

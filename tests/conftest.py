"""Fixtures that every test may use."""

import os
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240607)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data; tests that use it are skipped, with the reason, where it does not exist."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("KERNFED_DATA", beside))
    if not folder.is_dir():
        pytest.skip("real data not at hand: set KERNFED_DATA to a folder of npz files (see docs)")
    return folder

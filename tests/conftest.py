"""Fixtures that every test may use."""

import hashlib
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernfed.privacy import generator

_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-dev-shm-usage",
)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240607)


@pytest.fixture(autouse=True)
def repeatable_noise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of noise follow from the test and their number in it: a bound that holds with confidence .95 holds always.

    Processes that a test starts draw from the operating system, as do the tests of the generator.
    """
    if request.path.name == "test_generator.py":
        return
    home, count, fresh = os.getpid(), itertools.count(), generator.fresh_key

    def repeatable() -> bytes:
        if os.getpid() != home:
            return fresh()
        return hashlib.sha256(f"{request.node.nodeid} {next(count)}".encode()).digest()

    monkeypatch.setattr(generator, "fresh_key", repeatable)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data; tests that use it are skipped, with the reason, where it does not exist."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("KERNFED_DATA", beside))
    if not folder.is_dir():
        pytest.skip("real data not at hand: set KERNFED_DATA to a folder of npz files (see docs)")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window; skipped, with the reason, where there is none."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    names = ("chromium", "chromium-browser", "google-chrome")
    program = os.environ.get("KERNFED_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium, or set KERNFED_CHROMIUM")
    with playwright.sync_playwright() as session:
        opened = session.chromium.launch(executable_path=program, args=list(_OPTIONS))
        yield opened
        opened.close()

"""Fixtures that every test may use."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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

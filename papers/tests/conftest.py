"""Fixtures of the papers' tests."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from kernfed_papers.experiment import Axes, Experiment, Row, not_run
from kernfed_papers.runner import Result


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240607)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data; tests that use it are skipped, with the reason, where it does not exist."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("KERNFED_DATA", beside))
    if not folder.is_dir():
        pytest.skip("real data not at hand: set KERNFED_DATA to a folder of npz files (see docs)")
    return folder


@pytest.fixture(scope="session")
def small_results(tmp_path_factory):
    """A folder of results, and the experiments they are of."""
    rows = [
        Row("alpha 1: accuracy", 81.0, 80.5, "%", series="ours", x=1.0),
        Row("alpha 5: accuracy", 83.0, 84.25, "%", series="ours", x=5.0),
        Row("alpha 5: bytes", None, 2000, "bytes up"),
        Row("weights", None, 0.5, "", matrix=((0.5, 0.5), (0.25, 0.75))),
        not_run("other data", 12.5, "%", "needs other.npz"),
    ]
    curve = Experiment(
        "sfm-table-2",
        "curves | and <weights>",
        "SFM Table 2",
        ("digits",),
        "All in *words*.",
        lambda *_: rows,
        Axes("epsilon", "accuracy", log_x=True),
    )
    ten = Experiment("sfm-table-10", "an idle one", "SFM Table 10", ("absent",), "Nothing.", lambda *_: [])
    never = Experiment("gikm-table-1", "never run", "GIKM Table 1", ("mnist",), "Nothing yet.", lambda *_: [])
    folder = tmp_path_factory.mktemp("results")
    shifted = [Row(**{**vars(row), "ours": None if row.ours is None else row.ours + 1}) for row in rows]
    lines = [
        Result(curve, 0, False, tuple(rows[:1]), 9.0),
        Result(curve, 0, False, tuple(rows), 2.0, processor_seconds=5.0),
        Result(curve, 1, False, tuple(shifted), 4.0, processor_seconds=8.0),
        Result(curve, 2, True, tuple(rows[:1]), 1.0),
    ]
    text = "\n".join(json.dumps({**line.to_json(), "date": "2026-01-02"}) for line in lines)
    (folder / "sfm-table-2.jsonl").write_text(text + "\n")
    idle = Result(ten, 0, False, (), 0.0, "needs absent.npz")
    (folder / "sfm-table-10.jsonl").write_text(json.dumps(idle.to_json()) + "\n")
    return folder, (curve, ten, never)

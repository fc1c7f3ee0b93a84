"""Commands that learn say which columns they learn from and which were left out."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from kernfed.cli import app
from kernfed.cli.tables import columns_line
from kernfed.data import Table


def line(columns, left_out=None):
    return columns_line(
        Table(np.zeros((1, len(columns))), None, None, None, tuple(columns), Path(), None, left_out or {})
    )


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (["a"], "1 feature: 'a'"),
        (["f0", "f1"], "2 features: 'f0', 'f1'"),
        ([f"f{i}" for i in range(1200)], "1,200 features: 'f0' ... 'f1199'"),
        ([f"emb[{i}]" for i in range(11)], "11 features: 'emb[0]' ... 'emb[10]'"),
        (["f08", "f09", "f10", "age", "g1", "g3", "g4"], "7 features: 'f08' ... 'f10', 'age', 'g1', 'g3', 'g4'"),
        (["f1", "f2", "f3", "x", "f4", "f5", "f6"], "7 features: 'f1' ... 'f3', 'x', 'f4' ... 'f6'"),
        (["1", "2", "3"], "3 features: '1' ... '3'"),
        (["", "9" * 5000], f"2 features: '', '{'9' * 5000}'"),
        (["a\nb"], r"1 feature: 'a\nb'"),
        ([c * 2 for c in "abcdefghijkl"],
         "12 features: 'aa', 'bb', 'cc', 'dd', 'ee', ... (2 more) ..., 'hh', 'ii', 'jj', 'kk', 'll'"),
    ],
)  # fmt: skip
def test_features_on_one_line(columns, shown):
    assert line(columns) == shown


def test_what_was_left_out_and_why():
    assert line(["f0"], {"": "index", "ward": "site"}) == "1 feature: 'f0'; left out: '' (index), 'ward' (site)"


@pytest.fixture
def rows(tmp_path):
    """A table whose index would be learned from: it is sorted by class."""
    draws = np.random.default_rng(1)
    y = np.repeat([0, 1], 20)
    found = pd.DataFrame({"f0": draws.random(40) + y, "f1": draws.random(40), "f2": draws.random(40), "y": y})
    found["ward"] = np.array(["n", "s"])[np.arange(40) % 2]
    found.iloc[draws.permutation(40)].to_parquet(tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


TOLD = "3 features: 'f0' ... 'f2'; left out: 'y' (label), 'ward' (site), '__index_level_0__' (index)"


@pytest.mark.parametrize("command", ["train", "plan"])
def test_commands_say_what_they_learn_from(rows, command):
    words = [command, "--data", str(rows), "--label", "y", "--site", "ward"]
    words += ["--out", str(rows.with_name("model.kfd"))] if command == "train" else []
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.stderr
    assert TOLD in done.stdout.splitlines()
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert told["features"] == ["f0", "f1", "f2"]
    assert told["left_out"] == {"y": "label", "ward": "site", "__index_level_0__": "index"}
    named = CliRunner().invoke(app, [*words, "--features", "f0:f1,__index_level_0__"])
    assert "3 features: 'f0', 'f1', '__index_level_0__'" in named.stdout.splitlines()


def test_an_audit_says_what_it_attacks(rows):
    words = ["--data", str(rows), "--label", "y", "--privacy", "record-gaussian", "--epsilon", "3", "--radius", "1"]
    done = CliRunner().invoke(app, ["audit", *words, "--trials", "20"])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[0] == (
        "3 features: 'f0' ... 'f2'; left out: 'y' (label), 'ward' (text), '__index_level_0__' (index)"
    )

"""``kernfed site``: forgetting and adding rows at the site itself, also where privacy is required."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import kernfed as kf
from kernfed.cli import app
from kernfed.data import write_table
from kernfed.federation import Payload, Policy, Site, SiteStore
from kernfed.privacy import RecordGaussian

ROWS = 30


def run(*words: Any, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output + done.stderr
    return done


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    """A table, a policy that requires privacy, and the store of a site that has released its rows."""
    X = rng.uniform(-1, 1, size=(ROWS + 2, 2))
    y = np.where(np.arange(ROWS + 2) % 2, "yes", "no")
    columns = {"f0": X[:, 0], "f1": X[:, 1], "y": y, "number": np.arange(ROWS + 2) + 100}
    write_table(tmp_path / "rows.csv", {name: column[:ROWS] for name, column in columns.items()})
    write_table(tmp_path / "new.csv", {name: column[ROWS:] for name, column in columns.items()})
    (tmp_path / "site.toml").write_text('tasks = ["*"]\nmax_record_epsilon = 5.0\n')
    policies = {"a": Policy.read(tmp_path / "site.toml")}
    data = {"a": (X[:ROWS], y[:ROWS], np.arange(ROWS) + 100)}
    with kf.Federation.local(data, store=tmp_path / "store", policies=policies, columns=("f0", "f1")) as federation:
        kf.FoldingLearner(
            privacy=RecordGaussian(2.0, 1e-6, radius=1.0), measure="rms", batch_size=100, partition="order", scale=None
        ).fit(federation)
    return tmp_path


def words(folder: Path, command: str, *more: Any) -> list[Any]:
    about = ["--store", folder / "store", "--name", "a", "--data", folder / "rows.csv", "--label", "y"]
    return ["site", command, *about, "--id", "number", "--policy", folder / "site.toml", *more]


def ids_of(folder: Path) -> set[int]:
    """Ids of the rows that the site would use now."""
    table = kf.data.read_table(folder / "rows.csv", label="y", ids="number")
    store, policy = SiteStore(folder / "store" / "site-a"), Policy.read(folder / "site.toml")
    site = Site("a", table.X, table.y, ids=table.ids, store=store, policy=policy)
    return set(site.rows().ids.tolist())


def test_forget_at_the_site(folder: Path) -> None:
    done = run(*words(folder, "forget", "--rows", "103, 117"))
    assert "2 rows forgotten at site 'a'" in done.stdout
    assert "models deleted, which the next training makes again:         1" in done.stdout
    assert "stay as they are until `kernfed site publish`" in done.stdout
    assert ids_of(folder) == set(range(100, 130))  # blank rows stand in their place
    done = run(*words(folder, "publish"))
    assert "28 rows published at site 'a'" in done.stdout
    assert ids_of(folder) == set(range(100, 130)) - {103, 117}


def test_add_at_the_site(folder: Path) -> None:
    told = json.loads(run(*words(folder, "add", "--new", folder / "new.csv", "--json")).stdout)
    assert (told["site"], told["added"], told["models_deleted"]) == ("a", 2, 0)  # models in use go on
    assert ids_of(folder) == set(range(100, 130))  # they wait
    assert json.loads(run(*words(folder, "publish", "--json")).stdout)["published"] == 32
    assert ids_of(folder) == set(range(100, 132))


def test_the_coordinator_cannot_ask_for_either(folder: Path) -> None:
    table = kf.data.read_table(folder / "rows.csv", label="y", ids="number")
    policies = {"a": Policy.read(folder / "site.toml")}
    data = {"a": (table.X, table.y, table.ids)}
    with kf.Federation.local(data, store=folder / "store", policies=policies) as federation:
        replies = federation.ask("forget_rows", Payload({"ids": np.array([103])}), min_replies=0)
    assert replies.missing["a"].code == "policy"
    assert ids_of(folder) == set(range(100, 130))


@pytest.mark.parametrize(
    ("command", "more", "sentence"),
    [
        ("forget", ["--rows", "5"], "no rows with ids"),
        ("forget", ["--rows", "a,b"], "--rows must be ids with commas"),
        ("forget", ["--rows", ","], "--rows must name at least one row"),
        ("add", ["--new", "rows.csv"], "are taken"),
        ("forget", ["--rows", "103", "--store", "nowhere"], "holds none"),
    ],
)
def test_bad_input(folder: Path, command: str, more: list[str], sentence: str) -> None:
    placed = [folder / word if word in ("rows.csv", "nowhere") else word for word in more]
    assert sentence in run(*words(folder, command, *placed), code=2).stderr
    assert ids_of(folder) == set(range(100, 130))


@pytest.mark.parametrize("command", ["forget", "add"])
def test_help_has_an_example(command: str) -> None:
    assert f"Example: kernfed site {command} --store" in run("site", command, "--help").stdout


def test_rows_kept_aside_stay_aside(folder: Path) -> None:
    """With the site's own holdout the machines are those of its rows, and stay where no row of theirs is forgotten."""
    table = kf.data.read_table(folder / "rows.csv", label="y", ids="number")
    policies = {"a": Policy.read(folder / "site.toml")}
    data = {"a": (table.X, table.y, table.ids)}
    with kf.Federation.local(data, store=folder / "aside", policies=policies, holdout=0.3) as federation:
        kf.FoldingLearner(
            privacy=RecordGaussian(2.0, 1e-6, radius=1.0), measure="rms", batch_size=100, partition="order", scale=None
        ).fit(federation)
        used = set(federation.engine.site("a").rows().ids.tolist())  # type: ignore[attr-defined]
    assert len(used) < ROWS
    aside = min(set(range(100, 130)) - used)
    for row, deleted in ((aside, 0), (min(used), 1)):
        forgetting = ["forget", "--store", folder / "aside", "--rows", row, "--json"]
        told = json.loads(run(*words(folder, *forgetting, "--holdout", 0.3)).stdout)
        assert (told["models_fitted_again"], told["models_deleted"]) == (0, deleted)

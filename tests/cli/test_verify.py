"""``kernfed verify``: receipts of a site, from its store, its table and a model file."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import kernfed as kf
from kernfed.cli import app
from kernfed.federation import Payload, Policy, Site, SiteStore


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of two sites, of which "a" has forgotten rows, the table of "a", and models from before and after."""
    folder = tmp_path_factory.mktemp("verify")
    draws = np.random.default_rng(3)
    y = draws.integers(0, 2, 120)
    X = draws.standard_normal((120, 6)) + y[:, None]
    lines = [",".join([f"x{i}" for i in range(6)] + ["y"])]
    lines += [",".join([*map(repr, row.tolist()), str(label)]) for row, label in zip(X[:80], y[:80], strict=True)]
    (folder / "a.csv").write_text("\n".join(lines) + "\n")
    federation = kf.Federation.local({"a": (X[:80], y[:80]), "b": (X[80:], y[80:])}, store=folder / "stores")
    model = kf.FoldingLearner(batch_size=10, scale=None, hold="machines").fit(federation).connect(federation)
    model.save(folder / "before.kfd")
    model.forget("a", rows=[3, 17]).save(folder / "after.kfd")
    return folder


def run(*arguments: Any) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["verify", *map(str, arguments)])
    return result.exit_code, result.output


def test_what_the_site_keeps_is_made_again_and_a_page_is_written(place: Path) -> None:
    table = ("--data", place / "a.csv", "--label", "y")
    code, output = run(place / "stores", "--name", "a", *table, "--model", place / "after.kfd", "--out", place / "p.md")
    assert code == 0, output
    assert "same" in output
    assert "after.kfd descends from the state in force" in output
    page = (place / "p.md").read_text(encoding="utf-8")
    assert "## A membership attack before and after" in page
    assert "| before |" in page
    assert "| after |" in page
    code, _ = run(place / "stores" / "site-a", *table, "--out", place / "p.html")
    assert code == 0
    assert "What site" in (place / "p.html").read_text(encoding="utf-8")


def test_a_model_that_still_holds_the_rows_is_a_finding(place: Path) -> None:
    code, output = run(place / "stores" / "site-a", "--model", place / "before.kfd", "--json")
    told = json.loads(output)
    assert code == 1
    assert (told["site"], told["receipts"], told["forgotten"], told["holds"]) == ("a", 1, 2, False)
    assert "still holds machines of then" in told["model"]
    code, output = run(place / "stores" / "site-a", "--head", told["head"], "--key", told["keys"][0])
    assert code == 0
    assert "Nothing was made again" in output


def test_rows_that_are_others_than_then_are_a_finding(place: Path, tmp_path: Path) -> None:
    text = (place / "a.csv").read_text().splitlines()
    text[5] = ",".join(["9.5", *text[5].split(",")[1:]])
    (tmp_path / "other.csv").write_text("\n".join(text) + "\n")
    code, output = run(place / "stores" / "site-a", "--data", tmp_path / "other.csv", "--label", "y")
    assert code == 1
    assert "does not hold any more, or holds otherwise" in output


def test_bad_input_is_one_sentence(place: Path) -> None:
    for arguments, words in (
        ([place], "is no store of a site"),
        ([place / "stores" / "site-a", "--data", place / "a.csv"], "belong together"),
        ([place / "stores" / "site-a", "--out", "page.pdf"], "must end in .html or .md"),
        ([place / "stores" / "site-a", "--head", "5"], "number:hash"),
    ):
        code, output = run(*arguments)
        assert code == 2, output
        assert words in " ".join(output.split())


def test_a_site_without_receipts_says_so(tmp_path: Path) -> None:
    site = Site("c", np.eye(4), [0, 1, 0, 1], store=SiteStore(tmp_path), policy=Policy.open())
    site.as_owner("describe", Payload())
    site.store.write_state(site.store.read_state())
    code, output = run(tmp_path)
    assert code == 0
    assert "there are no receipts" in output


def test_a_service_has_its_rows_in_its_settings(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "site.toml"
    settings.write_text("")
    columns = np.loadtxt(place / "a.csv", delimiter=",", skiprows=1)
    store = SiteStore(place / "stores" / "site-a")
    site = Site("a", columns[:, :-1], columns[:, -1].astype(int), store=store, policy=Policy.open())
    monkeypatch.setattr("kernfed.federation.engines.nats_credentials.read_service", lambda _: (site, None, ""))
    code, output = run(settings, "--json")
    assert code == 0
    assert {entry["verdict"] for entry in json.loads(output)["remade"]} == {"same"}
    code, output = run(settings, "--data", place / "a.csv", "--label", "y")
    assert code == 2
    assert "leave --data out" in output


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Nehalem", "Haswell"])
def test_other_routines_of_blas_are_not_comparable_and_never_a_finding(place: Path, kind: str) -> None:
    command = [
        "-m",
        "kernfed",
        "verify",
        place / "stores" / "site-a",
        "--data",
        place / "a.csv",
        "--label",
        "y",
        "--json",
    ]
    environment = {**os.environ, "OPENBLAS_CORETYPE": kind}
    done = subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {entry["verdict"] for entry in json.loads(done.stdout)["remade"]} <= {"same", "not comparable"}

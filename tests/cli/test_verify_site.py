"""``kernfed verify-site``: an officer's page, and an exit code that says whether something leaks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from kernfed.cli import app
from kernfed.data import write_table
from kernfed.site.protocol import task as registry
from kernfed.site.protocol.message import Payload
from kernfed.site.site import Site

ROWS = 24


def run(*words: Any, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output + done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("verify")
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, size=(ROWS, 2))
    columns = {"age": X[:, 0], "dose": X[:, 1], "y": np.where(X[:, 0] > 0, "ill", "well")}
    write_table(place / "rows.csv", {**columns, "patient": np.arange(ROWS) + 7000})
    (place / "site.toml").write_text('tasks = ["*"]\nmax_record_epsilon = 3.0\nschemes = ["bfv"]\n')
    (place / "open.toml").write_text('tasks = ["*"]\n')
    (place / "planted.toml").write_text('tasks = ["describe", "planted"]\nmax_record_epsilon = 3.0\n')
    return place


@pytest.fixture
def planted() -> Iterator[None]:
    """A task that says it is public and is not."""

    def run_it(site: Site, _: Payload) -> Payload:
        return Payload(values={"far": bool(np.abs(site.rows().X).max() > 1.0)})

    registry.task("planted", leaves="counts", under_privacy="public", reason="it is not")(run_it)
    yield
    del registry._tasks["planted"]


def words(folder: Path, policy: str, *more: Any) -> list[Any]:
    rows = folder / "rows.csv"
    return ["verify-site", folder / policy, "--data", rows, "--label", "y", "--id", "patient", "--pairs", 12, *more]


def test_a_site_that_holds(folder: Path) -> None:
    done = run(*words(folder, "site.toml", "--out", folder / "page.html"))
    assert "Nothing was found to leave site 'site' but public facts and releases" in done.stdout
    assert "ridge_release" in done.stdout
    assert "by record-ridge; epsilon at most 3 at delta 1e-05" in done.stdout
    assert "BFV is not secure against chosen ciphertexts" in done.stdout
    page = (folder / "page.html").read_text()
    assert "What each question tells" in page
    assert "What remains" in page
    for text in (done.stdout, page):  # nothing of the table
        assert not any(str(number) in text for number in range(7000, 7000 + ROWS))


@pytest.mark.slow
def test_an_open_site_does_not_hold(folder: Path) -> None:
    done = run(*words(folder, "open.toml", "--out", folder / "page.md", "--json"), code=1)
    told = json.loads(done.stdout)
    assert told["holds"] is False
    assert "the policy does not require privacy: rows are used as they are" in told["leaks"]
    assert {line["verdict"] for line in told["tasks"]} == {"rows as they are"}
    assert "Do not sign" in (folder / "page.md").read_text()


@pytest.mark.usefixtures("planted")
def test_a_planted_leak_is_found(folder: Path) -> None:
    done = run(*words(folder, "planted.toml"), code=1)
    assert "LEAK  replies depend on rows: planted: value 'far' differs" in done.stdout
    assert "Do not sign" in done.stdout


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["nothing.toml"], "no policy file"),
        (["site.toml", "--out", "page.pdf"], "--out must end in .html or .md"),
        (["site.toml", "--pairs", "0"], "pairs"),
    ],
)
def test_bad_input(folder: Path, more: list[str], sentence: str) -> None:
    done = run(*words(folder, more[0], *more[1:]), code=2)
    assert sentence in done.stderr


def test_help_has_an_example() -> None:
    assert "Example: kernfed verify-site site.toml" in run("verify-site", "--help").stdout

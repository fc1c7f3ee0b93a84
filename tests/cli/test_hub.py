"""``kernfed hub`` and ``kernfed site run`` as a user meets them; docs/serving.md runs them together."""

import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("nats", reason="needs the extra serve: pip install -e '.[serve]' in a clone of kernfed")

import kernfed as kf
from federation.hub_server import HubServer
from kernfed.cli import app
from kernfed.federation.engines.nats_hub import changing
from kernfed.federation.engines.nats_site import SiteService
from kernfed.site.fields import Given, make_learner


def run(*words: Any, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == code, done.output + done.stderr
    return done


def test_a_hub_from_its_making_to_a_revoked_key(tmp_path: Path) -> None:
    folder = tmp_path / "hub"
    made = json.loads(run("hub", "init", folder, "--address", "hub.example.org:4222", "--json").stdout)
    assert made == {"folder": str(folder), "address": "hub.example.org:4222", "listen": "0.0.0.0:4222"}
    assert "bring it to its owner safely" in run("hub", "add-site", folder, "north").stdout
    run("hub", "add-caller", folder, "alice")
    later = json.loads(run("hub", "add-site", folder, "south", "--json").stdout)
    assert later["add_to"] == ["alice"]
    assert later["running"] is False
    key = json.loads(run("hub", "new-key", tmp_path / "own.seed", "--json").stdout)["key"]
    assert "own.seed" in run("hub", "add-caller", folder, "own", "--sites", "north", "--key", key).stdout
    shown = run("hub", "show", folder).stdout
    assert "not running here" in shown
    assert key in shown
    printed = run("hub", "show", folder, "--configuration").stdout
    assert "handshake_first: true" in printed
    assert f"kernfed.ask.north.own.{key}.>" in printed
    assert "the server is not running here" in run("hub", "revoke", folder, "own").stdout
    assert key not in run("hub", "show", folder, "--configuration").stdout
    assert "another year" in run("hub", "renew", folder).stdout


def test_parties_added_at_once_are_all_there(tmp_path: Path) -> None:
    folder = tmp_path / "hub"
    run("hub", "init", folder)

    def add(name: str) -> None:
        with changing(folder) as hub:
            hub.add("site", name)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, "abcdefgh"))
    shown = json.loads(run("hub", "show", folder, "--json").stdout)
    assert {party["name"] for party in shown["parties"]} == set("abcdefgh")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["hub", "add-site", "nowhere", "north"], "is no hub; make one with kernfed hub init"),
        (["hub", "init", ".", "--address", "x"], "an address must be HOST:PORT"),
        (["site", "run", "nothing.toml"], "no settings of a site at nothing.toml"),
        (["train", "--out", "m.kfd"], "Missing option '--data', or --credentials"),
        (["train", "--out", "m.kfd", "--credentials", "c", "--data", "x.csv"], "--data is for rows on this machine"),
        (["train", "--out", "m.kfd", "--credentials", "c"], "no credentials at c"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*words, code=2)
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_train_predict_and_evaluate_with_the_sites_of_a_hub(tmp_path: Path, rng: np.random.Generator) -> None:
    X, y = rng.standard_normal((60, 3)) + np.repeat([0, 4], 30)[:, None], np.repeat([0, 1], 30)
    rows = {"north": (X[::2], y[::2]), "south": (X[1::2], y[1::2])}
    names = ("a", "b", "c")
    sites = {
        name: kf.federation.Site(name, *rows[name], policy=kf.federation.Policy.open(), columns=names, holdout=0.3)
        for name in rows
    }
    np.savetxt(tmp_path / "new.csv", X, delimiter=",", header="a,b,c", comments="")
    model, out = tmp_path / "m.kfd", tmp_path / "p.csv"
    with HubServer(tmp_path, rows) as server:
        hub = (
            "--hub",
            f"tls://{server.hub.address}",
            "--credentials",
            server.hub.folder / "credentials" / "alice.toml",
        )
        services = {name: SiteService(site, server.credentials(name)) for name, site in sites.items()}
        told = json.loads(run("train", *hub, "--out", model, "--traffic", tmp_path / "t.json", "--json").stdout)
        assert (told["sites"], told["missing"], told["classes"]) == (["north", "south"], {}, [0, 1])
        assert {entry["site"] for entry in json.loads((tmp_path / "t.json").read_text())} == set(rows)
        run("predict", model, tmp_path / "new.csv", *hub, "--out", out)
        tested = json.loads(run("evaluate", model, *hub, "--json").stdout)
        services.pop("south").stop()
        assert "--credentials FILE of a hub" in run("predict", model, tmp_path / "new.csv", code=2).stderr
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            fewer = run("predict", model, tmp_path / "new.csv", *hub, "--min-replies", 1)
        assert "1 site(s) missing, the others answer: 'south': no process of site 'south' is connected" in fewer.stderr
        services.pop("north").stop()
    assert set(tested["sites"]) == {"north", "south"}
    with kf.Federation.local(rows, columns=names, holdout=0.3) as local:
        expected = make_learner("folding", Given()).fit(local).predict(X)
    predicted = np.genfromtxt(out, delimiter=",", names=True)["prediction"]
    np.testing.assert_array_equal(predicted, expected)

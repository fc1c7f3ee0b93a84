"""``kernfed change``, and what the sites of a hub write down and hold: callers are known by their keys."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("nats", reason="needs the extra serve: pip install -e '.[serve]' in a clone of kernfed")

import kernfed as kf
from federation.hub_server import HubServer
from kernfed.cli import app
from kernfed.data import write_table
from kernfed.federation import Federation, FoldingLearner, Policy, Site, SiteStore
from kernfed.federation.engines.nats_site import SiteService

NAMES = ("a", "b", "c")


def run(*words: Any, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == code, done.output + done.stderr
    return done


@pytest.fixture
def data(rng: np.random.Generator) -> dict[str, Any]:
    X, y = rng.standard_normal((90, 3)) + np.repeat([0, 4], 45)[:, None], np.repeat([0, 1], 45)
    return {
        name: (X[place::3], y[place::3], np.arange(30) + 100) for place, name in enumerate(("east", "north", "west"))
    }


@pytest.fixture
def model(data: dict[str, Any], tmp_path: Path) -> Path:
    two = {name: data[name] for name in ("east", "north")}
    with Federation.local(two, store=tmp_path / "stores", columns=NAMES) as federation:
        FoldingLearner(batch_size=8, measure="rms", partition="order", scale=None).fit(federation).save(
            tmp_path / "model.kfd"
        )
    return tmp_path / "model.kfd"


@pytest.mark.slow
def test_a_model_changes_with_the_sites_of_a_hub(data: dict[str, Any], model: Path, tmp_path: Path) -> None:
    write_table(tmp_path / "new.csv", {**dict(zip(NAMES, data["west"][0][:4].T, strict=True)), "y": [0, 1, 0, 1]})
    policies = {"north": Policy(("*",), approve=("add_rows",))}
    sites = {}
    for name, (X, y, ids) in data.items():
        store = SiteStore(tmp_path / "stores" / f"site-{name}")
        policy = policies.get(name, Policy.open())
        sites[name] = Site(name, X, y, ids=ids, store=store, policy=policy, columns=NAMES)
    with HubServer(tmp_path, data) as server:
        services = [SiteService(site, server.credentials(name)) for name, site in sites.items()]
        hub = (
            "--hub",
            f"tls://{server.hub.address}",
            "--credentials",
            server.hub.folder / "credentials" / "alice.toml",
        )
        told = json.loads(
            run("change", "add-site", model, "--site", "west", *hub, "--out", tmp_path / "m3.kfd", "--json").stdout
        )
        assert told["members"] == ["east", "north", "west"]
        add = ("change", "add-rows", model, "--site", "north", "--new", tmp_path / "new.csv", "--label", "y", *hub)
        assert "has to approve this question first" in run(*add, "--out", tmp_path / "more.kfd", code=2).stderr
        assert not (tmp_path / "more.kfd").exists()
        store = tmp_path / "stores" / "site-north"
        (held,) = json.loads(run("approve", "list", store, "--json").stdout)["waiting"]
        assert (held["task"], held["caller"], held["known"], held["rows"]) == ("add_rows", "alice", True, 4)
        run("approve", "allow", store, held["key"])
        run(*add, "--out", tmp_path / "more.kfd")
        run("change", "forget", model, "--site", "east", "--rows", "104", *hub, "--out", tmp_path / "less.kfd")
        for service in services:
            service.stop()
    assert kf.load(tmp_path / "more.kfd").members_["north"].rows == 34
    assert kf.load(tmp_path / "less.kfd").members_["east"].rows == 29
    lines = json.loads(run("journal", "show", store, "--caller", "alice", "--json").stdout)["lines"]
    kinds = [(line["event"], line.get("task"), line["outcome"].split()[0]) for line in lines]
    assert ("asked", "add_rows", "refused") in kinds
    assert kinds.index(("approved", "add_rows", "until")) < kinds.index(("asked", "add_rows", "answered"))
    assert run("journal", "check", store).exit_code == 0


def test_a_site_that_is_gone(model: Path, tmp_path: Path) -> None:
    told = run("change", "forget", model, "--site", "north", "--gone", "--out", tmp_path / "left.kfd").stdout
    assert "1 site(s), 0 B left them" in told
    assert kf.load(tmp_path / "left.kfd").sites == ("east",)
    assert kf.load(model).sites == ("east", "north")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["forget", "--site", "north"], "give --credentials to ask the site, or --gone"),
        (["forget", "--site", "north", "--gone", "--credentials", "x"], "or --gone"),
        (["forget", "--site", "north", "--gone", "--rows", "3"], "leave --gone out"),
        (["forget", "--site", "south", "--gone"], "--site must be one of the model's, east, north; got 'south'"),
        (["forget", "--site", "south", "--credentials", "x"], "'south' is no site of the model"),
        (["add-site", "--site", "north", "--credentials", "x"], "'north' takes part already"),
    ],
)
def test_bad_input(model: Path, tmp_path: Path, words: list[str], told: str) -> None:
    kind, *options = words
    done = run("change", kind, model, *options, "--out", tmp_path / "out.kfd", code=2)
    assert told in done.stderr
    assert not (tmp_path / "out.kfd").exists()
    assert not list(tmp_path.glob(".change-*"))

"""A gateway whose sites answer over a hub: their journals name it, and whom it says it asks for."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nats", reason="needs the extra serve: pip install -e '.[serve]' in a clone of kernfed")
pytest.importorskip("fastapi", reason="needs the extra serve: pip install -e '.[serve]' in a clone of kernfed")

from federation.hub_server import SOON, HubServer
from kernfed.federation import Federation, FoldingLearner, Policy, Site, SiteStore
from kernfed.federation.engines.nats_site import SiteService
from kernfed.serve.app import make_app
from kernfed.serve.gateway import Gateway
from kernfed.serve.requests import Tokens, new_token
from serve.http_client import Running


def test_sites_know_the_gateway_by_its_key_and_the_person_by_its_word(rng, tmp_path):
    data = {site: (rng.standard_normal((20, 2)), np.arange(20) % 2) for site in ("north", "south")}
    tokens = tmp_path / "tokens.json"
    headers = {"Authorization": f"Bearer {new_token(tokens, 'ann')}"}
    with HubServer(tmp_path, data) as hub:
        hub.add("caller", "gateway", ("*",))
        services = {}
        for name, rows in data.items():
            store = SiteStore(tmp_path / f"store-{name}")
            site = Site(name, *rows, policy=Policy(tasks=("*",), callers=("alice", "gateway")), store=store)
            services[name] = SiteService(site, hub.credentials(name))
            services[name].link.wait(SOON)
        try:
            with Federation.nats(credentials=hub.credentials("alice")) as alice:
                model = FoldingLearner(batch_size=20).fit(alice)
                expected = model.answer([[1.0, 2.0]])
            sites = Federation.nats(credentials=hub.credentials("gateway"))
            with Running(make_app(Gateway(model, sites, timeout=5.0), Tokens(tokens))) as opened:
                first = opened.post("/predict", {"rows": [[1, 2]]}, headers=headers).json()
                about = opened.get("/about", headers=headers).json()
                assert opened.get("/health").json() == {"status": "ok", "sites_up": 2, "sites": 2}
                services.pop("south").stop(grace=0.0)
                second = opened.post("/predict", {"rows": [[1, 2]]}, headers=headers).json()
        finally:
            for service in services.values():
                service.stop(grace=0.0)
    assert list(first["answers"][0]["probabilities"].values()) == expected.probabilities[0].tolist()
    assert first["sites"] == ["north", "south"]
    assert [(site["name"], site["up"]) for site in about["sites"]] == [("north", True), ("south", True)]
    assert all(0 < site["seconds"] < SOON for site in about["sites"])
    assert second["sites"] == ["north"]
    assert "no process of site 'south' is connected" in second["missing"]["south"]
    written = "".join(map(Path.read_text, (tmp_path / "store-north" / "journal").iterdir()))
    asked = [json.loads(line) for line in written.splitlines() if '"scores"' in line]
    assert [(line["asked_by"], line["on_behalf_of"]) for line in asked] == [
        ("alice", "alice"),
        ("gateway", "ann"),
        ("gateway", "ann"),
    ]

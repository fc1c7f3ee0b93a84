"""The engine over a hub: the contract of all engines, and what is its own. The server is real, and speaks TLS."""

from collections.abc import Mapping

import pytest

from contracts.engines import EngineContract
from kernfed.federation import Engine, Fault, Policy, Site
from oracles.federation import Data

pytest.importorskip("nats", reason="needs the extra serve: pip install -e '.[serve]' in a clone of kernfed")

from federation.hub_server import WholeHub


class TestNats(EngineContract):
    late, patience = 1.5, 0.7

    @pytest.fixture(autouse=True)
    def ended(self):
        """Nothing is left of engines that a test did not close."""
        self.engines: list[WholeHub] = []
        yield
        for engine in self.engines:
            engine.close()

    def engine(
        self, data: Data, *, faults: Mapping[str, Fault] | None = None, policies: Mapping[str, Policy] | None = None
    ) -> Engine:
        sites = {
            name: Site(name, X, y, policy=(policies or {}).get(name, Policy.open())) for name, (X, y) in data.items()
        }
        self.engines.append(WholeHub(sites, faults))
        return self.engines[-1]

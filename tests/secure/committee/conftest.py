"""A run in one process: sites, a committee and a coordinator, with every message at hand to be changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernfed.secure.committee.contribution import Contribution, contribute
from kernfed.secure.committee.coordinator import MaskedTotal
from kernfed.secure.committee.fixed import fit_layout
from kernfed.secure.committee.keys import Identity
from kernfed.secure.committee.member import MaskSums, Member, Pins
from kernfed.secure.committee.reports import Reports
from kernfed.secure.committee.terms import RunTerms, Seat
from kernfed.site.store import SiteStore

QUESTION = "00" * 32


@dataclass
class Cast:
    """Sites with their vectors, members with their stores, and the way of a run through them."""

    folder: Path
    corrupt: bool
    vectors: dict[str, np.ndarray]
    sites: dict[str, Identity] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sites = {site: Identity.make() for site in self.vectors}
        names = ["m1", "m2", "m3", "m4"][: 4 if self.corrupt else 3]
        keys = {name: Identity.make() for name in names}
        pins = Pins({name: key.public for name, key in keys.items()}, self.roster)
        for name in names:
            place = self.folder / name
            self.members[name] = Member(name, keys[name], SiteStore(place), place / "keys", pins)

    @property
    def roster(self) -> dict[str, str]:
        return {site: key.public for site, key in self.sites.items()}

    @property
    def layout(self):
        return fit_layout({"x": (next(iter(self.vectors.values())).shape, 1e3)}, 64)

    def terms(self, **changes: Any) -> RunTerms:
        seats = tuple(Seat(name, m.identity.public, m.open(1)[0]) for name, m in sorted(self.members.items()))
        about = {"min_sites": 3, "layout": self.layout, "task": "toy", **changes}
        return RunTerms(question=QUESTION, roster=self.roster, committee=seats, corrupt=self.corrupt, **about)

    def contribution(self, terms: RunTerms, site: str, generation: bytes = bytes(16)) -> Contribution:
        vector = terms.layout.encode({"x": self.vectors[site]})
        sent = contribute(terms, site, vector, self.sites[site], generation)
        return Contribution.from_arrays(terms, sent.to_arrays())

    def gather(self, terms: RunTerms, sites: Any = None, generations: Mapping[str, bytes] | None = None) -> MaskedTotal:
        total = MaskedTotal(terms)
        for site in sorted(self.vectors if sites is None else sites):
            total.add(site, self.contribution(terms, site, (generations or {}).get(site, bytes(16))))
        return total

    def sign(self, total: MaskedTotal, members: Any = None) -> dict[str, bytes]:
        signing = members or self.members
        return {name: self.members[name].sign(total.reports, total.boxes_for(name)) for name in signing}

    def answer(self, total: MaskedTotal, members: Any = None, quorum: Any = None) -> dict[str, MaskSums]:
        if quorum is None:
            quorum = self.sign(total, members) if self.corrupt else {}
        reports = Reports.from_arrays(total.terms, total.reports.to_arrays())
        told = {
            name: self.members[name].answer(reports, total.boxes_for(name), quorum)
            for name in (members or self.members)
        }
        return {name: MaskSums.from_arrays(total.terms, name, sums.to_arrays()) for name, sums in told.items()}

    def run(self, terms: RunTerms, sites: Any = None, members: Any = None) -> np.ndarray:
        total = self.gather(terms, sites)
        return terms.layout.integers(total.unmask(self.answer(total, members)))["x"]

    def exact(self, terms: RunTerms, sites: Any = None) -> np.ndarray:
        chosen = self.vectors if sites is None else sites
        parts = [terms.layout.integers(terms.layout.encode({"x": self.vectors[site]}))["x"] for site in chosen]
        return sum(parts[1:], parts[0])

    def restored(self, name: str, backup: Path) -> Member:
        """A member whose store is a copy from an earlier day."""
        return replace(self.members[name], memory=SiteStore(backup), folder=backup / "keys")


@pytest.fixture
def make_cast(tmp_path):
    def make(corrupt: bool = False, sites: int = 6, size: int = 40) -> Cast:
        draws = np.random.default_rng(sites)
        vectors = {f"s{i}": draws.normal(size=size) * 100 for i in range(sites)}
        return Cast(tmp_path / f"cast{corrupt}{sites}{size}", corrupt, vectors)

    return make

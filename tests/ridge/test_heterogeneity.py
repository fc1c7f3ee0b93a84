"""Heterogeneity measured by exchanges, and leave-one-out, against explicit computation."""

from dataclasses import dataclass

import numpy as np
import pytest

from kernfed.ridge.heterogeneity import (
    Heterogeneity,
    data_heterogeneity,
    empirical_upsilon,
    measure_heterogeneity,
    model_heterogeneity,
    probe_spectrum,
)
from kernfed.ridge.local import fit_local, leave_one_out_losses
from kernfed.ridge.parameters import RidgeParameters
from kernfed.ridge.solvers import average
from oracles import ridge as oracle

VALUE = 0.05


@dataclass
class Local:
    """A system of sites in this process."""

    parts: dict
    value: float = VALUE

    @property
    def masses(self):
        return {name: part.mass for name, part in self.parts.items()}

    @property
    def linear(self):
        return average({name: part.linear for name, part in self.parts.items()}, self.masses)

    @property
    def constant(self):
        return 1.0

    def apply_by_site(self, V):
        return {name: part.apply(V, self.value) for name, part in self.parts.items()}

    def apply(self, V):
        return average(self.apply_by_site(V), self.masses)

    def solve(self, R):
        return average({name: part.solve(R, self.value) for name, part in self.parts.items()}, self.masses)


@pytest.fixture
def sites(rng):
    M = 15
    made = []
    for n in (40, 10, 25):
        phi = rng.standard_normal((n, M)) + rng.standard_normal(M)
        made.append((phi, rng.standard_normal((n, 1))))
    return made


@pytest.fixture
def system(sites):
    parameters = RidgeParameters(15, features="given", task="regress", regularization=(VALUE,))
    return Local({f"s{i}": fit_local(phi, y[:, 0], parameters) for i, (phi, y) in enumerate(sites)})


def second(phi):
    return phi.T @ phi / len(phi)


def test_probes_find_the_largest_eigenvalue_and_the_effective_dimension(sites, system):
    largest, dimension = probe_spectrum(system, VALUE, seed=0, probes=15, steps=12)
    assert largest == pytest.approx(np.linalg.eigvals(oracle.preconditioned(sites, VALUE)).real.max(), rel=1e-3)
    C = second(oracle.pooled(sites)[0])
    exact = np.trace(C @ np.linalg.inv(C + VALUE * np.eye(15)))
    assert dimension == pytest.approx(exact, rel=0.02)
    assert probe_spectrum(system, 0.0, seed=0, steps=1)[1] is None


def test_data_heterogeneity_is_the_spectral_norm_of_the_difference(sites, system):
    C = second(oracle.pooled(sites)[0])
    found = data_heterogeneity(system, seed=0, steps=12)
    for (phi, _), value in zip(sites, found.values(), strict=True):
        assert value == pytest.approx(np.linalg.norm(C - second(phi), 2), rel=1e-4)
    rough = data_heterogeneity(system, seed=0, steps=2)
    assert all(rough[name] <= found[name] * (1 + 1e-9) for name in found)


def test_one_site_does_not_differ_from_itself(system):
    alone = Local({"s0": system.parts["s0"]})
    assert data_heterogeneity(alone, seed=0)["s0"] < 1e-12
    assert probe_spectrum(alone, VALUE, seed=0)[0] == pytest.approx(1.0)


def test_model_heterogeneity_is_the_root_mean_square_of_the_difference(rng, sites, system):
    W = rng.standard_normal((15, 1))
    image = system.apply_by_site(W)["s1"]
    part = system.parts["s1"]
    found = model_heterogeneity(W, image, part.solutions[0], part.linear, VALUE)
    assert found == pytest.approx(np.sqrt(np.mean((sites[1][0] @ (W - part.solutions[0])) ** 2)), rel=1e-9)


def test_the_report_holds_every_number(sites, system):
    W = oracle.closed_form(*oracle.pooled(sites), VALUE)
    own = {name: (part.solutions[0], part.linear) for name, part in system.parts.items()}
    dimensions = {name: part.effective_dimension(VALUE) for name, part in system.parts.items()}
    report = measure_heterogeneity(system, W, own, dimensions, VALUE, seed=0, seen=1.5)
    assert [entry.share for entry in report.sites.values()] == pytest.approx([40 / 75, 10 / 75, 25 / 75])
    data = {name: entry.data for name, entry in report.sites.items()}
    shares = {name: entry.share for name, entry in report.sites.items()}
    assert report.upsilon == empirical_upsilon(shares, data, VALUE) > 1
    assert report.newton_diverges == (report.largest_eigenvalue > 2)
    assert {name: entry.effective_dimension for name, entry in report.sites.items()} == dimensions
    assert measure_heterogeneity(system, W, own, dimensions, VALUE, seed=0, seen=1e9).largest_eigenvalue == 1e9


def test_what_is_not_known_is_not_claimed():
    assert not Heterogeneity().newton_diverges
    assert empirical_upsilon({"a": 1.0}, {"a": 0.1}, 0.0) is None


@pytest.mark.parametrize("sizes", [(9, 4, 30), (25,)], ids=["three", "one"])
def test_leave_one_out_is_that_of_refitting_without_each_row(rng, sizes):
    path = (1e-3, 0.1, 10.0)
    parameters = RidgeParameters(6, features="given", task="regress", regularization=path)
    sites = [(rng.standard_normal((n, 6)), rng.standard_normal((n, 1))) for n in sizes]
    parts = [fit_local(phi, y[:, 0], parameters) for phi, y in sites]
    masses = {str(i): part.mass for i, part in enumerate(parts)}
    averages = average({str(i): part.solutions for i, part in enumerate(parts)}, masses)
    total = sum(masses.values())
    losses = sum(
        leave_one_out_losses(phi, y[:, 0], parameters, part, averages, part.mass / total)
        for (phi, y), part in zip(sites, parts, strict=True)
    )
    np.testing.assert_allclose(losses / total, [oracle.leave_one_out(sites, value) for value in path], rtol=1e-7)


def test_leave_one_out_weighs_classes(rng):
    X, y = rng.standard_normal((20, 3)), rng.integers(0, 2, 20)
    twice = np.concatenate([np.arange(20), np.flatnonzero(y == 1)])
    path = (0.1, 1.0)
    weighted = RidgeParameters(3, features="given", classes=(0, 1), class_weights=(1.0, 2.0), regularization=path)
    part = fit_local(X, y, weighted)
    losses = leave_one_out_losses(X, y, weighted, part, part.solutions, 0.0)  # a share of 0: as if never seen
    errors = (weighted.targets(y[twice]) - X[twice] @ part.solutions) ** 2
    np.testing.assert_allclose(losses, errors.sum(axis=(1, 2)))

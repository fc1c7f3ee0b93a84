"""Sites with a few rows, and an additive task that sums over them."""

import numpy as np
import pytest

from kernfed.federation import Payload, task
from kernfed.site.site import Site

ARRAYS = {"gram": ((3, 3), 1e4), "rows": ((1,), 1e6)}


@task("toy_gram", leaves="statistics", additive=True)
def gram(site: Site, payload: Payload) -> Payload:
    rows = site.rows()
    return Payload({"gram": rows.X.T @ rows.X * payload.values.get("factor", 1.0), "rows": np.array([len(rows.y)])})


@task("toy_flags", leaves="statistics", additive=True)
def flags(site: Site, payload: Payload) -> Payload:  # noqa: ARG001  every task has this signature
    return Payload({"count": site.rows().X.sum(axis=0)})


@task("toy_list", leaves="statistics")
def listed(*_: object) -> Payload:
    raise AssertionError


@pytest.fixture
def data(rng):
    return {f"s{i}": (rng.normal(size=(10 + i, 3)), rng.integers(0, 2, 10 + i)) for i in range(5)}

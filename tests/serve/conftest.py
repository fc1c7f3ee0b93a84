"""Small models of every kind that a gateway serves."""

import numpy as np
import pytest

from kernfed.federation import Federation, FoldingLearner, RidgeLearner


def blobs(rng, rows=60, width=3):
    y = np.arange(rows) % 3
    return rng.standard_normal((rows, width)) + 4.0 * y[:, None], np.array(["ant", "bee", "cat"])[y]


@pytest.fixture(scope="session")
def small():
    """A whole folding model, a ridge model, and queries that none has seen; columns a, b and c."""
    rng = np.random.default_rng(5)
    data = {site: blobs(rng) for site in ("north", "south")}
    with Federation.local(data, columns=("a", "b", "c")) as federation:
        folding = FoldingLearner(hold="machines", batch_size=30).fit(federation)
        ridge = RidgeLearner(regularization=0.1, n_components=16).fit(federation)
    return folding, ridge, blobs(rng, 12)[0]

"""Small models and an audit of which reports are made."""

import numpy as np
import pytest

import kernfed as kf
from kernfed.privacy.audit import audit_answers, audit_release


def blobs(rng, labels, count, width=4):
    """Rows around one point per label."""
    y = np.repeat(labels, count)
    centres = {label: 3.0 * np.eye(width)[place % width] for place, label in enumerate(sorted(set(labels)))}
    return np.stack([centres[label] for label in y]) + 0.3 * rng.normal(size=(len(y), width)), y


@pytest.fixture(scope="session")
def small_sites():
    rng = np.random.default_rng(7)
    rows, labels = blobs(rng, ["cat", "dog", "fox"], 40)
    sites = {}
    for name, kept in (("east", ("cat", "dog")), ("north", ("dog", "fox")), ("west", ("cat", "fox"))):
        chosen = np.flatnonzero(np.isin(labels, kept))
        sites[name] = (rows[chosen], labels[chosen])
    return sites


@pytest.fixture(scope="session")
def small_holdout():
    rng = np.random.default_rng(8)
    found = {name: blobs(rng, ["cat", "dog", "fox"], count) for name, count in (("east", 5), ("north", 9), ("west", 7))}
    found["west"][0][:3] *= -1  # some errors
    return found


@pytest.fixture(scope="session")
def small_models(small_sites):
    """A model of every kind, and the record of traffic of their training."""
    with kf.Federation.local(small_sites) as federation:
        found = {
            "machines": kf.FoldingLearner(
                batch_size=20, hold="machines", measure="rms", partition="order", scale=None
            ).fit(federation),
            "sites": _trusting(federation),
            "ridge": kf.RidgeLearner("conjugate", rounds=4, n_components=30, regularization=(1e-3, 1e-2)).fit(
                federation
            ),
        }
        traffic = federation.traffic.to_json()
    values = {name: (X, X[:, 0] + 0.1 * X[:, 1]) for name, (X, _) in small_sites.items()}
    with kf.Federation.local(values) as federation:
        found["regress"] = kf.RidgeLearner(
            "conjugate", rounds=3, n_components=30, task="regress", regularization=1e-3
        ).fit(federation)
    return found, traffic


def _trusting(federation):
    """Each class is held by two sites: one of them can suppress it."""
    with pytest.warns(kf.errors.UnprotectedClasses):
        return kf.FoldingLearner(
            batch_size=20, aggregate="kth", trusted_classes="all", measure="rms", partition="order", scale=None
        ).fit(federation)


@pytest.fixture(scope="session")
def small_audit():
    rng = np.random.default_rng(9)
    mechanism = kf.privacy.ElementLaplace(1.0, 2.0, bounds=(-1, 1))
    rows, others = rng.uniform(-1, 1, (2, 60, 3))
    report = audit_release(mechanism, rows, others, trials=100)
    distances = np.abs(rng.normal(size=(2, 40)))
    return report.plus(*audit_answers(distances[0], distances[1] + 0.5, permutations=20))

import numpy as np
import pytest

from kernfed_papers.baselines.pooled import FoldingRun
from kernfed_papers.experiments.gikm_tables_2_3 import client_accuracies, client_weights
from kernfed_papers.runner import run_experiment


def naive(scores, holds, labels):
    """The four accuracies, one site and one test row at a time."""
    shares = {"everyone": [], "owners": [], "own_classes": [], "local": []}
    classes = range(holds.shape[1])
    for site, held in enumerate(holds):
        right = {name: [] for name in shares}
        for row, label in enumerate(labels):
            if not held[label]:
                continue
            owners = [q for q in range(len(holds)) if holds[q, label]]
            best = {c: min(scores[q, row, c] for q in range(len(holds))) for c in classes}
            by_owners = {c: min(scores[q, row, c] for q in owners) for c in classes}
            among = {c: best[c] for c in classes if held[c]}
            own = {c: scores[site, row, c] for c in classes if held[c]}
            for name, values in zip(shares, (best, by_owners, among, own), strict=True):
                right[name].append(min(values, key=values.get) == label)
        for name in shares:
            shares[name].append(np.mean(right[name]))
    return {name: 100 * np.mean(values) for name, values in shares.items()}


@pytest.fixture
def case(rng):
    holds = np.zeros((6, 4), dtype=bool)
    for site in range(6):
        holds[site, rng.choice(4, 2, replace=False)] = True
    holds[:4] |= np.eye(4, dtype=bool)
    labels = rng.integers(4, size=50)
    scores = rng.random((6, 50, 4))
    scores[:, np.arange(50), labels] *= 0.8
    scores[~np.broadcast_to(holds[:, None, :], scores.shape)] = np.inf
    return scores, holds, labels


def test_the_four_ways_to_ask(case):
    scores, holds, labels = case
    accuracies = client_accuracies(FoldingRun(np.arange(4), scores, holds, (0, 0), (0, 0)), labels)
    expected = naive(scores, holds, labels)
    assert {name: getattr(accuracies, name) for name in expected} == pytest.approx(expected)
    assert accuracies.everyone < accuracies.owners < accuracies.own_classes  # each asks fewer competitors


def test_weights_of_test_rows_are_those_of_the_mean_over_sites(case):
    _, holds, labels = case
    weights = client_weights(labels, holds, np.arange(4))
    assert weights.sum() == pytest.approx(1)
    naive_weights = [np.mean([holds[q, label] / holds[q, labels].sum() for q in range(6)]) for label in labels]
    np.testing.assert_allclose(weights, naive_weights)


def test_embeddings_that_a_user_brings_fill_their_column(tmp_path, monkeypatch, rng):
    centres = rng.standard_normal((10, 20))
    parts = {}
    for part, count in (("train", 600), ("test", 100)):
        parts[f"y_{part}"] = np.arange(count) % 10
        parts[f"x_{part}"] = centres[parts[f"y_{part}"]] + 0.1 * rng.standard_normal((count, 20))
    np.savez(tmp_path / "cifar100_resnet50.npz", **parts)
    monkeypatch.setenv("KERNFED_DATA", str(tmp_path))
    rows = {row.label: row for row in run_experiment("gikm-table-2", quick=True, folder=None).rows}
    opened = rows["CIFAR-100: global (56), all sites answer"]
    assert (opened.published, opened.ours) == (82.4, pytest.approx(100))
    assert rows["CIFAR-100: local (57)"].published == 79.88
    assert rows["CIFAR-100: pooled rows, logistic regression"].ours == pytest.approx(100)
    assert rows["Fashion MNIST: KAHM Global Classifier (56)"].ours is None


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["gikm-table-2", "gikm-table-3"])
def test_the_quick_slice(shared_data, monkeypatch, name):
    monkeypatch.setenv("KERNFED_DATA", str(shared_data))
    rows = {row.label: row for row in run_experiment(name, quick=True, folder=None).rows}
    opened, printed, among, local = (
        rows[f"Fashion MNIST: {way}"].ours
        for way in (
            "global (56), all sites answer",
            "global (56), published protocol",
            "global (56), among the asking site's classes",
            "local (57)",
        )
    )
    assert 60 < opened < printed < among
    assert local > opened
    assert ("Fashion MNIST: pooled rows, KAHM" in rows) == (name == "gikm-table-2")

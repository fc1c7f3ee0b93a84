import numpy as np
import pytest

from kernfed.kahm import KAHM
from kernfed_papers.experiments import gikm_table_1
from kernfed_papers.runner import run_experiment


def embeddings(rng, count, labels=10):
    centres = np.random.default_rng(5).standard_normal((labels, 30))
    y = np.arange(count) % labels
    return centres[y] + 0.2 * rng.standard_normal((count, 30)), y


def test_embeddings_fill_their_column(tmp_path, monkeypatch, rng):
    (x_train, y_train), (x_test, y_test) = embeddings(rng, 300), embeddings(rng, 60)
    np.savez(tmp_path / "cifar10_resnet50.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    monkeypatch.setenv("KERNFED_DATA", str(tmp_path))
    rows = {(row.label, row.unit): row for row in run_experiment("gikm-table-1", folder=None).rows}
    assert rows["CIFAR-10: Accuracy", "fraction"].ours == 1.0
    assert rows["CIFAR-10: Accuracy", "fraction"].published == 0.9122
    largest = max(KAHM(scale=None).fit(part := np.tanh(x_train[y_train == c])).distance(part).max() for c in range(10))
    assert rows["CIFAR-10: E", "fraction"].ours == pytest.approx(1 - np.exp(-largest / 30), rel=1e-4)
    assert rows["CIFAR-10: training", "bytes up"].ours > 0
    assert rows["MNIST: E", "fraction"].ours is None
    assert rows["MNIST: E", "fraction"].note == "not run: needs mnist.npz in the folder KERNFED_DATA"
    assert {label.split(":")[0] for label, _ in rows} == {"MNIST", "Freiburg Groceries", "CIFAR-10", "CIFAR-100"}


@pytest.mark.slow
@pytest.mark.shared_data
def test_the_quick_slice_of_mnist(shared_data, monkeypatch):
    monkeypatch.setenv("KERNFED_DATA", str(shared_data))
    first, again = gikm_table_1.run(0, True), gikm_table_1.run(0, True)
    assert first == again
    accuracy, score = first[:2]
    assert accuracy.ours > 0.92
    assert 0.001 < score.ours < 0.006

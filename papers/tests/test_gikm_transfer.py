import numpy as np
import pytest

from kernfed.data import Domains
from kernfed_papers.experiments.gikm_transfer import draw_split, transfer_accuracies
from kernfed_papers.published.gikm import TRANSFERS
from kernfed_papers.runner import list_experiments, run_experiment


@pytest.fixture
def domains(rng):
    """Two domains, the same ten clusters in each, the second moved."""
    centres = np.random.default_rng(1).standard_normal((10, 30))
    parts = {}
    for name, count, shift in (("amazon", 30, 0.0), ("webcam", 12, 0.3)):
        labels = np.repeat(np.arange(10), count)
        parts[name] = (
            (centres[labels] + shift + 0.1 * rng.standard_normal((len(labels), 30))).astype(np.float32),
            labels,
        )
    return Domains("office_caltech10", "efflite0", parts, tuple("0123456789"), "made up")


@pytest.mark.parametrize(("source", "target", "rows"), [("amazon", "webcam", 20), ("webcam", "amazon", 8)])
def test_a_split_has_the_numbers_of_the_paper(domains, source, target, rows):
    data, (first, second) = draw_split(domains, source, target, 3)
    assert np.bincount(data.y_train[first]).tolist() == [rows] * 10
    assert np.bincount(data.y_train[second]).tolist() == [3] * 10
    x, y = domains.domains[target]
    assert len(data.y_test) == len(y) - 30
    together = {row.tobytes() for row in data.x_test} | {row.tobytes() for row in data.x_train[second]}
    assert together == {row.tobytes() for row in x}
    again, other = draw_split(domains, source, target, 3)[0], draw_split(domains, source, target, 4)[0]
    assert np.array_equal(again.x_train, data.x_train)
    assert not np.array_equal(other.x_train, data.x_train)


def test_every_method_answers_every_split(domains):
    accuracies, run = transfer_accuracies(domains, "amazon", "webcam", range(2), averaging=1, rounds=(1, 2))
    assert {name: len(values) for name, values in accuracies.items()} == {
        "global (56)": 2,
        "source alone, local (57)": 2,
        "target alone, local (57)": 2,
        "exact ridge, 1 round": 2,
        "pooled rows, KAHM": 2,
        "pooled rows, 1-NN": 2,
        "pooled rows, logistic regression": 2,
        "FedAvg, linear, 1 round": 1,
        "FedAvg, linear, 2 rounds": 1,
    }
    assert min(accuracies["global (56)"]) > 95
    assert run.trained[0] > 0


def test_there_is_an_experiment_for_every_pair():
    ids = {experiment.id for experiment in list_experiments()}
    assert {f"gikm-table-{number}" for number in range(4, 17)} <= ids
    assert len(set(TRANSFERS)) == 12


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["gikm-table-4", "gikm-table-12"])
def test_the_quick_slice(shared_data, monkeypatch, name):
    monkeypatch.setenv("KERNFED_DATA", str(shared_data))
    rows = {row.label: row for row in run_experiment(name, quick=True, folder=None).rows}
    ours = rows["EfficientNet-Lite0: global (56)"]
    assert ours.ours > 75
    assert ours.published == {"gikm-table-4": 94.3, "gikm-table-12": 88.5}[name]
    assert "ResNet-50" in ours.note
    assert rows["SURF: global (56)"].published is None
    assert "OBTL" in rows["SURF: global (56)"].note or "ILS" in rows["SURF: global (56)"].note

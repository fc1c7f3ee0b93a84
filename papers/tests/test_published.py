import numpy as np
import pytest

from kernfed_papers.published import TABLES, published


@pytest.mark.parametrize("key", TABLES, ids=str)
def test_every_row_has_a_number_in_every_column(key):
    table = TABLES[key]
    assert len(set(table.columns)) == len(table.columns)
    top = {"fraction": 1, "%": 100}.get(table.unit, float("inf"))
    for values in table.rows.values():
        assert len(values) == len(table.columns)
        for value, column in zip(values, table.columns, strict=True):
            assert value is None or 0 < value <= (float("inf") if column.endswith("(ms)") else top)


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        (("GIKM", 1, "E", "MNIST"), 0.0045),
        (("GIKM", 1, "Accuracy", "CIFAR-100"), 0.7471),
        (("GIKM", 2, "KAHM Global Classifier (56)", "Fashion MNIST"), 95.24),
        (("GIKM", 2, "SCAFFOLD", "CIFAR-10"), 49.1),
        (("GIKM", 3, "KAHM Local Classifier (57)", "CIFAR-100"), 73.44),
        (("GIKM", 3, "FedProx", "Fashion MNIST"), 82.5),
        (("GIKM", 4, "OBTL, SURF", "Deviation"), 14.6),
        (("GIKM", 5, "KAHM Global Classifier (56), RESNET50", "Accuracy"), 89.3),
        (("GIKM", 8, "MMDT, VGG-FC6", "Accuracy"), 85.9),
        (("GIKM", 12, "KAHM Global Classifier (56), VGG-FC6", "Accuracy"), 87.9),
        (("GIKM", 14, "HFA, SURF", "Accuracy"), 56.5),
        (("GIKM", 16, "ILS (1-NN), VGG-FC6", "Accuracy"), 94.5),
        (("GIKM", 17, "Random Forest", "3"), 59.47),
        (("SFM", 1, "SFM (proposed)", "alpha = 0.1"), 84.7),
        (("SFM", 2, "CREFF", "rho = 100"), 70.55),
        (("SFM", 3, "C2A", "alpha = 5"), 82.8),
        (("SFM", 4, "FedNova", "rho = 10"), 46.75),
        (("SFM", 5, "epsilon = 1.5", "20Newsgroup, smoothed"), 74.55),
        (("SFM", 5, "epsilon = 8", "XGLUE-NC, noise"), 82.03),
        (("SFM", 6, "16 bits", "equality-comparison (ms)"), 82),
        (("SFM", 7, "SFM-4", "rho = 50"), 50.14),
        (("SFM", 8, "SFM-4", "alpha = 0.5"), 82.31),
        (("SFM", 9, "N_b = 100", "rho = 10"), 54.32),
        (("SFM", 10, "paraphrase-multilingual", "alpha = 2"), 80.78),
    ],
)
def test_cells_are_those_in_print(cell, value):
    assert published(*cell) == value


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (("GIKM", 99, "E", "MNIST"), "no table 99 of GIKM"),
        (("GIKM", 1, "F", "MNIST"), "has rows E, Accuracy"),
        (("GIKM", 1, "E", "SVHN"), "no cell 'E', 'SVHN'"),
    ],
)
def test_other_cells_are_refused(cell, message):
    with pytest.raises(ValueError, match=message):
        published(*cell)


def test_every_numbered_table_of_gikm_and_sfm_is_there():
    assert {number for paper, number in TABLES if paper == "GIKM"} == set(range(1, 18))
    assert {number for paper, number in TABLES if paper == "SFM"} == set(range(1, 11))


def test_the_summary_of_the_transfers_is_that_of_the_tables():
    for method, (mean, deviation) in TABLES["GIKM", 4].rows.items():
        values = [published("GIKM", table, method, "Accuracy") for table in range(5, 17)]
        assert np.mean(values) == pytest.approx(mean, abs=0.051)
        assert np.std(values, ddof=1) == pytest.approx(deviation, abs=0.051)

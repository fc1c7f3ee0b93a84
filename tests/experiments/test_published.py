import pytest

from kernfed.experiments.published import TABLES, published


@pytest.mark.parametrize("key", TABLES, ids=str)
def test_every_row_has_a_number_in_every_column(key):
    table = TABLES[key]
    assert len(set(table.columns)) == len(table.columns)
    for values in table.rows.values():
        assert len(values) == len(table.columns)
        top = {"fraction": 1, "%": 100}[table.unit]
        assert all(0 < value <= top for value in values)


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        (("GIKM", 1, "E", "MNIST"), 0.0045),
        (("GIKM", 1, "Accuracy", "CIFAR-100"), 0.7471),
        (("GIKM", 2, "KAHM Global Classifier (56)", "Fashion MNIST"), 95.24),
        (("GIKM", 2, "SCAFFOLD", "CIFAR-10"), 49.1),
        (("GIKM", 3, "KAHM Local Classifier (57)", "CIFAR-100"), 73.44),
        (("GIKM", 3, "FedProx", "Fashion MNIST"), 82.5),
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

"""Numbers printed in GIKM."""

from collections.abc import Mapping

from kernfed.experiments.published.table import PublishedTable

_GIKM_METHODS = ("Fashion MNIST", "CIFAR-10", "CIFAR-100")

TABLES: Mapping[int, PublishedTable] = {
    1: PublishedTable(
        "Validation of Assumption 1, each class owned by one client",
        "fraction",
        ("MNIST", "Freiburg Groceries", "CIFAR-10", "CIFAR-100"),
        {"E": (0.0045, 0.0039, 0.0055, 0.0049), "Accuracy": (0.9870, 0.8969, 0.9122, 0.7471)},
    ),
    2: PublishedTable(
        "Test accuracy averaged over clients, non-iid label skew 20 %, mean of 3 runs",
        "%",
        _GIKM_METHODS,
        {
            "KAHM Global Classifier (56)": (95.24, 96.32, 82.4),
            "FedAvg": (77.3, 49.8, 53.73),
            "FedProx": (74.9, 50.7, 54.35),
            "FedNova": (70.4, 46.5, 53.61),
            "SCAFFOLD": (42.8, 49.1, 54.15),
            "KAHM Local Classifier (57)": (97.95, 97.82, 79.88),
            "LG-FedAvg": (96.8, 86.31, 45.98),
            "Per-FedAvg": (95.95, 85.46, 60.19),
            "IFCA": (97.15, 87.99, 71.84),
            "CFL": (77.93, 51.11, 40.29),
            "PACFL": (97.54, 89.3, 73.10),
        },
    ),
    3: PublishedTable(
        "Test accuracy averaged over clients, non-iid label skew 30 %, mean of 3 runs",
        "%",
        _GIKM_METHODS,
        {
            "KAHM Global Classifier (56)": (92.75, 95.06, 80.12),
            "FedAvg": (80.7, 58.3, 54.73),
            "FedProx": (82.5, 57.1, 53.31),
            "FedNova": (78.9, 54.4, 54.62),
            "SCAFFOLD": (77.7, 57.8, 54.9),
            "KAHM Local Classifier (57)": (95.51, 95.90, 73.44),
            "LG-FedAvg": (94.21, 76.58, 35.91),
            "Per-FedAvg": (92.87, 77.67, 56.42),
            "IFCA": (95.22, 80.95, 67.39),
            "CFL": (78.44, 52.57, 35.23),
            "PACFL": (95.46, 82.77, 67.71),
        },
    ),
}

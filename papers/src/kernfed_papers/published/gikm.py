"""Numbers printed in GIKM."""

from collections.abc import Mapping

from kernfed_papers.published.table import PublishedTable

_SKEW_COLUMNS = ("Fashion MNIST", "CIFAR-10", "CIFAR-100")

#: Source and target of the transfer experiments, in the order of Tables 5 to 16.
TRANSFERS = (
    ("amazon", "caltech10"),
    ("amazon", "dslr"),
    ("amazon", "webcam"),
    ("caltech10", "amazon"),
    ("caltech10", "dslr"),
    ("caltech10", "webcam"),
    ("dslr", "amazon"),
    ("dslr", "caltech10"),
    ("dslr", "webcam"),
    ("webcam", "amazon"),
    ("webcam", "caltech10"),
    ("webcam", "dslr"),
)
FIRST_TRANSFER_TABLE = 5

# Accuracies of Tables 5 to 16 by method and features, in the order of TRANSFERS.
_TRANSFER_ROWS: Mapping[str, tuple[float, ...]] = {
    "KAHM Global Classifier (56), RESNET50": (89.3, 95.7, 96.7, 93.9, 96.5, 96.0, 94.0, 88.5, 99.4, 94.3, 88.2, 99.6),
    "KAHM Global Classifier (56), VGG-FC6": (88.9, 95.6, 95.5, 93.6, 95.4, 95.0, 93.7, 87.9, 98.8, 94.0, 87.3, 99.6),
    "CDMMA, VGG-FC6": (80.6, 91.2, 89.5, 91.5, 91.6, 91.6, 90.7, 81.4, 88.7, 92.0, 82.3, 89.6),
    "ILS (1-NN), VGG-FC6": (83.3, 87.7, 90.7, 89.7, 86.9, 91.4, 88.7, 81.4, 95.5, 88.8, 82.8, 94.5),
    "CDLS, VGG-FC6": (78.1, 86.9, 91.2, 88.0, 86.3, 89.7, 88.1, 77.9, 90.7, 87.4, 78.2, 88.5),
    "MMDT, VGG-FC6": (78.7, 77.1, 82.5, 85.9, 77.9, 82.8, 83.6, 71.8, 86.1, 84.7, 73.6, 85.1),
    "HFA, VGG-FC6": (75.5, 87.1, 87.9, 86.2, 87.0, 86.0, 85.9, 74.8, 86.9, 85.1, 74.4, 87.3),
    "OBTL, SURF": (41.5, 60.2, 72.4, 54.8, 61.5, 71.1, 54.4, 40.3, 83.2, 55.0, 37.4, 75.0),
    "ILS (1-NN), SURF": (43.6, 49.8, 59.7, 55.1, 56.2, 62.9, 55.0, 41.0, 80.1, 54.3, 38.6, 70.8),
    "CDLS, SURF": (35.3, 60.4, 68.7, 50.9, 59.8, 66.3, 50.7, 34.9, 68.5, 51.8, 33.5, 60.7),
    "MMDT, SURF": (36.4, 56.7, 64.6, 49.4, 56.5, 63.8, 46.9, 34.1, 74.1, 47.7, 32.2, 67.0),
    "HFA, SURF": (31.0, 55.1, 57.4, 43.8, 55.6, 58.1, 42.9, 30.9, 60.5, 56.5, 29.0, 56.5),
}


def _transfer_table(position: int) -> PublishedTable:
    """Table 5 + position: one source and one target."""
    source, target = TRANSFERS[position]
    rows = {method: (values[position],) for method, values in _TRANSFER_ROWS.items()}
    return PublishedTable(f"Accuracy averaged over 20 experiments, {source} to {target}", "%", ("Accuracy",), rows)


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
        _SKEW_COLUMNS,
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
        _SKEW_COLUMNS,
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
    4: PublishedTable(
        "Summary of the 12 transfer experiments on Office-Caltech-10: mean and standard deviation of the accuracies",
        "%",
        ("Mean", "Deviation"),
        {
            "KAHM Global Classifier (56), RESNET50": (94.3, 3.9),
            "KAHM Global Classifier (56), VGG-FC6": (93.8, 3.9),
            "CDMMA, VGG-FC6": (88.4, 4.3),
            "ILS (1-NN), VGG-FC6": (88.4, 4.4),
            "CDLS, VGG-FC6": (85.9, 4.9),
            "MMDT, VGG-FC6": (80.8, 4.9),
            "HFA, VGG-FC6": (83.7, 5.3),
            "OBTL, SURF": (58.9, 14.6),
            "ILS (1-NN), SURF": (55.6, 12.0),
            "CDLS, SURF": (53.5, 13.0),
            "MMDT, SURF": (52.5, 13.7),
            "HFA, SURF": (48.1, 12.0),
        },
    ),
    **{FIRST_TRANSFER_TABLE + position: _transfer_table(position) for position in range(len(TRANSFERS))},
    17: PublishedTable(
        "Freiburg Groceries, each class owned by one client, 5 train-test splits",
        "%",
        ("1", "2", "3", "4", "5", "mean"),
        {
            "KAHM Global Classifier (56)": (89.69, 87.79, 88.02, 88.44, 87.99, 88.39),
            "membership-mappings": (87.82, 87.06, 85.88, 85.63, 86.19, 86.52),
            "nonparametric fuzzy image mapping": (88.21, 86.64, 85.36, 85.13, 85.79, 86.23),
            "Gaussian fuzzy-mapping": (83.50, 81.52, 79.73, 79.60, 80.48, 80.97),
            "SVM": (77.90, 79.54, 77.17, 76.98, 76.98, 77.71),
            "1-NN": (78.00, 77.97, 77.38, 76.58, 76.28, 77.24),
            "Back-propagation training of a deep network": (75.25, 77.24, 72.67, 73.37, 71.57, 74.02),
            "2-NN": (73.48, 73.38, 70.11, 70.05, 70.57, 71.52),
            "4-NN": (72.50, 73.39, 68.89, 71.16, 70.87, 71.36),
            "Random Forest": (63.17, 62.63, 59.47, 59.50, 59.76, 60.90),
            "Naive Bayes": (56.78, 56.78, 53.74, 55.08, 56.26, 55.73),
            "Ensemble Learning": (38.31, 39.35, 38.89, 37.69, 38.34, 38.51),
            "Decision Tree": (31.34, 30.59, 32.14, 31.06, 30.73, 31.17),
        },
    ),
}

"""Numbers printed in FedNewton; its Tables 1 and 2 compare theories and list settings.

Of its figures the text prints thresholds: rows per site below which more rounds hurt (200 and, of MNIST, 3300) and from
about which they help (260 and 4400), Delta_D from which they hurt (0.466), Delta_f from which all methods are poor
(0.0135).
"""

from collections.abc import Mapping

from kernfed_papers.published.table import PublishedTable

TABLES: Mapping[int, PublishedTable] = {
    3: PublishedTable(
        "Classification accuracy, mean of 10 trials",
        "%",
        ("DKRR", "FedAvg", "FedProx", "FedNewton # 1", "FedNewton # 2", "FedNewton # 4", "FedNewton # 8"),
        {
            "dna": (90.91, 91.09, 89.42, 92.23, 91.96, 92.02, 88.19),
            "letter": (77.18, 77.11, 77.17, 77.30, 77.30, 77.30, 77.30),
            "pendigits": (97.12, 97.12, 97.12, 97.29, 97.31, 97.31, 97.23),
            "satimage": (87.70, 87.84, 87.74, 88.49, 88.26, 88.31, 88.31),
            "Sensorless": (96.81, 96.87, 96.84, 97.32, 96.87, 96.44, 84.43),
            "shuttle": (98.46, 98.53, 98.51, 98.54, 98.51, 98.50, 98.44),
            "usps": (92.95, 92.95, 92.95, 93.49, 93.24, 93.28, 93.30),
            "mnist": (95.38, 95.40, 95.46, 95.53, 95.48, 95.49, 95.48),
        },
    ),
}

#: What Table 3 prints behind the sign "±", in the same places.
TABLE_3_DEVIATIONS: Mapping[str, tuple[float, ...]] = {
    "dna": (0.50, 0.42, 6.98, 0.53, 0.48, 0.40, 11.58),
    "letter": (0.12, 0.17, 0.12, 0.12, 0.12, 0.12, 0.12),
    "pendigits": (0.09, 0.11, 0.10, 0.13, 0.10, 0.11, 0.31),
    "satimage": (0.17, 0.08, 0.11, 0.19, 0.17, 0.14, 0.15),
    "Sensorless": (0.12, 0.14, 0.13, 0.11, 0.14, 0.17, 1.20),
    "shuttle": (0.06, 0.08, 0.07, 0.07, 0.07, 0.07, 0.16),
    "usps": (0.10, 0.12, 0.12, 0.18, 0.13, 0.14, 0.15),
    "mnist": (0.12, 0.13, 0.11, 0.13, 0.13, 0.13, 0.12),
}

"""Numbers printed in SFM."""

from collections.abc import Mapping

from kernfed_papers.published.table import PublishedTable

_RHO = ("rho = 100", "rho = 50", "rho = 10")
_XGLUE = ("alpha = 5", "alpha = 2", "alpha = 0.5")

TABLES: Mapping[int, PublishedTable] = {
    1: PublishedTable(
        "Test accuracy on 20Newsgroup, non-iid label distribution",
        "%",
        ("alpha = 5", "alpha = 1", "alpha = 0.1"),
        {
            "SFM (proposed)": (85.3, 84.7, 84.7),
            "Adapter": (69.1, 65.5, 56.1),
            "LoRA": (69.5, 67.7, 56.6),
            "Compacter": (65.9, 62.8, 50.1),
            "Prompt-tuning": (51.6, 46.4, 28.2),
            "BitFit": (67.1, 66.5, 55.1),
            "AdaMix": (68.7, 65.3, 54.5),
            "C2A": (71.6, 70.4, 61.0),
        },
    ),
    2: PublishedTable(
        "Test accuracy on CIFAR-10-LT, long-tailed and non-iid label distribution",
        "%",
        _RHO,
        {
            "SFM (proposed)": (80.99, 83.86, 87.95),
            "FedAvg": (56.17, 59.36, 77.45),
            "FedAvgM": (52.03, 57.11, 70.81),
            "FedProx": (56.92, 60.89, 76.53),
            "FedDF": (55.15, 58.74, 76.51),
            "FedBE": (55.79, 59.55, 77.78),
            "CCVR": (69.53, 71.89, 78.48),
            "FedNova": (57.79, 63.91, 77.79),
            "Fed-Focal Loss": (53.83, 57.42, 73.74),
            "Ratio Loss": (59.75, 64.77, 78.14),
            "FedAvg + tau-norm": (49.95, 51.41, 72.08),
            "CREFF": (70.55, 73.08, 80.71),
        },
    ),
    3: PublishedTable(
        "Test accuracy on XGLUE-NC, non-iid label distribution",
        "%",
        _XGLUE,
        {
            "SFM (proposed)": (82.5, 82.2, 82.2),
            "Adapter": (78.6, 75.0, 74.3),
            "LoRA": (80.4, 78.4, 74.6),
            "Compacter": (75.9, 73.4, 71.0),
            "Prompt-tuning": (61.2, 60.6, 58.0),
            "BitFit": (78.4, 76.8, 72.1),
            "AdaMix": (79.6, 79.1, 76.6),
            "C2A": (82.8, 82.2, 80.2),
        },
    ),
    4: PublishedTable(
        "Test accuracy on CIFAR-100-LT, long-tailed and non-iid label distribution",
        "%",
        _RHO,
        {
            "SFM (proposed)": (46.16, 50.92, 64.98),
            "FedAvg": (30.34, 36.35, 45.87),
            "FedAvgM": (30.80, 35.33, 44.66),
            "FedProx": (31.67, 36.30, 46.10),
            "FedDF": (31.43, 36.22, 46.19),
            "FedBE": (31.97, 36.39, 46.25),
            "CCVR": (33.43, 36.98, 46.88),
            "FedNova": (32.64, 36.62, 46.75),
            "Fed-Focal Loss": (30.67, 35.25, 45.52),
            "Ratio Loss": (32.95, 36.88, 46.79),
            "FedAvg + tau-norm": (26.22, 33.71, 43.65),
            "CREFF": (34.67, 37.64, 47.08),
        },
    ),
    5: PublishedTable(
        "Test accuracy under differential privacy of elements, delta = 1e-5, alpha = 0.1",
        "%",
        ("20Newsgroup, noise", "20Newsgroup, smoothed", "XGLUE-NC, noise", "XGLUE-NC, smoothed"),
        {
            "epsilon = 1": (69.46, 70.03, 76.76, 77.53),
            "epsilon = 1.5": (74.03, 74.55, 78.31, 79.47),
            "epsilon = 2": (78.52, 78.89, 79.89, 80.34),
            "epsilon = 3": (78.89, 79.22, 80.89, 81.10),
            "epsilon = 5": (80.88, 81.35, 81.62, 81.60),
            "epsilon = 8": (83.05, 82.97, 82.03, 81.89),
        },
    ),
    6: PublishedTable(
        "Encrypted answers, alpha = 0.1: time of one operation in TFHE-rs, and test accuracy",
        "%",
        ("minimum (ms)", "equality-comparison (ms)", "20Newsgroup", "XGLUE-NC"),
        {"8 bits": (101, 44, 84.75, 81.76), "16 bits": (195, 82, 84.75, 81.76)},
    ),
    7: PublishedTable(
        "Test accuracy of the four space folding measures (102) on CIFAR-100-LT",
        "%",
        _RHO,
        {
            "SFM-1": (46.16, 50.92, 64.98),
            "SFM-2": (46.17, 50.92, 65.01),
            "SFM-3": (46.17, 50.92, 65.01),
            "SFM-4": (45.58, 50.14, 64.71),
        },
    ),
    8: PublishedTable(
        "Test accuracy of the four space folding measures (102) on XGLUE-NC",
        "%",
        _XGLUE,
        {
            "SFM-1": (82.54, 82.21, 82.20),
            "SFM-2": (82.53, 82.19, 82.20),
            "SFM-3": (82.53, 82.19, 82.20),
            "SFM-4": (82.68, 82.27, 82.31),
        },
    ),
    9: PublishedTable(
        "Test accuracy by batch size on CIFAR-100-LT",
        "%",
        _RHO,
        {
            "N_b = 20": (46.16, 50.92, 64.98),
            "N_b = 50": (41.34, 44.77, 58.17),
            "N_b = 100": (38.93, 42.07, 54.32),
        },
    ),
    10: PublishedTable(
        "Test accuracy by embedding model on XGLUE-NC",
        "%",
        _XGLUE,
        {
            "distiluse-base-multilingual-cased-v2": (81.79, 81.64, 82.02),
            "paraphrase-multilingual": (81.33, 80.78, 81.00),
            "both": (82.54, 82.21, 82.20),
        },
    ),
}

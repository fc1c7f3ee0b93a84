"""Numbers printed in DP-KAHM.

Tables 5 to 7 print accuracies and membership scores side by side: the scores, which have another unit, are in
``MIS_TABLES``. Table 11 prints seconds by data size, ``SECONDS``. Rows of Tables 5 to 7 are named by (epsilon, n); the
second row of a pair, where a table has one, by "... again".
"""

from collections.abc import Mapping

from kernfed_papers.published.table import PublishedTable

_SPLITS = ("1", "2", "3", "4", "5")
#: Columns of Tables 5 to 7: with fabrication (Definition 15) and without (Definition 12).
CLASSIFIERS = ("Def. 15", "Def. 12")
_PLACES = ("distributed", "centralized")

# (epsilon, n): accuracy with and without fabrication, mis with and without.
_MNIST: Mapping[str, tuple[float, float, float, float]] = {
    "(1, 20)": (0.9491, 0.9453, 0.00000, 0.00017),
    "(1.5, 20)": (0.9644, 0.9645, 0.00025, 0.00035),
    "(2, 20)": (0.9711, 0.9709, 0.00074, 0.00076),
    "(3, 20)": (0.9779, 0.9776, 0.00299, 0.00589),
    "(4, 20)": (0.9802, 0.9796, 0.00687, 0.01605),
    "(5, 20)": (0.9820, 0.9805, 0.01275, 0.03361),
    "(8, 20)": (0.9833, 0.9845, 0.02968, 0.11685),
    "(16, 20)": (0.9854, 0.9858, 0.05459, 0.30601),
    "(32, 20)": (0.9851, 0.9858, 0.06171, 0.35388),
    "(32, 5)": (0.9680, 0.9676, 0.00503, 0.01225),
    "(32, 10)": (0.9799, 0.9810, 0.01794, 0.08117),
    "(32, 15)": (0.9851, 0.9861, 0.03501, 0.20903),
    "(32, 20) again": (0.9851, 0.9854, 0.06145, 0.35451),
    "(32, 25)": (0.9845, 0.9854, 0.09111, 0.49186),
}
_FREIBURG: Mapping[str, tuple[float, float, float, float]] = {
    "(5, 20)": (0.8016, 0.8153, 0.02600, 0.04207),
    "(8, 20)": (0.8556, 0.8733, 0.12512, 0.20650),
    "(16, 20)": (0.8792, 0.8919, 0.27377, 0.51909),
    "(32, 20)": (0.8811, 0.8919, 0.25753, 0.40348),
    "(32, 5)": (0.7996, 0.8212, 0.04019, 0.08048),
    "(32, 10)": (0.8595, 0.8694, 0.12220, 0.24263),
    "(32, 15)": (0.8752, 0.8841, 0.19986, 0.34380),
    "(32, 20) again": (0.8811, 0.8919, 0.25753, 0.40348),
    "(32, 25)": (0.8782, 0.8929, 0.29724, 0.45099),
}
_HEART: Mapping[str, tuple[float, float, float, float]] = {
    "(8, 5)": (0.8485, 0.9074, 0.02773, 0.04903),
    "(16, 5)": (0.8817, 0.9484, 0.06739, 0.15790),
    "(24, 5)": (0.8925, 0.9557, 0.07625, 0.21036),
    "(32, 5)": (0.8964, 0.9572, 0.08310, 0.23319),
    "(32, 1)": (0.8608, 0.9058, 0.00973, 0.02259),
    "(32, 3)": (0.8777, 0.9457, 0.04045, 0.12006),
    "(32, 5) again": (0.8931, 0.9568, 0.07603, 0.22235),
    "(32, 7)": (0.8960, 0.9599, 0.11834, 0.33322),
    "(32, 10)": (0.8938, 0.9566, 0.17230, 0.48887),
    "(32, 15)": (0.8795, 0.9451, 0.24173, 0.68009),
}
_PRIVATE = {5: ("MNIST", _MNIST), 6: ("Freiburg groceries", _FREIBURG), 7: ("heart rate intervals", _HEART)}

#: mis of Tables 5 to 7. Figures 13 and 15 print two more: 0.35919 to 0.05377 (MNIST), 0.51320 to 0.12286 (Freiburg).
MIS_TABLES: Mapping[int, PublishedTable] = {
    number: PublishedTable(
        f"Privacy-preserving learning on {data}: membership score",
        "mis",
        CLASSIFIERS,
        {name: values[2:] for name, values in rows.items()},
    )
    for number, (data, rows) in _PRIVATE.items()
}

#: Table 11: seconds to fit a machine, by the number of entries N p; MATLAB R2017b, 2.2 GHz Intel Core i7, 16 GB.
SECONDS: Mapping[int, float] = {
    10_000: 0.0193,
    100_000: 0.1077,
    300_000: 0.3232,
    1_000_000: 1.9783,
    2_500_000: 10.0412,
    3_600_000: 18.1033,
    4_900_000: 27.2175,
    5_625_000: 37.9418,
    6_400_000: 67.8467,
    7_225_000: 80.1050,
    8_100_000: 101.2839,
    9_025_000: 126.7630,
    10_000_000: 133.0497,
}
#: 6.4 in words: 1000 samples of 20000 columns took "around 1600 seconds".
SECONDS_OF_20_MILLION = 1600.0

# Tables 8 and 9 print the same centralised column.
_CENTRAL = {"1": 0.9478, "1.5": 0.9629, "2": 0.9707, "3": 0.9779, "4": 0.9798, "5": 0.9819, "8": 0.9837, "16": 0.9851}


def _scenario(number: int, distributed: tuple[float, ...]) -> PublishedTable:
    rows = {name: (value, centre) for (name, centre), value in zip(_CENTRAL.items(), distributed, strict=True)}
    return PublishedTable(f"Federated learning on MNIST, scenario {number}, by epsilon", "fraction", _PLACES, rows)


TABLES: Mapping[int, PublishedTable] = {
    3: PublishedTable(
        "Accuracy on five splits of Freiburg groceries",
        "%",
        (*_SPLITS, "mean"),
        {
            "KAHM Classifier (Definition 7)": (89.29, 87.16, 87.00, 86.73, 87.09, 87.46),
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
    4: PublishedTable(
        "Area under the ROC curve on five splits of Freiburg groceries, averaged per class",
        "fraction",
        _SPLITS,
        {
            "KAHM (Definition 8)": (0.9901, 0.9925, 0.9970, 0.9969, 0.9945),
            "nonparametric fuzzy image mapping": (0.9818, 0.9775, 0.9754, 0.9767, 0.9761),
            "deep fuzzy nonparametric model": (0.9612, 0.9574, 0.9601, 0.9582, 0.9531),
            "SVM": (0.9806, 0.9766, 0.9711, 0.9777, 0.9760),
            "Random Forest": (0.9489, 0.9510, 0.9372, 0.9437, 0.9466),
            "4-NN": (0.9425, 0.9336, 0.9325, 0.9378, 0.9280),
            "2-NN": (0.9219, 0.9125, 0.9118, 0.9117, 0.9048),
            "Naive Bayes": (0.8999, 0.9100, 0.8866, 0.9013, 0.8908),
            "1-NN": (0.8881, 0.8802, 0.8803, 0.8837, 0.8752),
            "Ensemble Learning": (0.8856, 0.8896, 0.8813, 0.8818, 0.8776),
            "Decision Tree": (0.6591, 0.6473, 0.6528, 0.6539, 0.6443),
        },
    ),
    **{
        number: PublishedTable(
            f"Privacy-preserving learning on {data}: accuracy",
            "fraction",
            CLASSIFIERS,
            {name: values[:2] for name, values in rows.items()},
        )
        for number, (data, rows) in _PRIVATE.items()
    },
    8: _scenario(1, (0.9460, 0.9633, 0.9710, 0.9783, 0.9790, 0.9813, 0.9829, 0.9847)),
    9: _scenario(2, (0.9384, 0.9603, 0.9670, 0.9733, 0.9758, 0.9778, 0.9803, 0.9813)),
    10: PublishedTable(
        "Federated learning on MNIST, scenario 3, epsilon 16, mean of 10 runs, by number of parties",
        "fraction",
        _PLACES,
        {
            "2": (0.9817, 0.9847),
            "5": (0.9770, 0.9847),
            "10": (0.9752, 0.9847),
            "20": (0.9734, 0.9847),
            "50": (0.9728, 0.9847),
            "100": (0.9717, 0.9847),
        },
    ),
}

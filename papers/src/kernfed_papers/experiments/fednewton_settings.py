"""What the experiments of FedNewton share: the settings of its Table 2 as read here, data, trials, learners."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernfed.data import Dataset, partition_dirichlet, partition_quantity
from kernfed.errors import DivergenceWarning
from kernfed.federation import Federation, RidgeLearner
from kernfed.ridge import RidgeModel
from kernfed_papers.arrays import FloatArray, IntArray
from kernfed_papers.baselines.descent import DescentLearner
from kernfed_papers.rows import load_rows

#: Errors beyond this are shown as this: a file of results must hold numbers.
LARGEST = 1e300
#: Dirichlet parameter from which on a split is even.
EVEN = 1e9

#: What sites do under the first-order methods, for the protocols.
FIRST_ORDER = (
    "FedAvg takes 2 local gradient steps a round with the learning rate of Table 2; FedProx minimises the local "
    "objective with the proximal term exactly (note to the paper's Table 1), with lambda_prox of Table 2."
)

#: How Table 2 is read, for the protocols.
READING = (
    "The reading of Table 2 was chosen by comparison with the printed numbers: frequencies have the standard deviation "
    "printed as sigma^2 (the text has frequencies from N(0, 1/sigma^2)); columns of letter, satimage and shuttle and "
    "pixels of usps are scaled to [-1, 1], pixels of mnist to [0, 1], dna and pendigits are taken as they are. Tried "
    "were deviations sigma^2, 1/sigma^2, sigma, 1/sigma and a few round numbers, each with four scalings (none, "
    "[0, 1], [-1, 1], standardised), by the pooled accuracy of one seed on at most 15,000 rows. It is the one "
    "rule for the frequencies that came near on all seven sets; the scaling was chosen set by set, and for mnist "
    "[-1, 1] came as near. It was not fitted to the synthetic task, whose printed threshold it meets. It misses: usps, "
    "where FedNewton diverges even with an even split and the paper's does not, the threshold of mnist, and letter by "
    "half a percent."
)


@dataclass(frozen=True)
class Setting:
    """A row of FedNewton Table 2.

    sigma2 : printed as kernel parameter sigma^2, read as the standard deviation of the frequencies. regularization,
    proximal : lambda and lambda_prox. alpha : of the Dirichlet distribution. rate : learning rate gamma. scaling : of
    the rows: "none", "unit" (pixels to [0, 1]), "pixels" (to [-1, 1]) or "columns" (each to [-1, 1])
    """

    sigma2: float
    regularization: float
    proximal: float
    alpha: float
    rate: float
    scaling: str = "none"

    @property
    def bandwidth(self) -> float:
        """Bandwidth of our features: frequencies are N(0, 1/bandwidth^2)."""
        return 1 / self.sigma2

    @property
    def literal_bandwidth(self) -> float:
        """Bandwidth where the frequencies are N(0, 1/sigma^2) as the text has it."""
        return float(self.sigma2**0.5)


SYNTHETIC = Setting(0.1, 1e-6, 7e-7, 1.0, 0.001)
SETTINGS = {
    "dna": Setting(0.001, 1e-7, 1e-8, 1.0, 0.001),
    "letter": Setting(1.0, 1e-3, 1e-3, 0.5, 0.001, "columns"),
    "pendigits": Setting(0.01, 1e-4, 1e-4, 1.0, 0.0001),
    "satimage": Setting(1.0, 1e-3, 1e-3, 1.0, 0.001, "columns"),
    "Sensorless": Setting(10.0, 1e-6, 1e-7, 1.0, 0.001, "columns"),
    "shuttle": Setting(10.0, 1e-3, 1e-3, 0.5, 0.001, "columns"),
    "usps": Setting(0.1, 1e-4, 1e-4, 0.5, 0.001, "pixels"),
    "mnist": Setting(0.1, 1e-5, 7e-7, 0.5, 0.001, "unit"),
}


def load_scaled(name: str) -> Dataset:
    """A data set of Table 2 with its rows scaled; look with ``missing_data`` first."""
    scaling = SETTINGS[name].scaling
    data = load_rows(name.lower(), "unit" if scaling in ("unit", "pixels") else "none")
    if scaling == "pixels":
        return replace(data, x_train=2 * data.x_train - 1, x_test=2 * data.x_test - 1)
    if scaling != "columns":
        return data
    low, high = data.x_train.min(axis=0), data.x_train.max(axis=0)
    span = np.where(high > low, high - low, 1)
    return replace(data, x_train=2 * (data.x_train - low) / span - 1, x_test=2 * (data.x_test - low) / span - 1)


def spread(data: Dataset, n_sites: int, alpha: float, seed: int) -> dict[str, tuple[FloatArray, IntArray]]:
    """Training rows and labels by site: at random for ``alpha`` = ``EVEN``, else class by class as Dir(alpha) draws."""
    partition = partition_quantity if alpha == EVEN else partition_dirichlet
    parts = partition(data.y_train, n_sites, alpha, seed)
    return {f"site {number:02d}": (data.x_train[part], data.y_train[part]) for number, part in enumerate(parts)}


def learn(
    federation: Federation,
    setting: Setting,
    method: str,
    rounds: int = 8,
    *,
    n_components: int,
    task: str = "classify",
    diagnose: bool = False,
) -> RidgeModel:
    """Model by ``method``; that "newton" diverges is not warned of, since the numbers show it.

    Its values are those of the solver, not clipped to the range of training: the published errors are not. Sites keep
    their factors, so a federation that is asked by several methods computes them once.
    """
    first_order = method in ("fedavg", "fedprox")
    learner = RidgeLearner(
        "dkrr" if first_order else method,
        rounds=rounds,
        n_components=n_components,
        scale=None,
        bandwidth=setting.bandwidth,
        regularization=setting.regularization,
        task=task,
        diagnose=diagnose,
        fit_intercept=False,  # FedNewton (1) has none
    )
    if method == "fedavg":
        return replace(DescentLearner(learner, rounds, setting.rate).fit(federation), range_=None)
    if method == "fedprox":
        proximal = DescentLearner(learner, rounds, steps="exact", proximal=setting.proximal)
        return replace(proximal.fit(federation), range_=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)
        return replace(learner.fit(federation), range_=None)


def mean_squared_error(model: RidgeModel, X: FloatArray, y: FloatArray) -> float:
    """Mean squared error on rows X (n, p), at most ``LARGEST``."""
    difference = model.predict(X) - y
    largest = max(float(np.abs(difference).max()), np.finfo(np.float64).tiny)
    with np.errstate(over="ignore"):
        return float(min(largest * (largest * np.mean((difference / largest) ** 2)), LARGEST))


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation of trials, also of numbers whose squares are too large; no deviation of one trial."""
    scale = max(map(abs, values)) or 1.0
    shares = np.array(values) / scale
    deviation = None if len(values) == 1 else float(scale * shares.std(ddof=1))
    return float(scale * shares.mean()), deviation

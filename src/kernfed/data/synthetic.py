"""Data made to order: tasks whose heterogeneity is set by a number."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import check_count, check_number
from kernfed.base.random import generator

Rows = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]

#: Variance of the label noise.
NOISE = 0.2


@dataclass(frozen=True, eq=False)
class SyntheticTask:
    """Rows (X, y) by site, and test rows of the common task: x ~ N(0, I), ``y = -|1' x|`` without noise."""

    sites: dict[str, Rows]
    x_test: npt.NDArray[np.float64]
    y_test: npt.NDArray[np.float64]


def fednewton_synthetic(
    n_sites: int,
    n_per_site: int,
    alpha: float = 0.0,
    beta: float = 0.0,
    seed: int = 0,
    *,
    width: int = 10,
    n_test: int = 2500,
) -> SyntheticTask:
    """The regression task of FedNewton Section 7.

    At site j: x ~ N(u_j, I), ``y = min(-w_j' x, w_j' x) + e`` with e ~ N(0, 0.2). ``alpha`` sets the heterogeneity of
    the data, u_j ~ N(0, alpha I), and ``beta`` that of the model, w_j ~ N(1, beta I). The second argument of N is read
    as a variance everywhere, and the paper's "w_j ~ N(1, v_j), v_j ~ N(0, beta)" as w_j = 1 + v_j.

    >>> task = fednewton_synthetic(n_sites=3, n_per_site=5, alpha=0.1)
    >>> sorted(task.sites), task.sites["site 0"][0].shape, task.x_test.shape
    (['site 0', 'site 1', 'site 2'], (5, 10), (2500, 10))
    """
    digits = len(str(check_count(n_sites, "n_sites") - 1))
    count, columns = check_count(n_per_site, "n_per_site"), check_count(width, "width")
    shift, turn = (np.sqrt(check_number(v, n, at_least=0)) for v, n in ((alpha, "alpha"), (beta, "beta")))
    sites = {}
    for number in range(n_sites):
        name = f"site {number:0{digits}d}"
        draws = generator(seed, "fednewton_synthetic", name)
        mean = shift * draws.standard_normal(columns)
        weights = 1.0 + turn * draws.standard_normal(columns)
        X = mean + draws.standard_normal((count, columns))
        noise = np.sqrt(NOISE) * draws.standard_normal(count)
        sites[name] = (X, -np.abs(X @ weights) + noise)
    x_test = generator(seed, "fednewton_synthetic", "test").standard_normal((check_count(n_test, "n_test"), columns))
    return SyntheticTask(sites, x_test, -np.abs(x_test.sum(axis=1)))

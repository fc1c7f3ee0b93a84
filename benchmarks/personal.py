"""Time and traffic of personalised learning.

python benchmarks/personal.py [--quick] [--rounds 2] [--out benchmarks/out]

Whole fits over B = 100 and 1000 sites in this process (KME 6.1: ten rows of 20 columns a site): "auto" from moments,
and Q-aggregation (C_Q = C_P = 1) from D random features. Fits are compared with the bare ridge regressions of all
sites, each alone; bytes that leave a site with 8 bytes a number; the quadratic programme of Q-aggregation, for all
targets and without penalties (where supports are largest), with 20 seconds.
"""

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
from timing import Comparison, interleave, machine_facts, report

from kernfed.federation import Federation
from kernfed.federation.personal.learner import PersonalLearner
from kernfed.personal.prior import ridge_alone
from kernfed.personal.weights import EmbeddingKernel, compare, linear_terms, minimise_on_simplex

HERE = Path(__file__).resolve().parent
Sites = dict[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]


def concept_shift(sites: int, n: int = 10, d: int = 20, sigma: float = 0.1) -> Sites:
    """KME (20)-(21)."""
    rng = np.random.default_rng(0)
    base, groups = rng.standard_normal(d), rng.choice([-1, 1], sites)
    beta = groups[:, None] * np.sqrt(1 - sigma) * base + np.sqrt(sigma) * rng.standard_normal((sites, d))
    X = 1 + rng.standard_normal((sites, n, d))
    y = np.einsum("bnd,bd->bn", X, beta) + np.sqrt(2) * rng.standard_normal((sites, n))
    return {f"site {k:04d}": (X[k], y[k]) for k in range(sites)}


def each_alone(data: Sites) -> None:
    for X, y in data.values():
        ridge_alone(X, y[:, None])


def fit(data: Sites, weights: str | tuple[float, float], components: int) -> Federation:
    federation = Federation.local(data)
    options = {"fit_intercept": False, "kernel_components": components, "bandwidth": 21**0.5, "gains": False}
    PersonalLearner(weights, **options).fit(federation)  # type: ignore[arg-type]
    return federation


def sent(federation: Federation, *tasks: str) -> float:
    """Mean bytes up per site in these tasks."""
    return sum(entry.bytes_up for entry in federation.traffic if entry.task in tasks) / len(federation.sites)


def programme(data: Sites, components: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    kernel = EmbeddingKernel(20, 1, bandwidth=21**0.5, n_components=components)
    comparisons = compare([kernel.embed(X, y[:, None]) for X, y in data.values()])
    return np.asarray(comparisons.gram), np.asarray(linear_terms(comparisons, (0.0, 0.0)))


def measured(sizes: tuple[int, ...], components: int, rounds: int) -> list[Comparison]:
    rows = []
    for sites in sizes:
        data = concept_shift(sites)
        for weights in ("auto", (1.0, 1.0)):
            kept: list[Federation] = []
            seconds = interleave(
                lambda data=data: each_alone(data),
                lambda data=data, weights=weights, kept=kept: kept.append(fit(data, weights, components)),
                rounds,
            )
            name = weights if isinstance(weights, str) else "Q-aggregation"
            rows.append(Comparison(f"{name}, {sites} sites of 10 x 20", "ridge of each site alone", *seconds, 200.0))
            numbers = 21 * 10 + 2 if weights == "auto" else 21 * 10 + 2 + components + sites
            bytes_up = sent(kept[-1], "personal_statistics", "personal_forms")
            work = f"bytes a site sends, {name}, {sites} sites"
            rows.append(Comparison(work, f"{numbers} floats", 8.0 * numbers, bytes_up, 4.0, "bytes"))
        gram, linear = programme(data, components)
        _, seconds = interleave(lambda: None, lambda gram=gram, b=linear: minimise_on_simplex(gram, b), rounds)
        rows.append(Comparison(f"weights of {sites} targets to 1e-10, D = {components}", "20 s", 20.0, seconds, 1.0))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and traffic of personalised learning, as ratios.")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--rounds", type=int, default=2, help="the best of so many counts (default: 2)")
    parser.add_argument("--out", type=Path, default=HERE / "out", help="folder for personal.json")
    chosen = parser.parse_args()
    sizes, components = ((8, 12), 20) if chosen.quick else ((100, 1000), 1000)
    rows = measured(sizes, components, chosen.rounds)
    facts = {**machine_facts(), "quick": chosen.quick, "rounds": chosen.rounds}
    report("personal", f"Personalised learning, {facts['threads']} threads", rows, facts, chosen.out)


if __name__ == "__main__":
    main()

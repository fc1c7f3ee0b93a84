"""What the private experiments of DP-KAHM share: noisy rows, rows fabricated from them, and the classifier on top."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from joblib import Parallel, delayed

from kernfed.kahm import Bank, fit_machines, split_rows
from kernfed.privacy import ElementLaplace, NoiseGenerator, Smoothed, fabricate
from kernfed_papers.arrays import FloatArray, IntArray
from kernfed_papers.draws import generator

#: More rows than any data set has.
ALL = 10**6
#: Layers of every machine in DP-KAHM Section 6.
LAYERS = 5
#: Public bounds of MNIST pixels over 255. Their range is taken as d, which the paper does not state.
PIXELS = (0.0, 1.0)

#: The rule of DP-KAHM (92): it compares with the raw rows, so what it makes is not private.
ORACLE = "oracle"
SOUND = "coupled_bootstrap"


@dataclass(frozen=True)
class Size:
    """Rows taken of the training and of the test set, and rows per machine."""

    train: int
    test: int
    batch: int


@dataclass(frozen=True, eq=False)
class Fabricated:
    """Fabricated rows (N, p) in the order of the noisy ones, and the numbers of smoothing steps that were taken."""

    values: FloatArray
    steps: tuple[int, ...]

    @property
    def note(self) -> str:
        """The numbers of steps in words."""
        low, high = min(self.steps), max(self.steps)
        return f"{low} smoothing step(s)" if low == high else f"{low} to {high} smoothing steps"


def noise_source(seed: int, *names: str) -> NoiseGenerator:
    """Repeatable noise for an experiment; whoever knows the seed can take it off, so it protects nobody."""
    return NoiseGenerator(int(generator(seed, "experiment noise", *names).integers(2**62)))


def noisy_rows(rows: FloatArray, epsilon: float, bounds: tuple[float, float], source: NoiseGenerator) -> FloatArray:
    """DP-KAHM Algorithm 1 without its atom on rows (N, p); d is the range of the public ``bounds``."""
    mechanism = ElementLaplace(epsilon, d=bounds[1] - bounds[0], bounds=bounds)
    return mechanism.release(rows, generator=source).values


def noise_deviation(epsilon: float, bounds: tuple[float, float]) -> float:
    """Standard deviation of Laplace noise of scale d/epsilon."""
    return math.sqrt(2) * (bounds[1] - bounds[0]) / epsilon


def class_parts(rows: FloatArray, labels: IntArray, batch: int, seed: int) -> list[npt.NDArray[np.intp]]:
    """Row numbers of every machine: each class divided by k-means into round(N / batch) parts, DP-KAHM (58)-(59)."""
    parts = []
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        own_parts = split_rows(rows[own], batch, "kmeans", generator(seed, "class parts", str(label)))
        parts += [own[part] for part in own_parts]
    return parts


def fabricated_rows(
    noisy: FloatArray,
    parts: list[npt.NDArray[np.intp]],
    noise: float,
    dim: int,
    *,
    steps: str | int = SOUND,
    clean: FloatArray | None = None,
) -> Fabricated:
    """DP-KAHM (94): every part fabricated on its own. With ``clean`` rows the steps are the papers', by the oracle.

    Otherwise ``steps`` are given, or the coupled bootstrap decides on the noisy rows of the first part, for all parts:
    the number hardly differs between them, and finding it takes longer than using it.
    """

    def made(part: npt.NDArray[np.intp], rule: str | int) -> Smoothed:
        raw = None if clean is None else clean[part]
        return fabricate(noisy[part], noise=noise, steps=rule, clean=raw, subspace_dim=dim, batch_size=len(part))

    first = made(parts[0], steps if clean is None else ORACLE)
    rule = first.steps[0] if clean is None else ORACLE
    work = Parallel(n_jobs=-1, prefer="threads")
    pieces = [first, *work(delayed(made)(part, rule) for part in parts[1:])]
    values = np.empty_like(noisy)
    for part, one in zip(parts, pieces, strict=True):
        values[part] = one.values
    return Fabricated(values, tuple(one.steps[0] for one in pieces))


def class_bank(
    rows: FloatArray, labels: IntArray, parts: list[npt.NDArray[np.intp]], dim: int, layers: int = LAYERS
) -> Bank:
    """Machines of Definition 5, one per part, grouped by class in sorted order; they score in float32."""
    classes = np.unique(labels)
    machines = fit_machines([rows[part] for part in parts], subspace_dim=dim, layers=layers, dtype=np.float32)
    groups = [int(np.searchsorted(classes, labels[part[0]])) for part in parts]
    return Bank.assemble(machines, groups, len(classes))


def accuracy_of(scores: FloatArray, classes: IntArray, answers: IntArray) -> float:
    """Share of rows whose smallest score (n, C) is at their label."""
    return float((classes[scores.argmin(axis=1)] == answers).mean())

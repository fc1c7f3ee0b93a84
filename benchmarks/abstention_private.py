"""The part of ``abstention.py`` on counts with noise: sets under differential privacy beside those of exact counts."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from kernfed.abstain import Conformal, NoisyConformal, count_scores, probability_bins
from kernfed.abstain.bins import odds_places
from kernfed.base.text import TextTable
from kernfed.privacy import NoiseGenerator, RecordHistogram
from kernfed.privacy.values import mechanism_to_values
from kernfed.promise import Terms

EPSILONS, DELTA = (1.0, 3.0), 1e-5


@dataclass(frozen=True)
class PrivateRow:
    """One data set, model and epsilon (None: exact counts): mean coverage and size of sets over splits.

    noises : 1 where sites add up under masks, else one for each site. full : share of splits in which all classes are
    in every set. ok : whether the mean coverage is no less than asked for, but for three of its standard errors.
    """

    data: str
    model: str
    aside: int
    splits: int
    epsilon: float | None
    noises: int
    coverage: float
    size: float
    full: float
    ok: bool


def private_rows(
    name: str, model: str, scored: Mapping[int, tuple[np.ndarray, np.ndarray]], splits: int, sites: int, wanted: float
) -> Iterator[PrivateRow]:
    """Rows of every epsilon, from probabilities (n, C) and classes (n,) of rows that the models had not seen.

    ``scored`` has those of each model by its seed; ``splits`` are as many for each, and ``sites`` release counts.
    """
    ways: list[tuple[float | None, int]] = [(None, 0), *((epsilon, n) for epsilon in EPSILONS for n in (1, sites))]
    found: dict[tuple[float | None, int], list[tuple[float, float, bool]]] = {way: [] for way in ways}
    for seed, (likely, truth) in scored.items():
        draws = np.random.default_rng([seed, 7])
        for split in range(splits):
            mixed = draws.permutation(len(truth))
            aside, new = mixed[: len(truth) // 2], mixed[len(truth) // 2 :]
            for epsilon, noises in ways:
                parts = np.array_split(aside, max(noises, 1))
                record = _counted(likely, truth, parts, epsilon, 1000 * seed + split)
                sets = probability_bins(likely[new]) <= record.thresholds(np.arange(likely.shape[1]), wanted)
                covered = float(sets[np.arange(len(new)), truth[new]].mean())
                found[epsilon, noises].append((covered, float(sets.sum(axis=1).mean()), bool(sets.all())))
    for (epsilon, noises), turns in found.items():
        covered_all, sizes, full = (np.array(column) for column in zip(*turns, strict=True))
        error = float(np.std(covered_all)) / math.sqrt(len(turns))
        mean = float(covered_all.mean())
        about = (name, model, len(aside), len(turns), epsilon, noises, mean, float(sizes.mean()), float(full.mean()))
        yield PrivateRow(*about, mean >= wanted - 3 * error)


def _counted(
    likely: np.ndarray, truth: np.ndarray, parts: list[np.ndarray], epsilon: float | None, seed: int
) -> Conformal | NoisyConformal:
    """Counts of rows in so many parts, each with noise of its own; exact ones without an epsilon."""
    whole = np.concatenate(parts)
    if epsilon is None:
        counts, nearest = count_scores(truth[whole], likely[whole], None)
        return Conformal(counts, nearest, {}, np.zeros(counts.shape[1]), 1)
    mechanism = RecordHistogram(epsilon, DELTA)
    places = odds_places(probability_bins(likely[np.arange(len(truth)), truth]))
    made = [mechanism.release(places[part], generator=NoiseGenerator(10 * seed + n)) for n, part in enumerate(parts)]
    total = np.sum([release.counts for release in made], axis=0)
    terms = Terms(mechanism_to_values(mechanism), None, "rows and targets", *mechanism.guarantees(1))
    return NoisyConformal(total, None, math.sqrt(len(made)) * made[0].deviation, len(whole), len(made), terms)


def private_table(rows: list[PrivateRow]) -> TextTable:
    """What came out, to be read."""
    head = ("data", "model", "aside", "epsilon", "noises", "coverage", "size", "full", "ok")
    lines = [
        (
            row.data,
            row.model,
            f"{row.aside:,}",
            "none" if row.epsilon is None else f"{row.epsilon:g}",
            f"{row.noises}",
            f"{row.coverage:.4f}",
            f"{row.size:.3f}",
            f"{row.full:.2f}",
            "yes" if row.ok else "NO",
        )
        for row in rows
    ]
    return TextTable(head, lines, "Sets of coverage 0.9 under differential privacy")

"""The encrypted decision, transcribed naively: SFM (106), (122) on integers, one query at a time."""

import numpy as np
import numpy.typing as npt


def encode_one(score: float, bits: int) -> int:
    """``round((2^p - 1) T)``, SFM section 3.9."""
    return round((2.0**bits - 1) * score)


def attaining_sets(scores: npt.NDArray[np.float64], bits: int) -> npt.NDArray[np.bool_]:
    """Classes (n, C) whose smallest integer score over sites equals the smallest over everything."""
    n_sites, n, n_classes = scores.shape
    sets = np.zeros((n, n_classes), dtype=bool)
    for i in range(n):
        by_class = [min(encode_one(float(scores[q, i, c]), bits) for q in range(n_sites)) for c in range(n_classes)]
        for c in range(n_classes):
            sets[i, c] = by_class[c] == min(by_class)
    return sets


def scores_with_ties(
    rng: np.random.Generator, n_sites: int, n: int, n_classes: int, bits: int = 8
) -> npt.NDArray[np.float64]:
    """Scores (Q, n, C): a third each of random values, of few values (ties abound), and of neighbouring integers.

    The first queries are the extremes: all 0, all 1, one 0 among ones, one 1 among zeros, and values that differ in
    one unit of the last digit, on both sides of a digit of 8 bits.
    """
    top = 2**bits - 1
    integers = rng.integers(0, top + 1, (n_sites, n, n_classes))
    few, near = np.arange(n) % 3 == 1, np.arange(n) % 3 == 2
    integers[:, few] = rng.integers(0, 3, (n_sites, int(few.sum()), n_classes)) * (top // 2)
    base = rng.integers(0, top, (1, int(near.sum()), 1))
    integers[:, near] = base + rng.integers(0, 2, (n_sites, int(near.sum()), n_classes))
    edges = np.full((n_sites, 6, n_classes), top)
    edges[:, 0] = 0
    edges[-1, 2, -1] = 0
    edges[:, 3] = 0
    edges[0, 3, 0] = top
    edges[:, 4] = np.where(rng.random((n_sites, n_classes)) < 0.5, 255, min(256, top))
    edges[:, 5] = np.where(rng.random((n_sites, n_classes)) < 0.5, 0, 1)
    integers[:, : min(n, 6)] = edges[:, : min(n, 6)]
    return np.asarray(integers / top, dtype=np.float64)

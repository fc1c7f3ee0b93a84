"""Measures of how far a query is from its image: distance and the space folding measures of SFM Definition 1.

Everything is computed from three scalars per query and machine: the squared distance ``|y - A(y)|^2`` and the norms of
``y`` and ``A(y)``. Smaller is better for every measure.
"""

from collections.abc import Callable

import numpy as np

from kernfed.base.checks import FloatArray

#: SFM (102), options 1-4: how the two parts (103) and (104) are put together.
_COMBINE: dict[str, Callable[[FloatArray, FloatArray], FloatArray]] = {
    "rms": lambda euclidean, cosine: np.sqrt((euclidean**2 + cosine**2) / 2),
    "product": lambda euclidean, cosine: euclidean * cosine,
    "min": np.minimum,
    "max": np.maximum,
}

#: Measures: the four of SFM (102), its two parts (103) and (104), and the plain distance of DP-KAHM (48).
MEASURES = (*_COMBINE, "euclidean", "cosine", "distance")

#: What a class that nobody holds scores: SFM uses the top of the unit interval, GIKM Remark 10 infinity.
ABSENT = {measure: (np.inf if measure == "distance" else 1.0) for measure in MEASURES}


def needs_angle(measure: str) -> bool:
    """Whether the measure looks at the norm of the image, which costs one more pass."""
    return measure not in ("distance", "euclidean")


def euclidean_folding(distance: FloatArray) -> FloatArray:
    """SFM (103): ``1 - exp(-distance)``, without cancellation near zero."""
    folded: FloatArray = -np.expm1(-distance)
    return folded


def cosine_folding(squared_distance: FloatArray, query_norm: FloatArray, image_norm: FloatArray) -> FloatArray:
    """SFM (104): the angle between query and image, over pi, from the three sides of their triangle.

    With ``a = |y|``, ``b = |A|`` and ``d = |y - A|`` the half angle has ``sin^2 = (d^2 - (a-b)^2) / 4ab`` and
    ``cos^2 = ((a+b)^2 - d^2) / 4ab``. Their arctangent keeps its digits at small angles, where the arccosine of a
    rounded cosine loses half of them or leaves its domain. The zero vector has no angle; it scores 1/2.
    """
    opening = np.maximum(squared_distance - (query_norm - image_norm) ** 2, 0.0)
    closing = np.maximum((query_norm + image_norm) ** 2 - squared_distance, 0.0)
    angle = 2 * np.arctan2(np.sqrt(opening), np.sqrt(closing)) / np.pi
    folded: FloatArray = np.where((query_norm > 0) & (image_norm > 0), angle, 0.5)
    return folded


def folding(measure: str, squared_distance: FloatArray, query_norm: FloatArray, image_norm: FloatArray) -> FloatArray:
    """One measure of ``MEASURES`` from squared distances and norms of equal (or broadcasting) shape."""
    distance = np.sqrt(np.maximum(squared_distance, 0.0))
    if measure == "distance":
        return distance
    if measure == "euclidean":
        return euclidean_folding(distance)
    cosine = cosine_folding(squared_distance, query_norm, image_norm)
    if measure == "cosine":
        return cosine
    return _COMBINE[measure](euclidean_folding(distance), cosine)


def matching_score(distances: FloatArray) -> FloatArray:
    """Class-matching score, DP-KAHM Definition 8 (63), of distances (n, C): ``exp(-d_c^2 / sum_c d_c^2)``.

    An absent class (infinite distance) scores 0 and is left out of the sum; if every class matches exactly all
    score 1. The scores do not sum to one.
    """
    squared = np.square(distances)
    present = np.isfinite(squared)
    total = np.where(present, squared, 0.0).sum(axis=1, keepdims=True)
    share = np.where(present, squared, np.inf) / np.where(total > 0, total, 1.0)
    score: FloatArray = np.exp(-share)
    return score


def membership_probability(distances: FloatArray, width: int) -> FloatArray:
    """``exp(-distance / p)`` with p the width of the data, an uncalibrated membership in (0, 1]: GIKM Theorem 5 (44).

    GIKM Lemma 2 reads it as a probability, which it is not: at p = 784 it is near 1 for every class.
    """
    probability: FloatArray = np.exp(-distances / width)
    return probability


def hull_kernel(first: FloatArray, second: FloatArray, width: int) -> FloatArray:
    """KAHM kernel GIKM (19) of one class from the distances (n,) and (m,) of two sets of points: (n, m)."""
    return np.outer(membership_probability(first, width), membership_probability(second, width))


def folding_feature(scores: FloatArray) -> FloatArray:
    """Feature map SFM (106): one where a class attains the smallest measure of its row, else zero. (n, C)."""
    feature: FloatArray = (scores == scores.min(axis=1, keepdims=True)).astype(np.float64)
    return feature


def folding_kernel(first: FloatArray, second: FloatArray) -> FloatArray:
    """Space folding kernel SFM (29) of one class from its feature values (n,) and (m,): (n, m); SFM Proposition 1."""
    return np.outer(first, second)

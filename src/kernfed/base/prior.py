"""Shares of classes that differ between training and use: scores move by the logarithm of the ratio (Bayes).

Scores that are made for shares pi_c of the classes, ``s_c = -T log p(c | x) + const`` (SMALLER is better), become those
for shares pi'_c by ``s_c - T log(pi'_c / pi_c)``: logit adjustment (arXiv 2007.07314), and exact where T makes
probabilities of them. What scores are made for: the shares in training, and those that weights of classes make of them,
``w_c n_c / sum_c w_c n_c``, which are equal for balanced ones.

A prior is "training", "uniform", or a share for every class; as ``None`` it is whatever the scores are made for.

>>> import numpy as np
>>> made = np.array([0.9, 0.1])
>>> shift = log_ratio("uniform", np.array(["a", "b"]), made=made, training=made)
>>> adjusted_scores(np.array([[1.0, 2.0]]), 1.0, shift).argmin(axis=1).tolist()  # 2 - log 5 < 1 - log 5/9
[1]
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_number
from kernfed.errors import InputError

#: Words for shares of classes.
PRIORS = ("training", "uniform")

Prior = str | Mapping[Any, float] | None


def check_prior(prior: Any, classes: npt.NDArray[Any]) -> Prior:
    """A prior for these classes (C,): one of ``PRIORS``, None, or a share of at least 0 for every class.

    Shares are divided by their sum.
    """
    if prior is None or (isinstance(prior, str) and prior in PRIORS):
        return prior
    if not isinstance(prior, Mapping):
        raise InputError(f"prior must be 'training', 'uniform' or a share for every class, got {prior!r}")
    labels = classes.tolist()
    given = {_plain(label): check_number(share, f"prior[{label!r}]", at_least=0) for label, share in prior.items()}
    absent = [label for label in labels if label not in given]
    unknown = [label for label in given if label not in labels]
    if absent or unknown:
        mismatch = f"none for {absent[0]!r}" if absent else f"one for {unknown[0]!r}, which is no class"
        raise InputError(f"prior must have a share for every class of the model, got {mismatch}")
    total = sum(given.values())
    if not total > 0:
        raise InputError("prior must have a share above 0 for some class, got 0 for all")
    return {label: given[label] / total for label in labels}


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label


def log_ratio(
    prior: Prior, classes: npt.NDArray[Any], *, made: FloatArray | None, training: FloatArray | None
) -> FloatArray | None:
    """``log(pi' / pi)`` (C,) from the shares that scores are ``made`` for to those of a checked ``prior``.

    None where nothing moves. ``made`` and ``training`` are shares (C,), None where they are not known.
    """
    if prior is None or (prior == "training" and made is training):
        return None
    wanted = training
    if prior == "uniform":
        wanted = np.full(len(classes), 1 / len(classes))
    elif isinstance(prior, Mapping):
        wanted = np.array([prior[label] for label in classes.tolist()])
    if wanted is None or made is None:
        raise InputError(
            f"this model does not know the shares of classes it was trained on, so it cannot move to prior={prior!r}: "
            "files of version 0.1, models of released rows and personal ones without an intercept do not hold them"
        )
    with np.errstate(divide="ignore", invalid="ignore"):  # a share of 0
        ratio = np.log(wanted) - np.log(made)
        same = bool(np.abs(ratio - ratio[0]).max() <= 1e-12)
    return None if same else np.asarray(ratio)


def adjusted_scores(scores: FloatArray, temperature: float, shift: FloatArray | None) -> FloatArray:
    """Scores (n, C), SMALLER is better, moved by ``log_ratio``; a class of share 0 is absent."""
    return scores if shift is None else np.asarray(scores - temperature * shift)


def weighted_shares(counts: npt.ArrayLike, class_weights: npt.ArrayLike | None = None) -> FloatArray | None:
    """Shares (C,) of classes with these rows, each weighed; None where there are no counts."""
    masses = np.asarray(counts, dtype=np.float64)
    if not masses.size or not masses.sum() > 0:
        return None
    masses = masses if class_weights is None else masses * np.asarray(class_weights, dtype=np.float64)
    return np.asarray(masses / masses.sum())


def prior_to_values(prior: Prior, classes: npt.NDArray[Any]) -> Any:
    """A prior as plain values for files: words as they are, shares in the order of classes."""
    checked = check_prior(prior, classes)
    return list(checked.values()) if isinstance(checked, Mapping) else checked


def prior_from_values(values: Any, classes: npt.NDArray[Any]) -> Prior:
    """A prior from ``prior_to_values``, checked."""
    if isinstance(values, list):
        if len(values) != len(classes):
            raise InputError(f"prior must have one share for each of {len(classes)} classes, got {len(values)}")
        values = dict(zip(classes.tolist(), values, strict=True))
    return check_prior(values, classes)

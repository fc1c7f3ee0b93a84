"""Multinomial logistic regression, plain and adjusted to uses in which all classes are as frequent."""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from kernfed_papers.arrays import FloatArray, IntArray


def fit_logistic(strength: float, x: FloatArray, y: IntArray, *, steps: int) -> LogisticRegression:
    """The model with the inverse penalty ``strength``; one that did not converge is not warned of, see ``stopped``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=strength, max_iter=steps, tol=1e-3).fit(x, y)


def adjusted_labels(model: LogisticRegression, labels: IntArray, queries: FloatArray) -> npt.NDArray[Any]:
    """Labels (m,) of the largest logit minus the logarithm of the class's share of the training ``labels`` (n,).

    Menon et al., arXiv 2007.07314: right where all classes are as frequent in use, however rare in training.
    """
    logits = model.decision_function(queries)
    if logits.ndim == 1:  # of two classes scikit-learn keeps one logit
        logits = np.stack([-logits / 2, logits / 2], axis=1)
    shares = np.array([(labels == label).mean() for label in model.classes_])
    return np.asarray(model.classes_[(logits - np.log(shares)).argmax(axis=1)])


def stopped(model: LogisticRegression, steps: int) -> str:
    """A remark where the steps were not enough."""
    return f", stopped after {steps} steps" * bool(model.n_iter_.max() >= steps)

"""What a model says of queries: labels, probabilities, scores and who decided, all of one computation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray


@dataclass(frozen=True, eq=False)
class Answer:
    """Everything a model says of n queries; what a kind of model does not know is None.

    labels : (n,) labels of a classifier, values (n,) or (n, q) of a regressor
    probabilities, scores : (n, C) in the order of the model's ``classes_``, SMALLER scores are better; None to regress
    site, batch : (n,) of a folding model, the site that came nearest in the label's class and which of its batches
    score : (n,) the score that decided: of that batch, or the smallest in the row
    sites, missing : sites that answered this question, and those that did not, with reasons
    part : (n,) of machines and a head together, which part the label comes from
    distance : (n,) of models with machines, the smallest score of any class, whatever the prior: how far the query is
    from everything known; infinite where no machine was asked
    """

    labels: npt.NDArray[Any]
    probabilities: FloatArray | None = None
    scores: FloatArray | None = None
    site: npt.NDArray[Any] | None = None
    batch: npt.NDArray[np.intp] | None = None
    score: FloatArray | None = None
    sites: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    part: npt.NDArray[Any] | None = None
    distance: FloatArray | None = None


def answer_of_scores(classes: npt.NDArray[Any], scores: FloatArray, probabilities: FloatArray) -> Answer:
    """Answer of a classifier that knows scores (n, C) and probabilities (n, C); ties go to the first class.

    >>> answer_of_scores(np.array(["a", "b"]), np.array([[2.0, 1.0]]), np.array([[0.3, 0.7]])).labels.tolist()
    ['b']
    """
    winners = scores.argmin(axis=1)
    return Answer(classes[winners], probabilities, scores, score=scores[np.arange(len(winners)), winners])

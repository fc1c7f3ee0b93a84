"""Audits of what learners release and of what models answer: ``kernfed.privacy.audit`` with rows, labels and models.

Rows are given as (X, y). ``inside`` are those of the data, ``outside`` rows of the same population that are not in it.
"""

import math
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.base.model import Model, as_model
from kernfed.errors import InputError
from kernfed.federation.asking import Federation
from kernfed.federation.folding.learner import FoldingLearner
from kernfed.privacy import (
    AuditReport,
    Guarantee,
    MomentsRelease,
    RecordMoments,
    audit_answers,
    audit_pair,
    audit_release,
)
from kernfed.privacy.attacks import ReleaseRows
from kernfed.privacy.shared import SharedMoments, release_together
from kernfed.privacy.values import describe_mechanism, mechanism_to_values
from kernfed.site.rows import Rows, check_site_rows

Labelled = tuple[npt.ArrayLike, npt.ArrayLike]
#: What releases moments of labelled rows.
ReleaseMoments = Callable[[FloatArray, npt.NDArray[Any]], MomentsRelease]

# Rows beside the canary, and how many times the radius away it is: a mechanism that does not clip gives itself away.
_ROWS, _FAR = 200, 100.0
# Share of the squared mu that a centred release gives to the mean; with another one the attack is a little weaker.
_MEAN_SHARE = 0.15
# Repeated releases are dearer than noisy rows.
_FEWER = 4
# Sites that release a sum together: all of them honest, and no more than are needed, which leaves the least noise.
_SHARES = 5


def audit_mechanism(
    learner: FoldingLearner,
    inside: Labelled,
    outside: Labelled,
    *,
    release: ReleaseRows | ReleaseMoments | None = None,
    trials: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[AuditReport, list[dict[str, Any]]]:
    """Attack what a learner's sites release, and the answers of a model it makes of ``inside``.

    Returns the report and what left the site while the model was made. The noise is that of ``release``, by default the
    mechanism's own; a given one is held against the mechanism's guarantee, and no model is made. Of a learner with
    ``sum`` it is the sum of a few sites that is attacked.
    """
    recipe = learner.recipe()
    if recipe is None:
        raise InputError("learner must have privacy=, a mechanism to audit; audit_model looks at a model without any")
    mechanism: Any = recipe.mechanism
    rows, others = (check_site_rows(X, y, None, name) for (X, y), name in ((inside, "inside"), (outside, "outside")))
    options: dict[str, Any] = {"confidence": confidence, "seed": seed}
    if isinstance(mechanism, RecordMoments):
        runs, classes = max(20, trials // _FEWER), len(np.unique(rows.y))
        attacked = _summed(mechanism) if learner.sum is not None and release is None else release
        report = _audit_moments(mechanism, rows.X.shape[1], classes, attacked, runs, options)  # type: ignore[arg-type]
    else:
        report = audit_release(mechanism, rows.X, others.X, release=release, trials=trials, **options)  # type: ignore[arg-type]
    if release is not None:
        return report, []
    # A release made to be attacked is kept by nobody: the store is a folder that goes with it.
    with (
        TemporaryDirectory(prefix="kernfed-audit-") as folder,
        Federation.local(_divided(learner, rows), seed=seed, store=folder) as federation,
    ):
        model = learner.fit(federation)
        traffic = federation.traffic.to_json()
        answers = _answers(model, (rows.X, rows.y), (others.X, others.y), options)
    return report.plus(*answers), list(traffic)


def _summed(mechanism: RecordMoments) -> ReleaseMoments:
    """What a few sites release of labelled rows together, each with its share of the noise."""

    def release(X: FloatArray, y: npt.NDArray[Any]) -> MomentsRelease:
        classes, places = np.unique(y, return_inverse=True)
        shared = SharedMoments.of(mechanism, tuple(classes.tolist()), _SHARES)
        return release_together(shared, [(X[i::_SHARES], places[i::_SHARES]) for i in range(_SHARES)])

    return release


def _divided(learner: FoldingLearner, rows: Rows) -> dict[str, tuple[FloatArray, npt.NDArray[Any]]]:
    """The rows as one site's, or as those of a few where the learner sums over sites."""
    if learner.sum is None:
        return {"audited": (rows.X, rows.y)}
    return {f"audited {i + 1}": (rows.X[i::_SHARES], rows.y[i::_SHARES]) for i in range(_SHARES)}


def audit_model(
    model: Any, inside: Labelled, outside: Labelled, *, confidence: float = 0.95, seed: int = 0
) -> AuditReport:
    """Attack the answers of a classifier that was made of ``inside``; its own statement says what it promises."""
    if not (isinstance(model, Model) or hasattr(model, "predict")) or not as_model(model).has_scores:
        raise InputError(f"model must be a classifier with scores, got {type(model).__name__}")
    model = as_model(model)
    if model.needs_connection:
        raise InputError("the machines of this model are at its sites; audit it there, or make it with hold='machines'")
    element, record = _stated(model)
    total = _spent(model)
    size = f"{len(model.classes_)} classes and {model.n_features_in_} columns"
    return AuditReport(f"the answers of a {type(model).__name__} of {size}", element, record, total=total).plus(
        *_answers(model, inside, outside, {"confidence": confidence, "seed": seed})
    )


def _stated(model: Any) -> tuple[Guarantee, Guarantee]:
    terms = model.privacy
    if terms is None:
        return (
            Guarantee(math.inf, 0.0, "element", "one element changing by any amount"),
            Guarantee(math.inf, 0.0, "record", "one row replaced by any other"),
        )
    return terms.element, terms.record


def _spent(model: Any) -> Guarantee | None:
    """What the ledger of the site that spent most has come to, all its releases together; None where none is told."""
    terms = model.privacy
    if terms is None or not terms.spent:
        return None
    epsilon, delta = max(terms.spent.values())
    return Guarantee(epsilon, delta, "record", "one person's rows replaced, over all releases of a site")


def _answers(model: Any, inside: Labelled, outside: Labelled, options: dict[str, Any]) -> Any:
    """Attack by the score of each row for its own label; rows of labels that the model lacks are left out."""
    columns = {label: number for number, label in enumerate(model.classes_.tolist())}
    own_scores = []
    for X, y in (inside, outside):
        labels = np.asarray(y)
        known = np.array([label in columns for label in labels.tolist()])
        if known.sum() < 2:
            raise InputError(f"at least 2 rows must have labels of the model, got {int(known.sum())}")
        scores = model.scores(np.asarray(X)[known])
        own_scores.append(scores[np.arange(len(scores)), [columns[label] for label in labels[known].tolist()]])
    return audit_answers(*own_scores, **options)


def _audit_moments(
    mechanism: RecordMoments,
    width: int,
    classes: int,
    release: ReleaseMoments | None,
    runs: int,
    options: dict[str, Any],
) -> AuditReport:
    """Released moments of a class in which one row is far out in one direction, or in another."""
    honest: ReleaseMoments = mechanism.release if release is None else release
    basis = mechanism.public_basis(width)
    assert basis is not None
    towards = (0, 1 if basis.shape[1] > 1 else 0)
    signs = (1.0, 1.0 if basis.shape[1] > 1 else -1.0)
    first, second = (np.zeros((_ROWS, width)) for _ in range(2))
    for rows, place, sign in zip((first, second), towards, signs, strict=True):
        rows[0] = sign * _FAR * mechanism.radius * basis[:, place]

    def run(rows: FloatArray) -> float:
        released = honest(rows, np.zeros(len(rows), dtype=np.int64))
        return moments_score(mechanism, released, towards, signs)

    element, record = mechanism.guarantees(width)
    attack, *bounds = audit_pair(run, first, second, record, runs=runs, gaussian=True, **options)
    subject = f"moments of classes by {describe_mechanism(mechanism_to_values(mechanism))}, rows of {width} elements"
    k = basis.shape[1]
    each = k + k * (k + 1) // 2
    numbers = (
        f"the noisy mean and covariance of each of {classes:,} classes in {k:,} coordinates, {each:,} numbers a "
        f"class and {classes * each:,} in all, with the number of rows of each"
    )
    return AuditReport(subject, element, record, (attack,), tuple(bounds), released=numbers)


def moments_score(
    mechanism: RecordMoments, released: MomentsRelease, towards: tuple[int, int], signs: tuple[float, float]
) -> float:
    """Log-likelihood ratio, up to a constant, of a row along one public direction against one along another.

    The row moves the mean by radius/n along its direction, and the second moment there by spread^2/n.
    """
    part = released.classes[0]
    n, mu = part.moments.n, released.events[0].mu  # type: ignore[attr-defined]
    mean, covariance = part.moments.mean, part.covariance
    (v, w), (a, b) = towards, signs
    spread = mechanism.radius / 2 if mechanism.spread is None else mechanism.spread
    by_mean = n * _MEAN_SHARE * mu**2 / (4 * mechanism.radius) * (a * mean[v] - b * mean[w])
    by_second = spread**2 / n / part.noise**2 * (covariance[v, v] - covariance[w, w])
    return float(by_mean + by_second)

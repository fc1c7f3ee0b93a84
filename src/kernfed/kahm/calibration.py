"""Probabilities from scores: a temperature fitted on leave-one-out scores of the training rows."""

import numpy as np
import numpy.typing as npt
import scipy  # its parts are loaded when they are used

from kernfed._threads import single_blas_thread
from kernfed._validation import FloatArray
from kernfed.kahm.bank import Bank
from kernfed.kahm.folding import ABSENT, folding
from kernfed.kahm.machine import leave_one_out

#: Rows that are left out in turn to fit the temperature, at most; one number is fitted, more rows change little.
CALIBRATION_ROWS = 2000
#: Temperatures are searched this many factors of ten around the typical difference of scores.
_DECADES = 4


def leave_one_out_scores(bank: Bank, measure: str, rows: FloatArray, home: npt.NDArray[np.intp],
                         positions: npt.NDArray[np.intp], n_jobs: int | None = None) -> FloatArray:  # fmt: skip
    """Scores (m, G) of training rows (m, p), each without its own share in the machine it came from.

    ``home`` (m,) names each row's machine and ``positions`` (m,) its place there. A machine of one row leaves nothing
    behind and scores as absent.
    """
    found = bank.machine_scores(rows, measure, n_jobs)
    norms = np.linalg.norm(rows, axis=1)
    for member in np.unique(home):
        chosen = np.flatnonzero(home == member)
        machine = bank.machines[member]
        if machine.n_rows == 1:
            found[chosen, member] = ABSENT[measure]
            continue
        with single_blas_thread():
            squared, sizes = leave_one_out(machine, rows[chosen], positions[chosen])
        found[chosen, member] = folding(measure, squared, norms[chosen], sizes)
    scores = np.full((len(rows), bank.n_groups), ABSENT[measure])
    for member, group in enumerate(bank.groups):
        np.minimum(scores[:, group], found[:, member], out=scores[:, group])
    return scores


def softmin(scores: FloatArray, temperature: float) -> FloatArray:
    """Probabilities ``exp(-s_c / T)`` over their sum, per row of scores (n, C); an infinite score has none."""
    energies = -(scores - scores.min(axis=1, keepdims=True)) / temperature
    raised = np.exp(energies)
    probabilities: FloatArray = raised / raised.sum(axis=1, keepdims=True)
    return probabilities


def fit_temperature(scores: FloatArray, labels: npt.NDArray[np.intp]) -> float:
    """Temperature that makes ``softmin(scores)`` most likely for the class numbers ``labels`` (m,).

    Rows whose own class scores as absent say nothing and are left out. Where nothing is left, or all scores agree, the
    temperature is the typical score, or one.
    """
    scores, labels = _usable(scores, labels)
    finite = scores[np.isfinite(scores)]
    spread = float(np.std(finite)) if finite.size else 0.0
    if spread == 0.0:
        return max(float(np.mean(finite)), 1e-12) if finite.size else 1.0

    def loss(log_temperature: float) -> float:
        return float(temperature_losses(scores, labels, np.exp([log_temperature]))[0]) / len(labels)

    middle, reach = np.log(spread), _DECADES * np.log(10.0)
    bounds, options = (middle - reach, middle + reach), {"xatol": 1e-6}
    best = scipy.optimize.minimize_scalar(loss, bounds=bounds, method="bounded", options=options)
    return float(np.exp(best.x))


def temperature_losses(scores: FloatArray, labels: npt.NDArray[np.intp], temperatures: FloatArray) -> FloatArray:
    """Negative log-likelihood (G,) of ``softmin(scores)`` for class numbers ``labels`` (n,), added up over rows (n, C).

    Rows whose own class scores as absent are left out.
    """
    scores, labels = _usable(scores, labels)
    gaps = scores - scores.min(axis=1, keepdims=True, initial=np.inf)  # the smallest score of a row is its reference
    own = float(gaps[np.arange(len(labels)), labels].sum())
    found = [float(np.log(np.exp(-gaps / T).sum(axis=1)).sum()) + own / T for T in temperatures.tolist()]
    return np.array(found)


def _usable(scores: FloatArray, labels: npt.NDArray[np.intp]) -> tuple[FloatArray, npt.NDArray[np.intp]]:
    usable = np.isfinite(scores[np.arange(len(scores)), labels])
    return scores[usable], labels[usable]

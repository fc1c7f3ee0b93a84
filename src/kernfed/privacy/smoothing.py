"""Smoothing of noisy rows, and rows fabricated from them (SFM Definition 6, SFM 3.8.2; DP-KAHM Definitions 13-14).

Both papers use one smoother, ``S(X) = H' X`` with ``H = (K + lambda I)^-1 K`` of a machine fitted on X itself. It looks
at noisy rows only, so it costs no privacy. How often to apply it must not be decided by looking at the raw rows, as the
papers do: that choice is an output too, and was measured to break the stated delta. The default decides from the noisy
rows alone, by the coupled bootstrap (Oliveira, Lei and Tibshirani 2021).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_count, check_number, check_rows
from kernfed.base.random import generator
from kernfed.base.threads import single_blas_thread
from kernfed.errors import InputError
from kernfed.kahm.choice import split_rows
from kernfed.kahm.machine import EXTRA_ROWS, explicit_images, fit_machine
from kernfed.kahm.spectrum import check_subspace_dim

#: Smoothing steps that are tried before the best number is taken.
MAX_STEPS = 10
#: How the coupled bootstrap divides its noise: the first half gets this share more, the second is independent of it.
_COUPLING = 0.5

Rule = str | int


@dataclass(frozen=True)
class Smoothed:
    """Rows (N, p) after ``steps`` (one number per part) smoothing steps; ``private`` is False under the oracle rule."""

    values: FloatArray
    steps: tuple[int, ...]
    private: bool


def smooth_once(rows: FloatArray, subspace_dim: int | None = None) -> FloatArray:
    """``S(X) = H' X = X - lambda (K + lambda I)^-1 X`` of SFM (133), DP-KAHM (81), for rows (N, p)."""
    machine = fit_machine(rows, subspace_dim=subspace_dim)
    layer = machine.layers[0]
    if machine.subspace_dim == 0:  # K is all ones, so S(X) is the mean, shrunk
        count = len(rows)
        return np.repeat(machine.mean[None] * (count / (count + layer.regularization)), count, axis=0)
    inner = layer.image[:-EXTRA_ROWS].T  # R L
    solved = inner @ machine.directions if machine.spanning else inner
    solved = solved + np.outer(layer.image[-3], machine.mean)  # R X, as X = 1 mean' + L
    return np.asarray(rows - layer.regularization * solved)


def modelling_error(rows: FloatArray, subspace_dim: int | None = None) -> float:
    """Sum of distances between rows and their images, DP-KAHM (88); smoothing lowers it, DP-KAHM Theorem 6 (86)."""
    machine = fit_machine(rows, subspace_dim=subspace_dim)
    return float(np.sqrt(explicit_images(machine, rows).squared_distance).sum())


def smooth(
    values: npt.ArrayLike,
    *,
    noise: float,
    steps: Rule = "coupled_bootstrap",
    clean: npt.ArrayLike | None = None,
    subspace_dim: int | str = "auto",
    batch_size: int = 1000,
    seed: int = 0,
) -> Smoothed:
    """Smooth noisy rows ``values`` (N, p) whose elements carry noise of standard deviation ``noise``.

    ``steps`` is a number, ``"coupled_bootstrap"``, or ``"oracle"``: the rule of SFM (145), which compares with the
    ``clean`` rows and whose result is not private. Rows are divided at random into parts of about ``batch_size``.
    """
    rows, raw = _check(values, noise, steps, clean, ("coupled_bootstrap", "oracle"))
    dim = check_subspace_dim(subspace_dim)

    def choose(part: npt.NDArray[np.intp], number: int) -> tuple[FloatArray, int]:
        if isinstance(steps, int):
            return _repeat(rows[part], steps, dim), steps
        if raw is not None:
            return _best(rows[part], lambda smoothed: float(np.linalg.norm(smoothed - raw[part])), dim, first=1)
        count = _coupled_steps(rows[part], noise, dim, seed, number)
        return _repeat(rows[part], count, dim), count

    return _by_parts(rows, batch_size, seed, choose, private=raw is None)


def fabricate(
    values: npt.ArrayLike,
    *,
    noise: float,
    steps: Rule = "coupled_bootstrap",
    clean: npt.ArrayLike | None = None,
    subspace_dim: int | str = "auto",
    batch_size: int = 1000,
    seed: int = 0,
) -> Smoothed:
    """Fabricated rows of DP-KAHM Definition 14: smoothed, then mapped once onto the affine hull of themselves.

    ``steps`` as in ``smooth``; here ``"oracle"`` is DP-KAHM (92), which smooths until the modelling error is no larger
    than that of the ``clean`` rows. The result is a table to save and use elsewhere.
    """
    rows, raw = _check(values, noise, steps, clean, ("coupled_bootstrap", "oracle"))
    dim = check_subspace_dim(subspace_dim)

    def choose(part: npt.NDArray[np.intp], number: int) -> tuple[FloatArray, int]:
        if isinstance(steps, int):
            count = steps
        elif raw is not None:
            count = _steps_to_error(rows[part], modelling_error(raw[part], dim), dim)
        else:
            count = _coupled_steps(rows[part], noise, dim, seed, number)
        smoothed = _repeat(rows[part], count, dim)
        return explicit_images(fit_machine(smoothed, subspace_dim=dim), smoothed).image, count

    return _by_parts(rows, batch_size, seed, choose, private=raw is None)


def _check(
    values: npt.ArrayLike, noise: float, steps: Rule, clean: npt.ArrayLike | None, rules: tuple[str, ...]
) -> tuple[FloatArray, FloatArray | None]:
    rows = check_rows(values, "values").astype(np.float64)
    check_number(noise, "noise", at_least=0)
    if isinstance(steps, str):
        if steps not in rules:
            raise InputError(f"steps must be a number or one of {', '.join(map(repr, rules))}, got {steps!r}")
    else:
        check_count(steps, "steps", at_least=0)
    if (steps == "oracle") != (clean is not None):
        raise InputError("the rule 'oracle' needs clean=, the raw rows, and no other rule may see them")
    raw = None if clean is None else check_rows(clean, "clean", width=rows.shape[1]).astype(np.float64)
    if raw is not None and len(raw) != len(rows):
        raise InputError(f"clean must have {len(rows)} rows as values has, got {len(raw)}")
    return rows, raw


def _by_parts(
    rows: FloatArray, batch_size: int, seed: int, choose: Callable[..., tuple[FloatArray, int]], *, private: bool
) -> Smoothed:
    parts = split_rows(rows, check_count(batch_size, "batch_size"), "random", generator(seed, "smoothing parts"))
    values = np.empty_like(rows)
    counts = []
    with single_blas_thread():
        for number, part in enumerate(parts):
            values[part], count = choose(part, number)
            counts.append(count)
    return Smoothed(values, tuple(counts), private)


def _repeat(rows: FloatArray, steps: int, dim: int | None) -> FloatArray:
    for _ in range(steps):
        rows = smooth_once(rows, dim)
    return rows


def _best(
    rows: FloatArray, loss: Callable[[FloatArray], float], dim: int | None, *, first: int
) -> tuple[FloatArray, int]:
    """Rows after the number of steps, from ``first`` on, at which ``loss`` stops falling."""
    current = _repeat(rows, first, dim)
    value, steps = loss(current), first
    while steps < MAX_STEPS:
        following = smooth_once(current, dim)
        next_value = loss(following)
        if next_value >= value:
            break
        current, value, steps = following, next_value, steps + 1
    return current, steps


def _coupled_steps(rows: FloatArray, noise: float, dim: int | None, seed: int, number: int) -> int:
    """Steps that predict an independent copy best: A = X + sqrt(a) w is smoothed, B = X - w / sqrt(a) is compared.

    For Gaussian noise of the same variance A and B are independent given the clean rows, so the mean of |S^m(A) - B|^2
    is the error of S^m up to a constant that does not depend on m.
    """
    drawn = noise * generator(seed, "coupled bootstrap", str(number)).standard_normal(rows.shape)
    first, second = rows + np.sqrt(_COUPLING) * drawn, rows - drawn / np.sqrt(_COUPLING)
    _, steps = _best(first, lambda smoothed: float(np.square(smoothed - second).sum()), dim, first=0)
    return steps


def _steps_to_error(rows: FloatArray, target: float, dim: int | None) -> int:
    steps = 0
    while steps < MAX_STEPS and modelling_error(rows, dim) > target:
        rows, steps = smooth_once(rows, dim), steps + 1
    return steps

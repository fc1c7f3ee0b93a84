"""Public bases: directions onto which rows are projected before noise, chosen without looking at any data.

Fewer dimensions mean less noise in total. Low frequencies hold most of an image and nothing about whose it is.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # its parts are loaded when they are used

from kernfed.base.checks import check_choice, check_count
from kernfed.base.random import generator
from kernfed.errors import InputError
from kernfed.privacy.limits import check_basis, check_seed
from kernfed.privacy.noise import Floats

BASES = ("random", "dct")


def public_basis(
    basis: str | npt.ArrayLike, width: int, dimension: int, *, seed: int = 0, shape: tuple[int, ...] | None = None
) -> Floats:
    """Orthonormal columns (width, dimension).

    ``"random"``: uniform on all subspaces, from ``seed``. ``"dct"``: cosines of the lowest frequencies on a grid of
    ``shape``; without one a square if ``width`` is a square number, else a line. A matrix (width, dimension) with
    orthonormal columns is taken as it is: that it is public, the caller declares.

    >>> public_basis("dct", 4, 1).round(3).ravel().tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    check_count(dimension, "dimension", at_most=width)
    if not isinstance(basis, str):
        return _fitting_basis(basis, width, dimension)
    check_choice(basis, "basis", BASES)
    if basis == "random":
        return _random_basis(width, dimension, check_seed(seed))
    return _cosine_basis(_check_shape(shape, width), dimension)


def _fitting_basis(basis: npt.ArrayLike, width: int, dimension: int) -> Floats:
    if np.shape(basis) != (width, dimension):
        raise InputError(f"basis must have shape {(width, dimension)} (columns of X, dimension), got {np.shape(basis)}")
    return check_basis(basis)


def check_shape(shape: Any) -> tuple[int, ...] | None:
    """A shape of one or more axes as a tuple, or None."""
    if shape is None:
        return None
    if not isinstance(shape, (tuple, list)) or not shape:
        raise InputError(f"shape must be a tuple such as (28, 28), got {shape!r}")
    return tuple(check_count(side, "shape") for side in shape)


def _check_shape(shape: Any, width: int) -> tuple[int, ...]:
    sides = check_shape(shape)
    if sides is None:
        side = math.isqrt(width)
        return (side, side) if side**2 == width else (width,)
    if math.prod(sides) != width:
        raise InputError(f"shape must hold the {width} columns of X, got {sides}")
    return sides


@lru_cache(maxsize=8)
def _random_basis(width: int, dimension: int, seed: int) -> Floats:
    normals = generator(seed, "privacy", "basis").standard_normal((dimension, width)).T
    basis, upper = np.linalg.qr(normals)
    # With the signs of the diagonal the factorisation is unique, so every machine has the same basis, to rounding.
    return _frozen(basis * np.where(np.diag(upper) < 0, -1.0, 1.0))


@lru_cache(maxsize=8)
def _cosine_basis(shape: tuple[int, ...], dimension: int) -> Floats:
    frequencies = np.indices(shape).reshape(len(shape), -1)
    # In units of each axis's highest frequency, by length, then by index.
    squared = np.square(frequencies / np.array(shape)[:, None]).sum(axis=0).round(12)
    lowest = np.argsort(squared, kind="stable")[:dimension]
    axes = [scipy.fft.idct(np.eye(side), axis=0, norm="ortho") for side in shape]
    columns = np.ones((1, dimension))
    for axis, index in zip(axes, frequencies[:, lowest], strict=True):
        columns = (columns[:, None, :] * axis[None, :, index]).reshape(-1, dimension)
    return _frozen(columns)


def _frozen(matrix: Floats) -> Floats:
    matrix.setflags(write=False)
    return matrix

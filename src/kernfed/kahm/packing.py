"""Machines as a few flat arrays, for files, stores and messages."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.errors import InputError
from kernfed.kahm.machine import EXTRA_ROWS, Layer, Machine
from kernfed.kahm.spectrum import MAX_SUBSPACE_DIM, spans

Arrays = dict[str, npt.NDArray[Any]]


def pack_machines(machines: Sequence[Machine]) -> Arrays:
    """Arrays from which ``unpack_machines`` makes the same machines, to the bit.

    ``shapes`` (M, 5): rows, dimension, directions, layers, spanning; the others are the machines' arrays end to end.
    """
    layers = [layer for machine in machines for layer in machine.layers]
    shapes = [(m.n_rows, m.subspace_dim, m.directions.shape[0], len(m.layers), int(m.spanning)) for m in machines]
    return {
        "shapes": np.array(shapes, dtype=np.int64).reshape(-1, 5),
        "mean": np.stack([m.mean for m in machines]),
        "directions": _flat([m.directions for m in machines]),
        "scores": _flat([m.scores for m in machines]),
        "exponent": _flat([layer.exponent for layer in layers]),
        "image": _flat([layer.image for layer in layers]),
        "regularization": np.array([layer.regularization for layer in layers]),
    }


def machine_size(rows: int, width: int, layers: int, subspace_dim: int | None) -> int:
    """How many numbers a machine of ``rows`` rows holds at most."""
    dim = min(MAX_SUBSPACE_DIM if subspace_dim is None else subspace_dim, width, rows - 1)
    spanning = spans(rows, width)
    directions, held = (rows - 1, rows - 1) if spanning else (dim, width)
    depth = max(1, min(layers, dim))
    per_layer = sum((dim - level + 1) * rows for level in range(depth)) + depth * (held + EXTRA_ROWS) * rows
    return width + directions * width + rows * dim + per_layer


def unpack_machines(arrays: Mapping[str, npt.NDArray[Any]]) -> list[Machine]:
    """Machines from ``pack_machines``; arrays that do not fit together raise ``ValueError``."""
    shapes, means = arrays["shapes"], arrays["mean"]
    if shapes.ndim != 2 or shapes.shape[1] != 5 or means.ndim != 2 or len(means) != len(shapes) or (shapes < 0).any():
        raise InputError(f"machines need shapes (M, 5) and means (M, p), got {shapes.shape} and {means.shape}")
    if shapes.dtype != np.int64 or means.dtype != np.float64:
        raise InputError(f"shapes must be int64 and means float64, got {shapes.dtype} and {means.dtype}")
    take = {name: _Reader(name, arrays[name]) for name in ("directions", "scores", "exponent", "image")}
    if len({arrays[name].dtype for name in take}) > 1:
        raise InputError("directions, scores, exponent and image must have one dtype, got several")
    levels = _levels(arrays["regularization"], sum(shapes[:, 3].tolist()))
    width = means.shape[1]
    machines = []
    for (rows, dim, count, depth, spanning), mean in zip(shapes.tolist(), means, strict=True):
        held = (count if spanning else width) + EXTRA_ROWS
        if depth < 1 or rows < 1 or depth > max(dim, 1) or dim > count or spanning > 1 or not width:
            raise InputError(f"a machine has {rows} rows, {dim} of {count} dimensions and {depth} layers")
        directions, scores = take["directions"](count, width), take["scores"](rows, dim)
        layers = tuple(
            Layer(take["exponent"](rows, dim - level + 1), take["image"](held, rows), float(next(levels)))
            for level in range(depth)
        )
        machines.append(Machine(mean, directions, bool(spanning), scores, layers))
    for reader in take.values():
        reader.finish()
    return machines


def _levels(regularization: npt.NDArray[Any], layers: int) -> Iterator[float]:
    """Regularisation of every layer, in order."""
    if regularization.shape != (layers,) or regularization.dtype != np.float64 or (regularization < 0).any():
        raise InputError(
            f"regularization must be a number of at least 0 for each of {layers} layers, got {regularization.dtype} "
            f"of {regularization.shape}"
        )
    return iter(regularization.tolist())


class _Reader:
    """Takes matrices from a flat array, in order and exactly."""

    def __init__(self, name: str, flat: npt.NDArray[Any]) -> None:
        if flat.ndim != 1 or flat.dtype not in (np.float32, np.float64):
            raise InputError(f"{name} must be a flat array of floats, got shape {flat.shape} of {flat.dtype}")
        self._name, self._flat, self._place = name, flat, 0

    def __call__(self, rows: int, columns: int) -> npt.NDArray[Any]:
        end = self._place + rows * columns
        if end > self._flat.size:
            raise InputError(f"{self._name} ends early: {end} numbers needed, {self._flat.size} there")
        matrix = self._flat[self._place : end].reshape(rows, columns)
        self._place = end
        return matrix

    def finish(self) -> None:
        if self._place != self._flat.size:
            raise InputError(f"{self._name} has {self._flat.size - self._place} numbers too many")


def _flat(matrices: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate([matrix.ravel() for matrix in matrices])

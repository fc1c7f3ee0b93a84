"""Machines padded to one shape and scored together on a block of queries.

The orientation is (machine, coordinate, query). The directions of all machines of a tile are stacked into one tall
matrix, so that a block of queries meets them in one product; kernel values and images are one batched product each
per layer, with queries along the last, contiguous axis.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernfed._validation import FloatArray
from kernfed.kahm.machine import EXTRA_ROWS, FALLBACK_RATIO, Layer, Machine

#: Rows of all machines of a tile together: large enough for an efficient product, small enough for the cache.
TILE_ROWS = 1024
#: Padding may make a tile this much larger than its machines.
PADDING = 1.15
#: Tiles up to this many padded rows are shared whatever the sizes: another tile would cost more than the padding.
SMALL_ROWS = 256


@dataclass(frozen=True)
class QueryBlock:
    """Queries in columns, centred at the bank's centre, with a last row of ones.

    columns : (p + 1, W) in the bank's dtype; squares : (W,) squared lengths of the centred queries, in float64;
    centred : (W, p) the same queries in float64, and centre (p,) what was taken off them.
    """

    columns: FloatArray
    squares: FloatArray
    centred: FloatArray
    centre: FloatArray

    @property
    def raw_squares(self) -> FloatArray:
        """Squared lengths (W,) of the queries themselves."""
        raw = self.centred + self.centre
        squares: FloatArray = np.einsum("ij,ij->i", raw, raw)
        return squares


@dataclass(frozen=True)
class TileLayer:
    """``Layer`` of S machines: exponent (S, N, n + 1), image (S, r + EXTRA_ROWS, N)."""

    exponent: FloatArray
    image: FloatArray


@dataclass(frozen=True)
class Tile:
    """S machines padded to N rows, n dimensions, k directions and r image coordinates.

    basis : (S * (k + 1), p + 1). Per machine, row 0 maps a query block to ``|y - mean|^2 - |y|^2`` and the others to
        its principal coordinates (y centred at the bank's centre; the last column holds what is constant).
    spanning : whether images live in the k coordinates of the machine's directions (r = k) or in all p (r = p).
    offsets : (S, p, 1) mean minus centre where images live in all p coordinates, else (S, 0, 1).
    turn : (S, k, p) directions that lead from images in all p coordinates to principal coordinates, which the next
        layer takes; None for machines of one layer and for spanning ones, whose images are principal coordinates.
    mean_squares : (S,) squared norm of the raw mean; ``magnitudes`` (S,): of the mean as the bank sees it.
    members : (S,) positions of the machines in the bank.
    """

    basis: FloatArray
    spanning: bool
    offsets: FloatArray
    turn: FloatArray | None
    layers: tuple[TileLayer, ...]
    mean_squares: FloatArray
    magnitudes: FloatArray
    members: npt.NDArray[np.intp]

    @property
    def image_size(self) -> int:
        """How many numbers the image matrices hold."""
        return sum(layer.image.size for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored arrays."""
        arrays = [self.basis, self.offsets, self.mean_squares, self.magnitudes, self.members]
        arrays += [array for layer in self.layers for array in (layer.exponent, layer.image)]
        return int(sum(array.nbytes for array in arrays)) + (self.turn.nbytes if self.turn is not None else 0)


@dataclass(frozen=True)
class TileResult:
    """Per machine and query (S, W), float64: squared distance, squared image norm, and whether to look again."""

    squared_distance: FloatArray
    squared_image: FloatArray | None
    doubtful: npt.NDArray[np.bool_]


def group_machines(machines: Sequence[Machine]) -> Iterator[list[int]]:
    """Positions of machines that share a tile, tile by tile; every machine is in one.

    They are of one kind, and padded they have at most ``TILE_ROWS`` rows together (a larger machine is alone). Beyond
    ``SMALL_ROWS`` they are also of similar size: padding adds at most the share that ``PADDING`` allows.
    """
    order = sorted(range(len(machines)), key=lambda i: (*_kind(machines[i]), machines[i].n_rows, i))
    group: list[int] = []
    for position in order:
        machine = machines[position]
        if group and not _fits(group, machines, machine):
            yield group
            group = []
        group.append(position)
    if group:
        yield group


def _kind(machine: Machine) -> tuple[bool, int]:
    return machine.spanning, len(machine.layers)


def _fits(group: list[int], machines: Sequence[Machine], machine: Machine) -> bool:
    if _kind(machines[group[0]]) != _kind(machine) or (len(group) + 1) * machine.n_rows > TILE_ROWS:
        return False
    # Machines come by rising size, so the newcomer sets the padded size.
    rows = sum(machines[i].n_rows for i in group) + machine.n_rows
    return (len(group) + 1) * machine.n_rows <= max(PADDING * rows, SMALL_ROWS)


def build_tile(machines: Sequence[Machine], members: Sequence[int], centre: FloatArray) -> Tile:
    """Tile of the machines at positions ``members``, for queries centred at ``centre`` (p,)."""
    chosen = [machines[i] for i in members]
    kind = chosen[0].directions.dtype
    width, spanning = chosen[0].width, chosen[0].spanning
    directions = max(machine.directions.shape[0] for machine in chosen)
    means = np.stack([machine.mean - centre for machine in chosen])
    basis = np.zeros((len(chosen), directions + 1, width + 1), dtype=kind)
    for slot, machine in enumerate(chosen):
        count = machine.directions.shape[0]
        basis[slot, 0, :-1], basis[slot, 0, -1] = -2 * means[slot], means[slot] @ means[slot]
        basis[slot, 1 : count + 1, :-1] = machine.directions
        basis[slot, 1 : count + 1, -1] = -(machine.directions.astype(np.float64) @ means[slot])
    deep = len(chosen[0].layers) > 1
    layers = tuple(
        _build_layer([machine.layers[level] for machine in chosen], kind) for level in range(len(chosen[0].layers))
    )
    return Tile(
        basis=basis.reshape(-1, width + 1),
        spanning=spanning,
        offsets=np.zeros((len(chosen), 0, 1), dtype=kind) if spanning else means[:, :, None].astype(kind),
        turn=basis[:, 1:, :-1].copy() if deep and not spanning else None,
        layers=layers,
        mean_squares=np.array([machine.mean @ machine.mean for machine in chosen]),
        magnitudes=np.einsum("ij,ij->i", means, means),
        members=np.asarray(members, dtype=np.intp),
    )


def _build_layer(layers: Sequence[Layer], kind: np.dtype[np.floating[npt.NBitBase]]) -> TileLayer:
    rows = max(layer.exponent.shape[0] for layer in layers)
    dims = max(layer.exponent.shape[1] for layer in layers)
    coordinates = max(layer.image.shape[0] for layer in layers) - EXTRA_ROWS
    exponent = np.zeros((len(layers), rows, dims), dtype=kind)
    exponent[:, :, 0] = np.finfo(kind).min / 4  # a padded row has kernel value zero
    image = np.zeros((len(layers), coordinates + EXTRA_ROWS, rows), dtype=kind)
    for slot, layer in enumerate(layers):
        count, own = layer.exponent.shape
        exponent[slot, :count, :own] = layer.exponent
        held = layer.image.shape[0] - EXTRA_ROWS
        image[slot, :held, :count] = layer.image[:held]
        image[slot, coordinates:, :count] = layer.image[held:]
    return TileLayer(exponent, image)


def score_tile(tile: Tile, block: QueryBlock, angle: bool) -> TileResult:
    """Squared distances, and squared image norms where ``angle`` asks for them, of the best layer of each machine."""
    slots, queries = len(tile.members), block.columns.shape[1]
    encoded = (tile.basis @ block.columns).reshape(slots, -1, queries)
    centred = block.squares + encoded[:, 0].astype(np.float64)  # |y - mean|^2
    encoded[:, 0] = 1
    if tile.spanning:
        target = encoded[:, 1:]
        outside = np.maximum(centred - np.einsum("srw,srw->sw", target, target), 0.0)
    else:
        target = block.columns[:-1] - tile.offsets
        outside = np.zeros(1)
    best = np.full((slots, queries), np.inf)
    norms = np.zeros((slots, queries)) if angle else None
    doubtful = np.zeros((slots, queries), dtype=bool)
    coordinates: FloatArray = encoded
    for level, layer in enumerate(tile.layers):
        image, doubt, along_mean = _image(layer, coordinates)
        doubtful |= doubt
        if level + 1 < len(tile.layers):
            coordinates = _next_coordinates(tile, image)
        squared = np.einsum("srw,srw->sw", image, image, dtype=np.float64) if angle else None
        image -= target
        distance = outside + np.einsum("srw,srw->sw", image, image)
        if norms is not None and squared is not None:
            squared += tile.mean_squares[:, None] + 2 * along_mean
            norms = np.where(distance < best, squared, norms)
        best = np.minimum(best, distance)
    # Digits are lost where the distance is small beside the numbers it came from.
    small = np.sqrt(np.finfo(tile.basis.dtype).eps)
    doubtful |= best < small * np.maximum(block.squares, tile.magnitudes[:, None])
    return TileResult(best, norms, doubtful)


def _image(layer: TileLayer, coordinates: FloatArray) -> tuple[FloatArray, npt.NDArray[np.bool_], FloatArray]:
    """Image coordinates (S, r, W), where the sum of memberships may vanish (S, W), and mean' image (S, W)."""
    kernel = np.matmul(layer.exponent, coordinates[:, : layer.exponent.shape[2]])
    kernel -= kernel.max(axis=1, keepdims=True)
    np.exp(kernel, out=kernel)
    product = np.matmul(layer.image, kernel)
    total, bound, along_mean = product[:, -3], product[:, -2], product[:, -1]
    doubt = total <= FALLBACK_RATIO * bound
    reciprocal = 1 / np.where(doubt, 1, total)
    image = product[:, :-EXTRA_ROWS]
    image *= reciprocal[:, None]
    return image, doubt, along_mean.astype(np.float64) * reciprocal


def _next_coordinates(tile: Tile, image: FloatArray) -> FloatArray:
    """``[1, t]`` (S, k + 1, W) of images, for the next layer, which reads as many of t as it has dimensions."""
    inner = image if tile.turn is None else np.matmul(tile.turn, image)
    ones = np.ones((inner.shape[0], 1, inner.shape[2]), dtype=inner.dtype)
    return np.concatenate([ones, inner], axis=1)

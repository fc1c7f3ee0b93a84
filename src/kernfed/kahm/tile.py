"""Machines padded to one shape and scored together on a block of queries.

The orientation is (machine, tile of queries, query, coordinate), with coordinates along the last, contiguous axis. The
directions of all machines of a tile stand side by side in one wide matrix, so that tiles of queries meet them in one
product; kernel values and images are one batched product each per layer. Every product is one of ``TILE`` queries, and
every sum is one along a row: what else is in the block changes no bit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.kahm.machine import EXTRA_ROWS, FALLBACK_RATIO, Layer, Machine
from kernfed.kahm.products import TILE, Factor

#: Rows of all machines of a tile together: large enough for an efficient product, small enough for the cache.
TILE_ROWS = 1024
#: Padding may make a tile this much larger than its machines.
PADDING = 1.15
#: Tiles up to this many padded rows are shared whatever the sizes: another tile would cost more than the padding.
SMALL_ROWS = 256


@dataclass(frozen=True)
class QueryBlock:
    """Queries in tiles, centred at the bank's centre, with a last column of ones; W = T * TILE, padding included.

    rows : (T, TILE, p + 1) in the bank's dtype; squares : (W,) squared lengths of the centred queries, in float64;
    centred : (W, p) the same queries in float64, and centre (p,) what was taken off them.
    """

    rows: FloatArray
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
    """``Layer`` of S machines, as right factors: exponent (S, n + 1, N), image (S, N, r + EXTRA_ROWS)."""

    dims: int
    exponent: Factor
    image: Factor


@dataclass(frozen=True)
class Tile:
    """S machines padded to N rows, n dimensions, k directions and r image coordinates.

    basis : (1, p + 1, S * (k + 1)). Per machine, column 0 maps a query to ``|y - mean|^2 - |y|^2`` and the others to
        its principal coordinates (y centred at the bank's centre; the last row holds what is constant).
    spanning : whether images live in the k coordinates of the machine's directions (r = k) or in all p (r = p).
    offsets : (S, 1, 1, p) mean minus centre where images live in all p coordinates, else (S, 1, 1, 0).
    turn : (S, p, k) directions that lead from images in all p coordinates to principal coordinates, which the next
        layer takes; None for machines of one layer and for spanning ones, whose images are principal coordinates.
    mean_squares : (S,) squared norm of the raw mean; ``magnitudes`` (S,): of the mean as the bank sees it.
    members : (S,) positions of the machines in the bank.
    """

    basis: Factor
    spanning: bool
    offsets: FloatArray
    turn: Factor | None
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
        arrays = [self.offsets, self.mean_squares, self.magnitudes, self.members]
        factors = [self.basis, *(factor for layer in self.layers for factor in (layer.exponent, layer.image))]
        factors += [self.turn] if self.turn is not None else []
        return sum(array.nbytes for array in arrays) + sum(factor.nbytes for factor in factors)


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
    basis = np.zeros((width + 1, len(chosen), directions + 1), dtype=kind)
    for slot, machine in enumerate(chosen):
        count = machine.directions.shape[0]
        basis[:-1, slot, 0], basis[-1, slot, 0] = -2 * means[slot], means[slot] @ means[slot]
        basis[:-1, slot, 1 : count + 1] = machine.directions.T
        basis[-1, slot, 1 : count + 1] = -(machine.directions.astype(np.float64) @ means[slot])
    deep = len(chosen[0].layers) > 1
    layers = tuple(
        _build_layer([machine.layers[level] for machine in chosen], kind) for level in range(len(chosen[0].layers))
    )
    return Tile(
        basis=Factor.cut(basis.reshape(1, width + 1, -1)),
        spanning=spanning,
        offsets=np.zeros((len(chosen), 1, 1, 0), dtype=kind) if spanning else means[:, None, None].astype(kind),
        turn=Factor.cut(basis[:-1, :, 1:].transpose(1, 0, 2)) if deep and not spanning else None,
        layers=layers,
        mean_squares=np.array([machine.mean @ machine.mean for machine in chosen]),
        magnitudes=np.einsum("ij,ij->i", means, means),
        members=np.asarray(members, dtype=np.intp),
    )


def _build_layer(layers: Sequence[Layer], kind: np.dtype[np.floating[npt.NBitBase]]) -> TileLayer:
    rows = max(layer.exponent.shape[0] for layer in layers)
    dims = max(layer.exponent.shape[1] for layer in layers)
    coordinates = max(layer.image.shape[0] for layer in layers) - EXTRA_ROWS
    exponent = np.zeros((len(layers), dims, rows), dtype=kind)
    exponent[:, 0] = np.finfo(kind).min / 4  # a padded row has kernel value zero
    image = np.zeros((len(layers), rows, coordinates + EXTRA_ROWS), dtype=kind)
    for slot, layer in enumerate(layers):
        count, own = layer.exponent.shape
        exponent[slot, :own, :count] = layer.exponent.T
        held = layer.image.shape[0] - EXTRA_ROWS
        image[slot, :count, :held] = layer.image[:held].T
        image[slot, :count, coordinates:] = layer.image[held:].T
    return TileLayer(dims, Factor.cut(exponent), Factor.cut(image))


def query_block(centred: FloatArray, squares: FloatArray, centre: FloatArray, kind: npt.DTypeLike) -> QueryBlock:
    """Block of ``centred`` queries (W, p), W a multiple of ``TILE``, with their squared lengths (W,)."""
    rows = np.ones((len(centred) // TILE, TILE, centred.shape[1] + 1), dtype=kind)
    rows[..., :-1] = centred.reshape(-1, TILE, centred.shape[1])
    return QueryBlock(rows, squares, centred, centre)


def score_tile(tile: Tile, block: QueryBlock, angle: bool) -> TileResult:
    """Squared distances, and squared image norms where ``angle`` asks for them, of the best layer of each machine."""
    slots = len(tile.members)
    # (T, TILE, S, k + 1), seen as (S, T, TILE, k + 1)
    encoded = tile.basis.after(block.rows[None]).reshape(*block.rows.shape[:2], slots, -1).transpose(2, 0, 1, 3)
    squares = block.squares.reshape(-1, TILE)
    centred = squares + encoded[..., 0].astype(np.float64)  # |y - mean|^2
    encoded[..., 0] = 1
    if tile.spanning:
        target = encoded[..., 1:]
        outside = np.maximum(centred - _squares(target), 0.0)
    else:
        target = block.rows[..., :-1] - tile.offsets
        outside = np.zeros(1)
    best = np.full(centred.shape, np.inf)
    norms = np.zeros(centred.shape) if angle else None
    doubtful = np.zeros(centred.shape, dtype=bool)
    coordinates: FloatArray = encoded
    for level, layer in enumerate(tile.layers):
        image, doubt, along_mean = _image(layer, coordinates)
        doubtful |= doubt
        if level + 1 < len(tile.layers):
            coordinates = _next_coordinates(tile, image)
        # Cast first: summed in another type on the way, a row would be cut where a buffer of numpy happens to end.
        squared = _squares(image.astype(np.float64, copy=False)) if angle else None
        image -= target
        distance = outside + _squares(image)
        if norms is not None and squared is not None:
            squared += tile.mean_squares[:, None, None] + 2 * along_mean
            norms = np.where(distance < best, squared, norms)
        best = np.minimum(best, distance)
    # Digits are lost where the distance is small beside the numbers it came from.
    small = np.sqrt(np.finfo(tile.basis.dtype).eps)
    doubtful |= best < small * np.maximum(squares, tile.magnitudes[:, None, None])
    return TileResult(
        best.reshape(slots, -1), norms.reshape(slots, -1) if norms is not None else None, doubtful.reshape(slots, -1)
    )


def _squares(rows: FloatArray) -> FloatArray:
    """Squared lengths (S, T, TILE) of rows (S, T, TILE, r)."""
    squares: FloatArray = np.einsum("stqr,stqr->stq", rows, rows)
    return squares


def _image(layer: TileLayer, coordinates: FloatArray) -> tuple[FloatArray, npt.NDArray[np.bool_], FloatArray]:
    """Image coordinates (S, T, TILE, r), where the sum of memberships may vanish (S, T, TILE), and mean' image."""
    kernel = layer.exponent.after(coordinates[..., : layer.dims])
    kernel -= kernel.max(axis=-1, keepdims=True)
    np.exp(kernel, out=kernel)
    product = layer.image.after(kernel)
    total, bound, along_mean = product[..., -3], product[..., -2], product[..., -1]
    doubt = total <= FALLBACK_RATIO * bound
    reciprocal = 1 / np.where(doubt, 1, total)
    image = product[..., :-EXTRA_ROWS]
    image *= reciprocal[..., None]
    return image, doubt, along_mean.astype(np.float64) * reciprocal


def _next_coordinates(tile: Tile, image: FloatArray) -> FloatArray:
    """``[1, t]`` (S, T, TILE, k + 1) of images, for the next layer, which reads as many of t as it has dimensions."""
    inner = image if tile.turn is None else tile.turn.after(image)
    ones = np.ones((*inner.shape[:-1], 1), dtype=inner.dtype)
    return np.concatenate([ones, inner], axis=-1)

"""Matrix products whose bits depend neither on the number of threads nor on how many queries are asked together.

Many machines are fitted side by side, each on one thread. One machine alone may use more: its products are cut into
fixed blocks, each computed on one thread, so that no bit depends on how many there are. Queries are multiplied in
tiles of a fixed number of rows, one call of BLAS each, always of the same shape: BLAS rounds otherwise for another.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray

#: Rows per tile: what one query costs at least, and as few as keep products of many queries near their peak rate.
TILE = 8
#: A matrix of more numbers is cut, so that BLAS may use the pieces as they lie instead of copying them for every tile.
_WHOLE = 2**16
#: Bytes in a row of a piece: a few registers, so that a single query reads the pieces from end to end.
_PIECE = 256
#: Multiplications of one call of BLAS at most: OpenBLAS has a kernel for small products, three times as fast as the
#: other one at tiles of 8 rows, and leaves it where M N K is above this.
_SMALL = 1_000_000
_BLOCK = 512
_GRAM_BLOCKS = 6


@dataclass(frozen=True)
class Factor:
    """S matrices (K, C) that tiles of rows are multiplied by.

    pieces : by columns, and for each the parts (S, 1, k, c) of it one below the other. The product with a tile is the
    sum over parts, from the first to the last.
    """

    pieces: tuple[tuple[FloatArray, ...], ...]

    @classmethod
    def cut(cls, matrices: FloatArray) -> "Factor":
        """The factor of ``matrices`` (S, K, C). Where it is cut depends on their shape and type alone."""
        _, length, columns = matrices.shape
        step = columns if length * columns <= _WHOLE else _PIECE // matrices.itemsize
        # Shorter parts rather than fewer columns: narrow pieces leave the registers of a wide core half empty.
        parts = max(1, -(-length // (_SMALL // (TILE * max(min(step, columns), 1)))))
        bounds = list(pairwise(length * part // parts for part in range(parts + 1)))
        return cls(
            tuple(
                tuple(matrices[:, None, top:bottom, start : start + step].copy() for top, bottom in bounds)
                for start in range(0, max(columns, 1), max(step, 1))
            )
        )

    @property
    def columns(self) -> int:
        """Number of columns C."""
        return sum(piece[0].shape[-1] for piece in self.pieces)

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return sum(part.size for piece in self.pieces for part in piece)

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        return sum(part.nbytes for piece in self.pieces for part in piece)

    @property
    def dtype(self) -> np.dtype[np.floating[npt.NBitBase]]:
        """Precision of its numbers."""
        return self.pieces[0][0].dtype

    def after(self, rows: FloatArray) -> FloatArray:
        """``rows @ matrix`` for each: tiles (S or 1, T, TILE, K) of rows give (S, T, TILE, C)."""
        product = np.empty((self.pieces[0][0].shape[0], *rows.shape[1:-1], self.columns), dtype=self.dtype)
        start = 0
        for piece in self.pieces:
            stop = start + piece[0].shape[-1]
            columns, top = product[..., start:stop], piece[0].shape[-2]
            np.matmul(rows[..., :top], piece[0], out=columns)
            for part in piece[1:]:
                bottom = top + part.shape[-2]
                columns += np.matmul(rows[..., top:bottom], part)
                top = bottom
            start = stop
        return product


def in_tiles(rows: FloatArray) -> FloatArray:
    """Rows (n, K) as tiles (T, TILE, K), the last one filled up with zeros."""
    count = -(-len(rows) // TILE)
    tiles = np.zeros((count, TILE, rows.shape[1]), dtype=rows.dtype)
    tiles.reshape(count * TILE, rows.shape[1])[: len(rows)] = rows
    return tiles


def multiply_rows(rows: FloatArray, matrix: FloatArray) -> FloatArray:
    """``rows @ matrix`` (n, C), tile by tile: no bit of a row depends on the others."""
    product = Factor.cut(matrix[None]).after(in_tiles(rows)[None])
    return product.reshape(-(-len(rows) // TILE) * TILE, matrix.shape[1])[: len(rows)]


def multiply(left: FloatArray, right: FloatArray, out: FloatArray, threads: int) -> None:
    """``out = left @ right`` in blocks of rows."""

    def part(start: int) -> None:
        np.matmul(left[start : start + _BLOCK], right, out=out[start : start + _BLOCK])

    _run(part, range(0, len(left), _BLOCK), threads)


def gram_matrix(rows: FloatArray, threads: int) -> FloatArray:
    """``rows @ rows.T`` (N, N): blocks on and below the diagonal, and their mirror images."""
    count = len(rows)
    gram = np.empty((count, count))
    cuts = np.linspace(0, count, _GRAM_BLOCKS + 1).astype(int)
    pieces = [slice(first, last) for first, last in pairwise(cuts.tolist())]

    def part(pair: tuple[slice, slice]) -> None:
        upper, lower = pair
        product = rows[lower] @ rows[upper].T
        gram[lower, upper] = product
        if upper != lower:
            gram[upper, lower] = product.T

    _run(part, [(upper, lower) for i, upper in enumerate(pieces) for lower in pieces[i:]], threads)
    return gram


def _run(part: Callable[..., None], pieces: Iterable[object], threads: int) -> None:
    if threads == 1:
        for piece in pieces:
            part(piece)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(part, pieces))

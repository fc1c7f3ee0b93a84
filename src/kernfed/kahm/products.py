"""Matrix products in blocks that do not depend on the number of threads, for a single large machine.

Many machines are fitted side by side, each on one thread. One machine alone may use more: its products are cut into
fixed blocks, each computed on one thread, so that no bit depends on how many there are.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from kernfed._validation import FloatArray

_BLOCK = 512
_GRAM_BLOCKS = 6


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

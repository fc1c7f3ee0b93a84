"""Random Fourier features of the Gaussian kernel, made from a seed (Rahimi and Recht 2007; KME (7)-(8)).

Sites that share the six numbers and words of a ``FourierFeatures`` share the map; no matrix travels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_choice, check_count
from kernfed.base.random import generator
from kernfed.errors import InputError
from kernfed.kernels._rows import BLOCK_ROWS, Float64Array, row_blocks, working_rows
from kernfed.kernels.gram import column_bandwidths

KINDS = ("phase", "paired")
SCALES = ("unbiased", "half")


@dataclass(frozen=True)
class FourierFeatures:
    """Map from rows (n, width) to features (n, n_components), for the kernel of ``gaussian_gram``.

    ``bandwidth``: a positive number or one per column (kept as a tuple). KME Table 1 draws frequencies on
    (x, y) from N(0, diag(I/(d+1), 1)): bandwidth ``(sqrt(d+1), ..., sqrt(d+1), 1)``.

    ``kind``, with frequencies W ~ N(0, 1/bandwidth^2):
        ``"phase"``   ``s cos(x W + b)``, b uniform on [0, 2 pi): one frequency per feature (KME, FedNewton)
        ``"paired"``  ``s [cos(x W), sin(x W)]``: one frequency per two features, so ``n_components`` is even.
        For this kernel the smaller variance (Sutherland and Schneider 2015); every row has the same norm

    ``scale``:
        ``"unbiased"``  s = sqrt(2/M): inner products are unbiased for the kernel (KME (7)). |row|^2 <= 2 for
        ``"phase"`` (the bound M = sqrt(2) of KME Algorithm 2, which omits s in print), 1 for ``"paired"``
        ``"half"``      s = 1/sqrt(M): unbiased for half the kernel (FedNewton, experimental settings). Ridge
        regression with ``"half"`` and regularisation a is ridge regression with ``"unbiased"`` and 2a

    The draws depend on ``seed`` and ``width`` only: standard normals, frequency by frequency, from the stream
    ``generator(seed, "fourier", "frequencies")``, divided by the bandwidth; phases from ``(seed, "fourier",
    "phases")``. So a larger map starts with the frequencies of a smaller one, whatever kind and bandwidth.

    ``dataclasses.asdict`` describes the map in plain values, for messages and files:

    >>> from dataclasses import asdict
    >>> features = FourierFeatures(width=2, n_components=4, bandwidth=[1.0, 3.0], seed=7)
    >>> asdict(features)["bandwidth"], FourierFeatures(**asdict(features)) == features
    ((1.0, 3.0), True)
    >>> features.transform([[0.5, 1.0]]).shape
    (1, 4)
    """

    width: int
    n_components: int
    bandwidth: float | Sequence[float] | npt.NDArray[np.floating[Any]] = 1.0
    seed: int = 0
    kind: str = "phase"
    scale: str = "unbiased"

    def __post_init__(self) -> None:
        width = check_count(self.width, "width")
        columns = column_bandwidths(self.bandwidth, width)
        checked = {
            "width": width,
            "n_components": check_count(self.n_components, "n_components"),
            "bandwidth": float(columns[0]) if np.ndim(self.bandwidth) == 0 else tuple(map(float, columns)),
            "seed": check_count(self.seed, "seed", at_least=0),
            "kind": check_choice(self.kind, "kind", KINDS),
            "scale": check_choice(self.scale, "scale", SCALES),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.kind == "paired" and self.n_components % 2:
            raise InputError(f"n_components must be even for kind 'paired', got {self.n_components}")

    def __getstate__(self) -> dict[str, Any]:
        """The six fields: copies and pickles draw their frequencies from the seed again."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    @cached_property
    def frequencies(self) -> Float64Array:
        """W (width, M) for ``"phase"``, (width, M/2) for ``"paired"``; read-only."""
        count = self.n_components // 2 if self.kind == "paired" else self.n_components
        normals = generator(self.seed, "fourier", "frequencies").standard_normal((count, self.width))
        with np.errstate(over="ignore"):  # a subnormal bandwidth: refused where rows meet the frequencies
            frequencies = np.ascontiguousarray(normals.T / column_bandwidths(self.bandwidth, self.width)[:, None])
        frequencies.setflags(write=False)
        return frequencies

    @cached_property
    def phases(self) -> Float64Array:
        """Phases b (M,) on [0, 2 pi) for ``"phase"``, empty for ``"paired"``; read-only."""
        count = 0 if self.kind == "paired" else self.n_components
        phases = generator(self.seed, "fourier", "phases").uniform(0.0, 2.0 * np.pi, count)
        phases.setflags(write=False)
        return phases

    @cached_property
    def _longest_frequency(self) -> float:
        """Largest sum over columns of |w|: no angle of rows with entries up to 1 is larger."""
        with np.errstate(over="ignore"):
            return float(np.abs(self.frequencies).sum(axis=0).max())

    def transform(self, X: npt.ArrayLike) -> FloatArray:
        """Features (n, n_components) of ``X`` (n, width), float32 for float32 rows and float64 otherwise.

        An entry is wrong by about the rounding error of the angle, eps |x| |w| (eps is 6e-8 in float32): rows
        far from the origin in units of the bandwidth deserve float64.
        """
        return self._transform(working_rows(X, width=self.width))

    def transform_blocks(self, X: npt.ArrayLike, block_rows: int = BLOCK_ROWS) -> Iterator[FloatArray]:
        """Features of consecutive blocks of at most ``block_rows`` rows, one block in memory at a time."""
        rows = working_rows(X, width=self.width)
        return (self._transform(rows[block]) for block in row_blocks(len(rows), block_rows))

    def _transform(self, rows: FloatArray) -> FloatArray:
        self._check_angles(rows)
        W = self.frequencies.astype(rows.dtype, copy=False)
        scale = rows.dtype.type(np.sqrt((2.0 if self.scale == "unbiased" else 1.0) / self.n_components))
        out = np.empty((len(rows), self.n_components), dtype=rows.dtype)
        angles = out[:, : W.shape[1]]
        np.matmul(rows, W, out=angles)
        if self.kind == "paired":
            np.sin(angles, out=out[:, W.shape[1] :])
        else:
            angles += self.phases.astype(rows.dtype, copy=False)
        np.cos(angles, out=angles)
        out *= scale
        return out

    def _check_angles(self, rows: FloatArray) -> None:
        """Refuse rows or frequencies so large that an angle would overflow and its cosine be NaN."""
        largest = float(max(1.0, rows.max(initial=0.0), -rows.min(initial=0.0)))
        bound = largest * self._longest_frequency
        if not bound < float(np.finfo(rows.dtype).max) / 2:
            raise InputError(f"angles x W must fit {rows.dtype}, got up to {bound:.3g}; rescale X or enlarge bandwidth")

"""Private kernel mean embeddings: the mean of paired random Fourier features with Gaussian noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import check_rows
from kernfed.errors import InputError
from kernfed.kernels.embedding import MeanEmbedding
from kernfed.kernels.features import FourierFeatures
from kernfed.privacy.accounting import Event
from kernfed.privacy.generator import NoiseGenerator, check_generator
from kernfed.privacy.ledger import Ledger
from kernfed.privacy.limits import check_features, saturate
from kernfed.privacy.noise import Floats
from kernfed.privacy.release import NUDGE, RecordMechanism, charge, only
from kernfed.privacy.sums import BITS, Budget, add_gaussian, unit_grid
from kernfed.promise import Guarantee


@dataclass(frozen=True, eq=False)
class EmbeddingRelease:
    """Noisy mean ``vector`` (D,) of the features of ``n`` rows; ``noise`` is its standard deviation in each number."""

    vector: Floats
    n: int
    noise: float
    element: Guarantee
    record: Guarantee
    private: bool
    events: tuple[Event, ...]

    @property
    def bias(self) -> float:
        """What the noise adds to the squared norm on average, D noise^2."""
        return len(self.vector) * self.noise**2

    @property
    def squared_norm(self) -> float:
        """``|v|^2`` of the noise-free mean, unbiased: it can be negative."""
        return float(self.vector @ self.vector) - self.bias

    def squared_distance(self, other: "EmbeddingRelease") -> float:
        """Squared distance of the two noise-free means, unbiased: it can be negative."""
        step = self.vector - other.vector
        return float(step @ step) - self.bias - other.bias

    def embedding(self) -> MeanEmbedding:
        """The release as kernfed keeps embeddings; its ``noise`` is the squared error from sampling and privacy.

        Paired features have norm 1, so ``Tr(Sigma)`` is ``1 - |v|^2`` times n/(n-1): no further release is needed.
        """
        if self.n < 2:
            raise InputError(f"the error of a mean needs at least 2 rows, got {self.n}")
        within = min(max(1.0 - self.squared_norm, 0.0), 1.0)
        spread = self.n * within + self.bias * self.n * (self.n - 1)
        return MeanEmbedding(float(self.n), float(self.n), self.vector, spread)


@dataclass(frozen=True)
class RecordEmbedding(RecordMechanism):
    """Mean of ``features`` over rows, (epsilon, delta) for a whole row: replacing one moves the mean by at most 2/n.

    Features must be paired cosines and sines, scaled without bias: every row has norm 1. (With random phases the bound
    would be 2 sqrt(2)/n.)
    """

    epsilon: float
    delta: float
    features: FourierFeatures

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)
        if not isinstance(self.features, FourierFeatures) or (self.features.kind, self.features.scale) != (
            "paired",
            "unbiased",
        ):
            raise InputError(
                "features must be FourierFeatures(kind='paired', scale='unbiased'), whose rows have norm 1"
            )
        check_features(self.features)

    @property
    def adjacency(self) -> str:
        """How neighbours differ in one record."""
        return "one row replaced by any other"

    def release(
        self,
        X: npt.ArrayLike,
        *,
        ledger: Ledger | None = None,
        generator: NoiseGenerator | None = None,
        ids: Sequence[Any] | npt.NDArray[Any] | None = None,
    ) -> EmbeddingRelease:
        """Noisy mean of the features of ``X`` (n, p)."""
        rows = check_rows(X, width=self.features.width)
        source = check_generator(generator)
        D, n = self.features.n_components, len(rows)
        event = Budget(self.epsilon, self.delta).event(D)
        note = f"RecordEmbedding({self.epsilon:g}, {self.delta:g}), {D} features"
        rows = only(rows, charge(ledger, (event,), rows, ids, source, note, together=True))
        blocks = self.features.transform_blocks(saturate(rows))
        total = sum((unit_grid(block, 1.0).sum(axis=0).astype(np.int64) for block in blocks), np.zeros(D, np.int64))
        vector = add_gaussian(total, 2.0, 2.0**BITS, event.mu, source) / n
        noise, promised = 2.0 / event.mu / n * NUDGE, self.guarantees(rows.shape[1])
        return EmbeddingRelease(vector, n, noise, *promised, source.private, (event,))

"""Kernel affine hull machines as objects to use: one, conditionally deep, wide.

>>> import numpy as np
>>> circle = np.stack([np.cos(np.arange(60)), np.sin(np.arange(60))], axis=1)
>>> machine = KAHM().fit(circle)
>>> machine.distance(np.array([[1.0, 0.0], [3.0, 0.0]])).round(2)
array([0.01, 1.18])
"""

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from kernfed.base.checks import FloatArray, check_choice, check_count, check_rows
from kernfed.base.random import generator
from kernfed.files import Savable
from kernfed.kahm.bank import Bank, fit_machines
from kernfed.kahm.choice import AUTO, candidates, hull_scaling, scaled, split_rows, usual
from kernfed.kahm.folding import MEASURES
from kernfed.kahm.machine import Machine, explicit_images
from kernfed.kahm.spectrum import DTYPES, check_subspace_dim
from kernfed.kernels.rows import Scaling


class _Hull(Savable, BaseEstimator):  # type: ignore[misc]
    """Queries answered by a bank of machines; subclasses decide which machines."""

    bank_: Bank
    batches_: list[npt.NDArray[np.intp]]
    scale: str | None
    scaling_: Scaling | None

    def _scaled(self, rows: FloatArray) -> FloatArray:
        """Training rows in the unit that ``scale`` asks for."""
        self.scaling_ = hull_scaling(rows, self.scale)
        return scaled(rows, self.scaling_)

    def _adopt(self, machines: list[Machine], batches: list[npt.NDArray[np.intp]], scaling: Scaling | None) -> Self:
        """Become the fitted model of ``machines``, whose rows were ``batches`` of the training rows, once scaled."""
        self.scaling_ = scaling
        self.bank_ = Bank.assemble(machines, [0] * len(machines), 1)
        self.batches_ = batches
        self.n_features_in_ = self.bank_.width
        self.n_samples_fit_ = sum(len(part) for part in batches)
        self._describe()
        return self

    def _describe(self) -> None:
        """Set the fitted attributes that show what was chosen: one value per machine."""
        machines = self.bank_.machines
        self.subspace_dim_: Any = np.array([machine.subspace_dim for machine in machines])
        self.regularization_: Any = np.array([machine.layers[0].regularization for machine in machines])
        self.encoding_: Any = [machine.directions[: machine.subspace_dim] for machine in machines]

    def _queries(self, Y: npt.ArrayLike) -> FloatArray:
        check_is_fitted(self, "bank_")
        return check_rows(Y, "Y", width=self.n_features_in_)

    def folding(self, Y: npt.ArrayLike, measure: str = "rms") -> FloatArray:
        """Space folding measure SFM (102) of queries Y (n, p): (n,), smaller is nearer. See ``MEASURES``."""
        queries = scaled(self._queries(Y), self.scaling_)
        values = self.bank_.scores(queries, check_choice(measure, "measure", MEASURES)).values[:, 0]
        return values * self._length if measure == "distance" else values

    @property
    def _length(self) -> float:
        """Length in the units of the input of what has length one for the machines, where all entries have one unit."""
        scaling = self.scaling_
        return 1.0 if scaling is None or scaling.kind == "columns" else scaling.spread[0] / scaling.unit

    def distance(self, Y: npt.ArrayLike) -> FloatArray:
        """Distance ``|y - A(y)|`` of DP-KAHM Definitions 2, 4, 6 (48), (53), (60) and GIKM Definition 2: (n,).

        In the units of the input; with ``scale="columns"``, where columns have several, in those of the scaled rows.
        """
        return self.folding(Y, "distance")

    def image(self, Y: npt.ArrayLike) -> FloatArray:
        """Image A(y) of DP-KAHM (33), (50), (55): (n, p), float64, in the units of the input."""
        image, _ = self._explicit(scaled(self._queries(Y), self.scaling_))
        return image if self.scaling_ is None else self.scaling_.restore(image)

    def memberships(self, Y: npt.ArrayLike) -> FloatArray:
        """Kernel-smoothed memberships h(y) of SFM (155): (n, N), float64.

        Of the answering layer and branch; zero for the rows of other branches. They do not sum to one, and far from
        the data they underflow to zero (the image does not).
        """
        _, memberships = self._explicit(scaled(self._queries(Y), self.scaling_))
        return memberships

    def fallback_share(self, Y: npt.ArrayLike) -> float:
        """Share of (query, machine) pairs whose memberships summed to nothing, so that kernel weights were used."""
        queries = scaled(self._queries(Y), self.scaling_)
        pairs = len(queries) * len(self.bank_.machines)
        return self.bank_.scores(queries, "distance").fallbacks / pairs

    def _explicit(self, queries: FloatArray) -> tuple[FloatArray, FloatArray]:
        image = np.empty((len(queries), self.n_features_in_))
        memberships = np.zeros((len(queries), self.n_samples_fit_))
        winners = self.bank_.scores(queries, "distance").winners[:, 0]
        for branch in np.unique(winners):
            rows = np.flatnonzero(winners == branch)
            explicit = explicit_images(self.bank_.machines[branch], queries[rows])
            image[rows] = explicit.image
            memberships[np.ix_(rows, self.batches_[branch])] = explicit.memberships
        return image, memberships


class KAHM(_Hull):
    """Kernel affine hull machine (DP-KAHM Definition 1, GIKM Definition 1, SFM Appendix A): a model of points.

    Parameters
    ----------
    subspace_dim : "auto" or int
        Dimension n of the encoding; "auto" is SFM Algorithm 1 (at most 20). A given number may be larger and is
        lowered until every coordinate spans at least 1e-3.
    dtype : "float64" or "float32"
        Precision of storage and scoring; fitting is always in float64.
    scale : "auto" or "entries", "columns", None
        The unit in which the machine sees its rows, which its regulariser depends on. "auto": all entries by one
        constant, so that distances and images are those of the input whatever its unit; "columns": each column to the
        same spread; None: rows as they are, as in the papers.

    Attributes
    ----------
    scaling_ : how rows and queries are brought to one unit, or None
    subspace_dim_ : int, the dimension used
    regularization_ : float, lambda of SFM (149)
    encoding_ : (n, p) matrix P of leading principal directions
    n_features_in_ : int
    """

    def __init__(self, subspace_dim: int | str = "auto", *, dtype: str = "float64", scale: str | None = AUTO) -> None:
        self.subspace_dim = subspace_dim
        self.dtype = dtype
        self.scale = scale

    def _layers(self) -> int:
        return 1

    def fit(self, X: npt.ArrayLike, y: None = None) -> Self:  # noqa: ARG002  scikit-learn's signature
        """Fit on rows X (N, p)."""
        rows = self._scaled(check_rows(X))
        machines = fit_machines(
            [rows],
            subspace_dim=check_subspace_dim(self.subspace_dim),
            layers=self._layers(),
            dtype=check_choice(self.dtype, "dtype", DTYPES),
        )
        return self._adopt(machines, [np.arange(len(rows))], self.scaling_)

    def _describe(self) -> None:
        super()._describe()
        self.subspace_dim_ = int(self.subspace_dim_[0])
        self.regularization_ = float(self.regularization_[0])
        self.encoding_ = self.encoding_[0]


class DeepKAHM(KAHM):
    """Conditionally deep machine (DP-KAHM Definition 3): KAHMs of dimension n, n-1, ... composed, best layer per query.

    ``layers`` is an upper limit: there are at most as many layers as dimensions.
    """

    def __init__(
        self,
        subspace_dim: int | str = "auto",
        layers: int = 5,
        *,
        dtype: str = "float64",
        scale: str | None = AUTO,
    ) -> None:
        super().__init__(subspace_dim, dtype=dtype, scale=scale)
        self.layers = layers

    def _layers(self) -> int:
        return check_count(self.layers, "layers")


class WideKAHM(_Hull):
    """Wide machine (DP-KAHM Definition 5): the rows divided into batches, a (deep) machine each, the nearest answers.

    Parameters
    ----------
    batch_size : rows per machine, about; ``round(N / batch_size)`` machines are made. "auto" is 1000: rows without
        labels say nothing about which division is better
    partition : "kmeans" (DP-KAHM (58)), "order" (SFM (120)) or "random"; "auto" is "kmeans"
    layers, subspace_dim, dtype : of each machine; scale : as in ``KAHM``
    random_state : int or None, seed of the division

    The fitted ``subspace_dim_``, ``regularization_`` and ``encoding_`` have one entry per machine.
    """

    def __init__(
        self,
        batch_size: int | str = AUTO,
        partition: str = AUTO,
        layers: int = 1,
        random_state: int | None = None,
        *,
        subspace_dim: int | str = "auto",
        dtype: str = "float64",
        n_jobs: int | None = None,
        scale: str | None = AUTO,
    ) -> None:
        self.batch_size = batch_size
        self.partition = partition
        self.layers = layers
        self.random_state = random_state
        self.subspace_dim = subspace_dim
        self.dtype = dtype
        self.n_jobs = n_jobs
        self.scale = scale

    def fit(self, X: npt.ArrayLike, y: None = None) -> Self:  # noqa: ARG002  scikit-learn's signature
        """Fit on rows X (N, p)."""
        division = usual(candidates(None, self.batch_size, self.partition)).division
        rows = self._scaled(check_rows(X))
        seed = 0 if self.random_state is None else self.random_state
        batches = split_rows(rows, *division, generator(seed, "wide"))
        machines = fit_machines(
            [rows[part] for part in batches],
            subspace_dim=check_subspace_dim(self.subspace_dim),
            layers=check_count(self.layers, "layers"),
            dtype=check_choice(self.dtype, "dtype", DTYPES),
            n_jobs=self.n_jobs,
        )
        return self._adopt(machines, batches, self.scaling_)

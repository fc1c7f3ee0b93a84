"""FedAvg and FedProx on the ridge objective: the first-order methods that FedNewton compares itself with.

With a site's rows phi (n, M) of features, targets y (n, C) and ``H_j = phi'phi / n + lambda I``, ``b_j = phi'y / n``
a round starts at the common weights W and averages, by rows, what every site makes of them::

    FedAvg, FedProx   V <- V - rate (H_j V - b_j + mu (V - W)), a few times from V = W; mu = 0 is FedAvg
    FedProx, exact    V = (H_j + mu I)^-1 (b_j + mu W), as in FedNewton's experiments (note to its Table 1)

The first common weights are the average of the sites' own solutions, which is DKRR.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy  # its parts are loaded when they are used

from kernfed.errors import InputError, Refused
from kernfed.federation import Federation, Payload, RidgeLearner, Site, task
from kernfed.kernels import single_blas_thread
from kernfed.ridge import RidgeModel, RidgeParameters, RidgeRound
from kernfed_papers.arrays import FloatArray
from kernfed_papers.checks import check_count, check_number

#: Weights beyond this have diverged; the next products could overflow.
_LIMIT = 1e100
#: What a site keeps of its rows for the rounds to come, under the problem and the rows that it is made of.
_CACHE = "descent"


@dataclass(frozen=True, eq=False)
class LocalObjective:
    """A site's ridge objective: rows A (n, M) of features over sqrt(n), their Gram matrix, and b (M, C).

    The Gram matrix is ``A'A`` (M, M), or ``AA'`` (n, n) of fewer rows than features.
    """

    rows: FloatArray
    gram: FloatArray
    linear: FloatArray

    @classmethod
    def of(cls, X: FloatArray, targets: FloatArray, parameters: RidgeParameters) -> "LocalObjective":
        """Objective of rows X (n, p) with targets (n, C)."""
        features = parameters.feature_map()
        with single_blas_thread():
            A = (X if features is None else features.transform(X)).astype(np.float64) / np.sqrt(len(X))
            gram = A @ A.T if len(A) < A.shape[1] else A.T @ A
            return cls(A, gram, A.T @ targets / np.sqrt(len(X)))

    def apply(self, V: FloatArray, level: float) -> FloatArray:
        """``(A'A + level I) V``."""
        product = self.rows.T @ (self.rows @ V) if len(self.rows) < len(V) else self.gram @ V
        return np.asarray(product + level * V)

    def solve(self, R: FloatArray, level: float) -> FloatArray:
        """``(A'A + level I)^-1 R`` for a level above 0."""
        factor = scipy.linalg.cho_factor(self.gram + level * np.eye(len(self.gram)))
        if len(self.rows) >= len(R):
            return np.asarray(scipy.linalg.cho_solve(factor, R))
        inner = scipy.linalg.cho_solve(factor, self.rows @ R)
        return np.asarray((R - self.rows.T @ inner) / level)

    def descend(
        self,
        weights: FloatArray,
        *,
        steps: int,
        rate: float,
        proximal: float,
        regularization: float,
        before_step: Callable[[], None] = lambda: None,
    ) -> FloatArray:
        """Weights (M, C) after gradient steps from the common ``weights``; ``before_step`` may end it."""
        current = weights
        with single_blas_thread():
            for _ in range(steps):
                before_step()
                gradient = self.apply(current, regularization) - self.linear
                current = current - rate * (gradient + proximal * (current - weights))
        return current

    def proximal_minimiser(self, weights: FloatArray, *, proximal: float, regularization: float) -> FloatArray:
        """Minimiser (M, C) of the objective + proximal |V - W|^2."""
        with single_blas_thread():
            return self.solve(self.linear + proximal * weights, regularization + proximal)


@task("descent_round", leaves="statistics")
def descent_round(site: Site, payload: Payload) -> Payload:
    """The site's weights (M, C) after a round from the common ones, and its number of rows."""
    values, weights = payload.values, payload.arrays["weights"]
    try:
        parameters = RidgeParameters.from_values(values["parameters"])
        proximal = check_number(values["proximal"], "proximal", zero=True)
        exact = values["steps"] == "exact"
        steps = 0 if exact else check_count(values["steps"], "steps")
        rate = 0.0 if exact else check_number(values["rate"], "rate", zero=False)
    except (KeyError, TypeError, ValueError) as error:
        raise Refused("bad question", f"the round asked for cannot be followed: {error}") from None
    expected = (parameters.n_features, parameters.n_targets)
    if weights.shape != expected or not np.isfinite(weights).all():
        raise Refused("bad question", f"weights must be finite of shape {expected}, got shape {weights.shape}")
    level = parameters.regularization[0]
    if exact and not level + proximal > 0:
        raise Refused("bad question", "an exact round needs a regularization or a proximal term above 0")
    rows = site.rows()
    if not len(rows.y):
        raise Refused("empty", f"site {site.name!r} has no rows that it may speak of")
    site.allow(steps=steps, features=expected[0], numbers=expected[0] * (len(rows.y) + expected[0]))
    key = (repr(parameters), rows.digest)
    kept = site.cache.get(_CACHE)
    if kept is None or kept[0] != key:
        kept = site.cache[_CACHE] = (key, LocalObjective.of(rows.X, parameters.targets(rows.y), parameters))
    local = kept[1]
    if exact:
        result = local.proximal_minimiser(weights, proximal=proximal, regularization=level)
    else:
        result = local.descend(
            weights, steps=steps, rate=rate, proximal=proximal, regularization=level, before_step=site.check_time
        )
    return Payload({"weights": result, "rows": np.array([float(len(rows.y))])})


@dataclass(frozen=True)
class DescentLearner:
    """Builds a ``RidgeModel`` by rounds of local descent from the average of the sites' own solutions.

    start : a ``RidgeLearner`` of method "dkrr", without an intercept, with one regularisation. rounds : of one exchange
    each. rate : of gradient steps. steps : gradient steps of a site in a round, or "exact" for its minimiser.
    proximal : mu; 0 is FedAvg.
    """

    start: RidgeLearner
    rounds: int = 8
    rate: float = 0.1
    steps: int | str = 2
    proximal: float = 0.0

    def fit(self, federation: Federation) -> RidgeModel:
        """Learn from all sites; weights that grow beyond all numbers end it with the last that did not."""
        if self.start.method != "dkrr" or self.start.fit_intercept is not False:
            raise InputError("a descent starts from RidgeLearner('dkrr', fit_intercept=False)")
        model = self.start.fit(federation)
        stopped, weights, history = "rounds", model.weights_, [*model.history_]
        asked = {"steps": self.steps, "rate": self.rate, "proximal": self.proximal}
        values: dict[str, object] = {"parameters": model.parameters.to_values(), **asked}
        for number in range(1, self.rounds + 1):
            further = self._round(federation, weights, values)
            if not bool((np.abs(further) < _LIMIT).all()):
                stopped = "diverged"
                break
            weights = further
            history.append(RidgeRound(number, None, None, 0, 0, 0.0))
        method = "fedavg" if self.proximal == 0 and self.steps != "exact" else "fedprox"
        return replace(model, weights_=weights, method=method, history_=tuple(history), stopped_=stopped)

    def _round(self, federation: Federation, weights: FloatArray, values: dict[str, object]) -> FloatArray:
        """Weights (M, C) after a round: the average of the sites', by rows, added in the order of their names."""

        def check(_: str, payload: Payload) -> None:
            found = payload.arrays["weights"]
            if found.shape != weights.shape or payload.arrays["rows"].shape != (1,):
                raise InputError(f"weights must have shape {weights.shape}, got {found.shape}")

        with np.errstate(over="ignore", invalid="ignore"):
            replies = federation.ask("descent_round", Payload({"weights": weights}, values), check=check)
        parts = {site: payload.arrays for site, payload in replies}
        total = sum(float(part["rows"][0]) for part in parts.values())
        result = np.zeros_like(weights)
        for site in sorted(parts):
            result += (float(parts[site]["rows"][0]) / total) * parts[site]["weights"]
        return result

"""Personalised learning: a model for every site, each learning from the sites that are like it (KME)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernfed._median import median_by_rows
from kernfed._validation import FloatArray, check_choice, check_count, check_number
from kernfed.errors import InputError, SitesLost, TooFewReplies
from kernfed.federation.asking import Federation, warn_missing
from kernfed.federation.learner import Learner
from kernfed.federation.personal import tasks as _tasks  # registers what sites answer
from kernfed.federation.personal.sites import PersonalSites, Received, Survey, ask_survey
from kernfed.federation.protocol.schema import agree
from kernfed.federation.release.kept import warn_if_forgotten
from kernfed.personal.fit import (
    choose_regularization,
    fit_groups,
    fit_weighted,
    grand_mean_weights,
    local_weights,
    oracle_weights,
    site_prior,
)
from kernfed.personal.gradient import check_simplex
from kernfed.personal.groups import Groups
from kernfed.personal.means import mean_groups
from kernfed.personal.model import Newcomer, PersonalModel
from kernfed.personal.prior import Gain
from kernfed.personal.problem import FEATURES, Problem
from kernfed.personal.statistics import Coordinates
from kernfed.personal.weights import (
    KERNELS,
    EmbeddingKernel,
    aggregate,
    check_columns,
    compare,
    embedding_bounds,
    penalty_constants,
)
from kernfed.privacy import RecordEmbedding

RULES = ("auto", "means", "printed", "local", "grand_mean")
#: Names for a site's policy.
PERSONAL_TASKS = _tasks.PERSONAL_TASKS
_TASKS = ("infer", "classify", "regress")


@dataclass(frozen=True, eq=False)
class _Fitted:
    """A model, and what its gains are computed from."""

    model: PersonalModel
    groups: Groups | None = None
    regularization: FloatArray | None = None


class PersonalLearner(Learner):
    """Builds a ``PersonalModel``: for each site, the model of a risk over sites like it.

    Parameters
    ----------
    weights : whom each site learns from
        "auto"         groups of sites and shrinkage towards them, found from all sites together (``personal.groups``)
        "means"        groups of sites by kernel mean embeddings, for features that shift (``personal.means``)
        "printed", or (C_Q, C_P)   Q-aggregation of kernel mean embeddings, KME Algorithms 1 and 2
        "local", "grand_mean"      nobody; everybody by rows
        {site: group}  an oracle: the rows of one's own group
        matrix (B, B)  in sorted order of the sites' names, rows on the simplex
    kernel : "polynomial" or "fourier", of embeddings; columns : "features", "both" or numbers of columns of (x, y);
        kernel_components, bandwidth, target_bandwidth : see ``EmbeddingKernel``; "median" is the sites' median distance
    task : "classify", "regress", or "infer": floating-point labels are values, all others classes
    model : "ridge"; "logistic" to classify; a tuple of layer sizes, for ReLU networks (extra ``[torch]``); "none" for
        weights alone
    features, n_components : of the model, the columns as they are or random Fourier features with the same bandwidth
    regularization : of the weighted ridge or logistic risk, or "auto": leave-one-out for a site that learns alone, by
        marginal likelihood over all sites for others (logistic: 1e-3). ``weights="auto"`` with "ridge" has its own
    intercept : whether ridge models have one. max_groups : of "auto" and "means". gains : whether to ask each site
        that learns from others what they are worth to it
    steps, learning_rate : of networks
    privacy : ``kernfed.privacy.RecordEmbedding``, for Q-aggregation with kernel="fourier" and model="none"
    """

    def __init__(
        self,
        weights: Any = "auto",
        kernel: str = "fourier",
        task: str = "infer",
        *,
        model: Any = "ridge",
        columns: str | Sequence[int] = "both",
        bandwidth: float | Sequence[float] | str = "median",
        target_bandwidth: float = 1.0,
        kernel_components: int = 500,
        features: str = "given",
        n_components: int = 200,
        regularization: float | str = "auto",
        intercept: bool = True,
        max_groups: int = 8,
        gains: bool = True,
        steps: int = 2000,
        learning_rate: float = 1e-3,
        privacy: RecordEmbedding | None = None,
    ) -> None:
        self.weights = _check_rule(weights)
        self.kernel = check_choice(kernel, "kernel", KERNELS)
        self.task = check_choice(task, "task", _TASKS)
        self.kind, self.hidden = _check_model(model)
        self.columns = check_columns(columns)
        self.bandwidth = _check_bandwidth(bandwidth)
        self.target_bandwidth = check_number(target_bandwidth, "target_bandwidth", above=0)
        self.kernel_components = check_count(kernel_components, "kernel_components")
        self.features = check_choice(features, "features", FEATURES)
        self.n_components = check_count(n_components, "n_components")
        self.regularization = _check_regularization(regularization)
        self.intercept = bool(intercept)
        self.max_groups = check_count(max_groups, "max_groups", at_least=0)
        self.gains = bool(gains)
        self.steps = check_count(steps, "steps")
        self.learning_rate = check_number(learning_rate, "learning_rate", above=0)
        self.privacy = self._check_privacy(privacy)

    def fit(self, federation: Federation, *, min_replies: int | None = None, timeout: float = 600.0) -> PersonalModel:
        """Learn a model for every site.

        A site that is lost on the way, also between embedding and training, takes no part: the others are done again
        without it if ``min_replies`` remain, with a ``MissingSites`` warning.
        """
        median = self.bandwidth == "median" and (self.features == "fourier" or self._embeds)
        if self.privacy is not None:
            warn_if_forgotten(federation.engine)
        surveys, missing = ask_survey(
            federation, self.task, median, mechanism=self.privacy, min_replies=min_replies, timeout=timeout
        )
        while True:
            sites = PersonalSites(federation, tuple(sorted(surveys)), self._problem(federation.seed, surveys), timeout)
            try:
                fitted = self._run(sites, surveys)
                break
            except SitesLost as lost:
                missing |= lost.reasons
                needed = len(surveys) if min_replies is None else max(1, min_replies)
                surveys = {name: found for name, found in surveys.items() if name not in missing}
                if len(surveys) < needed:
                    raise TooFewReplies(lost.task, needed, lost.replies) from None
        warn_missing(missing, "they have no model", stacklevel=2)
        columns = agree({name: found.schema for name, found in surveys.items()}).columns
        return replace(fitted.model, missing=missing, columns=columns)

    def join(self, federation: Federation, model: PersonalModel, site: str, *, timeout: float = 600.0) -> Newcomer:
        """Weights and predictor of a site that was not there when ``model`` was made, by one message from it.

        Only for ``weights="auto"`` with "ridge"; with other rules fit again.
        """
        sites = PersonalSites(federation, (site,), model.problem, timeout)
        try:
            received = sites.receive(None, statistics=True, intercept=model.coordinates.constant > 0)
        except SitesLost as lost:
            raise TooFewReplies(lost.task, 1, lost.replies) from None
        return model.join_statistics(received.statistics[site])

    # Problem ------------------------------------------------------------------------------------------------------

    @property
    def _compares(self) -> bool:
        """Whether weights come from Q-aggregation."""
        return self._is("printed") or isinstance(self.weights, tuple)

    @property
    def _embeds(self) -> bool:
        """Whether weights come from mean embeddings."""
        return self._compares or self._is("means")

    def _is(self, rule: str) -> bool:
        return isinstance(self.weights, str) and self.weights == rule

    def _problem(self, seed: int, surveys: Mapping[str, Survey]) -> Problem:
        schema = agree({name: found.schema for name, found in surveys.items()})
        tasks = {found.task for found in surveys.values()}
        if len(tasks) > 1:
            odd = sorted(name for name, found in surveys.items() if found.task == "regress")
            raise InputError(f"sites have different kinds of labels: {odd[:5]} have floating-point ones; give task=")
        task = tasks.pop()
        if task == "classify" and len(schema.classes) < 2:
            raise InputError(f"the sites must have at least 2 classes together, got {list(schema.classes)}")
        if self.kind == "logistic" and task == "regress":
            raise InputError("model='logistic' classifies, and these labels are values; use 'ridge' or a network")
        random = self.features == "fourier"
        return Problem(
            schema.width,
            task,
            schema.classes if task == "classify" else (),
            self.features,
            self.n_components if random else 2,
            self._bandwidth(surveys) if random else 1.0,
            seed if random else 0,
        )

    def _bandwidth(self, surveys: Mapping[str, Survey]) -> float | tuple[float, ...]:
        """The one given, or the median of the sites' median distances, weighted by rows."""
        if not isinstance(self.bandwidth, str):
            return self.bandwidth
        return median_by_rows((survey.median, survey.rows) for survey in surveys.values() if survey.median > 0)

    def _kernel(self, problem: Problem, seed: int, surveys: Mapping[str, Survey]) -> EmbeddingKernel | None:
        if not self._embeds:
            return None
        if self.privacy is not None:
            return _private_kernel(self.privacy, problem, self.columns)
        return EmbeddingKernel(
            problem.width,
            problem.n_targets,
            self.kernel,
            self.columns,
            self._bandwidth(surveys),
            self.target_bandwidth,
            self.kernel_components,
            seed,
        )

    # Training -----------------------------------------------------------------------------------------------------

    def _run(self, sites: PersonalSites, surveys: Mapping[str, Survey]) -> _Fitted:
        kernel = self._kernel(sites.problem, sites.federation.seed, surveys)
        needs = self.kind == "ridge" or self._is("auto")
        received = sites.receive(
            kernel, statistics=needs, intercept=self.intercept, halves=self._is("means"), mechanism=self.privacy
        )
        fitted = self._fit(sites, received, kernel, [surveys[name].rows for name in sites.names])
        if self.kind == "ridge" and self.gains:
            found = self._ask_gains(sites, received, fitted)
            fitted = replace(fitted, model=replace(fitted.model, gains_=found))
        return fitted

    def _fit(
        self, sites: PersonalSites, received: Received, kernel: EmbeddingKernel | None, rows: Sequence[int]
    ) -> _Fitted:
        if self._is("auto"):
            model, groups = fit_groups(
                sites.problem, received.statistics, intercept=self.intercept, max_groups=self.max_groups
            )
            return _Fitted(model if self.kind == "ridge" else self._train(sites, model.weights_), groups)
        weights = self._weights(sites, received, kernel, rows)
        if self.kind != "ridge":
            return _Fitted(self._train(sites, weights))
        ridge = choose_regularization(
            self.regularization, weights, received.statistics, received.penalties, intercept=self.intercept
        )
        model = fit_weighted(
            sites.problem, received.statistics, weights, ridge, intercept=self.intercept, rule=self._rule
        )
        return _Fitted(model, regularization=ridge)

    def _weights(
        self, sites: PersonalSites, received: Received, kernel: EmbeddingKernel | None, rows: Sequence[int]
    ) -> FloatArray:
        if self._is("means"):
            return mean_groups(received.halves, max(1, self.max_groups))[1]
        if kernel is not None:
            constants = penalty_constants(self.weights, len(sites.names))
            asks = constants[0] > 0 and self.privacy is None  # a private embedding says no more than itself
            forms = sites.forms(kernel, received.embeddings) if asks else None
            bounds = embedding_bounds(kernel, received.embeddings)
            return aggregate(compare(received.embeddings, forms), constants, bounds).weights
        if isinstance(self.weights, Mapping):
            absent = [name for name in sites.names if name not in self.weights]
            if absent:
                raise InputError(f"weights must name the group of every site, got none for {absent[0]!r}")
            return oracle_weights([self.weights[name] for name in sites.names], rows)
        if isinstance(self.weights, np.ndarray):
            everyone = sites.federation.sites
            if self.weights.shape != (len(everyone), len(everyone)):
                raise InputError(f"weights must have shape {(len(everyone), len(everyone))}, got {self.weights.shape}")
            places = [everyone.index(name) for name in sites.names]
            return _renormalised(self.weights[np.ix_(places, places)])
        return local_weights(len(rows)) if self._is("local") else grand_mean_weights(rows)

    @property
    def _rule(self) -> str:
        if isinstance(self.weights, str):
            return self.weights
        if isinstance(self.weights, tuple):
            return f"({self.weights[0]:g}, {self.weights[1]:g})"
        return "groups" if isinstance(self.weights, Mapping) else "given"

    def _train(self, sites: PersonalSites, weights: FloatArray) -> PersonalModel:
        """Models by gradients, or none."""
        problem, q = sites.problem, sites.problem.n_targets
        coordinates = Coordinates(np.zeros(problem.n_features), np.zeros(q), 0.0)
        parameters: FloatArray = np.zeros((len(weights), 0))
        if self.kind != "none":
            ridge = 1e-3 if isinstance(self.regularization, str) else self.regularization
            parameters = sites.descend(weights, self.kind, self.hidden, ridge, self.steps, self.learning_rate)
        return PersonalModel(problem, sites.names, self.kind, coordinates, parameters, weights, self._rule, self.hidden)

    def _ask_gains(self, sites: PersonalSites, received: Received, fitted: _Fitted) -> dict[str, Gain]:
        """Gains of the sites that say theirs; who does not has a model all the same, who learns alone gains nothing."""
        own = fitted.model.weights_.diagonal()
        asked = [place for place in range(len(sites.names)) if fitted.groups is not None or own[place] <= 1 - 1e-9]
        priors = (
            (
                sites.names[place],
                site_prior(fitted.model, received.statistics, place, fitted.groups, fitted.regularization),
            )
            for place in asked
        )
        return sites.gains(fitted.model.coordinates, priors)

    def _check_privacy(self, privacy: Any) -> RecordEmbedding | None:
        if privacy is None:
            return None
        if not isinstance(privacy, RecordEmbedding):
            raise InputError(f"privacy must be None or kernfed.privacy.RecordEmbedding, got {privacy!r:.80}")
        if not self._compares or self.kernel != "fourier":
            raise InputError("privacy covers the embedding of kernel='fourier' with weights='printed' or (C_Q, C_P)")
        if self.kind != "none":
            raise InputError(
                "privacy covers the weights alone: statistics for training leave a site as they are; use model='none'"
            )
        return privacy


# Settings ---------------------------------------------------------------------------------------------------------


def _check_rule(weights: Any) -> Any:
    if isinstance(weights, str):
        return check_choice(weights, "weights", RULES)
    if isinstance(weights, Mapping):
        return dict(weights)
    if isinstance(weights, (tuple, list)) and len(weights) == 2 and np.ndim(weights[0]) == 0:
        return penalty_constants(tuple(weights), 2)
    matrix = np.asarray(weights, dtype=np.float64)
    if matrix.ndim != 2:
        raise InputError(
            f"weights must be one of {', '.join(map(repr, RULES))}, (C_Q, C_P), groups by site or a "
            f"matrix, got {weights!r:.80}"
        )
    return check_simplex(matrix)


def _renormalised(weights: FloatArray) -> FloatArray:
    """Weights of the sites that are left; who only learned from lost ones learns alone."""
    sums = weights.sum(axis=1)
    alone = sums <= 0
    weights = weights + np.diag(alone.astype(np.float64))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _check_model(model: Any) -> tuple[str, tuple[int, ...]]:
    if isinstance(model, str):
        return check_choice(model, "model", ("ridge", "logistic", "none")), ()
    if isinstance(model, (tuple, list)) and model:
        return "network", tuple(check_count(size, "size of a layer") for size in model)
    raise InputError(
        f"model must be 'ridge', 'logistic', 'none' or sizes of hidden layers such as (16, 16), got "
        f"{model!r:.80}; other networks: kernfed.personal.network.NetworkRisk"
    )


def _check_bandwidth(bandwidth: Any) -> float | tuple[float, ...] | str:
    if isinstance(bandwidth, str):
        return check_choice(bandwidth, "bandwidth", ("median",))
    if isinstance(bandwidth, (list, tuple, np.ndarray)):
        return tuple(check_number(value, "bandwidth", above=0) for value in bandwidth)
    return check_number(bandwidth, "bandwidth", above=0)


def _check_regularization(regularization: Any) -> float | str:
    if isinstance(regularization, str):
        return check_choice(regularization, "regularization", ("auto",))
    return check_number(regularization, "regularization", at_least=0)


def _private_kernel(mechanism: RecordEmbedding, problem: Problem, columns: str | tuple[int, ...]) -> EmbeddingKernel:
    """The kernel of a mechanism: its features are of the compared columns, in units of 1."""
    features = mechanism.features
    if features.bandwidth != 1.0:
        raise InputError(f"the features of privacy= must have bandwidth 1.0, got {features.bandwidth}; scale the rows")
    kernel = EmbeddingKernel(
        problem.width, problem.n_targets, "fourier", columns, 1.0, 1.0, features.n_components, features.seed
    )
    compared = kernel.rows(np.zeros((1, problem.width)), np.zeros((1, problem.n_targets))).shape[1]
    if features.width != compared:
        raise InputError(f"the features of privacy= must have the {compared} compared columns, got {features.width}")
    return kernel

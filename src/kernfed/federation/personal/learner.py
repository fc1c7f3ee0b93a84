"""How personal models are learned, rule by rule, and the learner."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernfed.base.checks import FloatArray
from kernfed.errors import InputError, SitesLost, TooFewReplies
from kernfed.federation.asking import Federation, warn_missing
from kernfed.federation.learner import Learner
from kernfed.federation.personal.options import PersonalOptions, check_options
from kernfed.federation.personal.sites import PersonalSites, Received
from kernfed.federation.program import Program
from kernfed.federation.survey import MAX_SHARE, Participants, ask_survey, check_arrays
from kernfed.kernels import MeanEmbedding
from kernfed.personal.fit import (
    choose_regularization,
    fit_groups,
    fit_weighted,
    grand_mean_weights,
    local_weights,
    oracle_weights,
    site_prior,
)
from kernfed.personal.groups import Groups, mean_groups
from kernfed.personal.model import Newcomer, PersonalModel
from kernfed.personal.prior import Gain
from kernfed.personal.statistics import Coordinates
from kernfed.personal.weights import EmbeddingKernel, aggregate, compare, embedding_bounds, penalty_constants
from kernfed.privacy.record_sums import EmbeddingRelease, RecordEmbedding
from kernfed.promise import Terms
from kernfed.site.protocol.message import Payload
from kernfed.site.release.kept import terms_of, warn_if_forgotten


def ask_released(
    sites: PersonalSites, kernel: EmbeddingKernel, mechanism: RecordEmbedding
) -> Program[tuple[tuple[MeanEmbedding, ...], Terms]]:
    """Embeddings that all sites release, in order of their names, and the terms of these releases."""
    terms = terms_of(mechanism, sites.problem.width, sites.problem.task)

    def read(site: str, payload: Payload) -> MeanEmbedding:
        check_arrays(payload, {"vector": (kernel.dimension,), "facts": (2,)})
        terms.check_told(payload.values["privacy"])
        vector, (n, noise) = payload.arrays["vector"], map(float, payload.arrays["facts"])
        if n < 1 or noise < 0:
            raise InputError(f"no release has {n} rows and noise {noise}")
        sites.check_rows(site, n)
        if n < 2:  # the noise for privacy is all that is known of its error
            return MeanEmbedding(1.0, 1.0, vector, 0.0)
        return EmbeddingRelease(vector, int(n), noise, terms.element, terms.record, True, ()).embedding()

    values = {"problem": sites.problem.to_values(), "kernel": kernel.to_values(), "privacy": dict(terms.mechanism)}
    replies = yield from sites.ask("personal_release", Payload(values=values), read)
    told = {site: payload.values["privacy"] for site, payload in replies}
    return tuple(read(*reply) for reply in replies), terms.with_told(told)


#: Of logistic models whose regularisation is "auto".
_LOGISTIC_REGULARIZATION = 1e-3
#: A site whose own weight is this near to 1 learns alone.
_ALONE = 1e-9


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model, and what its gains are computed from."""

    model: PersonalModel
    groups: Groups | None = None
    regularization: FloatArray | None = None


def run(options: PersonalOptions, sites: PersonalSites, taking_part: Participants) -> Program[PersonalModel]:
    """The model of all sites, or ``SitesLost``."""
    kernel = options.embedding_kernel(sites.problem, taking_part, sites.federation.seed)
    if options.privacy is not None:
        assert kernel is not None
        embeddings, terms = yield from ask_released(sites, kernel, options.privacy)
        weights = _aggregated(options, kernel, embeddings, None)
        return replace(_train(options, sites, weights), privacy=terms)
    received = yield from sites.receive(
        kernel,
        statistics=options.kind == "ridge" or options.uses("auto"),
        intercept=options.fit_intercept,
        halves=options.uses("means"),
    )
    rows = [taking_part.surveys[name].rows for name in sites.names]
    fitted = yield from _fit(options, sites, received, kernel, rows)
    if options.kind == "ridge" and options.gains:
        return replace(fitted.model, gains_=(yield from _ask_gains(sites, received, fitted)))
    return fitted.model


def _fit(
    options: PersonalOptions,
    sites: PersonalSites,
    received: Received,
    kernel: EmbeddingKernel | None,
    rows: Sequence[int],
) -> Program[Fitted]:
    intercept = options.fit_intercept
    if options.uses("auto"):
        model, groups = fit_groups(
            sites.problem, received.statistics, intercept=intercept, max_groups=options.max_groups
        )
        return Fitted(model if options.kind == "ridge" else _train(options, sites, model.weights_), groups)
    weights = yield from _weights(options, sites, received, kernel, rows)
    if options.kind != "ridge":
        return Fitted(_train(options, sites, weights))
    ridge = choose_regularization(
        options.regularization, weights, received.statistics, received.penalties, intercept=intercept
    )
    model = fit_weighted(sites.problem, received.statistics, weights, ridge, intercept=intercept, rule=options.rule)
    return Fitted(model, regularization=ridge)


def _weights(
    options: PersonalOptions,
    sites: PersonalSites,
    received: Received,
    kernel: EmbeddingKernel | None,
    rows: Sequence[int],
) -> Program[FloatArray]:
    """Weights (B, B) by the rule of the options."""
    if options.uses("means"):
        return mean_groups(received.halves, max(1, options.max_groups))[1]
    if kernel is not None:
        asks = penalty_constants(options.weights, len(sites.names))[0] > 0
        forms = (yield from sites.forms(kernel, received.embeddings)) if asks else None
        return _aggregated(options, kernel, received.embeddings, forms)
    if isinstance(options.weights, Mapping):
        absent = [name for name in sites.names if name not in options.weights]
        if absent:
            raise InputError(f"weights must name the group of every site, got none for {absent[0]!r}")
        return oracle_weights([options.weights[name] for name in sites.names], rows)
    if isinstance(options.weights, np.ndarray):
        return _given_weights(options.weights, sites)
    return local_weights(len(rows)) if options.uses("local") else grand_mean_weights(rows)


def _aggregated(
    options: PersonalOptions, kernel: EmbeddingKernel, embeddings: Sequence[MeanEmbedding], forms: FloatArray | None
) -> FloatArray:
    """Weights by Q-aggregation; without ``forms``, as of a private embedding, which says no more than itself."""
    constants = penalty_constants(options.weights, len(embeddings))
    return aggregate(compare(embeddings, forms), constants, embedding_bounds(kernel, embeddings)).weights


def _given_weights(weights: FloatArray, sites: PersonalSites) -> FloatArray:
    """Weights of the sites that are left; who only learned from lost ones learns alone."""
    everyone = sites.federation.sites
    if weights.shape != (len(everyone), len(everyone)):
        raise InputError(f"weights must have shape {(len(everyone), len(everyone))}, got {weights.shape}")
    places = [everyone.index(name) for name in sites.names]
    left = weights[np.ix_(places, places)]
    left = left + np.diag((left.sum(axis=1) <= 0).astype(np.float64))
    return np.asarray(left / left.sum(axis=1, keepdims=True))


def _train(options: PersonalOptions, sites: PersonalSites, weights: FloatArray) -> PersonalModel:
    """Models by gradients, or none."""
    problem = sites.problem
    coordinates = Coordinates(np.zeros(problem.n_features), np.zeros(problem.n_targets), 0.0)
    coefficients: FloatArray = np.zeros((len(weights), 0))
    if options.kind != "none":
        given = options.regularization
        regularization = _LOGISTIC_REGULARIZATION if isinstance(given, str) else given
        coefficients = sites.descend(
            weights, options.kind, options.hidden, regularization, options.steps, options.learning_rate
        )
    return PersonalModel(
        problem, sites.names, options.kind, coordinates, coefficients, weights, options.rule, options.hidden
    )


def _ask_gains(sites: PersonalSites, received: Received, fitted: Fitted) -> Program[dict[str, Gain]]:
    """Gains of the sites that say theirs; who does not has a model all the same, who learns alone gains nothing."""
    own = fitted.model.weights_.diagonal()
    asked = [place for place in range(len(sites.names)) if fitted.groups is not None or own[place] <= 1 - _ALONE]
    priors = (
        (sites.names[place], site_prior(fitted.model, received.statistics, place, fitted.groups, fitted.regularization))
        for place in asked
    )
    return (yield from sites.gains(fitted.model.coordinates_, priors))


class PersonalLearner(Learner):
    """Builds a ``PersonalModel``: for each site, the model of a risk over sites like it.

    Parameters
    ----------
    weights : whom each site learns from
        "auto"         groups of sites and shrinkage towards them, learned from all sites together (``personal.groups``)
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
    fit_intercept : whether ridge models have one. max_groups : of "auto" and "means". gains : whether to ask each site
        that learns from others what they are worth to it
    steps, learning_rate : of networks
    privacy : ``kernfed.privacy.RecordEmbedding``, for Q-aggregation with kernel="fourier" and model="none"
    """

    def __init__(
        self,
        weights: Any = "auto",
        *,
        kernel: str = "fourier",
        task: str = "infer",
        model: Any = "ridge",
        columns: str | Sequence[int] = "both",
        bandwidth: float | Sequence[float] | str = "median",
        target_bandwidth: float = 1.0,
        kernel_components: int = 500,
        features: str = "given",
        n_components: int = 200,
        regularization: float | str = "auto",
        fit_intercept: bool = True,
        max_groups: int = 8,
        gains: bool = True,
        steps: int = 2000,
        learning_rate: float = 1e-3,
        privacy: Any = None,
    ) -> None:
        self.weights = weights
        self.kernel = kernel
        self.task = task
        self.model = model
        self.columns = columns
        self.bandwidth = bandwidth
        self.target_bandwidth = target_bandwidth
        self.kernel_components = kernel_components
        self.features = features
        self.n_components = n_components
        self.regularization = regularization
        self.fit_intercept = fit_intercept
        self.max_groups = max_groups
        self.gains = gains
        self.steps = steps
        self.learning_rate = learning_rate
        self.privacy = privacy

    def options(self) -> PersonalOptions:
        """Every parameter, checked."""
        return check_options(self.get_params(deep=False))

    def fit(
        self,
        federation: Federation,
        *,
        min_replies: int | None = None,
        timeout: float = 600.0,
        max_share: float = MAX_SHARE,
    ) -> PersonalModel:
        """Learn a model for every site.

        A site that is lost on the way, also between embedding and training, takes no part: the others are done again
        without it if ``min_replies`` remain, with a ``MissingSites`` warning. A site whose sums no rows can have is
        lost, too; so is one of three and more that claims above ``max_share`` of all rows.
        """
        program = self.program(federation, min_replies=min_replies, timeout=timeout, max_share=max_share)
        return federation.run(program, timeout=timeout)

    def program(
        self,
        federation: Federation,
        *,
        min_replies: int | None = None,
        timeout: float = 600.0,
        max_share: float = MAX_SHARE,
    ) -> Program[PersonalModel]:
        """What ``fit`` asks, as a program; ``timeout`` is that of steps, which share no exchange."""
        options = self.options()
        if options.privacy is not None:
            warn_if_forgotten(federation.engine)
        taking_part = yield from ask_survey(
            "personal_survey",
            options.task,
            seed=federation.seed,
            median=options.needs_median,
            min_replies=min_replies,
            max_share=max_share,
        )
        while True:
            problem = options.problem(taking_part, federation.seed)
            try:
                sites = PersonalSites(federation, taking_part.names, problem, timeout, taking_part.surveys)
                model = yield from run(options, sites, taking_part)
                break
            except SitesLost as lost:
                taking_part.go_on_without(lost)
        warn_missing(taking_part.missing, "they have no model")
        return replace(
            model,
            missing_=taking_part.missing,
            feature_names_in_=taking_part.schema.columns,
            preparation=federation.preparation,
        )

    def join(self, federation: Federation, model: PersonalModel, site: str, *, timeout: float = 600.0) -> Newcomer:
        """Weights and predictor of a site that was not there when ``model`` was made, by one message from it.

        Only for ``weights="auto"`` with "ridge"; with other rules fit again.
        """
        sites = PersonalSites(federation, (site,), model.problem, timeout)
        try:
            asked = sites.receive(None, statistics=True, intercept=model.coordinates_.constant > 0)
            received = federation.run(asked, timeout=timeout)
        except SitesLost as lost:
            raise TooFewReplies(lost.task, 1, lost.replies) from None
        return model.join_statistics(received.statistics[site])

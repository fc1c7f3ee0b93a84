"""How models of all sites come from what sites send: weights by a rule, then ridge in closed form or by gradients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernfed.base.checks import FloatArray
from kernfed.errors import InputError
from kernfed.federation.personal.options import PersonalOptions
from kernfed.federation.personal.private import ask_released
from kernfed.federation.personal.sites import PersonalSites, Received
from kernfed.federation.survey import Participants
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
from kernfed.personal.model import PersonalModel
from kernfed.personal.prior import Gain
from kernfed.personal.statistics import Coordinates
from kernfed.personal.weights import EmbeddingKernel, aggregate, compare, embedding_bounds, penalty_constants

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


def run(options: PersonalOptions, sites: PersonalSites, taking_part: Participants) -> PersonalModel:
    """The model of all sites, or ``SitesLost``."""
    kernel = options.embedding_kernel(sites.problem, taking_part, sites.federation.seed)
    if options.privacy is not None:
        assert kernel is not None
        embeddings, terms = ask_released(sites, kernel, options.privacy)
        weights = _aggregated(options, kernel, embeddings, None)
        return replace(_train(options, sites, weights), privacy=terms)
    received = sites.receive(
        kernel,
        statistics=options.kind == "ridge" or options.uses("auto"),
        intercept=options.fit_intercept,
        halves=options.uses("means"),
    )
    rows = [taking_part.surveys[name].rows for name in sites.names]
    fitted = _fit(options, sites, received, kernel, rows)
    if options.kind == "ridge" and options.gains:
        return replace(fitted.model, gains_=_ask_gains(sites, received, fitted))
    return fitted.model


def _fit(
    options: PersonalOptions,
    sites: PersonalSites,
    received: Received,
    kernel: EmbeddingKernel | None,
    rows: Sequence[int],
) -> Fitted:
    intercept = options.fit_intercept
    if options.uses("auto"):
        model, groups = fit_groups(
            sites.problem, received.statistics, intercept=intercept, max_groups=options.max_groups
        )
        return Fitted(model if options.kind == "ridge" else _train(options, sites, model.weights_), groups)
    weights = _weights(options, sites, received, kernel, rows)
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
) -> FloatArray:
    """Weights (B, B) by the rule of the options."""
    if options.uses("means"):
        return mean_groups(received.halves, max(1, options.max_groups))[1]
    if kernel is not None:
        asks = penalty_constants(options.weights, len(sites.names))[0] > 0
        forms = sites.forms(kernel, received.embeddings) if asks else None
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


def _ask_gains(sites: PersonalSites, received: Received, fitted: Fitted) -> dict[str, Gain]:
    """Gains of the sites that say theirs; who does not has a model all the same, who learns alone gains nothing."""
    own = fitted.model.weights_.diagonal()
    asked = [place for place in range(len(sites.names)) if fitted.groups is not None or own[place] <= 1 - _ALONE]
    priors = (
        (sites.names[place], site_prior(fitted.model, received.statistics, place, fitted.groups, fitted.regularization))
        for place in asked
    )
    return sites.gains(fitted.model.coordinates_, priors)

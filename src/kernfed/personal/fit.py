"""Personalised models from what is in one place: statistics of the sites, or their rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_number
from kernfed.base.threads import single_blas_thread
from kernfed.personal.groups import Groups, find_groups, group_coefficients, group_weights, no_group, source_shares
from kernfed.personal.model import GroupKnowledge, PersonalModel
from kernfed.personal.prior import (
    SitePrior,
    check_weights,
    common_regularization,
    group_prior,
    own_penalty,
    weighted_prior,
    weighted_ridge,
)
from kernfed.personal.statistics import Coordinates, Problem, SiteStatistics, Spectra
from kernfed.personal.weights import Constants, EmbeddingKernel, aggregate, compare, embedding_bounds

Statistics = Mapping[str, SiteStatistics]


def fit_groups(
    problem: Problem, sites: Statistics, *, intercept: bool = True, max_groups: int = 8, rule: str = "auto"
) -> tuple[PersonalModel, Groups]:
    """Model with ``weights="auto"`` from the statistics of each site, and the groups behind it."""
    entries = list(sites.values())
    coordinates = Coordinates.pooled(entries, intercept=intercept)
    groups = find_groups(entries, coordinates, max_groups=max_groups)
    model = PersonalModel(
        problem,
        tuple(sites),
        "ridge",
        coordinates,
        group_coefficients(entries, coordinates, groups),
        group_weights(entries, coordinates, groups),
        rule,
        knowledge_=_knowledge(entries, coordinates, groups),
    )
    return model, groups


def _knowledge(sites: Sequence[SiteStatistics], coordinates: Coordinates, groups: Groups) -> GroupKnowledge:
    with single_blas_thread():
        spectra = Spectra.from_rows([coordinates.compress(site) for site in sites], [site.n for site in sites])
        second = (spectra.axes * spectra.values[:, None]).T @ spectra.axes / float(spectra.counts.sum())
        sources = source_shares(spectra, groups) if groups.count else np.zeros((0, len(sites)))
    prior = group_prior(sites, coordinates, groups)
    return GroupKnowledge(prior, sources, second, groups.spread, groups.scale, groups.members)


def fit_weighted(
    problem: Problem,
    sites: Statistics,
    weights: npt.ArrayLike,
    regularization: npt.ArrayLike,
    *,
    intercept: bool = True,
    rule: str = "given",
) -> PersonalModel:
    """Model of the weighted risks for W (B, B) and lambda, one number or (B,), from the statistics of each site."""
    entries = list(sites.values())
    W = check_weights(weights, len(entries))
    coordinates = Coordinates.pooled(entries, intercept=intercept)
    coefficients = weighted_ridge(entries, W, regularization, coordinates)
    return PersonalModel(problem, tuple(sites), "ridge", coordinates, coefficients, W, rule)


def site_prior(
    model: PersonalModel,
    sites: Statistics,
    place: int,
    groups: Groups | None = None,
    regularization: FloatArray | None = None,
) -> SitePrior:
    """What site number ``place`` learns from the others: of groups, or of the weighted risk with lambda (B,)."""
    entries = list(sites.values())
    if groups is not None:
        return group_prior(entries, model.coordinates_, groups, place)
    weights = model.weights_[place].copy()
    own, weights[place] = float(weights[place]), 0.0
    ridge = 0.0 if regularization is None else float(regularization[place])
    return weighted_prior(entries, model.coordinates_, weights, own, entries[place].n, ridge)


def choose_regularization(
    regularization: float | str,
    weights: FloatArray,
    sites: Statistics,
    penalties: npt.ArrayLike,
    *,
    intercept: bool = True,
) -> FloatArray:
    """Regularisation (B,) of every weighted risk: a number for all, or "auto".

    Then a site that learns alone has its own leave-one-out penalty, of ``penalties`` (B,), and the others the ratio of
    noise to the size of coefficients with the largest marginal likelihood over all sites.
    """
    if not isinstance(regularization, str):
        return np.full(len(weights), check_number(regularization, "regularization", at_least=0))
    entries = list(sites.values())
    coordinates = Coordinates.pooled(entries, intercept=intercept)
    counts = [site.n for site in entries]
    with single_blas_thread():
        alone = no_group(Spectra.from_rows([coordinates.compress(site) for site in entries], counts))
    return common_regularization(weights, counts, penalties, alone.usual_noise / alone.own_spread)


# Weights that need no statistics ----------------------------------------------------------------------------------


def grand_mean_weights(counts: npt.ArrayLike) -> FloatArray:
    """Everybody learns from all rows: W_tk = n_k / n (B, B), KME Section 6."""
    n = np.asarray(counts, dtype=np.float64)
    return np.tile(n / n.sum(), (len(n), 1))


def local_weights(sites: int) -> FloatArray:
    """Everybody learns alone: the identity (B, B)."""
    return np.eye(sites)


def oracle_weights(labels: Sequence[Any], counts: npt.ArrayLike) -> FloatArray:
    """Everybody learns from the rows of its group, which labels (B,) name: W_tk = n_k over the group's rows."""
    n = np.asarray(counts, dtype=np.float64)
    same = np.array([[a == b for b in labels] for a in labels], dtype=np.float64) * n
    return np.asarray(same / same.sum(axis=1, keepdims=True))


def aggregation_weights(
    rows: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]], kernel: EmbeddingKernel, constants: Constants
) -> FloatArray:
    """Weights (B, B) of KME Algorithm 1 or 2 for rows x (n, p) and targets y (n, q) of all sites in one place."""
    embeddings = [kernel.embed(X, Y) for X, Y in rows.values()]
    means = np.stack([entry.mean for entry in embeddings])
    forms = [
        kernel.forms(X, Y, means) if entry.size > 1 else np.full(len(means), np.nan)
        for (X, Y), entry in zip(rows.values(), embeddings, strict=True)
    ]
    return aggregate(compare(embeddings, np.stack(forms)), constants, embedding_bounds(kernel, embeddings)).weights


def row_penalty(problem: Problem, X: FloatArray, Y: FloatArray, intercept: bool) -> float:
    """A site's own leave-one-out penalty on features of its rows; with an intercept, of its centred rows."""
    features = problem.transform(X).astype(np.float64)
    if intercept and len(features) > 1:
        return own_penalty(features - features.mean(axis=0), Y - Y.mean(axis=0))
    return own_penalty(features, Y)


def site_statistics(problem: Problem, X: FloatArray, y: npt.NDArray[Any]) -> SiteStatistics:
    """Statistics of a site's rows X (n, p) with labels or values y (n,)."""
    features = problem.feature_map()
    return SiteStatistics.from_rows(X, problem.targets(y), features=None if features is None else features.transform)

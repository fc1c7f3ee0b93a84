"""Heads as they would be without some sites, from the sums that each site told: one exchange after the survey."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kernfed.errors import InputError, SitesLost
from kernfed.federation.asking import Federation
from kernfed.federation.protocol.message import Payload
from kernfed.federation.ridge.pooling import _pool as pool_parts
from kernfed.federation.ridge.pooling import _read as read_part
from kernfed.federation.ridge.system import Sites
from kernfed.federation.survey import ask_survey
from kernfed.ridge.exact import minimise
from kernfed.ridge.leave_one_out import column_penalty
from kernfed.ridge.model import RidgeModel
from kernfed.ridge.robust import Part

#: How far weights that are made again may be from those of the model, relative to their norm.
_SAME = 1e-6


def heads_without(
    federation: Federation, head: RidgeModel, sets: Sequence[tuple[str, ...]], *, timeout: float = 600.0
) -> list[RidgeModel]:
    """The head of all rows but those of each of ``sets`` of sites, with every choice that ``head`` recorded.

    Sites tell the sums again that the head was made of, and are held to it: with all of them it must come out as it is.
    """
    sites, parts = _ask_parts(federation, head, timeout)
    if head.method == "exact" and head.head == "squared":
        _check_same(head, _solved(head, sites, parts, ()))
    return [_solved(head, sites, parts, own) for own in sets]


def _ask_parts(federation: Federation, head: RidgeModel, timeout: float) -> tuple[Sites, dict[str, Part]]:
    taking_part = federation.only([site for site in federation.sites if site not in head.missing_])
    try:
        surveyed = ask_survey(
            taking_part, "ridge_survey", head.parameters.task, median=False, min_replies=None, timeout=timeout
        )
        how = head.choices_.aggregate
        sites = Sites(taking_part, surveyed.names, head.parameters, timeout, surveyed.surveys, aggregate=how)
        parts: dict[str, Part] = {}

        def read(site: str, payload: Payload) -> None:
            parts[site] = read_part(sites, site, payload.arrays)

        sites.ask("ridge_moments", Payload(values={"parameters": head.parameters.to_values()}), read)
    except SitesLost as lost:
        raise InputError(f"sites can be left out of a head where all tell their sums again: {lost}") from None
    return sites, parts


def _solved(head: RidgeModel, sites: Sites, parts: dict[str, Part], left_out: tuple[str, ...]) -> RidgeModel:
    others = [parts[site] for site in sorted(parts) if site not in left_out]
    if not others:
        raise InputError("a head needs one site at least")
    pooled = pool_parts(sites, others)
    by_columns = head.parameters.features == "given" and head.choices_.scale == "columns"
    penalty = column_penalty(pooled.moments, pooled.mass) if by_columns else None
    weights = minimise(pooled.moments, pooled.mass, head.regularization_, penalty).weights
    intercept = None if pooled.means is None else pooled.means.intercept(weights)
    return replace(head, weights_=weights, intercept_=intercept)


def _check_same(head: RidgeModel, again: RidgeModel) -> None:
    """Refuse sums that are not those of the head: rows changed since, or a site tells other sums than it did."""
    distance = float(np.linalg.norm(again.weights_ - head.weights_))
    if distance > _SAME * float(np.linalg.norm(head.weights_)):
        raise InputError(
            "the sums that sites tell now do not make this head: rows have changed since it was made, or a site tells "
            "others than it did then; fit the learner again, and look at the influence at once"
        )

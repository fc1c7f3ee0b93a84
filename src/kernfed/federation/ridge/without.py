"""Heads as they would be without some sites, from the sums that each site told: one exchange after the survey."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernfed.base.checks import FloatArray
from kernfed.errors import InputError, SitesLost
from kernfed.federation.asking import Federation
from kernfed.federation.ridge.pooling import pool_parts, read_part
from kernfed.federation.ridge.system import Sites
from kernfed.federation.survey import ask_survey
from kernfed.ridge.leave_one_out import column_penalty
from kernfed.ridge.model import RidgeModel
from kernfed.ridge.robust import Part
from kernfed.ridge.solvers import minimise
from kernfed.site.protocol.message import Payload

#: How far weights that are made again may be from those of the model, relative to their norm.
_SAME = 1e-6


@dataclass(frozen=True, eq=False)
class SiteSums:
    """What each site tells of the rows that a head is made of."""

    head: RidgeModel
    sites: Sites
    parts: Mapping[str, Part]

    @property
    def counts(self) -> dict[str, FloatArray]:
        """Rows (C,) of every class at each site, as surveyed; none to regress."""
        classes = self.head.parameters.classes
        told: dict[str, FloatArray] = {}
        for site in self.sites.names:
            schema = self.sites.surveys[site].schema
            own = dict(zip(schema.classes, schema.counts, strict=True))
            told[site] = np.array([own.get(label, 0) for label in classes], dtype=np.float64)
        return told if classes else {}

    def without(self, left_out: Sequence[str]) -> RidgeModel:
        """The head of the rows of all other sites, with every choice that the head recorded."""
        others = [self.parts[site] for site in sorted(self.parts) if site not in left_out]
        if not others:
            raise InputError("a head needs one site at least")
        head = self.head
        pooled = pool_parts(self.sites, others)
        by_columns = head.parameters.features == "given" and head.choices_.scale == "columns"
        penalty = column_penalty(pooled.moments, pooled.mass) if by_columns else None
        weights = minimise(pooled.moments, pooled.mass, head.regularization_, penalty).weights
        intercept = None if pooled.means is None else pooled.means.intercept(weights)
        return replace(head, weights_=weights, intercept_=intercept)


def ask_site_sums(federation: Federation, head: RidgeModel, *, timeout: float = 600.0) -> SiteSums:
    """Let sites tell again the sums that ``head`` was made of, from which it must come out as it is."""
    sums = SiteSums(head, *_ask_parts(federation, head, timeout))
    if head.method == "exact" and head.head == "squared":
        _check_same(head, sums.without(()))
    return sums


def _ask_parts(federation: Federation, head: RidgeModel, timeout: float) -> tuple[Sites, dict[str, Part]]:
    taking_part = federation.only([site for site in federation.sites if site not in head.missing_])
    try:
        surveyed = ask_survey(
            taking_part,
            "ridge_survey",
            head.parameters.task,
            median=False,
            min_replies=None,
            timeout=timeout,
            max_share=1.0,
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


def _check_same(head: RidgeModel, again: RidgeModel) -> None:
    """Refuse sums that are not those of the head: rows changed since, or a site tells other sums than it did."""
    distance = float(np.linalg.norm(again.weights_ - head.weights_))
    if distance > _SAME * float(np.linalg.norm(head.weights_)):
        raise InputError(
            "the sums that sites tell now do not make this head: rows have changed since it was made, other sites take "
            "part, or one tells others than it did then; fit the learner again, and look at the influence at once"
        )

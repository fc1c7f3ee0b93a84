"""One set of machines from the moments of all sites together: summed with noise in shares, seen by nobody in parts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.base.labels import ClassIndex
from kernfed.base.random import generator
from kernfed.base.threads import single_blas_thread
from kernfed.errors import InputError, Refused
from kernfed.federation.asking import Federation
from kernfed.federation.folding.machines import SiteMachines, divide, fit_batches, folding_handle
from kernfed.federation.folding.release import Recipe
from kernfed.federation.program import Program
from kernfed.federation.summing.released import gather_shares, promised, send_share
from kernfed.files import labels_from_values, labels_to_values
from kernfed.kahm.left_out import fit_temperature, left_out_scores
from kernfed.kahm.model import FoldingModel, FoldingParameters, Member
from kernfed.privacy import RecordMoments, fabricate_rows
from kernfed.privacy.generator import Ints
from kernfed.privacy.shared import SharedMoments
from kernfed.privacy.values import mechanism_to_values
from kernfed.promise import Terms
from kernfed.secure.committee.terms import Committee
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.schema import Schema, agree
from kernfed.site.protocol.task import task
from kernfed.site.protocol.traffic import Total
from kernfed.site.release.kept import read_mechanism
from kernfed.site.rows import Rows
from kernfed.site.site import Site

#: The one member of a model that is made of a sum: all sites together.
TOGETHER = "all sites together"


@task("folding_shares", leaves="masked", under_privacy="released")
def folding_shares(site: Site, payload: Payload) -> Payload:
    """The site's share of the moments of all classes, with its part of the noise, masked."""
    values = payload.values
    mechanism = read_mechanism(values.get("privacy"), RecordMoments)
    try:
        classes = tuple(labels_from_values(values["classes"]).tolist())
        shared = SharedMoments.of(mechanism, classes, values["honest"], values["adjacency"])
        part = str(values["part"])
        site.allow(numbers=3 * shared.numbers + len(shared.parts))
        if part not in shared.parts:
            raise InputError(f"a sum of {', '.join(shared.parts)} was expected, got {part!r}")
        centres = payload.arrays.get("centres")
        if centres is not None and not (np.isfinite(centres).all() and np.abs(centres).max() <= mechanism.radius):
            raise InputError("centres must be in the ball of the rows")
    except (KeyError, TypeError, ValueError) as error:
        raise Refused("bad question", f"the sum asked for cannot be followed: {error}") from None

    def integers(rows: Rows, pays: npt.NDArray[np.bool_]) -> Mapping[str, Ints]:
        X = np.where(pays[:, None], rows.X, rows.X.dtype.type(0))
        return shared.integers(part, X, np.where(pays, class_places(rows.y, classes), 0), centres)

    return send_share(site, "folding_shares", payload, mechanism, shared, part, integers, protects_labels=True)


def class_places(labels: npt.NDArray[Any], classes: Sequence[Any]) -> npt.NDArray[np.intp]:
    """Places (n,) of labels among declared classes; one that was not declared counts as the first."""
    return ClassIndex(classes).numbers(labels, "first")


def fit_shared(
    federation: Federation,
    recipe: Recipe,
    parameters_for: Callable[[int], FoldingParameters],
    classes: Sequence[Any],
    setting: Committee,
    *,
    honest: int,
    adjacency: str = "replace",
    public_labels: bool = True,
    min_replies: int | None = None,
) -> Program[FoldingModel]:
    """The model of all sites' moments: whole, in one place, and without any row.

    ``parameters_for(width)`` are those of rows of so many columns. ``public_labels``: whether sites have told their
    classes, and how many rows each has, before.
    """
    if not isinstance(recipe.mechanism, RecordMoments) or recipe.labels is not None:
        raise InputError("a sum over sites takes privacy=RecordMoments(...), and labels=None: it protects labels too")
    mechanism, ordered = recipe.mechanism, tuple(sorted(classes))
    shared = SharedMoments.of(mechanism, ordered, honest, adjacency)
    terms = Terms(
        mechanism_to_values(mechanism),
        None,
        "rows" if public_labels else "rows and targets",
        *promised(shared, public_labels=public_labels),
        request={**recipe.to_values(), "sum": {"honest": honest, "adjacency": adjacency, "alone": shared.alone}},
    )
    schemas: dict[str, Schema] = {}
    told: dict[str, Any] = {}

    def hear(site: str, answer: Payload) -> None:
        terms.check_told(answer.values["privacy"])
        schemas[site], told[site] = Schema.from_values(answer.values["schema"]), answer.values["privacy"]

    totals, total = yield from _gather(federation, shared, setting, hear, min_replies)
    schema = agree({site: schemas[site] for site in total.sites})
    terms = terms.with_told({site: told[site] for site in total.sites})
    parameters = parameters_for(schema.width)
    draws = int(generator(parameters.seed, TOGETHER, "fabricate").integers(2**31))
    X, y = fabricate_rows(shared.moments(totals), recipe.rows_per_class, radius=mechanism.radius, seed=draws)
    rows = Rows(X, y, np.arange(len(y), dtype=np.int64))
    machines = fit_batches(rows, parameters, *divide(rows, parameters))
    missing = {site: refusal.reason for site, refusal in total.missing.items()}
    return _model(machines, parameters, np.array(ordered), schema, missing, terms, recipe.basis(schema.width))


def _gather(
    federation: Federation,
    shared: SharedMoments,
    setting: Committee,
    hear: Callable[[str, Payload], None],
    min_replies: int | None,
) -> Program[tuple[dict[str, Mapping[str, Ints]], Total]]:
    """Noisy sums of every part, and the last of them: who took part in all."""
    totals: dict[str, Mapping[str, Ints]] = {}
    sites = federation.sites
    missing: dict[str, Any] = {}
    arrays: dict[str, FloatArray] = {}
    for part in shared.parts:
        values = {
            "privacy": mechanism_to_values(shared.mechanism),
            "classes": labels_to_values(np.array(shared.classes)),
            "honest": shared.honest,
            "adjacency": shared.adjacency,
            "part": part,
        }
        question = Payload(arrays, values)
        total = yield from gather_shares(
            federation, "folding_shares", question, shared, part, setting, sites, min_replies=min_replies, hear=hear
        )
        totals[part], sites = total.integers, total.sites
        missing |= total.missing
        if part == "means":
            arrays = {"centres": shared.centres(total.integers)}
    return totals, Total(total.arrays, total.integers, total.sites, missing, True, total.run, total.exchanges)


def _model(
    machines: SiteMachines,
    parameters: FoldingParameters,
    classes: npt.NDArray[Any],
    schema: Schema,
    missing: Mapping[str, str],
    terms: Terms,
    basis: FloatArray | None,
) -> FoldingModel:
    bank = machines.bank()
    with single_blas_thread():
        scores, own = left_out_scores(
            bank,
            parameters.measure,
            generator(parameters.seed, TOGETHER, "calibrate"),
            subspace_dim=parameters.subspace_dim,
            layers=parameters.layers,
            dtype=parameters.dtype,
        )
    temperature = fit_temperature(scores, own) if len(own) else None
    member = Member(tuple(range(len(classes))), 1, len(machines.machines), machines.n_rows, temperature)
    return FoldingModel(
        parameters,
        folding_handle(parameters, terms.request),
        classes,
        schema.width,
        {TOGETHER: member},
        missing,
        schema.columns,
        {TOGETHER: bank},
        privacy=terms,
        basis=basis,
    )

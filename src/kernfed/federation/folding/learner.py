"""One round of federated learning: every site models its classes, and only scores of queries leave it (SFM 3.7)."""

from dataclasses import replace
from typing import Any

import numpy as np

from kernfed._validation import check_choice, check_count
from kernfed.federation.asking import Federation, Replies, warn_missing
from kernfed.federation.folding.connection import FoldingConnection, member_of
from kernfed.federation.folding.questions import collect_machines, describe, prepare
from kernfed.federation.folding.warn import warn_if_exposed
from kernfed.federation.learner import Learner
from kernfed.federation.protocol.schema import Schema, agree, check_classes
from kernfed.federation.release.kept import folding_handle, warn_if_forgotten
from kernfed.files import labels_from_values
from kernfed.kahm.model import FoldingModel, FoldingParameters
from kernfed.kahm.spectrum import check_subspace_dim
from kernfed.kahm.terms import Terms


class FoldingLearner(Learner):
    """Builds a ``FoldingModel`` in one round: the global classifier, GIKM Definition 4 (56) and SFM (118).

    Parameters
    ----------
    measure : one of ``kernfed.kahm.MEASURES``; SFM uses "rms", GIKM and DP-KAHM "distance"
    batch_size, partition : rows per machine and how a class is divided; SFM divides in order
    layers, subspace_dim, dtype : of every machine
    aggregate : "min", or "kth" to survive wrong sites in classes that at least k sites hold; k : which smallest. An
        ``UnprotectedClasses`` warning and ``model.unprotected_`` name the others
    hold : "sites" (only scores leave a site) or "machines" (the model contains rows; every site's policy must allow it)
    privacy : a mechanism of ``kernfed.privacy``: ElementLaplace, ElementStaircase or RecordGaussian for noisy rows,
        RecordMoments for those of classes. A site releases once, keeps what it released and makes its machines of that:
        SFM Definition 3, DP-KAHM Definition 12
    labels : RandomizedLabels, or None where labels, classes and rows per class are public
    smoothing, fabricate : of noisy rows, batch by batch: steps ("coupled_bootstrap", a number, None), and whether their
        images take their place (DP-KAHM Definition 15)
    rows_per_class : rows fabricated from the moments of a class; give them a ``batch_size`` of as many
    """

    def __init__(
        self,
        measure: str = "rms",
        batch_size: int = 100,
        partition: str = "order",
        layers: int = 1,
        dtype: str = "float64",
        aggregate: str = "min",
        k: int = 2,
        hold: str = "sites",
        privacy: Any = None,
        *,
        subspace_dim: int | str = "auto",
        labels: Any = None,
        smoothing: str | int | None = "coupled_bootstrap",
        fabricate: bool = False,
        rows_per_class: int = 1000,
    ) -> None:
        self.parameters = FoldingParameters(
            measure, batch_size, partition, layers, check_subspace_dim(subspace_dim), dtype, aggregate, k
        )
        self.hold = check_choice(hold, "hold", ("sites", "machines"))
        self.recipe = None
        if privacy is not None or labels is not None:
            from kernfed.federation.folding.released import Recipe  # slow to import, and only needed here

            self.recipe = Recipe(privacy, labels, 0 if smoothing is None else smoothing, fabricate, rows_per_class)

    def fit(self, federation: Federation, *, min_replies: int | None = None, timeout: float = 600.0) -> FoldingModel:
        """Ask every site to describe its data and to model its classes.

        With ``min_replies`` (at least 1) so many sites are enough; a ``MissingSites`` warning and ``model.missing_``
        name the others.
        """
        if min_replies is not None:
            check_count(min_replies, "min_replies")
        request = None if self.recipe is None else self.recipe.to_values()
        if request is not None:
            warn_if_forgotten(federation.engine)
        described = describe(federation, request, min_replies=min_replies, timeout=timeout)
        schemas = {site: Schema.from_values(payload.values) for site, payload in described}
        schema = agree(schemas)
        check_classes(schema)
        parameters = replace(self.parameters, seed=federation.seed)
        terms = None if self.recipe is None else self.recipe.terms(schema.width)
        handle = folding_handle(parameters, request)
        replies = prepare(federation, handle, parameters, schema.width, terms, schemas, min_replies, timeout)
        replies = replace(replies, missing={**described.missing, **replies.missing})
        model = _model_of(federation, handle, parameters, schema, terms, replies)
        warn_if_exposed(model)
        if self.hold == "machines":
            model = replace(model, banks=collect_machines(federation, model, model.sites, timeout), connection=None)
        return model


def _model_of(
    federation: Federation,
    handle: str,
    parameters: FoldingParameters,
    schema: Schema,
    terms: Terms | None,
    replies: Replies,
) -> FoldingModel:
    held = {site: labels_from_values(payload.values["classes"]).tolist() for site, payload in replies}
    classes = np.array(sorted({label for labels in held.values() for label in labels}))
    position = {label: number for number, label in enumerate(classes.tolist())}
    members = {site: member_of(payload, position) for site, payload in replies}
    missing = {site: refusal.reason for site, refusal in replies.missing.items()}
    warn_missing(missing, "the others answer", stacklevel=3)
    if terms is not None:
        terms = terms.with_told({site: payload.values["privacy"] for site, payload in replies})
    model = FoldingModel(parameters, handle, classes, schema.width, members, missing, schema.columns, privacy=terms)
    return replace(model, connection=FoldingConnection(federation))

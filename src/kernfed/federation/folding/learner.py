"""One round of federated learning: every site models its classes, and only scores of queries leave it (SFM 3.7)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kernfed.base.checks import check_choice, check_count
from kernfed.errors import InputError
from kernfed.federation.asking import Federation, warn_missing
from kernfed.federation.folding.connection import FoldingConnection, member_of, warn_if_exposed
from kernfed.federation.folding.machines import folding_handle
from kernfed.federation.folding.questions import Training, ask_schemas, ask_training, collect_machines
from kernfed.federation.folding.release import Recipe
from kernfed.federation.folding.tasks import ask_choice
from kernfed.federation.learner import Learner
from kernfed.federation.program import Program
from kernfed.federation.survey import agreeing
from kernfed.files import labels_from_values
from kernfed.kahm.choice import AUTO, Candidate, candidates, usual
from kernfed.kahm.members import Trusted, check_trusted, deciding
from kernfed.kahm.model import TRUST, FoldingModel, FoldingParameters, place_classes
from kernfed.kahm.spectrum import check_subspace_dim
from kernfed.kernels.rows import Scaling
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.schema import Schema, check_classes
from kernfed.site.protocol.traffic import Replies
from kernfed.site.release.kept import warn_if_forgotten

HOLDS = ("sites", "machines")


class FoldingLearner(Learner):
    """Builds a ``FoldingModel`` in one round: the global classifier, GIKM Definition 4 (56) and SFM (118).

    Parameters
    ----------
    measure : one of ``kernfed.kahm.MEASURES``; SFM uses "rms", GIKM and DP-KAHM "distance"
    batch_size, partition : rows per machine ("auto" or a number) and how a class is divided ("auto", "kmeans", "order",
        "random"). "auto" is chosen by rows that machines did not see: sites count how many of theirs each candidate
        gets right, in one more exchange, and the sum decides; ``model.chosen`` shows all counts. SFM has 100, in order
    scale : "columns" (each to the same spread), "entries" (all by one constant), "auto" (the better of these, chosen
        with the batches), or None for rows as they are, as in the papers. The unit is chosen too. Under privacy it
        follows from the public bounds, and batches are 100 rows in order (1000 of fabricated ones): nothing is asked
    layers, subspace_dim, dtype : of every machine
    aggregate : "min", the papers' rule, under which one wrong site decides whatever it likes; or "kth", the k-th
        smallest score, which survives k - 1 wrong sites in classes that at least k + 1 sites hold. Other classes take
        no part in a decision: an ``UnprotectedClasses`` warning and ``model.left_out_`` name them
    k : which smallest; 1 is "min"
    trusted_classes : labels, or "all", that take part under "kth" however few sites hold them: their holders are then
        believed, and can claim every query
    hold : "sites" (only scores leave a site) or "machines" (the model contains rows; every site's policy must allow it)
    privacy : a mechanism of ``kernfed.privacy``: ElementLaplace, ElementStaircase or RecordGaussian for noisy rows,
        RecordMoments for those of classes. A site releases once, keeps what it released and makes its machines of that:
        SFM Definition 3, DP-KAHM Definition 12
    labels : RandomizedLabels, or None where labels, classes and rows per class are public
    smoothing, fabricate : of noisy rows, batch by batch: steps ("coupled_bootstrap", a number, None), and whether their
        images take their place (DP-KAHM Definition 15)
    rows_per_class : rows fabricated from the moments of a class; give them a ``batch_size`` of as many
    sum : "secure" or a ``kernfed.secure.Committee``: sites add up their RecordMoments under masks, with noise once for
        all of them, and one set of machines is made of the sum. The model is whole and holds no rows
    classes : with ``sum``, all labels there can be, which are then public: sites do not tell theirs, nor how many rows
        each has, and labels are protected with their rows
    """

    def __init__(
        self,
        measure: str = "distance",
        *,
        batch_size: int | str = AUTO,
        partition: str = AUTO,
        scale: str | None = AUTO,
        layers: int = 1,
        subspace_dim: int | str = "auto",
        dtype: str = "float64",
        aggregate: str = "min",
        k: int = 2,
        trusted_classes: Trusted = (),
        hold: str = "sites",
        privacy: Any = None,
        labels: Any = None,
        smoothing: str | int | None = "coupled_bootstrap",
        fabricate: bool = False,
        rows_per_class: int = 1000,
        sum: Any = None,
        classes: Sequence[Any] | None = None,
    ) -> None:
        self.measure = measure
        self.batch_size = batch_size
        self.partition = partition
        self.scale = scale
        self.layers = layers
        self.subspace_dim = subspace_dim
        self.dtype = dtype
        self.aggregate = aggregate
        self.k = k
        self.trusted_classes = trusted_classes
        self.hold = hold
        self.privacy = privacy
        self.labels = labels
        self.smoothing = smoothing
        self.fabricate = fabricate
        self.rows_per_class = rows_per_class
        self.sum = sum
        self.classes = classes

    def candidates(self) -> tuple[Candidate, ...]:
        """What sites choose from, checked."""
        return candidates(self.scale, self.batch_size, self.partition)

    @property
    def undecided(self) -> bool:
        """Whether sites have to be asked for units or batches before they model; never under privacy."""
        tried = self.candidates() if self.recipe() is None else ()
        return len(tried) > 1 or any(one.scale is not None for one in tried)

    def parameters(
        self, seed: int = 0, chosen: Candidate | None = None, scale: Scaling | None = None
    ) -> FoldingParameters:
        """What all sites do alike, checked; what is not given and not yet ``chosen`` is as it is without a choice."""
        division = (usual(self.candidates()) if chosen is None else chosen).division
        return FoldingParameters(
            self.measure,
            *division,
            self.layers,
            check_subspace_dim(self.subspace_dim),
            self.dtype,
            self.aggregate,
            self.k,
            seed,
            scale,
        )

    def released_parameters(self, recipe: Recipe, width: int, seed: int = 0) -> FoldingParameters:
        """What all sites do alike with released rows: nothing is chosen by the rows themselves."""
        if self.scale == "columns":
            raise InputError("scale='columns' looks at the rows as they are; under privacy take 'entries' or None")
        size = (100 if recipe.by_row else 1000) if self.batch_size == AUTO else self.batch_size
        how = "order" if self.partition == AUTO else self.partition
        scale = None if self.scale is None else recipe.scaling(width)
        return self.parameters(seed, Candidate(None, 1.0, int(size), how), scale)

    def recipe(self) -> Recipe | None:
        """How sites release their rows, checked; None where rows are taken as they are."""
        if self.privacy is None and self.labels is None:
            return None
        smoothing = 0 if self.smoothing is None else self.smoothing
        return Recipe(self.privacy, self.labels, smoothing, self.fabricate, self.rows_per_class)

    def fit(self, federation: Federation, *, min_replies: int | None = None, timeout: float = 600.0) -> FoldingModel:
        """Ask every site to describe its data, to choose what is "auto", and to model its classes.

        With ``min_replies`` (at least 1) so many sites are enough; a ``MissingSites`` warning and ``model.missing_``
        name the others, also those that describe their data differently from most.
        """
        return federation.run(self.program(federation, min_replies=min_replies), timeout=timeout)

    def program(self, federation: Federation, *, min_replies: int | None = None) -> Program[FoldingModel]:
        """What ``fit`` asks, as a program; see ``kernfed.federation.program``."""
        parameters, recipe = self.parameters(federation.seed), self.recipe()
        if self.sum is not None or self.classes is not None:
            return (yield from self._fit_sum(federation, recipe, min_replies))
        check_choice(self.hold, "hold", HOLDS)
        trusted = check_trusted(self.trusted_classes)
        if min_replies is not None:
            check_count(min_replies, "min_replies")
        request = None if recipe is None else recipe.to_values()
        if request is not None:
            warn_if_forgotten(federation.engine)
        described = yield ask_schemas(request, min_replies=min_replies)
        described, schema = agreeing(described, _read_schema, min_replies)
        schemas = {site: _read_schema(payload) for site, payload in described}
        check_classes(schema)
        terms = None if recipe is None else recipe.terms(schema.width)
        chosen = None
        if recipe is None:
            choice = yield from ask_choice(parameters, self.candidates(), schemas)
            chosen, parameters = choice.chosen, self.parameters(federation.seed, choice.candidate, choice.scale)
        else:
            parameters = self.released_parameters(recipe, schema.width, federation.seed)
        training = Training(folding_handle(parameters, request), parameters, terms)
        replies = yield ask_training(training, schemas, min_replies)
        replies = replace(replies, missing={**described.missing, **replies.missing})
        basis = None if recipe is None else recipe.basis(schema.width)
        model = replace(
            _model_of(training, schema, replies, trusted),
            basis=basis,
            preparation=federation.preparation,
            chosen=chosen,
        )
        if self.hold == "machines":
            model = yield from _with_machines(model, min_replies)
        else:
            model = replace(model, connection=FoldingConnection(federation))
        warn_missing(model.missing_, "the others answer")
        _check_decides(model)
        warn_if_exposed(model)
        return model

    def _fit_sum(
        self,
        federation: Federation,
        recipe: Recipe | None,
        min_replies: int | None,
    ) -> Program[FoldingModel]:
        """One set of machines from what sites release together."""
        from kernfed.federation.folding.shared import fit_shared  # the committee's cryptography, where it is used
        from kernfed.federation.summing.released import honest_sites
        from kernfed.secure.committee.terms import read_setting

        setting = read_setting(self.sum)
        if setting is None or recipe is None:
            raise InputError("sum needs privacy=RecordMoments(...), and classes need a sum; leave them out otherwise")
        warn_if_forgotten(federation.engine)
        classes = self.classes
        if classes is None:
            described = yield ask_schemas(None, min_replies=min_replies)
            schema = agreeing(described, _read_schema, min_replies)[1]
            check_classes(schema)
            classes = schema.classes
        honest = honest_sites(setting, len(federation.sites), min_replies)
        options: Any = {"honest": honest, "min_replies": min_replies}
        options["public_labels"] = self.classes is None

        def parameters(width: int) -> FoldingParameters:
            return self.released_parameters(recipe, width, federation.seed)

        model = yield from fit_shared(federation, recipe, parameters, classes, setting, **options)
        warn_missing(model.missing_, "the sum is that of the others")
        return model


def _read_schema(payload: Payload) -> Schema:
    return Schema.from_values(payload.values)


def _check_decides(model: FoldingModel) -> None:
    """Refuse a model in which no class takes part."""
    p = model.parameters
    if not deciding(model.classes_, model.holds, p.aggregate, p.k, model.trusted_classes).any():
        raise InputError(
            f"under aggregate='kth' with k={p.k} a class takes part where at least {p.k + 1} sites hold it, and of "
            f"{len(model.members_)} site(s) no {p.k + 1} hold the same one: {TRUST}"
        )


def _with_machines(model: FoldingModel, min_replies: int | None) -> Program[FoldingModel]:
    """The model with the machines of its sites; whoever does not send them takes no part."""
    banks, lost = yield from collect_machines(model, model.sites, min_replies)
    for site in lost:
        model = model._without(site)
    return replace(model, banks_=banks, missing_={**model.missing_, **lost})


def _model_of(training: Training, schema: Schema, replies: Replies, trusted: Trusted) -> FoldingModel:
    """The model that the sites' answers to a training make."""
    held = {site: labels_from_values(payload.values["classes"]).tolist() for site, payload in replies}
    members = {site: member_of(payload) for site, payload in replies}
    classes, members = place_classes(members, held, training.parameters, trusted)
    missing = {site: refusal.reason for site, refusal in replies.missing.items()}
    terms = training.terms
    if terms is not None:
        terms = terms.with_told({site: payload.values["privacy"] for site, payload in replies})
    return FoldingModel(
        training.parameters,
        training.handle,
        classes,
        schema.width,
        members,
        missing,
        schema.columns,
        privacy=terms,
        trusted_classes=trusted,
    )

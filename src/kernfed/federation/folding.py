"""One round of federated learning: every site models its classes, and only scores of queries leave it (SFM 3.7)."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed._threads import single_blas_thread
from kernfed._validation import FloatArray, check_choice, check_column_names, check_count, check_number
from kernfed.federation import folding_changes  # noqa: F401  registers what sites do for a model that changes
from kernfed.federation.engine import Federation, Replies, TooFewReplies, connects
from kernfed.federation.folding_warnings import warn_if_exposed, warn_if_temporary
from kernfed.federation.learner import Learner
from kernfed.federation.message import Payload
from kernfed.federation.releases import folding_handle, warn_if_forgotten
from kernfed.federation.schema import Schema, agree, check_classes, label_kind
from kernfed.files import labels_from_values, labels_to_values
from kernfed.kahm.bank import Bank
from kernfed.kahm.folding import ABSENT
from kernfed.kahm.model import FoldingModel, FoldingParameters, Member, SiteScores, StaleModel
from kernfed.kahm.packing import unpack_machines
from kernfed.kahm.spectrum import check_subspace_dim
from kernfed.kahm.terms import Terms

#: Queries per message, in numbers: memory stays bounded and every message far below what transports allow.
_NUMBERS_PER_MESSAGE = 8_000_000


class MissingSites(UserWarning):
    """Some sites did not answer, and the result is that of the others."""


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

    def __init__(self, measure: str = "rms", batch_size: int = 100, partition: str = "order", layers: int = 1,
                 dtype: str = "float64", aggregate: str = "min", k: int = 2, hold: str = "sites", privacy: Any = None,
                 *, subspace_dim: int | str = "auto", labels: Any = None,
                 smoothing: str | int | None = "coupled_bootstrap", fabricate: bool = False,
                 rows_per_class: int = 1000) -> None:  # fmt: skip
        self.parameters = FoldingParameters(measure, batch_size, partition, layers, check_subspace_dim(subspace_dim),
                                            dtype, aggregate, k)  # fmt: skip
        self.hold = check_choice(hold, "hold", ("sites", "machines"))
        self.recipe = None
        if privacy is not None or labels is not None:
            from kernfed.federation.private_tasks import Recipe  # slow to import, and only needed here

            self.recipe = Recipe(privacy, labels, 0 if smoothing is None else smoothing, fabricate, rows_per_class)

    def fit(self, federation: Federation, *, min_replies: int | None = None, timeout: float = 600.0) -> FoldingModel:
        """Ask every site to describe its data and to model its classes.

        With ``min_replies`` (at least 1) so many sites are enough; a ``MissingSites`` warning and ``model.missing``
        name the others.
        """
        if min_replies is not None:
            check_count(min_replies, "min_replies")
        request = None if self.recipe is None else self.recipe.to_values()
        if request is not None:
            warn_if_forgotten(federation.engine)
        described = _describe(federation, request, min_replies=min_replies, timeout=timeout)
        schemas = {site: Schema.from_values(payload.values) for site, payload in described}
        schema = agree(schemas)
        check_classes(schema)
        parameters = replace(self.parameters, seed=federation.seed)
        terms = None if self.recipe is None else self.recipe.terms(schema.width)
        handle = folding_handle(parameters, request)
        replies = _prepare(federation, handle, parameters, schema.width, terms, schemas, min_replies, timeout)
        replies = replace(replies, missing={**described.missing, **replies.missing})
        model = _model_of(federation, handle, parameters, schema, terms, replies)
        warn_if_exposed(model)
        if self.hold == "machines":
            model = replace(model, banks=_collect_machines(federation, model, model.sites, timeout), connection=None)
        return model


def query_chunks(queries: int, width: int) -> list[tuple[int, int]]:
    """First and last of the queries of each message."""
    size = max(1, _NUMBERS_PER_MESSAGE // width)
    return [(start, min(start + size, queries)) for start in range(0, queries, size)] or [(0, 0)]


# Asking -----------------------------------------------------------------------------------------------------------


def folding_question(handle: str, parameters: FoldingParameters, queries: FloatArray, *, prepare: bool = False,
              explain: bool = False, generation: dict[str, int] | None = None,
              privacy: Mapping[str, Any] | None = None) -> Payload:  # fmt: skip
    """Payload of the task "scores": queries X, and which state of which machines is meant.

    To ``prepare`` machines of released rows the question says how to release them.
    """
    values = {"handle": handle, "parameters": parameters.to_values(), "prepare": prepare, "explain": explain,
              "generation": generation or {}}  # fmt: skip
    if privacy is not None:
        values["privacy"] = privacy
    return Payload({"X": queries}, values)


def _describe(federation: Federation, request: Mapping[str, Any] | None, sites: Sequence[str] | None = None,
              **options: Any) -> Replies:  # fmt: skip
    """Schemas of the sites; by randomised labels where labels are not public."""
    if request is None or request["labels"] is None:
        return federation.describe(sites, **options)
    question = Payload(values={"privacy": request})

    def check(site: str, payload: Payload) -> None:  # noqa: ARG001  every check has this signature
        Schema.from_values(payload.values)

    return federation.ask("describe", question, sites=sites, check=check, **options)


def _prepare(federation: Federation, handle: str, parameters: FoldingParameters, width: int, terms: Terms | None,
             described: Mapping[str, Schema | None], min_replies: int | None, timeout: float) -> Replies:  # fmt: skip
    """Let sites model their classes. The question is that for scores, of no query: nothing else needs allowing.

    What they model must be what they ``described``, where they did, and released under these ``terms``.
    """

    def check(site: str, payload: Payload) -> None:
        _check_scores(payload, 0, parameters.measure)
        if payload.values["temperature"] is not None:
            check_number(float(payload.values["temperature"]), "temperature", above=0)
        for name in ("generation", "machines", "rows"):
            check_count(payload.values[name], name)
        if terms is not None:
            terms.check_told(payload.values["privacy"])
        held, schema = labels_from_values(payload.values["classes"]).tolist(), described[site]
        if schema is not None and (held != list(schema.classes) or payload.values["rows"] != schema.n_rows):
            raise ValueError(f"the site described {schema.n_rows} rows of classes {list(schema.classes)[:20]}, "
                             f"and models {payload.values['rows']} of {held[:20]}")  # fmt: skip

    empty: FloatArray = np.zeros((0, width))
    request = None
    if terms is not None:
        empty, request = terms.project(empty), terms.request
    question = folding_question(handle, parameters, empty, prepare=True, privacy=request)
    return federation.ask("scores", question, sites=sorted(described), min_replies=min_replies, timeout=timeout,
                          check=check)  # fmt: skip


def _model_of(federation: Federation, handle: str, parameters: FoldingParameters, schema: Schema, terms: Terms | None,
              replies: Replies) -> FoldingModel:  # fmt: skip
    held = {site: labels_from_values(payload.values["classes"]).tolist() for site, payload in replies}
    classes = np.array(sorted({label for labels in held.values() for label in labels}))
    position = {label: number for number, label in enumerate(classes.tolist())}
    members = {site: _member(payload, position) for site, payload in replies}
    missing = {site: refusal.reason for site, refusal in replies.missing.items()}
    if missing:
        _warn(missing)
    if terms is not None:
        terms = terms.with_told({site: payload.values["privacy"] for site, payload in replies})
    model = FoldingModel(parameters, handle, classes, schema.width, members, missing, schema.columns,
                         privacy=terms)  # fmt: skip
    return replace(model, connection=FoldingConnection(federation))


def _member(payload: Payload, position: dict[Any, int]) -> Member:
    """A site's reply to the preparation, with its classes as positions among all."""
    held = labels_from_values(payload.values["classes"]).tolist()
    values = payload.values
    temperature = None if values["temperature"] is None else float(values["temperature"])
    classes = tuple(position[label] for label in held)
    return Member(classes, values["generation"], values["machines"], values["rows"], temperature)


def _collect_machines(federation: Federation, model: FoldingModel, sites: Sequence[str],
                      timeout: float = 600.0) -> dict[str, Bank]:  # fmt: skip
    """Fetch the machines of sites; all must agree."""
    banks: dict[str, Bank] = {}
    private = model.privacy
    width = model.width if private is None or private.basis is None else private.basis.shape[1]

    def check(site: str, payload: Payload) -> None:
        machines = unpack_machines(payload.arrays)
        member = model.members[site]
        groups = payload.arrays["groups"]
        if len(machines) != member.machines or groups.shape != (len(machines),):
            raise ValueError(f"expected {member.machines} machines with their classes, got {len(machines)}")
        if any(machine.width != width for machine in machines):
            raise ValueError(f"machines must have {width} columns")
        if set(groups.tolist()) != set(range(len(member.classes))):
            raise ValueError("machines must cover the site's classes")
        if not all(np.isfinite(array).all() for array in payload.arrays.values()):
            raise ValueError("machines must hold finite numbers")
        if any(machine.directions.dtype != model.parameters.dtype for machine in machines):
            raise ValueError(f"machines must be of {model.parameters.dtype}")
        with single_blas_thread():
            banks[site] = Bank.assemble(machines, groups.tolist(), len(member.classes))

    generation = {site: model.members[site].generation for site in sites}
    question = Payload(values={"handle": model.handle, "generation": generation})
    federation.ask("machines" if private is None else "released_machines", question, sites=sites, timeout=timeout,
                   check=check)  # fmt: skip
    return banks


def _check_scores(payload: Payload, queries: int, measure: str, *, explain: bool = False) -> None:
    """Refuse scores that cannot be: wrong shape or type, not finite, out of the measure's range."""
    held = labels_from_values(payload.values["classes"])
    if len(np.unique(held)) != len(held) or not len(held):
        raise ValueError(f"a site must name its classes once each, got {held.tolist()}")
    expected = {"scores": np.float64, **({"batches": np.int32} if explain else {})}
    if set(payload.arrays) != set(expected):
        raise ValueError(f"expected arrays {sorted(expected)}, got {sorted(payload.arrays)}")
    for name, kind in expected.items():
        array = payload.arrays[name]
        if array.shape != (queries, len(held)) or array.dtype != kind:
            raise ValueError(f"{name} must be {kind.__name__} of shape {(queries, len(held))}, "
                             f"got {array.dtype} of {array.shape}")  # fmt: skip
    values = payload.arrays["scores"]
    if not np.isfinite(values).all():
        raise ValueError("scores must be finite")
    top = np.inf if measure == "distance" else 1.0
    if values.size and (values.min() < 0 or values.max() > top):
        raise ValueError(f"{measure} scores must be in [0, {top}], got {values.min()} to {values.max()}")


def raise_if_unusable(task: str, replies: Replies, *, everybody: bool) -> None:
    """Raise where a site says that the model is stale, or where ``everybody`` had to answer and somebody did not."""
    stale = [refusal.reason for refusal in replies.missing.values() if refusal.code == "stale"]
    if stale:
        raise StaleModel(stale[0])
    if everybody and replies.missing:
        raise TooFewReplies(task, len(replies) + len(replies.missing), replies)


def _warn(missing: dict[str, str]) -> None:
    listed = "; ".join(f"{site!r}: {reason}" for site, reason in list(missing.items())[:10])
    more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
    warnings.warn(f"{len(missing)} site(s) missing, the others answer: {listed}{more}", MissingSites, stacklevel=4)


@dataclass(frozen=True)
class FoldingConnection:
    """Answers a ``FoldingModel`` from the sites of a federation."""

    federation: Federation

    def scores(self, model: FoldingModel, X: FloatArray, *, explain: bool = False, min_replies: int | None = None,
               timeout: float = 600.0) -> SiteScores:  # fmt: skip
        """Scores of all members, in messages of bounded size."""
        X = X if X.dtype in (np.float32, np.float64) else X.astype(np.float64)  # others do not travel
        chunks = [X[start:stop] for start, stop in query_chunks(len(X), X.shape[1])]
        parts: list[Replies] = []
        missing: dict[str, str] = {}
        for chunk in chunks:
            asked = [site for site in model.sites if site not in missing]
            replies = self._ask(model, chunk, asked, explain, min_replies, timeout)
            missing |= {site: refusal.reason for site, refusal in replies.missing.items()}
            parts.append(replies)
        if missing:
            _warn(missing)
        sites = tuple(site for site in model.sites if site not in missing)
        shape = (len(sites), len(X), len(model.classes_))
        values, batches = np.full(shape, ABSENT[model.parameters.measure]), np.full(shape, -1, dtype=np.intp)
        for row, site in enumerate(sites):
            columns = list(model.members[site].classes)
            values[row][:, columns] = np.concatenate([part[site].arrays["scores"] for part in parts])
            if explain:
                batches[row][:, columns] = np.concatenate([part[site].arrays["batches"] for part in parts])
        return SiteScores(values, batches, sites, missing)

    def _ask(self, model: FoldingModel, queries: FloatArray, sites: Sequence[str], explain: bool,
             min_replies: int | None, timeout: float) -> Replies:  # fmt: skip
        def check(site: str, payload: Payload) -> None:
            member = model.members[site]
            _check_scores(payload, len(queries), model.parameters.measure, explain=explain)
            batches = payload.arrays.get("batches", np.zeros(0))
            if batches.size and not 0 <= batches.min() <= batches.max() < member.machines:
                raise ValueError(f"batches must be numbers of the site's {member.machines} machines")
            if labels_from_values(payload.values["classes"]).tolist() != model.classes_[list(member.classes)].tolist():
                raise ValueError("the site's classes are not those the model was made with")

        generation = {site: model.members[site].generation for site in sites}
        question = folding_question(model.handle, model.parameters, queries, explain=explain, generation=generation)
        needed = 0 if min_replies is None else check_count(min_replies, "min_replies")
        replies = self.federation.ask("scores", question, sites=sites, min_replies=needed, timeout=timeout, check=check)
        raise_if_unusable("scores", replies, everybody=min_replies is None)
        return replies

    def saved(self, model: FoldingModel, path: Any) -> None:
        """Warn where the sites will not remember the model's machines."""
        warn_if_temporary(self.federation.engine, model, path)

    def secure_predict(self, model: FoldingModel, X: FloatArray, *, scheme: str, bits: int,
                       min_replies: int | None = None, timeout: float = 600.0) -> npt.NDArray[Any]:  # fmt: skip
        """Labels by scores that only the asking key holder can combine and read."""
        from kernfed.federation.secure import secure_predict  # it builds on this module

        return secure_predict(self.federation, model, X, scheme=scheme, bits=bits, min_replies=min_replies,
                              timeout=timeout)  # fmt: skip

    def forget(self, model: FoldingModel, site: str, rows: Sequence[int] | None) -> FoldingModel:
        """Model without ``site``, or without some of its rows; the site deletes what it kept of them."""
        if rows is None:
            new = model._without(site)  # raises where nothing would remain, before the site forgets
            told = self.federation.ask("forget_model", Payload(values={"handle": model.handle}), sites=[site],
                                       min_replies=0)  # fmt: skip
            if told.missing:
                warnings.warn(f"site {site!r} takes part no longer, but did not delete its machines: "
                              f"{told.missing[site].reason}", MissingSites, stacklevel=3)  # fmt: skip
            return new
        ids = np.asarray(rows)
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids):
            raise ValueError(f"rows must be a list of row ids, got {rows!r}")
        self.federation.ask("forget_rows", Payload({"ids": ids.astype(np.int64)}), sites=[site])
        return self._refresh(model, site)

    def add_site(self, model: FoldingModel, site: str, data: Any) -> FoldingModel:
        """Model with another site, which models its classes as the others did."""
        if site in model.members:
            raise ValueError(f"site {site!r} takes part already")
        if data is not None:
            add = getattr(self.federation.engine, "add_site", None)
            if add is None:
                raise ValueError("data can be given on the local engine only; elsewhere a site brings its own")
            add(site, data)
        try:
            request = None if model.privacy is None else model.privacy.request
            known = _describe(self.federation, request, [*model.sites, site], min_replies=0)
            if site in known.missing:
                raise ValueError(f"site {site!r} does not answer: {known.missing[site].reason}")
            schemas = {name: Schema.from_values(payload.values) for name, payload in known}
            schema = agree(schemas)
            if schema.width != model.width:
                raise ValueError(f"site {site!r} has {schema.width} columns, the model has {model.width}")
            return self._refresh(model, site, schemas[site])
        except Exception:
            if data is not None:
                self.federation.engine.remove_site(site)  # type: ignore[attr-defined]
            raise

    def add_rows(self, model: FoldingModel, site: str, X: Any, y: Any, ids: Any) -> FoldingModel:
        """Model with further rows at ``site``."""
        check_column_names(X, model.columns)
        values: dict[str, Any] = {"y": labels_to_values(np.asarray(y))}
        if model.privacy is not None:  # the rows are released for this model, and for no other
            values["handle"] = model.handle
        arrays = {"X": np.asarray(X, dtype=np.float64), **({} if ids is None else {"ids": np.asarray(ids)})}
        self.federation.ask("add_rows", Payload(arrays, values), sites=[site])
        return self._refresh(model, site)

    def _refresh(self, model: FoldingModel, site: str, schema: Schema | None = None) -> FoldingModel:
        """Model with what ``site`` now holds; the other members stay as they are."""
        replies = _prepare(self.federation, model.handle, model.parameters, model.width, model.privacy, {site: schema},
                           0, 600.0)  # fmt: skip
        refusal = replies.missing.get(site)
        if refusal is not None and refusal.code == "empty":
            return model._without(site)
        if refusal is not None:
            raise TooFewReplies("scores", 1, replies)
        held = labels_from_values(replies[site].values["classes"]).tolist()
        known = {name: member for name, member in model.members.items() if name != site}
        if known and label_kind(model.classes_) != label_kind(np.array(held)):
            raise ValueError(f"site {site!r} has labels {held[:5]}, the model {model.classes_[:5].tolist()}")
        kept = sorted({number for member in known.values() for number in member.classes})
        classes = np.array(sorted({*held, *model.classes_[kept].tolist()}))
        position = {label: number for number, label in enumerate(classes.tolist())}
        members = known
        if classes.tolist() != model.classes_.tolist():
            moved = [position.get(label, -1) for label in model.classes_.tolist()]
            members = {name: replace(member, classes=tuple(moved[number] for number in member.classes))
                       for name, member in known.items()}  # fmt: skip
        members[site] = _member(replies[site], position)
        terms = model.privacy and model.privacy.with_told({site: replies[site].values["privacy"]})
        new = replace(model, members=members, classes_=classes, privacy=terms, calibrated=None)
        if model.banks is None:
            return new
        return replace(new, banks={**model.banks, **_collect_machines(self.federation, new, [site])})


@connects(FoldingModel)
def connect_folding(federation: Federation, model: FoldingModel) -> FoldingModel:
    """Model answered by the federation's sites, all of which must be there."""
    absent = [site for site in model.sites if site not in federation.sites]
    if absent:
        raise ValueError(f"the model needs site {absent[0]!r}, the federation has {', '.join(federation.sites[:20])}")
    return replace(model, connection=FoldingConnection(federation))

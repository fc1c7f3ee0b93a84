"""What a FoldingModel does with the federation behind it: answer queries, forget and take in sites and rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_column_names, check_count
from kernfed.base.warn import warn
from kernfed.errors import InputError, MissingSites, TemporaryStores, TooFewReplies, UnprotectedClasses
from kernfed.federation.asking import Federation, warn_missing
from kernfed.federation.folding.questions import (
    Training,
    ask_schemas,
    ask_training,
    check_scores,
    collect_machines,
    query_chunks,
    raise_if_unusable,
    scores_question,
)
from kernfed.federation.folding.scoring import KEEP_MACHINES
from kernfed.federation.folding.secure import secure_predict
from kernfed.federation.program import Ask, Program
from kernfed.files import labels_from_values, labels_to_values
from kernfed.kahm.folding import ABSENT
from kernfed.kahm.model import TRUST, FoldingModel, Member, SiteScores, place_classes
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.schema import Schema, agree, label_kind, odd_sites
from kernfed.site.protocol.traffic import Replies


def warn_if_exposed(model: FoldingModel) -> None:
    """Warn where "kth" was asked for and does not protect all classes; called by ``fit``."""
    reason = model.exposure()
    if reason is not None:
        advice = "choose k=2 and more" if model.parameters.k == 1 else TRUST
        warn(f"{reason}: {advice}; model.unprotected_ lists them", UnprotectedClasses)


def warn_if_temporary(engine: Any, model: FoldingModel, path: Any) -> None:
    """Warn where a model was saved whose sites, in this process, remember nothing after it; called by ``save``."""
    lost = sorted(set(getattr(engine, "temporary_sites", ())) & set(model.sites))
    if lost:
        warn(
            f"{path} refers to machines in temporary stores of {len(lost)} site(s), such as {lost[0]!r}, and "
            f"no later process can use it: {KEEP_MACHINES}",
            TemporaryStores,
        )


def member_of(payload: Payload) -> Member:
    """A site's reply to a training; its classes are placed among those of all by ``place_classes``."""
    values = payload.values
    temperature = None if values["temperature"] is None else float(values["temperature"])
    counts = tuple(values.get("counts", ()))  # sites of version 0.1, and those of released rows, tell none
    return Member((), values["generation"], values["machines"], values["rows"], temperature, counts=counts)


@dataclass(frozen=True)
class FoldingConnection:
    """Answers a ``FoldingModel`` from the sites of a federation."""

    federation: Federation

    def scores(
        self,
        model: FoldingModel,
        X: FloatArray,
        *,
        explain: bool = False,
        min_replies: int | None = None,
        timeout: float = 600.0,
    ) -> SiteScores:
        """Scores of all members, in messages of bounded size."""
        program = ask_scores(model, X, explain=explain, min_replies=min_replies)
        scores = self.federation.run(program, timeout=timeout)
        warn_missing(scores.missing, "the others answer")
        return scores

    def _ask(self, ask: Ask) -> Replies:
        """Replies to one ask, which needs none."""
        return self.federation.ask(ask.task, ask.payload, sites=ask.sites, min_replies=0, check=ask.check)

    def saved(self, model: FoldingModel, path: Any) -> None:
        """Warn where the sites will not remember the model's machines."""
        warn_if_temporary(self.federation.engine, model, path)

    def secure_predict(
        self,
        model: FoldingModel,
        X: FloatArray,
        *,
        scheme: str,
        bits: int,
        min_replies: int | None = None,
        timeout: float = 600.0,
    ) -> npt.NDArray[Any]:
        """Labels by scores that only the asking key holder can combine and read."""
        return secure_predict(
            self.federation, model, X, scheme=scheme, bits=bits, min_replies=min_replies, timeout=timeout
        )

    def forget(self, model: FoldingModel, site: str, rows: Sequence[int] | None) -> FoldingModel:
        """Model without ``site``, or without some of its rows; the site deletes what it kept of them."""
        if rows is None:
            new = model._without(site)  # raises where nothing would remain, before the site forgets
            told = self.federation.ask(
                "forget_model", Payload(values={"handle": model.handle}), sites=[site], min_replies=0
            )
            if told.missing:
                warn(
                    f"site {site!r} takes part no longer, but did not delete its machines: {told.missing[site].reason}",
                    MissingSites,
                )
            return new
        ids = np.asarray(rows)
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids):
            raise InputError(f"rows must be a list of row ids, got {rows!r}")
        self.federation.ask("forget_rows", Payload({"ids": ids.astype(np.int64)}), sites=[site])
        return self._refresh(model, site)

    def add_site(self, model: FoldingModel, site: str, data: Any) -> FoldingModel:
        """Model with another site, which models its classes as the others did."""
        if site in model.members_:
            raise InputError(f"site {site!r} takes part already")
        if data is not None:
            add = getattr(self.federation.engine, "add_site", None)
            if add is None:
                raise InputError("data can be given on the local engine only; elsewhere a site brings its own")
            add(site, data)
        try:
            if model.preparation is not None:
                told = Payload(values={"preparation": model.preparation.to_values()})
                self.federation.ask("prepare", told, sites=[site])
            request = None if model.privacy is None else model.privacy.request
            known = self._ask(ask_schemas(request, [*model.sites, site], min_replies=0))
            if site in known.missing:
                raise InputError(f"site {site!r} does not answer: {known.missing[site].reason}")
            schemas = {name: Schema.from_values(payload.values) for name, payload in known}
            odd = odd_sites(schemas)  # those that are members already must not keep others out
            schema = agree({name: own for name, own in schemas.items() if name == site or name not in odd})
            if schema.width != model.n_features_in_:
                raise InputError(f"site {site!r} has {schema.width} columns, the model has {model.n_features_in_}")
            return self._refresh(model, site, schemas[site])
        except Exception:
            if data is not None:
                self.federation.engine.remove_site(site)  # type: ignore[attr-defined]
            raise

    def add_rows(self, model: FoldingModel, site: str, X: Any, y: Any, ids: Any) -> FoldingModel:
        """Model with further rows at ``site``."""
        check_column_names(X, model.feature_names_in_)
        values: dict[str, Any] = {"y": labels_to_values(np.asarray(y))}
        if model.privacy is not None:  # the rows are released for this model, and for no other
            values["handle"] = model.handle
        arrays = {"X": np.asarray(X, dtype=np.float64), **({} if ids is None else {"ids": np.asarray(ids)})}
        self.federation.ask("add_rows", Payload(arrays, values), sites=[site])
        return self._refresh(model, site)

    def _refresh(self, model: FoldingModel, site: str, schema: Schema | None = None) -> FoldingModel:
        """Model with what ``site`` now holds; the other members stay as they are."""
        training = Training(model.handle, model.parameters, model.privacy)
        replies = self._ask(ask_training(training, {site: schema}, min_replies=0))
        refusal = replies.missing.get(site)
        if refusal is not None and refusal.code == "empty":
            return model._without(site)
        if refusal is not None:
            raise TooFewReplies("folding_fit", 1, replies)
        held = labels_from_values(replies[site].values["classes"]).tolist()
        known = {name: member for name, member in model.members_.items() if name != site}
        if known and label_kind(model.classes_) != label_kind(np.array(held)):
            raise InputError(f"site {site!r} has labels {held[:5]}, the model {model.classes_[:5].tolist()}")
        labels = {name: member.held(model.classes_) for name, member in known.items()} | {site: held}
        members = {**known, site: member_of(replies[site])}
        classes, members = place_classes(members, labels, model.parameters, model.trusted_classes)
        terms = model.privacy and model.privacy.with_told({site: replies[site].values["privacy"]})
        new = replace(model, members_=members, classes_=classes, privacy=terms, calibrated_=None, conformal_=None)
        if model.banks_ is None:
            return new
        banks, _ = self.federation.run(collect_machines(new, [site]))
        return replace(new, banks_={**model.banks_, **banks})


def ask_scores(
    model: FoldingModel, X: FloatArray, *, explain: bool = False, min_replies: int | None = None
) -> Program[SiteScores]:
    """Scores of all members for queries X (n, p), in messages of bounded size."""
    X = X if X.dtype in (np.float32, np.float64) else X.astype(np.float64)  # others do not travel
    parts: list[Replies] = []
    missing: dict[str, str] = {}
    for start, stop in query_chunks(len(X), X.shape[1]):
        asked = [site for site in model.sites if site not in missing]
        replies: Replies = yield _scores_ask(model, X[start:stop], asked, explain, min_replies)
        raise_if_unusable("scores", replies, everybody=min_replies is None)
        missing |= {site: refusal.reason for site, refusal in replies.missing.items()}
        parts.append(replies)
    sites = tuple(site for site in model.sites if site not in missing)
    shape = (len(sites), len(X), len(model.classes_))
    values, batches = np.full(shape, ABSENT[model.parameters.measure]), np.full(shape, -1, dtype=np.intp)
    for row, site in enumerate(sites):
        columns, theirs = list(model.members_[site].classes), model.members_[site].columns(model.classes_)
        values[row][:, columns] = np.concatenate([part[site].arrays["scores"] for part in parts])[:, theirs]
        if explain:
            batches[row][:, columns] = np.concatenate([part[site].arrays["batches"] for part in parts])[:, theirs]
    return SiteScores(values, batches, sites, missing)


def _scores_ask(
    model: FoldingModel, queries: FloatArray, sites: Sequence[str], explain: bool, min_replies: int | None
) -> Ask:
    """The ask for scores of ``queries``, whose replies must fit the model."""

    def check(site: str, payload: Payload) -> None:
        member = model.members_[site]
        check_scores(payload, len(queries), model.parameters.measure, explain=explain)
        batches = payload.arrays.get("batches", np.zeros(0))
        if batches.size and not 0 <= batches.min() <= batches.max() < member.machines:
            raise InputError(f"batches must be numbers of the site's {member.machines} machines")
        if labels_from_values(payload.values["classes"]).tolist() != member.held(model.classes_):
            raise InputError("the site's classes are not those the model was made with")

    generation = {site: model.members_[site].generation for site in sites}
    question = scores_question(model.handle, queries, generation, explain=explain)
    needed = 0 if min_replies is None else check_count(min_replies, "min_replies")
    return Ask("scores", question, sites, needed, check)


def connect_folding(federation: Federation, model: FoldingModel) -> FoldingModel:
    """Model answered by the federation's sites, all of which must be there."""
    absent = [site for site in model.sites if site not in federation.sites]
    if absent:
        raise InputError(f"the model needs site {absent[0]!r}, the federation has {', '.join(federation.sites[:20])}")
    return replace(model, connection=FoldingConnection(federation))

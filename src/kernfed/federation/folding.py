"""One round of federated learning: every site models its classes, and only scores of queries leave it (SFM 3.7)."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernfed._validation import FloatArray, check_choice, check_count, check_number
from kernfed.federation.engine import Federation, Replies, TooFewReplies, connects
from kernfed.federation.message import Payload, digest
from kernfed.federation.schema import Schema, agree
from kernfed.files import labels_from_values, labels_to_values
from kernfed.kahm.aggregate import AGGREGATES
from kernfed.kahm.bank import Bank
from kernfed.kahm.batches import PARTITIONS
from kernfed.kahm.compose import DTYPES, check_subspace_dim
from kernfed.kahm.folding import ABSENT, MEASURES
from kernfed.kahm.model import FoldingModel, FoldingParameters, Member, SiteScores, StaleModel
from kernfed.kahm.packing import unpack_machines

#: Queries per message, in numbers: memory stays bounded and every message far below what transports allow.
_NUMBERS_PER_MESSAGE = 8_000_000


class MissingSites(UserWarning):
    """Some sites did not answer, and the result is that of the others."""


class FoldingLearner:
    """Builds a ``FoldingModel`` in one round.

    Parameters
    ----------
    measure : one of ``kernfed.kahm.MEASURES``; SFM uses "rms", GIKM and DP-KAHM "distance"
    batch_size, partition : rows per machine and how a class is divided; SFM divides in order
    layers, subspace_dim, dtype : of every machine
    aggregate : "min", or "kth" to survive wrong sites; k : which smallest
    hold : "sites" (only scores leave a site) or "machines" (the model contains rows; every site's policy must allow it)
    """

    def __init__(self, measure: str = "rms", batch_size: int = 100, partition: str = "order", layers: int = 1,
                 dtype: str = "float64", aggregate: str = "min", k: int = 2, hold: str = "sites", privacy: None = None,
                 *, subspace_dim: int | str = "auto") -> None:  # fmt: skip
        check_choice(aggregate, "aggregate", AGGREGATES)
        self.parameters = FoldingParameters(
            measure=check_choice(measure, "measure", MEASURES),
            batch_size=check_count(batch_size, "batch_size"),
            partition=check_choice(partition, "partition", PARTITIONS),
            layers=check_count(layers, "layers"),
            subspace_dim=check_subspace_dim(subspace_dim),
            dtype=check_choice(dtype, "dtype", DTYPES),
            aggregate=aggregate,
            k=check_count(k, "k"),
        )
        self.hold = check_choice(hold, "hold", ("sites", "machines"))
        if privacy is not None:
            raise ValueError(f"privacy must be None, got {privacy!r}: this version trains on the rows as they are")

    def fit(self, federation: Federation, *, min_replies: int | None = None, timeout: float = 600.0) -> FoldingModel:
        """Ask every site to describe its data and to model its classes."""
        schemas = federation.schemas(min_replies=min_replies, timeout=timeout)
        schema = agree(schemas)
        if len(schema.classes) < 2:
            raise ValueError(f"the sites must have at least 2 classes together, got {list(schema.classes)}")
        parameters = replace(self.parameters, seed=federation.seed)
        handle = digest(parameters.to_values())
        replies = _prepare(federation, handle, parameters, schema.width, sorted(schemas), min_replies, timeout)
        model = _model_of(federation, handle, parameters, schema, replies)
        if self.hold == "machines":
            model = _collect_machines(federation, model, timeout)
        return model


# Asking -----------------------------------------------------------------------------------------------------------


def folding_question(handle: str, parameters: FoldingParameters, queries: FloatArray, *, prepare: bool = False,
              explain: bool = False, generation: dict[str, int] | None = None) -> Payload:  # fmt: skip
    """Payload of the task "scores": queries X, and which state of which machines is meant."""
    values = {"handle": handle, "parameters": parameters.to_values(), "prepare": prepare, "explain": explain,
              "generation": generation or {}}  # fmt: skip
    return Payload({"X": queries}, values)


def _prepare(federation: Federation, handle: str, parameters: FoldingParameters, width: int, sites: Sequence[str],
             min_replies: int | None, timeout: float) -> Replies:  # fmt: skip
    """Let sites model their classes. The question is that for scores, of no query: nothing else needs allowing."""
    empty = np.zeros((0, width))

    def check(site: str, payload: Payload) -> None:  # noqa: ARG001  every check has this signature
        _check_scores(payload, 0, parameters.measure)
        temperature = payload.values["temperature"]
        if temperature is not None:
            check_number(temperature, "temperature", above=0)
        for name in ("generation", "machines", "rows"):
            check_count(payload.values[name], name)

    question = folding_question(handle, parameters, empty, prepare=True)
    return federation.ask("scores", question, sites=sites, min_replies=min_replies, timeout=timeout, check=check)


def _model_of(federation: Federation, handle: str, parameters: FoldingParameters, schema: Schema,
              replies: Replies) -> FoldingModel:  # fmt: skip
    held = {site: labels_from_values(payload.values["classes"]).tolist() for site, payload in replies}
    classes = np.array(sorted({label for labels in held.values() for label in labels}))
    position = {label: number for number, label in enumerate(classes.tolist())}
    members = {site: _member(payload, position) for site, payload in replies}
    missing = {site: refusal.reason for site, refusal in replies.missing.items()}
    if missing:
        _warn(missing)
    model = FoldingModel(parameters, handle, classes, schema.width, members, _temperature(replies), missing,
                         schema.columns)  # fmt: skip
    return replace(model, connection=FoldingConnection(federation))


def _member(payload: Payload, position: dict[Any, int]) -> Member:
    """A site's reply to the preparation, with its classes as positions among all."""
    held = labels_from_values(payload.values["classes"]).tolist()
    values = payload.values
    return Member(tuple(position[label] for label in held), values["generation"], values["machines"], values["rows"])


def _temperature(replies: Replies) -> float:
    """Median of the sites' temperatures, weighted by rows."""
    found = sorted((float(p.values["temperature"]), int(p.values["rows"])) for _, p in replies
                   if p.values["temperature"] is not None)  # fmt: skip
    if not found:
        return 1.0
    reached = np.cumsum([rows for _, rows in found])
    return found[int(np.searchsorted(reached, reached[-1] / 2))][0]


def _collect_machines(federation: Federation, model: FoldingModel, timeout: float) -> FoldingModel:
    """Fetch every site's machines; all must agree."""
    banks: dict[str, Bank] = {}

    def check(site: str, payload: Payload) -> None:
        machines = unpack_machines(payload.arrays)
        member = model.members[site]
        groups = payload.arrays["groups"]
        if len(machines) != member.machines or groups.shape != (len(machines),):
            raise ValueError(f"expected {member.machines} machines with their classes, got {len(machines)}")
        if any(machine.width != model.width for machine in machines):
            raise ValueError(f"machines must have {model.width} columns")
        if set(groups.tolist()) != set(range(len(member.classes))):
            raise ValueError("machines must cover the site's classes")
        if not all(np.isfinite(array).all() for array in payload.arrays.values()):
            raise ValueError("machines must hold finite numbers")
        banks[site] = Bank.assemble(machines, groups.tolist(), len(member.classes))

    generation = {site: member.generation for site, member in model.members.items()}
    question = Payload(values={"handle": model.handle, "generation": generation})
    federation.ask("machines", question, sites=model.sites, timeout=timeout, check=check)
    return replace(model, banks=banks, connection=None)


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
        size = max(1, _NUMBERS_PER_MESSAGE // model.width)
        chunks = [X[start : start + size] for start in range(0, len(X), size)] or [X]
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
            if labels_from_values(payload.values["classes"]).tolist() != model.classes_[list(member.classes)].tolist():
                raise ValueError("the site's classes are not those the model was made with")

        generation = {site: model.members[site].generation for site in sites}
        question = folding_question(model.handle, model.parameters, queries, explain=explain, generation=generation)
        needed = 0 if min_replies is None else min_replies
        replies = self.federation.ask("scores", question, sites=sites, min_replies=needed, timeout=timeout, check=check)
        stale = [site for site, refusal in replies.missing.items() if refusal.code == "stale"]
        if stale:
            raise StaleModel(f"site {stale[0]!r} has changed since this model was made; use the newer model")
        if min_replies is None and replies.missing:
            raise TooFewReplies("scores", len(sites), replies)
        return replies

    def forget(self, model: FoldingModel, site: str, rows: Sequence[int] | None) -> FoldingModel:
        """Model without ``site``, or without some of its rows; the site deletes what it kept of them."""
        if rows is None:
            self.federation.ask("forget_model", Payload(values={"handle": model.handle}), sites=[site], min_replies=0)
            return model._without(site)
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
            add(site, data, seed=self.federation.seed)
        schema = self.federation.schemas([site])[site]
        if schema.width != model.width:
            raise ValueError(f"site {site!r} has {schema.width} columns, the model has {model.width}")
        return self._refresh(model, site)

    def add_rows(self, model: FoldingModel, site: str, X: Any, y: Any, ids: Any) -> FoldingModel:
        """Model with further rows at ``site``."""
        values = {"y": labels_to_values(np.asarray(y))}
        arrays = {"X": np.asarray(X, dtype=np.float64), **({} if ids is None else {"ids": np.asarray(ids)})}
        self.federation.ask("add_rows", Payload(arrays, values), sites=[site])
        return self._refresh(model, site)

    def _refresh(self, model: FoldingModel, site: str) -> FoldingModel:
        """Model with what ``site`` now holds; the other members stay as they are."""
        known = {**model.members}
        replies = _prepare(self.federation, model.handle, model.parameters, model.width, [site], 0, 600.0)
        refusal = replies.missing.get(site)
        if refusal is not None and refusal.code == "empty":
            return model._without(site)
        if refusal is not None:
            raise ValueError(f"site {site!r} does not answer: {refusal.reason}")
        payload = replies[site]
        held = labels_from_values(payload.values["classes"]).tolist()
        labels = {name: model.classes_[list(member.classes)].tolist() for name, member in known.items() if name != site}
        classes = np.array(sorted({*held, *(label for found in labels.values() for label in found)}))
        position = {label: number for number, label in enumerate(classes.tolist())}
        members = {
            name: replace(known[name], classes=tuple(position[label] for label in labels[name])) for name in labels
        }
        members[site] = _member(payload, position)
        return replace(model, members=members, classes_=classes)


@connects(FoldingModel)
def connect_folding(federation: Federation, model: FoldingModel) -> FoldingModel:
    """Model answered by the federation's sites, all of which must be there."""
    absent = [site for site in model.sites if site not in federation.sites]
    if absent:
        raise ValueError(f"the model needs site {absent[0]!r}, the federation has {', '.join(federation.sites[:20])}")
    return replace(model, connection=FoldingConnection(federation))

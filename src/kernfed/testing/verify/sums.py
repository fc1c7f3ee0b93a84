"""Honest questions of masked sums, and the parties that ask them, whose keys everybody can make: to try a site out."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.errors import InputError
from kernfed.federation.summing.party import TERMS, question_hash
from kernfed.federation.summing.released import noise_values, share_layout
from kernfed.files import labels_to_values
from kernfed.privacy.histogram import RecordHistogram
from kernfed.privacy.moments import RecordMoments
from kernfed.privacy.ridge import RecordRidge
from kernfed.privacy.shared_histogram import SharedHistogram
from kernfed.privacy.shared_moments import SharedMoments
from kernfed.privacy.shared_ridge import SharedRidge
from kernfed.privacy.shares import SharedSum
from kernfed.privacy.values import mechanism_to_values
from kernfed.ridge.model import RidgeModel
from kernfed.ridge.parameters import RidgeParameters
from kernfed.secure.committee.contribution import contribute
from kernfed.secure.committee.coordinator import MaskedTotal
from kernfed.secure.committee.fixed import Layout, fit_layout
from kernfed.secure.committee.keys import Identity, make_one_time
from kernfed.secure.committee.reports import as_bytes
from kernfed.secure.committee.terms import RunTerms, Seat
from kernfed.site.policy import Policy
from kernfed.site.protocol.message import Payload
from kernfed.testing.exchange import model_question
from kernfed.testing.statistics import Coverage


def known_identity(name: str) -> Identity:
    """The key of a party while a site is tried out: no secret, and the same for both of a pair."""
    return Identity(hashlib.sha256(b"kernfed verify\0" + name.encode()).digest())


def others_of(policy: Policy) -> tuple[str, ...]:
    """Names of the other sites of a sum: as many as the policy wants in a set, and one more."""
    return tuple(f"verify {number}" for number in range(policy.min_sum_sites + policy.corrupt_sites))


def pinned_policy(policy: Policy, name: str) -> Policy:
    """The policy with the keys of the parties that ask in its committee and roster."""
    others = others_of(policy)
    keys = {party: known_identity(party).public for party in (name, *others)}
    return replace(policy, committee={party: keys[party] for party in (name, *others[:2])}, roster=keys)


def sum_questions(
    name: str, width: int, classes: tuple[Any, ...], targets: bool, policy: Policy, epsilon: float, delta: float
) -> Iterator[tuple[str, Payload]]:
    """Tasks and payloads by which a site is asked for its part of sums, and as a member of a committee."""
    for count in (0, 2):
        yield "sum_open", Payload(values={"count": count})
    honest = len(others_of(policy)) + 1 - policy.corrupt_sites
    if not targets:
        for method in ("centred", "joint"):
            moments = RecordMoments(epsilon / 2, delta, min(2, width), radius=1.0, method=method)
            shared = SharedMoments.of(moments, classes, honest)
            for part in shared.parts:
                values = _shared_values(moments, honest) | {"part": part, "adjacency": shared.adjacency}
                values["classes"] = labels_to_values(np.array(classes))
                centres = {"centres": np.zeros((len(classes), moments.dimension))} if part == "spreads" else {}
                yield _asked("folding_shares", Payload(centres, values), shared, part, name, policy)
        yield _histogram_question(name, width, classes, policy, RecordHistogram(epsilon / 2, delta), honest)
    mechanism = RecordRidge(epsilon, delta, 1.0, 1.0)
    for task in ("regress",) if targets else ("classify", "regress"):
        labels = classes if task == "classify" else ()
        parameters = RidgeParameters(width, features="given", task=task, classes=labels, n_components=1)
        ridge = SharedRidge.of(mechanism, parameters.n_features, parameters.n_targets, honest)
        values = {**_shared_values(mechanism, honest), "parameters": parameters.to_values()}
        yield _asked("ridge_shares", Payload(values=values), ridge, "ridge", name, policy)
        yield "ridge_sums", Payload(values={"parameters": parameters.to_values()})
    yield from _member_questions(name, policy)


def masked_question(task: str, payload: Payload, layout: Layout, name: str, policy: Policy) -> Payload:
    """The question for the part of site ``name`` in a masked sum of what ``task`` answers, in this layout."""
    terms = _terms(task, question_hash(task, payload), layout, name, policy)
    return Payload({**payload.arrays, TERMS: as_bytes(terms.to_bytes())}, payload.values)


def renewed(arrays: Mapping[str, npt.NDArray[Any]], values: Mapping[str, Any]) -> npt.NDArray[Any]:
    """The terms among ``arrays`` with the hash of the question that they are in; as they are if unreadable."""
    try:
        terms = RunTerms.from_bytes(arrays[TERMS].tobytes())
        asked = question_hash(terms.task, Payload(dict(arrays), dict(values)))
        return as_bytes(replace(terms, question=asked).to_bytes())
    except (ValueError, TypeError):  # InputError is a ValueError
        return arrays[TERMS]


def other_bounds(terms: npt.NDArray[Any], draws: np.random.Generator) -> npt.NDArray[Any]:
    """The terms with another bound of one block, of any size."""
    return with_bound(terms, 5e-324 if draws.integers(8) == 0 else 2.0 ** float(draws.uniform(-20, 59)), draws)


def with_bound(terms: npt.NDArray[Any], bound: float, draws: np.random.Generator | None = None) -> npt.NDArray[Any]:
    """The terms with this bound of all blocks, or of a drawn one; as they are where they cannot be read or have it."""
    try:
        read = RunTerms.from_bytes(terms.tobytes())
        names = read.layout.names if draws is None else [read.layout.names[draws.integers(len(read.layout.names))]]
        changed = {name: replace(read.layout.blocks[name], bound=bound) for name in names}
        return as_bytes(replace(read, layout=Layout({**read.layout.blocks, **changed})).to_bytes())
    except InputError:
        return terms


def _histogram_question(
    name: str, width: int, classes: tuple[Any, ...], policy: Policy, mechanism: RecordHistogram, honest: int
) -> tuple[str, Payload]:
    """A model of no rows, whose scores of rows kept aside are to be counted."""
    parameters = RidgeParameters(width, features="given", task="classify", classes=classes, n_components=1)
    weights = np.linspace(-1.0, 1.0, parameters.n_features * parameters.n_targets)
    weights = weights.reshape(parameters.n_features, parameters.n_targets)
    model = RidgeModel(parameters, weights, "exact", temperature_=1.0)
    question = model_question(model, Coverage(len(classes), strangers=False))
    payload = Payload(question.arrays, {**question.values, **_shared_values(mechanism, honest)})
    shared = SharedHistogram.of(mechanism, honest)
    _, asked = _asked("test_model", payload, shared, "histogram", name, policy)
    return "test_model:coverage:shared", asked


def _shared_values(mechanism: Any, honest: int) -> dict[str, Any]:
    return {"privacy": mechanism_to_values(mechanism), "honest": honest}


def _asked(task: str, payload: Payload, shared: SharedSum, part: str, name: str, policy: Policy) -> tuple[str, Payload]:
    about: Any = {"noise": noise_values(shared, part), "adjacency": shared.words, "honest": shared.honest}
    layout = share_layout(shared, part, len(others_of(policy)) + 1)
    terms = _terms(task, question_hash(task, payload), layout, name, policy, about)
    return task, Payload({**payload.arrays, TERMS: as_bytes(terms.to_bytes())}, payload.values)


def _terms(
    task: str, question: str, layout: Layout, name: str, policy: Policy, about: Mapping[str, Any] | None = None
) -> RunTerms:
    pinned = pinned_policy(policy, name)
    seats = tuple(
        Seat(party, key, make_one_time(known_identity(party))[1]) for party, key in sorted(pinned.committee.items())
    )
    rest: Any = {"corrupt_sites": policy.corrupt_sites, **(about or {})}
    return RunTerms(task, question, pinned.roster, seats, False, policy.min_sum_sites, layout, **rest)


def _member_questions(name: str, policy: Policy) -> Iterator[tuple[str, Payload]]:
    """A set of sites to sign and to answer for; the site itself is a member, and need not be among them."""
    layout = fit_layout({"x": ((3,), 1.0)}, len(others_of(policy)) + 1)
    terms = _terms("ridge_sums", "00" * 32, layout, name, policy)
    total = MaskedTotal(terms)
    for party in (name, *others_of(policy)):
        vector = layout.encode({"x": np.zeros(3)})
        total.add(party, contribute(terms, party, vector, known_identity(party)))
    told = {TERMS: as_bytes(terms.to_bytes()), **total.reports.to_arrays()}
    own = {**told, "own": total.boxes_for(name)}
    yield "sum_sign", Payload(own)
    yield "sum_answer", Payload(own)

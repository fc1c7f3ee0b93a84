"""Honest questions: what learners ask of a site, recorded while they learn from rows that were made up.

Nothing of the site's own table goes in but public facts: its name, its columns, its classes where they are public.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.random import generator
from kernfed.errors import KernfedError
from kernfed.federation.asking import Federation
from kernfed.federation.engines.local import LocalEngine
from kernfed.federation.folding.learner import FoldingLearner
from kernfed.federation.personal.learner import PersonalLearner
from kernfed.federation.ridge.learner import RidgeLearner
from kernfed.federation.summing.released import noise_values, share_layout
from kernfed.federation.summing.tasks import TERMS, question_hash
from kernfed.files import labels_to_values
from kernfed.kernels.features import FourierFeatures
from kernfed.privacy import (
    ElementLaplace,
    ElementStaircase,
    RandomizedLabels,
    RecordEmbedding,
    RecordGaussian,
    RecordHistogram,
    RecordMoments,
    RecordRidge,
)
from kernfed.privacy.shared import SharedHistogram, SharedMoments, SharedRidge, SharedSum
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
from kernfed.site.protocol.message import Payload, Refusal, decode_question
from kernfed.site.protocol.task import shown_name
from kernfed.site.rows import Rows
from kernfed.testing.calibration import calibrate, conform
from kernfed.testing.evaluation import evaluate
from kernfed.testing.exchange import model_question
from kernfed.testing.influence import measure_influence
from kernfed.testing.statistics import Coverage
from kernfed.testing.verify.crafted import question, wide

#: Rows of each made-up site, its features, and the numbers of a model: as small as learners take them.
_ROWS, _COMPONENTS = 24, 4
#: Classes to declare where those of the site are not public.
_DECLARED = 3


@dataclass(frozen=True)
class Facts:
    """What everybody may know of a site: its name, columns, policy, type of labels, and classes where these are public.

    ``classes`` are those that questions declare where labels are private: as many, and of the type, but made up.
    """

    name: str
    width: int
    columns: tuple[str, ...]
    policy: Policy
    classes: tuple[Any, ...]
    targets: bool = False

    @classmethod
    def of(cls, name: str, rows: Rows, policy: Policy, columns: Sequence[str] = ()) -> "Facts":
        """Public facts of a site with these rows; a policy that requires no privacy has labels to learn from."""
        kind = rows.y.dtype.kind
        guarded = policy.require_privacy
        targets = policy.labels == "targets" if guarded else kind == "f" and bool((rows.y % 1).any())
        hidden = guarded and policy.private_labels
        known = tuple(np.unique(rows.y).tolist()) if not targets and not hidden else _made_up(rows.y)
        return cls(name, rows.X.shape[1], tuple(columns), policy, known, targets)


def _made_up(y: npt.NDArray[Any]) -> tuple[Any, ...]:
    """Classes of the type of labels ``y`` that are none of their values, or need not be."""
    made: dict[str, tuple[Any, ...]] = {"U": ("a", "b", "c"), "b": (False, True), "f": (0.0, 1.0, 2.0)}
    return made.get(y.dtype.kind, tuple(range(_DECLARED)))


Recording = Mapping[str, tuple[Payload, ...]]
Session = Callable[[Federation], Any]


class _Listening(LocalEngine):
    """An engine that writes down what a site is asked."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.listened = ""
        self.asked: list[tuple[str, Payload]] = []

    def carry(
        self, data: bytes | Mapping[str, bytes], sites: Sequence[str], timeout: float
    ) -> Mapping[str, bytes | Refusal]:
        """Carry, and note the question to the site that is listened to."""
        if self.listened in sites:
            question = decode_question(data if isinstance(data, bytes) else data[self.listened])
            self.asked.append((shown_name(question.task, question.payload), question.payload))
        return super().carry(data, sites, timeout)


def record_questions(facts: Facts, *, declared: tuple[Any, ...] = (), seed: int = 0) -> Recording:
    """Payloads by task, or by part of one, that learners send to a site of these facts, different ones only.

    ``declared`` are the classes of questions about private labels (default those of the facts).
    """
    facts = replace(facts, classes=declared) if declared else facts
    asked: list[tuple[str, Payload]] = []
    # Targets may be asked about as if they were classes; numbers that are classes are asked about as targets anyway.
    for kind in (facts, replace(facts, targets=False)) if facts.targets else (facts,):
        for number, session in enumerate(_sessions(kind)):
            with _listening(kind, seed + number) as (federation, engine):
                with suppress(KernfedError):  # some learners do not take every table; what was asked before counts
                    session(federation)
                asked += engine.asked
        asked += sum_questions(kind)
    kept: dict[str, dict[str, Payload]] = {}
    for task, payload in asked:
        sizes = {name: array.shape for name, array in payload.arrays.items()}
        kept.setdefault(task, {}).setdefault(repr((sizes, payload.values)), payload)
    return {task: tuple(payloads.values())[:24] for task, payloads in sorted(kept.items())}


@contextmanager
def _listening(facts: Facts, seed: int) -> Iterator[tuple[Federation, _Listening]]:
    draws = generator(seed, "verify", "honest")
    data = {}
    for name in sorted({facts.name, f"{facts.name}+"}):
        X = draws.uniform(-1.0, 1.0, size=(_ROWS, facts.width))
        classes = np.array(facts.classes)
        y = draws.uniform(-1.0, 1.0, size=_ROWS) if facts.targets else classes[np.arange(_ROWS) % len(classes)]
        data[name] = (X, y)
    engine: Any = _Listening.from_data(data, holdout=0.25, columns=facts.columns)
    engine.listened = facts.name
    with warnings.catch_warnings(), Federation(engine) as federation:
        warnings.simplefilter("ignore")
        yield federation, engine


def _sessions(facts: Facts) -> Iterator[Session]:
    """What people do with a federation: learners, with privacy and without, and what they do with models."""
    epsilon, delta = asked_promise(facts.policy)
    yield from _folding_sessions(facts, epsilon, delta)
    for task in ("regress",) if facts.targets else ("classify", "regress"):
        yield from _ridge_sessions(task, RecordRidge(epsilon, delta, 1.0, 1.0))
    targets = 1 if facts.targets else len(facts.classes)
    for columns, width in (("features", facts.width), ("both", facts.width + targets)):
        compared = FourierFeatures(width, _COMPONENTS, 1.0, seed=3, kind="paired")
        settings: Any = {"kernel": "fourier", "model": "none", "columns": columns, "bandwidth": 1.0}
        settings |= {"privacy": RecordEmbedding(epsilon, delta, compared), "kernel_components": _COMPONENTS}
        yield PersonalLearner("printed", **settings).fit
    yield partial(_fit_and_test, PersonalLearner())
    yield PersonalLearner("printed", kernel_components=_COMPONENTS).fit
    yield PersonalLearner("printed", model="logistic", steps=2, kernel_components=_COMPONENTS).fit
    yield partial(_prepare, facts)


def _ridge_sessions(task: str, mechanism: RecordRidge) -> Iterator[Session]:
    for features in ("given", "fourier"):
        settings: Any = {"features": features, "n_components": _COMPONENTS, "bandwidth": 1.0, "task": task}
        yield RidgeLearner("exact", privacy=mechanism, **settings).fit
        yield partial(_fit_and_test, RidgeLearner("exact", **settings))
    given: Any = {"task": task, "features": "given", "rounds": 2}
    yield RidgeLearner("newton", regularization=(0.1, 0.2), diagnose=True, **given).fit
    yield RidgeLearner("conjugate", **given).fit


def _folding_sessions(facts: Facts, epsilon: float, delta: float) -> Iterator[Session]:
    if facts.targets:
        return
    dimension = min(2, facts.width)
    element = max(1e-6, epsilon / (2 * facts.width))
    labels = RandomizedLabels(epsilon / 2, facts.classes) if len(facts.classes) > 1 else None
    mechanisms: list[Any] = [
        RecordGaussian(epsilon / 2, delta, radius=1.0),
        RecordMoments(epsilon / 2, delta, dimension, radius=1.0),
        RecordGaussian(epsilon / 2, delta, radius=1.0, projection=dimension),
        ElementLaplace(element, d=2.0, bounds=(-1.0, 1.0)),
        ElementStaircase(element, d=2.0, bounds=(-1.0, 1.0)),
    ]
    for number, mechanism in enumerate(mechanisms):
        for randomised in (None, labels):
            settings: Any = {"privacy": mechanism, "labels": randomised, "smoothing": int(number == 0)}
            settings |= {"rows_per_class": 6, "measure": "rms"}
            schemes = ("plain", "bfv") if number == 0 else ("plain",)  # keys take long
            yield partial(_fit_and_use, FoldingLearner(**settings), facts, schemes)
            if number < 2:
                yield FoldingLearner(hold="machines", **settings).fit
    yield partial(_fit_and_use, FoldingLearner(measure="rms"), facts, ())
    yield partial(_fit_and_test, FoldingLearner())
    yield partial(_fit_and_test, FoldingLearner(hold="machines"))
    yield partial(_fit_and_count, FoldingLearner(hold="machines"), RecordHistogram(epsilon / 2, delta, strangers=True))
    given = RidgeLearner("exact", features="given", regularization=0.1)
    yield partial(_fit_and_count, given, RecordHistogram(epsilon / 2, delta))
    yield partial(_fit_and_change, facts)


def _fit_and_use(learner: Any, facts: Facts, schemes: Sequence[str], federation: Federation) -> None:
    """Ask a model: labels, explanations, and labels by scores that are encrypted, as far as that is installed."""
    model = learner.fit(federation)
    queries = generator(7, "verify", "queries").uniform(-1.0, 1.0, size=(3, facts.width))
    model.predict(queries)
    model.explain(queries)
    for scheme in schemes:
        with suppress(KernfedError, ImportError):
            model.predict(queries, secure=scheme)
    federation.ask("forget_model", Payload(values={"handle": model.handle}))


def _fit_and_change(facts: Facts, federation: Federation) -> None:
    """Add a row, forget one, and forget the model."""
    model = FoldingLearner().fit(federation)
    model = model.add_rows(facts.name, np.zeros((1, facts.width)), [facts.classes[0]])
    model.forget(facts.name, [0]).forget(facts.name)


def _prepare(facts: Facts, federation: Federation) -> None:
    """Ask for statistics of columns, and let the site use preparations that leave its rows as they are, nearly."""
    for limit in (1e3, 1e6, 1e9):
        plans = [wide(name, limit) for name in facts.columns or map(str, range(facts.width))]
        federation.ask("prepare", question(plans))
    federation.ask("column_statistics", Payload())


def _fit_and_test(learner: Any, federation: Federation) -> None:
    """Evaluate, calibrate and conform a model, and leave its sites out, as far as its kind allows."""
    model = learner.fit(federation)
    for test in (evaluate, calibrate, conform, measure_influence):
        with suppress(KernfedError):
            test(model, federation)


def _fit_and_count(learner: Any, mechanism: RecordHistogram, federation: Federation) -> None:
    """Have rows kept aside counted with noise, by models before and after a coverage."""
    model = conform(learner.fit(federation), federation, privacy=mechanism)
    conform(model, federation, privacy=mechanism)


def asked_promise(policy: Policy) -> tuple[float, float]:
    """(epsilon, delta) of a release, such that a few fit into the policy's budget."""
    cap = policy.max_record_epsilon
    return (0.2 * min(cap, 50.0) if cap is not None else 1.0), policy.record_delta / 10


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


def sum_questions(facts: Facts) -> Iterator[tuple[str, Payload]]:
    """Tasks and payloads by which a site is asked for its part of sums, and as a member of a committee."""
    name, width, classes, policy = facts.name, facts.width, facts.classes, facts.policy
    epsilon, delta = asked_promise(policy)
    for count in (0, 2):
        yield "sum_open", Payload(values={"count": count})
    honest = len(others_of(policy)) + 1 - policy.corrupt_sites
    if not facts.targets:
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
    for task in ("regress",) if facts.targets else ("classify", "regress"):
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
    arrays = {TERMS: as_bytes(terms.to_bytes()), **total.reports.to_arrays(), "own": total.boxes_for(name)}
    yield "sum_sign", Payload(arrays)
    yield "sum_answer", Payload(arrays)

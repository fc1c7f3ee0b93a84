"""Honest questions: what learners ask of a site, recorded while they learn from rows that were made up.

Nothing of the site's own table goes in but public facts: its name, its columns, its classes where they are public.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed._random import generator
from kernfed.errors import KernfedError
from kernfed.federation.asking import Federation
from kernfed.federation.engines.local import LocalEngine
from kernfed.federation.folding.learner import FoldingLearner
from kernfed.federation.personal.learner import PersonalLearner
from kernfed.federation.protocol.message import Payload, Refusal, decode_question
from kernfed.federation.ridge.learner import RidgeLearner
from kernfed.federation.site.policy import Policy
from kernfed.federation.site.rows import Rows
from kernfed.federation.testing.calibrating import calibrate
from kernfed.federation.testing.evaluation import evaluate
from kernfed.kernels.fourier import FourierFeatures
from kernfed.privacy import (
    ElementLaplace,
    ElementStaircase,
    RandomizedLabels,
    RecordEmbedding,
    RecordGaussian,
    RecordMoments,
    RecordRidge,
)

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


class _Listening(LocalEngine):
    """An engine that writes down what a site is asked."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.listened = ""
        self.heard: list[tuple[str, Payload]] = []

    def carry(
        self, data: bytes | Mapping[str, bytes], sites: Sequence[str], timeout: float
    ) -> Mapping[str, bytes | Refusal]:
        """Carry, and note the question to the site that is listened to."""
        if self.listened in sites:
            question = decode_question(data if isinstance(data, bytes) else data[self.listened])
            self.heard.append((question.task, question.payload))
        return super().carry(data, sites, timeout)


def record_questions(facts: Facts, *, declared: tuple[Any, ...] = (), seed: int = 0) -> Recording:
    """Payloads by task that learners send to a site of these facts, different ones only.

    ``declared`` are the classes of questions about private labels (default those of the facts).
    """
    facts = replace(facts, classes=declared) if declared else facts
    heard: list[tuple[str, Payload]] = []
    # Targets may be asked about as if they were classes; numbers that are classes are asked about as targets anyway.
    for kind in (facts, replace(facts, targets=False)) if facts.targets else (facts,):
        for number, session in enumerate(_sessions(kind)):
            with _listening(kind, seed + number) as (federation, engine):
                try:
                    session(federation)
                except KernfedError:
                    pass  # what was asked before is heard, and some learners do not take every table
                heard += engine.heard
    kept: dict[str, dict[str, Payload]] = {}
    for task, payload in heard:
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


def _sessions(facts: Facts) -> Iterator[Callable[[Federation], Any]]:
    """What people do with a federation: learners, with privacy and without, and what they do with models."""
    epsilon, delta = asked_promise(facts.policy)
    yield from _folding_sessions(facts, epsilon, delta)
    ridge = RecordRidge(epsilon, delta, 1.0, 1.0)
    tasks = ("regress",) if facts.targets else ("classify", "regress")
    for task in tasks:
        for features in ("given", "fourier"):
            settings: Any = {"features": features, "n_components": _COMPONENTS, "bandwidth": 1.0, "task": task}
            yield lambda f, s=settings: RidgeLearner("exact", privacy=ridge, **s).fit(f)
            yield lambda f, s=settings: _tested(RidgeLearner("exact", **s).fit(f), f)
        for method in ("newton", "conjugate", "fedavg"):
            path = (0.1, 0.2) if method == "newton" else 0.1
            yield lambda f, m=method, t=task, r=path: RidgeLearner(
                m, task=t, features="given", regularization=r, rounds=2, diagnose=m == "newton"
            ).fit(f)
    for columns, width in (("features", facts.width), ("both", facts.width + _target_columns(facts))):
        features = FourierFeatures(width, _COMPONENTS, 1.0, seed=3, kind="paired")
        mechanism = RecordEmbedding(epsilon, delta, features)
        yield lambda f, m=mechanism, c=columns: PersonalLearner(
            "printed", kernel="fourier", model="none", columns=c, bandwidth=1.0, privacy=m, kernel_components=_COMPONENTS
        ).fit(f)
    yield lambda f: _tested(PersonalLearner().fit(f), f)
    yield lambda f: PersonalLearner("printed", kernel_components=_COMPONENTS).fit(f)
    yield lambda f: PersonalLearner("printed", model="logistic", steps=2, kernel_components=_COMPONENTS).fit(f)


def _target_columns(facts: Facts) -> int:
    return 1 if facts.targets else len(facts.classes)


def _folding_sessions(facts: Facts, epsilon: float, delta: float) -> Iterator[Callable[[Federation], Any]]:
    if facts.targets:
        return
    dimension = min(2, facts.width)
    element = max(1e-6, epsilon / (2 * facts.width))
    labels = RandomizedLabels(epsilon / 2, facts.classes) if len(facts.classes) > 1 else None
    mechanisms: list[Any] = [
        RecordGaussian(epsilon / 2, delta, radius=1.0),
        RecordGaussian(epsilon / 2, delta, radius=1.0, projection=dimension),
        RecordMoments(epsilon / 2, delta, dimension, radius=1.0),
        ElementLaplace(element, d=2.0, bounds=(-1.0, 1.0)),
        ElementStaircase(element, d=2.0, bounds=(-1.0, 1.0)),
    ]
    for mechanism in mechanisms:
        for own in (None, labels):
            smoothing = 1 if mechanism is mechanisms[0] else 0
            settings: Any = {"privacy": mechanism, "labels": own, "smoothing": smoothing}
            settings |= {"rows_per_class": 6, "measure": "rms"}
            schemes = ("plain", "bfv") if mechanism is mechanisms[0] else ("plain",)  # keys take long
            yield lambda f, s=settings, n=schemes: _used(FoldingLearner(**s).fit(f), f, facts, *n)
            if mechanism is mechanisms[0] or mechanism is mechanisms[2]:
                yield lambda f, s=settings: FoldingLearner(hold="machines", **s).fit(f)
    yield lambda f: _used(FoldingLearner(measure="rms").fit(f), f, facts)
    yield lambda f: _tested(FoldingLearner().fit(f), f)
    yield lambda f: _tested(FoldingLearner(hold="machines").fit(f), f)
    yield lambda f: FoldingLearner().fit(f).add_rows(facts.name, np.zeros((1, facts.width)), [facts.classes[0]])
    yield lambda f: FoldingLearner().fit(f).forget(facts.name, [0])
    yield lambda f: FoldingLearner().fit(f).forget(facts.name)


def _used(model: Any, federation: Federation, facts: Facts, *schemes: str) -> None:
    """Ask a model: labels, explanations, and labels by scores that are encrypted, as far as that is installed."""
    queries = generator(7, "verify", "queries").uniform(-1.0, 1.0, size=(3, facts.width))
    model.predict(queries)
    model.explain(queries)
    for scheme in schemes:
        try:
            model.predict(queries, secure=scheme)
        except (KernfedError, ImportError):
            pass
    federation.ask("forget_model", Payload(values={"handle": model.handle}))


def _tested(model: Any, federation: Federation) -> None:
    """Evaluate and calibrate a model, as far as its kind allows."""
    for test in (evaluate, calibrate):
        try:
            test(model, federation)
        except KernfedError:
            pass


def asked_promise(policy: Policy) -> tuple[float, float]:
    """(epsilon, delta) of a release, such that a few fit into the policy's budget."""
    cap = policy.max_record_epsilon
    return (0.2 * min(cap, 50.0) if cap is not None else 1.0), policy.record_delta / 10

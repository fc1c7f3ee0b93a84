"""Honest questions: what learners ask of a site, recorded while they learn from rows that were made up.

Nothing of the site's own table goes in but public facts: its name, its columns, its classes where they are public.
"""

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
from kernfed.kernels.fourier import FourierFeatures
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
from kernfed.site.policy import Policy
from kernfed.site.protocol.message import Payload, Refusal, decode_question
from kernfed.site.protocol.task import shown_name
from kernfed.site.rows import Rows
from kernfed.testing.calibration import calibrate, conform
from kernfed.testing.evaluation import evaluate
from kernfed.testing.influence import measure_influence
from kernfed.testing.verify.preparations import question, wide
from kernfed.testing.verify.sums import sum_questions

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
        self.heard: list[tuple[str, Payload]] = []

    def carry(
        self, data: bytes | Mapping[str, bytes], sites: Sequence[str], timeout: float
    ) -> Mapping[str, bytes | Refusal]:
        """Carry, and note the question to the site that is listened to."""
        if self.listened in sites:
            question = decode_question(data if isinstance(data, bytes) else data[self.listened])
            self.heard.append((shown_name(question.task, question.payload), question.payload))
        return super().carry(data, sites, timeout)


def record_questions(facts: Facts, *, declared: tuple[Any, ...] = (), seed: int = 0) -> Recording:
    """Payloads by task, or by part of one, that learners send to a site of these facts, different ones only.

    ``declared`` are the classes of questions about private labels (default those of the facts).
    """
    facts = replace(facts, classes=declared) if declared else facts
    heard: list[tuple[str, Payload]] = []
    # Targets may be asked about as if they were classes; numbers that are classes are asked about as targets anyway.
    for kind in (facts, replace(facts, targets=False)) if facts.targets else (facts,):
        for number, session in enumerate(_sessions(kind)):
            with _listening(kind, seed + number) as (federation, engine):
                with suppress(
                    KernfedError
                ):  # what was asked before is heard, and some learners do not take every table
                    session(federation)
                heard += engine.heard
    for kind in (facts, replace(facts, targets=False)) if facts.targets else (facts,):
        heard += sum_questions(
            facts.name, facts.width, kind.classes, kind.targets, facts.policy, *asked_promise(facts.policy)
        )
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
    yield RidgeLearner("fedavg", **given).fit


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
        for own in (None, labels):
            settings: Any = {"privacy": mechanism, "labels": own, "smoothing": int(number == 0)}
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

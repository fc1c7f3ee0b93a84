"""Malformed questions, made of honest ones of every task: nothing may be raised, and no reply tells where code lies."""

import re
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import kernfed as kf
from kernfed.federation import Federation, LocalEngine, Policy, Refusal, Site
from kernfed.federation.preparing import agree
from kernfed.kernels.features import FourierFeatures
from kernfed.site.protocol.message import (
    Payload,
    Question,
    decode_bundle,
    decode_question,
    decode_reply,
    encode_question,
)
from kernfed.site.protocol.task import task_names

from . import models
from .outcome import REFUSED, SURVIVED, WRONG, Outcomes
from .values import TRAVERSAL, mutate, mutate_arrays

ASKED = "east"
#: What no reply may hold: folders, files of code, lines of it.
_INSIDE = re.compile(r"(?<!\w)/[\w.-]+/|\.py\b|Traceback|line \d+|\n")
#: Small, so that an attack that gets through ends soon.
_POLICY = Policy(("*",), max_features=2000, max_steps=500, max_numbers=2_000_000, task_seconds=5.0)
_SECONDS = 20.0


class Recorder(LocalEngine):
    """Keeps the questions that one site was asked, the first few of every task."""

    def carry(
        self, data: bytes | Mapping[str, bytes], sites: Sequence[str], timeout: float
    ) -> Mapping[str, bytes | Refusal]:
        """Note the question, and carry it."""
        self._note(data, sites)
        return super().carry(data, sites, timeout)

    def deliver(
        self,
        data: bytes | Mapping[str, bytes],
        sites: Sequence[str],
        timeout: float,
        take: Callable[[str, bytes | Refusal], None],
    ) -> None:
        """Note the question, and deliver it."""
        self._note(data, sites)
        super().deliver(data, sites, timeout, take)

    def _note(self, data: bytes | Mapping[str, bytes], sites: Sequence[str]) -> None:
        if ASKED in sites:
            for asked in decode_bundle(data if isinstance(data, bytes) else data[ASKED], "the question"):
                known = self.asked.setdefault(decode_question(asked).task, [])
                if len(known) < 5:
                    known.append(asked)

    @property
    def asked(self) -> dict[str, list[bytes]]:
        """Questions by task."""
        self.__dict__.setdefault("_asked", {})
        known: dict[str, list[bytes]] = self.__dict__["_asked"]
        return known


@dataclass(frozen=True)
class World:
    """Rows of the sites, names of their columns, the folder of their stores, and what they were asked."""

    rows: dict[str, Any]
    columns: tuple[str, ...]
    folder: Path
    asked: dict[str, list[bytes]]

    def site(self, copy: Path) -> Site:
        """The site that was asked, as it was afterwards, in a folder of its own."""
        shutil.copytree(self.folder, copy)
        policies = dict.fromkeys(self.rows, _POLICY)
        engine = LocalEngine.from_data(
            self.rows, seed=3, store=copy, holdout=0.2, columns=self.columns, policies=policies
        )
        return engine.site(ASKED)


def attack_messages(outcomes: Outcomes, folder: Path, seed: int, count: int) -> None:
    """``count`` malformed questions of every task."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        worlds = _worlds(folder)
        for number, task in enumerate(task_names()):
            print(f"  {task}", file=sys.stderr, flush=True)
            asked = [(world, data) for world in worlds for data in world.asked.get(task, ())]
            if not asked:
                outcomes.add("message", task, WRONG, "no honest question of this task is known")
            else:
                rng = np.random.default_rng([seed, number])
                _attack_task(outcomes, asked, folder / f"attacked-{number}", task, rng, count)


def _attack_task(
    outcomes: Outcomes,
    asked: list[tuple[World, bytes]],
    folder: Path,
    task: str,
    rng: np.random.Generator,
    count: int,
) -> None:
    sites = {world.folder: world.site(folder / world.folder.name) for world in {w.folder: w for w, _ in asked}.values()}
    for number in range(count):
        world, data = asked[rng.integers(len(asked))]
        site = sites[world.folder]
        hostile, question = _malformed(data, f"attack-{number}", rng)
        outcomes.add("message", task, *_after(site, hostile, question))
    for world, data in asked[:1]:  # whatever came before, the site is in order and answers an honest question
        site, question = sites[world.folder], decode_question(data)
        site.store.read_state()
        told = decode_reply(site.answer(data), question, ASKED).refusal
        broken = told is not None and told.code == "error"
        outcomes.add("message", task, *((WRONG, f"honest afterwards: {told}") if broken else (SURVIVED, "")))


def _malformed(data: bytes, identity: str, rng: np.random.Generator) -> tuple[bytes, Question | None]:
    """A malformed question; None in its place where not even that can be read."""
    way = rng.integers(20)
    if way == 0:
        damaged = bytearray(data)
        damaged[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        return bytes(damaged), None
    if way == 1:
        return data[: rng.integers(len(data))], None
    question = decode_question(data)
    arrays, values = dict(question.payload.arrays), dict(question.payload.values)
    if values and (way < 12 or not arrays):
        for _ in range(int(rng.integers(1, 3))):
            values = mutate(values, rng) or {"empty": 1}
    else:
        arrays = mutate_arrays(arrays, rng)
    hostile = replace(question, id=identity, payload=Payload(arrays, values))
    return encode_question(hostile), hostile


class _TooLate(BaseException):
    """Not an ``Exception``, so that the site does not make a refusal of it."""


def _give_up(*_: Any) -> None:
    raise _TooLate(f"no answer after {_SECONDS:g} s")


def _after(site: Site, data: bytes, question: Question | None) -> tuple[str, str]:
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        reply = site.answer(data)
    except BaseException as error:
        asked = "" if question is None else f", asked {str(question.payload.values)[:300]}"
        return WRONG, f"raised {type(error).__name__}: {error}{asked}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if str(site.store.path).encode() in reply or b"Traceback" in reply or b".py" in reply:
        return WRONG, "a reply with the place of files or code"
    if question is None:
        return (REFUSED if b"refusal" in reply[:2000] else SURVIVED), ""
    told = decode_reply(reply, question, ASKED).refusal
    if told is None:
        return SURVIVED, ""
    if _INSIDE.search(told.reason.replace(TRAVERSAL, "")) or len(told.reason) > len(data) + 1000:
        return WRONG, f"a reply with the place of files or code: {told.reason[:200]}"
    return REFUSED, ""


# Honest questions ----------------------------------------------------------------------------------------------------


def _worlds(folder: Path) -> list[World]:
    sites, queries = models.rows()
    asking: dict[str, tuple[Any, Callable[[Federation, Any], None]]] = {
        "labels": (sites, _ask_labels),
        "values": (models.values_of(sites), _ask_values),
        "private": (sites, _ask_private),
        "sums": (models.rows(names=("east", "north", "south", "upper", "west"))[0], _ask_sums),
        "tables": (models.tables_of(sites), _ask_tables),
    }
    worlds = []
    for name, (rows, ask) in asking.items():
        columns = () if name == "tables" else models.NAMES  # a table has its own
        engine = Recorder.from_data(rows, seed=3, store=folder / name, holdout=0.2, columns=columns)
        assert isinstance(engine, Recorder)
        ask(Federation(engine, seed=3), queries)
        worlds.append(World(rows, columns, folder / name, engine.asked))
    return worlds


def _ask_labels(federation: Federation, queries: Any) -> None:
    """Everything that learns from rows as they are."""
    held = kf.FoldingLearner(batch_size=5, hold="machines", measure="rms", partition="order", scale=None).fit(
        federation
    )
    model = kf.FoldingLearner(batch_size=5, measure="rms", partition="order", scale=None).fit(federation)
    for one in (held, model):
        kf.evaluate(one, federation, influence=True)
        kf.calibrate(one, federation)
        kf.conform(one, federation)
    model.predict_proba(queries)
    model.predict(queries, secure="plain")
    for method in ("conjugate", "newton", "exact", "dkrr"):
        ridge = kf.RidgeLearner(method, n_components=8, regularization=[1e-3, 1e-2], rounds=2)
        kf.evaluate(ridge.fit(federation), federation, influence=method == "exact")
    kf.RidgeLearner(features="given", diagnose=True).fit(federation)
    kf.RidgeLearner(n_components=8, bandwidth=2.0, regularization=1e-2, head="logistic", rounds=2).fit(federation)
    head = kf.RidgeLearner(n_components=8, bandwidth=2.0, regularization=1e-2)
    kf.FusionLearner(kf.FoldingLearner(), head, visit="unsure").fit(federation)
    for weights, kind in (("auto", "ridge"), ("means", "ridge"), ("printed", "logistic")):
        kf.PersonalLearner(weights, model=kind, kernel_components=20, steps=5).fit(federation)
    _ask_outside(federation)
    model = model.add_rows(ASKED, queries[:2], np.array(["no", "yes"]), ids=[90, 91])
    model.forget(ASKED, rows=[90])
    model.forget(ASKED)


def _ask_outside(federation: Federation) -> None:
    try:
        from kernfed_papers.baselines.averaging import AveragingLearner
        from kernfed_papers.baselines.descent import DescentLearner
    except ImportError:
        return
    AveragingLearner(rounds=1).fit(federation)
    start = kf.RidgeLearner("dkrr", n_components=8, bandwidth=2.0, regularization=1e-2, fit_intercept=False)
    DescentLearner(start, rounds=1).fit(federation)


def _ask_values(federation: Federation, _: Any) -> None:
    kf.evaluate(kf.RidgeLearner(n_components=8, task="regress").fit(federation), federation, influence=True)
    kf.PersonalLearner().fit(federation)


def _ask_private(federation: Federation, queries: Any) -> None:
    """Everything that is released."""
    noise = kf.privacy.RecordMoments(8.0, 1e-5, radius=6.0, dimension=2)
    for hold in ("sites", "machines"):
        kf.FoldingLearner(
            batch_size=30, privacy=noise, rows_per_class=10, hold=hold, measure="rms", partition="order", scale=None
        ).fit(federation)
    rows = kf.privacy.RecordGaussian(8.0, 1e-5, 6.0)
    kf.FoldingLearner(batch_size=10, privacy=rows, measure="rms", partition="order", scale=None).fit(
        federation
    ).predict(queries)
    labels = kf.privacy.RandomizedLabels(4.0, ("no", "yes"))
    kf.FoldingLearner(batch_size=10, privacy=rows, labels=labels, measure="rms", partition="order", scale=None).fit(
        federation
    )
    ridge = kf.privacy.RecordRidge(8.0, 1e-5, radius=1.0, target_radius=1.0)
    head = kf.RidgeLearner("exact", n_components=8, bandwidth=2.0, privacy=ridge).fit(federation)
    kf.conform(head, federation, privacy=kf.privacy.RecordHistogram(8.0, 1e-5))
    embedding = kf.privacy.RecordEmbedding(9.0, 1e-5, FourierFeatures(5, 20, 1.0, kind="paired"))
    kf.PersonalLearner((0.0, 0.5), model="none", privacy=embedding).fit(federation)


def _ask_sums(federation: Federation, _: Any) -> None:
    """Everything that is added up under masks, by a committee that signs and by one that follows the protocol."""
    kf.RidgeLearner(n_components=8, regularization=1e-2, sum=kf.secure.Committee(corrupt=True)).fit(federation)
    kf.RidgeLearner(features="given", regularization=1e-2, sum="secure").fit(federation)
    assert isinstance(federation.engine, Recorder)
    masked = decode_question(federation.engine.asked["sum_masked"][0])
    federation.ask("ridge_sums", Payload(values=masked.payload.values))  # without masks, as nobody else asks for them
    ridge = kf.privacy.RecordRidge(8.0, 1e-5, radius=1.0, target_radius=1.0)
    head = kf.RidgeLearner("exact", n_components=8, bandwidth=2.0, privacy=ridge, sum="secure").fit(federation)
    kf.conform(head, federation, privacy=kf.privacy.RecordHistogram(8.0, 1e-5), sum="secure", min_replies=4)
    noise = kf.privacy.RecordMoments(20.0, 1e-5, radius=6.0, dimension=2)
    kf.FoldingLearner(batch_size=10, privacy=noise, rows_per_class=10, scale=None, sum="secure").fit(federation)


def _ask_tables(federation: Federation, _: Any) -> None:
    """What sites with tables of words and gaps are asked before they learn."""
    agree(federation)

"""A model that answers many callers, whole or by the sites of a hub: requests that meet are scored together."""

import asyncio
import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from kernfed._version import __version__
from kernfed.abstain import Coverage, probability_bins
from kernfed.base.answer import Answer
from kernfed.base.checks import FloatArray, check_number
from kernfed.base.model import Model
from kernfed.errors import InputError, MissingSites, NotConnected
from kernfed.federation.asking import Federation
from kernfed.serve.metrics import Metrics
from kernfed.serve.requests import Columns, Limits, RequestError
from kernfed.serve.rows import read_rows

#: What of an answer is of all rows alike; everything else is by row.
_COMMON = ("sites", "missing")
#: Characters of the names of all callers of one scoring: sites keep so many.
_LONGEST_NAMES = 200
#: Seconds for which requests gather after several came together.
_WINDOW = 0.003
#: Seconds for which what is known of the sites is not asked again, and that one may take to say that it is there.
_FRESH, _SOON = 5.0, 2.0


@dataclass(frozen=True, eq=False)
class _Waiting:
    rows: FloatArray
    caller: str
    answer: "asyncio.Future[Answer]"


class Batcher:
    """Lets ``score(rows, callers)`` answer, in one thread, what has arrived meanwhile.

    A request that comes alone is scored at once. While one is scored others gather, and where several came together the
    next ones are waited for ``_WINDOW`` seconds. ``limits.rows`` are scored at a time, at least one request; where
    ``limits.waiting`` numbers wait the next is refused. ``count(requests, rows)`` is called for each scoring.
    """

    def __init__(
        self, score: Callable[[FloatArray, str], Answer], limits: Limits, count: Callable[[int, int], None]
    ) -> None:
        self._score, self._limits, self._count = score, limits, count
        self._queue: deque[_Waiting] = deque()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="scoring")
        self._working: asyncio.Task[None] | None = None

    async def ask(self, rows: FloatArray, caller: str) -> Answer:
        """The answer for rows (n, p), scored with those of others who wait."""
        if self._queue and sum(one.rows.size for one in self._queue) + rows.size > self._limits.waiting:
            raise RequestError(503, f"{len(self._queue):,} requests are waiting already; ask again later", wait=1.0)
        waiting = _Waiting(rows, caller, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return await waiting.answer

    def close(self) -> None:
        """End the thread that scores; what waits is cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        """Score batch after batch until nothing waits."""
        together = 1
        while self._queue:
            if together > 1:
                await asyncio.sleep(_WINDOW)
            batch = self._next()
            together = len(batch)
            if batch:
                await self._answer(batch)

    def _next(self) -> list[_Waiting]:
        """The requests to be scored together, in the order in which they came; who has gone is left out."""
        batch: list[_Waiting] = []
        callers: set[str] = set()
        rows = 0
        while self._queue:
            one = self._queue[0]
            named = callers | {one.caller}
            if batch and (rows + len(one.rows) > self._limits.rows or len(_listed(named)) > _LONGEST_NAMES):
                break
            self._queue.popleft()
            if not one.answer.done():
                batch.append(one)
                callers, rows = named, rows + len(one.rows)
        return batch

    async def _answer(self, batch: Sequence[_Waiting]) -> None:
        """Answer a batch; where it cannot be scored for what is in it, each alone, for only one may be the reason."""
        rows = batch[0].rows if len(batch) == 1 else np.concatenate([one.rows for one in batch])
        self._count(len(batch), len(rows))
        loop = asyncio.get_running_loop()
        try:
            names = _listed({one.caller for one in batch})
            whole = await loop.run_in_executor(self._pool, self._score, rows, names)
        except InputError as error:
            if len(batch) == 1:
                _settle(batch[0], error)
            for one in batch if len(batch) > 1 else ():
                await self._answer([one])
        except Exception as error:
            for one in batch:
                _settle(one, error)
        else:
            first = 0
            for one in batch:
                _settle(one, part_of(whole, slice(first, first + len(one.rows))))
                first += len(one.rows)


def part_of(answer: Answer, rows: slice) -> Answer:
    """The part of an answer that is about some of its rows."""
    known = {one.name: getattr(answer, one.name) for one in fields(answer) if one.name not in _COMMON}
    chosen: dict[str, Any] = {name: values[rows] for name, values in known.items() if values is not None}
    return replace(answer, **chosen)


def _listed(callers: set[str]) -> str:
    return ", ".join(sorted(callers))


def _settle(one: _Waiting, outcome: Answer | Exception) -> None:
    """Give a request its answer or its error, unless whoever asked has gone."""
    if one.answer.done():
        return
    if isinstance(outcome, Exception):
        one.answer.set_exception(outcome)
    else:
        one.answer.set_result(outcome)


@dataclass(frozen=True, eq=False, kw_only=True)
class CoveredAnswer(Answer):
    """An answer with a coverage.

    sets : (n, C) which classes are in each row's set. abstained : (n,) rows whose set has not one class, or which are
    unlike everything. p_value : (n,) of "nothing like this was ever seen", None for models without machines.
    """

    sets: npt.NDArray[np.bool_]
    abstained: npt.NDArray[np.bool_]
    p_value: FloatArray | None = None


def abstained(
    model: Model, coverage: Coverage, answer: Answer, rows: FloatArray, share: float, options: Mapping[str, Any]
) -> CoveredAnswer:
    """The answer for rows (n, p) with sets of coverage 1 - ``share``, as ``predict(rows, abstain=share)`` abstains."""
    likely, distances = model.conforming(rows, **options)
    sets = probability_bins(likely) <= coverage.thresholds(model.classes_, 1 - share)
    unsure = sets.sum(axis=1) != 1
    p_value = None if distances is None or coverage.nearest is None else coverage.p_values(distances)
    if p_value is not None:
        unsure |= p_value <= share
    known = {one.name: getattr(answer, one.name) for one in fields(Answer)}
    return CoveredAnswer(**known, sets=sets, abstained=unsure, p_value=p_value)


@runtime_checkable
class _KnowsPresence(Protocol):
    """An engine that can say which sites are connected."""

    def present(self, timeout: float) -> dict[str, float | None]:
        """Seconds until each site says that it is there, None of one that does not."""


class Gateway:
    """Answers rows with ``model``; scores are the sites' of ``federation``, where the model's machines are there.

    min_replies : sites that must answer; the others are named as missing. timeout : seconds that they have. abstain :
    the share of wrong labels that is allowed, of a model that states a coverage: rows of which it does not know the
    label get none. It costs a second scoring.
    """

    def __init__(
        self,
        model: Model,
        federation: Federation | None = None,
        *,
        limits: Limits | None = None,
        min_replies: int = 1,
        timeout: float = 10.0,
        abstain: float | None = None,
    ) -> None:
        self._asks = model.hold == "sites"
        if self._asks and federation is None:
            raise NotConnected("the machines of this model are at its sites: give the credentials of their hub")
        self.model = model if federation is None or not self._asks else model.connect(federation)
        self.federation = federation if self._asks else None
        self._abstain = None if abstain is None else check_number(abstain, "abstain", above=0, below=1)
        if abstain is not None and model.conformal_ is None:
            raise InputError("this model states no coverage, so that it cannot abstain: use kernfed conform first")
        self.limits = limits or Limits()
        self.columns = Columns.of(model)
        #: Labels in the order of probabilities, as plain values; none of a regressor.
        self.classes = model.classes_.tolist()
        self.metrics = Metrics()
        self.min_replies, self.timeout = min_replies, timeout
        self._options = {"min_replies": min_replies, "timeout": timeout} if self._asks else {}
        self._batcher = Batcher(self._score, self.limits, self.metrics.scored)
        self._reading, self._looking = asyncio.Lock(), asyncio.Lock()
        self._sites: tuple[float, dict[str, float | None]] = (-math.inf, {})

    async def read(self, body: bytes, kind: str) -> FloatArray:
        """Rows (n, p) of a body; one body is read at a time, for it takes more memory meanwhile."""
        async with self._reading:
            return await asyncio.to_thread(read_rows, body, kind, self.columns, self.limits.rows)

    async def answer_values(self, rows: FloatArray, caller: str) -> dict[str, Any]:
        """What the model says of rows (n, p), asked by ``caller``: one object per row, and which sites answered."""
        return answer_values(await self._batcher.ask(rows, caller), self.classes)

    def _score(self, rows: FloatArray, callers: str) -> Answer:
        """Score rows of these callers, whom this gateway names to the sites."""
        model = self.model
        if self.federation is not None:
            model = model.connect(self.federation.on_behalf_of(callers))
        with warnings.catch_warnings():  # one thread scores, so that this changes nothing of others
            warnings.simplefilter("ignore", MissingSites)  # the answer names them
            answer = model.answer(rows, **self._options)
            if self._abstain is None or model.conformal_ is None:
                return answer
            return abstained(model, model.conformal_, answer, rows, self._abstain, self._options)

    async def sites(self) -> dict[str, float | None]:
        """Seconds until each site says that it is there, None of one that does not; asked every few seconds at most."""
        async with self._looking:
            seen, latencies = self._sites
            engine = None if self.federation is None else self.federation.engine
            if isinstance(engine, _KnowsPresence) and time.monotonic() - seen > _FRESH:
                latencies = await asyncio.to_thread(engine.present, _SOON)
                latencies = {site: seconds for site, seconds in latencies.items() if site in self.model.sites}
                self.metrics.seen(latencies)
                self._sites = (time.monotonic(), latencies)
            return latencies

    async def about(self) -> dict[str, Any]:
        """The model and its federation at a glance, in plain values."""
        latencies = await self.sites()
        model = self.model.describe()
        spent = {} if model.privacy is None else model.privacy.spent
        sites = [
            {
                "name": site.name,
                "up": None if site.name not in latencies else latencies[site.name] is not None,
                "seconds": latencies.get(site.name),
                "rows": site.rows,
                "spent": list(spent[site.name]) if site.name in spent else None,
            }
            for site in model.sites
        ]
        return {
            "model": model.kind,
            "version": __version__,
            "columns": list(self.columns.names),
            "width": self.columns.width,
            "classes": self.classes,
            "distance_unit": self.model.distance_unit,
            "asks_sites": self.federation is not None,
            "sites": sites,
            "missing_in_training": dict(model.missing),
            "privacy": None if model.privacy is None else model.privacy.line(),
            "questions_last_hour": self.metrics.last_hour,
            "most_rows": self.limits.rows,
        }

    def close(self) -> None:
        """Let go of the thread and of the hub."""
        self._batcher.close()
        if self.federation is not None:
            self.federation.close()


def answer_values(answer: Answer, classes: Sequence[Any]) -> dict[str, Any]:
    """An answer in plain values: one object per row, and which sites answered."""
    columns: dict[str, list[Any]] = {"label": answer.labels.tolist()}
    if answer.probabilities is not None:
        names = [str(name) for name in classes]
        columns["probabilities"] = [dict(zip(names, row, strict=True)) for row in answer.probabilities.tolist()]
    if isinstance(answer, CoveredAnswer):
        columns["label"] = [
            None if unsure else label for unsure, label in zip(answer.abstained, columns["label"], strict=True)
        ]
        columns["abstained"] = answer.abstained.tolist()
        columns["set"] = [[label for label, inside in zip(classes, row, strict=True) if inside] for row in answer.sets]
    for name in ("site", "batch", "part", "score", "distance", "p_value"):
        values = getattr(answer, name, None)
        if values is not None:
            columns[name] = [_plain(value) for value in values.tolist()]
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return {"answers": rows, "sites": list(answer.sites), "missing": dict(answer.missing)}


def _plain(value: Any) -> Any:
    """A value that JSON has: null in place of what is no finite number, of no site, and of no batch."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return None if value in ("", -1) and not isinstance(value, float) else value

"""Requests that arrive together are scored together: one question to the sites for many callers."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from kernfed.base.answer import Answer
from kernfed.base.checks import FloatArray
from kernfed.errors import InputError
from kernfed.serve.requests import RequestError

#: What of an answer is of all rows alike; everything else is by row.
_COMMON = ("sites", "missing")
#: Characters of the names of all callers of one scoring: sites keep so many.
_LONGEST_NAMES = 200


@dataclass(frozen=True, eq=False)
class _Waiting:
    rows: FloatArray
    caller: str
    answer: "asyncio.Future[Answer]"


class Batcher:
    """Lets ``score(rows, callers)`` answer, in one thread, what has arrived meanwhile.

    A request that comes alone is scored at once. While one is scored others gather, and where several came together the
    next ones are waited for ``window`` seconds. ``most_rows`` are scored at a time, at least one request; where
    ``most_waiting`` numbers wait the next is refused. ``heard`` is told how many requests and rows each scoring has.
    """

    def __init__(
        self,
        score: Callable[[FloatArray, str], Answer],
        *,
        most_rows: int,
        most_waiting: int,
        heard: Callable[[int, int], None],
        window: float = 0.003,
    ) -> None:
        self._score, self._heard = score, heard
        self._most_rows, self._most_waiting, self._window = most_rows, most_waiting, window
        self._queue: deque[_Waiting] = deque()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="scoring")
        self._working: asyncio.Task[None] | None = None

    async def ask(self, rows: FloatArray, caller: str) -> Answer:
        """The answer for rows (n, p)."""
        if self._queue and sum(one.rows.size for one in self._queue) + rows.size > self._most_waiting:
            raise RequestError(503, f"{len(self._queue):,} requests are waiting already; ask again later", wait=1.0)
        own = _Waiting(rows, caller, asyncio.get_running_loop().create_future())
        self._queue.append(own)
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return await own.answer

    def close(self) -> None:
        """Let go of the thread."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        """Score until nothing waits."""
        together = 1
        while self._queue:
            if together > 1:
                await asyncio.sleep(self._window)
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
            if batch and (rows + len(one.rows) > self._most_rows or len(_listed(named)) > _LONGEST_NAMES):
                break
            self._queue.popleft()
            if not one.answer.done():
                batch.append(one)
                callers, rows = named, rows + len(one.rows)
        return batch

    async def _answer(self, batch: Sequence[_Waiting]) -> None:
        """Answer a batch; where it cannot be scored for what is in it, each alone, for only one may be the reason."""
        rows = batch[0].rows if len(batch) == 1 else np.concatenate([one.rows for one in batch])
        self._heard(len(batch), len(rows))
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
    """The answer of some of its rows."""
    known = {one.name: getattr(answer, one.name) for one in fields(answer) if one.name not in _COMMON}
    chosen: dict[str, Any] = {name: values[rows] for name, values in known.items() if values is not None}
    return replace(answer, **chosen)


def _listed(callers: set[str]) -> str:
    return ", ".join(sorted(callers))


def _settle(one: _Waiting, outcome: Answer | Exception) -> None:
    """Tell who waits, unless they have gone."""
    if one.answer.done():
        return
    if isinstance(outcome, Exception):
        one.answer.set_exception(outcome)
    else:
        one.answer.set_result(outcome)

"""What arrives together is scored together, and everybody gets their tested rows back."""

import asyncio
import threading

import numpy as np
import pytest

from kernfed.base.answer import Answer
from kernfed.errors import InputError

pytest.importorskip("fastapi", reason="needs the extra serve: pip install -e '.[serve]' in a clone of kernfed")
from kernfed.serve.gateway import Batcher
from kernfed.serve.requests import Limits, RequestError


class Scorer:
    """Doubles the first column; waits for ``go``, and refuses rows with a negative number."""

    def __init__(self):
        self.calls, self.go = [], threading.Event()
        self.go.set()

    def __call__(self, rows, callers):
        assert self.go.wait(20)
        self.calls.append((len(rows), callers))
        if rows.min() < 0:
            raise InputError("negative")
        return Answer(2 * rows[:, 0], rows.copy(), sites=("north",))


def batcher(scorer, rows=100, waiting=1000):
    counted = []
    return Batcher(scorer, Limits(rows=rows, waiting=waiting), lambda *counts: counted.append(counts)), counted


async def together(tested, scorer, questions):
    """Ask all the others while the first is being scored."""
    scorer.go.clear()
    tasks = []
    for rows, caller in questions:
        tasks.append(asyncio.create_task(tested.ask(np.array(rows, dtype=float), caller)))
        if len(tasks) < 3:
            await asyncio.sleep(0.02)
    await asyncio.sleep(0)
    scorer.go.set()
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_requests_that_wait_are_scored_at_once():
    scorer = Scorer()
    tested, counted = batcher(scorer)
    questions = [([[n, 0]] * (1 + n % 2), f"caller-{n % 3}") for n in range(10)]
    answers = asyncio.run(together(tested, scorer, questions))
    for (rows, _), answer in zip(questions, answers, strict=True):
        assert answer.labels.tolist() == [2 * row[0] for row in rows]
        assert answer.probabilities.shape == (len(rows), 2)
        assert answer.sites == ("north",)
    assert scorer.calls == [(1, "caller-0"), (14, "caller-0, caller-1, caller-2")]
    assert counted == [(1, 1), (9, 14)]
    tested.close()


def test_what_cannot_be_scored_is_refused_alone():
    scorer = Scorer()
    tested, _ = batcher(scorer)
    answers = asyncio.run(together(tested, scorer, [([[1]], "a"), ([[2]], "b"), ([[-1]], "c"), ([[3]], "d")]))
    assert [answer.labels.tolist() for answer in answers if isinstance(answer, Answer)] == [[2], [4], [6]]
    assert isinstance(answers[2], InputError)
    tested.close()


def test_a_scoring_has_bounded_rows_and_names():
    scorer = Scorer()
    tested, _ = batcher(scorer, rows=5)
    asyncio.run(together(tested, scorer, [([[1]] * 3, "a")] * 4))
    assert [rows for rows, _ in scorer.calls] == [3, 3, 3, 3]
    scorer.calls.clear()
    tested, _ = batcher(scorer)
    callers = [f"{'x' * 60}{number}" for number in range(7)]
    asyncio.run(together(tested, scorer, [([[1]], caller) for caller in callers]))
    assert sorted(name for _, names in scorer.calls for name in names.split(", ")) == callers
    assert all(len(names) <= 200 for _, names in scorer.calls)
    tested.close()


def test_too_many_rows_do_not_wait():
    scorer = Scorer()
    tested, _ = batcher(scorer, waiting=4)
    answers = asyncio.run(together(tested, scorer, [([[1]] * 2, "a")] * 4))
    refused = [answer for answer in answers if isinstance(answer, RequestError)]
    assert len(refused) == 1
    assert refused[0].status == 503
    assert refused[0].wait == 1.0
    tested.close()


def test_who_has_gone_is_not_scored():
    scorer = Scorer()
    tested, _ = batcher(scorer)

    async def leave():
        scorer.go.clear()
        tasks = []
        for name in ("first", "gone", "here"):
            tasks.append(asyncio.create_task(tested.ask(np.ones((1, 1)), name)))
            await asyncio.sleep(0.02)
        tasks[1].cancel()
        await asyncio.sleep(0)
        scorer.go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(leave())
    assert isinstance(answers[1], asyncio.CancelledError)
    assert [names for _, names in scorer.calls] == ["first", "here"]
    tested.close()


def test_an_error_of_scoring_reaches_everybody():
    def broken(rows, callers):
        raise RuntimeError(f"no answer for {len(rows)} row of {callers}")

    tested, _ = batcher(broken)
    with pytest.raises(RuntimeError, match="no answer for 1 row of a"):
        asyncio.run(tested.ask(np.ones((1, 1)), "a"))
    tested.close()

"""Queries of the day: counted once each, at a constant cost, and never given back by a clock."""

import datetime
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernfed.errors import StoreError
from kernfed.federation import Payload, Policy, Site
from kernfed.site import authorise, quota
from kernfed.site.authorise import Caller, question_digest, repetition_key
from kernfed.site.protocol import task as tasks_module
from kernfed.site.protocol.message import Question, Reply, decode_reply, encode_question
from kernfed.site.protocol.task import Task
from kernfed.site.store import SiteStore

DAY = "2030-01-01"


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The day of January 2030 that the clock shows, which a test may set; scores cost nothing."""
    shown = {"day": 1}

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> "Clock":
            return cls(2030, 1, shown["day"], tzinfo=tz)

    monkeypatch.setattr(authorise.datetime, "datetime", Clock)
    scores = Task("scores", lambda *_: Payload(), "scores", queries=True, locked=False)
    monkeypatch.setitem(tasks_module._tasks, "scores", scores)
    return shown


def opened(folder: Path, limit: int = 10) -> Site:
    return Site("a", np.eye(3), [0, 1, 0], policy=Policy(queries_per_day=limit), store=SiteStore(folder))


def asked(id: str, rows: int = 1) -> Question:
    return Question("run", id, "scores", Payload({"X": np.zeros((rows, 3))}), "me")


def ask(site: Site, id: str, rows: int = 1) -> str:
    """Code of the refusal, or "" where the question is answered."""
    question = asked(id, rows)
    reply: Reply = decode_reply(site.answer(encode_question(question)), question, "a")
    return "" if reply.refusal is None else reply.refusal.code


def day_file(folder: Path) -> Path:
    return folder / "queries" / f"{DAY}.jsonl"


def test_what_is_written_and_read_for_a_question_does_not_grow_with_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, sizes, reads = opened(tmp_path, 10**6), [], []
    writes = {"write": os.write, "text": Path.write_text, "bytes": Path.write_bytes}

    def seen(kind: str) -> Any:
        def write(first: Any, content: Any, *rest: Any, **options: Any) -> Any:
            sizes.append(len(content))
            return writes[kind](first, content, *rest, **options)

        return write

    def opening(self: Path, *args: Any, **options: Any) -> Any:
        if self.parent.name == "queries":
            reads.append(self)
        return honest_open(self, *args, **options)

    honest_open = Path.open
    ask(site, "warm up")  # the day's file is begun
    monkeypatch.setattr(os, "write", seen("write"))
    monkeypatch.setattr(Path, "write_text", seen("text"))
    monkeypatch.setattr(Path, "write_bytes", seen("bytes"))
    monkeypatch.setattr(Path, "open", opening)
    each = []
    for number in range(200):
        sizes.clear()
        assert ask(site, f"question {number:04}") == ""
        each.append(sum(sizes))
    assert max(each) - min(each) <= 10  # digits of numbers in the journal
    assert reads == []


def test_a_clock_set_forward_and_back_gives_nothing(tmp_path: Path, clock: dict[str, int]) -> None:
    site = opened(tmp_path)
    assert ask(site, "one", 10) == ""
    clock["day"] = 2
    assert ask(site, "two", 10) == ""  # another day
    for day in (1, 2, 1):
        clock["day"] = day
        assert ask(site, f"back to {day}") == "policy"
        assert ask(opened(tmp_path), f"and again to {day}") == "policy"  # in another process, too
    assert ask(site, "two", 10) == ""  # its reply was lost: counted on day 2, and still known
    clock["day"] = 3
    assert ask(site, "three", 10) == ""


def test_processes_that_share_a_store_agree(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    assert [ask(first, "a", 4), ask(second, "b", 4), ask(first, "c", 2)] == ["", "", ""]
    assert [ask(first, "d"), ask(second, "d")] == ["policy", "policy"]
    assert [ask(first, "b", 4), ask(second, "a", 4)] == ["", ""]  # asked again
    assert ask(second, "a", 3) == "repeated id"


def test_a_line_torn_at_any_byte_is_a_question_that_was_not_counted(tmp_path: Path) -> None:
    site = opened(tmp_path)
    assert [ask(site, "a", 4), ask(site, "b", 5)] == ["", ""]
    whole = day_file(tmp_path).read_bytes()
    first = whole.index(b"\n") + 1
    for size in range(first, len(whole) + 1):
        day_file(tmp_path).write_bytes(whole[:size])
        counted = size >= len(whole) - 1  # only its end is missing: it may have been answered
        again = opened(tmp_path)
        assert ask(again, "c", 5) == ("policy" if counted else "")
        assert ask(again, "b", 5) == ("" if counted else "policy")
        assert ask(again, "a", 4) == ""


@pytest.mark.parametrize("moment", ["write", "fsync"])
def test_a_process_killed_while_it_counts(tmp_path: Path, moment: str) -> None:
    assert ask(opened(tmp_path), "first", 4) == ""
    child = os.fork()
    if child == 0:  # killed before the line is written, or before it is known to be on disk
        try:
            setattr(quota.os, moment, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            ask(opened(tmp_path), "killed", 3)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    site = opened(tmp_path)
    assert ask(site, "killed", 3) == ""  # asked again, and counted once
    assert [ask(site, "last", 4), ask(site, "last", 3), ask(site, "more")] == ["policy", "", "policy"]


def test_a_damaged_line_is_noticed(tmp_path: Path) -> None:
    site = opened(tmp_path)
    assert [ask(site, "a", 4), ask(site, "b", 5)] == ["", ""]
    content = day_file(tmp_path).read_bytes()
    day_file(tmp_path).write_bytes(content.replace(b"4]", b"1]"))
    with pytest.raises(StoreError, match="it counts the queries of the day"), site.store.locked():
        quota.DailyQueries(site.store).follow(datetime.date(2030, 1, 1))
    assert ask(opened(tmp_path), "c") != ""


def test_what_an_earlier_version_counted_in_the_state_still_counts(tmp_path: Path, clock: dict[str, int]) -> None:
    store, question = SiteStore(tmp_path), asked("lost", 6)
    key = repetition_key(question, Caller("me", False))
    counted = {DAY: {key: question_digest(question)}}
    store.write_state({**store.read_state(), "queries": {DAY: {"everybody": 6}}, "counted": counted})
    site = opened(tmp_path)
    assert [ask(site, "lost", 6), ask(site, "new", 5), ask(site, "new", 4)] == ["", "policy", ""]
    state = store.read_state()
    assert (state["queries"], "counted" in state) == ({}, False)
    assert ask(opened(tmp_path), "newer") == "policy"
    store.write_state({**state, "queries": {"2030-01-05": {"everybody": 10}}})  # it had seen a later day
    clock["day"] = 4
    assert ask(opened(tmp_path), "a day before that") == "policy"

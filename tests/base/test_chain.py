"""Lines in a chain: whole or closed by a marker, in one order for all processes, and found out when somebody edits."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kernfed.base import chain as chained
from kernfed.base.chain import ChainedLines, ChainFile, line_files, read_head
from kernfed.errors import InputError
from kernfed.site.journal import check_journal, export_journal, read_journal, read_pin

FIRST = "000000000001.jsonl"
#: A process that writes lines and says on stdout which are on disk, until it is killed.
WRITER = """
import sys
from pathlib import Path
from kernfed.base.chain import ChainedLines
lines = ChainedLines(Path(sys.argv[1]), {}, durable=False)
for number in range(int(sys.argv[3])):
    place = lines.append({"event": "asked", "who": sys.argv[2], "own": number, "filling": "x" * 300})
    print(place.number, place.chain, flush=True)
"""


def written(folder: Path, count: int = 5) -> ChainedLines:
    lines = ChainedLines(folder, {"site": "a"}, durable=False)
    for number in range(count):
        lines.append({"event": "asked", "own": number})
    return lines


def writer(folder: Path, name: str, count: int) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", WRITER, str(folder), name, str(count)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_lines_are_numbered_and_chained_from_the_first(tmp_path: Path) -> None:
    written(tmp_path)
    lines = list(read_journal(tmp_path))
    assert [line["n"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["event"] for line in lines] == ["begun"] + ["asked"] * 5
    assert lines[0]["site"] == "a"
    verdict = check_journal(tmp_path)
    assert (verdict.lines, verdict.first, verdict.last, verdict.torn, verdict.problems) == (6, 1, 6, 0, [])
    assert read_head(tmp_path) is not None
    assert verdict.head == f"6:{lines[-1]['chain']}"
    assert (tmp_path / FIRST).stat().st_mode & 0o077 == 0


def test_a_line_is_on_disk_before_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    lines = ChainedLines(tmp_path / "j", {})
    for _ in range(3):
        lines.append({"event": "asked"})
        assert synced[-1] == (tmp_path / "j" / FIRST).stat().st_size


def test_threads_share_one_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = written(tmp_path, 1)
    lines._durable = True
    entered, go, waits = threading.Event(), threading.Event(), []

    def slow(place: Path) -> None:
        waits.append(place)
        entered.set()
        assert go.wait(20)

    monkeypatch.setattr(chained, "_sync_file", slow)
    threads = [threading.Thread(target=lines.append, args=({"event": "asked"},)) for _ in range(8)]
    threads[0].start()
    assert entered.wait(20)
    for thread in threads[1:]:
        thread.start()
    for _ in range(2000):  # until all have written, while the first one waits
        if lines._end is not None and lines._end.number == 10:
            break
        threading.Event().wait(0.01)
    go.set()
    for thread in threads:
        thread.join(20)
    assert len(waits) == 2  # of the first line, and of the seven others together
    assert check_journal(tmp_path).problems == []


def test_two_processes_and_threads_share_one_chain(tmp_path: Path) -> None:
    processes = [writer(tmp_path, name, 60) for name in ("one", "two")]
    lines = ChainedLines(tmp_path, {}, durable=False)
    for number in range(60):
        lines.append({"event": "asked", "who": "three", "own": number})
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    verdict = check_journal(tmp_path)
    assert (verdict.lines, verdict.problems) == (181, [])
    for who in ("one", "two", "three"):
        assert [line["own"] for line in read_journal(tmp_path) if line.get("who") == who] == list(range(60))


def test_a_journal_that_is_being_written_is_whole(tmp_path: Path) -> None:
    lines, stop = written(tmp_path), threading.Event()

    def write() -> None:
        while not stop.is_set():
            lines.append({"event": "asked"})

    thread = threading.Thread(target=write)
    thread.start()
    problems = [check_journal(tmp_path).problems for _ in range(40)]
    stop.set()
    thread.join()
    assert problems == [[]] * 40


def test_killed_writers_lose_no_line_that_was_said_to_be_written(tmp_path: Path) -> None:
    draws = random.Random(5)
    told: dict[int, str] = {}
    for _ in range(4):
        process = writer(tmp_path, "killed", 100_000)
        assert process.stdout is not None
        for _ in range(draws.randint(20, 120)):
            number, chain = process.stdout.readline().split()
            told[int(number)] = chain
        process.send_signal(signal.SIGKILL)
        rest = process.communicate()[0].splitlines()
        told |= {int(line.split()[0]): line.split()[1] for line in rest if len(line.split()) == 2}
    ChainedLines(tmp_path, {}).append({"event": "asked"})
    kept = {line["n"]: line["chain"] for line in read_journal(tmp_path)}
    assert check_journal(tmp_path).problems == []
    assert told.items() <= kept.items()


@pytest.mark.parametrize("kept", [1, 20, 100, -1])
def test_a_torn_line_is_closed_by_a_marker(tmp_path: Path, kept: int) -> None:
    """Killed while it wrote the last line; without its end only, it counts."""
    written(tmp_path, 3)
    content = (tmp_path / FIRST).read_bytes()
    start = content[:-1].rindex(b"\n") + 1
    (tmp_path / FIRST).write_bytes(content[:-1] if kept == -1 else content[: start + kept])
    (tmp_path / "head").unlink()  # it was not written then
    assert len(check_journal(tmp_path).problems) == (kept != -1)
    written(tmp_path, 1)
    verdict = check_journal(tmp_path)
    assert verdict.problems == []
    assert verdict.torn == (kept != -1)
    assert [line["event"] for line in read_journal(tmp_path)][3:] == (
        ["asked", "asked"] if kept == -1 else ["torn", "asked"]
    )


def test_a_full_disk_takes_a_line_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, write = written(tmp_path), os.write
    before = (tmp_path / FIRST).read_bytes()

    def full(descriptor: int, text: bytes) -> int:
        if len(text) > 10:
            return write(descriptor, text[: len(text) - 10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        lines.append({"event": "asked"})
    monkeypatch.undo()
    assert (tmp_path / FIRST).read_bytes() == before
    lines.append({"event": "asked"})
    assert check_journal(tmp_path).problems == []
    assert check_journal(tmp_path).lines == 7


def test_full_files_are_followed_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chained, "FULL", 600)
    one, two = written(tmp_path, 4), ChainedLines(tmp_path, {}, durable=False)
    for _ in range(6):
        two.append({"event": "asked"})
        one.append({"event": "asked"})
    files = line_files(tmp_path)
    assert len(files) > 3
    assert check_journal(tmp_path).problems == []
    assert all(json.loads(file.read_bytes().splitlines()[0])["event"] == "continued" for file in files[1:])
    files[0].rename(tmp_path / "archived")  # kept elsewhere
    verdict = check_journal(tmp_path)
    assert (verdict.problems, verdict.first) == ([], int(files[1].stem))
    files[2].unlink()
    assert "lines were taken out" in check_journal(tmp_path).problems[0]


def test_a_process_killed_when_it_began_a_file(tmp_path: Path) -> None:
    written(tmp_path, 2)
    (tmp_path / "000000000004.jsonl").touch()
    written(tmp_path, 1)
    assert check_journal(tmp_path).problems == []
    assert [line["event"] for line in read_journal(tmp_path)][3:] == ["continued", "asked"]


def _without(place: int) -> Any:
    return lambda lines: [*lines[:place], *lines[place + 1 :]]


def _edited(lines: list[bytes]) -> list[bytes]:
    return [*lines[:3], lines[3].replace(b'"own": 2', b'"own": 7'), *lines[4:]]


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (_edited, "line 4 was changed"),
        (_without(3), "line 5 follows line 3"),
        (_without(0), "begins with line 2"),
        (lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]], "line 4 follows line 2"),
        (lambda lines: [*lines[:3], lines[2], *lines[3:]], "line 3 follows line 3"),
        (lambda lines: [*lines[:3], b"{}\n", *lines[3:]], "after line 3 there are 2 bytes that are no line"),
        (lambda lines: [*lines[:3], lines[3][:-9] + b"\n", *lines[4:]], "that are no line"),
        (lambda lines: lines[:-1], "its end is gone"),
        (lambda lines: lines[:-2], "its end is gone"),
    ],
)
def test_tampering_is_found(tmp_path: Path, edit: Any, told: str) -> None:
    written(tmp_path)
    place = tmp_path / FIRST
    lines = place.read_bytes().splitlines(keepends=True)
    place.write_bytes(b"".join(edit(lines)))
    assert told in check_journal(tmp_path).problems[0]


@pytest.mark.parametrize("running", [True, False])
def test_an_end_that_was_cut_off_is_written_down(tmp_path: Path, running: bool) -> None:
    lines = written(tmp_path)
    place = tmp_path / FIRST
    place.write_bytes(b"".join(place.read_bytes().splitlines(keepends=True)[:-2]))
    if running:
        (tmp_path / "head").unlink()  # the process has seen the lines
    else:
        lines = ChainedLines(tmp_path, {}, durable=False)
    lines.append({"event": "asked"})
    assert [line["event"] for line in read_journal(tmp_path)][-2:] == ["cut", "asked"]
    assert check_journal(tmp_path).problems == ["line 5 says that lines are gone: there were 6"]


def test_only_a_noted_head_finds_a_journal_that_was_written_anew(tmp_path: Path) -> None:
    written(tmp_path / "true")
    head = check_journal(tmp_path / "true").head
    export_journal(tmp_path / "true", tmp_path / "copy.jsonl")
    assert check_journal(tmp_path / "copy.jsonl", head).problems == []
    written(tmp_path / "false", 9)  # with all its hashes
    assert check_journal(tmp_path / "false").problems == []
    assert "is not the one that was noted" in check_journal(tmp_path / "false", head).problems[0]
    written(tmp_path / "short", 2)  # cut off together with its own note of its end
    assert "line 6, which was noted, is not here" in check_journal(tmp_path / "short", head).problems[0]
    written(tmp_path / "true", 3)
    assert check_journal(tmp_path / "true", head).problems == []


@pytest.mark.parametrize("pin", ["", "7", "7:abc", "x:" + "0" * 64, "7:" + "G" * 64])
def test_heads_that_are_none(pin: str) -> None:
    with pytest.raises(InputError, match="number:hash"):
        read_pin(pin)


def test_a_line_that_is_longer_than_the_end_that_is_read_is_followed_by_the_next(tmp_path: Path) -> None:
    ChainedLines(tmp_path, {}, durable=False).append({"event": "asked", "filling": "x" * 5 * chained.TAIL})
    other = ChainedLines(tmp_path, {}, durable=False)
    assert other.last()["n"] == 2
    place = other.append(lambda chain: {"event": "asked", "follows": chain})
    assert place.number == 3
    first, second = list(read_journal(tmp_path))[1:]
    assert second["follows"] == first["chain"]
    assert check_journal(tmp_path).problems == []


SAMPLES = Path(__file__).parents[1] / "samples" / "chains"


def test_chains_of_earlier_versions_are_read_and_continued(tmp_path: Path) -> None:
    """A ledger and a journal as version 0.2 wrote them: neither hash nor way of writing may change."""
    place = tmp_path / "ledger.jsonl"
    place.write_bytes((SAMPLES / "ledger.jsonl").read_bytes())
    with ChainFile.opened(place, "kernfed privacy ledger 1", "{path} {line}") as file:
        head = file.lines[-1]["chain"]
        assert [line["chain"] for line in file.lines] == [
            json.loads(text)["chain"] for text in (SAMPLES / "ledger.jsonl").read_text().splitlines()
        ]
        assert file.append({"note": "one more"})["chain"] == chained.chained(head, {"note": "one more"})
    assert place.read_bytes().startswith((SAMPLES / "ledger.jsonl").read_bytes())
    shutil.copytree(SAMPLES / "journal", tmp_path / "journal")
    assert check_journal(tmp_path / "journal").problems == []
    ChainedLines(tmp_path / "journal", {"site": "a"}, durable=False).append({"event": "asked"})
    verdict = check_journal(tmp_path / "journal")
    assert (verdict.lines, verdict.problems) == (3, [])


@pytest.mark.parametrize("line", [1, 2])
def test_a_changed_line_of_one_file_is_named(tmp_path: Path, line: int) -> None:
    text = (SAMPLES / "ledger.jsonl").read_text().splitlines()
    text[line - 1] = text[line - 1].replace("1e-05", "2e-05").replace("row", "raw").replace("2026", "2027")
    (tmp_path / "ledger").write_text("\n".join(text) + "\n")
    with (
        pytest.raises(InputError, match=f"^damaged at {line}$"),
        ChainFile.opened(tmp_path / "ledger", "kernfed privacy ledger 1", "damaged at {line}"),
    ):
        pass

"""A site killed in the middle of a change, at every one of its writes in turn."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

DRIVER = textwrap.dedent(
    """
    import os, shutil, signal, sys
    from pathlib import Path
    import numpy as np
    from kernfed import files
    from kernfed.federation import Policy, Site, SiteStore
    from kernfed.federation.folding.machines import fit_batches, read_machines
    from kernfed.site.protocol.message import Payload, Question, decode_reply, digest, encode_question
    from kernfed.kahm.model import FoldingParameters
    sys.path.insert(0, sys.argv[2])
    from oracles.federation import files_with_row

    folder = Path(sys.argv[1])
    generator = np.random.default_rng(0)
    X, y = generator.standard_normal((30, 4)), np.arange(30) % 3
    NEW = generator.standard_normal((5, 4))
    parameters = FoldingParameters(batch_size=1 if sys.argv[3] == "forget" else 4)
    handle = digest(parameters.to_values())

    def open_site(path):
        return Site("a", X, y, store=SiteStore(path), policy=Policy.open())

    def ask(site, task, id, arrays, **values):
        question = Question("run", id, task, Payload(arrays, values))
        reply = decode_reply(site.answer(encode_question(question)), question, "a")
        assert reply.refusal is None, reply.refusal
        return reply.payload

    def prepare(site):
        ask(site, "folding_fit", "p", {}, handle=handle, parameters=parameters.to_values(), privacy=None)

    def change(site):
        if sys.argv[3] == "forget":
            return ask(site, "forget_rows", "change", {"ids": np.array([4, 31])})
        return ask(site, "add_rows", "change", {"X": NEW}, y={"dtype": "<i8", "labels": [0, 1, 2, 7, 7]})

    def die_at(number):
        honest, left = os.fsync, [number]

        def fsync(handle):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            honest(handle)

        files.os.fsync = fsync

    first = open_site(folder / "start")
    prepare(first)
    ask(first, "add_rows", "rows", {"X": NEW[:2] + 1}, y={"dtype": "<i8", "labels": [0, 1]})  # ids 30 and 31
    killed = 0
    for number in range(1, 30):
        place = folder / str(number)
        shutil.copytree(folder / "start", place)
        child = os.fork()
        if child == 0:
            site = open_site(place)
            die_at(number)
            change(site)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        assert status in (0, signal.SIGKILL), status
        killed += status == signal.SIGKILL
        site = open_site(place)
        entry = read_machines(site, handle)
        forgotten = site.store.read_state()["forgotten"]
        assert entry is None or not np.isin(entry.ids, forgotten).any()
        assert not forgotten or files_with_row(place, X[4]) == []  # machines that held it are gone before
        answer = change(site)  # the same question again
        again = change(site)
        rows = site.rows()
        if sys.argv[3] == "forget":
            assert not {4, 31} & set(rows.ids.tolist()) and len(rows.ids) == 30
            for row in (X[4], NEW[1] + 1):
                assert files_with_row(place, row) == [], number
        else:
            assert len(rows.ids) == 37, (number, rows.ids)
            assert answer.arrays["ids"].tolist() == again.arrays["ids"].tolist() == [32, 33, 34, 35, 36]
        prepare(site)
        entry = read_machines(site, handle)
        assert sorted(entry.ids.tolist()) == sorted(rows.ids.tolist())
        scratch = fit_batches(rows, parameters, entry.labels.tolist(), list(entry.batches))
        assert all(a.mean.tobytes() == b.mean.tobytes() for a, b in zip(entry.machines, scratch.machines))
        if status == 0:
            break
    else:
        raise AssertionError("never ended")
    print(killed)
    """
)


@pytest.mark.slow  # in ``make test`` the kills of tests/test_attacks.py are at every write of the same changes
@pytest.mark.parametrize("change", ["forget", "add"])
def test_killed_at_every_write_and_asked_again(tmp_path: Path, change: str) -> None:
    """Killed (-9) at the first, second, ... write: no forgotten row is used, and asking again completes the change."""
    tests = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", DRIVER, str(tmp_path), tests, change]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3

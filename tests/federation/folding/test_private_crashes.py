"""A site killed in the middle of a release, at every write in turn, and two processes that release at once."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

COMMON = textwrap.dedent(
    """
    import os, shutil, signal, sys
    from pathlib import Path
    import numpy as np
    from kernfed.federation import Policy, Site, SiteStore
    from kernfed.federation.folding.machines import folding_handle
    from kernfed.federation.folding.questions import scores_question
    from kernfed.site.protocol.message import Payload, Question, decode_reply, encode_question
    from kernfed.site.release.permit import open_ledger
    from kernfed.federation.folding.release import Recipe
    from kernfed.site.release.kept import FOLDER
    from kernfed.kahm.model import FoldingParameters
    from kernfed.privacy import RecordGaussian, RecordMoments

    generator = np.random.default_rng(0)
    X, y = generator.standard_normal((30, 4)), np.arange(30) % 3
    mechanism = RecordGaussian(2.0, 1e-5, 3.0) if sys.argv[2] == "rows" else RecordMoments(2.0, 1e-5, 4, radius=3.0)
    recipe = Recipe(mechanism, rows_per_class=20).to_values()
    parameters = FoldingParameters(batch_size=10)

    def open_site(path):
        return Site("a", X, y, store=SiteStore(path), policy=Policy.open())

    def prepare(site):
        handle = folding_handle(parameters, recipe)
        training = {"handle": handle, "parameters": parameters.to_values(), "privacy": recipe}
        made = ask(site, "folding_fit", Payload(values=training))
        scoring = scores_question(handle, X[:5], {"a": made.values["generation"]})
        return ask(site, "scores", scoring).arrays["scores"].tobytes()

    def ask(site, task, payload):
        question = Question("run", "q", task, payload)
        reply = decode_reply(site.answer(encode_question(question)), question, "a")
        assert reply.refusal is None, reply.refusal
        return reply.payload
    """
)

KILLED = COMMON + textwrap.dedent(
    """
    folder = Path(sys.argv[1])
    honest = os.fsync
    killed = 0
    for number in range(1, 30):
        place = folder / str(number)
        child = os.fork()
        if child == 0:
            site, left = open_site(place), [number]

            def fsync(handle):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                honest(handle)

            os.fsync = fsync
            prepare(site)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        assert status in (0, signal.SIGKILL), status
        killed += status == signal.SIGKILL
        site = open_site(place)
        charged = len(open_ledger(site).entries())
        # Budget may be lost, privacy never: what was released was charged before.
        assert charged >= len(site.store.names(FOLDER)), number
        before = [site.store.read(FOLDER, name) for name in site.store.names(FOLDER)]
        answer = prepare(site)
        kept = [site.store.read(FOLDER, name) for name in site.store.names(FOLDER)]
        assert len(kept) == 1
        if before:  # released before it was killed: answered from there, and not charged again
            assert len(open_ledger(site).entries()) == charged == 1
            for name, array in before[0].arrays.items():
                assert array.tobytes() == kept[0].arrays[name].tobytes()
        assert 1 <= len(open_ledger(site).entries()) <= 2
        assert prepare(open_site(place)) == answer
        if status == 0:
            break
    else:
        raise AssertionError("never ended")
    print(killed)
    """
)

TOGETHER = COMMON + textwrap.dedent(
    """
    place = Path(sys.argv[1])
    SiteStore(place)
    children = []
    for _ in range(4):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, prepare(open_site(place)))
            os._exit(0)
        children.append((child, read))
    answers = {os.read(read, 1000) for child, read in children if os.waitpid(child, 0)[1] == 0}
    assert len(answers) == 1, len(answers)
    print(len(open_ledger(open_site(place)).entries()))
    """
)


def run(code: str, path: Path, kind: str) -> int:
    done = subprocess.run([sys.executable, "-c", code, str(path), kind], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


# In ``make test`` the kills of tests/test_attacks.py are at every write of a release of rows.
@pytest.mark.parametrize("kind", [pytest.param("rows", marks=pytest.mark.slow), "moments"])
def test_killed_at_every_write_of_a_release(tmp_path: Path, kind: str) -> None:
    assert run(KILLED, tmp_path, kind) >= 4


@pytest.mark.parametrize("kind", ["rows", "moments"])
def test_processes_that_release_at_once_release_once(tmp_path: Path, kind: str) -> None:
    assert run(TOGETHER, tmp_path, kind) == 1

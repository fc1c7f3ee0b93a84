"""Members as processes, with only bytes between them: killed while they write, they come back to the same answer."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from federation.summing.conftest import ARRAYS
from kernfed.errors import TooFewReplies
from kernfed.federation import Federation, Payload, Policy, Site
from kernfed.secure import Committee

SCRIPT = Path(__file__).parent / "member_process.py"
MEMBERS = ("m1", "m2", "m3")


class ProcessEngine:
    """Sites in this process, members in their own; a member that is killed is started again and asked again."""

    def __init__(self, data, folder):
        self.folder, self.killed, self.asked = folder, 0, []
        self.here = {name: Site(name, *rows, policy=Policy.open()) for name, rows in data.items()}
        self.running = {name: self.start(name) for name in MEMBERS}

    @property
    def sites(self):
        return tuple(sorted([*self.here, *MEMBERS]))

    def start(self, name, write=0):
        (self.folder / name).mkdir(exist_ok=True)
        command = [sys.executable, str(SCRIPT), str(self.folder / name), name, str(write)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def kill_at(self, name, write):
        self.stop(name)
        self.running[name] = self.start(name, write)

    def stop(self, name):
        process = self.running[name]
        process.stdin.close()
        process.stdout.close()
        process.wait(30)

    def ask(self, name, question):
        process = self.running[name]
        try:
            process.stdin.write(len(question).to_bytes(8, "little") + question)
            process.stdin.flush()
        except BrokenPipeError:
            return b""
        return process.stdout.read(int.from_bytes(process.stdout.read(8), "little"))

    def carry(self, data, sites, timeout):  # noqa: ARG002  every engine has this signature
        answers = {}
        for name in sites:
            question = data if isinstance(data, bytes) else data[name]
            self.asked.append((name, question))
            if name in self.here:
                answers[name] = self.here[name].answer(question)
                continue
            answers[name] = self.ask(name, question)
            if not answers[name]:
                self.killed += 1
                self.kill_at(name, 0)
                answers[name] = self.ask(name, question)
        return answers

    def close(self):
        for name in MEMBERS:
            self.stop(name)


@pytest.mark.slow
def test_a_member_that_is_killed(data, tmp_path):
    engine = ProcessEngine(data, tmp_path)
    with Federation(engine, helpers=MEMBERS) as federation:
        federation.sum("toy_gram", Payload(), ARRAYS, committee=Committee(MEMBERS))
        exact = sum(X.T @ X for X, _ in data.values())
        for write in range(2, 30, 4):
            before = engine.killed
            engine.kill_at("m2", write)
            total = federation.sum("toy_gram", Payload(), ARRAYS, committee=Committee(MEMBERS))
            np.testing.assert_allclose(total.arrays["gram"], exact, atol=1e-9)
            if engine.killed == before:
                break
        assert engine.killed >= 2
        engine.kill_at("m2", 0)
        name, question = engine.asked[-2]
        assert (name, engine.ask(name, question) == engine.ask(name, question)) == ("m2", True)
        with pytest.raises(TooFewReplies, match="the difference would tell of 1"):
            federation.sum("toy_gram", Payload(), ARRAYS, committee=Committee(MEMBERS), sites=["s0", "s1", "s2", "s3"])

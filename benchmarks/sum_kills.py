"""Masked sums whose sites and members are killed at random moments: between any two writes that reach the disk.

A kill is an exception that nothing catches, raised by the n-th ``fsync`` of a party's answer; what is left is the
party's store, from which it is set up again. Every run must end in the exact sum over the sites it names, or in a
refusal.

    python benchmarks/sum_kills.py --runs 200 --out benchmarks/kept
"""

import argparse
import json
import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np

from kernfed.errors import ProtocolError, TooFewReplies
from kernfed.federation import Federation, Payload, Policy, Refusal, Site, SiteStore, task
from kernfed.secure import Committee

ARRAYS = {"gram": ((3, 3), 1e4), "rows": ((1,), 1e4)}
SITES, MOST_WRITES = 9, 7


@task("killed_gram", leaves="statistics", additive=True)
def gram(site: Site, payload: Payload) -> Payload:  # noqa: ARG001  every task has this signature
    """Second moments and number of rows."""
    rows = site.rows()
    return Payload({"gram": rows.X.T @ rows.X, "rows": np.array([float(len(rows.y))])})


class Killed(BaseException):
    """The process is gone."""


@contextmanager
def killed_at(write: int):
    """Kill whoever lets its ``write``-th file or folder reach the disk, before it does (0: never)."""
    count, sync = 0, os.fsync

    def counted(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count == write:
            raise Killed
        sync(descriptor)

    with mock.patch("os.fsync", counted):
        yield


class KillingEngine:
    """Sites one after the other; ``kills[task][site]`` says at which write of its answer a site is killed.

    A killed party is set up again from its store. ``asked_again`` parties then get the same question once more.
    """

    def __init__(self, data: Mapping[str, tuple[np.ndarray, np.ndarray]], folder: Path) -> None:
        self.data, self.folder = data, folder
        self.kills: dict[str, dict[str, int]] = {}
        self.asked_again: set[str] = set()
        self.killed = 0
        self._sites = {name: self._set_up(name) for name in data}

    def _set_up(self, name: str) -> Site:
        return Site(name, *self.data[name], store=SiteStore(self.folder / name), policy=Policy.open())

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites."""
        return tuple(sorted(self.data))

    def carry(
        self,
        data: bytes | Mapping[str, bytes],
        sites: Sequence[str],
        timeout: float,  # noqa: ARG002
    ) -> Mapping[str, bytes | Refusal]:
        """Ask every site; one that is killed does not answer, unless it is asked again."""
        answers: dict[str, bytes | Refusal] = {}
        for name in sites:
            question = data if isinstance(data, bytes) else data[name]
            write = next((at[name] for task, at in self.kills.items() if task.encode() in question and name in at), 0)
            try:
                with killed_at(write):
                    answers[name] = self._sites[name].answer(question)
            except Killed:
                self.killed += 1
                self._sites[name] = self._set_up(name)
                if name in self.asked_again:
                    answers[name] = self._sites[name].answer(question)
        return answers

    def close(self) -> None:
        """Nothing to release."""


def one_run(seed: int, folder: Path) -> tuple[str, int]:
    """How a run ends, "sum" or the task that had too few answers, and how many parties were killed in it."""
    draws = np.random.default_rng(seed)
    data = {f"s{i}": (draws.normal(size=(5 + i, 3)), draws.integers(0, 2, 5 + i)) for i in range(SITES)}
    corrupt = bool(draws.integers(2))
    members = tuple(sorted(draws.choice(sorted(data), 4 if corrupt else 3, replace=False).tolist()))
    engine = KillingEngine(data, folder)
    federation = Federation(engine)
    victims = draws.choice(sorted(data), SITES // 3, replace=False).tolist()
    fallen = draws.choice(members, 1).tolist()
    engine.kills = {
        "sum_masked": {site: int(draws.integers(1, MOST_WRITES)) for site in victims},
        "sum_sign": {site: int(draws.integers(1, MOST_WRITES)) for site in fallen},
        "sum_answer": {site: int(draws.integers(1, MOST_WRITES)) for site in fallen},
    }
    engine.asked_again = set(draws.choice([*victims, *fallen], 2).tolist())
    try:
        total = federation.sum(
            "killed_gram", Payload(), ARRAYS, committee=Committee(members, corrupt), min_replies=SITES - SITES // 3
        )
    except (TooFewReplies, ProtocolError) as error:
        return str(error).split("'")[1], engine.killed
    exact = sum(data[site][0].T @ data[site][0] for site in total.sites)
    if np.abs(total.arrays["gram"] - exact).max() > 1e-9 or len(total.sites) < SITES - SITES // 3:
        raise AssertionError(f"run {seed} gave a wrong sum over {total.sites}")
    return "sum", engine.killed


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--out", type=Path, help="folder for sum_kills.json")
    given = parser.parse_args()
    runs = given.runs
    ends: Counter[str] = Counter()
    killed = 0
    for seed in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            end, count = one_run(seed, Path(folder))
        ends[end] += 1
        killed += count
    if given.out is not None:
        figures = {"runs": runs, "parties_killed": killed, "ends": dict(ends), "wrong_sums": 0}
        (given.out / "sum_kills.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(f"{runs} runs, {killed} parties killed: " + ", ".join(f"{end} {n}" for end, n in ends.most_common()))


if __name__ == "__main__":
    main()

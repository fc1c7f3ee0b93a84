"""One private release locks and reads the ledger's file once: checks, charge and statement see the same lines."""

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernfed.errors import InputError
from kernfed.federation import Payload, Policy, Site, SiteStore
from kernfed.federation.folding.machines import folding_handle
from kernfed.federation.folding.release import Recipe
from kernfed.kahm.model import FoldingParameters
from kernfed.privacy import Ledger, PureEvent, RandomizedLabels, RecordGaussian, RecordMoments, RecordRidge
from kernfed.privacy.values import mechanism_to_values
from kernfed.ridge.parameters import RidgeParameters
from kernfed.site.protocol.message import Question, decode_reply, encode_question
from kernfed.site.release.books import LEDGER, charges, open_ledger

X = np.random.default_rng(3).standard_normal((20, 3))
Y = np.arange(20) % 2


def make(path: Path, persons: Any = None) -> Site:
    policy = Policy(("*",), max_record_epsilon=20.0)
    return Site("a", X, Y, persons=persons, store=SiteStore(path), policy=policy)


def ask(site: Site, task: str, values: dict[str, Any]) -> dict[str, Any]:
    question = Question("run", np.random.default_rng().bytes(8).hex(), task, Payload(values=values))
    reply = decode_reply(site.answer(encode_question(question)), question, "a")
    assert reply.refusal is None, reply.refusal
    return dict(reply.payload.values)


def fit(site: Site, mechanism: Any, labels: Any = None) -> dict[str, Any]:
    recipe = Recipe(mechanism, labels=labels, rows_per_class=10).to_values()
    parameters = FoldingParameters(batch_size=5)
    handle = folding_handle(parameters, recipe)
    return ask(site, "folding_fit", {"handle": handle, "parameters": parameters.to_values(), "privacy": recipe})


def ridge(site: Site, epsilon: float = 1.0) -> dict[str, Any]:
    parameters = RidgeParameters(3, "given", classes=(0, 1)).to_values()
    mechanism = mechanism_to_values(RecordRidge(epsilon, 1e-5, 1.0, 1.0))
    return ask(site, "ridge_release", {"parameters": parameters, "privacy": mechanism})


RELEASES: dict[str, Callable[[Site], Any]] = {
    "rows": lambda site: fit(site, RecordGaussian(0.5, 1e-5, 2.0)),
    "moments": lambda site: fit(site, RecordMoments(0.5, 1e-5, 2, radius=2.0)),
    "sums": ridge,
    "rows and labels": lambda site: fit(site, RecordGaussian(0.5, 1e-5, 2.0), RandomizedLabels(1.0, (0, 1))),
}


class Uses:
    """How often the file of a ledger is locked, and how often it is read."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.locks, self.reads = place, 0, 0
        flock, dup = fcntl.flock, os.dup

        def count_locks(file: Any, how: int) -> None:
            self.locks += self.is_it(file if isinstance(file, int) else file.fileno())
            flock(file, how)

        def count_reads(descriptor: int) -> int:
            self.reads += self.is_it(descriptor)
            return dup(descriptor)

        monkeypatch.setattr(fcntl, "flock", count_locks)
        monkeypatch.setattr(os, "dup", count_reads)

    def is_it(self, descriptor: int) -> bool:
        return self.place.exists() and os.fstat(descriptor).st_ino == self.place.stat().st_ino


@pytest.mark.parametrize("persons", [None, [f"p{i // 2}" for i in range(20)]], ids=["rows", "persons"])
@pytest.mark.parametrize("release", RELEASES)
def test_a_release_locks_and_reads_the_ledger_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, persons: Any
) -> None:
    site = make(tmp_path, persons)
    ridge(site, epsilon=0.7)  # there is a ledger, and a release to hold it against
    before = charges(site)
    uses = Uses(tmp_path / LEDGER, monkeypatch)
    answer = RELEASES[release](site)
    assert (uses.locks, uses.reads) == (1, 1)
    assert charges(site) == before + (2 if "labels" in release else 1)
    assert answer["privacy"]["charges"] == [f"{charges(site):016d}"]


def test_so_does_the_first_one_and_one_answered_from_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make(tmp_path)
    uses = Uses(tmp_path / LEDGER, monkeypatch)
    for number in (1, 2):
        ridge(site)
        assert (uses.locks, uses.reads) == (number, number)
    assert charges(site) == 1


def test_the_file_is_given_back_with_the_question(tmp_path: Path) -> None:
    """Another process may charge the ledger between two questions, and the next one sees it."""
    site = make(tmp_path)
    ridge(site)
    Ledger(tmp_path / LEDGER, secret=(tmp_path / "secret.key").read_bytes()).charge([PureEvent(0.1)], data="x")
    assert charges(site) == 2
    assert ridge(site)["privacy"]["charges"] == [f"{2:016d}"]


def test_a_ledger_that_outlives_the_question_reads_the_file_as_it_is(tmp_path: Path) -> None:
    site = make(tmp_path)
    ridge(site)
    with site.store.locked():
        ledger = open_ledger(site)
        assert len(ledger.chain()) == 2
    ridge(site, epsilon=0.5)
    assert len(ledger.chain()) == 3
    with site.store.locked():  # whoever holds the file already does not wait for itself
        assert charges(site) == 2
        assert len(ledger.entries()) == 2


def test_a_line_that_failed_halfway_is_cut_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, say: the next charge in the same question follows the last whole line."""
    site = make(tmp_path)
    ridge(site)
    honest = os.write
    with site.store.locked():
        ledger = open_ledger(site)

        def torn(descriptor: int, text: bytes) -> int:
            honest(descriptor, text[: len(text) // 2])
            raise OSError(28, "no space left")

        monkeypatch.setattr(os, "write", torn)
        with pytest.raises(OSError, match="no space"):
            ledger.charge([PureEvent(0.1)], data="lost", ids=["p"])
        monkeypatch.setattr(os, "write", honest)
        ledger.charge([PureEvent(0.1)], data="kept", ids=["p"])
    lines = [json.loads(line) for line in (tmp_path / LEDGER).read_text().splitlines()]
    assert [line["data"] for line in lines[2:]] == ["kept"]
    assert charges(site) == 2


def test_what_is_kept_open_needs_the_lock(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="with the store locked"):
        SiteStore(tmp_path).keep_open("ledger", lambda: pytest.fail("opened"))


def test_a_damaged_file_is_refused_and_given_back(tmp_path: Path) -> None:
    site = make(tmp_path)
    ridge(site)
    place = tmp_path / LEDGER
    whole = place.read_bytes()
    place.write_bytes(b"x" + whole[1:])
    with pytest.raises(InputError, match="damaged at line 1"):
        Ledger(place)
    place.write_bytes(whole)
    assert charges(site) == 1

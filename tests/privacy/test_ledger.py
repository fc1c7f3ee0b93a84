"""The ledger alone, between processes, and after kill -9."""

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from kernfed.errors import BudgetExceeded
from kernfed.privacy import ElementLaplace, Ledger, PureEvent, RecordGaussian, data_hash, epsilon_for
from kernfed.privacy.accounting import GaussianEvent
from kernfed.privacy.ledger import person_keys


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def test_charges_survive_a_restart_and_add_up(path):
    ledger = Ledger(path, 1.0, 1e-6)
    ledger.charge([PureEvent(0.4)], data="a", note="first")
    again = Ledger(path)
    assert (again.epsilon, again.delta) == (1.0, 1e-6)
    again.charge([PureEvent(0.4)], data="b")
    assert [entry.data for entry in again.entries()] == ["a", "b"]
    assert again.entries()[0].note == "first"
    assert np.isclose(again.spent().epsilon, 0.8, rtol=1e-3)
    with pytest.raises(BudgetExceeded, match="over the budget of 1 in"):
        Ledger(path).charge([PureEvent(0.4)], data="c")
    assert len(Ledger(path).entries()) == 2


def test_a_second_release_of_the_same_rows_is_charged(path, rng):
    X = rng.uniform(0, 1, (5, 3))
    mechanism = RecordGaussian(1.0, 1e-5, radius=1.0)
    ledger = Ledger(path, 1.3, 1e-5)
    first = mechanism.release(X, ledger=ledger)
    assert ledger.spent().epsilon <= 1.0
    with pytest.raises(BudgetExceeded, match=r"these very rows were charged 1 time\(s\) before"):
        mechanism.release(X, ledger=ledger)
    assert first.events == ledger.entries()[0].events
    assert ledger.entries()[0].data == data_hash(X)
    assert data_hash(X) != data_hash(X[::-1])


def test_a_release_of_exactly_the_budget_is_allowed(path, rng):
    X = rng.uniform(0, 1, (5, 3))
    RecordGaussian(2.0, 1e-5, radius=1.0).release(X, ledger=Ledger(path, 2.0, 1e-5))
    assert len(Ledger(path).entries()) == 1


def test_composition_is_tighter_than_adding_up(path):
    ledger = Ledger(path, 10.0, 1e-5)
    events = [GaussianEvent(0.2)] * 4
    for event in events:
        ledger.charge([event], data="x")
    assert ledger.spent().epsilon == epsilon_for(events, 1e-5)
    assert ledger.spent().epsilon < 4 * epsilon_for(events[:1], 1e-5)


def test_element_noise_is_charged_per_record(path, rng):
    ledger = Ledger(path, 100.0, 1e-5)
    mechanism = ElementLaplace(1.0, 1.0, (0.0, 1.0))
    release = mechanism.release(rng.uniform(0, 1, (4, 50)), ledger=ledger)
    assert release.record.epsilon > 20
    assert np.isclose(ledger.spent().epsilon, release.record.epsilon, rtol=1e-9)
    with pytest.raises(BudgetExceeded, match="would bring some person to epsilon"):
        Ledger(path.with_name("small"), 1.0, 1e-5).charge(release.events, data="x")


def test_named_persons_pay_for_themselves_only(path):
    ledger = Ledger(path, 1.0, 1e-9)
    ledger.charge([PureEvent(0.7)], data="a", ids=["ann", "bob"])
    ledger.charge([PureEvent(0.7)], data="b", ids=["cid", "dan"])
    assert np.isclose(ledger.spent().epsilon, 0.7)
    with pytest.raises(BudgetExceeded):
        ledger.charge([PureEvent(0.7)], data="c", ids=["eve", "bob"])
    ledger.charge([PureEvent(0.3)], data="d", ids=["bob"])
    assert np.isclose(ledger.spent(["bob"]).epsilon, 1.0)
    assert np.isclose(ledger.spent(["ann", "zoe"]).epsilon, 0.7)
    assert ledger.spent(["zoe"]).epsilon == 0.0


def test_a_charge_without_names_concerns_everyone(path):
    ledger = Ledger(path, 1.0, 1e-9)
    ledger.charge([PureEvent(0.6)], data="a", ids=[1, 2])
    with pytest.raises(BudgetExceeded):
        ledger.charge([PureEvent(0.6)], data="b")
    ledger.charge([PureEvent(0.3)], data="b")
    assert np.isclose(ledger.spent([3]).epsilon, 0.3)
    with pytest.raises(BudgetExceeded):
        ledger.charge([PureEvent(0.2)], data="c", ids=[2])
    ledger.charge([PureEvent(0.2)], data="c", ids=[3])
    assert np.isclose(ledger.spent().epsilon, 0.9)


def test_what_is_not_private_is_refused(path):
    ledger = Ledger(path, 1.0, 1e-9)
    with pytest.raises(ValueError, match="private releases only"):
        ledger.charge([PureEvent(0.1)], data="a", private=False)
    assert ledger.entries() == ()


def test_budget_exceeded_is_a_value_error():
    assert issubclass(BudgetExceeded, ValueError)


def test_the_file_is_its_owners(path):
    Ledger(path, 1.0, 1e-9)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("torn", [b"{", b'{"time": "2024', b"\0\0\0\0"])
def test_a_torn_last_line_is_cut_off(path, torn):
    """A process died while writing: its release never left."""
    ledger = Ledger(path, 1.0, 1e-9)
    ledger.charge([PureEvent(0.5)], data="a")
    with path.open("ab") as file:
        file.write(torn)
    assert len(Ledger(path).entries()) == 1
    Ledger(path).charge([PureEvent(0.5)], data="b")
    assert [entry.data for entry in Ledger(path).entries()] == ["a", "b"]


def damage_value(lines):
    return [lines[0], lines[1].replace("0.5", "0.1"), lines[2]]


@pytest.mark.parametrize(
    "damage",
    [
        damage_value,
        lambda lines: [lines[0], lines[2]],
        lambda lines: [lines[0], lines[2], lines[1]],
        lambda lines: [lines[0], "nonsense", lines[2]],
        lambda lines: [lines[0], "[1, 2]", lines[2]],
        lambda lines: [lines[1], lines[2]],
        lambda lines: [lines[0].replace('"epsilon": 2.0', '"epsilon": 9.0'), *lines[1:]],
    ],
)
def test_a_changed_ledger_is_noticed(path, damage):
    ledger = Ledger(path, 2.0, 1e-9)
    for data in "ab":
        ledger.charge([PureEvent(0.5)], data=data)
    lines = path.read_text().splitlines()
    changed = damage(lines)
    assert changed != lines
    path.write_text("\n".join(changed) + "\n")
    for call in (lambda: Ledger(path), lambda: ledger.charge([PureEvent(0.5)], data="c"), ledger.spent):
        with pytest.raises(ValueError, match=r"is damaged at line \d"):
            call()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "epsilon and delta must be given for a new ledger"),
        ({"epsilon": 1.0}, "epsilon and delta must be given for a new ledger"),
        ({"epsilon": 0.0, "delta": 1e-5}, "epsilon must be > 0"),
        ({"epsilon": 1.0, "delta": 0.0}, "delta must be > 0"),
        ({"epsilon": 1.0, "delta": 1.0}, "delta must be < 1"),
    ],
)
def test_bad_budgets(path, arguments, message):
    with pytest.raises(ValueError, match=message):
        Ledger(path, **arguments)
    assert not path.exists()


def test_another_budget_for_the_same_file_is_refused(path):
    Ledger(path, 1.0, 1e-5)
    with pytest.raises(ValueError, match=r"epsilon must be 1\.0 as the ledger at"):
        Ledger(path, 5.0, 1e-5)


@pytest.mark.parametrize("ids", [[], [[1]], [1.5], [None], "ann"])
def test_bad_ids(ids):
    with pytest.raises(ValueError, match="ids must be a list"):
        person_keys(ids)


CHARGER = """
    import os, sys
    from kernfed.errors import BudgetExceeded
    from kernfed.privacy import Ledger, PureEvent
    path, workers, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    children = []
    for worker in range(workers):
        child = os.fork()
        if child:
            children.append(child)
            continue
        ledger = Ledger(path)
        for number in range(count):
            try:
                ledger.charge([PureEvent(0.01)], data=f"{worker} {number}")
            except BudgetExceeded:
                os.write(1, b"refused\\n")
            else:
                os.write(1, f"charged {worker}\\n".encode())
        os._exit(0)
    sys.exit(max(os.waitpid(child, 0)[1] for child in children))
"""


def start(path, workers, count):
    """A process group: one parent that imports, and ``workers`` children that charge."""
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(CHARGER), str(path), str(workers), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_processes_do_not_lose_each_others_charges(path):
    """Four processes try 40 charges where 25 fit (delta so small that epsilons add up)."""
    Ledger(path, 0.2501, 1e-15)
    group = start(path, 4, 10)
    answers = [line.split()[0] for line in group.communicate(timeout=60)[0].splitlines()]
    assert group.returncode == 0
    assert (answers.count("charged"), answers.count("refused")) == (25, 15)
    entries = Ledger(path).entries()
    assert len({entry.data for entry in entries}) == 25


def test_kill_9_loses_no_charge_that_was_answered(path):
    Ledger(path, 1e3, 1e-15)
    group = start(path, 3, 100_000)
    assert group.stdout is not None
    answered: list[str] = []
    while len(set(answered)) < 3:
        answered.append(group.stdout.readline())
    os.killpg(group.pid, signal.SIGKILL)
    answered += group.stdout.read().splitlines()
    assert group.wait(timeout=60) == -signal.SIGKILL
    group.stdout.close()
    entries = Ledger(path).entries()
    assert len(entries) >= len(answered) >= 3
    Ledger(path).charge([PureEvent(0.01)], data="after")
    assert len(Ledger(path).entries()) == len(entries) + 1


def test_every_line_is_json(path):
    ledger = Ledger(path, 1.0, 1e-5)
    ledger.charge([GaussianEvent(0.1, slack=1e-28)], data="a", ids=[1, 2, 3], note="note")
    header, line = (json.loads(text) for text in path.read_text().splitlines())
    assert header["epsilon"] == 1.0
    assert line["events"] == [{"kind": "gaussian", "mu": 0.1, "count": 1, "slack": 1e-28}]
    assert line["note"] == "note"

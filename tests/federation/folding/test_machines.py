"""What a site keeps for a learner: equal to the bit to what is built from scratch, and only what changed is new."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernfed.errors import FileFormatError
from kernfed.federation import Policy, Site, SiteStore
from kernfed.federation.folding import machines as tasks
from kernfed.federation.folding.machines import SiteMachines, divide, fit_batches, read_machines, write_machines
from kernfed.files import labels_to_values
from kernfed.kahm.choice import PARTITIONS
from kernfed.kahm.machine import recover_rows
from kernfed.kahm.model import FoldingParameters
from kernfed.kahm.model_file import pack_machines
from kernfed.site.protocol.message import Payload, Question, decode_reply, digest, encode_question
from oracles.federation import sites_data

PARAMETERS = FoldingParameters(batch_size=6, measure="rms", partition="order")
HANDLE = digest(PARAMETERS.to_values())


def ask(site: Site, task: str, arrays: Any = None, **values: Any) -> Payload:
    question = Question("run", np.random.default_rng().bytes(8).hex(), task, Payload(arrays or {}, values))
    reply = decode_reply(site.answer(encode_question(question)), question, site.name)
    assert reply.refusal is None, reply.refusal
    return reply.payload


def prepare(site: Site, parameters: FoldingParameters = PARAMETERS) -> SiteMachines:
    handle = digest(parameters.to_values())
    ask(site, "folding_fit", handle=handle, parameters=parameters.to_values(), privacy=None)
    entry = read_machines(site, handle)
    assert entry is not None
    return entry


def make(rng: np.random.Generator, path: Path | None = None, *, labels: Any = (0, 1, 2), **options: Any) -> Site:
    X, y = sites_data(rng, "a", rows=40, labels=labels)["a"]
    store = SiteStore(path) if path is not None else None
    return Site("a", X, y, ids=np.arange(40) * 3 + 7, store=store, policy=Policy.open(), **options)


def equal(first: SiteMachines, second: SiteMachines) -> None:
    assert first.labels.tolist() == second.labels.tolist()
    assert [batch.tolist() for batch in first.batches] == [batch.tolist() for batch in second.batches]
    other = pack_machines(second.machines)
    for name, array in pack_machines(first.machines).items():
        assert array.tobytes() == other[name].tobytes(), name
    assert first.data == second.data


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of rows of the machines that are fitted."""
    sizes: list[int] = []
    honest = tasks.fit_machines

    def note(batches: Any, **options: Any) -> Any:
        sizes.extend(len(batch) for batch in batches)
        return honest(batches, **options)

    monkeypatch.setattr(tasks, "fit_machines", note)
    return sizes


# Membership --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", PARTITIONS)
def test_division_is_by_class_and_covers_everything_once(rng: np.random.Generator, partition: str) -> None:
    site = make(rng)
    rows = site.rows()
    labels, batches = divide(rows, replace(PARAMETERS, partition=partition))
    assert sorted(np.concatenate(batches).tolist()) == sorted(rows.ids.tolist())
    label_of = dict(zip(rows.ids.tolist(), rows.y.tolist(), strict=True))
    for label, batch in zip(labels, batches, strict=True):
        assert {label_of[number] for number in batch.tolist()} == {label}


def test_division_depends_on_seed_and_names_alone(rng: np.random.Generator) -> None:
    rows, random = make(rng).rows(), replace(PARAMETERS, partition="random")
    one = [batch.tolist() for batch in divide(rows, random)[1]]
    assert [batch.tolist() for batch in divide(rows, random)[1]] == one
    assert [batch.tolist() for batch in divide(rows, replace(random, seed=1))[1]] != one
    without = rows.take(rows.y != 0)  # another class does not change the draws of this one
    assert [batch.tolist() for batch in divide(without, random)[1]] == one[2:]


def test_entries_survive_the_store(rng: np.random.Generator, tmp_path: Path) -> None:
    site = make(rng, tmp_path, labels=("x", "yy"))
    entry = prepare(site)
    again = read_machines(make(np.random.default_rng(20240607), tmp_path, labels=("x", "yy")), HANDLE)
    assert again is not None
    equal(again, entry)
    assert (again.generation, again.parameters) == (entry.generation, entry.parameters)


# Exact changes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"dtype": "float32"}, {"layers": 2}, {"partition": "kmeans"}, {"partition": "random"}]
)
def test_forgetting_equals_building_from_scratch(rng: np.random.Generator, fitted: list[int], options: Any) -> None:
    site, parameters = make(rng), replace(PARAMETERS, **options)
    before = prepare(site, parameters)
    victim = int(before.batches[3][1])
    fitted.clear()
    ask(site, "forget_rows", {"ids": np.array([victim])})
    assert fitted == [len(before.batches[3]) - 1]  # only the touched machine
    after = read_machines(site, digest(parameters.to_values()))
    assert after is not None
    expected = [batch[batch != victim] for batch in before.batches]
    assert [batch.tolist() for batch in after.batches] == [batch.tolist() for batch in expected]
    equal(after, fit_batches(site.rows(), parameters, before.labels.tolist(), expected))
    for number, machine in enumerate(after.machines):
        assert (machine is before.machines[number]) == (number != 3)
    assert after.generation > before.generation


def test_rows_of_several_batches_classes_and_a_whole_batch(rng: np.random.Generator, fitted: list[int]) -> None:
    site = make(rng)
    before = prepare(site)
    gone = np.concatenate([before.batches[0][:2], before.batches[2], before.batches[5][-1:]])
    fitted.clear()
    ask(site, "forget_rows", {"ids": gone})
    assert sorted(fitted) == sorted([len(before.batches[0]) - 2, len(before.batches[5]) - 1])
    after = read_machines(site, HANDLE)
    assert after is not None
    kept = [batch[~np.isin(batch, gone)] for batch in before.batches]
    labels = [label for label, batch in zip(before.labels.tolist(), kept, strict=True) if len(batch)]
    equal(after, fit_batches(site.rows(), PARAMETERS, labels, [batch for batch in kept if len(batch)]))


def test_forgetting_step_by_step_is_forgetting_at_once(rng: np.random.Generator) -> None:
    one, other = make(rng), make(np.random.default_rng(20240607))
    prepare(one)
    prepare(other)
    gone = one.rows().ids[rng.permutation(40)[:15]]
    ask(one, "forget_rows", {"ids": gone})
    for number in gone:
        ask(other, "forget_rows", {"ids": np.array([number])})
    first, second = read_machines(one, HANDLE), read_machines(other, HANDLE)
    assert first is not None
    assert second is not None
    equal(first, second)


def test_every_kept_model_forgets(rng: np.random.Generator, fitted: list[int]) -> None:
    site, larger = make(rng), replace(PARAMETERS, batch_size=20)
    prepare(site)
    prepare(site, larger)
    victim = int(site.rows().ids[5])
    fitted.clear()
    ask(site, "forget_rows", {"ids": np.array([victim])})
    assert len(fitted) == 2
    for parameters in (PARAMETERS, larger):
        entry = read_machines(site, digest(parameters.to_values()))
        assert entry is not None
        assert victim not in entry.ids


@pytest.mark.parametrize("room", [0, 3])
def test_added_rows_fill_up_the_last_machine_then_make_others(
    rng: np.random.Generator, fitted: list[int], room: int
) -> None:
    site = make(rng)
    before = prepare(site)
    last = int(np.flatnonzero(before.labels == 0)[-1])
    assert len(before.batches[last]) == 7  # 14 rows in round(14 / 6) parts
    if room:
        ask(site, "forget_rows", {"ids": before.batches[last][: room + 1]})
        before = prepare(site)
    fitted.clear()
    X = rng.standard_normal((room + 13, 5))
    ids = ask(site, "add_rows", {"X": X}, y=labels_to_values(np.zeros(room + 13, int))).arrays["ids"]
    after = read_machines(site, HANDLE)
    assert after is not None
    assert fitted == [*([6] if room else []), 7, 6]  # 13 rows in round(13 / 6) parts
    assert after.batches[last].tolist() == [*before.batches[last].tolist(), *ids[:room].tolist()]
    assert [batch.tolist() for batch in after.batches[len(before.batches) :]] == [
        ids[room : room + 7].tolist(),
        ids[room + 7 :].tolist(),
    ]
    equal(after, fit_batches(site.rows(), PARAMETERS, after.labels.tolist(), list(after.batches)))


def test_new_classes_get_machines_of_their_own(rng: np.random.Generator, fitted: list[int]) -> None:
    site = make(rng, labels=("x", "y"))
    before = prepare(site)
    fitted.clear()
    ask(site, "add_rows", {"X": rng.standard_normal((4, 5))}, y=labels_to_values(np.array(["a much longer label"] * 4)))
    assert fitted == [4]
    after = read_machines(site, HANDLE)
    assert after is not None
    assert after.classes.tolist() == ["a much longer label", "x", "y"]
    assert after.machines[: len(before.machines)] == before.machines
    equal(after, fit_batches(site.rows(), PARAMETERS, after.labels.tolist(), list(after.batches)))


def test_rows_kept_aside_enter_no_machine(rng: np.random.Generator) -> None:
    site = make(rng, holdout=0.4)
    prepare(site)
    ask(site, "add_rows", {"X": rng.standard_normal((30, 5))}, y=labels_to_values(np.zeros(30, int)))
    entry = read_machines(site, HANDLE)
    assert entry is not None
    assert sorted(entry.ids.tolist()) == sorted(site.rows().ids.tolist())
    assert len(site.held_out().ids) > 10
    generation = entry.generation
    ask(site, "forget_rows", {"ids": site.held_out().ids[:3]})
    entry = read_machines(site, HANDLE)
    assert entry is not None
    assert entry.generation == generation  # no machine held them, so every model stays as it is
    equal(entry, fit_batches(site.rows(), PARAMETERS, entry.labels.tolist(), list(entry.batches)))


def test_classes_enter_and_leave_at_the_policys_minimum(rng: np.random.Generator) -> None:
    X = rng.standard_normal((16, 5))
    policy = Policy(("*",), min_rows_per_class=5)
    site = Site("a", X, [0] * 10 + [1] * 5 + [2], policy=policy)
    assert prepare(site).classes.tolist() == [0, 1]
    ask(site, "forget_rows", {"ids": np.array([12])})
    entry = read_machines(site, HANDLE)
    assert entry is not None
    assert entry.classes.tolist() == [0]  # four rows are too few to be spoken of
    ask(site, "add_rows", {"X": rng.standard_normal((5, 5))}, y=labels_to_values(np.array([2, 2, 2, 2, 1])))
    entry = read_machines(site, HANDLE)
    assert entry is not None
    assert entry.classes.tolist() == [0, 1, 2]
    assert sorted(entry.ids.tolist()) == sorted(site.rows().ids.tolist())  # old rows of these classes are in again
    equal(entry, fit_batches(site.rows(), PARAMETERS, entry.labels.tolist(), list(entry.batches)))


def test_rows_that_no_machine_can_hold_are_not_kept(rng: np.random.Generator) -> None:
    """Finite but so large that squares overflow: refused as a whole, and the site goes on as before."""
    site = make(rng)
    before = prepare(site)
    ask(site, "add_rows", {"X": np.ones((1, 5))}, y=labels_to_values(np.array([0])))
    middle = read_machines(site, HANDLE)
    question = Question(
        "run", "q", "add_rows", Payload({"X": np.full((2, 5), 1e200)}, {"y": labels_to_values(np.arange(2))})
    )
    reply = decode_reply(site.answer(encode_question(question)), question, "a")
    assert reply.refusal is not None
    assert reply.refusal.code == "bad rows"
    assert "X must stay below" in reply.refusal.reason
    assert len(site.rows().ids) == 41
    after = read_machines(site, HANDLE)
    assert after is middle
    assert prepare(site) is middle
    assert before.machines[1] is after.machines[1]  # type: ignore[union-attr]


# Other hands on the store ------------------------------------------------------------------------------------------


def test_what_another_process_changed_is_noticed(rng: np.random.Generator, tmp_path: Path) -> None:
    one = make(rng, tmp_path)
    other = make(np.random.default_rng(20240607), tmp_path)
    before = prepare(one)
    assert prepare(other).generation == before.generation
    victim = int(before.batches[0][0])
    ask(other, "forget_rows", {"ids": np.array([victim])})
    entry = read_machines(one, HANDLE)
    assert entry is not None
    assert victim not in entry.ids  # although one had the machines in memory
    ask(other, "forget_model", handle=HANDLE)
    assert read_machines(one, HANDLE) is None


def test_an_entry_left_behind_by_a_killed_process_is_void(rng: np.random.Generator, tmp_path: Path) -> None:
    """The state is ahead of the entry: whatever the entry holds may be forgotten already."""
    site = make(rng, tmp_path)
    prepare(site)
    tasks.next_generation(site, HANDLE)
    assert read_machines(site, HANDLE) is None
    assert prepare(site).generation == 3


def test_machines_of_other_data_are_not_taken_over(rng: np.random.Generator, tmp_path: Path) -> None:
    """The site was given corrected rows under the same ids, and is asked to forget one of them before anything else."""
    prepare(make(rng, tmp_path))
    X, y = sites_data(np.random.default_rng(20240607), "a", rows=40)["a"]
    site = Site("a", X + 1.0, y, ids=np.arange(40) * 3 + 7, store=SiteStore(tmp_path), policy=Policy.open())
    ask(site, "forget_rows", {"ids": np.array([7])})
    entry = prepare(site)
    equal(entry, fit_batches(site.rows(), PARAMETERS, *divide(site.rows(), PARAMETERS)))


def test_a_damaged_entry_is_made_again_and_does_not_prevent_forgetting(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    site = make(rng, tmp_path)
    before = prepare(site)
    place = tmp_path / "folding" / f"{HANDLE}.safetensors"
    content = bytearray(place.read_bytes())
    content[-20] ^= 64
    place.write_bytes(bytes(content))
    fresh = make(np.random.default_rng(20240607), tmp_path)
    with pytest.raises(FileFormatError, match="checksum"):
        read_machines(fresh, HANDLE)
    victim = int(before.batches[0][0])
    ask(fresh, "forget_rows", {"ids": np.array([victim])})
    assert not place.exists()
    after = prepare(fresh)
    assert victim not in after.ids
    assert after.generation > before.generation


def test_a_forgotten_row_is_in_no_machine(rng: np.random.Generator) -> None:
    """Machines contain their rows: recovered from the store, the row was there before and is not afterwards."""
    site = make(rng)
    entry = prepare(site)
    number = 11
    row, victim = site.rows().X[number], int(site.rows().ids[number])

    def nearest() -> float:
        kept = tasks.unpack_machines(site.store.read("folding", HANDLE).arrays)  # type: ignore[union-attr]
        return min(float(np.abs(recover_rows(machine) - row).max(axis=1).min()) for machine in kept)

    assert nearest() < 1e-9
    assert victim in entry.ids
    ask(site, "forget_rows", {"ids": np.array([victim])})
    assert nearest() > 1e-2


def test_writing_puts_the_store_first(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make(rng)
    entry = prepare(site)

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(site.store, "write", full)
    with pytest.raises(OSError, match="no space"):
        write_machines(site, HANDLE, replace(entry, generation=99))
    assert site.cache[HANDLE].machines.generation != 99  # what is in memory is what is on disk


def test_a_site_keeps_as_many_models_as_its_policy_says(rng: np.random.Generator, tmp_path: Path) -> None:
    X, y = sites_data(rng, "a", rows=40)["a"]
    site = Site("a", X, y, store=SiteStore(tmp_path), policy=Policy(("*",), keep_models=3))
    handles = []
    for seed in range(6):
        parameters = replace(PARAMETERS, seed=seed)
        prepare(site, parameters)
        handles.append(digest(parameters.to_values()))
    assert set(site.store.names("folding")) == set(handles[-3:])
    assert set(site.cache) == set(handles[-3:])

"""A site's memory: files whole or absent, one lock, damage noticed."""

import gc
import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernfed.errors import FileFormatError, StoreError
from kernfed.federation import Policy, Site
from kernfed.files import Record
from kernfed.site.store import SiteStore


def record(number: float = 1.0) -> Record:
    arrays = {"X": np.full((50, 4), number), "ids": np.arange(50), "none": np.zeros((0, 4)), "one": np.array(number)}
    return Record(arrays, {"number": number, "words": ["ü", None, True]})


def equal(first: Record | None, second: Record) -> bool:
    assert first is not None
    return first.values == second.values and all(
        np.array_equal(first.arrays[name], array) and first.arrays[name].shape == array.shape
        for name, array in second.arrays.items()
    )


def test_records_are_kept_between_objects(tmp_path: Path) -> None:
    SiteStore(tmp_path).write(record(), "deep", "er", "it")
    again = SiteStore(tmp_path)
    assert equal(again.read("deep", "er", "it"), record())
    assert again.read("deep", "er", "other") is None
    assert again.names("deep", "er") == ["it"]
    assert again.names("nowhere") == []
    again.write(record(2.0), "deep", "er", "it")
    assert equal(SiteStore(tmp_path).read("deep", "er", "it"), record(2.0))
    again.delete("deep", "er", "it")
    again.delete("deep", "er", "it")
    assert again.read("deep", "er", "it") is None


def test_state_is_kept_between_objects(tmp_path: Path) -> None:
    state = SiteStore(tmp_path).read_state()
    assert (state["forgotten"], state["queries"]) == ([], {})
    SiteStore(tmp_path).write_state({**state, "forgotten": [3, 5]})
    assert SiteStore(tmp_path).read_state()["forgotten"] == [3, 5]


def test_a_store_without_a_path_vanishes() -> None:
    store = SiteStore()
    path = store.path
    store.write(record(), "it")
    del store
    gc.collect()
    assert not path.exists()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../up", "a/b", "/etc", "a b", "-x", ".hidden", "ü", "x" * 129, "a\0b"]
)
def test_names_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    store = SiteStore(tmp_path / "store")
    for act in (
        lambda: store.read(name),
        lambda: store.write(record(), name),
        lambda: store.delete("in", name),
        lambda: store.names(name),
        lambda: store.read_answer(name),
        lambda: store.write_answer(name, record()),
    ):
        with pytest.raises(StoreError, match="a stored name must be letters"):
            act()
    assert [entry.name for entry in tmp_path.iterdir()] == ["store"]


def test_old_answers_are_dropped(tmp_path: Path) -> None:
    store = SiteStore(tmp_path)
    for number in range(4):
        store.write_answer(f"q{number}", record(number))
    for number in range(4):
        os.utime(tmp_path / "answers" / f"q{number}.safetensors", ns=(number, number))
    for number in range(4, 202):
        (tmp_path / "answers" / f"q{number}.safetensors").write_bytes(b"")
    store.write_answer("last", record())
    assert len(list((tmp_path / "answers").iterdir())) == 200
    assert [store.read_answer(f"q{number}") is None for number in range(4)] == [True, True, True, False]
    assert equal(store.read_answer("last"), record())


# Damage ------------------------------------------------------------------------------------------------------------


def test_every_cut_of_a_record_is_noticed(tmp_path: Path) -> None:
    store = SiteStore(tmp_path)
    store.write(record(), "it")
    place = tmp_path / "it.safetensors"
    whole = place.read_bytes()
    for size in {0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1, *range(0, len(whole), 97)}:
        place.write_bytes(whole[:size])
        with pytest.raises(FileFormatError, match=r"it\.safetensors is damaged"):
            store.read("it")


def test_every_flipped_byte_of_a_record_is_noticed(tmp_path: Path, rng: np.random.Generator) -> None:
    """Also in the numbers themselves, which safetensors does not check."""
    store = SiteStore(tmp_path)
    store.write(record(), "it")
    place = tmp_path / "it.safetensors"
    whole = place.read_bytes()
    for position in {*range(0, len(whole), 13), *rng.integers(len(whole), size=50).tolist()}:
        changed = bytearray(whole)
        changed[position] ^= 1 << int(rng.integers(8))
        place.write_bytes(bytes(changed))
        try:
            found = store.read("it")
        except FileFormatError:
            continue
        assert equal(found, record())  # a flip that changes nothing, such as in the padding of the header


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "damaged"),
        ('{"version": 1, "forgotten": [1, 2', "damaged"),
        ("[]", "another version"),
        ('{"version": 99}', "another version"),
        ('{"version": 1, "forgotten": [], "queries": {}, "generations": {}}', "checksum differs"),
        ('{"version": 1, "forgotten": [], "queries": {}, "generations": {}, "checksum": 5}', "checksum differs"),
    ],
)
def test_a_damaged_state_stops_everything(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "state.json").write_text(content)
    with pytest.raises(StoreError, match=told):
        SiteStore(tmp_path).read_state()


def test_a_changed_digit_in_the_state_is_noticed(tmp_path: Path) -> None:
    """Otherwise a forgotten row would come back."""
    store = SiteStore(tmp_path)
    store.write_state({**store.read_state(), "forgotten": [17]})
    place = tmp_path / "state.json"
    place.write_text(place.read_text().replace("17", "16"))
    with pytest.raises(StoreError, match="checksum differs"):
        store.read_state()


def test_a_lost_state_stops_everything(tmp_path: Path) -> None:
    store = SiteStore(tmp_path)
    store.write(record(), "folding", "it")
    assert (tmp_path / "state.json").exists()
    (tmp_path / "state.json").unlink()
    for act in (store.read_state, lambda: store.write(record(), "other")):
        with pytest.raises(StoreError, match=r"state\.json is missing; it lists the forgotten rows"):
            act()


# Several at once ---------------------------------------------------------------------------------------------------


def test_the_lock_excludes_threads_and_other_objects(tmp_path: Path) -> None:
    SiteStore(tmp_path).write_state({**SiteStore(tmp_path).read_state(), "count": 0})
    shared = SiteStore(tmp_path)

    def work(store: SiteStore) -> None:
        for _ in range(20):
            with store.locked(), store.locked():  # may be entered again
                state = store.read_state()
                store.write_state({**state, "count": state["count"] + 1})

    stores = [shared, shared, SiteStore(tmp_path), SiteStore(tmp_path)]
    threads = [threading.Thread(target=work, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shared.read_state()["count"] == 80


def test_opening_a_store_leaves_the_writes_of_others_alone(tmp_path: Path) -> None:
    store = SiteStore(tmp_path)
    (tmp_path / "folding").mkdir()
    being_written = tmp_path / "folding" / ".it.safetensors.abc.part"
    with store.locked():
        being_written.write_bytes(b"half")
        SiteStore(tmp_path)
        assert being_written.exists()
    SiteStore(tmp_path)
    assert not being_written.exists()


KILLER = textwrap.dedent(
    """
    import os, random, signal, sys, time
    from pathlib import Path
    import numpy as np
    from kernfed.site.store import SiteStore
    from kernfed.files import Record

    folder = Path(sys.argv[1])

    def write_forever():
        store, number = SiteStore(folder), 0
        while True:
            number += 1
            store.write(Record({"X": np.full(300_000, float(number))}, {"number": number}), "folding", "it")
            store.write_state({**store.read_state(), "forgotten": list(range(number))})
            store.write_answer(f"q{number % 5}", Record({"X": np.full(1000, float(number))}, {"number": number}))

    random.seed(3)
    seen = left = 0
    for turn in range(30):
        if turn >= 10 and seen and left:
            break
        child = os.fork()
        if child == 0:
            write_forever()
        # Ten times; on a machine so busy that no writer came far, more often, and each lives longer.
        time.sleep(random.uniform(0.02, 0.08) * max(1, turn - 8))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        left += len(list(folder.rglob("*.part")))
        store = SiteStore(folder)
        assert not list(folder.rglob("*.part"))
        for place in [("folding", "it"), *(("answers", name) for name in store.names("answers"))]:
            found = store.read(*place)
            if found is not None:
                assert (found.arrays["X"] == found.values["number"]).all()
                seen += 1
        forgotten = store.read_state()["forgotten"]
        assert forgotten == list(range(len(forgotten)))
        with store.locked():
            store.write_state(store.read_state())
    print(seen, left)
    """
)


def test_killed_writers_leave_whole_files(tmp_path: Path) -> None:
    """Killed (-9) at arbitrary moments: what is there is whole, left-overs vanish, and the lock is free."""
    done = subprocess.run([sys.executable, "-c", KILLER, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen, left = map(int, done.stdout.split())
    assert seen > 0  # the writers did write,
    assert left > 0  # and some were killed in the middle of it


def test_state_is_readable_text(tmp_path: Path) -> None:
    """An officer can read which rows are forgotten."""
    store = SiteStore(tmp_path)
    store.write_state({**store.read_state(), "forgotten": [4]})
    assert json.loads((tmp_path / "state.json").read_text())["forgotten"] == [4]


def test_whatever_a_killed_write_left_is_swept_at_opening_and_at_forgetting(tmp_path: Path) -> None:
    row = np.array([[3.25, -7.5]])
    site = Site("a", np.concatenate([row, np.eye(2)]), [0, 1, 0], store=SiteStore(tmp_path), policy=Policy.open())
    strays = [tmp_path / ".tmpAbC123", tmp_path / "folding" / ".x.safetensors.9f.part"]
    (tmp_path / "folding").mkdir()
    kept = tmp_path / "notes.txt"  # the operator's own
    kept.write_text("mine")
    for sweep in (lambda: SiteStore(tmp_path), lambda: site.forget_rows(np.array([0]))):
        for stray in strays:
            stray.write_bytes(row.tobytes())
        sweep()
        assert not any(stray.exists() for stray in strays)
    assert kept.exists()
    assert all(row.tobytes() not in place.read_bytes() for place in tmp_path.rglob("*") if place.is_file())


def test_names_reach_the_disk_before_a_write_or_a_delete_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut could undo a forgetting that was acknowledged."""
    store, calls = SiteStore(tmp_path), []
    honest_sync, honest_replace, honest_unlink = os.fsync, Path.replace, Path.unlink

    def fsync(handle: int) -> None:
        calls.append(("sync", Path(f"/proc/self/fd/{handle}").readlink().is_dir()))
        honest_sync(handle)

    def replace(self: Path, target: Any) -> Path:
        calls.append(("rename", False))
        return honest_replace(self, target)

    def unlink(self: Path, missing_ok: bool = False) -> None:
        if self.suffix == ".safetensors":
            calls.append(("delete", False))
        honest_unlink(self, missing_ok=missing_ok)

    store.write(Record({"a": np.eye(2)}), "folding", "first")  # the state is there from now on
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(Path, "unlink", unlink)
    store.write(Record({"a": np.eye(2)}), "folding", "second")
    assert calls == [("sync", False), ("rename", False), ("sync", True)]  # content, name, folder
    calls.clear()
    store.delete("folding", "second")
    assert calls == [("delete", False), ("sync", True)]

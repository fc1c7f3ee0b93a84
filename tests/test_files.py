"""Model files: whole or not at all, and nothing in them is executed."""

import json
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import kernfed
from kernfed import KAHM, DeepKAHM, KAHMClassifier, WideKAHM, files
from kernfed.errors import FileFormatError
from kernfed.files import Record, atomic_path


def models(rng):
    X, y = rng.standard_normal((60, 5)), np.array(["b", "a", "ç"] * 20)
    return [
        KAHM(scale=None).fit(X),
        DeepKAHM(layers=3, dtype="float32", scale=None).fit(X),
        WideKAHM(batch_size=20, random_state=1, partition="kmeans", scale=None).fit(X),
        KAHMClassifier(batch_size=10, measure="rms", partition="kmeans", scale=None).fit(X, y),
        KAHMClassifier(dtype="float32", batch_size=1000, partition="kmeans", scale=None).fit(X, y == "a"),
    ]


@pytest.mark.parametrize("which", range(5))
def test_a_loaded_model_is_the_same_to_the_bit(which, tmp_path, rng):
    model = models(rng)[which]
    path = tmp_path / "model.kfd"
    model.save(path)
    again = kernfed.load(path)
    queries = rng.standard_normal((30, 5))
    assert type(again) is type(model)
    assert again.get_params() == model.get_params()
    method = "predict_proba" if isinstance(model, KAHMClassifier) else "distance"
    assert (getattr(again, method)(queries) == getattr(model, method)(queries)).all()
    if isinstance(model, KAHMClassifier):
        assert (again.predict(queries) == model.predict(queries)).all()
        assert again.classes_.dtype == model.classes_.dtype
    else:
        assert (again.memberships(queries) == model.memberships(queries)).all()
        assert str(again.subspace_dim_) == str(model.subspace_dim_)


def test_the_same_model_gives_the_same_bytes(tmp_path, rng):
    X = rng.standard_normal((30, 4))
    for name in ("one", "two"):
        KAHM(scale=None).fit(X).save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.fixture
def saved(tmp_path, rng):
    path = tmp_path / "model.kfd"
    KAHMClassifier(batch_size=1000, partition="kmeans", scale=None).fit(
        rng.standard_normal((30, 4)), np.arange(30) % 3
    ).save(path)
    return path


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_truncated(saved, share):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    with pytest.raises(FileFormatError, match="not a kernfed model file, or is cut off"):
        kernfed.load(saved)


class Bomb:
    def __reduce__(self):
        return (os.system, ("touch exploded",))


@pytest.mark.parametrize(
    "content",
    [pickle.dumps(Bomb()), b"PK\x03\x04 zip", b"a,b\n1,2\n", np.random.default_rng(0).bytes(5000)],
    ids=["pickle", "zip", "table", "noise"],
)
def test_foreign_files_are_refused_and_not_executed(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foreign").write_bytes(content)
    with pytest.raises(FileFormatError, match="not a kernfed model file"):
        kernfed.load(tmp_path / "foreign")
    assert not (tmp_path / "exploded").exists()


def test_safetensors_of_another_program(tmp_path):
    save_file({"w": np.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(FileFormatError, match="no kernfed header"):
        kernfed.load(tmp_path / "other.safetensors")


def header_of(path):
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    return json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["kernfed"])


def rewrite(path, header=None, arrays=None):
    """Replace header or arrays as somebody who knows how to make the digest."""
    header, arrays = header or header_of(path), arrays or load_file(path)
    header["digest"] = files.content_digest(header, arrays)
    save_file(arrays, path, metadata={"kernfed": json.dumps(header)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "has version 99 of format 'KAHMClassifier'"),
        ({"container": 7}, "container 7"),
        ({"format": "HoloModel"}, r"'HoloModel'.*update kernfed"),
        ({"values": [1]}, "its values are list"),
        ({"values": {}}, "is damaged: KeyError"),
    ],
)
def test_newer_or_damaged_headers(saved, change, message):
    rewrite(saved, {**header_of(saved), **change})
    with pytest.raises(FileFormatError, match=message):
        kernfed.load(saved)


@pytest.mark.parametrize("name", ["image", "groups", "shapes"])
def test_damaged_arrays(saved, name):
    arrays = load_file(saved)
    arrays[name] = arrays[name][:-1]
    rewrite(saved, arrays=arrays)
    with pytest.raises(FileFormatError, match="is damaged"):
        kernfed.load(saved)


def test_missing_file_and_folder_and_unknown_model(tmp_path):
    with pytest.raises(FileNotFoundError, match="no model file at"):
        kernfed.load(tmp_path / "nothing.kfd")
    with pytest.raises(ValueError, match=r"model must be one of .*KAHMClassifier.*, got dict"):
        kernfed.save({}, tmp_path / "x")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for place in ("link", "."):
        with pytest.raises(ValueError, match="is a link, a folder or a device"), atomic_path(tmp_path / place):
            pass
    with pytest.raises(FileNotFoundError, match="does not exist"), atomic_path(tmp_path / "no" / "x"):
        pass


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012, SIM117  the inner block is what is interrupted
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_killed_write_leaves_the_old_file(tmp_path):
    """After kill -9 in the middle of a write: the old content stays, the new name never appears half-written."""
    path = tmp_path / "file"
    path.write_text("old")
    code = (
        "import sys, time; from kernfed.files import atomic_path\n"
        "with atomic_path(sys.argv[1]) as temporary:\n"
        "    temporary.write_text('half'); print('ready', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert path.read_text() == "old"


# Earlier versions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Note:
    """A model of one word, whose format has come to its third version."""

    word: str


@pytest.fixture
def notes(monkeypatch):
    """Version 1 said "text", version 2 "words" of which the first counts, version 3 "word"; "OldNote" is gone."""
    monkeypatch.setattr(files, "_formats", dict(files._formats))
    migrations = {
        1: lambda record: Record(record.arrays, {"words": [record.values["text"]]}),
        2: lambda record: Record(record.arrays, {"word": record.values["words"][0]}),
    }

    def read(record):
        return Note(next(iter(record.values.values())))

    files.register("Note", 3, Note, lambda note: Record({}, {"word": note.word}), read, migrations=migrations)
    files.register_former("OldNote", 1, Note, read)


@pytest.mark.parametrize(
    ("kind", "version", "values"),
    [
        ("Note", 1, {"text": "a"}),
        ("Note", 2, {"words": ["a"]}),
        ("Note", 3, {"word": "a"}),
        ("OldNote", 1, {"old": "a"}),
    ],
)
@pytest.mark.usefixtures("notes")
def test_earlier_versions_are_brought_to_this_one(kind, version, values):
    note = files.from_record(Record({}, {"format": kind, "version": version, "values": values}))
    assert note == Note("a")
    assert files.to_record(note).values == {"format": "Note", "version": 3, "values": {"word": "a"}}


@pytest.mark.parametrize("version", [0, 4, "1", 1.0, True, None])
@pytest.mark.usefixtures("notes")
def test_other_versions_are_refused_by_name(version):
    with pytest.raises(FileFormatError, match=r"version .* of format 'Note'.*reads version 1 and 2 and 3"):
        files.from_record(Record({}, {"format": "Note", "version": version, "values": {"word": "a"}}))


@pytest.mark.usefixtures("notes")
def test_a_migration_that_fails_says_that_the_file_is_damaged():
    with pytest.raises(FileFormatError, match="damaged: IndexError"):
        files.from_record(Record({}, {"format": "Note", "version": 2, "values": {"words": []}}))


# Files that lie ---------------------------------------------------------------------------------------------------


def test_no_bit_can_be_flipped_without_notice(saved, rng):
    """A file says what it said, or is refused: in 0.1 a flipped bit changed answers, and nobody noticed."""
    honest, content = kernfed.load(saved), saved.read_bytes()
    queries = rng.standard_normal((10, 4))
    answers, refused = honest.predict_proba(queries), 0
    places = rng.integers(len(content), size=300)
    for place, bit in zip(places, rng.integers(8, size=300), strict=True):
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(bit)
        saved.write_bytes(bytes(damaged))
        try:
            again = kernfed.load(saved)
        except FileFormatError:
            refused += 1
        else:
            np.testing.assert_array_equal(again.predict_proba(queries), answers)
    assert refused > 290  # the rest fell on what means nothing, such as the case of a space


def test_arrays_that_changed_places_are_noticed(saved):
    arrays, header = load_file(saved), header_of(saved)
    arrays["directions"], arrays["scores"] = arrays["scores"], arrays["directions"]
    save_file(arrays, saved, metadata={"kernfed": json.dumps(header)})
    with pytest.raises(FileFormatError, match="its content differs from its digest"):
        kernfed.load(saved)


def test_a_digest_cannot_be_left_out(saved):
    header = {name: value for name, value in header_of(saved).items() if name != "digest"}
    save_file(load_file(saved), saved, metadata={"kernfed": json.dumps(header)})
    with pytest.raises(FileFormatError, match="its content differs from its digest"):
        kernfed.load(saved)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("container", [1, 2])
def test_arrays_are_finite_whoever_made_the_digest(saved, value, container):
    """Also in files of 0.1, whose container had no digest."""
    arrays = load_file(saved)
    arrays["mean"] = arrays["mean"].copy()
    arrays["mean"][0, 0] = value
    rewrite(saved, {**header_of(saved), "container": container}, arrays)
    with pytest.raises(FileFormatError, match="array 'mean' holds NaN or infinity"):
        kernfed.load(saved)


@pytest.mark.parametrize(
    ("way", "value"),
    [
        (("classes", "labels"), [[]]),
        (("classes", "labels"), [1, 0, 2]),
        (("classes", "dtype"), "9" * 5000),
        (("classes", "dtype"), None),
        (("classes", "dtype"), {"names": ["a"], "formats": ["f8"]}),
        (("temperature",), 10**400),
        (("temperature",), "1"),
        (("temperature",), -1),
        (("feature_names",), 7),
        (("parameters", "measure"), "loud"),
        (("parameters", "n_jobs"), 1e300),
        (("parameters",), []),
        (("parameters", "surprise"), 1),
    ],
)
def test_values_are_read_as_strictly_as_arrays(saved, way, value):
    header = header_of(saved)
    holder = header["values"]
    for step in way[:-1]:
        holder = holder[step]
    holder[way[-1]] = value
    rewrite(saved, header)
    with pytest.raises(FileFormatError, match="is damaged"):
        kernfed.load(saved)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 50_000 + "1" + "}" * 50_000,
        '{"container": 2, "format": "KAHM", "version": 1, "values": {"a": NaN}}',
        '{"container": 2, "format": "KAHM", "version": 1, "values": {"a": 1e999}}',
        '{"container": 2, "format": "KAHM", "version": 1, "values": {"a": ' + "9" * 5000 + "}}",
        '{"container": 2, "format": ["KAHM"], "version": 1, "values": {}}',
        '{"container": true, "format": "KAHM", "version": 1, "values": {}}',
    ],
    ids=["nested lists", "nested objects", "NaN", "1e999", "endless number", "format of lists", "container true"],
)
def test_hostile_headers_are_refused_in_one_short_sentence(tmp_path, text):
    save_file({"w": np.zeros(3)}, tmp_path / "hostile.kfd", metadata={"kernfed": text})
    with pytest.raises(FileFormatError) as refused:
        kernfed.load(tmp_path / "hostile.kfd")
    assert len(str(refused.value)) < 1000
    assert "\n" not in str(refused.value)


def test_headers_have_a_limit(tmp_path):
    """Parsed, JSON takes some thirty times its size."""
    save_file({"w": np.zeros(3)}, tmp_path / "long.kfd", metadata={"kernfed": json.dumps(["x"] * 3_000_000)})
    with pytest.raises(FileFormatError, match=r"has a header of [\d,]+ bytes, at most 10,000,000 are read"):
        kernfed.load(tmp_path / "long.kfd")


def test_models_in_messages_are_read_as_strictly_as_files(rng):
    record = files.to_record(KAHM(scale=None).fit(rng.standard_normal((20, 3))))
    spoiled = {**record.arrays, "mean": np.full_like(record.arrays["mean"], np.nan)}
    with pytest.raises(FileFormatError, match="array 'mean' holds NaN or infinity"):
        files.from_record(Record(spoiled, record.values))
    for values in ([], None, "text", {**record.values, "values": []}, {**record.values, "values": {"parameters": 1}}):
        with pytest.raises(FileFormatError):
            files.from_record(Record(record.arrays, values))
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(FileFormatError):
        files.from_record(Record(record.arrays, {**record.values, "format": deep}))


@pytest.mark.parametrize("command", ["predict", "evaluate", "report", "audit"])
def test_commands_answer_a_hostile_file_with_one_sentence(saved, tmp_path, command, capsys):
    from kernfed.cli import app

    header = header_of(saved)
    header["values"]["temperature"] = 10**400
    rewrite(saved, header)
    for name in ("rows.csv", "others.csv"):
        (tmp_path / name).write_text("a,b,c,d,y\n" + "1,2,3,4,0\n5,6,7,8,1\n" * 15)
    table, others = str(tmp_path / "rows.csv"), str(tmp_path / "others.csv")
    arguments = {
        "predict": [str(saved), table],
        "evaluate": [str(saved), "--data", table, "--label", "y"],
        "report": [str(saved), "--out", str(tmp_path / "page.html")],
        "audit": ["--model", str(saved), "--data", table, "--others", others, "--label", "y"],
    }
    with pytest.raises(SystemExit) as end:
        app([command, *arguments[command]])
    told = capsys.readouterr().err
    assert end.value.code == 2
    assert "is damaged: NotFinite: its header: numbers must be finite" in told
    assert len(told.strip().splitlines()) == 1


def test_rows_of_batches_are_numbers_in_a_line(tmp_path, rng):
    WideKAHM(batch_size=20, random_state=1, partition="kmeans", scale=None).fit(rng.standard_normal((60, 5))).save(
        tmp_path / "wide.kfd"
    )
    arrays = load_file(tmp_path / "wide.kfd")
    arrays["batch_rows"] = arrays["batch_rows"][None]
    rewrite(tmp_path / "wide.kfd", arrays=arrays)
    with pytest.raises(FileFormatError, match="batch_rows must be the 60 numbers of rows, each once"):
        kernfed.load(tmp_path / "wide.kfd")

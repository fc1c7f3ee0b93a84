"""The bench command: lists plainly, runs one or all, goes on after a failure, writes the document, refuses nonsense."""

import json

import pytest
from typer.testing import CliRunner

from kernfed.cli import app
from kernfed.data.datasets import list_brought
from kernfed_papers import runner
from kernfed_papers.experiment import Experiment, Row
from kernfed_papers.runner import list_experiments


def bench(*words):
    return CliRunner().invoke(app, ["bench", *map(str, words)])


@pytest.fixture(autouse=True)
def folder(tmp_path_factory, monkeypatch):
    """A working directory of its own: full runs are kept in ./results."""
    made = tmp_path_factory.mktemp("work")
    monkeypatch.chdir(made)
    return made


@pytest.fixture
def three(monkeypatch):
    """Three experiments in the place of all: one runs, one fails, one misses its data."""

    def fail(seed, quick):
        raise RuntimeError(f"no luck with seed {seed}, quick {quick}")

    rows = [Row("a", 0.5, 0.75, "fraction"), Row("b", None, 10, "bytes up")]
    made = tuple(
        Experiment(name, "title", source, data, "words", run)
        for name, source, data, run in (
            ("one", "SFM Table 1", (), lambda *_: rows),
            ("two", "SFM Table 2", (), fail),
            ("three", "SFM Table 3", ("nowhere",), lambda *_: rows),
        )
    )
    monkeypatch.setattr(runner, "list_experiments", lambda: made)
    monkeypatch.setattr("kernfed_papers.pages.results.list_experiments", lambda: made)


@pytest.mark.parametrize("words", [[], ["--list"]])
def test_list_is_one_plain_line_per_experiment(words):
    done = bench(*words)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines] == [experiment.id for experiment in list_experiments()]
    told = json.loads(bench(*words, "--json").stdout)
    assert told["experiments"][0]["protocol"]


@pytest.mark.usefixtures("three")
def test_list_says_what_can_run_and_what_did(folder, monkeypatch, tmp_path):
    made = (*runner.list_experiments(), Experiment("four", "t", "GIKM", ("digits", "gone", "lost"), "w", lambda *_: []))
    monkeypatch.setattr(runner, "list_experiments", lambda: made)
    monkeypatch.setenv("KERNFED_DATA", str(tmp_path / "nowhere"))
    assert [" ".join(line.split()) for line in bench().stdout.splitlines()] == [
        "one SFM Table 1 can run title",
        "two SFM Table 2 can run title",
        "three SFM Table 3 cannot run, no nowhere.npz title",
        "four GIKM can run in part, no gone.npz and 1 more t",
    ]
    assert bench("one").exit_code == 0
    (folder / "results" / "two.jsonl").write_text("{")
    (folder / "results" / "three.jsonl").write_text('{"id": "three", "rows": [], "quick": true}')
    done = bench()
    for line, words in zip(
        done.stdout.splitlines(), ("result of 20", "unreadable result ", "no result "), strict=False
    ):
        assert f"  {words}" in line
    assert "nowhere, which does not exist" in done.stderr
    assert json.loads(bench("--json").stdout)["experiments"][2]["missing"] == ["nowhere.npz"]


@pytest.mark.usefixtures("three")
def test_one_run_prints_and_keeps_one_line(tmp_path):
    done = bench("one", "--quick", "--out", tmp_path, "--seed", 3, "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)["results"]
    lines = (tmp_path / "one.jsonl").read_text().splitlines()
    assert len(told) == len(lines) == 1
    assert json.loads(lines[0])["seed"] == told[0]["seed"] == 3


@pytest.mark.usefixtures("three")
def test_table_machine_and_protocol_are_on_stdout():
    lines = bench("one").stdout.splitlines()
    assert lines[0].startswith("SFM Table 1: title")
    assert lines.index("Protocol of one: words") > 4
    assert any(line.startswith("Machine: kernfed ") for line in lines[4:])


@pytest.mark.usefixtures("three")
def test_full_runs_are_kept_without_being_asked(folder):
    done = bench("one")
    assert "kept as the last line of results/one.jsonl" in done.stderr
    assert bench("one", "--quick").exit_code == 0  # a quick one is not, nor what did not run
    assert bench("three").exit_code == 0
    assert [path.name for path in (folder / "results").iterdir()] == ["one.jsonl"]
    assert len((folder / "results" / "one.jsonl").read_text().splitlines()) == 1


@pytest.fixture
def never(monkeypatch):
    """An experiment that must not be begun."""

    def run(*_):
        raise AssertionError("begun")

    made = (Experiment("one", "title", "SFM Table 1", (), "words", run),)
    monkeypatch.setattr(runner, "list_experiments", lambda: made)


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("a-file", "results are kept in a folder, and a-file is a file"),
        ("no/such", "kept in the folder no/such, and no does not exist; make it first"),
        ("taken", "taken/one.jsonl, which is a link or a folder"),
        ("/proc", "/proc cannot be written"),
    ],
)
def test_a_bad_folder_is_found_before_the_run(folder, out, message):
    (folder / "a-file").touch()
    (folder / "taken" / "one.jsonl").mkdir(parents=True)
    for words in (["one"], ["one", "--quick"], ["--all"]):
        done = bench(*words, "--out", out)
        assert done.exit_code == 2
        assert message in done.stderr
        assert done.stdout == ""


@pytest.mark.usefixtures("three")
def test_a_result_that_cannot_be_kept_after_all_is_printed(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "results")

    monkeypatch.setattr(runner, "keep_result", full)
    done = bench("one")
    assert done.exit_code == 2
    assert "No space left" in done.stderr
    assert done.stdout.index("Protocol") < done.stdout.index('{"id": "one"')


@pytest.mark.usefixtures("three")
def test_a_result_is_kept_though_nobody_reads_it(folder, monkeypatch):
    """As in ``kernfed bench ID | head``: the pipe is closed before the table is written."""

    def closed(*_):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("kernfed_papers.bench._show", closed)
    bench("one")
    assert len((folder / "results" / "one.jsonl").read_text().splitlines()) == 1


def test_absent_data_are_described(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNFED_DATA", str(tmp_path))
    done = bench("gikm-table-2")
    assert done.exit_code == 0
    assert "not run: needs at least one of fashion_mnist.npz, cifar10_resnet50.npz" in done.stdout
    assert "fashion_mnist.npz: obtain Fashion-MNIST by Zalando Research" in done.stdout
    assert "cifar100_resnet50.npz: obtain CIFAR-100 by A. Krizhevsky" in done.stdout
    assert "x_train (50000, 2048) numbers, y_train (50000,) integers 0 .. 99" in done.stdout
    assert f"Data folder: {tmp_path}" in done.stdout


def test_files_to_bring_are_listed(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNFED_DATA", str(tmp_path / "nowhere"))
    done = CliRunner().invoke(app, ["data", "list"])
    assert done.exit_code == 0
    for info in list_brought():
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"{info.name}.npz ")]
        assert info.origin in line
        assert info.columns in line
    assert done.stdout.splitlines()[-1].startswith(f"Data folder: {tmp_path}/nowhere, which does not exist")
    (tmp_path / "femnist.npz").touch()
    monkeypatch.setenv("KERNFED_DATA", str(tmp_path))
    told = json.loads(CliRunner().invoke(app, ["data", "list", "--json"]).stdout)
    assert [info["name"] for info in told["files"] if info["available"]] == ["femnist"]
    assert told["folder"] == str(tmp_path)


@pytest.mark.usefixtures("three")
def test_all_goes_on_after_a_failure_and_sums_up(tmp_path):
    done = bench("--all", "--out", tmp_path)
    assert done.exit_code == 1
    assert "two failed, RuntimeError: no luck" in done.stderr
    summary = done.stdout.splitlines()[-5:]
    assert [line.split()[0] for line in summary[:4]] == ["id", "one", "three", "two"]
    assert "2 of 2 rows" in summary[1]
    assert "not run: needs nowhere.npz" in summary[2]
    assert "FAILED: RuntimeError" in summary[3]
    assert summary[4].startswith("2 experiments in ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.jsonl", "three.jsonl"]
    told = json.loads(bench("--all", "--json").stdout)
    assert set(told["failed"]) == {"two"}
    assert told["seconds"] >= 0


@pytest.mark.usefixtures("three")
def test_one_that_fails_alone_is_an_error():
    done = bench("two")
    assert done.exit_code == 1
    assert "no luck" in done.stderr


@pytest.mark.usefixtures("three")
def test_the_document_is_written_from_results(folder):
    assert bench("one", "--out", "results").exit_code == 0
    done = bench("--write-docs", "results.md", "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"out": "results.md", "figures": []})
    text = (folder / "results.md").read_text()
    assert "| a | 0.5000 | 0.7500 | +0.2500 | fraction |" in text
    assert "### SFM Table 3: title" in text
    assert bench("--write-docs", "other.md", "--out", "elsewhere").exit_code == 2


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(
    ("document", "message"), [("here", "here is a folder"), ("no/x.md", "folder no does not exist")]
)
def test_a_document_that_cannot_be_written_leaves_nothing_behind(folder, document, message):
    assert bench("one").exit_code == 0
    (folder / "here").mkdir()
    done = bench("--write-docs", document)
    assert done.exit_code == 2
    assert message in done.stderr
    assert sorted(path.name for path in folder.rglob("*")) == ["here", "one.jsonl", "results"]


@pytest.mark.usefixtures("three")
def test_a_page_of_quick_lines_alone_is_refused():
    assert bench("one", "--quick", "--out", "r").exit_code == 0
    done = CliRunner().invoke(app, ["report", "r"])
    assert done.exit_code == 2
    assert "only lines of quick runs" in done.stderr
    assert "kernfed bench one without --quick" in done.stderr


@pytest.mark.parametrize("words", [["--list", "--all"], ["one", "--all"], ["--write-docs", "x.md", "--list"]])
def test_what_to_run_must_be_said_once(words):
    done = bench(*words)
    assert done.exit_code == 2
    assert "name one experiment" in done.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no-such-table", "no experiment 'no-such-table'; kernfed bench lists all of them"),
        ("GIKM-Table-1", "no experiment 'GIKM-Table-1'; did you mean gikm-table-1 "),
    ],
)
def test_an_unknown_experiment_is_refused(name, message):
    done = bench(name)
    assert done.exit_code == 2
    assert message in done.stderr

import json
import re
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from kernfed.data.catalog import BROUGHT, ENTRIES, OFFICE
from kernfed_papers import runner
from kernfed_papers.experiment import Experiment, Row, not_run
from kernfed_papers.experiments import gikm_table_1, kme_data
from kernfed_papers.runner import (
    PAPERS,
    Result,
    append_line,
    find_experiment,
    list_experiments,
    paper_of,
    run_experiment,
)


def make(rows=(), datasets=("digits",), **options):
    return Experiment("probe", "a title", "Paper Table 1", datasets, "words", lambda *_: list(rows), **options)


@pytest.fixture
def probe(monkeypatch):
    """Puts an experiment in the place of all others."""

    def put(experiment):
        monkeypatch.setattr(runner, "list_experiments", lambda: (experiment,))

    return put


def test_every_experiment_says_what_it_is():
    experiments = list_experiments()
    assert len({experiment.id for experiment in experiments}) == len(experiments)
    assert "gikm-table-1" in {experiment.id for experiment in experiments}
    for experiment in experiments:
        assert re.fullmatch(r"[a-z0-9-]+", experiment.id)
        assert all((experiment.title, experiment.source, experiment.protocol))


def test_experiments_are_listed_by_paper_and_number(monkeypatch):
    papers = [paper_of(experiment.source) for experiment in list_experiments()]
    order = [(PAPERS.index(paper) if paper else len(PAPERS)) for paper in papers]
    assert order == sorted(order)
    made = [
        ("own", "ours"),
        ("b-table-10", "GIKM Table 10"),
        ("b-table-2", "GIKM Table 2"),
        ("a-figure-1", "SFM Figure 1"),
        ("b-table-2-even", "GIKM Table 2"),
    ]
    experiments = tuple(replace(make(), id=name, source=source) for name, source in made)
    modules = [namedtuple("Module", "name")(gikm_table_1.__name__)]
    monkeypatch.setattr(runner.pkgutil, "iter_modules", lambda *_: modules)
    monkeypatch.setattr(gikm_table_1, "EXPERIMENTS", experiments)
    assert [experiment.id for experiment in list_experiments()] == [
        "a-figure-1",
        "b-table-2",
        "b-table-2-even",
        "b-table-10",
        "own",
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("99", r"no experiment '99'; kernfed bench lists all of them"),
        ("gikm-tabel-17", r"did you mean gikm-table-17 or .*\? kernfed bench lists"),
        ("DPKAHM-TABLE-11", "did you mean dpkahm-table-11"),
    ],
)
def test_an_unknown_id_is_refused_with_the_nearest(name, message):
    with pytest.raises(ValueError, match=message):
        find_experiment(name)


def test_a_run_is_measured_shown_and_kept(tmp_path, probe):
    seen = []

    def run(seed, quick):
        seen.append((seed, quick))
        return [
            Row("a", 0.5, 0.75, "fraction", "remark"),
            Row("b", None, 2000, "bytes up"),
            not_run("c", 12.5, "%", "no data"),
            Row("d", 3.0, 2.0, "rounds"),
        ]

    probe(Experiment("probe", "a title", "Paper Table 1", ("digits",), "words", run))
    for seed in (3, 4):
        result = run_experiment("probe", seed=seed, quick=True, folder=tmp_path / "results")
    assert seen == [(3, True), (4, True)]
    lines = [json.loads(line) for line in (tmp_path / "results" / "probe.jsonl").read_text().splitlines()]
    assert [line["seed"] for line in lines] == [3, 4]
    assert lines[1]["rows"][0] == {"label": "a", "published": 0.5, "ours": 0.75, "unit": "fraction", "note": "remark"}
    assert lines[1]["bytes_up"] == 2000
    assert lines[1]["seconds"] >= 0
    assert lines[1]["processor_seconds"] >= 0
    assert {"kernfed", "numpy", "blas", "cores"} <= set(lines[1]["machine"])
    assert "/" not in json.dumps(lines[1]["machine"])
    shown = [line.split() for line in str(result).splitlines()]
    assert "not comparable" in str(result)
    assert shown[2] == ["a", "0.5000", "0.7500", "+0.2500", "fraction", "remark"]
    assert shown[3] == ["b", "-", "2,000", "bytes", "up"]
    assert shown[4] == ["c", "12.50", "not", "run", "%", "no", "data"]
    assert shown[5] == ["d", "3", "2", "-1", "rounds"]


def test_without_a_folder_nothing_is_written(tmp_path, probe, monkeypatch):
    monkeypatch.chdir(tmp_path)
    probe(make([Row("a", None, 1.0, "%")]))
    run_experiment("probe", folder=None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("datasets", "runs"), [(("mnist",), False), (("mnist", "digits"), True), ((), True)])
def test_absent_data_are_a_result_not_an_error(tmp_path, probe, monkeypatch, datasets, runs):
    monkeypatch.setenv("KERNFED_DATA", str(tmp_path / "nowhere"))
    probe(make([Row("a", None, 1.0, "%")], datasets))
    result = run_experiment("probe", folder=tmp_path)
    assert len(result.rows) == int(runs)
    line = json.loads((tmp_path / "probe.jsonl").read_text())
    if not runs:
        assert result.not_run == line["not_run"] == "needs mnist.npz in the folder KERNFED_DATA"
        assert "not run: needs mnist.npz" in str(result)
    assert str(tmp_path) not in json.dumps(line)


def test_one_of_several_data_sets_is_asked_for_in_one_sentence(tmp_path, probe, monkeypatch):
    monkeypatch.setenv("KERNFED_DATA", str(tmp_path))
    probe(make([], ("mnist", "20ng_mxbai")))
    reason = run_experiment("probe", folder=None).not_run
    assert reason == "needs at least one of mnist.npz, 20ng_mxbai.npz in the folder KERNFED_DATA"


def test_files_that_differ_from_the_paper_s_are_remarked(tmp_path, probe, monkeypatch, rng):
    monkeypatch.setenv("KERNFED_DATA", str(tmp_path))
    labels = np.arange(30) % 10
    np.savez(
        tmp_path / "20ng_mxbai.npz",
        x_train=rng.standard_normal((30, 4)),
        y_train=labels,
        x_test=rng.standard_normal((10, 4)),
        y_test=labels[:10],
    )
    probe(make([Row("a", 1.0, 1.0, "%")], ("digits", "20ng_mxbai")))
    result = run_experiment("probe", folder=tmp_path)
    assert result.remarks == (
        "the paper's features have 11,314 training rows, 20ng_mxbai.npz 30; 7,532 test rows, 20ng_mxbai.npz 10; "
        "1,024 columns, 20ng_mxbai.npz 4; 20 classes, 20ng_mxbai.npz 10",
    )
    assert str(result).splitlines()[-1] == f"Note: {result.remarks[0]}"
    assert json.loads((tmp_path / "probe.jsonl").read_text())["remarks"] == list(result.remarks)
    paper = replace(BROUGHT["20ng_mxbai"], n_train=30, n_test=None, n_features=4, n_classes=10)
    monkeypatch.setitem(BROUGHT, "20ng_mxbai", paper)
    assert run_experiment("probe", folder=None).remarks == ()


@pytest.mark.parametrize(("place", "message"), [("file", "is a file"), ("no/such", "no does not exist; make it first")])
def test_a_folder_that_cannot_hold_the_result_is_found_first(tmp_path, probe, place, message):
    def run(*_):
        raise AssertionError("begun")

    probe(replace(make(), run=run))
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=message):
        run_experiment("probe", folder=tmp_path / place)


def test_a_folder_that_cannot_be_written_is_found_first(tmp_path, monkeypatch):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(runner.tempfile, "NamedTemporaryFile", refuse)
    with pytest.raises(ValueError, match="cannot be written: Permission denied; name another folder"):
        runner.check_folder(tmp_path, "probe")


def test_a_line_is_its_own_also_after_one_that_was_cut(tmp_path):
    (tmp_path / "x.jsonl").write_text("{}")
    append_line(tmp_path / "x.jsonl", "[]")
    assert (tmp_path / "x.jsonl").read_text() == "{}\n[]\n"


def test_every_data_set_of_an_experiment_is_known():
    used = {name for experiment in list_experiments() for name in experiment.datasets}
    assert used <= {"digits", OFFICE, *ENTRIES, *BROUGHT}
    assert set(BROUGHT) <= used


def test_a_bad_seed_is_refused(probe):
    probe(make())
    with pytest.raises(ValueError, match="seed must be >= 0"):
        run_experiment("probe", seed=-1, folder=None)


def test_a_failed_run_leaves_the_file_as_it_was(tmp_path, probe):
    probe(make([Row("a", None, float("nan"), "%")]))  # JSON has no such number
    (tmp_path / "probe.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="JSON"):
        run_experiment("probe", folder=tmp_path)
    assert (tmp_path / "probe.jsonl").read_text() == "{}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["probe.jsonl"]


def test_lines_written_at_once_are_all_kept(tmp_path):
    def write(word):  # a lock belongs to what was opened, so threads are to each other as processes are
        for number in range(20):
            append_line(tmp_path / "x.jsonl", f"{word} {number}")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, "abc"))
    lines = (tmp_path / "x.jsonl").read_text().splitlines()
    for word in "abc":
        assert [line for line in lines if line[0] == word] == [f"{word} {number}" for number in range(20)]


def test_two_experiments_with_one_id_are_an_error(monkeypatch):
    monkeypatch.setattr(kme_data, "EXPERIMENTS", list_experiments()[:1], raising=False)
    with pytest.raises(ValueError, match="two experiments have the id"):
        list_experiments()


def test_totals_count_what_was_run():
    rows = (Row("a", None, 5, "bytes up"), Row("b", None, 7, "bytes down"), not_run("c", None, "bytes up", "why"))
    result = Result(make(), 0, False, rows, 1.0)
    assert (result.bytes_up, result.bytes_down) == (5, 7)

"""The bench of one round: its cells, what is kept and not run again, its tables, and its options."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from kernfed.cli import app
from kernfed_papers import runner
from kernfed_papers.experiment import Experiment, Part, Row, Selection
from kernfed_papers.one_round.cells import cells, split_label
from kernfed_papers.one_round.methods import METHODS, OURS, PEER, POOLED, Setting
from kernfed_papers.one_round.sets import SETS, SPREADS, even_rows, raw_rows, site_parts, used_rows
from kernfed_papers.pages.document import results_document
from kernfed_papers.pages.one_round import one_round_tables
from kernfed_papers.pages.results import read_results
from kernfed_papers.parts import kept_rows, run_parts


def bench(*words):
    return CliRunner().invoke(app, ["bench", *map(str, words)])


def names(selection):
    return [(part.name, part.seed) for part in cells(selection)]


# Cells ------------------------------------------------------------------------------------------------------------


def test_what_depends_on_nothing_is_run_once_and_what_is_random_with_every_seed():
    chosen = Selection(sets=("letter",), methods=("svm", "forest", "folding"))
    assert names(chosen) == [
        ("letter, 15,000 rows: svm", 0),
        *(("letter, 15,000 rows: forest", seed) for seed in range(3)),
        *(("letter, 15,000 rows, 20 sites: folding", seed) for seed in range(3)),
        *(("letter, 15,000 rows, 100 sites: folding", seed) for seed in range(3)),
    ]


def test_pooled_cells_and_peers_come_first_and_other_seeds_share_none():
    everything = cells(Selection())
    by_spread = ["sites" in part.name for part in everything]
    assert by_spread == sorted(by_spread)
    labels = [(part.name, part.seed) for part in everything]
    assert len(labels) == len(set(labels))
    assert {split_label(name)[0].partition(",")[0] for name, _ in labels} == set(SETS)
    others = {part.seed for part in cells(Selection(seed=1)) if "forest" in part.name}
    assert others == {3, 4, 5}


def test_a_hundred_sites_need_rows():
    few = [part.name for part in cells(Selection(sets=("satimage", "usps"), methods=("folding",), seeds=(0,)))]
    assert few == [
        "satimage, 4,435 rows, 20 sites: folding",
        "usps, 7,291 rows, 20 sites: folding",
        "usps, 7,291 rows, 100 sites: folding",
    ]
    assert used_rows("mnist", None) == 12_000
    assert used_rows("mnist", 100_000) == 60_000
    assert used_rows("digits", 500) == 500


@pytest.mark.parametrize("choice", [{"sets": ("letters",)}, {"methods": ("svm", "sum")}])
def test_an_unknown_name_is_refused_with_those_that_are_known(choice):
    with pytest.raises(ValueError, match=r"must be some of .*(letter|svm), .*got '(letters|sum)'"):
        cells(Selection(**choice))


def test_every_set_says_its_rows_and_is_a_stratified_part(shared_data):
    for name, one in SETS.items():
        if (shared_data / f"{name}.npz").is_file() and one.rows < 8000:
            assert len(raw_rows(name, one.rows).y_train) == one.rows
    part = raw_rows("satimage", 1000)
    whole = raw_rows("satimage", 4435)
    shares = [np.bincount(data.y_train) / len(data.y_train) for data in (part, whole)]
    np.testing.assert_allclose(*shares, atol=0.002)
    assert len(part.y_train) == 1000


def test_tables_are_standardised_and_images_have_one_unit():
    table, images = even_rows("breast_cancer", 426), even_rows("digits", 1348)
    np.testing.assert_allclose(table.x_train.std(axis=0), 1, rtol=1e-4)
    np.testing.assert_allclose(table.x_train.mean(axis=0), 0, atol=1e-4)
    assert np.sqrt((images.x_train**2).mean()) == pytest.approx(1, rel=1e-4)
    raw = raw_rows("digits", 1348).x_test
    np.testing.assert_allclose(images.x_test * (raw.max() / images.x_test.max()), raw, atol=1e-3)


def test_sites_divide_all_rows_and_none_is_nearly_empty():
    data = raw_rows("digits", 1348)
    parts = site_parts(data, SPREADS[0], 1)
    assert len(parts) == 20
    assert sorted(np.concatenate(list(parts.values()))) == list(range(1348))
    assert min(map(len, parts.values())) >= 5


def test_ours_are_given_the_columns_as_they_are():
    setting = Setting("breast_cancer", 426, 0, SPREADS[0])
    sites = setting.sites(setting.raw)
    assert max(x.max() for x, _ in sites.values()) == pytest.approx(raw_rows("breast_cancer", 426).x_train.max())
    (outcome,) = METHODS["folding"].run(setting)
    assert outcome.accuracy > 80
    assert outcome.bytes_up > 0


def test_a_learner_that_is_not_there_is_said_so(monkeypatch):
    monkeypatch.delattr("kernfed.federation.folding.learner.FoldingLearner")
    (part,) = cells(Selection(sets=("digits",), methods=("folding",), seeds=(0,)))
    assert part.missing == "this version of kernfed has no FoldingLearner"


# What is kept -----------------------------------------------------------------------------------------------------


def labelled(where, column, value, note=""):
    return Row(f"{where}: {column}", None, value, "%", note)


def probe(calls):
    """An experiment of four parts, of which one fails and one cannot be run."""

    def run(name, seed):
        calls.append((name, seed))
        if name == "bad":
            raise RuntimeError("no luck")
        return [labelled("digits, 1,348 rows", name, 90.0 + seed)]

    def parts(selection):
        made = [
            Part(name, seed, lambda name=name, seed=seed: run(name, seed)) for name in ("SVM", "bad") for seed in (0, 1)
        ]
        return [*made[: len(selection.methods) or None], Part("far", 0, list, "needs far.npz")]

    return Experiment("probe", "t", "ours", (), "words", lambda *_: [], parts=parts, tables=one_round_tables)


def test_parts_are_kept_one_by_one_and_not_run_again(tmp_path):
    calls, told = [], []
    experiment = probe(calls)
    ran, failed = run_parts(experiment, Selection(), tmp_path, told.append)
    assert [result.seed for result in ran] == [0, 1]
    assert set(failed) == {"bad, seed 0", "bad, seed 1"}
    lines = [json.loads(line) for line in (tmp_path / "probe.jsonl").read_text().splitlines()]
    assert [(line["part"], line["seed"]) for line in lines] == [("SVM", 0), ("SVM", 1)]
    assert "protocol" not in lines[0]
    assert told[0].startswith("1 of 5: SVM, seed 0: SVM 90.00 %")
    assert "not run: needs far.npz" in told[-1]
    calls.clear()
    assert run_parts(experiment, Selection(), tmp_path, told.append)[0] == []
    assert calls == [("bad", 0), ("bad", 1)]


def test_parts_of_a_seed_are_put_together_and_the_later_counts(tmp_path):
    experiment = probe([])
    run_parts(experiment, Selection(), tmp_path, lambda _: None)
    lines = [json.loads(line) for line in (tmp_path / "probe.jsonl").read_text().splitlines()]
    lines[0]["rows"][0]["label"] = "digits, 1,348 rows: forest"
    again = {**lines[1], "rows": [{**lines[1]["rows"][0], "ours": 95.0}]}
    with (tmp_path / "probe.jsonl").open("a") as file:
        file.writelines(json.dumps({**line, "seed": 0}) + "\n" for line in (lines[0], again))
    rows = {row.label.rpartition(": ")[2]: row for row in kept_rows(experiment, tmp_path)}
    assert rows["SVM"].ours == pytest.approx((95 + 91) / 2)
    assert rows["forest"].ours == 90
    assert rows["forest"].deviation is None
    (summary,) = read_results(tmp_path / "probe.jsonl", [experiment])
    assert summary.seeds == (0, 1)
    assert summary.tables
    assert "| digits, 1,348 rows | 93.00 \\* | 90.00 |" in results_document([summary])


# Tables -----------------------------------------------------------------------------------------------------------


def test_groups_have_their_columns():
    groups = {method.group for method in METHODS.values()}
    assert groups == {POOLED, PEER, OURS}
    columns = [column for method in METHODS.values() for column in method.columns]
    assert len(columns) == len(set(columns))


def test_tables_mark_the_best_pooled_and_say_how_far_ours_is_ahead():
    pooled, sites = "usps, 7,291 rows", "usps, 7,291 rows, 20 sites"
    rows = [
        labelled(pooled, "SVM", 95.3, "C = 1"),
        labelled(pooled, "forest", 94.1),
        labelled(pooled, "AFL", 80.0),
        labelled(pooled, "DeepAFL", 96.5),
        labelled(sites, "FedAvg 1", 70.0),
        labelled(sites, "FedAvg 100", 94.0),
        labelled(sites, "fusion", 95.0),
        labelled("dna, 2,000 rows", "SVM", 95.0),
        Row(f"{sites}: fusion", None, 5, "bytes up"),
    ]
    few, many, settings = one_round_tables(rows)
    lines = {line[0]: dict(zip(few.columns, line, strict=True)) for line in few.rows}
    assert list(lines) == ["dna, 2,000 rows", pooled]
    assert lines[pooled] == {
        "set": pooled,
        "SVM": "95.30 *",
        "forest": "94.10",
        "AFL": "80.00",
        "DeepAFL": "96.50",
        "FedAvg 1": "70.00",
        "FedAvg 100": "94.00",
        "fusion": "95.00",
        "fusion - best pooled": "-0.30",
        "fusion - best one-round peer": "+15.00",
        "fusion - best peer of any rounds": "-1.50",
    }
    assert "on 1 of 1 sets, and above every peer in one round on 1" in few.caption
    assert [line[0] for line in many.rows] == [pooled]  # dna has too few rows for a hundred sites
    assert not any("fusion" in column for column in many.columns)
    assert (f"{pooled}: SVM", "95.30", "C = 1") in settings.rows
    assert settings.folded


def test_a_label_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="must be labelled"):
        split_label("nothing of the kind")


# Command ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def only_probe(monkeypatch, tmp_path):
    calls = []
    made = (probe(calls), Experiment("whole", "t", "ours", (), "w", lambda *_: [Row("a", None, 1.0, "%")]))
    monkeypatch.setattr(runner, "list_experiments", lambda: made)
    monkeypatch.chdir(tmp_path)
    return calls


def test_the_command_keeps_parts_and_prints_tables(only_probe, tmp_path):
    done = bench("probe", "--methods", "one,two")
    assert done.exit_code == 0, done.stderr
    assert only_probe == [("SVM", 0), ("SVM", 1)]
    assert "digits, 1,348 rows  90.50 *" in done.stdout
    assert "20 sites by Dirichlet 0.5" in done.stdout
    assert "Protocol of probe: words" in done.stdout
    assert "1 of 3: SVM, seed 0: SVM 90.00 %" in done.stderr
    assert len((tmp_path / "results" / "probe.jsonl").read_text().splitlines()) == 2
    summary = bench("--all").stdout.splitlines()
    assert summary[-5].split()[:2] == ["id", "compared"]
    assert [line.split()[0] for line in summary[-4:-1]] == ["whole", "bad,", "bad,"]  # kept parts are not run again
    again = bench("--all", "--out", "elsewhere").stdout
    assert "probe  " in again
    assert "2 of 2 rows" in again
    failed = bench("probe", "--json")
    assert failed.exit_code == 1
    assert set(json.loads(failed.stdout)["failed"]) == {"bad, seed 0", "bad, seed 1"}


@pytest.mark.parametrize("words", [["whole", "--sets", "digits"], ["--all", "--rows", "500"]])
def test_options_about_parts_are_refused_where_there_are_none(only_probe, words):
    done = bench(*words)
    assert done.exit_code == 2
    assert "are of one experiment in parts" in done.stderr
    assert only_probe == []


def test_options_are_checked_before_anything_is_begun():
    for words, message in (
        (["--sets", "letters"], "sets must be some of"),
        (["--seeds", "0,x"], "--seeds must be whole"),
    ):
        done = bench("one-round", *words)
        assert done.exit_code == 2
        assert message in done.stderr

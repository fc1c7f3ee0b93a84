"""Results: seeds put together, quick lines left out, nothing filled in; the committed document is what they give."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kernfed_papers.experiment import Axes, Row
from kernfed_papers.pages.document import SUMMARY, document_figures, results_document, write_document
from kernfed_papers.pages.result_pages import duration, result_figures, results_report, time_taken
from kernfed_papers.pages.results import read_results
from kernfed_papers.runner import list_experiments

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def summaries(small_results):
    return read_results(*small_results)


def test_seeds_are_averaged_and_quick_lines_left_out(summaries):
    curve = summaries[0]
    assert curve.seeds == (0, 1)
    assert curve.seconds == 3.0  # the last line of seed 0 counts, 2 s, and that of seed 1, 4 s
    assert curve.processor_seconds == 6.5
    assert curve.bytes_up == 2000.5
    first = curve.rows[0]
    assert (first.label, first.published, first.ours) == ("alpha 1: accuracy", 81.0, 81.0)
    assert first.deviation == pytest.approx(2**-0.5)
    assert curve.rows[-1].ours is None
    assert curve.status == "run in part"
    assert [round(point, 6) for point in curve.points] == [0.0, 1.75]


def test_every_experiment_is_listed_also_without_results(summaries, small_results):
    assert [summary.id for summary in summaries] == ["sfm-table-2", "sfm-table-10", "gikm-table-1"]
    assert [summary.not_run for summary in summaries] == ["", "needs absent.npz", "there is no full run yet"]
    needy = replace(small_results[1][2], datasets=("absent", "gone"))
    assert read_results(small_results[0], (needy,))[0].not_run == (
        "needs absent.npz or gone.npz, embeddings that a user brings"
    )
    assert [summary.status for summary in summaries] == ["run in part", "not run", "not run"]


def test_a_single_file_holds_its_own_experiments_only(small_results):
    folder, experiments = small_results
    assert [summary.id for summary in read_results(folder / "sfm-table-2.jsonl", experiments)] == ["sfm-table-2"]
    assert read_results(folder / "sfm-table-2.jsonl", ())[0].source == "SFM Table 2"


TWICE = json.dumps({"id": "a", "rows": [{"label": "x", "published": 1, "ours": 1, "unit": "%"}] * 2})


@pytest.mark.parametrize(
    "line",
    [
        TWICE,
        "{",
        "[]",
        '{"id": 3, "rows": []}',
        '{"id": "a", "rows": [{"label": "x"}]}',
        '{"id": "a", "rows": [{"label": "x", "published": NaN, "ours": 1, "unit": "%"}]}',
        '{"id": "a", "rows": [{"label": "x", "published": "1", "ours": 1, "unit": "%"}]}',
        '{"id": "a", "rows": [{"label": "x", "unit": "", "other": 1}]}',
    ],
)
def test_bad_lines_are_refused_with_their_place(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2 is no result"):
        read_results(path)


GOOD = {
    "id": "a",
    "rows": [{"label": "x", "published": None, "ours": 1.5, "unit": "%"}],
    "seed": 1,
    "seconds": 2.0,
    "processor_seconds": 1.0,
    "bytes_up": 3,
    "bytes_down": 0,
    "machine": {"blas": ["openblas 1"], "cores": None},
    "axes": {"x": "rounds", "y": "%"},
    "remarks": ["other rows"],
    "quick": False,
    "not_run": "",
    "date": "2026-01-02",
    "source": "SFM Table 1",
    "protocol": "words",
}
DEEP = "[" * 100_000 + "]" * 100_000


def row(**changes):
    return {"rows": [{**GOOD["rows"][0], **changes}]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": "../up"}, "id must be letters, digits"),
        ({"machine": "mine"}, "machine must be an object, got 'mine'"),
        ({"machine": None}, "machine must be an object, got None"),
        ({"machine": {"blas": "x"}}, "machine.blas must be a list, got 'x'"),
        ({"machine": {"cores": {}}}, "machine.cores must be text"),
        ({"bytes_up": None}, "bytes_up must be a finite number, got None"),
        ({"bytes_up": -1}, "bytes_up must be a number >= 0, got -1"),
        ({"bytes_down": True}, "bytes_down must be a finite number, got True"),
        ({"seconds": "2"}, "seconds must be a finite number, got '2'"),
        ({"processor_seconds": None}, "processor_seconds must be a finite number, got None"),
        ({"seed": [0]}, r"seed must be a whole number >= 0, got \[0\]"),
        ({"seed": 1.0}, "seed must be a whole number"),
        ({"quick": 1}, "quick must be true or false, got 1"),
        ({"not_run": None}, "not_run must be text, got None"),
        ({"protocol": None}, "protocol must be text"),
        ({"source": 3}, "source must be text"),
        ({"date": 20260102}, "date must be text"),
        ({"remarks": "x"}, "remarks must be a list"),
        ({"axes": []}, "axes must be an object"),
        ({"axes": {"x": "rounds"}}, "axes.y must be text, got None"),
        ({"axes": {"x": "a", "y": "b", "z": "c"}}, "axes must be x, y, log_x, log_y, got 'z'"),
        ({"axes": {"x": "a", "y": "b", "log_x": 1}}, "axes.log_x must be true or false"),
        ({"rows": {}}, "rows must be a list"),
        ({"rows": [3]}, r"rows\[0\] must be an object, got 3"),
        (row(label=3), r"rows\[0\].label must be text, got 3"),
        (row(unit=None), r"rows\[0\].unit must be text, got None"),
        (row(note=None), r"rows\[0\].note must be text"),
        (row(published=10**400), r"rows\[0\].published must be a finite number"),
        (row(deviation=-1), r"rows\[0\].deviation must be a number >= 0"),
        (row(matrix=[[1, 2], [3]]), r"rows\[0\].matrix must be lines of numbers, all of one length, got \[2, 1\]"),
        (row(matrix=[]), r"rows\[0\].matrix must be lines"),
        (row(matrix=[1]), r"rows\[0\].matrix must be a list, got 1"),
        (row(matrix=[["1"]]), r"rows\[0\].matrix must be a finite number, got '1'"),
        (row(ours="LARGE"), r"rows\[0\].ours must be a finite number, got inf"),
        (row(ours="DEEP"), "it is nested too deeply"),
    ],
)
def test_every_field_is_checked_and_named(tmp_path, changes, message):
    text = json.dumps({**GOOD, **changes}).replace('"LARGE"', "1e999").replace('"DEEP"', DEEP)
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(GOOD)}\n{text}\n")
    with pytest.raises(ValueError, match=rf"a\.jsonl, line 2 is no result of an experiment: .*{message}"):
        read_results(tmp_path / "a.jsonl", ())


def test_a_good_line_is_read_whole(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(GOOD))
    (summary,) = read_results(tmp_path / "a.jsonl", ())
    assert (summary.id, summary.source, summary.protocol, summary.seeds) == ("a", "SFM Table 1", "words", (1,))
    assert (summary.seconds, summary.processor_seconds, summary.bytes_up, summary.bytes_down) == (2, 1, 3, 0)
    assert (summary.dates, summary.remarks, summary.axes) == (("2026-01-02",), ("other rows",), Axes("rounds", "%"))
    assert summary.rows == (Row("x", None, 1.5, "%"),)
    assert "openblas 1" in summary.machines[0]
    assert "2026-01-02. Note: other rows." in results_document([summary])


def test_what_did_not_run_does_not_replace_what_did(tmp_path):
    idle = {**GOOD, "rows": [], "not_run": "no data"}
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(GOOD)}\n{json.dumps(idle)}\n")
    (summary,) = read_results(tmp_path / "a.jsonl", ())
    assert (summary.not_run, len(summary.rows)) == ("", 1)
    (tmp_path / "a.jsonl").write_text(json.dumps(idle))
    assert read_results(tmp_path / "a.jsonl", ())[0].not_run == "no data"


def test_quick_lines_alone_are_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({**GOOD, "quick": True}))
    for place in (tmp_path, tmp_path / "a.jsonl"):
        with pytest.raises(ValueError, match=r"only lines of quick runs.* run kernfed bench a without --quick"):
            read_results(place)


def test_a_document_in_no_folder_leaves_no_figures(small_results, tmp_path, monkeypatch):
    monkeypatch.setattr("kernfed_papers.pages.results.list_experiments", lambda: small_results[1])
    for place, message in ((tmp_path, "must be a file"), (tmp_path / "no" / "x.md", "does not exist; make it first")):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            write_document(place, small_results[0])
    assert list(tmp_path.iterdir()) == []
    assert not (tmp_path.parent / "figures").exists()


def test_nothing_to_read_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="no results at"):
        read_results(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no result lines"):
        read_results(tmp_path)


def test_curves_have_ours_and_published(summaries):
    curves, pictures = result_figures(summaries[0])
    assert [series.name for series in curves.series] == ["ours", "ours (published)"]
    assert curves.series[0].x == (1.0, 5.0)
    assert curves.series[1].y == (81.0, 83.0)
    assert curves.series[1].dashed
    assert (curves.x_name, curves.log_x, curves.log_y) == ("epsilon", True, False)
    assert pictures.panels == (("weights", ((0.5, 0.5), (0.25, 0.75))),)


def test_the_page_shows_privacy_against_utility_and_what_was_not_run(summaries):
    report = results_report(summaries)
    assert [section.title for section in report.sections] == [
        "Overview",
        "Privacy against utility",
        "SFM Table 2: curves | and <weights>",
        "Not run here",
    ]
    assert len(report.section("Privacy against utility").figures) == 2
    assert len(report.section("Not run here").tables[0].rows) == 2
    rows = report.sections[2].tables[0].rows
    assert rows[0][1:5] == ("81.00", "81.00 ± 0.71", "+0.00", "%")
    assert rows[-1][2] == "not run"


def test_the_document_is_deterministic_and_escapes(summaries, small_results):
    text = results_document(summaries, "# A title that goes\n\nOne **honest** paragraph.\n")
    assert text == results_document(read_results(*small_results), "# A title that goes\n\nOne **honest** paragraph.\n")
    assert text.count("\n# ") == 0
    assert "One **honest** paragraph." in text
    assert "### SFM Table 2: curves \\| and &lt;weights&gt;" in text
    assert "All in \\*words\\*." in text
    assert text.index("### SFM Table 2") < text.index("### SFM Table 10") < text.index("## GIKM")
    assert "*Not run: needs absent.npz.* Command: `kernfed bench sfm-table-10`." in text
    assert "Mean and standard deviation over seeds 0, 1; 3.0 s, 6.5 s of processors each" in text
    for line in text.splitlines():
        if line.startswith("| "):
            assert line.replace("\\|", "").count("|") == 7, line


def test_figures_of_the_document_have_alternatives_and_stand_alone(small_results, tmp_path, monkeypatch):
    folder, experiments = small_results
    monkeypatch.setattr("kernfed_papers.pages.results.list_experiments", lambda: experiments)
    (tmp_path / SUMMARY).write_text("By hand.")
    written = write_document(tmp_path / "results.md", folder)
    assert [path.relative_to(tmp_path).as_posix() for path in written] == [
        "results.md",
        "figures/sfm-table-2.svg",
        "figures/sfm-table-2-2.svg",
    ]
    text = written[0].read_text()
    assert "By hand." in text
    assert "![SFM Table 2: accuracy. accuracy over epsilon: ours from" in text
    drawing = written[1].read_text()
    assert drawing.startswith("<svg ")
    assert "--series-1: #" in drawing
    assert "prefers-color-scheme: dark" in drawing


def test_the_committed_document_is_what_the_committed_results_give():
    document, opening = ROOT / "docs" / "results.md", ROOT / "docs" / SUMMARY
    summaries = read_results(ROOT / "results")
    expected = results_document(summaries, opening.read_text(encoding="utf-8") if opening.is_file() else "")
    advice = "run: kernfed bench --write-docs docs/results.md"
    assert document.read_text(encoding="utf-8") == expected, advice
    for name in document_figures(summaries):
        assert (ROOT / "docs" / name).is_file(), f"{name} is missing; {advice}"


def test_committed_results_are_full_runs_of_known_experiments():
    known = {experiment.id: experiment for experiment in list_experiments()}
    for path in sorted((ROOT / "results").glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert path.stem in known
        assert {line["id"] for line in lines} == {path.stem}
        assert not any(line["quick"] for line in lines), path.name
        in_parts = known[path.stem].parts is not None
        protocols = set() if in_parts else {known[path.stem].protocol}
        assert {line["protocol"] for line in lines if "part" not in line} == protocols, f"{path.name}: run it again"
        seeds = [(line["seed"], line.get("part", "")) for line in lines]
        assert len(seeds) == len(set(seeds)), f"{path.name} has two lines of one seed"


def test_processor_time_is_added_up_where_it_is_known(summaries):
    known, other, silent = (replace(summaries[0], processor_seconds=seconds) for seconds in (40.0, 25.0, None))
    assert time_taken([known, other]) == "One after another, once each, 2 of them take 1 min 5 s of processor time."
    assert time_taken([known, silent]).endswith("takes 40 s of processor time (1 more took 3 s on the clock).")
    assert time_taken([known]) == "One after another, once each, 1 of them takes 40 s of processor time."
    assert time_taken([silent]) == "One after another, once each, it takes 3 s on the clock."
    assert time_taken([silent] * 2) == "One after another, once each, they take 6 s on the clock."
    assert time_taken([]) == ""
    assert "40.0 s of processors" in results_document([known])
    assert "of processors" not in results_document([silent])


def test_the_page_has_time_on_the_clock_where_that_is_known_alone(summaries):
    facts = {fact.name: fact for fact in results_report([replace(summaries[0], processor_seconds=None)]).facts}
    assert "Processor time" not in facts
    assert (facts["Time on the clock"].value, facts["Time on the clock"].note) == ("3 s", "1 run, one after another")
    facts = {fact.name for fact in results_report(summaries[1:]).facts}
    assert not facts & {"Processor time", "Time on the clock"}


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (1, "There is 1 experiment. 1 has no result here; the last section says why."),
        (2, "There are 2 experiments. 2 have no result here; the last section says why."),
    ],
)
def test_one_is_not_several(summaries, count, words):
    idle = summaries[1:][:count]
    assert results_report(idle).sections[0].words == (words,)
    assert f"0 of {count} experiment{'s have' if count > 1 else ' has'} been run." in results_document(idle)


def test_a_result_says_under_which_protocol_it_ran(small_results):
    folder, (curve, ten, never) = small_results
    changed = replace(curve, protocol="All in other words.")
    assert read_results(folder, (changed, ten, never))[0].protocol == "All in *words*."
    assert read_results(folder, (changed, ten, never))[2].protocol == "Nothing yet."


def test_a_line_without_processor_time_leaves_it_unknown(small_results, tmp_path):
    lines = [json.loads(line) for line in (small_results[0] / "sfm-table-2.jsonl").read_text().splitlines()]
    del lines[2]["processor_seconds"]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert read_results(tmp_path / "a.jsonl", small_results[1])[0].processor_seconds is None


def test_durations():
    assert [duration(seconds) for seconds in (0.4, 61, 7200)] == ["0 s", "1 min 1 s", "120 min 0 s"]

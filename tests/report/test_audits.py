"""Reports of audits: an audit survives its JSON, and the page says what the officer's page says."""

import html
import json
import re
from dataclasses import replace

import pytest

from kernfed.report import audit_from_json, audit_report
from kernfed.report.content import Bars
from kernfed.report.officer import officer_page, officer_sections
from kernfed.report.pages import render_html


def test_an_audit_survives_its_json(small_audit):
    assert audit_from_json(json.loads(json.dumps(small_audit.to_json()))) == small_audit


def test_no_guarantee_survives_too(small_audit):
    without = replace(small_audit, record=replace(small_audit.record, epsilon=float("inf")), private=False)
    again = audit_from_json(json.loads(json.dumps(without.to_json())))
    assert again == without
    report = audit_report(again)
    assert [claim.reliable for claim in report.section("Under which guarantee").claims] == [False, False]
    assert "marked not private" in report.section("Under which guarantee").words[0]
    assert report.facts[1].value == "ε none"
    nothing = replace(again, element=replace(again.element, epsilon=float("inf")), private=True)
    fact = audit_report(nothing).facts[-1]
    assert (fact.value, fact.note) == ("no limit", "no guarantee is claimed for one record")
    fact = audit_report(replace(small_audit, private=False)).facts[-1]
    assert (fact.value, fact.note) == ("no limit", "the release is marked not private: neither guarantee holds")
    assert audit_report(replace(small_audit, private=False)).facts[1].note.endswith("stated, and does not hold")


@pytest.mark.parametrize(
    ("epsilon", "value", "note"),
    [
        (1.0, "73.11 %", "of guesses at worst; chance gives 50 %"),
        (48.0, "100 %", "of guesses at worst: no protection; chance gives 50 %"),
    ],
)
def test_the_summary_says_what_the_guarantee_of_a_person_is_worth(small_audit, epsilon, value, note):
    """No yes or no: an epsilon of 48 is a guarantee, and protects nobody."""
    report = audit_report(replace(small_audit, record=replace(small_audit.record, epsilon=epsilon, delta=0.0)))
    assert (report.facts[-1].name, report.facts[-1].value, report.facts[-1].note) == (
        "Right about a person",
        value,
        note,
    )
    assert "Private" not in {fact.name for fact in report.facts}
    claim = report.section("Under which guarantee").claims[1]
    assert (claim.reliable, "no protection" in claim.status) == (epsilon == 1, epsilon == 48)


def test_a_delta_that_is_negligible_is_said_to_be_so(small_audit):
    report = audit_report(replace(small_audit, element=replace(small_audit.element, delta=6.992e-56)))
    assert report.facts[0].note == "at δ below 1e-30, as stated"
    assert "e-56" not in render_html(report)
    zero = audit_report(replace(small_audit, element=replace(small_audit.element, delta=0.0)))
    assert zero.facts[0].note == "at δ 0, as stated"


def without(values, *path):
    """A copy without the entry at the end of the path."""
    copy = json.loads(json.dumps(values))
    place = copy
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return copy


@pytest.mark.parametrize(
    "path",
    [
        ("private",),
        ("released",),
        ("membership",),
        ("subject",),
        ("record", "delta"),
        ("element", "epsilon"),
        ("attacks", 0, "roc"),
        ("attacks", 1, "roc", "points", 0, "tpr"),
        ("bounds", 0, "unit"),
        ("membership", "p_value"),
    ],
    ids=str,
)
def test_an_audit_that_lacks_a_field_is_refused_by_its_name(small_audit, path):
    named = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")
    with pytest.raises(ValueError, match=f"^the audit is damaged: {re.escape(named)} is missing$"):
        audit_from_json(without(small_audit.to_json(), *path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"private": "false"}, "private must be true or false, got 'false'"),
        ({"private": None}, "private must be true or false, got None"),
        ({"private": 0}, "private must be true or false, got 0"),
        ({"attacks": [{}]}, "attacks[0].name is missing"),
        ({"attacks": None}, "attacks must be a list, got None"),
        ({"record": 3}, "record must be an object, got 3"),
        ({"subject": ""}, "subject must say in words"),
        ({"membership": []}, "membership must be an object, got []"),
        ({"released": 7}, "released must be a text, got 7"),
    ],
    ids=str,
)
def test_a_field_of_another_kind_is_refused_with_what_was_expected(small_audit, change, message):
    with pytest.raises(ValueError, match=f"^the audit is damaged: {re.escape(message)}"):
        audit_from_json({**small_audit.to_json(), **change})


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("record", "delta"), 2, "record: delta must be <= 1, got 2"),
        (("record", "unit"), "element", "record must be a Guarantee of unit 'record'"),
        (("element", "epsilon"), "1", "element.epsilon must be a finite number, got '1'"),
        (("element", "bounds"), [0], "element.bounds must have 2 entries, got 1"),
        (("bounds", 1, "unit"), "person", "bounds[1].unit must be one of"),
        (("bounds", 1, "trials"), 1.5, "bounds[1].trials must be an integer, got 1.5"),
        (("bounds", 0, "value"), True, "bounds[0].value must be a finite number, got True"),
        (("attacks", 0, "roc", "auc"), float("nan"), "attacks[0].roc.auc must be a finite number, got nan"),
        (("attacks", 0, "roc", "points", 1, "interval"), "x", "attacks[0].roc.points[1].interval must be a list"),
    ],
    ids=str,
)
def test_damage_inside_is_named_by_its_place(small_audit, path, value, message):
    copy = json.loads(json.dumps(small_audit.to_json()))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValueError, match=f"^the audit is damaged: {re.escape(message)}"):
        audit_from_json(copy)


def test_what_is_no_audit_is_refused():
    with pytest.raises(ValueError, match="an audit must have attacks, bounds, element, record, subject, got a"):
        audit_from_json({"a": 1})


def test_figures_are_the_findings(small_audit):
    report = audit_report(small_audit)
    attacks = report.section("What attacks achieved").figures[0]
    best = max(small_audit.attacks, key=lambda attack: attack.roc.auc)
    assert isinstance(attacks, Bars)
    assert (attacks.labels[0], attacks.values[0], attacks.intervals[0]) == (
        best.name,
        best.roc.auc,
        best.roc.auc_interval,
    )
    assert list(attacks.values) == sorted(attacks.values, reverse=True)
    found = report.section("What attacks achieved").figures[1]
    assert found.title == "Found at 0.1 % false alarms"
    bounds = report.section("Does the audit agree with the guarantee?").figures
    element = [bound.value for bound in small_audit.bounds if bound.unit == "element"]
    assert list(bounds[0].values) == element
    assert bounds[0].lines == {"stated": small_audit.element.epsilon}


def test_words_are_those_of_the_officers_page(small_audit):
    page, report = officer_page(small_audit), audit_report(small_audit)
    for words in report.section("What attacks achieved").words:
        assert words in page
    for point in report.section("What is not promised").points:
        assert point in page
    for claim in report.section("Under which guarantee").claims:
        assert claim.statement in page
    assert [small_audit.released in words for words in report.section("What left").words] == [True]
    answers = audit_report(replace(small_audit, released=""))
    assert answers.section("What left").words == (
        "No record of traffic was given with this audit. What left is what the title names.",
    )


def test_the_html_says_all_that_the_officers_page_says(small_audit, small_models):
    """Every sentence, list and cell; what left is told in other words, over the same entries."""
    traffic = small_models[1]
    source = render_html(audit_report(small_audit, traffic))
    shown = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", source)).split())
    verdict = small_audit.verdict
    assert f"Privacy of {small_audit.subject}" in shown
    assert f"{verdict[0].upper()}{verdict[1:]}." in shown
    rest = officer_page(small_audit, traffic).partition("## Under which guarantee")[2]
    pieces = [piece for line in rest.splitlines() for piece in re.split(r"\*\*|(?<=\.) (?=[A-Z])|(?<!\\)\|", line)]
    wanted = [text for piece in pieces if (text := html.unescape(piece.strip("#- ").replace("\\|", "|")))]
    assert len(wanted) > 40
    for text in wanted:
        assert " ".join(text.removesuffix(".").split()) in shown
    for entry in traffic:
        assert f"{entry['task']} {entry['information']}" in shown
        assert entry["site"] in shown


def test_traffic_takes_the_place_of_that_remark(small_audit, small_models):
    report = audit_report(small_audit, small_models[1])
    assert report.sections[0].title == "What left the sites"
    told = report.sections[0].words
    assert small_audit.released in told[0]
    assert told[1] == "Messages while a model was made of the release, before any query:"
    assert "left the sites in all" in told[2]
    answers = audit_report(replace(small_audit, released=""), small_models[1])
    assert answers.sections[0].words == told[2:]


def test_tables_of_the_page_keep_their_signs(small_audit):
    named = replace(small_audit.attacks[0], name="a | b <c> & `d`")
    table = officer_sections(replace(small_audit, attacks=(named,)))[2].tables[0]
    assert table.rows[0][0] == "a | b <c> & `d`"
    assert len(table.rows[0]) == len(table.columns)


def test_an_audit_without_findings_has_a_page(small_audit):
    report = audit_report(replace(small_audit, attacks=(), bounds=(), membership=None))
    assert report.lead == "Not tested: no lower bound on epsilon was computed."
    assert report.figures == ()

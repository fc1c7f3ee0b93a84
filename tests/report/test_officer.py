"""The officer's page: every sentence is made of the audit's data, and its Markdown stays in its place."""

import math
from dataclasses import replace

import numpy as np
import pytest

from kernfed.privacy import AuditReport, ElementLaplace, Guarantee, audit_answers, audit_release
from kernfed.privacy.lower_bound import EpsilonBound
from kernfed.report import officer_page

ELEMENT = Guarantee(1.0, 0.0, "element", "one element changing by at most d = 1")
RECORD = Guarantee(6.0, 1e-5, "record", "one row replaced by any other")


def report_of(*findings, record=RECORD):
    return AuditReport("noisy rows", ELEMENT, record).plus(*findings)


def test_page_says_everything_in_order():
    rows, others = np.random.default_rng(0).uniform(0, 1, (2, 60, 3))
    report = audit_release(ElementLaplace(1.0, 1.0, (0.0, 1.0)), rows, others, trials=100)
    traffic = [
        {
            "site": "a",
            "task": "release",
            "information": "rows",
            "messages": 1,
            "bytes_up": 12345,
            "scalars_up": 9,
            "bytes_down": 7,
        }
    ]
    page = officer_page(report.plus(*audit_answers(np.arange(9.0), np.arange(9.0), permutations=9)), traffic)
    headings = [line for line in page.splitlines() if line.startswith("#")]
    assert headings == [
        f"# Privacy of {report.subject}",
        "## What left",
        "## Under which guarantee",
        "## What attacks achieved",
        "## Does the audit agree with the guarantee?",
        "## What is not promised",
    ]
    assert "12,345" in page
    assert report.released in page
    assert "Messages while a model was made of the release" in page
    assert "epsilon 1 and" in page
    assert "73.11 % of cases" in page  # e/(1 + e), rounded up
    assert "not one for a person" in page
    assert "known pair" in page
    assert "neither guarantee holds" not in page
    assert "neither guarantee holds" in officer_page(replace(report, private=False))


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        (0.5, "in 50 %."),
        (5.0, "That is little protection."),
        (40.0, "That is no protection."),
        (math.inf, "No guarantee"),
    ],
)
def test_page_says_what_a_guarantee_is_worth(epsilon, words):
    page = officer_page(report_of(record=replace(RECORD, epsilon=epsilon)))
    (line,) = (line for line in page.splitlines() if line.startswith("- **One record"))
    assert words in line
    assert ("protection" in line) == (words.startswith("That"))


@pytest.mark.parametrize(
    ("delta", "words"), [(6.992e-56, "below 1e-30"), (0.0, "0"), (1e-30, "1e-30"), (1e-5, "1e-05")]
)
def test_page_says_a_delta_without_digits_that_mean_nothing(delta, words):
    page = officer_page(AuditReport("x", replace(ELEMENT, delta=delta), RECORD))
    assert f"epsilon 1 and delta {words} for one element" in page


def test_page_without_findings():
    page = officer_page(report_of())
    for words in ("No record of traffic", "No attack was tried", "This was not tested"):
        assert words in page
    assert "The attacks are those listed" not in page
    attack, _ = audit_answers(np.arange(9.0), np.arange(9.0), permutations=9)
    assert "The attacks are those listed" in officer_page(report_of(attack))
    assert "Nothing left any site." in officer_page(report_of(), [])


def test_page_survives_hostile_names():
    entry = {
        "site": "a | b\n# title",
        "task": "<script>",
        "information": "`x`",
        "messages": 1,
        "bytes_up": 1,
        "scalars_up": 1,
    }
    page = officer_page(replace(report_of(), subject="x\n## y"), [entry])
    assert "<script>" not in page
    assert not any(line.startswith(("# title", "## y")) for line in page.splitlines())
    (row,) = (line for line in page.splitlines() if "title" in line)
    assert row.replace("\\|", "").count("|") == 7


def test_a_contradiction_is_the_first_line():
    bound = EpsilonBound(7.1234, 8.0, 1e-5, "record", 0.95, "errors of a test", 1000)
    assert "**In one line.** CONTRADICTED: audited record epsilon &gt;= 7.12" in officer_page(report_of(bound))


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        (math.inf, "No guarantee for a record is claimed, so there is none to agree with."),
        (1.0, "This was not tested. A bound on epsilon needs many draws"),
        (20.0, "figures below it prove nothing"),
    ],
)
def test_page_says_what_attacks_alone_cannot_show(epsilon, words):
    attack, _ = audit_answers(np.arange(300.0), 300 + np.arange(300.0), permutations=9)
    assert words in officer_page(report_of(attack, record=replace(RECORD, epsilon=epsilon)))


@pytest.mark.parametrize(
    ("report", "traffic", "message"),
    [
        ("x", None, "report must be an AuditReport"),
        (report_of(), [{"site": "a"}], "traffic must be a list of objects with the keys"),
        (report_of(), ["a"], "traffic must be a list of objects"),
    ],
)
def test_what_is_no_audit_or_no_traffic_is_refused(report, traffic, message):
    with pytest.raises(ValueError, match=message):
        officer_page(report, traffic)

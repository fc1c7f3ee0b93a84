"""The page of a fusion: its parts, the weight and how it came about, and who is not in the head."""

from dataclasses import replace

import numpy as np
import pytest

import kernfed as kf
from kernfed.fusion.parts import FusionChoice, Visit
from kernfed.kahm.choice import Candidate, Chosen
from kernfed.report import gather_evidence, model_report
from kernfed.report.content import Curves


@pytest.fixture(scope="module")
def fusion(small_sites):
    folding = kf.FoldingLearner(batch_size=20, measure="rms", partition="order", scale=None)
    ridge = kf.RidgeLearner("exact", n_components=30, regularization=(1e-3, 1e-2))
    with kf.Federation.local(small_sites) as federation:
        return kf.FusionLearner(folding, ridge, hold="machines").fit(federation)


def figure(report, title):
    return next(drawn for drawn in report.figures if drawn.title == title)


def test_the_parts_their_weight_and_its_errors_are_told(fusion):
    report = model_report(fusion)
    section = report.section("Two parts and their weight")
    assert f"chosen by {fusion.choice_.rows} left-out rows of 3 sites" in section.words[0]
    (curve,) = section.figures
    assert isinstance(curve, Curves)
    told = dict(zip(curve.series[0].x, curve.series[0].y, strict=True))
    assert told == {c: 100 * error for c, error in fusion.choice_.errors.items() if c > 0}
    assert [row[0] for row in section.tables[0].rows] == ["machines", "head"]
    facts = {fact.name: fact.value for fact in report.facts}
    assert facts["Exchanges"] == str(fusion.exchanges_)
    assert facts["Weight of the machines"] == f"{fusion.weight_:.3g}"
    privacy = " ".join(report.section("Privacy").words)
    assert f"{fusion.choice_.rows} training rows of 3 sites travelled" in privacy
    assert "no rows" not in privacy  # the machines hold them, so the file does
    lies = report.section("Guarantees").claims[0]
    assert lies.statement.startswith("Of the machines alone: A single wrong site can decide")
    alone = model_report(replace(fusion, ridge=None)).section("Guarantees").claims[0]
    assert alone.statement.startswith("A single wrong site can decide")


def test_who_is_not_in_the_head_is_named_with_the_reason(fusion):
    section = model_report(replace(fusion, headless_={"west": "its policy"})).section("Two parts and their weight")
    assert section.tables[-1].rows == (("west", "its policy"),)
    assert "1 site(s) are not in the head" in section.words[-1]


def test_what_was_not_chosen_is_not_said_to_be(fusion):
    words = {}
    for how in ("default", "given"):
        section = model_report(replace(fusion, choice_=FusionChoice(how))).section("Two parts and their weight")
        assert section.figures == ()
        words[how] = section.words[0]
    assert "no site let rows travel" in words["default"]
    assert "given by whoever trained" in words["given"]


def test_queries_that_stay_at_home_are_counted(fusion):
    visit = Visit("unsure", 0.9, 0.25, 0.001)
    words = model_report(replace(fusion, visit_=visit)).section("Two parts and their weight").words
    assert "25% of left-out rows had to travel, and 0.10 points were given up" in words[-1]


def test_a_part_alone_says_that_it_is(fusion):
    head = model_report(replace(fusion, folding=None))
    assert head.lead.startswith("A head of all sites' rows answers alone")
    assert "The file holds weights of features, no rows." in head.section("Privacy").words[0]
    machines = model_report(replace(fusion, ridge=None))
    assert "without a head: no site allowed sums" in machines.lead


def test_evidence_of_a_fusion_counts_which_part_decides(fusion, small_holdout):
    evidence = gather_evidence(fusion, small_holdout)
    queries = np.concatenate([X for X, _ in small_holdout.values()])
    assert sum(evidence.parts.values()) == len(queries)
    assert evidence.parts["both"] == int((fusion.explain(queries).part == "both").sum())
    X, y = small_holdout["east"]
    assert evidence.alone["east"] == np.mean(fusion.folding.local("east").predict(X) == y)
    bars = figure(model_report(fusion, evidence), "Which part decides")
    assert sum(bars.values) == pytest.approx(1)


def test_what_was_tried_for_the_machines_is_listed_best_first(fusion):
    tried = (Candidate("columns", 0.3, 100, "order"), Candidate("entries", 1.0, 5, "kmeans"))
    chosen = Chosen(tried[1], tried, (30, 36), 40, sites=("east", "west"))
    model = replace(fusion.folding, chosen=chosen)
    tables = model_report(model).section("How it was made").tables
    table = next(one for one in tables if one.caption == "What was tried, on 40 left-out rows of 2 sites")
    assert table.rows == (
        ("entries to 1", "5", "kmeans", "90.0 %", "yes"),
        ("columns to 0.3", "100", "order", "75.0 %", ""),
    )


def test_what_decided_the_regularisation_is_drawn(fusion):
    errors = fusion.ridge.choices_.errors
    curve = figure(model_report(fusion.ridge), "Choice of the regularisation")
    assert dict(zip(curve.series[0].x, curve.series[0].y, strict=True)) == {c: pair[0] for c, pair in errors.items()}

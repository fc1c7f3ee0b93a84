"""The section on coverage: there where a model states one, with what it rests on."""

from dataclasses import replace

import numpy as np
import pytest

import kernfed as kf
from kernfed.guarantees import conformal_miscoverage
from kernfed.report.assurance import coverage_section
from kernfed.report.models import model_report


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = np.where(X[:, 0] + 0.3 * rng.normal(size=200) > 0, "up", "down")
    learner = kf.FoldingLearner(hold="machines", batch_size=50, partition="order", scale=None)
    with kf.Federation.local({"a": (X[:60], y[:60]), "b": (X[60:120], y[60:120])}) as federation:
        return kf.conform(learner.fit(federation), holdout={"c": (X[120:], y[120:])})


def test_a_model_without_coverage_has_no_section(model):
    assert coverage_section(replace(model, conformal_=None)) is None
    titles = [section.title for section in model_report(replace(model, conformal_=None)).sections]
    assert "What it says when it does not know" not in titles


def test_the_section_says_from_how_many_rows_and_what_they_allow(model):
    (section,) = (own for own in model_report(model).sections if own.title == "What it says when it does not know")
    assert "80 rows of 1 site(s)" in section.words[0]
    assert "at least 0.012" in section.words[1]
    rows = {row[0]: row[1:] for row in section.tables[0].rows}
    surely = 1 - conformal_miscoverage(80, 0.9, 0.95).value
    assert rows["90%"] == (f"{surely:.1%}", "no")
    assert rows["99%"] == ("100.0%", "yes, too few rows")  # eighty rows cannot promise ninety-nine in a hundred

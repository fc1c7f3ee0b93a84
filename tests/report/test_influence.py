"""The section on sites that do not fit: who is named comes first, many are folded, and what it cannot show is said."""

import math

import numpy as np

from kernfed.report.assurance import influence_fact, influence_section
from kernfed.report.evidence import Evidence
from kernfed.testing.harm import Influence, Influences
from kernfed.testing.outcomes import Evaluation, count_outcomes

CLASSES = np.array(["a", "b"])


def evidence(influence):
    outcome = count_outcomes(CLASSES, np.array(["a", "b"]), np.array([[0.9, 0.1], [0.2, 0.8]]))
    return Evidence(Evaluation(CLASSES, {"x": outcome}, influence=influence))


def entry(name, *, named=False, points=0.01):
    return Influence((name,), 100, 0.1 if named else -0.01, 6.0, 1e-6 if named else 0.7, points, 0.2)


def test_there_is_none_where_nobody_asked():
    assert influence_section(Evidence()) is None
    assert influence_section(evidence(None)) is None
    assert influence_fact(evidence(None)) == ()


def test_who_is_named_comes_first_and_stands_at_the_top():
    known = evidence(Influences((entry("bad", named=True), entry("good", points=math.nan))))
    section = influence_section(known)
    assert section.words[0] == (
        "The others are better off without: bad; look at their rows and labels before anything else."
    )
    assert section.tables[0].rows == (
        ("bad", "+1.00", "20.0%", "+0.1000", "1e-06", "does not fit"),
        ("good", "", "20.0%", "-0.0100", "above 10 %", "."),
    )
    (fact,) = influence_fact(known)
    assert (fact.value, fact.note) == ("bad", "of 2, by leaving each out")


def test_pairs_and_a_head_that_stayed_are_said():
    pair = Influence(("p", "q"), 50, 0.2, 7.0, 1e-9, 0.1, 0.3)
    section = influence_section(evidence(Influences((entry("a"),), (pair,), head=False)))
    assert section.tables[0].rows[0][0] == "p with q"
    assert "head of the model was left as it is" in section.words[-1]
    few = Influences((Influence(("a",), 3, 0.0, 0.0, None, 0.0, 0.0),))
    assert "nobody can be named" in few.words()
    assert influence_section(evidence(few)).tables[0].rows[0][4] == "too few rows"


def test_of_forty_sites_ten_are_open_and_all_are_there():
    sites = tuple(entry(f"site-{number:02}", named=number == 0) for number in range(40))
    section = influence_section(evidence(Influences(sites)))
    worst, every = section.tables
    assert len(worst.rows) == 10
    assert worst.rows[0][0] == "site-00"
    assert (len(every.rows), every.folded) == (40, True)
    (fact,) = influence_fact(evidence(Influences(tuple(entry(str(n), named=True) for n in range(5)))))
    assert fact.value == "0, 1, 2 and 2 more"

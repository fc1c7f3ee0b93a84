"""Every statistic of rows kept aside adds up, stays within its bounds whatever a model scores, and passes its check."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernfed.errors import InputError
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.task import find_task, known_parts
from kernfed.testing.held_out import STATISTICS, HeldOutStatistic, held_out_sums, row_scores
from kernfed.testing.influence import Losses
from kernfed.testing.statistics import FACTORS, Coverage, Errors, Outcomes, Temperatures

C = 3
KINDS: dict[str, HeldOutStatistic] = {
    "outcomes": Outcomes(C),
    "errors": Errors(),
    "temperatures": Temperatures(C, FACTORS),
    "coverage": Coverage(C),
    "influence": Losses(C, (("a",), ("b",))),
    "influence of values": Losses(0, (("a",), ("b",)), scale=1e-300),
}
#: What a model, or a row, can make of a score.
HOSTILE = (np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324, 0.0, 0.5, 1.0)


def scored(statistic: HeldOutStatistic, draws: np.random.Generator, n: int) -> Any:
    """Scores (n, ...) as an honest model has them, and labels (n,), unknown ones among them."""
    shape = (n, *statistic.otherwise.shape)
    if isinstance(statistic, Errors) or getattr(statistic, "classes", 0) == 0:
        return draws.normal(size=shape), draws.normal(size=n)
    return draws.dirichlet(np.ones(shape[-1]), size=shape[:-1]), draws.integers(C + 1, size=n)


class Scores:
    """A model whose scores follow from the first column of a row, and that fails where this is 7."""

    def __init__(self, statistic: HeldOutStatistic, values: Any) -> None:
        self.statistic, self.values = statistic, values

    def score(self, _: Any, X: Any, **__: Any) -> Any:
        places = X[:, 0].astype(int)
        if (places == 7).any():
            raise FloatingPointError("a row that a model fails on")
        return self.values[places]


def by_table(statistic: HeldOutStatistic, values: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The statistic's scores are those of ``values`` (k, ...), by the first column of a row."""
    table = Scores(statistic, values)
    monkeypatch.setattr(type(statistic), "score", lambda _, model, X, **options: table.score(model, X, **options))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [0, 1, 40])
def test_honest_sums_pass_the_check_and_have_the_arrays_that_are_declared(kind: str, n: int) -> None:
    statistic = KINDS[kind]
    scores, labels = scored(statistic, np.random.default_rng(n), n)
    sums = statistic.sums(scores, labels)
    assert set(sums) == set(statistic.arrays)
    statistic.check(sums, scores if kind in ("outcomes", "coverage", "temperatures", "influence") else None)
    unknown = 0 if kind in ("outcomes", "coverage", "errors", "influence of values") else int((labels == C).sum())
    assert statistic.rows(sums) == n - unknown


@pytest.mark.parametrize("kind", KINDS)
def test_sums_of_two_parts_add_up(kind: str) -> None:
    statistic = KINDS[kind]
    scores, labels = scored(statistic, np.random.default_rng(1), 30)
    parts = (slice(None), slice(11), slice(11, None))
    whole, first, second = (statistic.sums(scores[part], labels[part]) for part in parts)
    for name in set(whole) - {"mean", "spread", "shares", "sites"}:
        np.testing.assert_allclose(first[name] + second[name], whole[name], rtol=1e-9, atol=1e-9)
    if kind == "errors":
        made = Errors.error_sums(first) + Errors.error_sums(second)
        assert vars(made) == pytest.approx(vars(Errors.error_sums(whole)))


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(sorted(KINDS)), seed=st.integers(0, 2**32 - 1))
def test_whatever_is_scored_the_sums_are_finite_and_within_their_bounds(kind: str, seed: int) -> None:
    statistic, draws = KINDS[kind], np.random.default_rng(seed)
    scores, labels = scored(statistic, draws, 12)
    hostile = draws.random(scores.shape) < 0.3
    scores[hostile] = draws.choice(HOSTILE, size=int(hostile.sum()))
    if labels.dtype.kind == "f":
        labels[draws.random(12) < 0.3] = draws.choice([1e308, -1e308, 5e-324])
    with pytest.MonkeyPatch.context() as patched:
        by_table(statistic, scores, patched)
        rows = np.arange(12.0)[:, None] % 12
        sums = held_out_sums(statistic, None, rows, labels)
    statistic.check(sums)
    for name, array in statistic.arrays.items():
        assert np.isfinite(sums[name]).all()
        assert np.abs(sums[name]).max(initial=0.0) <= array.bound


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_fails_moves_no_other(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    statistic = KINDS[kind]
    scores, _ = scored(statistic, np.random.default_rng(3), 7)
    by_table(statistic, scores, monkeypatch)
    rows = np.array([[0.0], [7.0], [2.0]])
    for alone in (False, True):
        made = row_scores(statistic, None, rows, alone=alone)
        np.testing.assert_array_equal(made[[0, 2]], scores[[0, 2]])
        assert np.isnan(made[1]).all()


def test_places_of_the_ladder_are_those_of_the_label_alone() -> None:
    statistic = Coverage(2)
    scores = np.array([[0.9, 0.1, 1.0], [np.nan, 0.1, 1.0], [0.9, np.nan, 1.0], [0.9, 0.1, np.nan], [0.9, 0.1, -1.0]])
    odds, strange = statistic.places(scores, np.array([0, 0, 0, 2, 1]))
    assert odds[0] == odds[2] < odds[4] < odds[1] == odds[3] == 82
    assert strange[:3].tolist() == [strange[0]] * 3
    assert strange[3:].tolist() == [82, 82]


def test_statistics_have_the_names_that_policies_know() -> None:
    assert {name.split(":")[1] for name in known_parts()} == set(STATISTICS)
    assert {statistic.name for statistic in KINDS.values()} == set(STATISTICS)


@pytest.mark.parametrize(
    ("statistics", "more"),
    [
        ({"outcomes": {}}, {"privacy": {}}),
        ({"outcomes": {}, "coverage": {}}, {"privacy": {}}),
        ({"errors": {}}, {"honest": 2}),
        ({"everything": {}}, {}),
        ({}, {}),
        (["outcomes"], {}),
        (None, {}),
    ],
)
def test_what_is_no_part_of_a_task_is_refused_before_anything_runs(statistics: Any, more: dict[str, Any]) -> None:
    known = find_task("test_model")
    assert known is not None
    with pytest.raises(Exception, match=r"has no parts|must be given by name"):
        known.asked(Payload(values={"statistics": statistics, **more}))


@pytest.mark.parametrize("kind", KINDS)
def test_sums_of_too_many_rows_are_refused(kind: str) -> None:
    statistic = KINDS[kind]
    sums = statistic.sums(*scored(statistic, np.random.default_rng(5), 20))
    name = statistic.counted
    with pytest.raises(InputError, match="a site tests on at most"):
        statistic.check({**sums, name: sums[name] + 2**41})

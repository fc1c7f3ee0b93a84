import math

import numpy as np
import pytest

from kernfed.guarantees import conformal_miscoverage, conformal_sets, conformal_threshold


@pytest.mark.parametrize("rows", [19, 50, 200])
@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_sets_miss_no_more_often_than_promised(rows, coverage):
    """Exchangeable scores with ties, over many draws of held-out rows and one new row each."""
    draws = np.random.default_rng(0)
    held = np.round(draws.normal(size=(20_000, rows + 1)), 1)
    thresholds = np.array([conformal_threshold(row[:-1], coverage) for row in held])
    missed = (held[:, -1] > thresholds).mean()
    bound = conformal_miscoverage(rows, coverage).value
    assert bound <= 1 - coverage
    assert missed <= bound + 4 * math.sqrt(bound / 20_000)


def test_the_threshold_at_hand_misses_no_more_than_promised_with_confidence():
    draws, rows, broken = np.random.default_rng(1), 100, 0
    bound = conformal_miscoverage(rows, 0.9, confidence=0.8).value
    for _ in range(4000):
        threshold = conformal_threshold(draws.uniform(size=rows), 0.9)
        broken += 1 - threshold > bound  # the exact chance of missing for uniform scores
    assert 0.15 < broken / 4000 < 0.23  # continuous scores make the bound tight: one in five


def test_too_few_rows_give_full_sets():
    assert conformal_threshold([0.1] * 8, 0.9) == math.inf
    assert conformal_threshold([0.1] * 9, 0.9) == 0.1
    assert conformal_miscoverage(8, 0.9).value == 0
    assert conformal_sets([[0.1, math.inf]], math.inf).all()


def test_sets_hold_the_classes_that_are_near_enough():
    found = conformal_sets([[0.1, 0.5, math.inf], [0.6, 0.5, 0.4]], 0.5)
    assert found.tolist() == [[True, True, False], [False, True, True]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: conformal_threshold([[0.1]], 0.9), "one number per held-out row"),
        (lambda: conformal_threshold([math.nan], 0.9), "no NaN"),
        (lambda: conformal_threshold([0.1], 1.0), "coverage must be"),
        (lambda: conformal_sets([0.1], 0.5), "must be a matrix"),
        (lambda: conformal_sets([[math.nan]], 0.5), "without NaN"),
        (lambda: conformal_sets([[0.1]], math.nan), "threshold must be"),
        (lambda: conformal_miscoverage(-1), "rows must be"),
        (lambda: conformal_miscoverage(10, 0.9, confidence=0.0), "confidence must be"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

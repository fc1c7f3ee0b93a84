"""The test that names a site, held against a literal transcription on rows, and against testers that lie."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from kernfed.errors import InputError
from kernfed.testing.harm import LEAST_GAIN, LEVEL, Influence, Influences, LossSums, judge, ownership
from kernfed.testing.influence import Losses

SITES = tuple(f"s{number}" for number in range(6))


def softmax(values: Any) -> Any:
    raised = np.exp(values - values.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def counted(rng: Any, sets: int = 6, rows: int = 40, classes: int = 3, harm: float = 0.0) -> tuple[Any, Any]:
    """Class numbers (n,) and probabilities (1 + V, n, C); without the first set they are better by ``harm``."""
    numbers = rng.integers(classes, size=rows)
    values = rng.standard_normal((rows, classes)) + 2 * np.eye(classes)[numbers]
    variants = values + 0.1 * rng.standard_normal((sets + 1, rows, classes))
    variants[1] += harm * np.eye(classes)[numbers]
    return numbers, softmax(variants)


def label_sums(numbers: Any, likely: Any) -> LossSums:
    """Sums of losses of class numbers (n,) and probabilities (1 + V, n, C)."""
    sets, _, classes = likely.shape
    return LossSums(**Losses(classes, ((),) * (sets - 1)).sums(likely.transpose(1, 0, 2), numbers))


def checked(sums: Any, sets: int, classes: int) -> LossSums:
    """Sums as a site may have told them."""
    Losses(classes, ((),) * sets).check(sums)
    return LossSums(**sums)


def literal(rows: dict[str, tuple[Any, Any]], number: int, own: str, shares: Any, liars: int) -> tuple[float, float]:
    """Mean gain and z, row by row."""
    gains = {}
    for name, (numbers, likely) in rows.items():
        truth = np.eye(likely.shape[2])[numbers]
        losses = ((likely - truth) ** 2).sum(axis=2)
        gains[name] = losses[0] - losses[number + 1]
    others = [name for name in sorted(rows) if name != own]
    gain = np.concatenate([gains[name] for name in others])
    classes = np.concatenate([rows[name][0] for name in others])
    who = np.concatenate([[name] * len(gains[name]) for name in others])
    middle = np.median([len(gains[name]) for name in others])
    factor = np.array([min(1.0, 1.5 * middle / len(gains[name])) for name in who])
    met = np.array([factor[classes == label].sum() for label in range(len(shares))])
    wanted = np.where(met > 0, shares, 0)
    by_class = np.minimum(np.where(met > 0, wanted / wanted.sum() / np.maximum(met, 1e-9), 0), 10 / met.sum())
    weights = factor * by_class[classes]
    ordered = sorted(others, key=lambda name: (weights * gain)[who == name].sum())
    heard = np.isin(who, ordered[liars : len(ordered) - liars])
    gain, weights, who = gain[heard], weights[heard] / weights[heard].sum(), who[heard]
    mean = weights @ gain
    by_row = (weights**2) @ (gain - mean) ** 2
    by_tester = sum((weights * (gain - mean))[who == name].sum() ** 2 for name in set(who))
    return float(mean), float(mean / math.sqrt(max(by_row, by_tester)))


@pytest.mark.parametrize("liars", [0, 1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_the_sums_say_what_the_rows_say(seed: int, liars: int) -> None:
    rng = np.random.default_rng(seed)
    rows = {name: counted(rng, rows=int(rng.integers(15, 60)), harm=0.2) for name in SITES}
    shares = rng.dirichlet(np.ones(3))
    sums = {name: label_sums(*own) for name, own in rows.items()}
    for number, own in enumerate(judge(sums, [(name,) for name in SITES], shares, liars=liars)):
        gain, z = literal(rows, number, SITES[number], shares, liars)
        assert own.sites == (SITES[number],)
        if own.p_value is None:
            assert own.rows < 20
            continue
        assert own.gain == pytest.approx(gain, abs=1e-12)
        assert own.z == pytest.approx(z, rel=1e-9)
        assert own.p_value == pytest.approx(min(1.0, 6 * norm.sf(z)), rel=1e-9)


def test_who_harms_is_named_and_nobody_else() -> None:
    rng = np.random.default_rng(1)
    told = {name: label_sums(*counted(rng, harm=0.5)) for name in SITES}
    told_by_others = judge(told, [(name,) for name in SITES], None)
    assert [own.named for own in told_by_others] == [True] + [False] * 5
    influences = Influences(told_by_others)
    assert influences.named == ("s0",)
    assert "better off without: s0" in str(influences)
    assert influences.to_json()["named"] == ["s0"]


def test_rows_without_a_known_label_do_not_count() -> None:
    rng = np.random.default_rng(2)
    numbers, likely = counted(rng)
    known = label_sums(numbers, likely)
    more = label_sums(np.append(numbers, 3), np.concatenate([likely, likely[:, :1]], axis=1))
    for name, array in vars(known).items():
        np.testing.assert_array_equal(getattr(more, name), array)


def extreme(sums: LossSums, sign: float) -> LossSums:
    """The strongest lie about the first set that passes for rows."""
    gain, square = sums.gain.copy(), sums.square.copy()
    gain[0], square[0] = sign * 2 * sums.rows, 4 * sums.rows
    told = LossSums(sums.rows, sums.right, gain, square, sums.moved)
    return checked(vars(told), len(gain), len(sums.rows))


@pytest.mark.parametrize("liars", [1, 2])
def test_testers_that_lie_name_nobody(liars: int) -> None:
    rng = np.random.default_rng(3)
    told = {name: label_sums(*counted(rng)) for name in SITES}
    framing = {name: extreme(sums, 1) if name in SITES[1 : 1 + liars] else sums for name, sums in told.items()}
    assert judge(framing, [(name,) for name in SITES], None, liars=liars)[0].named is False
    trusting = judge(framing, [(name,) for name in SITES], None, liars=0)[0]
    assert trusting.gain > 0.3  # which is why they are not heard


@pytest.mark.parametrize("liars", [1, 2])
def test_testers_that_lie_save_nobody(liars: int) -> None:
    rng = np.random.default_rng(4)
    told = {name: label_sums(*counted(rng, harm=0.6)) for name in SITES}
    shielding = {name: extreme(sums, -1) if name in SITES[1 : 1 + liars] else sums for name, sums in told.items()}
    assert judge(shielding, [(name,) for name in SITES], None, liars=liars)[0].named is True
    assert judge(shielding, [(name,) for name in SITES], None, liars=0)[0].named is False


def test_of_few_sites_nobody_is_named() -> None:
    rng = np.random.default_rng(5)
    told = {name: label_sums(*counted(rng, sets=3, harm=3.0)) for name in SITES[:3]}
    influences = Influences(judge(told, [(name,) for name in SITES[:3]], None))
    assert influences.named == ()
    assert {own.p_value for own in influences.sites} == {None}
    assert "nobody can be named" in influences.words()


def test_the_share_of_false_names_is_as_stated() -> None:
    rng = np.random.default_rng(6)
    named = 0
    for _ in range(400):
        told = {name: label_sums(*counted(rng, rows=30)) for name in SITES}
        named += any(own.named for own in judge(told, [(name,) for name in SITES], None))
    assert named <= 400 * LEVEL + 3 * math.sqrt(400 * LEVEL)


def test_who_alone_has_a_class_is_not_named_for_that() -> None:
    counts = {name: np.full(3, 40.0) for name in SITES}
    assert ownership(counts, ("s0",)) == pytest.approx(1 / 36)
    assert ownership(counts, ("s0", "s1")) == pytest.approx(4 / 36)
    alone = {**counts, "s0": np.array([40.0, 40.0, 0.0]), **{s: np.array([40.0, 0.0, 40.0]) for s in SITES[1:]}}
    share = 40 / (240 + 40 + 200)
    assert ownership(alone, ("s0",)) == pytest.approx(share + (240 / 480) / 36)
    rng = np.random.default_rng(1)
    told = {name: label_sums(*counted(rng, harm=0.5)) for name in SITES}
    sets = [(name,) for name in SITES]
    gain = judge(told, sets, None)[0].gain
    assert judge(told, sets, None, [1.9 * gain] * 6)[0].named
    assert not judge(told, sets, None, [2.1 * gain] * 6)[0].named


def test_a_claim_of_all_rows_does_not_save_a_site() -> None:
    counts = {name: np.full(3, 40.0) for name in SITES}
    assert ownership({**counts, "s0": np.full(3, 1e9)}, ("s0",)) < 0.15
    assert ownership({}, ("s0",)) == 0.0


def test_what_sites_differ_by_anyway_is_no_reason() -> None:
    rng = np.random.default_rng(9)
    told = {name: label_sums(*counted(rng, harm=0.5)) for name in SITES}
    sets = [(name,) for name in SITES]
    gain = judge(told, sets, None)[0].gain
    assert not judge(told, sets, None, usual=[0.6 * gain, -0.6 * gain])[0].named


def test_a_tiny_harm_is_no_reason() -> None:
    own = Influence(("a",), 10**6, LEAST_GAIN / 2, 9.0, 1e-19, 0.0, 0.0)
    assert not own.named


def disguised(sums: LossSums) -> LossSums:
    """All for naming the first set by few rows of some classes, and as much against it by many rows of others."""
    rows = np.array([10, 1000, 1000])
    gain, square = sums.gain.copy(), sums.square.copy()
    gain[0] = [20.0, -10.0, -10.0]
    square[0] = [40.0, 0.1, 0.1]
    right = np.minimum(sums.right, rows)
    told = LossSums(rows, right, gain, square, sums.moved)
    return checked(vars(told), len(gain), len(rows))


def test_a_tester_that_balances_its_lie_names_nobody() -> None:
    rng = np.random.default_rng(3)
    told = {name: label_sums(*counted(rng)) for name in SITES}
    told["s1"] = disguised(told["s1"])
    shares = np.array([0.98, 0.01, 0.01])  # so that the few rows weigh most
    assert not judge(told, [(name,) for name in SITES], shares)[0].named


def test_a_tester_that_praises_all_others_does_not_save_a_site() -> None:
    rng = np.random.default_rng(4)
    told = {name: label_sums(*counted(rng, harm=0.6)) for name in SITES}
    gain, square = told["s1"].gain.copy(), told["s1"].square.copy()
    gain[1:], square[1:] = -2.0 * told["s1"].rows, 4.0 * told["s1"].rows
    told["s1"] = LossSums(told["s1"].rows, told["s1"].right, gain, square, told["s1"].moved)
    assert judge(told, [(name,) for name in SITES], None)[0].named
    many = [(name,) for name in SITES]
    assert judge(told, many, None, [9.0] * 6, usual=[9.0])[0].least == 0.2  # whatever else is said


def test_a_tester_weighs_no_more_than_half_again_the_median_one() -> None:
    rng = np.random.default_rng(5)
    told = {name: label_sums(*counted(rng)) for name in SITES}
    sets = [(name,) for name in SITES]
    before = judge(told, sets, None, liars=0)[0]
    louder = label_sums(*counted(rng, rows=4000, harm=1.0))
    after = judge({**told, "s1": louder}, sets, None, liars=0)[0]
    alone = judge({"s1": louder}, sets, None, liars=0)[0]
    assert after.gain - before.gain < 0.4 * alone.gain


def changed(sums: LossSums, **arrays: Any) -> dict[str, Any]:
    return {**vars(sums), **arrays}


def test_sums_that_no_rows_have_are_refused() -> None:
    sums = label_sums(*counted(np.random.default_rng(7)))
    good = vars(sums)
    checked(good, 6, 3)
    wrong: list[dict[str, Any]] = [
        changed(sums, gain=sums.gain + 1000),
        changed(sums, gain=sums.gain * np.nan),
        changed(sums, square=np.zeros_like(sums.square)),
        changed(sums, square=sums.square + 1e9),
        changed(sums, right=sums.right + 1000),
        changed(sums, right=-sums.right),
        changed(sums, moved=sums.moved + 10**6),
        changed(sums, rows=-sums.rows),
        changed(sums, rows=np.array([2**63 - 1, 2**63 - 1, 42])),  # which add up to 40
        changed(sums, rows=sums.rows.astype(float)),
        {name: array for name, array in good.items() if name != "moved"},
    ]
    for arrays in wrong:
        with pytest.raises(InputError):
            checked(arrays, 6, 3)
    with pytest.raises(InputError):
        checked(good, 5, 3)


def test_values_to_regress_are_judged_by_squared_errors() -> None:
    rng = np.random.default_rng(8)
    told = {}
    for name in SITES:
        truth = rng.standard_normal(50)
        predicted = truth + rng.standard_normal((7, 50)) * 0.1
        predicted[0] += 1.0
        predicted[2:] += 1.0  # only without s0 they are right
        told[name] = LossSums(**Losses(0, ((),) * (len(predicted) - 1)).sums(predicted.T, truth))
    found = judge(told, [(name,) for name in SITES], None, labels=False)
    assert [own.named for own in found] == [True] + [False] * 5
    assert math.isnan(found[0].points)
    assert abs(told["s0"].gain).max() <= 2 * 50

"""Audits from end to end: broken mechanisms are flagged, correct ones are not, and the verdict says so."""

import json
import math
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.stats import binom

from kernfed.base.random import generator
from kernfed.kahm import KAHM
from kernfed.privacy import (
    AuditReport,
    ElementLaplace,
    ElementStaircase,
    Guarantee,
    NoiseGenerator,
    RecordGaussian,
    RecordMoments,
    audit_answers,
    audit_pair,
    audit_release,
    audit_training,
)
from kernfed.privacy.audit import attack_limit, canary_bounds
from kernfed.privacy.lower_bound import EpsilonBound

BOX = {"d": 1.0, "bounds": (0.0, 1.0)}
CORRECT = {
    "laplace": ElementLaplace(1.0, **BOX),
    "laplace narrow": ElementLaplace(1.0, d=3.0, bounds=(-1.0, 1.0)),
    "laplace wide": ElementLaplace(0.5, d=0.2, bounds=(0.0, 1.0)),
    "laplace with atom": ElementLaplace(1.0, **BOX, delta=0.1),
    "staircase": ElementStaircase(1.0, **BOX),
    "gaussian": RecordGaussian(1.0, 1e-5, radius=2.0),
    "gaussian projected": RecordGaussian(3.0, 1e-5, radius=2.0, projection=3),
}
ELEMENT = Guarantee(1.0, 0.0, "element", "one element changing by at most d = 1")
RECORD = Guarantee(6.0, 1e-5, "record", "one row replaced by any other")
RECORD_1 = Guarantee(1.0, 1e-5, "record", "one row replaced by any other")


def releaser(mechanism, seed=1):
    source = NoiseGenerator(seed)
    return lambda X: mechanism.release(X, generator=source).values


def rows_of(seed, count=200, width=5):
    return generator(seed, "rows").random((count, width))


def reports(mechanism, release, **options):
    return audit_release(mechanism, rows_of(0), rows_of(1), release=release, **options)


@pytest.mark.parametrize("name", CORRECT)
def test_correct_mechanism_is_not_flagged(name):
    """One run of each with a fixed seed; a bound is wrong with probability 1 - 0.99."""
    mechanism = CORRECT[name]
    report = reports(mechanism, releaser(mechanism), confidence=0.99)
    assert not report.contradicted
    assert report.verdict.startswith("not contradicted")
    assert {bound.unit for bound in report.bounds} >= {"record"}
    assert report.confidence == pytest.approx(0.99)


@pytest.mark.slow
def test_correct_mechanism_is_flagged_no_more_often_than_stated():
    mechanism, flagged = ElementLaplace(1.0, **BOX), 0
    stated = mechanism.guarantees(4)
    for seed in range(60):
        bounds = canary_bounds(
            mechanism, 4, release=releaser(mechanism, seed), stated=stated, trials=300, confidence=0.9, seed=seed
        )
        flagged += any(bound.contradicts(guarantee) for bound in bounds for guarantee in stated)
    assert flagged <= binom.ppf(0.999, 60, 0.1)


def five_times_less_noise(mechanism):
    if isinstance(mechanism, RecordGaussian):
        small = replace(mechanism, radius=mechanism.radius / 5)
        return lambda X: 0.8 * clipped(X, mechanism) + releaser(small)(X)
    return releaser(replace(mechanism, epsilon=5 * mechanism.epsilon))


def clipped(X, mechanism):
    rows = mechanism.project(X)
    return rows * np.minimum(1.0, mechanism.radius / np.linalg.norm(rows, axis=1, keepdims=True))


BROKEN = {
    "five times less noise, laplace": (CORRECT["laplace"], five_times_less_noise(CORRECT["laplace"])),
    "five times less noise, staircase": (CORRECT["staircase"], five_times_less_noise(CORRECT["staircase"])),
    "five times less noise, gaussian": (CORRECT["gaussian"], five_times_less_noise(CORRECT["gaussian"])),
    "five times less noise, projected": (
        CORRECT["gaussian projected"],
        five_times_less_noise(CORRECT["gaussian projected"]),
    ),
    "d taken for half of it": (CORRECT["laplace"], releaser(ElementLaplace(1.0, d=0.5, bounds=(0.0, 1.0)))),
    "one element in ten without noise": (
        CORRECT["laplace"],
        releaser(ElementLaplace(1.0, **BOX, delta=0.1)),
    ),
    "rows not clipped": (
        CORRECT["gaussian"],
        lambda X: X + releaser(CORRECT["gaussian"], 9)(0 * X),
    ),
    "absurd values": (CORRECT["laplace"], lambda X: 1e300 * (X - 0.5)),
    "no noise": (CORRECT["gaussian"], lambda X: clipped(X, CORRECT["gaussian"])),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_mechanism_is_flagged(name):
    mechanism, release = BROKEN[name]
    report = reports(mechanism, release, confidence=0.99)
    assert report.contradicted
    assert report.verdict.startswith("CONTRADICTED")


def test_defaults_use_the_mechanism_itself():
    mechanism = CORRECT["laplace"]
    report = audit_release(mechanism, rows_of(0), rows_of(1), generator=NoiseGenerator(5), trials=200)
    again = audit_release(mechanism, rows_of(0), rows_of(1), generator=NoiseGenerator(5), trials=200)
    assert report == again
    assert [attack.name for attack in report.attacks] == ["known pair", "known row", "unknown position"]
    assert (report.element, report.record) == mechanism.guarantees(5)
    assert report != audit_release(mechanism, rows_of(0), rows_of(1), trials=200)


def test_answers_by_arrays_and_by_a_callable():
    """A KAHM is closer to its own rows than to others."""
    rows = generator(0, "answers").normal(size=(120, 30))
    machine = KAHM(scale=None).fit(rows[:60])
    attack, score = audit_answers(rows[:60], rows[60:], answer=machine.distance, permutations=50)
    same = audit_answers(machine.distance(rows[:60]), machine.distance(rows[60:]), permutations=50)
    assert (attack, score) == same
    assert attack.roc.auc > 0.8
    assert score.p_value < 0.05


def test_answers_without_information():
    rows = generator(1, "answers").normal(size=(400, 3))
    attack, score = audit_answers(rows[:200], rows[200:], answer=lambda X: np.abs(X).sum(axis=1), permutations=99)
    assert attack.roc.auc_interval[0] < 0.5 < attack.roc.auc_interval[1]
    assert score.p_value > 0.05


def nearest_distance(rows):
    return lambda X: np.sqrt(np.square(X[:, None] - rows).sum(axis=2)).min(axis=1)


def test_training_without_noise_is_refuted_and_with_noise_is_not():
    pool = generator(2, "canaries").normal(size=(400, 4))
    mechanism = RecordGaussian(1.0, 1e-5, radius=2.0)
    attack, bound = audit_training(nearest_distance, pool[:200], pool[200:], RECORD_1)
    assert attack.roc.auc == 1.0
    assert bound.contradicts(RECORD_1)
    attack, bound = audit_training(lambda X: nearest_distance(releaser(mechanism)(X)), pool[:200], pool[200:], RECORD_1)
    assert not bound.contradicts(RECORD_1)


def moments_run(mechanism, seed=3):
    source = NoiseGenerator(seed)
    return lambda X: float(mechanism.release(X, np.zeros(len(X), int), generator=source).classes[0].moments.mean[0])


@pytest.mark.slow
def test_moments_by_repeated_runs():
    """Replacing one row of 20 by its opposite: the released mean tells, as much as epsilon allows and no more."""
    rows = np.zeros((20, 2))
    rows[0] = [1.0, 0.0]
    options = {"radius": 1.0, "basis": np.eye(2), "method": "joint"}
    stated = RecordMoments(1.0, 1e-5, 2, **options)
    _, record = stated.guarantees(2)
    attack, bound = audit_pair(moments_run(stated), rows, -rows, record, runs=300)
    assert not bound.contradicts(record)
    weaker = RecordMoments(20.0, 1e-5, 2, **options)
    attack, bound = audit_pair(moments_run(weaker), rows, -rows, record, runs=300)
    assert attack.roc.auc > 0.9
    assert bound.contradicts(record)


def bound_of(value=0.5, unit="record", ceiling=4.0, confidence=0.95):
    return EpsilonBound(value, ceiling, 1e-5, unit, confidence, "errors of a test", 1000)


def report_of(*findings, record=RECORD):
    return AuditReport("noisy rows", ELEMENT, record).plus(*findings)


def test_verdicts():
    assert report_of().verdict == "not tested: no lower bound on epsilon was computed"
    assert report_of(bound_of()).verdict == (
        "not contradicted: audited record epsilon >= 0.5, stated 6, more than the 4 that so many trials can show "
        "(95 % confidence)"
    )
    assert report_of(bound_of(7.1234)).verdict == (
        "CONTRADICTED: audited record epsilon >= 7.12, stated 6 (95 % confidence)"
    )
    both = report_of(bound_of(0.99996, "element"), bound_of(5.99))
    assert both.verdict == (
        "not contradicted: audited element epsilon >= 0.999, stated 1; audited record epsilon >= 5.99, stated 6, "
        "more than the 4 that so many trials can show (90 % confidence)"
    )
    nothing = report_of(bound_of(5.0), record=replace(RECORD, epsilon=math.inf))
    assert "stated none" in nothing.verdict
    assert all("\n" not in report.verdict for report in (both, nothing))


def test_report_prints_and_is_plain_json():
    attack, score = audit_answers(np.arange(30.0), np.arange(30.0) + 5, permutations=9)
    report = report_of(attack, score, bound_of(), record=replace(RECORD, epsilon=math.inf))
    values = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert values["record"]["epsilon"] is None
    assert values["element"]["epsilon"] == 1.0
    assert values["attacks"][0]["roc"]["auc"] == attack.roc.auc
    assert values["bounds"][0]["ceiling"] == 4.0
    assert values["membership"]["p_value"] == score.p_value
    assert values["contradicted"] is False
    text = str(report)
    for words in ("Audit of noisy rows", "answers only: AUC", "mis ", "epsilon >= 0.5", "Verdict: not contradicted"):
        assert words in text
    assert "not private" not in text
    assert "not private" in str(replace(report, private=False))


def test_report_is_frozen():
    report = report_of()
    with pytest.raises(FrozenInstanceError):
        report.subject = "else"


def attack_of(inside, outside):
    return audit_answers(np.asarray(inside, float), np.asarray(outside, float), permutations=9)[0]


@pytest.mark.parametrize(
    ("epsilon", "begins", "ends"),
    [
        (
            math.inf,
            "no guarantee is claimed; the best attack tried, answers only, has",
            "what other attacks achieve",
        ),
        (
            1.0,
            "not tested: ",
            "record epsilon 1 allows 0.732 on average over the noise, which is less: audit the mechanism itself",
        ),
        (20.0, "not tested: ", "allows 1.000 on average over the noise"),
    ],
)
def test_attacks_without_a_bound_are_put_into_words(epsilon, begins, ends):
    """Members are all nearer than others, so the attack is perfect, and yet it contradicts nothing."""
    report = report_of(attack_of(np.arange(300), 300 + np.arange(300)), record=replace(RECORD, epsilon=epsilon))
    assert report.verdict.startswith(begins)
    assert report.verdict.endswith(ends)
    assert "an area under the curve of 1.000 [" in report.verdict
    assert "finds 100.0% of the members at 1.0% false alarms" in report.verdict
    assert not report.contradicted


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 0.0), (1.0, 1e-5), (2.0, 0.3), (9.0, 0.05)])
def test_the_limit_of_attacks_covers_the_whole_region(epsilon, delta):
    rates = np.linspace(0, 1, 20001)
    most = np.minimum(np.minimum(np.exp(epsilon) * rates + delta, 1 - np.exp(-epsilon) * (1 - delta - rates)), 1.0)
    limit = attack_limit(replace(RECORD, epsilon=epsilon, delta=delta))
    assert trapezoid(most, rates) <= limit
    if delta < 1e-3:
        assert limit == pytest.approx(trapezoid(most, rates), abs=2e-3)


ROWS = np.zeros((4, 2))
BAD = [
    (lambda: AuditReport("x", RECORD, RECORD), "element must be a Guarantee of unit 'element'"),
    (lambda: AuditReport("x", ELEMENT, None), "record must be a Guarantee"),
    (lambda: AuditReport(" ", ELEMENT, RECORD), "subject must say"),
    (lambda: report_of("x"), "a finding must be"),
    (lambda: AuditReport("x", ELEMENT, RECORD, attacks=("x",)), "attacks must be of type Attack"),
    (lambda: reports(CORRECT["laplace"], None, trials=10), "trials must be >= 20"),
    (lambda: reports(CORRECT["laplace"], None, confidence=1), "confidence must be < 1"),
    (lambda: reports(CORRECT["laplace"], None, generator=np.random.default_rng(0)), "generator must be"),
    (lambda: reports(RecordMoments(1.0, 1e-5, 2, 1.0), None), "mechanism must release rows"),
    (lambda: audit_answers([1.0], [1.0, 2.0]), "members must have at least 2"),
    (lambda: audit_answers(ROWS, ROWS, answer=lambda X: X), "answers must be a vector"),
    (lambda: audit_answers(ROWS, ROWS, answer=lambda X: X[1:, 0]), "answer must return one number for each of 4"),
    (lambda: audit_answers(ROWS, ROWS[:, :1], answer=lambda X: X[:, 0]), "others must have 2 columns"),
    (lambda: audit_training(nearest_distance, ROWS, ROWS[1:], RECORD), "substitutes must have a row for each of the 4"),
    (lambda: audit_training(nearest_distance, ROWS[:1], ROWS[:1], RECORD), "canaries must have at least 2"),
    (
        lambda: [audit_training(nearest_distance, ROWS[:2], ROWS[2:], RECORD, seed=seed) for seed in range(20)],
        "canaries must be more: the coins of all 2 fell on the same side",
    ),
    (lambda: audit_pair(np.sum, ROWS, ROWS[:, :1], RECORD), "neighbour must have 2 columns"),
    (lambda: audit_pair(np.sum, ROWS, ROWS, RECORD, runs=1), "runs must be >= 4"),
    (lambda: audit_pair(lambda X: X[0, 0] + np.nan, ROWS, ROWS, RECORD), "scores of run must be finite"),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()

"""Audits of learners and models: an honest mechanism stands, a broken one is found out."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernfed.federation import Federation, FoldingLearner, RidgeLearner
from kernfed.privacy import ElementLaplace, NoiseGenerator, RandomizedLabels, RecordGaussian, RecordMoments, RecordRidge
from kernfed.privacy.audit import attack_limit
from kernfed.promise import round_up
from kernfed.report import audit_from_json, officer_page
from kernfed.testing.audit import audit_mechanism, audit_model
from oracles.federation import SFM, sites_data

GAUSSIAN, MOMENTS = RecordGaussian(1.0, 1e-5, 3.0), RecordMoments(1.0, 1e-5, 3, radius=3.0)


@pytest.fixture
def halves(rng: np.random.Generator) -> Any:
    data = sites_data(rng, "ab", rows=120)
    return data["a"], data["b"]


def learner(mechanism: Any, **settings: Any) -> FoldingLearner:
    return FoldingLearner(privacy=mechanism, rows_per_class=30, smoothing=None, **{**SFM, **settings})


@pytest.mark.parametrize("mechanism", [GAUSSIAN, ElementLaplace(1.0, 6.0, (-3.0, 3.0)), MOMENTS], ids=["g", "l", "m"])
def test_an_honest_mechanism_is_not_contradicted(halves: Any, mechanism: Any) -> None:
    report, traffic = audit_mechanism(learner(mechanism), *halves, trials=400, confidence=0.9999)
    assert report.verdict.startswith("not contradicted")
    assert report.bounds
    assert report.membership is not None
    assert report.attacks[-1].name == "answers only"
    assert {entry["task"] for entry in traffic} == {"describe", "folding_fit"}
    width = halves[0][0].shape[1]
    count = 3 * (3 + 6) if mechanism is MOMENTS else len(halves[0][0]) * width
    assert f"{count:,}" in report.released


@pytest.mark.parametrize("broken", ["less noise", "no clipping", "seeded noise"])
def test_a_broken_mechanism_for_rows_is_flagged(halves: Any, broken: str) -> None:
    def release(X: Any) -> Any:
        if broken == "less noise":
            return RecordGaussian(16.0, 1e-5, 3.0).release(X).values
        if broken == "no clipping":
            noise = GAUSSIAN.release(np.zeros_like(X)).values
            return np.asarray(X) + noise
        return np.clip(X, -3, 3) + GAUSSIAN.release(np.zeros_like(X), generator=NoiseGenerator(7)).values * 1e-3

    report, traffic = audit_mechanism(learner(GAUSSIAN), *halves, release=release, trials=1500)
    assert report.verdict.startswith("CONTRADICTED")
    assert report.contradicted
    assert traffic == []


@pytest.mark.parametrize("broken", ["less noise", "no clipping"])
def test_broken_moments_are_flagged(halves: Any, broken: str) -> None:
    loud = RecordMoments(40.0, 1e-5, 3, radius=3.0)

    def release(X: Any, y: Any) -> Any:
        if broken == "less noise":
            return loud.release(X, y)
        found = MOMENTS.release(np.zeros_like(X), y)
        part, rows = found.classes[0], MOMENTS.project(X)
        moments = replace(
            part.moments,
            joint_mean=part.moments.mean + rows.mean(axis=0),
            joint_scatter=part.moments.scatter + rows.T @ rows,
        )
        return replace(found, classes=(replace(part, moments=moments),))

    report, _ = audit_mechanism(learner(MOMENTS), *halves, release=release, trials=400)
    assert report.verdict.startswith("CONTRADICTED"), report.verdict


def test_the_attack_on_moments_is_close_to_the_best(halves: Any) -> None:
    """Neighbours differ by 0.96 mu standard deviations, so that AUC = Phi(0.96 mu / sqrt 2); the most is mu."""
    mechanism = RecordMoments(8.0, 1e-5, 3, radius=3.0)
    report, _ = audit_mechanism(learner(mechanism), *halves, trials=2000, release=mechanism.release)
    mu = mechanism.release(*halves[0]).events[0].mu  # type: ignore[attr-defined]
    best = 0.5 * (1 + math.erf(mu / 2))
    assert best - 0.06 < report.attacks[0].roc.auc < best + 0.04


def test_models_say_what_they_promise(halves: Any, tmp_path: Path) -> None:
    (X, y), outside = halves
    with Federation.local({"a": (X, y)}, store=tmp_path) as federation:
        for model, record in (
            (
                FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None).fit(
                    federation
                ),
                math.inf,
            ),
            (learner(GAUSSIAN, hold="machines").fit(federation), 1.0),
            (learner(MOMENTS, labels=RandomizedLabels(2.0, (0, 1, 2))).fit(federation), 3.0),
            (RidgeLearner("exact", features="given", privacy=RecordRidge(2.0, 1e-5, 1.0, 1.0)).fit(federation), 2.0),
        ):
            report = audit_model(model, (X, y), outside)
            assert report.record.epsilon == record
            assert len(report.attacks) == 1
            assert report.released == ""
            auc = f"answers only, has an area under the curve of {report.attacks[0].roc.auc:.3f} ["
            assert auc in report.verdict
            if math.isinf(record):
                assert report.verdict.startswith("no guarantee is claimed; the best attack tried")
            else:
                assert report.verdict.startswith("not tested: no lower bound on epsilon was computed, as the noise was")
                assert model.privacy is not None
                assert report.total is not None
                assert (report.total.epsilon, report.total.delta) == max(model.privacy.spent.values())
                assert report.worst.epsilon >= record
                words = "stated record epsilon" if report.worst is report.record else "ledgers have come to in all,"
                allowed = (
                    f"{words} {round_up(report.worst.epsilon):g} allows {attack_limit(report.worst):.3f} on average"
                )
                assert allowed in report.verdict
    assert (
        audit_model(
            FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None).fit(
                Federation.local({"a": (X, y)})
            ),
            (X, y),
            outside,
        )
        .attacks[0]
        .roc.auc
        > 0.6
    )


def test_a_model_is_audited_against_all_that_its_sites_have_spent(halves: Any, tmp_path: Path) -> None:
    """A model with 10.2 spent said epsilon 3 and "at most 95.26 %": the ledgers' total comes first and limits."""
    (X, y), outside = halves
    with Federation.local({"a": (X, y)}, store=tmp_path) as federation:
        for radius in (1.0, 2.0, 4.0, 5.0):
            model = learner(RecordGaussian(3.0, 1e-5, radius), hold="machines").fit(federation)
    report = audit_model(model, (X, y), outside)
    assert report.record.epsilon == 3.0
    assert report.total is not None
    assert report.worst is report.total
    assert report.total.epsilon > 6
    lines = str(report).splitlines()
    assert lines[1].startswith("  in all, record: (")
    assert report.verdict.count("allows") == 1
    page = officer_page(report)
    assert page.index("All releases of a site together") < page.index("One element") < page.index("One record")
    assert "95.26" not in page
    assert audit_from_json(report.to_json()) == report


def test_moments_of_another_epsilon_are_found_out_by_mu(halves: Any) -> None:
    """At default trials errors alone let 12 pass as 3."""
    stated, true = (RecordMoments(epsilon, 1e-5, 3, radius=3.0) for epsilon in (3.0, 12.0))
    report, _ = audit_mechanism(learner(stated), *halves, release=true.release)
    assert [bound.method for bound in report.contradicted] == ["mu of Gaussian noise"]
    assert report.contradicted[0].value > 6
    honest, _ = audit_mechanism(learner(stated), *halves, release=stated.release)
    assert not honest.contradicted
    smallest = honest.detects("record")
    assert smallest is not None
    assert 3 < smallest < 12
    assert f"where {round_up(smallest, 3):g} would most likely have been refuted" in honest.verdict


def test_what_cannot_be_audited_is_said(halves: Any) -> None:
    with pytest.raises(ValueError, match="learner must have privacy="):
        audit_mechanism(FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None), *halves)
    with pytest.raises(ValueError, match="a classifier with scores"):
        audit_model(3, *halves)
    (X, y), outside = halves
    with Federation.local({"a": (X, y)}) as federation:
        model = FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None).fit(
            federation
        )
    with pytest.raises(ValueError, match="at least 2 rows must have labels of the model, got 0"):
        audit_model(model, (X, y), (outside[0], np.full(len(outside[1]), 9)))

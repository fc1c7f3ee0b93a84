"""Coverage under differential privacy: noise on the counts of rows kept aside, charged, once, and of sound sets."""

import json
import math
import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import kernfed as kf
from kernfed.abstain.bins import PLACES, ladder_sums
from kernfed.cli import app
from kernfed.errors import InputError, LedgerNotKept, TooFewReplies
from kernfed.privacy import DiscreteGaussian, RecordHistogram, RecordMoments, RecordRidge
from kernfed.report.assurance import coverage_section
from kernfed.site.policy import Policy
from kernfed.site.protocol.message import Payload
from kernfed.site.release.permit import charges, open_ledger
from kernfed.testing.noisy_coverage import row_places

SITES = ("s0", "s1", "s2", "s3")
NOISE = RecordHistogram(3.0, 1e-5)
RIDGE = {"features": "given", "regularization": 1e-3}
FOLDING = {"hold": "machines", "batch_size": 30, "partition": "order", "scale": None}


def blobs(rng, n, middles):
    numbers = rng.integers(len(middles), size=n)
    return middles[numbers] + 0.6 * rng.normal(size=(n, 4)), np.array(["a", "b", "c"])[numbers]


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(3)
    middles = rng.normal(size=(3, 4))
    return {site: blobs(rng, 500, middles) for site in SITES}, blobs(rng, 4000, middles)


@pytest.fixture
def federation(rows, tmp_path):
    with kf.Federation.local(rows[0], holdout=0.6, store=tmp_path / "stores") as opened:
        yield opened


@pytest.fixture
def small(rows, tmp_path):
    """The same sites with a fifth of their rows, for what takes longer."""
    few = {site: (X[:100], y[:100]) for site, (X, y) in rows[0].items()}
    with kf.Federation.local(few, holdout=0.6, store=tmp_path / "small") as opened:
        yield opened


@pytest.fixture(scope="module")
def models(rows):
    with kf.Federation.local(rows[0], holdout=0.6) as federation:
        return {
            "ridge": kf.RidgeLearner("exact", **RIDGE).fit(federation),
            "folding": kf.FoldingLearner("distance", **FOLDING).fit(federation),
        }


def clear_places(model, federation):
    """Places of all rows kept aside, by site; scored all at once."""
    counted = {}
    for site in SITES:
        own = federation.engine.site(site).held_out()
        counted[site] = row_places(model, own.X, own.y)
    return counted


def charges_of(federation):
    return [charges(federation.engine.site(site)) for site in SITES]


@pytest.mark.parametrize("kind", ["ridge", "folding"])
@pytest.mark.parametrize("committee", [None, "secure"])
def test_the_sum_is_that_of_the_rows_and_of_what_sites_drew(small, models, monkeypatch, kind, committee):
    drawn, sample = {}, DiscreteGaussian.sample  # by thread: sites may draw at once

    def noted(law, shape, source):
        draws = sample(law, shape, source)
        drawn.setdefault(threading.get_ident(), []).append(draws)
        return draws

    monkeypatch.setattr(DiscreteGaussian, "sample", noted)
    mechanism = replace(NOISE, strangers=kind == "folding")
    model = kf.conform(models[kind], small, privacy=mechanism, sum=committee)
    places = clear_places(models[kind], small)
    every = [draws for own in drawn.values() for draws in own]
    noise = np.array(every).reshape(len(SITES), mechanism.histograms, PLACES).sum(axis=0)
    record = model.conformal_
    clear = [sum(ladder_sums(own[part]) for own in places.values()) for part in (0, 1)]
    np.testing.assert_array_equal(record.counts, clear[0] + noise[0])
    if kind == "folding":
        np.testing.assert_array_equal(record.nearest, clear[1] + noise[1])
    assert record.rows == sum(len(own[0]) for own in places.values())
    assert (record.sites, charges_of(small)) == (4, [1] * 4)
    # One noise for all, or one for each: what is stated is what was drawn.
    single = math.sqrt(mechanism.law().variance)
    assert record.deviation == pytest.approx(single * (1 if committee else 2), rel=1e-3)
    assert np.abs(noise).max() < 6 * record.deviation


@pytest.mark.parametrize("kind", ["ridge", pytest.param("folding", marks=pytest.mark.slow)])
def test_new_rows_are_covered_by_sets_a_little_larger(federation, rows, models, kind):
    X, y = rows[1]
    clear = kf.conform(models[kind], federation)
    truth = np.searchsorted(clear.classes_, y)
    size = clear.predict_set(X, 0.9).sum(axis=1).mean()
    for epsilon, most in ((1.0, 1.25), (3.0, 1.1)):
        noisy = kf.conform(models[kind], federation, privacy=RecordHistogram(epsilon, 1e-5), sum="secure")
        sets = noisy.predict_set(X, 0.9)
        assert sets[np.arange(len(y)), truth].mean() > 0.9 - 4 * math.sqrt(0.09 / noisy.conformal_.rows)
        assert sets.sum(axis=1).mean() < most * size
        labels = noisy.predict(X, abstain=0.1)
        assert not labels.mask.all()
        assert ((labels.data != y) & ~labels.mask).mean() < 0.1 + 4 * math.sqrt(0.09 / noisy.conformal_.rows)


def test_the_same_release_is_not_charged_twice_and_a_sum_is(federation, models):
    first = kf.conform(models["ridge"], federation, privacy=NOISE)
    again = kf.conform(first, federation, privacy=NOISE)
    np.testing.assert_array_equal(first.conformal_.counts, again.conformal_.counts)
    assert charges_of(federation) == [1] * 4
    other = kf.conform(models["ridge"], federation, privacy=replace(NOISE, epsilon=1.0))
    assert charges_of(federation) == [2] * 4
    assert other.conformal_.privacy.spent["s0"][0] > 3.0
    kf.conform(models["ridge"], federation, privacy=NOISE, sum="secure")
    assert charges_of(federation) == [3] * 4  # the same share in two sums would be seen in their difference
    ids = federation.engine.site("s0").held_out().ids
    ledger = open_ledger(federation.engine.site("s0"))
    assert ledger.spent(ids[:1].astype(str)).epsilon > 0
    learned = federation.engine.site("s0").rows().ids
    assert ledger.spent(learned[:1].astype(str)).epsilon == 0  # rows that were learned from pay nothing


def test_a_forgotten_row_takes_the_release_with_it(federation, models):
    kf.conform(models["ridge"], federation, privacy=NOISE)
    site = federation.engine.site("s1")
    site.forget_rows(site.held_out().ids[:1])
    kf.conform(models["ridge"], federation, privacy=NOISE)
    assert charges_of(federation) == [1, 2, 1, 1]


def test_a_model_that_promises_privacy_tells_what_was_charged_besides(federation):
    trained = kf.RidgeLearner("exact", privacy=RecordRidge(2.0, 1e-6, 1.0, 1.0), **RIDGE).fit(federation)
    with pytest.raises(InputError, match="RecordHistogram"):
        kf.conform(trained, federation)
    model = kf.conform(trained, federation, privacy=NOISE)
    assert model.privacy.record == trained.privacy.record
    assert model.privacy.charges == dict.fromkeys(SITES, 2)
    assert model.conformal_.privacy.charges == dict.fromkeys(SITES, 2)
    assert model.conformal_.privacy.with_row_in(model.privacy) == pytest.approx((5.0, 1.1e-5))
    section = coverage_section(model)
    assert any("epsilon 5 at delta 1.1e-05" in words for words in section.words)
    assert "epsilon 3" in section.claims[1].statement
    kf.conform(model, federation, privacy=NOISE)
    assert charges_of(federation) == [2] * 4  # what the model says of its own privacy makes it no other model


def test_files_and_pages_keep_the_terms(small, rows, models, tmp_path):
    model = kf.conform(models["folding"], small, privacy=replace(NOISE, strangers=True), sum="secure")
    model.save(tmp_path / "model.kfd")
    again = kf.load(tmp_path / "model.kfd")
    X = rows[1][0][:200]
    np.testing.assert_array_equal(again.predict_set(X), model.predict_set(X))
    np.testing.assert_array_equal(again.p_values(X), model.p_values(X))
    assert again.conformal_.privacy == model.conformal_.privacy
    assert "at least 4 honest sites" in str(again.conformal_.privacy)
    section = coverage_section(again)
    assert "with noise" not in section.words[0]
    assert any("have noise" in words for words in section.words)
    assert section.tables[0].rows[0][2] == "no"
    assert (model.p_values(X[:20] + 30.0) < model.p_values(X).mean()).all()


# Rows that a model cannot score ------------------------------------------------------------------------------------


def test_a_row_changes_no_place_but_its_own(rows, models):
    X, y = rows[1][0][:40].copy(), rows[1][1][:40].copy()
    for model in models.values():
        before = row_places(model, X, y)
        for value in (1e300, -1e300, 1e100, 5e-324):
            changed = X.copy()
            changed[7] = value
            for own, other in zip(before, row_places(model, changed, y), strict=True):
                np.testing.assert_array_equal(np.delete(own, 7), np.delete(other, 7))


def test_a_row_that_raises_or_has_no_label_is_in_no_set(models):
    class Raising:
        classes_ = models["ridge"].classes_
        distance_unit = 1.0

        def conforming(self, X):
            if X[0, 0] > 0:
                raise FloatingPointError("told to nobody")
            return np.array([[np.nan, 0.5, 0.5]]), np.array([np.nan])

    X = np.array([[1.0], [-1.0], [-1.0], [-1.0]])
    places, strange = row_places(Raising(), X, np.array(["b", "a", "b", "z"]))
    assert places.tolist() == [PLACES, PLACES, 41, PLACES]
    assert strange.tolist() == [PLACES] * 4


# Policies and refusals ---------------------------------------------------------------------------------------------


def policy(**settings):
    return Policy(**{"tasks": ("*",), "max_record_epsilon": 4.0, **settings})


@pytest.mark.parametrize("settings", [{}, {"private_labels": True}, {"mechanisms": ("record-histogram",)}])
def test_where_privacy_is_required_counts_with_noise_are_answered(rows, models, tmp_path, settings):
    policies = {site: policy(**settings) for site in SITES}
    with kf.Federation.local(rows[0], holdout=0.6, policies=policies, store=tmp_path) as federation:
        with pytest.raises(TooFewReplies, match="requires privacy"):
            kf.conform(models["ridge"], federation)
        model = kf.conform(models["ridge"], federation, privacy=NOISE)
        assert model.conformal_.rows > 1000
        with pytest.raises(TooFewReplies, match="at most 4"):
            kf.conform(models["ridge"], federation, privacy=RecordHistogram(5.0, 1e-5))
        with pytest.raises(TooFewReplies, match="budget does not allow"):
            kf.conform(models["ridge"], federation, privacy=replace(NOISE, delta=1e-6))
        with pytest.raises(TooFewReplies, match="pin them in site"):
            kf.conform(models["ridge"], federation, privacy=NOISE, sum="secure")


def test_policies_that_do_not_allow_it_refuse(rows, models, tmp_path):
    for number, settings in enumerate(({"mechanisms": ("record-moments",)}, {"labels": "targets"})):
        values = {site: (X, np.arange(len(y)) % 3) for site, (X, y) in rows[0].items()}
        policies = {site: policy(**settings) for site in SITES}
        options = {"holdout": 0.6, "policies": policies, "store": tmp_path / str(number)}
        with (
            kf.Federation.local(values, **options) as federation,
            pytest.raises(TooFewReplies, match=r"releases by record-moments|are targets"),
        ):
            kf.conform(models["ridge"], federation, privacy=NOISE)


def test_a_site_that_keeps_nothing_aside_is_missing(rows, models, tmp_path):
    with (
        kf.Federation.local(rows[0], store=tmp_path) as federation,
        pytest.raises(TooFewReplies, match="keeps no rows aside"),
    ):
        kf.conform(models["ridge"], federation, privacy=NOISE)


def test_what_cannot_be_counted_with_noise_is_refused_in_a_sentence(federation, rows, models):
    with pytest.raises(InputError, match="RecordHistogram"):
        kf.conform(models["ridge"], federation, privacy=RecordMoments(1.0, 1e-5, 2, radius=1.0))
    with pytest.raises(InputError, match="no holdout"):
        kf.conform(models["ridge"], holdout={"x": rows[1]}, privacy=NOISE)
    with pytest.raises(InputError, match="this model has none"):
        kf.conform(models["ridge"], federation, privacy=replace(NOISE, strangers=True))
    at_sites = kf.FoldingLearner("distance", **{**FOLDING, "hold": "sites"}).fit(federation)
    with pytest.raises(InputError, match="would travel as they are"):
        kf.conform(at_sites, federation, privacy=NOISE)
    with pytest.raises(InputError, match="strangers must be"):
        RecordHistogram(1.0, 1e-5, strangers=1)
    for wrong in ({}, {"model": None}, {"model": {"format": "x"}}):
        asked = {"privacy": {"kind": "record-histogram", "epsilon": 1.0, "delta": 1e-5, "strangers": False}, **wrong}
        for shared in ({}, {"honest": 3}):
            question = Payload(values={"statistics": {"coverage": {}}, **asked, **shared})
            replies = federation.ask("test_model", question, min_replies=0)
            assert not len(replies)
            assert {refusal.code for refusal in replies.missing.values()} <= {"bad question", "error"}
    assert charges_of(federation) == [0] * 4


def test_a_temporary_store_is_warned_of(rows, models):
    with kf.Federation.local(rows[0], holdout=0.6) as federation, pytest.warns(LedgerNotKept):
        kf.conform(models["ridge"], federation, privacy=NOISE)


# The command -------------------------------------------------------------------------------------------------------


def test_the_command_counts_with_noise_at_a_hub(federation, models, tmp_path, monkeypatch):
    monkeypatch.setattr("kernfed.cli.model.open_hub", lambda *_: federation)
    models["ridge"].save(tmp_path / "model.kfd")
    base = ["conform", str(tmp_path / "model.kfd"), "--out", str(tmp_path / "sure.kfd")]
    hub = ["--credentials", str(tmp_path / "caller.json")]
    noise = ["--epsilon", "3", "--sum", "secure", "--json"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = CliRunner().invoke(app, [*base, *hub, *noise])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["privacy"]["record"] == [3.0, 1e-5]
    assert kf.load(tmp_path / "sure.kfd").conformal_.rows == told["rows"] > 1000
    for arguments, message in (
        ([*base, *hub, "--delta", "1e-6"], "are for --epsilon"),
        ([*base, "--data", "x.parquet", "--label", "y", "--epsilon", "1"], "is for the sites of a hub"),
    ):
        refused = CliRunner().invoke(app, arguments)
        assert refused.exit_code == 2
        assert message in " ".join(refused.output.split())

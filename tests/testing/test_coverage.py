"""Coverage of models from the rows that sites keep aside: the same wherever the machines are, and gone when they go."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

import kernfed as kf
from kernfed.abstain import BINS, RATIO_BINS, probability_bins, ratio_bins
from kernfed.errors import InputError, NotConnected, TooFewReplies
from kernfed.kahm.left_out import softmin
from kernfed.site.policy import Policy
from kernfed.testing.statistics import Coverage

SITES = ("s0", "s1", "s2", "s3")


def blobs(rng, n, middles):
    """Rows (n, 4) around as many middles as there are classes."""
    numbers = rng.integers(len(middles), size=n)
    return middles[numbers] + 0.6 * rng.normal(size=(n, 4)), np.array(["a", "b", "c"])[numbers]


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(3)
    middles = rng.normal(size=(3, 4))
    return {site: blobs(rng, 120, middles) for site in SITES}, blobs(rng, 4000, middles)


@pytest.fixture(scope="module")
def federation(rows):
    with kf.Federation.local(rows[0], holdout=0.5) as opened:
        yield opened


def learner(kind, hold="machines"):
    folding = {"batch_size": 30, "partition": "order", "scale": None}
    ridge = {"features": "given", "regularization": 1e-3}
    if kind == "ridge":
        return kf.RidgeLearner("exact", **ridge)
    if kind == "fusion":
        parts = kf.FoldingLearner(hold=hold, **folding), kf.RidgeLearner("exact", **ridge)
        return kf.FusionLearner(*parts, weight=1.0, hold=hold)
    return kf.FoldingLearner("distance", hold=hold, **folding)


@pytest.fixture(scope="module")
def conformed(federation):
    """Models of every kind, fitted and conformed once."""
    models = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind, hold in (("folding", "machines"), ("folding", "sites"), ("fusion", "sites"), ("ridge", "machines")):
            models[kind, hold] = kf.conform(learner(kind, hold).fit(federation), federation)
    return models


def held_out(federation):
    return {name: federation.engine.site(name).held_out() for name in SITES}


@pytest.mark.parametrize(
    "kind", [("folding", "machines"), ("folding", "sites"), ("fusion", "sites"), ("ridge", "machines")]
)
def test_histograms_are_those_of_the_rows_kept_aside_scored_by_the_whole_model(federation, conformed, kind):
    model = conformed[kind]
    counts, nearest = np.zeros((4, BINS), dtype=int), np.zeros((3, RATIO_BINS), dtype=int)
    for own in held_out(federation).values():
        likely = model.predict_proba(own.X)
        numbers = np.searchsorted(model.classes_, own.y)
        np.add.at(counts, (numbers, probability_bins(likely[np.arange(len(own.y)), numbers])), 1)
        if kind[0] != "ridge":
            machines = model if kind[0] == "folding" else model.folding
            scores = machines.scores(own.X)
            strange = [row.min() * (row.min() / row.mean()) ** 2 for row in scores]
            np.add.at(nearest, (numbers, ratio_bins(np.array(strange) / machines.temperature_)), 1)
    record = model.conformal_
    assert record.rows == sum(len(own.y) for own in held_out(federation).values())
    np.testing.assert_array_equal(record.counts, counts)
    if kind[0] == "ridge":
        assert record.nearest is None
    else:
        np.testing.assert_array_equal(record.nearest, nearest)
    assert sorted(record.by_site) == list(SITES)


def test_machines_at_sites_or_in_the_model_rows_here_or_masked_sums_say_the_same(federation, conformed):
    whole, at_sites = conformed["folding", "machines"], conformed["folding", "sites"]
    here = kf.conform(whole, holdout={name: (own.X, own.y) for name, own in held_out(federation).items()})
    masked = kf.conform(whole, federation, sum="secure")
    for other in (at_sites, here, masked):
        np.testing.assert_array_equal(other.conformal_.counts, whole.conformal_.counts)
        np.testing.assert_array_equal(other.conformal_.nearest, whole.conformal_.nearest)
        np.testing.assert_allclose(other.conformal_.shares, whole.conformal_.shares, atol=1e-9)
        assert other.conformal_.sites == 4
    assert masked.conformal_.by_site == {}
    with pytest.raises(InputError, match="only the sum over sites"):
        masked.predict_set(np.zeros((1, 4)), conditional="site", site="s0")
    with pytest.raises(InputError, match="leave sum out"):
        kf.conform(at_sites, federation, sum="secure")


@pytest.mark.parametrize("kind", [("folding", "machines"), ("fusion", "sites"), ("ridge", "machines")])
def test_new_rows_are_covered_and_few_get_a_wrong_label(rows, conformed, kind):
    X, y = rows[1]
    model = conformed[kind]
    truth = np.searchsorted(model.classes_, y)
    deviation = np.sqrt(0.09 / 240 + 0.09 / len(y))  # of the rows kept aside, and of the new ones
    for options in ({}, {"conditional": "class"}, {"prior": "uniform"}):
        covered = model.predict_set(X, 0.9, **options)[np.arange(len(y)), truth].mean()
        assert 0.9 - 4 * deviation < covered < 0.9 + 5 * deviation
    labels = model.predict(X, abstain=0.05)
    assert labels.mask.any()
    assert not labels.mask.all()
    assert np.mean((labels.data != y) & ~labels.mask) < 0.05 + 4 * np.sqrt(0.05 * 0.95 * (1 / 240 + 1 / len(y)))
    sure = ~labels.mask
    np.testing.assert_array_equal(labels.data[sure], model.predict(X)[sure])


def test_strangers_are_told_and_the_others_rarely_taken_for_some(rows, conformed):
    model = conformed["folding", "machines"]
    assert (model.p_values(rows[1][0]) <= 0.05).mean() < 0.05 + 4 * np.sqrt(0.05 / 240)
    strangers = rows[1][0][:50] + 30.0
    assert (model.p_values(strangers) == 1 / (1 + model.conformal_.rows)).all()
    assert model.predict(strangers, abstain=0.01).mask.all()
    with pytest.raises(InputError, match="without machines"):
        conformed["ridge", "machines"].p_values(strangers)


def test_files_keep_the_coverage(tmp_path, rows, conformed):
    for name, model in enumerate((conformed["folding", "machines"], conformed["ridge", "machines"])):
        model.save(tmp_path / f"{name}.kfd")
        again = kf.load(tmp_path / f"{name}.kfd")
        np.testing.assert_array_equal(again.predict_set(rows[1][0][:200]), model.predict_set(rows[1][0][:200]))
        assert again.conformal_.missing == {}


def test_a_fusion_keeps_its_coverage_in_a_file_and_connected_again(tmp_path, federation, rows, conformed):
    model = conformed["fusion", "sites"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the stores are temporary
        model.save(tmp_path / "fusion.kfd")
    again = kf.load(tmp_path / "fusion.kfd").connect(federation)
    np.testing.assert_array_equal(again.predict_set(rows[1][0][:50]), model.predict_set(rows[1][0][:50]))
    with pytest.raises(NotConnected):
        kf.conform(kf.load(tmp_path / "fusion.kfd"), federation)


def test_a_temperature_fitted_to_the_same_rows_and_another_prior_change_no_set(federation, rows, conformed):
    model = conformed["folding", "machines"]
    X = rows[1][0][:300]
    calibrated = kf.calibrate(model, federation)
    assert calibrated.calibrated_ is not None
    np.testing.assert_array_equal(calibrated.predict_set(X), model.predict_set(X))
    np.testing.assert_array_equal(kf.conform(calibrated, federation).predict_set(X), model.predict_set(X))
    moved = replace(model, prior={"a": 0.8, "b": 0.1, "c": 0.1})
    np.testing.assert_array_equal(moved.predict_set(X), model.predict_set(X))
    own = softmin(model._moved(model.scores(X), None), model.temperature_)
    np.testing.assert_array_equal(model.conforming(X)[0], own)


def test_a_model_that_changes_states_no_coverage(rows):
    with kf.Federation.local(rows[0], holdout=0.5) as federation:
        model = kf.conform(learner("folding").fit(federation), federation)
        assert model.local("s1").conformal_ is None
        assert model.connect(federation).forget("s1", rows=[0, 1, 2, 3]).conformal_ is None
        with pytest.raises(InputError, match=r"kernfed\.conform"):
            model.forget("s0").predict_set(rows[1][0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fused = kf.conform(learner("fusion", "sites").fit(federation), federation)
        assert fused.conformal_ is not None
        assert fused.forget("s2").conformal_ is None


def test_no_coverage_where_rows_may_not_travel_or_none_are_kept(rows):
    tasks = ("describe", "folding_fit", "scores", "machines", "test_scores:coverage", "test_model:outcomes")
    policies = {site: Policy(tasks=tasks) for site in SITES}
    with kf.Federation.local(rows[0], holdout=0.5, policies=policies) as federation:
        model = learner("folding", "sites").fit(federation)
        with pytest.raises(TooFewReplies, match="held_out_queries"):
            kf.conform(model, federation)
        with pytest.raises(TooFewReplies, match="test_model:coverage"):
            kf.conform(learner("folding").fit(federation), federation)
    with kf.Federation.local(rows[0]) as federation:
        with pytest.raises(InputError, match=r"holdout=0\.2"):
            kf.conform(learner("folding").fit(federation), federation)
        with pytest.raises(InputError, match=r"holdout=0\.2"):
            kf.conform(learner("folding", "sites").fit(federation), federation)


def test_rows_are_scored_by_all_machines_whoever_sends_some(rows):
    silent = Policy(tasks=("describe", "folding_fit", "held_out_queries", "test_scores:coverage"))
    with kf.Federation.local(rows[0], holdout=0.5, policies={"s3": silent}) as federation:
        model = learner("folding", "sites").fit(federation)
        with pytest.raises(TooFewReplies, match="scores"):
            kf.conform(model, federation, min_replies=1)
    shy = Policy(tasks=("describe", "folding_fit", "scores"))
    with kf.Federation.local(rows[0], holdout=0.5, policies={"s3": shy}) as federation:
        model = kf.conform(learner("folding", "sites").fit(federation), federation, min_replies=1)
        assert list(model.conformal_.missing) == ["s3"]
        assert model.conformal_.sites == 3


def test_what_has_no_sets_is_refused(rows, conformed):
    values = {site: (X, X[:, 0]) for site, (X, _) in rows[0].items()}
    with kf.Federation.local(values, holdout=0.2) as other:
        regressor = kf.RidgeLearner("exact", features="given", regularization=1e-3, task="regress").fit(other)
        with pytest.raises(InputError, match="that classifies"):
            kf.conform(regressor, other)
    model = conformed["folding", "sites"]
    with pytest.raises(InputError, match="leave one out"):
        model.predict(rows[1][0][:2], abstain=0.1, secure="plain")
    with pytest.raises(InputError, match="abstain"):
        model.predict(rows[1][0][:2], abstain=1.0)
    with pytest.raises(InputError, match="holdout"):
        kf.conform(model)
    labels = {"s0": (rows[1][0][:5], np.array(["x", "y", "x", "y", "x"]))}
    with pytest.raises(InputError, match="knows none of the labels"):
        kf.conform(model, holdout=labels)


def test_counts_that_cannot_be_are_refused():
    counts, nearest = np.zeros((4, BINS), dtype=np.int64), np.zeros((3, RATIO_BINS), dtype=np.int64)
    counts[0, 5], nearest[0, 7] = 10, 10
    rest = {"shares": np.zeros(BINS), "sites": np.asarray(1.0)}

    def check(counts, nearest):
        Coverage(3).check({"counts": counts, "nearest": nearest, **rest}, np.zeros((10, 4)))

    check(counts, nearest)
    stranger, other_rows, twice = counts.copy(), nearest.copy(), 2 * counts
    stranger[-1, 3] = 1
    other_rows[0, 7], other_rows[1, 7] = 9, 1
    wrong = [(stranger, nearest), (counts, other_rows), (twice, 2 * nearest), (-counts, nearest), (counts[:3], nearest)]
    wrong += [(counts.astype(float), nearest), (counts, nearest[:, 1:]), (counts + 2**42, nearest)]
    for bad_counts, bad_nearest in wrong:
        with pytest.raises(InputError):
            check(bad_counts, bad_nearest)


def test_a_site_that_claims_most_rows_is_missing(federation, conformed, monkeypatch):
    honest, asked = Coverage.sums, []

    def sums(statistic, scores, labels):
        asked.append(len(asked))
        found = honest(statistic, scores, labels)
        many = {name: found[name] * 1000 for name in ("counts", "nearest")}
        return {**found, **many} if len(asked) == 1 else found

    monkeypatch.setattr(Coverage, "sums", sums)
    model = kf.conform(conformed["folding", "machines"], federation, min_replies=3)
    (missing,) = model.conformal_.missing
    assert model.conformal_.rows == sum(len(own.y) for name, own in held_out(federation).items() if name != missing)

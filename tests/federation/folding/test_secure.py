"""Encrypted answers of a federation are the answers in clear, up to rounding of the scores."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

import kernfed as kf
from kernfed.errors import MissingSites, NotConnected, StaleModel, TooFewReplies
from kernfed.federation import Fault, Policy
from kernfed.secure import classify


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    parts = kf.data.partition_dirichlet(y[:900], 10, 0.5, 0)
    return {f"site-{i}": (X[p] / 16, y[p]) for i, p in enumerate(parts)}, X[900:1100] / 16


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["plain", "bfv"])
def test_ten_sites_and_200_encrypted_queries(digits, scheme):
    if scheme == "bfv":
        pytest.importorskip("tenseal", reason="extra [fhe] not installed")
    sites, queries = digits
    with kf.Federation.local(sites) as federation:
        model = kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        found = model.predict(queries, secure=scheme)
        rounded = model.classes_[classify(model.scores_by_site(queries), scheme="plain", bits=8)]
        exact = model.predict(queries)
        information = {entry.task: entry.information for entry in federation.traffic}
    assert (found == rounded).all()
    assert (found == exact).mean() >= 0.98
    assert information["secure_scores"] == "encrypted"


def test_what_cannot_be_encrypted_is_refused_before_anything_is_asked(digits):
    sites, queries = digits
    with kf.Federation.local(sites) as federation:
        model = kf.FoldingLearner(measure="distance", batch_size=100, partition="order", scale=None).fit(federation)
        asked = federation.traffic.bytes_down
        with pytest.raises(ValueError, match="has no upper bound"):
            model.predict(queries, secure="plain")
        robust = kf.FoldingLearner(aggregate="kth", measure="rms", batch_size=100, partition="order", scale=None).fit(
            federation
        )
        with pytest.raises(ValueError, match="aggregate='min'"):
            robust.predict(queries, secure="plain")
        with pytest.raises(ValueError, match="scheme must be one of"):
            kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation).predict(
                queries, secure="rot13"
            )
        assert "secure_scores" not in {entry.task for entry in federation.traffic}
        assert asked > 0


def test_missing_sites_policies_and_stale_models(digits):
    sites, queries = digits
    with kf.Federation.local(sites) as federation:
        model = kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        federation.engine.faults["site-3"] = Fault("dead")
        with pytest.raises(TooFewReplies, match="site-3"):
            model.predict(queries, secure="plain")
        with pytest.warns(MissingSites, match="'site-3': site 'site-3' cannot be reached"):
            assert len(model.predict(queries, secure="plain", min_replies=9)) == len(queries)
        federation.engine.faults.clear()
        newer = model.forget("site-1", rows=[0])
        with pytest.raises(StaleModel):
            model.predict(queries, secure="plain")
        assert len(newer.predict(queries, secure="plain")) == len(queries)
    policies = {"site-0": Policy(tasks=("describe", "folding_fit", "scores"))}
    with kf.Federation.local(sites, policies=policies) as federation:
        model = kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        with pytest.raises(TooFewReplies, match="not 'secure_scores'"):
            model.predict(queries, secure="plain")


def test_a_model_of_machines_has_nobody_to_ask(digits):
    sites, queries = digits
    with kf.Federation.local(sites) as federation:
        model = kf.FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None).fit(
            federation
        )
    with pytest.raises(NotConnected):
        model.predict(queries, secure="plain")


def test_sixteen_bits_round_less(digits):
    sites, queries = digits
    with kf.Federation.local(sites) as federation:
        model = kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        assert (model.predict(queries, secure="plain", bits=16) == model.predict(queries)).all()
        assert np.mean(model.predict(queries, secure="plain", bits=8) == model.predict(queries)) >= 0.98


def test_a_site_that_allows_encrypted_scores_only_does_not_send_them_readable(digits):
    sites, queries = digits
    tasks = ("describe", "folding_fit", "secure_scores")
    with kf.Federation.local(sites, policies={"site-0": Policy(tasks=tasks)}) as federation:
        model = kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        with pytest.raises(TooFewReplies, match="does not let scores leave, and the scheme 'plain' would show them"):
            model.predict(queries, secure="plain")


def test_schemes_and_keys_that_the_policy_does_not_name_are_refused(digits):
    sites, queries = digits
    policies = {"site-0": Policy(("*",), schemes=("bfv",)), "site-1": Policy(("*",), keys=("0" * 64,))}
    with kf.Federation.local(sites, policies=policies) as federation:
        model = kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        with pytest.raises(
            TooFewReplies, match=r"'site-0': .*encrypts by bfv, not by 'plain'.*'site-1': .*not know the key"
        ):
            model.predict(queries, secure="plain")

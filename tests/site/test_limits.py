"""Work and memory at a site are bounded: what is too large is refused before it starts, and in a moment."""

import time
from typing import Any

import numpy as np
import pytest

import kernfed as kf
from kernfed.errors import InputError, TooFewReplies
from kernfed.federation import Federation, FoldingLearner, Payload, Policy
from kernfed.federation.folding.machines import folding_handle
from kernfed.kahm.model import FoldingParameters
from kernfed.personal.statistics import Problem
from kernfed.personal.weights import EmbeddingKernel
from kernfed.ridge.model import RidgeModel
from kernfed.ridge.parameters import RidgeParameters
from kernfed.site import site as site_module
from kernfed.site.protocol import message
from kernfed.site.protocol.message import Question, decode_reply, encode_question
from kernfed.site.site import Site
from kernfed.testing.exchange import model_question
from kernfed.testing.statistics import Errors, Outcomes
from oracles.ridge_sites import class_sites

SECONDS = 5.0


def refusal(federation: Federation, task: str, payload: Payload) -> Any:
    """What "s0" refuses, in a moment, with its lock free afterwards."""
    started = time.monotonic()
    refused = federation.ask(task, payload, sites=["s0"], min_replies=0).missing.get("s0")
    assert time.monotonic() - started < SECONDS
    assert len(federation.ask("describe", Payload(), sites=["s0"])) == 1
    return refused


@pytest.fixture
def federation() -> Federation:
    return Federation.local(class_sites(), seed=7, holdout=0.2)


def of_problem(**changes: Any) -> Payload:
    parameters = RidgeParameters(width=6, classes=(0, 1, 2), **changes)
    return Payload(values={"parameters": parameters.to_values(), "mass": 1e9})


@pytest.mark.parametrize("task", ["ridge_start", "ridge_moments", "ridge_means", "ridge_validate"])
@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"n_components": 2_000_000}, "max_features = 20,000"),
        ({"n_components": 20_001}, "max_features = 20,000"),
        ({"n_components": 20_000, "regularization": tuple(np.linspace(0, 1, 10_000))}, "max_numbers"),
    ],
)
def test_ridge_too_many_features(federation: Federation, task: str, changes: Any, limit: str) -> None:
    found = refusal(federation, task, of_problem(**changes))
    assert found.code == "limit"
    assert limit in found.reason


def test_ridge_a_matrix_of_20000_features_is_too_large(federation: Federation) -> None:
    found = refusal(federation, "ridge_moments", of_problem(n_components=20_000))
    assert (found.code, "max_numbers = 500,000,000" in found.reason) == ("limit", True)


@pytest.mark.parametrize(
    ("task", "values", "limit"),
    [
        ("personal_statistics", {"problem": {"features": "fourier", "n_components": 2_000_000}}, "max_features"),
        ("personal_statistics", {"kernel": {"n_components": 10**9}}, "max_features"),
        ("personal_forms", {"kernel": {"n_components": 10**9}}, "max_features"),
        ("personal_gradient", {"kind": "network", "hidden": [10**9]}, "max_features"),
        ("personal_gradient", {"kind": "network", "hidden": [4] * 110_000}, "max_steps"),
        ("personal_gradient", {"kind": "network", "hidden": [20_000, 20_000, 20_000]}, "max_numbers"),
    ],
)
def test_personal_work_is_bounded(federation: Federation, task: str, values: Any, limit: str) -> None:
    problem = {**Problem(6, "classify", (0, 1, 2)).to_values(), **values.get("problem", {})}
    kernel = {**EmbeddingKernel(6, 3).to_values(), **values.get("kernel", {})}
    whole = {"statistics": True, "intercept": True, "halves": False, "regularization": 0.0}
    whole |= {**values, "problem": problem, "kernel": kernel}
    found = refusal(federation, task, Payload({"means": np.zeros((1, 2)), "parameters": np.zeros((1, 9))}, whole))
    assert (found.code, limit in found.reason) == ("limit", True)


def test_folding_layers_are_bounded(federation: Federation) -> None:
    parameters = FoldingParameters(layers=10**9, measure="rms", batch_size=100, partition="order")
    handle = folding_handle(parameters, None)
    values = {"handle": handle, "parameters": parameters.to_values(), "privacy": None}
    found = refusal(federation, "folding_fit", Payload(values=values))
    assert (found.code, "max_steps" in found.reason) == ("limit", True)


def test_folding_machines_of_too_many_rows_are_refused() -> None:
    policies = {"s0": Policy(tasks=("*",), max_numbers=1000)}
    with Federation.local(class_sites(), policies=policies) as federation:
        with pytest.raises(TooFewReplies, match="'s0': the policy of site 's0' allows max_numbers = 1,000"):
            FoldingLearner(batch_size=10**9, measure="rms", partition="order", scale=None).fit(federation)
        assert "s0" in FoldingLearner(batch_size=10, measure="rms", partition="order", scale=None).fit(federation).sites


@pytest.mark.parametrize("statistic", [Outcomes(3), Errors()])
def test_models_in_questions_are_bounded(statistic: Outcomes | Errors) -> None:
    """A model of many features, and one of more numbers than the site holds at once."""
    wide = RidgeParameters(width=6, n_components=30_000, classes=(0, 1, 2))
    question = model_question(RidgeModel(wide, np.zeros((30_000, 3)), "exact"), statistic)
    policy = Policy(tasks=("*",), max_numbers=50_000)
    with Federation.local(class_sites(), policies={"s0": Policy.open(), "s1": policy}, holdout=0.3) as federation:
        found = refusal(federation, "test_model", question)
        assert (found.code, "max_features" in found.reason) == ("limit", True)
        small = federation.ask("test_model", question, sites=["s1"], min_replies=0).missing["s1"]
        assert (small.code, "max_numbers" in small.reason) == ("limit", True)


def test_machines_in_questions_are_bounded() -> None:
    policies = {"s0": Policy(tasks=("*",), max_numbers=1000)}
    with Federation.local(class_sites(), policies=policies, holdout=0.3) as federation:
        model = FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None).fit(
            federation
        )
        found = kf.evaluate(model, federation, min_replies=1)
    assert list(found.missing) == ["s0"]
    assert "max_numbers = 1,000" in found.missing["s0"]


# Memory -------------------------------------------------------------------------------------------------------------


def asked(site: Site, task: str, payload: Payload | None = None) -> Any:
    question = Question("run", "q", task, payload or Payload())
    return decode_reply(site.answer(encode_question(question)), question, site.name)


@pytest.mark.parametrize("error", [MemoryError(), RecursionError("deep"), OverflowError("large")])
@pytest.mark.parametrize("place", ["decode_question", "find", "encode_reply", "rows"])
def test_no_error_leaves_a_site(monkeypatch: Any, place: str, error: Exception) -> None:
    site = Site("s0", *class_sites()["s0"], policy=Policy.open())
    calls = 0

    def fail(*_: Any, **__: Any) -> Any:
        nonlocal calls
        calls += 1
        raise error

    def fail_once(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise error
        return message.encode_reply(*args, **options)

    if place == "decode_question":
        monkeypatch.setattr(site_module, "decode_question", fail)
    elif place == "find":
        monkeypatch.setattr(site_module, "check_policy", fail)
    elif place == "encode_reply":
        monkeypatch.setattr(site_module, "encode_reply", fail_once)
    else:
        monkeypatch.setattr(site.data, "learning", fail)
    refused = asked(site, "describe").refusal
    assert calls >= 1
    assert refused is not None
    monkeypatch.undo()
    assert asked(site, "describe").refusal is None  # and its lock is free


def test_a_policy_has_limits() -> None:
    for name in ("max_features", "max_steps", "max_numbers"):
        with pytest.raises((InputError, ValueError), match=name):
            Policy(**{name: 0})

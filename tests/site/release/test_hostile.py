"""Questions whose parameters would make some rows overflow: refused before a row is seen, or answered for every row."""

from typing import Any

import numpy as np
import pytest

from kernfed.errors import InputError
from kernfed.federation import Federation, Policy
from kernfed.kernels.features import FourierFeatures
from kernfed.personal.statistics import Problem
from kernfed.personal.weights import EmbeddingKernel
from kernfed.privacy import RecordEmbedding, RecordGaussian, RecordMoments, RecordRidge
from kernfed.privacy.limits import check_basis
from kernfed.privacy.values import mechanism_from_values, mechanism_to_values
from kernfed.ridge.parameters import RidgeParameters
from kernfed.site.protocol.message import Payload
from kernfed.site.release.books import charges

WIDTH, N = 3, 12
#: Largest values of the first row: none may be told from another by whether a question is answered.
SIZES = (0.0, 1.0, 1e10, 1e154, 1e300, np.finfo(np.float64).max)
SCALES = (5e-324, 1e-300, 1e-31, 1e-30, 1e-6, 1.0, 1e30, 1e31, 1e300)


@pytest.mark.parametrize("entry", [1e308, 1e155, 1e10, 1.1, np.nan, np.inf])
def test_a_basis_has_no_huge_entries(entry: float) -> None:
    """With 1e308 the products were infinite, their difference NaN, and NaN > 1e-6 is False: it passed the check."""
    huge = np.where(np.eye(WIDTH)[:, :2] > 0, entry, 0.0)
    with np.errstate(all="raise"), pytest.raises(InputError, match="basis must"):
        check_basis(huge)
    mixed = np.eye(WIDTH)[:, :2]
    mixed[2, 0], mixed[1, 0] = entry, -entry
    for kind in (lambda b: RecordGaussian(1.0, 1e-5, 1.0, b), lambda b: RecordMoments(1.0, 1e-5, 2, 1.0, basis=b)):
        for basis in (huge, mixed):
            with np.errstate(all="ignore"), pytest.raises(InputError, match="basis must"):
                kind(basis)
    values = mechanism_to_values(RecordGaussian(1.0, 1e-5, 1.0, np.eye(WIDTH)[:, :2]))
    with np.errstate(all="ignore"), pytest.raises(InputError, match="basis must"):
        mechanism_from_values({**values, "projection": huge.tolist()})


def sites(labels: str) -> Federation:
    """Sites that differ in how large one row is, and in nothing else that is public."""
    data = {}
    for number, size in enumerate(SIZES):
        X = np.random.default_rng(0).standard_normal((N, WIDTH))
        X[0] = size
        y = np.arange(N) % 2 if labels == "classes" else np.linspace(-1, 1, N) * size
        data[f"s{number}"] = (X, y)
    policy = Policy(("*",), max_record_epsilon=90.0, labels=labels)
    return Federation.local(data, policies=dict.fromkeys(data, policy))


def outcomes(federation: Federation, task: str, question: dict[str, Any]) -> list[Any]:
    """For each site whether it answers and in which words, how much, and how often it was charged."""
    replies = federation.ask(task, Payload(values=question), min_replies=0)
    told = []
    for site in federation.sites:
        if site in replies.missing:
            refusal = replies.missing[site]
            told.append((refusal.code, refusal.reason.replace(site, "?"), charges(federation.engine.site(site))))  # type: ignore[attr-defined]
        else:
            arrays = replies[site].arrays
            assert all(np.isfinite(array).all() for array in arrays.values())
            told.append(("answered", {name: a.shape for name, a in arrays.items()}))
    return told


@pytest.mark.parametrize("labels", ["classes", "targets"])
def test_whether_ridge_sums_are_released_tells_nothing_of_rows(labels: str) -> None:
    classes = (0, 1) if labels == "classes" else ()
    task = "classify" if classes else "regress"
    with sites(labels) as federation:
        for scale in SCALES:
            for features, radius in (("fourier", 1.0), ("given", scale)):
                bandwidth = scale if features == "fourier" else 1.0
                try:
                    parameters = RidgeParameters(
                        WIDTH, features, n_components=6, bandwidth=bandwidth, task=task, classes=classes
                    )
                except InputError:
                    continue
                mechanism = {**mechanism_to_values(RecordRidge(1.0, 1e-5, 1.0, 1.0)), "radius": radius}
                question = {"parameters": parameters.to_values(), "privacy": mechanism}
                told = outcomes(federation, "ridge_release", question)
                assert all(one == told[0] for one in told), (features, scale, told)
                assert (told[0][0] == "answered") == (1e-30 <= scale <= 1e30), (features, scale, told[0])


@pytest.mark.parametrize("scale", SCALES)
def test_whether_embeddings_are_released_tells_nothing_of_rows(scale: float) -> None:
    good = RecordEmbedding(1.0, 1e-5, FourierFeatures(WIDTH, 6, 1.0, kind="paired"))
    values = mechanism_to_values(good)
    tiny = {**values, "features": {**values["features"], "bandwidth": scale}}
    problem = Problem(WIDTH).to_values()
    with sites("targets") as federation:
        for mechanism, kernel in (
            (values, EmbeddingKernel(WIDTH, 1, columns="features", bandwidth=scale)),
            (tiny, EmbeddingKernel(WIDTH, 1, columns="features")),
        ):
            question = {"problem": problem, "kernel": kernel.to_values(), "privacy": mechanism}
            told = outcomes(federation, "personal_release", question)
            assert all(one == told[0] for one in told), told
            assert (told[0][0] == "answered") == (1e-30 <= scale <= 1e30), told[0]


def test_targets_are_not_asked_whether_they_are_classes() -> None:
    """Whether all targets are among some classes told of each of them; the policy answers before anything is read."""
    with sites("targets") as federation:
        mechanism = mechanism_to_values(RecordRidge(1.0, 1e-5, 1.0, 1.0))
        told = []
        for classes in ((0.0, 1.0), tuple(sorted({*np.linspace(-1, 1, N).tolist(), 0.0, 1.0}))):
            parameters = RidgeParameters(WIDTH, "given", classes=classes)
            question = {"parameters": parameters.to_values(), "privacy": mechanism}
            told += outcomes(federation, "ridge_release", question)
        assert all(one == told[0] for one in told)
        assert told[0][0] == "policy"
        assert told[0][2] == 0

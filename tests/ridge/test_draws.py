"""Frequencies of a model's features are drawn once, however often it predicts."""

import copy
import pickle

import numpy as np
import pytest

import kernfed as kf
from kernfed.files import load
from kernfed.kernels import features as fourier
from kernfed.personal.statistics import Problem
from kernfed.personal.weights import EmbeddingKernel
from kernfed.ridge import RidgeModel, RidgeParameters
from oracles.federation import sites_data


@pytest.fixture
def draws(monkeypatch):
    """One entry for every matrix of frequencies drawn."""
    drawn, generator = [], fourier.generator

    def counted(seed, *path):
        drawn.extend([seed] if "frequencies" in path else [])
        return generator(seed, *path)

    monkeypatch.setattr(fourier, "generator", counted)
    return drawn


@pytest.fixture
def classifier(rng):
    parameters = RidgeParameters(3, n_components=8, bandwidth=2.0, seed=4, classes=("a", "b"))
    return RidgeModel(parameters, rng.standard_normal((8, 2)), "exact")


def test_predictions_of_a_head_draw_once(rng, classifier, draws):
    X = rng.standard_normal((5, 3))
    first = classifier.decision_function(X)
    np.testing.assert_array_equal(classifier.decision_function(X), first)
    classifier.predict(X)
    assert len(draws) == 1


def test_predictions_of_a_loaded_head_draw_once(rng, classifier, draws, tmp_path):
    classifier.save(tmp_path / "model.kfd")
    model = load(tmp_path / "model.kfd")
    for _ in range(3):
        model.predict(rng.standard_normal((5, 3)))
    assert len(draws) == 1


def test_queries_of_a_fusion_draw_once(rng, draws):
    learner = kf.FusionLearner(ridge=kf.RidgeLearner(n_components=20, bandwidth=2.0, regularization=1e-3))
    with kf.Federation.local(sites_data(rng, "ab", rows=30)) as federation:
        model = learner.fit(federation)
        draws.clear()
        for _ in range(3):
            model.answer(rng.standard_normal((4, 5)))
    assert len(draws) <= 1


def test_sites_of_a_personal_problem_share_one_draw(rng, draws):
    problem = Problem(3, features="fourier", n_components=8)
    for _ in range(3):
        problem.transform(rng.standard_normal((4, 3)))
    assert len(draws) == 1
    kernel = EmbeddingKernel(3, 1, n_components=8)
    for _ in range(3):
        kernel.embed(rng.standard_normal((4, 3)), rng.standard_normal((4, 1)))
    assert len(draws) == 2


def test_drawn_frequencies_change_neither_equality_nor_what_is_written(rng, classifier):
    parameters = classifier.parameters
    fresh = RidgeParameters.from_values(parameters.to_values())
    before = len(pickle.dumps(parameters)), hash(parameters), parameters.to_values()
    classifier.predict(rng.standard_normal((5, 3)))
    assert (parameters, hash(parameters), parameters.to_values()) == (fresh, *before[1:])
    assert len(pickle.dumps(parameters)) < before[0] + 500  # of the map its six settings
    for copied in (pickle.loads(pickle.dumps(parameters)), copy.deepcopy(parameters)):
        assert copied == parameters
        found, expected = copied.feature_map().frequencies, parameters.feature_map().frequencies
        np.testing.assert_array_equal(found, expected)

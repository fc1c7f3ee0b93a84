"""Pooled classifiers: tuned on training rows, fitted on all."""

from dataclasses import replace

import numpy as np
import pytest

from kernfed_papers.baselines import anchors
from kernfed_papers.baselines.anchors import Anchors, _squared_distances, _support_vectors
from kernfed_papers.one_round.sets import even_rows


@pytest.fixture(scope="module")
def cancer():
    return Anchors(even_rows("breast_cancer", 426))


@pytest.mark.parametrize(("method", "grid"), [("neighbours", "k in 1"), ("support_vectors", "gamma in")])
def test_anchors_know_breast_cancer(cancer, method, grid):
    predicted, note = getattr(cancer, method)()
    assert (predicted == cancer.data.y_test).mean() > 0.93
    assert grid in note


def test_logit_adjustment_answers_the_rare_class_more_often(cancer):
    plain, adjusted, note = cancer.logistic()
    rare = np.bincount(cancer.data.y_train).argmin()
    assert (plain == cancer.data.y_test).mean() > 0.93
    assert (adjusted == rare).sum() >= (plain == rare).sum()
    assert ((adjusted == rare) | (adjusted == plain)).all()
    assert "C in " in note


def test_the_adjustment_changes_nothing_where_classes_are_as_frequent(cancer):
    rows = np.concatenate([np.flatnonzero(cancer.data.y_train == label)[:150] for label in (0, 1)])
    even = replace(cancer.data, x_train=cancer.data.x_train[rows], y_train=cancer.data.y_train[rows])
    plain, adjusted, _ = Anchors(even).logistic()
    assert plain.tolist() == adjusted.tolist()


def test_trees_are_tuned(cancer, monkeypatch):
    monkeypatch.setattr(anchors, "_TREES", 20)
    monkeypatch.setattr(anchors, "_TREES_TUNING", 5)
    predicted, note = cancer.forest(0)
    assert (predicted == cancer.data.y_test).mean() > 0.9
    assert "columns in " in note
    assert (cancer.forest(1)[0] != predicted).any() or "columns = 30" in note


def test_boosting_is_looked_at_on_the_way(cancer):
    x, y, queries = cancer.data.x_train, cancer.data.y_train, cancer.data.x_test
    few, many = anchors._boosted(x, y, queries, [(0.1, 2.0), (0.1, 12.0)])
    alone = next(iter(anchors._boosted(x, y, queries, [(0.1, 2.0)])))
    assert few.tolist() == alone.tolist()
    assert (few != many).any()


def test_a_kernel_computed_once_gives_the_same_support_vectors(cancer, monkeypatch):
    rows = cancer.data.x_train, cancer.data.y_train, cancer.data.x_test
    usual = next(iter(_support_vectors(*rows, [(10.0, 2.0)])))
    monkeypatch.setattr(anchors, "_WIDE", 2)
    assert next(iter(_support_vectors(*rows, [(10.0, 2.0)]))).tolist() == usual.tolist()


def test_squared_distances(rng):
    left, right = rng.standard_normal((5, 3)), rng.standard_normal((7, 3))
    expected = ((left[:, None] - right) ** 2).sum(axis=2)
    np.testing.assert_allclose(_squared_distances(left, right), expected, atol=1e-12)

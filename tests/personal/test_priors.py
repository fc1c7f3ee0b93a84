"""Priors of personal models: every site's predictor moves by the shares of all sites' rows."""

from dataclasses import replace

import numpy as np
import pytest

import kernfed as kf
from kernfed.errors import InputError
from kernfed.federation import Federation, PersonalLearner


def test_a_site_predicts_for_other_shares(rng, tmp_path):
    y = np.where(rng.random(400) < 0.15, 1, 0)
    X = rng.standard_normal((400, 2)) + 1.2 * y[:, None]
    sites = {f"s{i}": (X[i::2], y[i::2]) for i in range(2)}
    with Federation.local(sites) as federation:
        personal = PersonalLearner(task="classify").fit(federation)
    own = personal.for_site("s0")
    np.testing.assert_array_equal(own.predict(X), own.predict(X, prior="training"))
    plain, uniform = own.predict_proba(X), own.predict_proba(X, prior="uniform")
    share = y.mean()
    moved = plain * [0.5 / (1 - share), 0.5 / share]
    np.testing.assert_allclose(uniform, moved / moved.sum(axis=1, keepdims=True), atol=1e-9)
    np.testing.assert_array_equal(own.predict(X, prior="uniform"), uniform.argmax(axis=1))
    replace(personal, prior="uniform").save(tmp_path / "personal.kfd")
    again = kf.load(tmp_path / "personal.kfd")
    np.testing.assert_array_equal(again.for_site("s0").predict(X), own.predict(X, prior="uniform"))


def test_without_an_intercept_the_shares_are_not_known(rng):
    X, y = rng.standard_normal((60, 2)), rng.integers(0, 2, 60)
    with Federation.local({"a": (X[::2], y[::2]), "b": (X[1::2], y[1::2])}) as federation:
        model = PersonalLearner(task="classify", fit_intercept=False).fit(federation).for_site("a")
    model.predict(X)
    with pytest.raises(InputError, match="personal ones without an intercept do not hold them"):
        model.predict(X, prior="uniform")

"""Priors of machines: the folding model and the classifier move their scores by the logarithm of shares."""

import numpy as np
import pytest

import kernfed as kf
from kernfed.errors import InputError
from kernfed.federation import Federation, FoldingLearner

SETTINGS = {"measure": "distance", "batch_size": 20, "partition": "order"}


def rows_of(rng, counts=(90, 30)):
    y = np.repeat(["a", "b"], counts)
    return rng.standard_normal((len(y), 3)) + 0.8 * (y == "b")[:, None], y


@pytest.mark.parametrize("hold", ["sites", "machines"])
def test_a_folding_model_moves_by_the_shares_of_all_sites(rng, hold, tmp_path):
    X, y = rows_of(rng)
    sites = {"north": (X[::2], y[::2]), "south": (X[1::2], y[1::2])}
    with Federation.local(sites, store=tmp_path / "store") as federation:
        model = FoldingLearner(**SETTINGS, hold=hold).fit(federation)
        scores, T = model.scores(X), model.temperature_
        np.testing.assert_array_equal(model.predict(X), model.predict(X, prior="training"))
        moved = scores - T * np.log([0.5 / 0.75, 0.5 / 0.25])
        uniform = model.answer(X, prior="uniform")
        np.testing.assert_allclose(uniform.scores, moved, rtol=1e-12)
        np.testing.assert_array_equal(uniform.labels, model.classes_[moved.argmin(axis=1)])
        np.testing.assert_allclose(model.predict_proba(X, prior="uniform"), uniform.probabilities)
        assert (uniform.labels == "b").sum() > (model.predict(X) == "b").sum()
        if hold == "sites":
            with pytest.raises(InputError, match="encrypted scores are compared as they are"):
                model.predict(X[:2], secure="plain", prior="uniform")
        model.save(tmp_path / "model.kfd")
        again = kf.load(tmp_path / "model.kfd")
        assert again.members_ == model.members_
        assert again.prior == "training"
        fewer = model.connect(federation).forget("north", [0])
        assert (model.members_["north"].counts, fewer.members_["north"].counts) == ((45, 15), (44, 15))


def test_a_prior_is_stored(rng, tmp_path):
    X, y = rows_of(rng)
    classifier = kf.KAHMClassifier(**SETTINGS, prior={"a": 1.0, "b": 3.0}).fit(X, y)
    scores, T = classifier.scores(X), classifier.temperature_
    moved = scores - T * np.log([0.25 / 0.75, 0.75 / 0.25])
    np.testing.assert_array_equal(classifier.predict(X), classifier.classes_[moved.argmin(axis=1)])
    np.testing.assert_array_equal(classifier.predict(X, prior="training"), classifier.classes_[scores.argmin(axis=1)])
    classifier.save(tmp_path / "classifier.kfd")
    again = kf.load(tmp_path / "classifier.kfd")
    assert again.prior == {"a": 0.25, "b": 0.75}
    np.testing.assert_array_equal(again.predict_proba(X), classifier.predict_proba(X))
    with pytest.raises(InputError, match="got none for 'b'"):
        classifier.predict(X, prior={"a": 1.0})

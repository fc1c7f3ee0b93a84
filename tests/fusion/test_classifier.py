"""The fusion of one site, as scikit-learn knows estimators."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.utils.estimator_checks import check_estimator

import kernfed as kf
from kernfed.errors import InputError


@pytest.fixture(scope="module")
def wine() -> tuple[np.ndarray, ...]:
    X, y = load_wine(return_X_y=True)
    return tuple(train_test_split(X, np.array(["red", "white", "rose"])[y], test_size=0.4, random_state=0))


def test_raw_columns_are_learned_from(wine: tuple[np.ndarray, ...], tmp_path: Path) -> None:
    X, T, y, u = wine
    model = kf.FusionClassifier(n_components=200).fit(X, y)
    assert model.score(T, u) >= 0.93  # raw nearest neighbours have about 0.7
    np.testing.assert_allclose(model.predict_proba(T).sum(axis=1), 1)
    assert (model.predict(T) == model.classes_[model.scores(T).argmin(axis=1)]).all()
    model.save(tmp_path / "model.kfd")
    np.testing.assert_array_equal(kf.load(tmp_path / "model.kfd").predict_proba(T), model.predict_proba(T))


def test_the_unit_of_rows_does_not_matter(wine: tuple[np.ndarray, ...]) -> None:
    X, T, y, _ = wine
    labels = [kf.FusionClassifier(n_components=200).fit(s * X, y).predict(s * T) for s in (1.0, 1e-6, 1e6)]
    np.testing.assert_array_equal(labels[1], labels[0])
    np.testing.assert_array_equal(labels[2], labels[0])


def test_a_uniform_prior_moves_labels_towards_the_rare_class(rng: np.random.Generator) -> None:
    y = np.array([0] * 95 + [1] * 5)
    X = rng.standard_normal((100, 2)) + 1.2 * y[:, None]
    model = kf.FusionClassifier(n_components=50).fit(X, y)
    T = rng.standard_normal((200, 2)) + 0.6
    assert (model.predict(T, prior="uniform") == 1).sum() > (model.predict(T) == 1).sum()
    with pytest.raises(InputError, match="prior"):
        model.predict(T, prior="other")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_finds_nothing_wrong() -> None:
    check_estimator(kf.FusionClassifier(n_components=20))

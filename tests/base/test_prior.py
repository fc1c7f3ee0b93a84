"""Shares of classes that differ between training and use, against Bayes."""

import numpy as np
import pytest

from kernfed.base.prior import (
    adjusted_scores,
    check_prior,
    log_ratio,
    prior_from_values,
    prior_to_values,
    weighted_shares,
)
from kernfed.errors import InputError

CLASSES = np.array(["a", "b", "c"])


def test_moved_scores_are_those_of_bayes(rng):
    """Three Gaussians: log posteriors for one set of shares become those for another."""
    means, x = np.array([-1.0, 0.0, 2.0]), rng.standard_normal(50)
    likelihood = np.exp(-((x[:, None] - means) ** 2) / 2)
    made, wanted = np.array([0.7, 0.2, 0.1]), {"a": 1.0, "b": 2.0, "c": 5.0}
    temperature = 0.3
    scores = -temperature * np.log(likelihood * made)
    shift = log_ratio(check_prior(wanted, CLASSES), CLASSES, made=made, training=made)
    moved = np.exp(-adjusted_scores(scores, temperature, shift) / temperature)
    posterior = likelihood * np.array([1.0, 2.0, 5.0])
    np.testing.assert_allclose(
        moved / moved.sum(axis=1, keepdims=True), posterior / posterior.sum(axis=1, keepdims=True), rtol=1e-12
    )


def test_words_and_weights():
    training = weighted_shares([80, 10, 10])
    assert log_ratio("training", CLASSES, made=training, training=training) is None
    assert log_ratio(None, CLASSES, made=None, training=None) is None
    assert log_ratio("training", CLASSES, made=None, training=None) is None
    balanced = weighted_shares([80, 10, 10], [0.125, 1.0, 1.0])
    np.testing.assert_allclose(balanced, 1 / 3)
    assert log_ratio("uniform", CLASSES, made=balanced, training=training) is None
    np.testing.assert_allclose(
        log_ratio("training", CLASSES, made=balanced, training=training), np.log(np.array([2.4, 0.3, 0.3]))
    )
    np.testing.assert_allclose(log_ratio("uniform", CLASSES, made=training, training=training), -np.log(training * 3))


def test_a_class_that_does_not_occur_is_not_predicted():
    shares = np.full(3, 1 / 3)
    shift = log_ratio(check_prior({"a": 0, "b": 1, "c": 1}, CLASSES), CLASSES, made=shares, training=shares)
    assert adjusted_scores(np.array([[-9.0, 0.0, 1.0]]), 1.0, shift).argmin() == 1


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ("even", "prior must be 'training', 'uniform' or a share for every class, got 'even'"),
        ([0.5, 0.5], "prior must be 'training'"),
        ({"a": 0.5, "b": 0.5}, "got none for 'c'"),
        ({"a": 0.5, "b": 0.3, "c": 0.1, "d": 0.1}, "one for 'd', which is no class"),
        ({"a": -1.0, "b": 1.0, "c": 1.0}, r"prior\['a'\] must be >= 0"),
        ({"a": 0, "b": 0, "c": 0}, "above 0 for some class"),
    ],
)
def test_what_is_no_prior_is_refused(prior, message):
    with pytest.raises(InputError, match=message):
        check_prior(prior, CLASSES)


def test_shares_that_nobody_knows_are_said():
    with pytest.raises(InputError, match=r"files of version 0\.1, models of released rows .* do not hold them"):
        log_ratio("uniform", CLASSES, made=None, training=None)


def test_labels_are_those_of_the_file():
    numbers = np.array([1, 2])
    for prior in ("training", "uniform", None, {1: 0.25, 2: 0.75}):
        assert prior_from_values(prior_to_values(prior, numbers), numbers) == prior
    with pytest.raises(InputError, match="one share for each of 2 classes"):
        prior_from_values([1.0], numbers)

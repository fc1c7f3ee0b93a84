"""Groups of sites by mean embeddings: found where there are some, and none where there is only noise."""

import numpy as np
import pytest

import kernfed as kf
from kernfed.errors import MissingSites
from kernfed.kernels import MeanEmbedding
from kernfed.personal.groups import mean_groups
from kernfed.personal.weights import EmbeddingKernel
from kernfed_papers.experiments.kme_data import covariate_shift


def halves(rows):
    return tuple(MeanEmbedding.from_rows(rows[half::2]) for half in (0, 1))


def shifted(group_sizes):
    return covariate_shift(0, 0, group_sizes=group_sizes).sites


def test_groups_of_mean_embeddings_are_found():
    kernel = EmbeddingKernel(4, 1, columns="features", n_components=100)
    labels, weights = mean_groups([kernel.halves(X, y) for X, y in shifted((10, 0, 10))])
    assert set(labels[:10]).isdisjoint(labels[10:])
    assert len(set(labels)) == 2
    assert np.allclose(weights[:10, :10].sum(axis=1), 1)
    assert np.allclose(weights[10:, 10:].sum(axis=1), 1)
    assert weights.diagonal().max() < 0.5


def test_weights_are_those_of_the_formula(rng):
    """One group, its scatter above the noise: a_j = t / (t + noise_j), the rest by 1 / (t + noise_k)."""
    tables = [rng.standard_normal((size, 2)) + 0.8 * rng.standard_normal(2) for size in (4, 9, 20, 30)]
    weights = mean_groups([halves(rows) for rows in tables], max_groups=1)[1]
    noise = [rows.var(axis=0, ddof=1).sum() / len(rows) for rows in tables]
    spread = np.stack([rows.mean(axis=0) for rows in tables]).var(axis=0, ddof=1).sum() - np.mean(noise)
    assert spread > 0
    total = sum(1 / (spread + other) for other in noise)
    for j, own in enumerate(noise):
        for k, other in enumerate(noise):
            expected = own / (spread + own) / (spread + other) / total + (spread / (spread + own)) * (j == k)
            assert weights[j, k] == pytest.approx(expected, rel=1e-9)


def test_means_that_differ_everywhere_are_learned_alone_and_equal_ones_together(rng):
    centres = 50 * rng.standard_normal((12, 3))
    apart = mean_groups([halves(centre + rng.standard_normal((20, 3))) for centre in centres])[1]
    assert apart.diagonal().min() > 0.99
    sizes = np.arange(10, 22)
    same = mean_groups([halves(1e-6 * rng.standard_normal((size, 3)) + 1) for size in sizes])[1]
    assert 1 / np.square(same[0]).sum() > 4
    np.testing.assert_allclose(same.sum(axis=1), 1)


def test_identical_rows_have_no_noise_and_no_spread():
    labels, weights = mean_groups([halves(np.ones((4, 2))) for _ in range(3)])
    assert len(set(labels)) == 1
    np.testing.assert_allclose(weights, 1 / 3)


def test_halves_are_the_even_and_the_odd_rows(rng):
    kernel = EmbeddingKernel(3, 1, "polynomial", columns="features")
    X, y = rng.standard_normal((7, 3)), rng.standard_normal((7, 1))
    one, other = kernel.halves(X, y)
    assert (one.weight, other.weight) == (4.0, 3.0)
    np.testing.assert_allclose(other.mean, kernel.features(X[1::2]).mean(axis=0))
    np.testing.assert_allclose((one + other).mean, kernel.embed(X, y).mean)
    with pytest.raises(ValueError, match="at least 2 rows, got 1"):
        kernel.halves(X[:1], y[:1])


@pytest.mark.parametrize("model", ["ridge", "none"])
def test_a_learner_finds_the_groups_from_what_the_sites_send(model):
    sites = {f"site {number:02d}": rows for number, rows in enumerate(shifted((8, 0, 8)))}
    learner = kf.PersonalLearner("means", columns="features", bandwidth=1.0, model=model)
    with kf.Federation.local(sites, seed=3) as federation:
        found = learner.fit(federation)
    kernel = EmbeddingKernel(4, 1, columns="features", bandwidth=1.0, seed=3)
    expected = mean_groups([kernel.halves(X, y) for X, y in sites.values()])[1]
    np.testing.assert_array_equal(found.weights_, expected)
    assert found.rule == "means"
    groups = [found.groups_[name] for name in sites]
    assert set(groups[:8]).isdisjoint(groups[8:])


def test_a_site_of_one_row_has_no_halves_and_takes_no_part():
    sites = {f"site {number}": rows for number, rows in enumerate(shifted((4, 0, 0)))}
    sites["small"] = tuple(values[:1] for values in sites["site 0"])
    with kf.Federation.local(sites) as federation, pytest.warns(MissingSites, match="two halves need 2"):
        found = kf.PersonalLearner("means", columns="features").fit(federation, min_replies=4)
    assert list(found.sites) == sorted(set(sites) - {"small"})
    assert found.missing_ == {"small": "site 'small' has 1 row, and two halves need 2"}


def test_no_more_groups_than_allowed():
    kernel = EmbeddingKernel(4, 1, columns="features", n_components=100)
    given = [kernel.halves(X, y) for X, y in shifted((5, 5, 5))]
    assert len(set(mean_groups(given, 2)[0])) <= 2
    assert len(set(mean_groups(given, 1)[0])) == 1

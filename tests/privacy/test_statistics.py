"""Private mean embeddings and ridge moments."""

import math

import numpy as np
import pytest

from kernfed.kernels import FourierFeatures, MeanEmbedding, mmd_squared
from kernfed.privacy import Ledger, NoiseGenerator, RecordEmbedding, RecordRidge


def paired(D=200, **options):
    return FourierFeatures(width=3, n_components=D, bandwidth=1.5, kind="paired", seed=1, **options)


def test_embedding_without_much_noise_is_the_embedding(rng):
    X = rng.standard_normal((3000, 3))
    release = RecordEmbedding(100.0, 0.5, paired()).release(X)
    exact = MeanEmbedding.from_rows(X, features=paired().transform)
    assert np.allclose(release.vector, exact.mean, atol=1e-3)
    assert release.embedding().noise == pytest.approx(exact.noise, rel=0.05)


def test_replacing_a_row_moves_the_mean_by_at_most_2_over_n(rng):
    z = paired(40).transform(rng.standard_normal((300, 3)) * 10)
    distances = np.linalg.norm(z[:, None] - z[None], axis=2)
    assert distances.max() <= 2.0
    assert np.allclose(np.linalg.norm(z, axis=1), 1.0)


def test_noise_bias_is_taken_out(rng):
    """Averaged over releases the squared norm and distance come out right; with the bias left in they are far off."""
    X, Y = rng.standard_normal((40, 3)), rng.standard_normal((30, 3)) + 0.5
    mechanism = RecordEmbedding(2.0, 1e-5, paired(100))
    true = [MeanEmbedding.from_rows(rows, features=paired(100).transform) for rows in (X, Y)]
    norms, distances, biased = [], [], []
    for seed in range(300):
        a = mechanism.release(X, generator=NoiseGenerator(2 * seed))
        b = mechanism.release(Y, generator=NoiseGenerator(2 * seed + 1))
        norms.append(a.squared_norm)
        distances.append(a.squared_distance(b))
        biased.append(a.vector @ a.vector)
    for found, exact in ((norms, true[0].norm_squared()), (distances, mmd_squared(*true))):
        error = np.std(found) / math.sqrt(len(found))
        assert abs(np.mean(found) - exact) < 4 * error + 1e-3
    assert abs(np.mean(biased) - true[0].norm_squared()) > 0.3 * a.bias


def test_embedding_noise_counts_sampling_and_privacy(rng):
    X = rng.standard_normal((50, 3))
    release = RecordEmbedding(5.0, 1e-5, paired(40)).release(X)
    embedding = release.embedding()
    assert embedding.size == 50
    assert embedding.noise >= release.bias
    assert embedding.noise <= release.bias + 1 / 49
    assert embedding.norm_squared(unbiased=True) == pytest.approx(
        float(release.vector @ release.vector) - embedding.noise
    )
    with pytest.raises(ValueError, match="at least 2 rows"):
        RecordEmbedding(5.0, 1e-5, paired(40)).release(X[:1]).embedding()


@pytest.mark.parametrize(
    "features",
    [
        FourierFeatures(width=3, n_components=4, kind="phase"),
        FourierFeatures(width=3, n_components=4, kind="paired", scale="half"),
        "paired",
    ],
)
def test_features_must_have_norm_one(features):
    with pytest.raises(ValueError, match="features must be FourierFeatures"):
        RecordEmbedding(1.0, 1e-5, features)


@pytest.fixture
def regression(rng):
    X = rng.standard_normal((20_000, 5))
    X /= np.maximum(1, np.linalg.norm(X, axis=1, keepdims=True))
    w = rng.standard_normal((5, 2)) / 4
    return X, np.clip(X @ w + 0.05 * rng.standard_normal((20_000, 2)), -0.7, 0.7), w


def test_ridge_without_much_noise_is_ridge(regression):
    X, y, _ = regression
    release = RecordRidge(100.0, 0.5, 1.0, 1.0).release(X, y)
    assert np.allclose(release.moments.second, X.T @ X, atol=10)
    assert np.allclose(release.moments.cross, X.T @ y, atol=10)
    assert release.regularization == 0.0
    n = len(X)
    expected = np.linalg.solve(X.T @ X / n + 0.01 * np.eye(5), X.T @ y / n)
    assert np.allclose(release.coefficients(0.01), expected, atol=5e-3)


def test_ridge_at_epsilon_one_loses_little(regression):
    X, y, w = regression
    release = RecordRidge(1.0, 1e-5, 1.0, 1.0).release(X, y, generator=NoiseGenerator(3))
    error = np.mean((X @ release.coefficients() - X @ w) ** 2)
    assert error < 0.05 * np.mean((X @ w) ** 2)
    assert release.regularization == 0.0  # the smallest eigenvalue is far above the noise


def test_noise_asks_for_regularization_where_it_drowns_the_data(regression):
    X, y, _ = regression
    release = RecordRidge(0.1, 1e-5, 1.0, 1.0).release(X[:50], y[:50])
    assert release.regularization > 100
    coefficients = release.coefficients()
    assert np.isfinite(coefficients).all()
    assert np.abs(coefficients).max() < 10


def test_scales_of_rows_and_targets(regression):
    X, y, _ = regression
    unit = RecordRidge(5.0, 1e-5, 1.0, 1.0).release(X, y, generator=NoiseGenerator(4))
    scaled = RecordRidge(5.0, 1e-5, radius=4.0, target_radius=8.0).release(4 * X, 8 * y, generator=NoiseGenerator(4))
    assert np.allclose(scaled.moments.second, 16 * unit.moments.second)
    assert np.allclose(scaled.moments.cross, 32 * unit.moments.cross)
    assert np.allclose(scaled.coefficients(), 2 * unit.coefficients())


@pytest.mark.parametrize("p", [2, 3])
def test_sensitivities_of_ridge_moments(p):
    """Random neighbours: X'X moves by at most sqrt(2) in the Frobenius norm, X'y by at most 2."""
    rng = np.random.default_rng(p)
    for _ in range(300):
        X = rng.standard_normal((p + 2, p))
        X /= np.maximum(1, np.linalg.norm(X, axis=1, keepdims=True))
        Z = X.copy()
        Z[0] = rng.standard_normal(p)
        Z[0] /= max(1, np.linalg.norm(Z[0]))
        assert np.linalg.norm(X.T @ X - Z.T @ Z) <= math.sqrt(2.0) + 1e-12
        y, z = rng.uniform(-1, 1, 2)
        assert np.linalg.norm(X[0] * y - Z[0] * z) <= 2


@pytest.mark.parametrize("kind", ["embedding", "ridge"])
def test_both_keep_the_contract(kind, rng, tmp_path):
    """Seeded noise is marked and refused by the ledger; the event is charged; the order of rows does not matter."""
    X = rng.standard_normal((30, 3))
    mechanism = RecordEmbedding(1.0, 1e-5, paired(10)) if kind == "embedding" else RecordRidge(1.0, 1e-5, 1.0, 1.0)
    data = (X,) if kind == "embedding" else (X, X[:, 0])
    ledger = Ledger(tmp_path / "ledger", 1.0, 1e-5)
    with pytest.raises(ValueError, match="private releases only"):
        mechanism.release(*data, ledger=ledger, generator=NoiseGenerator(0))
    release = mechanism.release(*data, ledger=ledger, ids=range(30))
    assert release.private
    assert ledger.spent().epsilon == pytest.approx(1.0, rel=1e-6)
    assert (release.element.unit, release.record.unit) == ("element", "record")
    first, second = (
        mechanism.release(*(part[order] for part in data), generator=NoiseGenerator(5))
        for order in (slice(None), slice(None, None, -1))
    )
    if kind == "embedding":
        assert np.array_equal(first.vector, second.vector)
    else:
        assert first.moments == second.moments


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RecordRidge(0.0, 1e-5, 1.0, 1.0), "epsilon must be > 0"),
        (lambda: RecordRidge(1.0, 1.0, 1.0, 1.0), "delta must be < 1"),
        (lambda: RecordRidge(1.0, 1e-5, 0, 1.0), "radius must be > 0"),
        (lambda: RecordRidge(1.0, 1e-5, 1.0, math.nan), "target_radius must be a finite number"),
        (
            lambda: RecordRidge(1.0, 1e-5, 1.0, 1.0).release(np.ones((3, 2)), [1.0]),
            "y must have a target for each of the 3",
        ),
        (lambda: RecordRidge(1.0, 1e-5, 1.0, 1.0).release(np.ones((3, 2)), [1, 2, np.inf]), "y must be finite"),
        (lambda: RecordEmbedding(1.0, 0.0, paired()), "delta must be >= 1e-20"),
        (lambda: RecordEmbedding(1.0, 1e-5, paired()).release(np.ones((3, 2))), "X must have 3 columns"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()

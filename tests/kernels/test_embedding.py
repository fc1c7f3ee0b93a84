from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernfed.kernels import (
    FourierFeatures,
    MeanEmbedding,
    Moments,
    gaussian_gram,
    mmd_squared,
    mmd_squared_gram,
    mmd_squared_rows,
    polynomial_gram,
    quadratic_features,
)
from oracles import kernels as oracle

GAUSSIAN = partial(gaussian_gram, bandwidth=1.3)
NAIVE = partial(oracle.gaussian, bandwidth=np.full(3, 1.3))
embed = MeanEmbedding.from_rows
Z_SCORE = 4.42  # probability 1e-5 for a correct statistic


def rows(n, p=3, seed=0, offset=0.0):
    return np.random.default_rng(seed).normal(size=(n, p)) + offset


def weights(n, seed=0):
    w = np.random.default_rng(seed).uniform(size=n)
    w[: n // 4] = 0.0
    return w


def shares(n, w=None):
    return np.full(n, 1 / n) if w is None else w / w.sum()


def grams(X, Y, kernel=GAUSSIAN):
    return kernel(X), kernel(X, Y), kernel(Y)


class TestMeanEmbedding:
    @pytest.mark.parametrize("block_rows", [1, 4, 1000])
    @pytest.mark.parametrize("offset", [0.0, 1e6])
    def test_mean_and_error_equal_the_formulas(self, block_rows, offset):
        X = rows(11, offset=offset)
        embedding = embed(X, block_rows=block_rows)
        assert embedding.size == 11
        np.testing.assert_allclose(embedding.mean, oracle.mean_of(X), rtol=1e-14)
        assert embedding.trace == pytest.approx(oracle.trace_of_covariance(X), rel=1e-9 if offset else 1e-13)
        assert embedding.noise == pytest.approx(embedding.trace / 11)

    def test_trace_from_features_equals_trace_from_the_kernel(self):
        X = rows(8)
        embedding = embed(X, features=quadratic_features)
        naive = oracle.trace_of_covariance_kernel(partial(oracle.polynomial, degree=2, offset=1.0), X)
        assert embedding.trace == pytest.approx(naive, rel=1e-12)

    def test_inner_products_of_the_quadratic_kernel_need_only_two_moments(self):
        # KME (18): 1 + 2 <mean, mean'> + Tr(C C').
        X, Y = rows(8), rows(5, seed=1, offset=0.5)
        a, b = (embed(Z, features=quadratic_features) for Z in (X, Y))
        C, D = X.T @ X / 8, Y.T @ Y / 5
        assert a.mean @ b.mean == pytest.approx(1 + 2 * X.mean(0) @ Y.mean(0) + np.trace(C @ D))

    def test_moments_give_the_same_embedding(self):
        X = rows(30)
        features = FourierFeatures(3, 8)
        direct = embed(X, features=features.transform, block_rows=7)
        by_moments = MeanEmbedding.from_moments(Moments.from_rows(X, rows(30)[:, 0], features=features.transform))
        np.testing.assert_allclose(by_moments.mean, direct.mean, atol=1e-15)
        assert by_moments.noise == pytest.approx(direct.noise, rel=1e-12)
        with pytest.raises(ValueError, match="at least 1 row, got moments of 0"):
            MeanEmbedding.from_moments(Moments.zero(3))

    @pytest.mark.parametrize("factor", [1.0, 7.0])
    @pytest.mark.parametrize("block_rows", [1, 5, 100])
    def test_integer_weights_move_the_mean_like_repeated_rows(self, factor, block_rows):
        X, counts = rows(6), np.array([0, 1, 2, 5, 1, 0])
        embedding = embed(X, weights=factor * counts, block_rows=block_rows)
        np.testing.assert_allclose(embedding.mean, np.repeat(X, counts, axis=0).mean(axis=0), rtol=1e-13)
        assert embedding.size == pytest.approx(counts.sum() ** 2 / (counts**2).sum())
        share = counts / counts.sum()
        variance = share @ ((X - embedding.mean) ** 2).sum(axis=1)
        assert embedding.trace == pytest.approx(variance / (1 - share @ share))

    def test_equal_weights_are_no_weights(self):
        X = rows(9)
        a, b = embed(X), embed(X, weights=np.full(9, 0.3))
        assert b.size == pytest.approx(9)
        assert b.noise == pytest.approx(a.noise, rel=1e-12)

    @settings(deadline=None, max_examples=40, derandomize=True)
    @given(st.integers(1, 20), st.integers(1, 20), st.booleans(), st.sampled_from([0.0, 1e5]))
    def test_adding_is_pooling(self, n, m, weighted, offset):
        X, Y = rows(n, offset=offset), rows(m, seed=1, offset=offset)
        u, v = (weights(k, seed=k) if weighted else np.ones(k) for k in (n, m))
        total = embed(X, weights=u) + embed(Y, weights=v)
        pooled = embed(np.vstack([X, Y]), weights=np.r_[u, v])
        np.testing.assert_allclose(total.mean, pooled.mean, rtol=1e-13, atol=1e-14)
        assert total.size == pytest.approx(pooled.size, rel=1e-12)
        assert total.spread == pytest.approx(pooled.spread, rel=1e-9, abs=1e-18)

    @pytest.mark.parametrize("weighted", [False, True])
    def test_unbiased_norm_has_the_right_expectation(self, weighted):
        # 4000 samples of 6 rows around (1, 2, 0): |mu|^2 = 5, and the noise of the mean is 3/6 without weights.
        w = np.array([1.0, 1.0, 3.0, 0.5, 2.0, 0.0]) if weighted else None
        mu = np.array([1.0, 2.0, 0.0])
        made = [embed(rows(6, seed=s) + mu, weights=w) for s in range(4000)]
        for values, truth in (
            ([e.norm_squared(unbiased=True) for e in made], 5.0),
            ([e.trace for e in made], 3.0),
            ([e.noise - ((e.mean - mu) ** 2).sum() for e in made], 0.0),
        ):
            assert abs(np.mean(values) - truth) < Z_SCORE * np.std(values) / np.sqrt(len(values))
        biased = [e.norm_squared() for e in made]
        assert abs(np.mean(biased) - 5.0) > Z_SCORE * np.std(biased) / np.sqrt(len(biased))

    def test_one_row_has_a_mean_but_no_error(self):
        for embedding in (
            embed([[1.0, 2.0]]),
            embed([[1.0, 2.0], [5.0, 5.0]], weights=[0.3, 0.0]),
        ):
            assert embedding.mean.tolist() == [1.0, 2.0]
            assert embedding.norm_squared() == 5.0
            for name in ("noise", "trace"):
                with pytest.raises(ValueError, match="at least 2 rows with weight"):
                    getattr(embedding, name)
            with pytest.raises(ValueError, match="at least 2 rows with weight"):
                embedding.norm_squared(unbiased=True)

    def test_identical_rows_have_no_error(self):
        embedding = embed(np.full((50, 2), 1e6 + 0.1), block_rows=8)
        assert 0.0 <= embedding.noise < 1e-18

    def test_round_trip_of_messages(self):
        embedding = embed(rows(7), weights=weights(7))
        arrays = embedding.to_arrays()
        assert all(isinstance(value, np.ndarray) for value in arrays.values())
        back = MeanEmbedding.from_arrays(arrays)
        assert np.array_equal(back.mean, embedding.mean)
        assert (back.noise, back.size) == (embedding.noise, embedding.size)
        with pytest.raises(ValueError, match="read-only"):
            back.mean[0] = 1.0

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"weight": 0.0}, "weight must be > 0, got 0.0"),
            ({"weight": np.nan}, "weight must be a finite number"),
            ({"weight": np.ones(2)}, "weight must be a finite number"),
            ({"weight": 1e200, "squared_weight": -1.0}, "squared_weight must be > 0"),
            ({"squared_weight": 1000.0}, "squared_weight must be <= 49.0, got 1000.0"),
            ({"spread": -1.0}, "spread must be >= 0"),
            ({"mean": [np.nan]}, "mean must be finite"),
            ({"mean": []}, "mean must be a vector of length 1"),
            ({"mean": np.ones((2, 2))}, "mean must be a vector of length 4"),
            ({"extra": 1.0}, "an embedding must have exactly"),
        ],
    )
    def test_hostile_messages(self, change, message):
        with pytest.raises(ValueError, match=message):
            MeanEmbedding.from_arrays({**embed(rows(7)).to_arrays(), **change})

    @pytest.mark.parametrize(
        ("X", "w", "message"),
        [
            (np.zeros((0, 3)), None, "X must have at least 1 row"),
            (rows(3), [1.0, -1.0, 1.0], "weights must be >= 0 and not all 0, got a smallest of -1.0"),
            (rows(3), [0.0, 0.0, 0.0], "not all 0"),
            (rows(3), [1.0, 1.0], "weights must be a vector of length 3"),
            (rows(3), [1.0, np.nan, 1.0], "weights must be finite"),
            ([[np.nan]], None, "X must be finite"),
            ([[1e200], [0.0]], None, "overflow; rescale"),
            ([[1.0], [0.0]], [1e200, 1.0], "overflow; rescale"),
        ],
    )
    def test_bad_input(self, X, w, message):
        with pytest.raises(ValueError, match=message):
            embed(X, weights=w)


class TestDiscrepancy:
    X, Y = rows(9), rows(6, seed=1, offset=0.7)

    @pytest.mark.parametrize("weighted", [False, True])
    def test_biased_equals_the_double_loops(self, weighted):
        u, v = (weights(9), weights(6, seed=1)) if weighted else (None, None)
        expected = oracle.mmd_v_statistic(NAIVE, self.X, self.Y, shares(9, u), shares(6, v))
        by_gram = mmd_squared_gram(*grams(self.X, self.Y), x_weights=u, y_weights=v)
        assert by_gram == pytest.approx(expected, rel=1e-11)
        for block_rows in (1, 4, 100):
            by_rows = mmd_squared_rows(self.X, self.Y, GAUSSIAN, x_weights=u, y_weights=v, block_rows=block_rows)
            assert by_rows == pytest.approx(expected, rel=1e-11)

    def test_unbiased_equals_the_u_statistic(self):
        expected = oracle.mmd_u_statistic(NAIVE, self.X, self.Y)
        assert mmd_squared_gram(*grams(self.X, self.Y), unbiased=True) == pytest.approx(expected, rel=1e-11)
        by_rows = mmd_squared_rows(self.X, self.Y, GAUSSIAN, unbiased=True, block_rows=4)
        assert by_rows == pytest.approx(expected, rel=1e-11)

    @pytest.mark.parametrize("unbiased", [False, True])
    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("name", ["quadratic", "fourier"])
    def test_embeddings_and_gram_matrices_agree(self, unbiased, weighted, name):
        u, v = (weights(9), weights(6, seed=1)) if weighted else (None, None)
        fourier = FourierFeatures(3, 20).transform
        features, kernel = {
            "quadratic": (quadratic_features, partial(polynomial_gram, degree=2, offset=1.0)),
            "fourier": (fourier, lambda A, B=None: fourier(A) @ fourier(A if B is None else B).T),
        }[name]
        a = embed(self.X, features=features, weights=u)
        b = embed(self.Y, features=features, weights=v)
        expected = mmd_squared(a, b, unbiased=unbiased)
        by_gram = mmd_squared_gram(*grams(self.X, self.Y, kernel), unbiased=unbiased, x_weights=u, y_weights=v)
        assert by_gram == pytest.approx(expected, rel=1e-10)

    @pytest.mark.parametrize("weighted", [False, True])
    def test_unbiased_has_mean_zero_for_one_distribution(self, weighted):
        w = np.array([1.0, 2.0, 0.5, 1.0, 4.0]) if weighted else None
        options = {"x_weights": w}
        pairs = [(rows(5, seed=2 * s), rows(4, seed=2 * s + 1)) for s in range(2000)]
        values = [mmd_squared_gram(*grams(X, Y), unbiased=True, **options) for X, Y in pairs]
        assert abs(np.mean(values)) < Z_SCORE * np.std(values) / np.sqrt(len(values))
        assert min(values) < 0
        biased = [mmd_squared_gram(*grams(X, Y), **options) for X, Y in pairs]
        assert np.mean(biased) > Z_SCORE * np.std(biased) / np.sqrt(len(biased))

    def test_the_same_sample_is_at_distance_zero(self):
        embedding = embed(self.X)
        assert mmd_squared(embedding, embedding) == 0.0
        assert mmd_squared_gram(*grams(self.X, self.X)) == pytest.approx(0.0, abs=1e-15)
        assert 0.0 <= mmd_squared_rows(self.X, self.X[::-1], GAUSSIAN) < 1e-14

    def test_one_row_each(self):
        X, Y = self.X[:1], self.Y[:1]
        expected = 2 - 2 * NAIVE(X[0], Y[0])
        assert mmd_squared_gram(*grams(X, Y)) == pytest.approx(expected)
        for call in (
            lambda: mmd_squared_gram(*grams(X, Y), unbiased=True),
            lambda: mmd_squared_rows(X, Y, GAUSSIAN, unbiased=True),
            lambda: mmd_squared(embed(X), embed(Y), unbiased=True),
        ):
            with pytest.raises(ValueError, match="at least 2 rows with weight"):
                call()

    def test_float32_gram_matrices_are_summed_in_float64(self):
        X, Y = (side.astype(np.float32) for side in (rows(300), rows(200, seed=1, offset=0.7)))
        exact = mmd_squared_rows(X.astype(np.float64), Y.astype(np.float64), GAUSSIAN, unbiased=True)
        assert mmd_squared_rows(X, Y, GAUSSIAN, unbiased=True) == pytest.approx(exact, abs=1e-7)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: mmd_squared(embed(rows(3)), embed(rows(3, p=4))), "widths 3 and 4"),
            (lambda: embed(rows(3)) + embed(rows(3, p=4)), "widths 4 and 3"),
            (lambda: mmd_squared_gram(np.eye(3), np.ones((3, 2)), np.eye(3)), r"shapes \(3, 3\) and \(2, 2\)"),
            (lambda: mmd_squared_gram(np.eye(3) * np.nan, np.ones((3, 2)), np.eye(2)), "xx must be finite"),
            (
                lambda: mmd_squared_gram(np.eye(3), np.ones((3, 2)), np.eye(2), y_weights=[1]),
                "y_weights must be a vector",
            ),
            (lambda: mmd_squared_rows(rows(0), rows(3), GAUSSIAN), "X must have at least 1 row"),
            (lambda: mmd_squared_rows(rows(3), rows(3, p=2), GAUSSIAN), "as many columns as X"),
        ],
    )
    def test_bad_input(self, call, message):
        with pytest.raises(ValueError, match=message):
            call()

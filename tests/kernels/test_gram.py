from functools import partial

import numpy as np
import pytest
from sklearn.metrics import pairwise

from kernfed.kernels import features as module
from kernfed.kernels import (
    gaussian_gram,
    median_bandwidth,
    polynomial_gram,
    quadratic_features,
    squared_distances,
)
from oracles import kernels as oracle

TOLERANCE = {np.float32: 1e-6, np.float64: 1e-12}


def rows(n, p=4, seed=0, offset=0.0, dtype=np.float64):
    return (np.random.default_rng(seed).normal(size=(n, p)) + offset).astype(dtype)


CASES = {
    "plain": (rows(7), rows(5, seed=1)),
    "one column": (rows(6, p=1), rows(3, p=1, seed=1)),
    "more columns than rows": (rows(3, p=40), rows(2, p=40, seed=1)),
    "one row": (rows(1), rows(1, seed=1)),
    "no rows": (rows(0), rows(4)),
    "no columns to compare": (rows(4), rows(0)),
    "duplicates": (np.repeat(rows(2), 3, axis=0), rows(2)),
    "identical": (np.full((5, 4), 0.1), np.full((2, 4), 0.1)),
    "constant column": (np.c_[rows(5, p=3), np.ones(5)], np.c_[rows(5, p=3, seed=2), np.ones(5)]),
    "not contiguous": (rows(14)[::2], rows(4, p=8)[:, ::2]),
    "integers": (np.arange(12).reshape(3, 4), np.arange(8).reshape(2, 4)),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_distances_and_kernels_equal_double_loops(name, dtype):
    X, Y = (np.asarray(side).astype(dtype) for side in CASES[name])
    h = np.array([0.5, 1.0, 2.0, 4.0] * 10)[: X.shape[1]]
    kernels = {
        squared_distances: oracle.squared_distance,
        partial(gaussian_gram, bandwidth=1.7): partial(oracle.gaussian, bandwidth=np.full(X.shape[1], 1.7)),
        partial(gaussian_gram, bandwidth=h): partial(oracle.gaussian, bandwidth=h),
        partial(polynomial_gram, degree=3, offset=0.5): partial(oracle.polynomial, degree=3, offset=0.5),
    }
    for fast, naive in kernels.items():
        for A, B, result in ((X, Y, fast(X, Y)), (X, X, fast(X))):
            expected = oracle.matrix(naive, A, B)
            assert result.dtype == dtype
            scale = max(1.0, np.abs(expected).max(initial=0.0))
            np.testing.assert_allclose(result, expected, rtol=0, atol=TOLERANCE[dtype] * scale)


def test_equal_to_scikit_learn():
    X, Y = rows(50, p=9), rows(30, p=9, seed=1)
    np.testing.assert_allclose(squared_distances(X, Y), pairwise.euclidean_distances(X, Y, squared=True), atol=1e-12)
    expected = pairwise.rbf_kernel(X, Y, gamma=1 / (2 * 1.3**2))
    np.testing.assert_allclose(gaussian_gram(X, Y, bandwidth=1.3), expected, atol=1e-14)
    expected = pairwise.polynomial_kernel(X, Y, degree=2, gamma=1.0, coef0=1.0)
    np.testing.assert_allclose(polynomial_gram(X, Y, degree=2, offset=1.0), expected, rtol=1e-12)


@pytest.mark.parametrize("offset", [1e6, -1e6, np.array([1e6, 0.0, -3e5, 1e8])])
def test_an_offset_does_not_cost_accuracy(offset):
    X, Y = rows(20, offset=offset), rows(10, seed=1, offset=offset)
    for A, B, result in ((X, Y, squared_distances(X, Y)), (X, X, squared_distances(X))):
        np.testing.assert_allclose(result, oracle.matrix(oracle.squared_distance, A, B), rtol=0, atol=1e-13)
    naive = (X**2).sum(1)[:, None] + (Y**2).sum(1) - 2 * X @ Y.T
    assert np.abs(naive - squared_distances(X, Y)).max() > 1e-5, "the offset must be able to hurt"


def test_float32_is_computed_in_float64():
    # Two clusters far apart: centring does not help there, and float32 products would leave errors of about 100.
    X = np.vstack([rows(5, offset=-1e4), rows(5, seed=1, offset=1e4)]).astype(np.float32)
    np.testing.assert_allclose(squared_distances(X), oracle.matrix(oracle.squared_distance, X, X), rtol=1e-6, atol=1e-6)
    Z = np.float32([[5000.5, 1.0], [5000.5, -25005000.0]])
    assert polynomial_gram(Z[:1], Z[1:], degree=1, offset=0.0) == 0.25
    assert polynomial_gram(Z, degree=1, offset=0.0)[0, 1] == 0.25


def test_mixed_precision_and_half_precision_give_float64():
    X = rows(3)
    assert gaussian_gram(X.astype(np.float32), X, bandwidth=1.0).dtype == np.float64
    assert gaussian_gram(X.astype(np.float16), bandwidth=1.0).dtype == np.float64


@pytest.mark.parametrize("entries", [1, 40, 10**6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_blocks_change_nothing_and_symmetry_is_exact(monkeypatch, entries, dtype):
    X, Y = rows(23, offset=3.0, dtype=dtype), rows(11, seed=1, dtype=dtype)
    whole = gaussian_gram(X, Y, bandwidth=2.0), gaussian_gram(X, bandwidth=2.0), polynomial_gram(X, degree=2, offset=1)
    monkeypatch.setattr(module, "_BLOCK_ENTRIES", entries)
    split = gaussian_gram(X, Y, bandwidth=2.0), gaussian_gram(X, bandwidth=2.0), polynomial_gram(X, degree=2, offset=1)
    for a, b in zip(whole, split, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6 if dtype == np.float32 else 1e-13)
    for symmetric in split[1:]:
        assert np.array_equal(symmetric, symmetric.T)
    assert np.array_equal(np.diag(split[1]), np.ones(23))
    assert np.array_equal(np.diag(squared_distances(X)), np.zeros(23))


def test_distances_are_never_negative():
    X = np.repeat(rows(10, p=30, offset=5.0), 20, axis=0)
    assert squared_distances(X).min() == 0.0
    assert squared_distances(X, X).min() >= 0.0
    assert gaussian_gram(X, X, bandwidth=1e-3).max() <= 1.0


@pytest.mark.parametrize(("far", "bandwidth"), [(1e200, 1.0), (1.0, 1e-300), (1e3, 1.0)])
def test_far_apart_rows_have_kernel_zero(far, bandwidth):
    assert gaussian_gram([[far], [0.0]], bandwidth=bandwidth).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_arguments_are_not_changed():
    X, Y = rows(5), rows(4, seed=1)
    copies = X.copy(), Y.copy()
    gaussian_gram(X, Y, bandwidth=1.0)
    polynomial_gram(X, degree=2, offset=1.0)
    quadratic_features(X)
    assert np.array_equal(X, copies[0])
    assert np.array_equal(Y, copies[1])


@pytest.mark.parametrize(("offset", "dtype"), [(1.0, np.float64), (0.0, np.float64), (2.5, np.float32)])
@pytest.mark.parametrize(("n", "p"), [(6, 3), (1, 1), (0, 2)])
def test_quadratic_features_have_the_polynomial_kernel(n, p, offset, dtype):
    X = rows(n, p, dtype=dtype)
    features = quadratic_features(X, offset=offset)
    assert features.shape == (n, (p + 1) * (p + 2) // 2)
    assert features.dtype == dtype
    expected = polynomial_gram(X, degree=2, offset=offset)
    np.testing.assert_allclose(features @ features.T, expected, rtol=1e-5 if dtype == np.float32 else 1e-13, atol=1e-6)


class TestMedianBandwidth:
    def test_is_the_median_of_all_pairs(self):
        X = rows(40, offset=1e6)
        expected = np.median([np.sqrt(oracle.squared_distance(X[i], X[j])) for i in range(40) for j in range(i)])
        assert median_bandwidth(X, np.random.default_rng(0)) == pytest.approx(expected, rel=1e-12)

    def test_subsample_depends_on_the_seed_only(self):
        X = rows(500)
        first, again, other = (median_bandwidth(X, np.random.default_rng(s), max_rows=50) for s in (3, 3, 4))
        assert first == again != other
        assert first == pytest.approx(median_bandwidth(X, np.random.default_rng(0), max_rows=500), rel=0.1)

    @pytest.mark.parametrize(
        ("X", "expected"),
        [
            ([[3.0, 4.0]], 1.0),
            (np.full((9, 2), 0.1), 1.0),
            (np.full((9, 2), 1e6 + 0.1), 1.0),
            ([[0.0], [0.0], [0.0], [0.0], [7.0]], 7.0),
            ([[0.0], [2.0]], 2.0),
        ],
    )
    def test_degenerate_rows_have_a_positive_bandwidth(self, X, expected):
        assert median_bandwidth(X, np.random.default_rng(0)) == expected

    def test_duplicates_do_not_give_a_rounding_error(self):
        X = np.repeat(rows(2, p=30, offset=100.0), [8, 2], axis=0)
        distance = np.sqrt(oracle.squared_distance(X[0], X[-1]))
        assert median_bandwidth(X, np.random.default_rng(0)) == pytest.approx(distance)

    @pytest.mark.parametrize(
        ("X", "rng", "max_rows", "message"),
        [
            (np.zeros((0, 2)), np.random.default_rng(0), 10, "at least 1 row"),
            (np.zeros((3, 2)), 0, 10, "rng must be a numpy.random.Generator, got 0"),
            (np.zeros((3, 2)), np.random.default_rng(0), 1, "max_rows must be >= 2, got 1"),
            (np.array([[1e200], [-1e200]]), np.random.default_rng(0), 10, "rescale"),
        ],
    )
    def test_bad_input(self, X, rng, max_rows, message):
        with pytest.raises(ValueError, match=message):
            median_bandwidth(X, rng, max_rows)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian_gram(rows(3), rows(3, p=5), bandwidth=1.0), "Y must have as many columns as X, 4, got 5"),
        (lambda: gaussian_gram(rows(3), bandwidth=0.0), "bandwidth must be > 0, got 0.0"),
        (lambda: gaussian_gram(rows(3), bandwidth=np.nan), "bandwidth must be a finite number, got nan"),
        (lambda: gaussian_gram(rows(3), bandwidth="median"), "bandwidth must be a finite number, got 'median'"),
        (lambda: gaussian_gram(rows(3), bandwidth=[1.0, 2.0]), "bandwidth must be a vector of length 4"),
        (lambda: gaussian_gram(rows(3), bandwidth=[1.0, 2.0, -1.0, 1.0]), "got -1.0 in column 2"),
        (lambda: gaussian_gram([[np.nan]], bandwidth=1.0), "X must be finite, got nan"),
        (lambda: gaussian_gram(rows(3, p=1), [[np.inf]], bandwidth=1.0), "Y must be finite, got inf"),
        (lambda: gaussian_gram(rows(3)[0], bandwidth=1.0), "X must be a matrix"),
        (lambda: gaussian_gram([["a"]], bandwidth=1.0), "X must hold real numbers"),
        (lambda: gaussian_gram([[1e200], [1e200], [0.0]], bandwidth=1.0), "overflow; rescale"),
        (lambda: squared_distances(np.float32([[1e20], [0.0]])), "must fit float32, got an overflow"),
        (lambda: quadratic_features(np.float32([[1e20, 1.0]])), "must fit float32, got an overflow"),
        (lambda: squared_distances(np.array([[1e308], [-1e308]])), "overflow; rescale"),
        (lambda: polynomial_gram(rows(3), degree=0, offset=1.0), "degree must be >= 1, got 0"),
        (lambda: polynomial_gram(rows(3), degree=1.5, offset=1.0), "degree must be an integer, got 1.5"),
        (lambda: polynomial_gram(rows(3), degree=2, offset=-1.0), "offset must be >= 0, got -1.0"),
        (lambda: polynomial_gram(np.float32([[1e15]]), degree=2, offset=1.0), "must fit float32, got an overflow"),
        (lambda: polynomial_gram([[1e200]], degree=2, offset=1.0), "must fit float64, got an overflow"),
        (lambda: quadratic_features(rows(3), offset=-1.0), "offset must be >= 0"),
    ],
)
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()

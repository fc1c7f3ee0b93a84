from dataclasses import FrozenInstanceError, asdict, replace

import numpy as np
import pytest

from kernfed.kernels import FourierFeatures, gaussian_gram
from oracles import kernels as oracle

KINDS, SCALES = ("phase", "paired"), ("unbiased", "half")
# Normal quantile: a correct statistic is further off than this many standard errors with probability 1e-5.
Z_SCORE = 4.42


def rows(n=6, p=3, seed=0, offset=0.0, dtype=np.float64):
    return (np.random.default_rng(seed).normal(size=(n, p)) + offset).astype(dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-13), (np.float32, 2e-6)])
@pytest.mark.parametrize("bandwidth", [1.5, (0.5, 1.0, 4.0)])
def test_equal_to_the_formula_entry_by_entry(kind, scale, dtype, tolerance, bandwidth):
    X = rows(dtype=dtype)
    features = FourierFeatures(3, 8, bandwidth, seed=4, kind=kind, scale=scale)
    factor = np.sqrt({"unbiased": 2, "half": 1}[scale] / 8)
    if kind == "phase":
        expected = oracle.fourier_phase(X, features.frequencies, features.phases, factor)
    else:
        expected = oracle.fourier_paired(X, features.frequencies, factor)
    result = features.transform(X)
    assert result.dtype == dtype
    np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("bandwidth", [0.8, (2.0, 2.0, 0.5)])
def test_inner_products_are_unbiased_for_the_kernel(kind, scale, bandwidth):
    # 2000 independent maps; every pair within 4.42 standard errors, each at level 1e-5.
    X = rows(4)
    maps = [FourierFeatures(3, 4, bandwidth, seed=s, kind=kind, scale=scale).transform(X) for s in range(2000)]
    estimates = np.array([phi @ phi.T for phi in maps])
    error = estimates.std(axis=0, ddof=1) / np.sqrt(len(maps))
    kernel = gaussian_gram(X, bandwidth=bandwidth)
    expected = kernel if scale == "unbiased" else kernel / 2
    deviation = np.abs(estimates.mean(axis=0) - expected)
    assert (deviation <= Z_SCORE * error + 1e-12).all()
    wrong = np.abs(estimates.mean(axis=0) - (kernel / 2 if scale == "unbiased" else kernel))
    assert (wrong > Z_SCORE * error).sum() >= 4, "the test must be able to tell the two scales apart"


def test_paired_has_the_smaller_variance():
    # Variances times M: 1 + k^4 - 2 k^2 (paired), 1 + k^4/2 - k^2 (phase): Sutherland and Schneider (2015).
    X = rows(2, seed=3) * 0.15
    k = gaussian_gram(X, bandwidth=1.0)[0, 1]
    expected = {"paired": 1 + k**4 - 2 * k**2, "phase": 1 + k**4 / 2 - k**2}
    assert expected["paired"] < expected["phase"] / 4
    for kind in KINDS:
        maps = [FourierFeatures(3, 10, 1.0, seed=s, kind=kind).transform(X) for s in range(3000)]
        assert np.var([phi[0] @ phi[1] for phi in maps]) * 10 == pytest.approx(expected[kind], rel=0.15)


@pytest.mark.parametrize(("scale", "square"), [("unbiased", 1.0), ("half", 0.5)])
def test_norms_of_rows(scale, square):
    X = rows(50)
    paired, phase = (FourierFeatures(3, 10, kind=kind, scale=scale).transform(X) for kind in ("paired", "phase"))
    np.testing.assert_allclose((paired**2).sum(axis=1), square)
    assert (phase**2).sum(axis=1).max() <= 2 * square
    assert (phase**2).sum(axis=1).max() > 1.2 * square


@pytest.mark.parametrize("kind", KINDS)
def test_half_scale_is_half_the_regularisation_of_ridge(kind):
    X, y, a = rows(40), rows(40, seed=1)[:, 0], 0.1
    predictions = []
    for scale, regularisation in (("half", a), ("unbiased", 2 * a)):
        phi = FourierFeatures(3, 12, kind=kind, scale=scale).transform(X)
        predictions.append(phi @ np.linalg.solve(phi.T @ phi / 40 + regularisation * np.eye(12), phi.T @ y / 40))
    np.testing.assert_allclose(*predictions, rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_many_features_approach_the_gram_matrix(kind):
    X = rows(20, p=5, offset=10.0)
    phi = FourierFeatures(5, 20_000, 2.0, seed=1, kind=kind).transform(X)
    np.testing.assert_allclose(phi @ phi.T, gaussian_gram(X, bandwidth=2.0), atol=0.04)


def test_draws_do_not_depend_on_bandwidth_scale_or_size():
    base = FourierFeatures(3, 10, 1.0, seed=5)
    np.testing.assert_array_equal(replace(base, bandwidth=4.0).frequencies, base.frequencies / 4.0)
    columns = replace(base, bandwidth=(1.0, 2.0, 8.0))
    np.testing.assert_array_equal(columns.frequencies, base.frequencies / np.array([[1.0], [2.0], [8.0]]))
    larger = replace(base, n_components=25)
    np.testing.assert_array_equal(larger.frequencies[:, :10], base.frequencies)
    np.testing.assert_array_equal(larger.phases[:10], base.phases)
    np.testing.assert_array_equal(replace(base, n_components=20, kind="paired").frequencies, base.frequencies)
    assert not np.array_equal(replace(base, seed=6).frequencies, base.frequencies)


def test_frequencies_of_a_seed_are_pinned():
    # Sites agree on a seed across machines and versions: a change here breaks every federation that is running.
    features = FourierFeatures(2, 3, 1.0, seed=0)
    expected = [
        [-1.791880335171047, -0.5904922979662813, 1.1920542505778013],
        [0.4163733583486936, 0.33680047402158436, -0.11114911385718206],
    ]
    np.testing.assert_allclose(features.frequencies, expected, rtol=1e-12)
    np.testing.assert_allclose(features.phases, [4.4013904046965955, 4.32186012807729, 5.373208329340235], rtol=1e-12)


def test_frequencies_have_the_stated_distribution():
    features = FourierFeatures(2, 50_000, (0.5, 3.0), seed=2)
    n = features.n_components
    for column, h in zip(features.frequencies * np.array([[0.5], [3.0]]), (0.5, 3.0), strict=True):
        assert abs(column.mean()) < Z_SCORE / np.sqrt(n), h
        assert abs(column.var() - 1) < Z_SCORE * np.sqrt(2 / n), h
    assert 0 <= features.phases.min() < 0.01
    assert 2 * np.pi - 0.01 < features.phases.max() < 2 * np.pi


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block_rows", [1, 4, 7, 100])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_blocks_are_the_rows_of_the_whole(kind, block_rows, dtype):
    X = rows(13, dtype=dtype)
    features = FourierFeatures(3, 6, kind=kind)
    blocks = list(features.transform_blocks(X, block_rows))
    assert {block.dtype for block in blocks} == {np.dtype(dtype)}
    assert [len(block) for block in blocks[:-1]] == [block_rows] * (len(blocks) - 1)
    tolerance = 1e-6 if dtype == np.float32 else 1e-14
    np.testing.assert_allclose(np.vstack(blocks), features.transform(X), rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_few_rows_and_odd_layouts(kind):
    features = FourierFeatures(3, 6, kind=kind)
    assert features.transform(np.zeros((0, 3))).shape == (0, 6)
    assert [block.shape for block in features.transform_blocks(np.zeros((0, 3)))] == [(0, 6)]
    X = rows(8)
    whole = features.transform(X)
    np.testing.assert_allclose(features.transform(X[:1]), whole[:1], atol=1e-15)
    np.testing.assert_allclose(features.transform(X[::2]), whole[::2], atol=1e-15)
    np.testing.assert_allclose(features.transform(np.asfortranarray(X)), whole, atol=1e-15)
    integers = features.transform(np.ones((2, 3), dtype=int))
    np.testing.assert_array_equal(integers, features.transform(np.ones((2, 3))))
    assert np.array_equal(integers[0], integers[1])


def test_paired_features_do_not_see_an_offset():
    X = rows(10)
    near, far = (FourierFeatures(3, 50, kind="paired").transform(X + c) for c in (0.0, 1e6))
    np.testing.assert_allclose(far @ far.T, near @ near.T, atol=1e-7)


def test_frozen_comparable_and_described_by_plain_values():
    features = FourierFeatures(np.int64(2), 4, np.array([1.0, 2.0]), seed=3, kind="paired")
    assert features.bandwidth == (1.0, 2.0)
    assert features == FourierFeatures(**asdict(features))
    assert hash(features) == hash(FourierFeatures(**asdict(features)))
    assert features != replace(features, seed=4)
    before = hash(features), asdict(features)
    features.transform(np.ones((1, 2)))
    assert (hash(features), asdict(features)) == before
    assert isinstance(FourierFeatures(2, 4, np.float32(0.5)).bandwidth, float)
    with pytest.raises(FrozenInstanceError):
        features.seed = 1
    with pytest.raises(ValueError, match="read-only"):
        features.frequencies[0, 0] = 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 0}, "width must be >= 1, got 0"),
        ({"n_components": 0}, "n_components must be >= 1, got 0"),
        ({"n_components": 5, "kind": "paired"}, "n_components must be even for kind 'paired', got 5"),
        ({"n_components": 2.0}, "n_components must be an integer, got 2.0"),
        ({"bandwidth": -1.0}, "bandwidth must be > 0, got -1.0"),
        ({"bandwidth": (1.0, 2.0)}, "bandwidth must be a vector of length 3"),
        ({"bandwidth": (1.0, 0.0, 2.0)}, "got 0.0 in column 1"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
        ({"kind": "cosine"}, "kind must be one of 'phase', 'paired', got 'cosine'"),
        ({"scale": "sqrt"}, "scale must be one of 'unbiased', 'half', got 'sqrt'"),
    ],
)
def test_bad_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        FourierFeatures(**{"width": 3, "n_components": 4, **arguments})


@pytest.mark.parametrize(
    ("X", "bandwidth", "message"),
    [
        (np.zeros((2, 4)), 1.0, "X must have 3 columns"),
        (np.full((2, 3), np.nan), 1.0, "X must be finite"),
        (np.zeros(3), 1.0, "X must be a matrix"),
        (np.full((2, 3), 1e300), 1e-300, "angles x W must fit float64"),
        (np.zeros((2, 3)), 5e-324, "angles x W must fit float64"),
        (np.ones((2, 3), dtype=np.float32), 1e-40, "angles x W must fit float32"),
    ],
)
def test_bad_rows(X, bandwidth, message):
    features = FourierFeatures(3, 4, bandwidth)
    with pytest.raises(ValueError, match=message):
        features.transform(X)
    with pytest.raises(ValueError, match=message):
        next(features.transform_blocks(X))


def test_bad_block_rows():
    with pytest.raises(ValueError, match="block_rows must be >= 1, got 0"):
        FourierFeatures(3, 4).transform_blocks(rows(), 0)

"""Q-aggregation against a transcription of KME Algorithm 1 and a general solver."""

from functools import partial

import numpy as np
import pytest

from kernfed.kernels import gaussian_gram, polynomial_gram
from kernfed.kernels.predictor import project_on_simplex
from kernfed.personal.weights import (
    EmbeddingKernel,
    aggregate,
    compare,
    compare_rows,
    embedding_bounds,
    linear_terms,
    minimise_on_simplex,
    penalty_constants,
)
from oracles import personal as oracle


def programme(rng, B, T, rank, scale=1.0):
    V = rng.standard_normal((B, rank))
    return scale * V @ V.T, scale * rng.standard_normal((T, B))


def kkt_residual(G, b, w):
    """Largest violation: weights off the simplex, or a gradient below the multiplier or above it where w > 0."""
    gradient = 2 * G @ w + b
    multiplier = w @ gradient
    return max(abs(w.sum() - 1), -w.min(), multiplier - gradient.min(), (w * (gradient - multiplier)).max())


@pytest.mark.parametrize(("B", "rank"), [(1, 1), (2, 1), (7, 3), (30, 30), (60, 10), (60, 200)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e8])
def test_the_programme_is_solved_to_1e_10(rng, B, rank, scale):
    G, b = programme(rng, B, 20, rank, scale)
    found = minimise_on_simplex(G, b)
    assert max(kkt_residual(G, row, w) for row, w in zip(b, found.weights, strict=True)) <= 1e-10 * np.abs(G).max()
    assert (found.gaps <= 1e-10 * np.abs(G).max()).all()


def test_the_programme_agrees_with_an_independent_solver(rng):
    G, b = programme(rng, 12, 6, 8)
    found = minimise_on_simplex(G, b).weights
    for row, w in zip(b, found, strict=True):
        other = oracle.minimise_simplex(lambda v, row=row: float(v @ G @ v + row @ v), 12)
        assert w @ G @ w + row @ w <= other @ G @ other + row @ other + 1e-12
        np.testing.assert_allclose(w, other, atol=1e-5)


def test_identical_sites_and_flat_programmes_have_a_solution():
    G = np.ones((5, 5))
    found = minimise_on_simplex(G, np.array([[0.0] * 5, [3.0, 1.0, 1.0, 2.0, 5.0]]))
    assert kkt_residual(G, np.zeros(5), found.weights[0]) <= 1e-10
    assert found.weights[1, [0, 3, 4]].tolist() == [0.0, 0.0, 0.0]


def test_solutions_do_not_depend_on_the_order_of_sites(rng):
    G, b = programme(rng, 40, 5, 60)
    order = rng.permutation(40)
    shuffled = minimise_on_simplex(G[np.ix_(order, order)], b[:, order]).weights
    np.testing.assert_allclose(shuffled, minimise_on_simplex(G, b).weights[:, order], atol=1e-8)


def test_a_matrix_that_is_not_symmetric_is_refused():
    with pytest.raises(ValueError, match="symmetric"):
        minimise_on_simplex([[1.0, 2.0], [0.0, 1.0]], [[0.0, 0.0]])


def test_the_projection_is_the_nearest_point(rng):
    rows = rng.standard_normal((20, 6))
    found = project_on_simplex(rows)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    for row, w in zip(rows, found, strict=True):
        other = oracle.minimise_simplex(lambda v, row=row: float(((v - row) ** 2).sum()), 6)
        np.testing.assert_allclose(w, other, atol=1e-6)


# Aggregation --------------------------------------------------------------------------------------------------------


def rows_of(rng, sizes, p=3, q=1):
    return [(rng.standard_normal((n, p)) + k % 2, rng.standard_normal((n, q))) for k, n in enumerate(sizes)]


def found_weights(kernel, sites, constants):
    embeddings = [kernel.embed(X, Y) for X, Y in sites]
    means = np.stack([entry.mean for entry in embeddings])
    forms = np.stack([kernel.forms(X, Y, means) for X, Y in sites])
    return aggregate(compare(embeddings, forms), constants, embedding_bounds(kernel, embeddings)).weights


@pytest.mark.parametrize("constants", [(0.0, 0.0), (0.3, 0.0), (0.0, 0.4), (0.5, 0.5)])
@pytest.mark.parametrize("kind", ["polynomial", "fourier"])
@pytest.mark.parametrize("columns", ["features", "both", (0, 3)])
def test_weights_minimise_algorithm_1(rng, kind, columns, constants):
    sites = rows_of(rng, [6, 9, 12, 7])
    kernel = EmbeddingKernel(3, 1, kind, columns, (1.0, 2.0, 3.0), 0.5, 20, seed=4)
    found = found_weights(kernel, sites, constants)
    phis = [kernel.features(kernel.rows(X, Y)) for X, Y in sites]
    for t, w in enumerate(found):
        bound = 1.0 if kind == "fourier" else float(np.sqrt((phis[t] ** 2).sum(axis=1).mean()))
        objective = oracle.aggregation_objective(phis, t, constants, bound)
        best = oracle.minimise_simplex(objective, len(sites))
        assert objective(w) <= objective(best) + 1e-9 * max(1.0, abs(objective(best)))


def test_the_first_term_is_unbiased_for_the_squared_error(rng):
    """2 Tr/n, not the printed Tr/n: over many draws, L(w) minus |v_t - mu_t|^2 has the mean of the true error."""
    w, n, true = np.array([0.4, 0.6]), 5, []
    found = []
    for _ in range(4000):
        a, b = rng.standard_normal((n, 2)), rng.standard_normal((n, 2)) + 0.5
        mixed = w[0] * a.mean(axis=0) + w[1] * b.mean(axis=0)
        true.append(float(mixed @ mixed))
        trace = float(np.trace(np.cov(a, rowvar=False)))
        found.append(float(((mixed - a.mean(axis=0)) ** 2).sum()) + 2 * w[0] * trace / n - trace / n)
    assert np.mean(found) == pytest.approx(np.mean(true), abs=0.02)
    assert np.mean(true) > 0.15  # the printed constant would be off by w_1 Tr/n = 0.16


@pytest.mark.parametrize(
    "kernel", [partial(gaussian_gram, bandwidth=1.3), partial(polynomial_gram, degree=2, offset=1)]
)
def test_any_kernel_on_pooled_rows_gives_the_terms_of_its_features(rng, kernel):
    sites = [rng.standard_normal((n, 2)) for n in (4, 6, 5)]
    found = compare_rows(sites, kernel)
    pooled = np.concatenate(sites)
    values, vectors = np.linalg.eigh(kernel(pooled, pooled))
    root = vectors * np.sqrt(np.maximum(values, 0.0))  # rows are features with these inner products
    phis = np.split(root, [4, 10])
    means = [phi.mean(axis=0) for phi in phis]
    np.testing.assert_allclose(found.gram, [[a @ b for b in means] for a in means], atol=1e-9)
    for t, phi in enumerate(phis):
        Sigma = np.cov(phi, rowvar=False)
        assert found.traces[t] == pytest.approx(np.trace(Sigma))
        expected = [(means[t] - m) @ Sigma @ (means[t] - m) for m in means]
        np.testing.assert_allclose(found.forms[t], expected, atol=1e-8)


def test_exact_and_pooled_polynomial_terms_agree(rng):
    sites = rows_of(rng, [5, 8])
    kernel = EmbeddingKernel(3, 1, "polynomial")
    embeddings = [kernel.embed(X, Y) for X, Y in sites]
    means = np.stack([entry.mean for entry in embeddings])
    exact = compare(embeddings, np.stack([kernel.forms(X, Y, means) for X, Y in sites]))
    pooled = compare_rows([np.hstack(site) for site in sites], partial(polynomial_gram, degree=2, offset=1.0))
    for name in ("gram", "traces", "forms", "counts"):
        np.testing.assert_allclose(getattr(exact, name), getattr(pooled, name), rtol=1e-9, atol=1e-12)


def test_one_site_learns_from_itself(rng):
    kernel = EmbeddingKernel(3, 1)
    assert found_weights(kernel, rows_of(rng, [4]), (1.0, 1.0)).tolist() == [[1.0]]


def test_identical_sites_share_alike_and_far_sites_do_not(rng):
    X, Y = rng.standard_normal((10, 3)), rng.standard_normal((10, 1))
    kernel = EmbeddingKernel(3, 1)
    same = found_weights(kernel, [(X, Y)] * 4, (0.0, 0.0))
    assert np.diag(same).max() < 1e-9  # others' rows are as good, and without the noise that L knows of
    far = found_weights(kernel, [(X, Y), (X + 50, Y), (X - 50, Y)], (3.0, 3.0))
    assert far[0, 0] > 0.9


def test_a_site_with_one_row_borrows_its_variance(rng):
    sites = rows_of(rng, [1, 8, 8])
    kernel = EmbeddingKernel(3, 1)
    embeddings = [kernel.embed(X, Y) for X, Y in sites]
    found = compare(embeddings)
    assert found.traces[0] == pytest.approx(np.median([embeddings[1].trace, embeddings[2].trace]))
    upper = found.traces[1] * found.distances[1] ** 2
    np.testing.assert_allclose(found.forms[1], upper)
    assert aggregate(found, (1.0, 1.0)).weights.shape == (3, 3)
    with pytest.raises(ValueError, match="at least 1 site must have 2 rows"):
        compare([embeddings[0], embeddings[0]])
    with pytest.raises(ValueError, match="at least 2 rows, got 1"):
        kernel.forms(*sites[0], np.zeros((1, kernel.dimension)))


def test_constants():
    assert penalty_constants("printed", 100) == pytest.approx((np.sqrt(np.log(100)), np.log(100)))
    assert penalty_constants((1, 2), 100) == (1.0, 2.0)
    with pytest.raises(ValueError, match="C_Q must be >= 0"):
        penalty_constants((-1, 2), 100)
    with pytest.raises(ValueError, match="must be 'auto', 'printed'"):
        penalty_constants((1, 2, 3), 100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bandwidth": -1.0}, "bandwidth must be > 0"),
        ({"bandwidth": (1.0, 0.0, 1.0)}, "bandwidth must be > 0"),
        ({"target_bandwidth": -0.5}, "target_bandwidth must be > 0"),
        ({"columns": (0, 9)}, "columns must be among"),
        ({"columns": ()}, "columns must be"),
        ({"columns": (1, 1)}, "different numbers"),
        ({"kind": "linear"}, "kernel"),
        ({"n_components": 7}, "even"),
    ],
)
def test_kernels_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        EmbeddingKernel(3, 1, **options)


def test_a_kernel_travels_as_plain_values():
    kernel = EmbeddingKernel(3, 2, "fourier", (0, 4), (1.0, 2.0, 3.0), 0.5, 20, seed=4)
    assert EmbeddingKernel.from_values(kernel.to_values()) == kernel


def test_linear_terms_hold_the_whole_objective(rng):
    sites = rows_of(rng, [6, 9, 12])
    kernel = EmbeddingKernel(3, 1, n_components=20)
    embeddings = [kernel.embed(X, Y) for X, Y in sites]
    means = np.stack([entry.mean for entry in embeddings])
    found = compare(embeddings, np.stack([kernel.forms(X, Y, means) for X, Y in sites]))
    phis = [kernel.features(kernel.rows(X, Y)) for X, Y in sites]
    w = np.array([0.2, 0.5, 0.3])
    value = w @ found.gram @ w + linear_terms(found, (0.7, 0.2))[1] @ w + found.gram[1, 1]
    assert value == pytest.approx(oracle.aggregation_objective(phis, 1, (0.7, 0.2), 1.0)(w))

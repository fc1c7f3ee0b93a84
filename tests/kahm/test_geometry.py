"""The fast path equals the literal equations, within the tolerance of the precision, on good and degenerate data."""

from functools import cache
from itertools import product

import numpy as np
import pytest

from kernfed import KAHM, DeepKAHM, WideKAHM
from kernfed.kahm.folding import MEASURES
from oracles.kahm import WIDE, literal_deep, literal_kahm, literal_measure

#: |d^2 - d^2_literal| <= TOLERANCE * s^2, s the largest centred norm of query and rows.
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
#: Measures in [0, 1] have an absolute tolerance: the square root doubles the distance to the last digit.
MEASURE_TOLERANCE = {"float64": 1e-11, "float32": 2e-3}
SHAPES = [(30, 50), (60, 5), (150, 3), (50, 20), (21, 21), (3, 200), (120, 40), (2, 7), (1, 4), (40, 1)]


def queries_for(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Near, on and far from the rows."""
    spread = rows.std() + 0.1
    centre = rows.mean(axis=0)
    near = centre + spread * rng.standard_normal((6, rows.shape[1]))
    far = centre + 1e4 * spread * rng.standard_normal((3, rows.shape[1]))
    return np.vstack([near, rows[:3], far])


def scale_of(rows: np.ndarray, queries: np.ndarray) -> np.ndarray:
    centre = rows.mean(axis=0)
    return np.maximum(np.square(queries - centre).sum(axis=1), np.square(rows - centre).sum(axis=1).max())


def assert_matches(model, rows, queries, images, dtype) -> None:
    squared = np.square(queries.astype(WIDE) - images).sum(axis=1)
    error = np.abs(model.distance(queries).astype(WIDE) ** 2 - squared)
    assert (error <= TOLERANCE[dtype] * scale_of(rows, queries) + 1e-300).all()


@cache
def literal_images(shape: tuple[int, int], rows: bytes, queries: bytes) -> np.ndarray:
    """Images by the literal equations, which take a second: once for both precisions and all measures."""
    queried = np.frombuffer(queries).reshape(-1, shape[1])
    return literal_kahm(np.frombuffer(rows).reshape(shape)).image(queried)


@cache
def literal_deep_images(shape: tuple[int, int], rows: bytes, queries: bytes, layers: int) -> np.ndarray:
    queried = np.frombuffer(queries).reshape(-1, shape[1])
    return literal_deep(np.frombuffer(rows).reshape(shape), queried, layers)[0]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("shape", SHAPES)
def test_distance_is_the_literal_one(shape, offset, dtype, rng):
    rows = rng.standard_normal(shape) + offset
    queries = queries_for(rows, rng)
    images = literal_images(shape, rows.tobytes(), queries.tobytes())
    assert_matches(KAHM(dtype=dtype, scale=None).fit(rows), rows, queries, images, dtype)


@pytest.mark.parametrize(("dtype", "layers"), list(product(TOLERANCE, [2, 5])))
@pytest.mark.parametrize("shape", [(30, 50), (60, 5), (70, 30), (5, 9), (2, 7), (1, 4)])
def test_deep_is_the_literal_composition(shape, dtype, layers, rng):
    rows = rng.standard_normal(shape) + 0.5
    queries = queries_for(rows, rng)
    images = literal_deep_images(shape, rows.tobytes(), queries.tobytes(), layers)
    assert_matches(DeepKAHM(layers=layers, dtype=dtype, scale=None).fit(rows), rows, queries, images, dtype)


def test_deep_chooses_the_layer_by_distance_for_every_measure():
    generator = np.random.default_rng(2)
    rows = generator.standard_normal((8, 3))
    queries = 0.1 * generator.standard_normal((100, 3))
    images, chosen = literal_deep(rows, queries, 4)
    assert len(set(chosen.tolist())) > 1  # otherwise this would show nothing
    for measure in MEASURES:
        expected = literal_measure(measure, queries, images)
        np.testing.assert_allclose(
            DeepKAHM(layers=4, scale=None).fit(rows).folding(queries, measure), expected, rtol=1e-9
        )


@pytest.mark.parametrize(("measure", "dtype"), list(product(MEASURES, TOLERANCE)))
@pytest.mark.parametrize("shape", [(30, 50), (60, 5), (2, 7)])
def test_measures_are_the_literal_ones(shape, measure, dtype, rng):
    rows = 0.3 * rng.standard_normal(shape) + 0.2
    queries = queries_for(rows, rng)
    images = literal_images(shape, rows.tobytes(), queries.tobytes())
    expected = literal_measure(measure, queries, images).astype(np.float64)
    found = KAHM(dtype=dtype, scale=None).fit(rows).folding(queries, measure)
    np.testing.assert_allclose(found, expected, rtol=MEASURE_TOLERANCE[dtype], atol=MEASURE_TOLERANCE[dtype])
    if measure != "distance":
        assert (found >= 0).all()
        assert (found <= 1).all()


def test_wide_is_the_nearest_of_its_machines(rng):
    rows = rng.standard_normal((90, 6))
    wide = WideKAHM(batch_size=30, partition="random", random_state=3, scale=None).fit(rows)
    queries = queries_for(rows, rng)
    branches = [literal_kahm(rows[part]) for part in wide.batches_]
    assert sorted(np.concatenate(wide.batches_).tolist()) == list(range(90))
    distances = np.stack([branch.distance(queries) for branch in branches]).astype(np.float64)
    np.testing.assert_allclose(wide.distance(queries), distances.min(axis=0), rtol=1e-10)
    images = np.stack([branch.image(queries) for branch in branches])[distances.argmin(axis=0), np.arange(len(queries))]
    np.testing.assert_allclose(wide.image(queries), images.astype(np.float64), atol=1e-9)


@pytest.mark.parametrize("shape", [(30, 50), (60, 5), (21, 21)])
def test_fitted_values_are_the_literal_ones(shape, rng):
    rows = rng.standard_normal(shape)
    machine, literal = KAHM(scale=None).fit(rows), literal_kahm(rows)
    assert machine.subspace_dim_ == literal.n
    assert machine.regularization_ == pytest.approx(float(literal.lam), rel=1e-13)
    np.testing.assert_allclose(np.abs(machine.encoding_ @ literal.P.T), np.eye(literal.n), atol=1e-9)
    queries = queries_for(rows, rng)[:9]
    np.testing.assert_allclose(machine.memberships(queries), literal.memberships(queries).astype(float), atol=1e-12)
    np.testing.assert_allclose(machine.image(queries), literal.image(queries).astype(float), atol=1e-11)


def test_smoothed_rows_are_affine_combinations(rng):
    """The weights of an image sum to one, so moving all points moves the image, for lambda held."""
    rows = rng.standard_normal((25, 4))
    memberships = KAHM(scale=None).fit(rows).memberships(rows)
    weights = memberships / memberships.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(KAHM(scale=None).fit(rows).image(rows), weights @ rows, atol=1e-12)


DEGENERATE = {
    "identical rows": np.full((7, 3), 2.5),
    "identical rows in many columns": np.full((7, 300), -1.0),
    "zeros": np.zeros((4, 5)),
    "one row": np.array([[1.0, -2.0, 3.0]]),
    "two rows": np.array([[1.0, -2.0, 3.0], [2.0, 0.0, 0.0]]),
    "two equal rows": np.array([[1.0, 2.0], [1.0, 2.0]]),
    "duplicates": np.repeat(np.random.default_rng(0).standard_normal((5, 4)), 6, axis=0),
    "constant columns": np.column_stack([np.random.default_rng(1).standard_normal((20, 3)), np.ones((20, 4))]),
    "below the span": 1e-5 * np.random.default_rng(2).standard_normal((20, 6)),
    "one direction": np.outer(np.arange(12.0), np.ones(5)),
    "wide range of scales": np.random.default_rng(3).standard_normal((40, 6)) * 10.0 ** np.arange(3, -3, -1),
    "short directions": np.random.default_rng(4).standard_normal((12, 40)) * np.repeat([1, 1e-8], [5, 35]),
    "integers": np.random.default_rng(5).integers(0, 255, (30, 10)),
    "single column": np.linspace(-1, 1, 15)[:, None],
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_rows(name, dtype, rng):
    rows = DEGENERATE[name]
    queries = queries_for(rows.astype(float), rng)
    machine = KAHM(dtype=dtype, scale=None).fit(rows)
    literal = literal_kahm(rows.astype(float))
    assert machine.subspace_dim_ == literal.n
    assert_matches(machine, rows.astype(float), queries, literal.image(queries), dtype)
    for measure in MEASURES:
        assert np.isfinite(machine.folding(queries, measure)).all()


def test_no_usable_dimension_maps_to_the_mean(rng):
    machine = KAHM(scale=None).fit(np.full((6, 4), 3.0))
    assert machine.subspace_dim_ == 0
    np.testing.assert_allclose(machine.image(rng.standard_normal((5, 4))), 3.0)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_memory_layout_and_integer_type_do_not_matter(dtype, rng):
    rows = rng.integers(-5, 6, (40, 12))
    queries = rng.integers(-5, 6, (9, 12))
    expected = KAHM(dtype=dtype, scale=None).fit(rows.astype(float)).distance(queries.astype(float))
    stretched = np.repeat(np.repeat(rows, 2, axis=0), 3, axis=1)[::2, ::3]
    variants = [np.asfortranarray(rows), stretched, rows.astype(np.int16), rows.tolist()]
    for variant in variants:
        assert (KAHM(dtype=dtype, scale=None).fit(variant).distance(queries) == expected).all()
    assert (KAHM(dtype=dtype, scale=None).fit(rows).distance(np.asfortranarray(queries)) == expected).all()


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_far_queries_are_finite_where_the_literal_kernel_underflows(dtype, rng):
    rows = rng.standard_normal((30, 8))
    far = np.concatenate([10.0**power * rng.standard_normal((4, 8)) for power in (2, 5, 10, 20, 30)])
    machine = KAHM(dtype=dtype, scale=None).fit(rows)
    literal = literal_kahm(rows)
    assert (literal.kernel(far, rows).astype(float).sum(axis=1) == 0).any()  # the printed formula is 0/0 here
    assert np.isfinite(machine.image(far)).all()
    np.testing.assert_allclose(machine.distance(far), literal.distance(far).astype(float), rtol=1e-5)
    assert np.abs(machine.image(far)).max() < 100


def test_queries_near_the_end_of_the_number_range_are_finite(rng):
    rows = rng.standard_normal((30, 8))
    far = 1e200 * rng.standard_normal((4, 8))
    for dtype in TOLERANCE:
        machine = KAHM(dtype=dtype, scale=None).fit(rows)
        np.testing.assert_allclose(machine.distance(far), 1e200 * np.linalg.norm(far / 1e200, axis=1), rtol=1e-6)
        assert np.isfinite(machine.image(far)).all()
        assert (np.abs(machine.folding(far, "cosine")) <= 1).all()


def test_zero_vector_has_no_angle(rng):
    machine = KAHM(scale=None).fit(rng.standard_normal((20, 3)))
    assert machine.folding(np.zeros((1, 3)), "cosine") == [0.5]
    assert KAHM(scale=None).fit(np.zeros((3, 3))).folding(np.ones((1, 3)), "cosine") == [0.5]


def test_small_angles_keep_their_digits():
    """The arccosine of a rounded cosine would return 0 or 1.5e-8 here."""
    rows = np.array([[1.0, 0.0]])
    query = np.array([[1.0, 1e-9]])
    assert KAHM(scale=None).fit(rows).folding(query, "cosine")[0] == pytest.approx(1e-9 / np.pi, rel=1e-6)


@pytest.mark.parametrize("dim", [1, 3, 40])
def test_given_dimension_is_lowered_by_the_range_rule_only(dim, rng):
    scales = np.concatenate([np.ones(30), np.full(30, 1e-5)])
    machine = KAHM(subspace_dim=dim, scale=None).fit(rng.standard_normal((80, 60)) * scales)
    assert machine.subspace_dim_ == min(dim, 30)

import numpy as np
import pytest
import scipy.linalg.lapack
from hypothesis import given, settings
from hypothesis import strategies as st

from kernfed.base import threads as _threads
from kernfed.errors import InputError
from kernfed.kernels import FourierFeatures, Moments
from kernfed.kernels import moments as module
from oracles import kernels as oracle

PROPERTY = settings(deadline=None, max_examples=60, derandomize=True)


def sample(n, p=3, q=2, seed=0, offset=0.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)) * np.logspace(-1, 1, p) + offset
    return X, X[:, :1] * np.ones(q) + rng.normal(size=(n, q)) + offset


def assert_close(a, b, rtol=1e-12, total=None):
    """Equal to rounding, in units of the scatter and mean of ``total`` (which for a difference is the minuend)."""
    reference = a if total is None else total
    assert (a.n, a.width, a.targets) == (b.n, b.width, b.targets)
    # A mean at offset m is known to eps m, which n rows turn into a scatter of n (eps m)^2 and eps m times a step.
    size = np.diag(reference.joint_scatter) + reference.n * (1 + np.abs(reference.joint_mean)) * 1e-3
    root = np.sqrt(size)
    np.testing.assert_array_less(np.abs(a.joint_scatter - b.joint_scatter), rtol * np.outer(root, root) + 1e-300)
    scale = reference.n / max(a.n, 1) * (1 + np.abs(reference.joint_mean) + root)
    np.testing.assert_array_less(np.abs(a.joint_mean - b.joint_mean), rtol * scale + 1e-300)


CASES = {
    "plain": sample(20),
    "offset": sample(20, offset=1e6),
    "one row": sample(1),
    "two rows": sample(2),
    "more columns than rows": sample(3, p=10),
    "one column, one target": sample(9, p=1, q=1),
    "duplicates": tuple(np.repeat(side, 4, axis=0) for side in sample(3)),
    "identical at an offset": tuple(np.repeat(side, 7, axis=0) for side in sample(1, offset=1e6 + 0.1)),
    "constant column": (np.c_[sample(8)[0], np.full(8, 0.1)], sample(8)[1]),
    "integers": (np.arange(12).reshape(4, 3), np.arange(4)[:, None]),
    "not contiguous": tuple(side[::2] for side in sample(20)),
}


@pytest.mark.parametrize("block_rows", [1, 3, 4096])
@pytest.mark.parametrize("name", CASES)
def test_equal_to_exact_sums(name, block_rows):
    X, y = CASES[name]
    moments = Moments.from_rows(X, y, block_rows=block_rows)
    assert (moments.n, moments.width, moments.targets) == (len(X), X.shape[1], y.shape[1])
    np.testing.assert_allclose(moments.mean, oracle.mean_of(X), rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(moments.y_mean, oracle.mean_of(y), rtol=1e-14, atol=1e-15)
    for result, A, B in ((moments.scatter, X, X), (moments.cross_scatter, X, y), (moments.y_scatter, y, y)):
        expected = oracle.scatter_of(A, B)
        scale = np.sqrt(np.outer(np.diag(oracle.scatter_of(A, A)), np.diag(oracle.scatter_of(B, B))))
        # Around a mean of 1e6 a coordinate is known to 1e-10.
        blur = np.abs(X).max() * 1e-16
        assert (np.abs(result - expected) <= 1e-13 * scale + len(X) * blur * (blur + np.sqrt(scale.max()))).all()
    for raw, A, B in ((moments.second, X, X), (moments.cross, X, y), (moments.y_second, y, y)):
        np.testing.assert_allclose(raw, np.asarray(A, float).T @ np.asarray(B, float), rtol=1e-12, atol=1e-12)


def test_an_offset_does_not_cost_accuracy():
    X, y = sample(1000, offset=1e6)
    moments = Moments.from_rows(X, y, block_rows=7)
    exact = oracle.scatter_of(X, X) / 999
    root = np.sqrt(np.diag(exact))
    assert (np.abs(moments.covariance - exact) / np.outer(root, root)).max() < 1e-9
    raw = (X.T @ X - 1000 * np.outer(X.mean(0), X.mean(0))) / 999
    assert (np.abs(raw - exact) / np.outer(root, root)).max() > 1e-3, "the offset must be able to hurt"


def test_identical_rows_have_zero_scatter():
    X = np.full((1000, 3), [1e6 + 0.1, 0.3, -7e-9])
    for block_rows in (1, 64, 4096):
        assert not Moments.from_rows(X, block_rows=block_rows).scatter.any()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_lower_precision_is_accumulated_in_float64(dtype):
    X = sample(500)[0].astype(dtype)
    a, b = Moments.from_rows(X), Moments.from_rows(X.astype(np.float64))
    assert a.mean.dtype == a.scatter.dtype == np.float64
    assert a == b


def test_covariance_is_the_usual_one():
    X, y = sample(30)
    np.testing.assert_allclose(Moments.from_rows(X, y).covariance, np.cov(X.T), rtol=1e-12)
    for few in (Moments.zero(3), Moments.from_rows(X[:1])):
        with pytest.raises(ValueError, match=f"at least 2 rows, got {few.n}"):
            _ = few.covariance


def test_targets_are_optional_and_may_be_a_vector():
    X, y = sample(8, q=1)
    without = Moments.from_rows(X)
    assert without.targets == 0
    assert without.cross.shape == (3, 0)
    assert without.y_second.shape == (0, 0)
    vector = Moments.from_rows(X, y[:, 0])
    assert vector == Moments.from_rows(X, y)
    np.testing.assert_allclose(vector.scatter, without.scatter, rtol=1e-14, atol=1e-14)


def test_blocks_of_a_stream():
    X, y = sample(17)
    stream = ((X[start : start + 5], y[start : start + 5]) for start in range(0, 17, 5))
    assert_close(Moments.from_blocks(stream, width=3, targets=2), Moments.from_rows(X, y))
    assert_close(Moments.from_blocks([X[:4], X[4:4], X[4:]], width=3), Moments.from_rows(X))
    assert Moments.from_blocks([], width=3, targets=2) == Moments.zero(3, 2)
    with pytest.raises(ValueError, match=r"same \(width, targets\) \(3, 0\), got \(3, 2\)"):
        Moments.from_blocks([(X, y)], width=3)
    with pytest.raises(ValueError, match="X must have 4 columns"):
        Moments.from_blocks([X], width=4)


def test_features_are_mapped_block_by_block():
    X, y = sample(40)
    features = FourierFeatures(3, 6, seed=1)
    seen = []

    def transform(rows):
        seen.append(len(rows))
        return features.transform(rows)

    moments = Moments.from_rows(X, y, features=transform, block_rows=16)
    assert seen == [16, 16, 8]
    assert_close(moments, Moments.from_rows(features.transform(X), y))
    assert Moments.from_rows(X[:0], y[:0], features=features.transform) == Moments.zero(6, 2)
    with pytest.raises(ValueError, match="a row for each of the 40 given, got 39"):
        Moments.from_rows(X, features=lambda rows: rows[1:])


def test_row_weights_by_scaling_rows():
    X, y = sample(12)
    w = np.random.default_rng(3).uniform(0, 4, size=12)
    root = np.sqrt(w)[:, None]
    moments = Moments.from_rows(root * X, root * y)
    np.testing.assert_allclose(moments.second, X.T @ np.diag(w) @ X)
    np.testing.assert_allclose(moments.cross, X.T @ np.diag(w) @ y)


class TestAlgebra:
    @staticmethod
    @st.composite
    def parts(draw, count=2):
        p, q = draw(st.integers(1, 4)), draw(st.integers(0, 2))
        offset = draw(st.sampled_from([0.0, 1.0, 1e3, -1e6]))
        made = []
        for _ in range(count):
            n = draw(st.integers(0, 30))
            X, y = sample(n, p, q, seed=draw(st.integers(0, 10**6)), offset=offset)
            if n and draw(st.booleans()):  # duplicate rows and constant columns
                X, y = np.repeat(X[:1], n, axis=0), np.repeat(y[:1], n, axis=0)
            made.append((X, y if q else None))
        return made

    @PROPERTY
    @given(parts())
    def test_adding_is_pooling_and_subtracting_undoes_it(self, data):
        a, b = (Moments.from_rows(X, y) for X, y in data)
        pooled = [None if side[0] is None else np.vstack(side) for side in zip(*data, strict=True)]
        total = a + b
        assert_close(total, Moments.from_rows(*pooled))
        assert_close(total, b + a)
        assert_close(total - b, a, rtol=1e-11, total=total)
        assert_close(total - a, b, rtol=1e-11, total=total)
        assert (total - b).scatter.diagonal().min(initial=0.0) >= 0.0

    @PROPERTY
    @given(parts(count=3))
    def test_order_changes_only_rounding_and_everything_can_be_taken_out(self, data):
        a, b, c = (Moments.from_rows(X, y) for X, y in data)
        assert_close((a + b) + c, a + (b + c))
        zero = Moments.zero(a.width, a.targets)
        assert sum([a, b, c], zero) - (a + b + c) == zero
        assert a + zero == a == zero + a == a - zero
        assert a - a == zero

    @pytest.mark.parametrize("keep", [1, 2, 5])
    @pytest.mark.parametrize("offset", [0.0, 1e6])
    def test_taking_out_nearly_everything(self, keep, offset):
        X, y = sample(5000, offset=offset)
        total = Moments.from_rows(X, y)
        rest = total - Moments.from_rows(X[keep:], y[keep:])
        assert_close(rest, Moments.from_rows(X[:keep], y[:keep]), rtol=1e-11, total=total)
        if keep == 1:
            assert not rest.joint_scatter.any()

    @PROPERTY
    @given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 300))
    def test_wild_columns_are_neither_refused_nor_lost(self, seed, keep, rest):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(keep + rest, 6)) * 10.0 ** rng.integers(-6, 6, size=6)
        X += rng.choice([0.0, 1.0, 1e3, 1e6, 1e9], size=6)
        X[:, 1] = 2 * X[:, 0]
        a, b = Moments.from_rows(X[:keep]), Moments.from_rows(X[keep:])
        total = a + b
        for part in (total, total - a, total - b):
            assert Moments.from_arrays(part.to_arrays()) == part

    def test_what_cannot_have_been_part_is_refused(self):
        X, y = sample(20)
        a = Moments.from_rows(X, y)
        with pytest.raises(ValueError, match="cannot take 20 rows out of the moments of 5"):
            Moments.from_rows(X[:5], y[:5]) - a
        for wrong in (X[:10] * 3, X[:10] + 50.0, X[:10][:, ::-1]):
            with pytest.raises(ValueError, match=r"positive semi-definite.*cannot have been part"):
                a - Moments.from_rows(wrong, y[:10])
        # No column spreads too much by itself, only a direction between them.
        two = (
            np.random.default_rng(0).normal(size=(40, 1)) * [1.0, 1.0]
            + np.random.default_rng(1).normal(size=(40, 2)) / 9
        )
        with pytest.raises(ValueError, match="positive semi-definite"):
            Moments.from_rows(two) - Moments.from_rows(two[:20] * [0.5, -0.5])
        for wrong in (X + 1.0, X * 1.01):
            with pytest.raises(ValueError, match="cannot take all 20 rows out"):
                a - Moments.from_rows(wrong, y)

    def test_widths_must_agree(self):
        a = Moments.zero(3, 1)
        for other in (Moments.zero(4, 1), Moments.zero(3, 0), Moments.zero(2, 2)):
            with pytest.raises(ValueError, match=r"same \(width, targets\) \(3, 1\)"):
                a + other
            with pytest.raises(ValueError, match=r"same \(width, targets\) \(3, 1\)"):
                a - other
        for operation in ("__add__", "__sub__", "__eq__"):
            assert getattr(a, operation)(1) is NotImplemented

    def test_equality_is_exact(self):
        X, y = sample(6)
        a = Moments.from_rows(X, y)
        assert a == Moments.from_rows(X.copy(), y.copy())
        X[0, 0] += 1e-9
        assert a != Moments.from_rows(X, y)
        assert Moments.zero(2, 1) != Moments.zero(1, 2)
        with pytest.raises(TypeError, match="unhashable"):
            hash(a)


class TestMessages:
    @pytest.mark.parametrize("q", [0, 2])
    @pytest.mark.parametrize("n", [0, 1, 9])
    def test_round_trip_is_exact(self, n, q):
        X, y = sample(n, q=q, offset=1e6)
        moments = Moments.from_rows(X, y if q else None)
        arrays = moments.to_arrays()
        assert all(isinstance(value, np.ndarray) for value in arrays.values())
        assert arrays["scatter"].shape == ((3 + q) * (4 + q) // 2,)
        assert Moments.from_arrays(arrays) == moments
        assert Moments.from_arrays({name: value.tolist() for name, value in arrays.items()}) == moments

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"n": -1}, "n must be >= 0, got -1"),
            ({"n": 2.5}, "n must be an integer, got 2.5"),
            ({"n": 0}, "moments of no rows must be zero"),
            ({"n": np.array([1, 2])}, "n must be an integer"),
            ({"width": 4}, "width must be <= 3, got 4"),
            ({"width": 0}, "width must be >= 1, got 0"),
            ({"mean": np.zeros((3, 1))}, r"mean must be a vector of length 3, got shape \(3, 1\)"),
            ({"mean": np.array([0.0, np.nan, 0.0])}, "mean must be finite"),
            ({"scatter": np.zeros(5)}, "scatter must be a vector of length 6"),
            ({"scatter": np.array([1.0, 0, 0, np.inf, 0, 1])}, "scatter must be finite"),
            ({"scatter": np.array([1.0, 0, 0, -1.0, 0, 1])}, r"positive semi-definite.*noisy=True"),
            ({"scatter": np.array([1.0, 2.0, 0, 1.0, 0, 1])}, "positive semi-definite"),
            ({"scatter": np.array([0.0, 1.0, 0, 1.0, 0, 1])}, "positive semi-definite"),
            ({"extra": 1}, "moments must have exactly"),
        ],
    )
    def test_a_hostile_message_is_refused(self, change, message):
        good = Moments.from_rows(sample(9, q=0)[0]).to_arrays()
        with pytest.raises(ValueError, match=message):
            Moments.from_arrays({**good, **change})

    def test_a_missing_array_is_named(self):
        with pytest.raises(ValueError, match=r"exactly \['mean', 'n', 'scatter', 'width'\], got \['n'\]"):
            Moments.from_arrays({"n": 1})

    def test_noise_may_leave_negative_eigenvalues(self):
        arrays = Moments.from_rows(sample(9, q=0)[0]).to_arrays()
        arrays["scatter"] = arrays["scatter"] - np.array([0, 0, 0, 50.0, 0, 0])
        noisy = Moments.from_arrays(arrays, noisy=True)
        assert np.linalg.eigvalsh(noisy.scatter).min() < 0
        assert np.array_equal(noisy.scatter, noisy.scatter.T)
        assert (noisy + noisy).n == 18


def test_arrays_are_read_only_and_arguments_unchanged():
    X, y = sample(6)
    copies = X.copy(), y.copy()
    moments = Moments.from_rows(X, y)
    for array in (moments.mean, moments.scatter, moments.joint_mean, moments.joint_scatter):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0
    moments.second[0, 0] = 1.0  # computed anew: the caller's own
    own = np.zeros(3)
    Moments(0, 3, own, np.zeros((3, 3)))
    own[0] = 1.0  # a caller's array does not become read-only
    assert np.array_equal(X, copies[0])
    assert np.array_equal(y, copies[1])


def test_scatter_is_exactly_symmetric():
    X, y = sample(50, p=7)
    a, b = Moments.from_rows(X[:30], y[:30], block_rows=9), Moments.from_rows(X[30:], y[30:])
    for moments in (a, a + b, (a + b) - b):
        assert np.array_equal(moments.joint_scatter, moments.joint_scatter.T)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.ones((3, 2)), np.ones(2), "y must have a row for each of the 3 rows of X, got 2"),
        (np.ones((3, 2)), np.array([1, np.nan, 2]), "y must be finite"),
        (np.ones((3, 2)), ["a", "b", "c"], "y must hold real numbers"),
        (np.ones((3, 2)), np.ones((3, 1, 1)), "y must be a matrix"),
        (np.array([[np.inf, 1.0]]), None, "X must be finite"),
        (np.ones(3), None, "X must be a matrix"),
        (np.ones((3, 0)), None, "at least 1 column"),
        (np.array([[1e200], [0.0]]), None, "overflow; rescale"),
    ],
)
def test_bad_rows(X, y, message):
    with pytest.raises(ValueError, match=message):
        Moments.from_rows(X, y)


@pytest.mark.parametrize(("width", "targets"), [(0, 0), (2, -1), (1.5, 0)])
def test_bad_widths(width, targets):
    with pytest.raises(ValueError, match="must be"):
        Moments.zero(width, targets)


def scatter_with(smallest, rng, k=6):
    """A symmetric matrix (k, k) of unit diagonal size whose smallest eigenvalue is this."""
    vectors, _ = np.linalg.qr(rng.standard_normal((k, k)))
    matrix = (vectors * np.concatenate([[smallest], np.linspace(0.5, 1.5, k - 1)])) @ vectors.T
    return (matrix + matrix.T) / 2


@pytest.mark.parametrize("smallest", [1.0, 1e-7, 0.0, -1e-11, -1e-7, -1e-3, -1.0])
def test_scatters_are_refused_as_by_cholesky_of_the_scaled_matrix(smallest, rng):
    scatter = scatter_with(smallest, rng)
    size = np.abs(np.diag(scatter)) + 0.1
    scaled = scatter / np.sqrt(np.outer(size, size)) + 1e-9 * np.eye(len(scatter))
    try:
        np.linalg.cholesky(scaled)
    except np.linalg.LinAlgError:
        with pytest.raises(InputError, match="positive semi-definite"):
            module._check_psd(scatter, size, "because")
    else:
        module._check_psd(scatter, size, "because")


@pytest.mark.parametrize("scatter", [np.zeros((3, 3)), np.ones((4, 4)), np.diag([1.0, 0.0, 2.0])])
def test_scatters_without_full_rank_are_taken(scatter):
    before = scatter.copy()
    module._check_psd(scatter, np.diag(scatter), "because")
    np.testing.assert_array_equal(scatter, before)


def test_scatters_are_checked_on_one_thread_of_blas(monkeypatch):
    users, factorise = [], scipy.linalg.lapack.dpotrf

    def counted(*arguments, **options):
        users.append(_threads._users)
        return factorise(*arguments, **options)

    monkeypatch.setattr(scipy.linalg.lapack, "dpotrf", counted)
    Moments.from_arrays(Moments.from_rows(np.arange(12.0).reshape(4, 3)).to_arrays())
    assert users == [1]

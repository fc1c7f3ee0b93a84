import numpy as np
import pytest
from scipy.fft import dctn

from kernfed.privacy import public_basis


@pytest.mark.parametrize("basis", ["random", "dct"])
@pytest.mark.parametrize(
    ("width", "dimension", "shape"), [(1, 1, None), (10, 4, None), (16, 16, None), (24, 7, (2, 3, 4))]
)
def test_columns_are_orthonormal_and_do_not_change(basis, width, dimension, shape):
    matrix = public_basis(basis, width, dimension, shape=shape)
    assert matrix.shape == (width, dimension)
    assert np.allclose(matrix.T @ matrix, np.eye(dimension), atol=1e-12)
    assert np.array_equal(matrix, public_basis(basis, width, dimension, shape=shape))


def test_more_dimensions_of_the_cosine_basis_extend_fewer():
    assert np.array_equal(public_basis("dct", 36, 20)[:, :7], public_basis("dct", 36, 7))


@pytest.mark.parametrize("shape", [(6,), (4, 5), (2, 3, 4)])
def test_cosine_coordinates_are_the_transform(rng, shape):
    image = rng.standard_normal(shape)
    coordinates = image.ravel() @ public_basis("dct", image.size, image.size, shape=shape)
    assert np.allclose(np.sort(coordinates), np.sort(dctn(image, norm="ortho").ravel()), atol=1e-12)


def test_cosine_basis_takes_the_lowest_frequencies_first():
    y, x = np.mgrid[0:8, 0:8]
    smooth = np.cos(np.pi * (2 * x + 1) / 16).ravel() + 3.0
    rough = ((x + y) % 2 - 0.5).ravel()
    basis = public_basis("dct", 64, 3)
    assert np.allclose(basis @ (basis.T @ smooth), smooth, atol=1e-12)
    assert np.linalg.norm(basis.T @ rough) < 0.3 * np.linalg.norm(rough)


def test_a_seed_chooses_the_random_basis():
    assert not np.allclose(public_basis("random", 9, 3, seed=0), public_basis("random", 9, 3, seed=1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dimension": 7}, "dimension must be <= 6"),
        ({"dimension": 0}, "dimension must be >= 1"),
        ({"basis": "wavelet"}, "basis must be one of 'random', 'dct'"),
        ({"basis": np.ones((6, 2))}, "orthonormal"),
        ({"basis": np.eye(6)}, r"basis must have shape \(6, 2\)"),
        ({"basis": np.full((6, 2), np.nan)}, "basis must be finite"),
        ({"basis": "dct", "shape": (2, 2)}, "shape must hold the 6 columns"),
        ({"basis": "dct", "shape": 6}, "shape must be a tuple"),
        ({"basis": "dct", "shape": (-2, -3)}, "shape must be >= 1"),
        ({"seed": -1}, "seed must be >= 0"),
    ],
)
def test_bad_bases(arguments, message):
    with pytest.raises(ValueError, match=message):
        public_basis(**{"basis": "random", "width": 6, "dimension": 2, **arguments})

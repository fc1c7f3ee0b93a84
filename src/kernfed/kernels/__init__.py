"""Kernels and what is computed from them: Gram matrices, random features, moments, mean embeddings."""

from kernfed.base.threads import single_blas_thread
from kernfed.kernels.embedding import MeanEmbedding, mmd_squared, mmd_squared_gram, mmd_squared_rows
from kernfed.kernels.features import (
    FourierFeatures,
    column_bandwidths,
    gaussian_gram,
    median_bandwidth,
    polynomial_gram,
    quadratic_features,
    squared_distances,
)
from kernfed.kernels.moments import Moments
from kernfed.kernels.rows import FeatureMap, row_blocks

__all__ = [
    "FeatureMap",
    "FourierFeatures",
    "MeanEmbedding",
    "Moments",
    "column_bandwidths",
    "gaussian_gram",
    "median_bandwidth",
    "mmd_squared",
    "mmd_squared_gram",
    "mmd_squared_rows",
    "polynomial_gram",
    "quadratic_features",
    "row_blocks",
    "single_blas_thread",
    "squared_distances",
]

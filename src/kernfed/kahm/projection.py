"""Queries in a public basis, through which the rows of a release went."""

import numpy as np

from kernfed.base.checks import FloatArray
from kernfed.base.threads import single_blas_thread
from kernfed.kahm.bank import BLOCK


def project(X: FloatArray, basis: FloatArray | None) -> FloatArray:
    """Rows X (n, p) in the basis (p, k), as (n, k); as they are without one.

    Blocks of one size: no bit depends on the number of rows.
    """
    if basis is None:
        return X
    projected = np.empty((len(X), basis.shape[1]))
    with single_blas_thread():
        for start in range(0, len(X), BLOCK):
            part = X[start : start + BLOCK]
            block = np.zeros((BLOCK, X.shape[1]))
            block[: len(part)] = part
            projected[start : start + BLOCK] = (block @ basis)[: len(part)]
    return projected

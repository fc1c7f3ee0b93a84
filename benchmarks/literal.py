"""A KAHM fitted as the papers print it, in float64: the reference that shows what working in Gram space saves."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def fit_literal(rows: Array, tolerance: float = 1e-10) -> tuple[Array, Array, float]:
    """Encoding P (n, p), inverse (K + lambda I)^-1 (N, N) and lambda of ``rows`` (N, p); SFM Algorithm 1, (147)-(154).

    Explicit p x p covariance with all its eigenvectors, and one inverse per step of the fixed point (151).
    """
    count, width = rows.shape
    _, vectors = np.linalg.eigh(np.cov(rows, rowvar=False))
    dim = min(20, width, count - 1)
    encoding = vectors[:, : -dim - 1 : -1].T
    while dim > 1 and np.ptp(rows @ encoding[:dim].T, axis=0).min() < 1e-3:
        dim -= 1
    encoding = encoding[:dim]
    encoded = rows @ encoding.T
    precision = np.linalg.inv(np.atleast_2d(np.cov(encoded, rowvar=False)))
    differences = encoded[:, None, :] - encoded[None, :, :]
    kernel = np.exp(-np.einsum("abi,ij,abj->ab", differences, precision, differences, optimize=True) / (2 * dim))
    tau = 2 * np.square(rows).sum() / (width * count)
    error, change = tau / 4, np.inf
    while change > tolerance * tau:
        inverse = np.linalg.inv(kernel + (error + tau) * np.eye(count))
        updated = np.square(rows - kernel @ (inverse @ rows)).sum() / (width * count)
        error, change = updated, abs(updated - error)
    level = float(error + tau)
    return encoding, np.linalg.inv(kernel + level * np.eye(count)), level

"""Choice of the regularisation by leave-one-out cross-validation over the whole federation, in one more exchange.

The candidates are judged by the average of the sites' solutions, ``W = sum_j p_j W_j``, each row by the average whose
own site has not seen it. A ridge solution without row i predicts ``y_i - (y_i - f_j(x_i)) / (1 - h_i)`` there, with
``h_i = c_i phi_i' H_j^-1 phi_i / m_j``; so nothing is fitted twice (as usual the mass, and with it lambda m_j, is that
of all rows, and so are the means of an intercept).
"""

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.base.threads import single_blas_thread
from kernfed.kernels import row_blocks
from kernfed.ridge.local import LocalRidge, SpectralFactor
from kernfed.ridge.means import Means, centred_features, centred_targets
from kernfed.ridge.parameters import RidgeParameters

#: A row that its own solution reproduces whatever its target: its prediction without it is not defined.
_FREE = 1e-10


def leave_one_out_losses(
    X: FloatArray,
    y: npt.NDArray[np.generic],
    parameters: RidgeParameters,
    local: LocalRidge,
    averages: FloatArray,
    share: float,
    means: Means | None = None,
) -> FloatArray:
    """Weighted sum of squared errors (L,) of a site's rows under each candidate.

    averages : (L, M, C) average of all sites' solutions per candidate; share : p_j of this site in it. means : those
    that ``local`` was fitted around.
    """
    factor = local.factor
    assert isinstance(factor, SpectralFactor), "several candidates are factored by eigenvalues"
    targets, weights = centred_targets(parameters, y, means), parameters.row_weights(y)
    losses = np.zeros(len(parameters.regularization))
    features = centred_features(parameters, means)
    with single_blas_thread():
        for block in row_blocks(len(X)):
            rows = (X[block] if features is None else features(X[block])).astype(np.float64, copy=False)
            c = np.ones(len(rows)) if weights is None else weights[block]
            squared = (rows @ factor.basis) ** 2 * (c / local.mass)[:, None]
            for place, value in enumerate(parameters.regularization):
                leverage = (squared / (factor.values + value)).sum(axis=1)
                shift = share * leverage / np.maximum(1 - leverage, _FREE)
                own = targets[block] - rows @ local.solutions[place]
                error = targets[block] - rows @ averages[place] + shift[:, None] * own
                losses[place] += float(c @ (error**2).sum(axis=1))
    return losses

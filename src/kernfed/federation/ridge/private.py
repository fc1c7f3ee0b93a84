"""Ridge regression from noisy sums: every site releases ``X'X`` and ``X'y`` once (AdaSSP), and they are added up.

Only method "exact" can be had this way. The others exchange sums with the raw rows in every round, or choose by looking
at them.
"""

import math

import numpy as np

from kernfed.base.checks import FloatArray
from kernfed.errors import InputError
from kernfed.federation.program import Program
from kernfed.federation.ridge.system import Sites
from kernfed.federation.survey import check_arrays
from kernfed.kernels import Moments
from kernfed.privacy.record_sums import RecordRidge, RidgeRelease
from kernfed.promise import Terms
from kernfed.ridge.leave_one_out import rule
from kernfed.site.protocol.message import Payload
from kernfed.site.release.asked import terms_of


def solve_released(
    sites: Sites, mechanism: RecordRidge, regularization: float | None
) -> Program[tuple[FloatArray, Terms, float]]:
    """Weights (M, C) from the sums that all sites release, the terms of these releases, and the regularisation.

    Without one it is that of the rule, ``tr(C) / n``, of the released sums alone.
    """
    M, C = sites.parameters.n_features, sites.parameters.n_targets
    terms = terms_of(mechanism, sites.parameters.width, sites.parameters.task)
    expected = {"second": (M, M), "cross": (M, C), "scalars": (2,)}

    def read(site: str, payload: Payload) -> tuple[Moments, float]:
        check_arrays(payload, expected)
        terms.check_told(payload.values["privacy"])
        rows, needed = map(float, payload.arrays["scalars"])
        if rows < 1 or needed < 0:
            raise InputError(f"expected rows and a regularisation, got {rows} and {needed}")
        sites.expected[site].check_rows(int(rows))
        joint = np.zeros((M + C, M + C))
        joint[:M, :M], joint[:M, M:] = payload.arrays["second"], payload.arrays["cross"]
        joint[M:, :M] = joint[:M, M:].T
        return Moments(int(rows), M, np.zeros(M + C), joint), needed

    question = Payload(values={"parameters": sites.parameters.to_values(), "privacy": dict(terms.mechanism)})
    replies = yield from sites.ask("ridge_release", question, read)
    parts, regularizations = zip(*(read(*reply) for reply in replies.items()), strict=True)
    # Noise of independent releases adds up as the root of squares, and so does what has to be added against it.
    needed = math.sqrt(sum(part**2 for part in regularizations))
    pooled = RidgeRelease(sum(parts, Moments.zero(M, C)), needed, terms.element, terms.record, True, ())
    told = {site: payload.values["privacy"] for site, payload in replies.items()}
    chosen = rule(float(np.trace(pooled.moments.second)) / pooled.moments.n, pooled.moments.n)
    used = chosen if regularization is None else regularization
    return pooled.coefficients(used), terms.with_told(told), used

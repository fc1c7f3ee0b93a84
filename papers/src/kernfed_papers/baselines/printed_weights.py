"""KME's own way to its weights: exponentiated gradient steps at the printed rates (Algorithm 3, Appendix A.2)."""

import numpy as np
import numpy.typing as npt

from kernfed.data import check_rows
from kernfed.errors import InputError
from kernfed_papers.arrays import FloatArray
from kernfed_papers.checks import check_count, check_number


def exponentiated_gradient(
    gram: npt.ArrayLike, linear: npt.ArrayLike, rates: npt.ArrayLike, *, steps: int = 1000
) -> FloatArray:
    """Weights (T, B) on the simplex that bring ``w'G w + b_t'w`` down: KME Algorithm 3, by which KME finds its weights.

    gram : G (B, B). linear : b (T, B). rates : eta (T,). Exponentiated gradient with Nemirovski's extra step, from
    equal weights. Both normalisers weigh by w_j: printed without it, the iterates leave the simplex. A thousand steps
    at the printed rate need not come near the minimum; ``kernfed.personal.aggregate`` reaches it.
    """
    b = check_rows(linear, "linear").astype(np.float64)
    G = check_rows(gram, "gram", width=b.shape[1]).astype(np.float64)
    eta = check_rows(np.reshape(rates, (-1, 1)), "rates", min_rows=len(b))
    w = np.full(b.shape, 1 / b.shape[1])
    for _ in range(check_count(steps, "steps")):
        proxy = _tilted(w, eta * (2 * w @ G + b))
        w = _tilted(w, eta * (2 * proxy @ G + b))
    return w


def printed_rates(gram: npt.ArrayLike, penalties: npt.ArrayLike, *, c: float = 0.5) -> FloatArray:
    """Rates ``c / (2 |A_t|_op + |p_t|_inf)`` (B,) of KME Appendix A.2 for G (B, B) and penalties (B, B).

    A_t are the inner products of all embeddings minus the target's; its norm is found by 100 power iterations. On the
    simplex ``w'A_t w`` is ``w'G w - 2 G_t w`` and a constant.
    """
    G, p = check_rows(gram, "gram").astype(np.float64), check_rows(penalties, "penalties")
    if G.shape != p.shape or G.shape[0] != G.shape[1]:
        raise InputError(f"gram and penalties must be square and of one shape, got {G.shape} and {p.shape}")
    x = 1.0 + np.arange(len(G)) / len(G) + np.zeros_like(G)
    for _ in range(100):
        x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300)
        total = x.sum(axis=1, keepdims=True)
        x = x @ G - total * G + (np.diag(G)[:, None] * total - (G * x).sum(axis=1, keepdims=True))
    largest = 2 * np.linalg.norm(x, axis=1) + np.abs(p).max(axis=1)
    return np.asarray(np.divide(check_number(c, "c", zero=False), largest, where=largest > 0, out=np.ones(len(G))))


def _tilted(w: FloatArray, exponent: FloatArray) -> FloatArray:
    tilted = w * np.exp(exponent.min(axis=1, keepdims=True) - exponent)  # scaling cancels; the largest factor is 1
    return np.asarray(tilted / tilted.sum(axis=1, keepdims=True))

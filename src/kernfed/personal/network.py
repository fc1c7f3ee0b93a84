"""Networks of all targets in one batched run, for any ``torch.nn.Module`` (extra ``[torch]``).

The parameters of T networks of one architecture are a matrix (T, P) in float32, a network a row, in the order of
``module.parameters()``: plain numbers that a message can carry and ``gradient.descend`` can move. Every evaluation
runs all T networks at once (``torch.func``), on one thread and without randomness: a result depends on the seed only.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_choice, check_count, check_finite, check_rows
from kernfed.base.random import generator
from kernfed.errors import InputError
from kernfed.personal.gradient import Slopes, check_class_numbers, check_simplex

try:
    import torch
    from torch.func import functional_call, grad_and_value, stack_module_state, vmap
except ImportError:
    torch = None  # type: ignore[assignment, unused-ignore]  # the second where it is not installed

LOSSES = ("squared", "cross-entropy")


def require_torch() -> None:
    """Say what to install where PyTorch is missing."""
    if torch is None:
        raise ImportError("networks need PyTorch: pip install -e '.[torch]' in a clone of kernfed")


def relu_network(width: int, hidden: Sequence[int], outputs: int = 1) -> torch.nn.Sequential:
    """Fully connected layers with rectified linear units between them, as KME 6.2 and 6.3 use."""
    require_torch()
    sizes = [check_count(size, "size of a layer") for size in (width, *hidden, outputs)]
    layers: list[torch.nn.Module] = []
    for inputs, units in pairwise(sizes):
        layers += [torch.nn.Linear(inputs, units), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def n_parameters(module: torch.nn.Module) -> int:
    """Number P of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def initial_parameters(build: Callable[[], torch.nn.Module], names: Sequence[str], seed: int) -> FloatArray:
    """Parameters (T, P) of T new networks, each drawn by what ``build`` does under a seed of its own name.

    Equal names start equal, whatever stands beside them; torch's own generator is left as it was.
    """
    require_torch()
    if not names:
        raise InputError("names must have at least one entry, got none")
    modules = []
    for name in names:
        with torch.random.fork_rng(devices=[]):
            torch.random.manual_seed(int(generator(seed, "network", name).integers(2**63)))
            modules.append(build())
    stacked, _ = stack_module_state(modules)
    flat = [values.detach().reshape(len(names), -1) for values in stacked.values()]
    return np.asarray(torch.cat(flat, dim=1).to(torch.float32).numpy())


@dataclass(frozen=True, eq=False)
class NetworkRisk:
    """Risk of one site under networks like ``module``: losses (T,) and gradients (T, P) at parameters (T, P).

    X : (n, p), the same rows for all targets, or (T, n, p), for each its own. y : (n,) or (T, n) values for "squared",
    class numbers for "cross-entropy". row_weights : (T, n) what each row counts for each target; without it a row
    counts 1/n. With ``W[t, k] / n_k`` for a row of site k, one call on the rows of all sites is the whole weighted
    risk, KME (2): ``NetworkRisk.pooled`` makes it.

    The module is used in evaluation mode (no dropout, batch statistics as they stand) and its buffers are constants.
    """

    module: torch.nn.Module
    X: npt.ArrayLike
    y: npt.ArrayLike
    loss: str = "squared"
    row_weights: npt.ArrayLike | None = None
    _tensors: tuple[Any, ...] = field(init=False, repr=False)
    _slopes: Callable[..., Any] = field(init=False, repr=False)
    _turn: threading.Lock = field(init=False, repr=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        require_torch()
        check_choice(self.loss, "loss", LOSSES)
        X = np.asarray(self.X)
        n = len(check_rows(X if X.ndim != 3 else X[0], "X"))
        check_finite(X, "X")
        y = _check_targets(self.y, X.shape[:-1], self.loss)
        weights = np.full(n, 1 / n) if self.row_weights is None else check_rows(self.row_weights, "row_weights")
        if weights.shape[-1] != n:
            raise InputError(f"row_weights must have a column for each of {n} rows, got shape {weights.shape}")
        tensors = tuple(torch.as_tensor(part) for part in (X.astype(np.float32), y, weights.astype(np.float32)))
        object.__setattr__(self, "_tensors", tensors)
        risk = grad_and_value(_weighted_loss(copy.deepcopy(self.module).eval(), self.loss))
        own, each = (0 if X.ndim == 3 else None), (None if weights.ndim == 1 else 0)
        object.__setattr__(self, "_slopes", vmap(risk, in_dims=(0, own, own, each)))

    @classmethod
    def pooled(
        cls,
        module: torch.nn.Module,
        sites: Sequence[tuple[npt.ArrayLike, npt.ArrayLike]],
        weights: npt.ArrayLike,
        loss: str = "squared",
    ) -> NetworkRisk:
        """The weighted risk of all targets on rows that are in one place: sites (X, y), weights (T, B)."""
        sizes = [len(np.asarray(y)) for _, y in sites]
        W = check_rows(check_simplex(weights), "weights", width=len(sizes))
        shares = np.repeat(W / sizes, sizes, axis=1)
        X, y = (np.concatenate([np.asarray(site[part]) for site in sites]) for part in (0, 1))
        return cls(module, X, y, loss, shares)

    def __call__(self, parameters: FloatArray) -> Slopes:
        """Losses (T,) and gradients (T, P), float32, at parameters (T, P)."""
        with self._turn, _one_thread():  # a call puts the parameters into the module, so one at a time
            gradients, losses = self._slopes(_vectors(parameters, self.module), *self._tensors)
        return losses.numpy(), gradients.numpy()


def outputs(module: torch.nn.Module, parameters: npt.ArrayLike, X: npt.ArrayLike) -> FloatArray:
    """Outputs of T networks with parameters (T, P): (T, n, outputs), for rows X (n, p)."""
    require_torch()
    rows = torch.as_tensor(check_rows(X, "X").astype(np.float32))
    still = copy.deepcopy(module).eval()
    named = _unflatten(still)
    with _one_thread(), torch.no_grad():
        values = vmap(lambda vector: functional_call(still, named(vector), (rows,)))(_vectors(parameters, module))
    return np.asarray(values.numpy())


def _weighted_loss(module: torch.nn.Module, loss: str) -> Callable[..., Any]:
    """Function of one parameter vector (P,), rows (n, p), targets (n,) and weights (n,): the weighted sum of losses."""
    named = _unflatten(module)

    def risk(vector: Any, X: Any, y: Any, weights: Any) -> Any:
        values = functional_call(module, named(vector), (X,))
        if loss == "cross-entropy":
            return weights @ torch.nn.functional.cross_entropy(values, y, reduction="none")
        return weights @ (values[:, 0] - y) ** 2

    return risk


def _unflatten(module: torch.nn.Module) -> Callable[[Any], dict[str, Any]]:
    """From a vector (P,) to the named parameters of ``module``."""
    shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    sizes = [math.prod(shape) for shape in shapes.values()]

    def named(vector: Any) -> dict[str, Any]:
        parts = torch.split(vector, sizes)
        return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    return named


def _vectors(parameters: npt.ArrayLike, module: torch.nn.Module) -> Any:
    theta = np.asarray(parameters, np.float32)
    expected = n_parameters(module)
    if theta.ndim != 2 or theta.shape[1] != expected:
        raise InputError(f"parameters must have shape (targets, {expected}) for this network, got {theta.shape}")
    return torch.as_tensor(theta)


def _check_targets(y: npt.ArrayLike, shape: tuple[int, ...], loss: str) -> npt.NDArray[Any]:
    values = np.asarray(y)
    if values.shape != shape:
        raise InputError(f"y must have shape {shape} like the rows, got {values.shape}")
    if loss == "cross-entropy":
        largest = int(values.max(initial=0)) if values.dtype.kind in "iu" else 0
        return check_class_numbers(values.ravel(), values.size, largest + 1).reshape(shape).astype(np.int64)
    return check_rows(values.reshape(-1, 1), "y").reshape(shape).astype(np.float32)


_lock = threading.Lock()
_users: list[int] = []  # for each that computes, the number of threads it found


@contextmanager
def _one_thread() -> Iterator[None]:
    """Torch on one thread, so that sums are taken in one order; the last to leave restores what the first found.

    The number of threads belongs to the process, and sites are answered from several Python threads.
    """
    with _lock:
        _users.append(torch.get_num_threads() if not _users else _users[0])
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            before = _users.pop()
            if not _users:
                torch.set_num_threads(before)

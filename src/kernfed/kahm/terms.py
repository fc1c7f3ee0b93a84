"""What a model's privacy rests on: in words for people, in numbers for programs, kept with the model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed._threads import single_blas_thread
from kernfed._validation import FloatArray, check_number
from kernfed.errors import InputError
from kernfed.kahm.bank import BLOCK


@dataclass(frozen=True, eq=False)
class Terms:
    """Under which terms of differential privacy the sites released what the machines are made of.

    request : what the sites were asked, in plain values. promises : the guarantee per element and record, and of
    labels, in words. element, record : (epsilon, delta). spent : what each site's ledger had come to by then
    basis : public projection (p, k) that queries go through as the rows did, if there is one
    """

    request: Mapping[str, Any]
    promises: tuple[str, ...]
    element: tuple[float, float]
    record: tuple[float, float]
    spent: Mapping[str, tuple[float, float]]
    basis: FloatArray | None = None

    def __str__(self) -> str:
        paid = (f"  {site}: {_pair(pair)} spent by its ledger in all" for site, pair in sorted(self.spent.items()))
        return "\n".join([str(self.request["mechanism"]["kind"]), *(f"  {line}" for line in self.promises), *paid])

    def line(self) -> str:
        """Everything in one line."""
        mechanism = self.request["mechanism"]["kind"]
        labels = "labels public" if self.request["labels"] is None else "labels randomised"
        return f"record {_pair(self.record)}, element {_pair(self.element)} by {mechanism}, {labels}"

    def check_told(self, told: Mapping[str, Sequence[str]]) -> None:
        """Refuse a site that promises something else than was asked for; ``told`` are its (epsilon, delta) as text."""
        for name, asked in (("element", self.element), ("record", self.record)):
            if not np.allclose(_read_pair(told[name]), asked, rtol=1e-6, atol=0):
                raise InputError(f"the site promises {told[name]} per {name}, asked for was {asked}")
        epsilon, delta = _read_pair(told["spent"])
        if not (epsilon >= 0 and 0 < delta < 1):
            raise InputError(f"a ledger must come to an epsilon and a delta, got {told['spent']}")

    def with_told(self, told: Mapping[str, Mapping[str, Sequence[str]]]) -> "Terms":
        """Terms with what the ledgers of these sites have come to."""
        return replace(self, spent={**self.spent, **{site: _read_pair(pairs["spent"]) for site, pairs in told.items()}})

    def project(self, X: FloatArray) -> FloatArray:
        """Queries (n, k) in the public basis. Blocks of one size: no bit depends on the number of queries."""
        if self.basis is None:
            return X
        found = np.empty((len(X), self.basis.shape[1]))
        with single_blas_thread():
            for start in range(0, len(X), BLOCK):
                part = X[start : start + BLOCK]
                block = np.zeros((BLOCK, X.shape[1]))
                block[: len(part)] = part
                found[start : start + BLOCK] = (block @ self.basis)[: len(part)]
        return found


def _read_pair(text: Sequence[str]) -> tuple[float, float]:
    epsilon, delta = map(float, text)
    return epsilon, delta


def _pair(pair: tuple[float, float]) -> str:
    """(epsilon, delta) to four digits, never less than the truth."""
    return f"({_rounded_up(pair[0])}, {_rounded_up(pair[1])})"


def _rounded_up(value: float) -> str:
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.4g}"


def dump_terms(terms: Terms) -> dict[str, Any]:
    """Plain values for a file, all but the basis; an infinite epsilon is None."""

    def plain(pair: tuple[float, float]) -> list[float | None]:
        return [None if math.isinf(number) else number for number in pair]

    spent = {site: plain(pair) for site, pair in sorted(terms.spent.items())}
    return {
        "request": dict(terms.request),
        "promises": list(terms.promises),
        "element": plain(terms.element),
        "record": plain(terms.record),
        "spent": spent,
    }


def load_terms(values: Mapping[str, Any], basis: npt.NDArray[Any] | None, width: int) -> Terms:
    """Terms from ``dump_terms`` and the basis of a model of ``width`` columns, checked."""

    def pair(found: Any) -> tuple[float, float]:
        epsilon, delta = found
        return (
            math.inf if epsilon is None else check_number(epsilon, "epsilon", at_least=0),
            check_number(delta, "delta", at_least=0, at_most=1),
        )

    if basis is not None and (basis.dtype != np.float64 or basis.ndim != 2 or len(basis) != width):
        raise InputError(f"the public basis must be float64 with {width} rows, got {basis.dtype} of {basis.shape}")
    spent = {str(site): pair(found) for site, found in values["spent"].items()}
    terms = Terms(
        dict(values["request"]),
        tuple(map(str, values["promises"])),
        pair(values["element"]),
        pair(values["record"]),
        spent,
        basis,
    )
    terms.line()  # what it says must be there
    return terms

"""Kernel affine hull machines: geometry, measures, and estimators built on them.

The estimators, and scikit-learn with them, are imported when they are first used: sites only need the machines.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kernfed.files import formats_from
from kernfed.kahm.folding import MEASURES, matching_score, membership_probability

if TYPE_CHECKING:
    from kernfed.kahm.bank import Bank, fit_machines
    from kernfed.kahm.choice import split_rows
    from kernfed.kahm.compose import KAHM, DeepKAHM, WideKAHM
    from kernfed.kahm.machine import fit_machine
    from kernfed.kahm.model import FoldingModel
    from kernfed.kahm.regressor import KAHMRegressor

__all__ = [
    "KAHM",
    "MEASURES",
    "Bank",
    "DeepKAHM",
    "FoldingModel",
    "KAHMRegressor",
    "WideKAHM",
    "fit_machine",
    "fit_machines",
    "matching_score",
    "membership_probability",
    "split_rows",
]
_HOMES = {
    "Bank": "bank",
    "FoldingModel": "model",
    "KAHM": "compose",
    "DeepKAHM": "compose",
    "WideKAHM": "compose",
    "KAHMRegressor": "regressor",
    "fit_machine": "machine",
    "fit_machines": "bank",
    "split_rows": "choice",
}
#: The module of every file format of this package.
FORMATS = {
    "FoldingModel": "kernfed.kahm.model_file",
    **dict.fromkeys(("KAHM", "DeepKAHM", "WideKAHM", "KAHMRegressor"), "kernfed.kahm.formats"),
}
formats_from(lambda: FORMATS)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"kernfed.kahm.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'kernfed.kahm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

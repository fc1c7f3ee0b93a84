"""Kernel affine hull machines: geometry, measures, and estimators built on them.

The estimators, and scikit-learn with them, are imported when they are first used: sites only need the machines.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kernfed.files import formats_from
from kernfed.kahm.folding import MEASURES

if TYPE_CHECKING:
    from kernfed.kahm.classifier import KAHMClassifier
    from kernfed.kahm.compose import KAHM, DeepKAHM, WideKAHM
    from kernfed.kahm.regressor import KAHMRegressor

__all__ = ["KAHM", "MEASURES", "DeepKAHM", "KAHMClassifier", "KAHMRegressor", "WideKAHM"]
_HOMES = {
    "KAHM": "compose",
    "DeepKAHM": "compose",
    "WideKAHM": "compose",
    "KAHMClassifier": "classifier",
    "KAHMRegressor": "regressor",
}
#: The module of every file format of this package.
FORMATS = {
    "FoldingModel": "kernfed.kahm.model",
    **dict.fromkeys(("KAHM", "DeepKAHM", "WideKAHM", "KAHMClassifier"), "kernfed.kahm.formats"),
}
formats_from(lambda: FORMATS)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"kernfed.kahm.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'kernfed.kahm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

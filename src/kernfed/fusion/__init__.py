"""Machines and a head together. Names are imported when they are first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kernfed.files import formats_from

if TYPE_CHECKING:
    from kernfed.fusion.model import FusionModel
    from kernfed.fusion.parts import FusionChoice, FusionExplanation, Visit

_HOMES = {
    "FusionChoice": "parts",
    "FusionExplanation": "parts",
    "FusionModel": "model",
    "Visit": "parts",
}
#: The module of every file format of this package.
FORMATS = {"FusionModel": "kernfed.fusion.model_file"}
formats_from(lambda: FORMATS)

__all__ = ["FusionChoice", "FusionExplanation", "FusionModel", "Visit"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"kernfed.fusion.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'kernfed.fusion' has no attribute {name!r}")

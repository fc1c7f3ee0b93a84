"""Mechanisms by the names that messages, policies, files and commands have for them: the one list there is.

It is light: who only needs names does not load what mechanisms are made of.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kernfed.errors import InputError

if TYPE_CHECKING:
    from kernfed.privacy.release import Mechanism

#: Where the class of each mechanism is: "module:class".
MECHANISMS: Mapping[str, str] = {
    "element-laplace": "kernfed.privacy.mechanism:ElementLaplace",
    "element-staircase": "kernfed.privacy.mechanism:ElementStaircase",
    "record-gaussian": "kernfed.privacy.mechanism:RecordGaussian",
    "record-moments": "kernfed.privacy.moments:RecordMoments",
    "record-ridge": "kernfed.privacy.record_sums:RecordRidge",
    "record-embedding": "kernfed.privacy.record_sums:RecordEmbedding",
    "record-histogram": "kernfed.privacy.record_sums:RecordHistogram",
    "randomized-labels": "kernfed.privacy.mechanism:RandomizedLabels",
}
#: Those that release rows, or sums over them. A policy names these; of labels it says ``private_labels``.
ROW_MECHANISMS = tuple(name for name in MECHANISMS if name != "randomized-labels")


def mechanism_class(name: str) -> "type[Mechanism]":
    """The class of the mechanism with this name.

    >>> mechanism_class("record-moments").__name__
    'RecordMoments'
    """
    if name not in MECHANISMS:
        raise InputError(f"a mechanism must be one of {', '.join(MECHANISMS)}, got {name!r:.80}")
    module, _, kind = MECHANISMS[name].partition(":")
    mechanism: type[Mechanism] = getattr(import_module(module), kind)
    return mechanism


def mechanism_name(mechanism: Any) -> str:
    """The name of a mechanism; anything else raises ``InputError``."""
    kind = type(mechanism)
    for name, place in MECHANISMS.items():
        if place == f"{kind.__module__}:{kind.__name__}":
            return name
    known = ", ".join(place.partition(":")[2] for place in MECHANISMS.values())
    raise InputError(f"a mechanism must be one of kernfed.privacy: {known}; got {mechanism!r}")

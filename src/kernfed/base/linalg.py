"""``scipy.linalg``, loaded when it is first used and then held to as many threads as the rest.

A site that only answers needs none of it. Its BLAS is a library of its own: loaded while everything computes on one
thread, it must be told so before it is used.
"""

from importlib import import_module
from typing import Any

from kernfed.base.threads import hold_new_libraries


def __getattr__(name: str) -> Any:
    function = getattr(import_module("scipy.linalg"), name)
    hold_new_libraries()
    globals()[name] = function
    return function

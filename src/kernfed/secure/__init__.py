"""Answers computed on encrypted scores (SFM section 3.9), and sums that nobody sees in parts (``committee``).

:func:`classify` runs all roles in this process, to try out; :class:`KeyHolder`, :class:`Site` and :class:`Server`
are the roles, each usable in a process of its own. What each role learns is written in :mod:`kernfed.secure.bfv`.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import check_count
from kernfed.errors import InputError, ProtocolError
from kernfed.secure.committee.terms import Committee
from kernfed.secure.message import Header, read_header
from kernfed.secure.protocol import KeyHolder, Server, Setting, Site, check_rule, encode

__all__ = [
    "Committee",
    "Header",
    "KeyHolder",
    "ProtocolError",
    "Server",
    "Setting",
    "Site",
    "check_rule",
    "classify",
    "encode",
    "read_header",
]


def classify(scores: npt.ArrayLike, scheme: str = "plain", bits: int = 8) -> npt.NDArray[np.int64]:
    """Class index (n,) of scores (Q, n, C) in [0, 1] of Q sites: smallest score, lowest index among equals.

    >>> classify([[[0.4, 0.2, 0.9]], [[0.8, 0.7, 0.2]]]).tolist()
    [1]
    """
    by_site: Any = np.asarray(scores)
    if by_site.ndim != 3:
        raise InputError(f"scores must have shape (sites, queries, classes), got {by_site.shape}")
    for size, name in zip(by_site.shape, ("sites", "queries", "classes"), strict=True):
        check_count(size, f"number of {name}")
    holder = KeyHolder(by_site.shape[0], by_site.shape[2], bits=bits, scheme=scheme)
    key, server = holder.site_key, Server(holder.evaluation_keys)
    return holder.decide(server.combine([Site(key, q).encrypt(rows) for q, rows in enumerate(by_site)]))

"""Stateless seeds by name.

A generator depends on a seed and on names (site, task), never on positions or on what was drawn before: adding a
site or asking in another order changes nobody else's draws.
"""

import hashlib

import numpy as np

from kernfed.base.checks import check_count


def generator(seed: int, *names: str) -> np.random.Generator:
    """Generator for ``names`` under ``seed``; the same arguments give the same draws on every machine.

    >>> bool(generator(0, "site a").integers(100) == generator(0, "site a").integers(100))
    True
    """
    words = [int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") for name in names]
    return np.random.default_rng(np.random.SeedSequence([check_count(seed, "seed", at_least=0), *words]))

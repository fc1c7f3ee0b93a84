"""Random numbers by name: the draws of a site, a trial or a slice depend on its name, never on its position."""

import hashlib

import numpy as np

from kernfed_papers.checks import check_count


def generator(seed: int, *names: str) -> np.random.Generator:
    """Generator for ``names`` under ``seed``; the same arguments give the same draws on every machine.

    >>> bool(generator(0, "trial 1").integers(100) == generator(0, "trial 1").integers(100))
    True
    """
    words = [int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") for name in names]
    return np.random.default_rng(np.random.SeedSequence([check_count(seed, "seed", at_least=0), *words]))

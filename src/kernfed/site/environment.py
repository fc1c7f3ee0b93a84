"""What the bits of a result depend on beside its input: the processor, and the libraries of linear algebra."""

import hashlib
import json
import platform
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import scipy
from threadpoolctl import threadpool_info

#: Where Linux says which processor it runs on.
_CPU_FILE = Path("/proc/cpuinfo")


@cache
def environment() -> dict[str, str]:
    """Processor, BLAS with the routines that it chose for it, numpy and scipy, in words."""
    import_module("scipy.linalg")  # its BLAS counts; a site that only answers queries need not load it
    every = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    # Others that are loaded by chance, with torch or a library of images, compute nothing here.
    pools = [pool for pool in every if "numpy" in pool["filepath"] or "scipy" in pool["filepath"]] or every
    blas = {f"{pool['internal_api']} {pool['version']} {pool.get('architecture', '')}".strip() for pool in pools}
    return {
        "cpu": f"{platform.machine()} {_processor()}".strip(),
        "blas": ", ".join(sorted(blas)),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


def fingerprint() -> str:
    """Sixteen digits for the environment: results of two that have the same ones can be compared bit by bit."""
    return hashlib.sha256(json.dumps(environment(), sort_keys=True).encode()).hexdigest()[:16]


def _processor() -> str:
    """The processor's name and what it can do, by which numpy chooses its loops."""
    try:
        text = _CPU_FILE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    lines = dict(reversed([line.split(":", 1) for line in text.splitlines() if ":" in line]))
    about = {name.strip(): value.strip() for name, value in lines.items()}
    can = hashlib.sha256(" ".join(sorted(about.get("flags", "").split())).encode()).hexdigest()[:8]
    return f"{about.get('model name', platform.processor())} ({can})"

"""Threads: BLAS runs on one, the work is spread over many, and no bit of a result depends on how many.

A multi-threaded matrix product may round differently for another number of threads. So everything that is computed
runs under one BLAS thread per call, and parallelism comes from independent calls (machines, query chunks, sites).
"""

import hashlib
import json
import platform
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import OpenBLASController, ThreadpoolController, threadpool_info

Piece = TypeVar("Piece")
Result = TypeVar("Result")

_lock = threading.Lock()
_users = 0
#: What holds BLAS at one thread now, each with the libraries that it knew.
_limiters: list[tuple[ThreadpoolController, Any]] = []
#: The last look for libraries, and how many modules there were.
_last_look: tuple[int, ThreadpoolController] | None = None


def _controller() -> ThreadpoolController:
    """The pools of the libraries loaded now.

    Looking for them takes milliseconds; libraries come with modules, so without new ones nobody looks again.
    """
    global _last_look
    if _last_look is None or _last_look[0] != len(sys.modules):
        _last_look = len(sys.modules), ThreadpoolController()
    return _last_look[1]


@contextmanager
def single_blas_thread() -> Iterator[None]:
    """Hold every BLAS of the process, and OpenMP in this thread, at one thread.

    The limit of BLAS is a property of the process, and sites are answered from several Python threads: the first to
    come sets it and the last to leave restores it, so nobody's limit is lifted while it computes. That of OpenMP
    belongs to each thread.
    """
    global _users
    with _lock:
        _users += 1
        _hold()
        controller = _controller()
    try:
        with controller.limit(limits=1, user_api="openmp"):
            yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _take_control()
                while _limiters:
                    _limiters.pop()[1].restore_original_limits()


def hold_new_libraries() -> None:
    """Extend the limit, if one is in force, to a BLAS that was loaded since it was set."""
    with _lock:
        if _users:
            _hold()


def _hold() -> None:
    """Set the limit of BLAS, unless it was set for the libraries loaded now."""
    controller = _controller()
    if not _limiters or _limiters[-1][0] is not controller:
        _take_control()
        _limiters.append((controller, controller.limit(limits=1, user_api="blas")))


def _take_control() -> None:
    """Let this thread set the limit. From version 3.7 on, threadpoolctl obeys only the thread that first set one."""
    clear = getattr(OpenBLASController, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


def resolve_jobs(n_jobs: int | None) -> int | None:
    """Number of jobs for joblib: ``None`` is what BLAS would have used, unless a joblib configuration says otherwise.

    An estimator built on matrix products uses all cores by default in scikit-learn (through BLAS); ours keeps that,
    and inside a joblib worker, whose BLAS is limited, it stays at that limit.
    """
    if n_jobs is not None:
        return n_jobs
    joblib = sys.modules.get("joblib.parallel")  # where nobody imported it, nobody configured it
    if joblib is not None and joblib.get_active_backend()[1] not in (None, 1):
        return None
    with _lock:
        if _users:  # somebody computes already, so BLAS shows one thread and the cores are taken
            return 1
        pools = [pool["num_threads"] for pool in _controller().select(user_api="blas").info()]
    return max(pools, default=1)


def in_threads(work: Callable[[Piece], Result], pieces: Sequence[Piece], n_jobs: int | None = None) -> list[Result]:
    """``work`` of every piece, in their order: on ``resolve_jobs(n_jobs)`` threads, of one BLAS thread each."""
    jobs = resolve_jobs(n_jobs) if len(pieces) > 1 else 1
    with single_blas_thread():
        if jobs == 1:
            return [work(piece) for piece in pieces]
        from joblib import Parallel, delayed  # here, for most answers need no pool

        pool = Parallel(n_jobs=jobs, prefer="threads", require="sharedmem")
        return list(pool(delayed(work)(piece) for piece in pieces))


#: Where Linux says which processor it runs on.
_CPU_FILE = Path("/proc/cpuinfo")


@cache
def environment() -> dict[str, str]:
    """Processor, BLAS with the routines that it chose for it, numpy and scipy, in words."""
    scipy = import_module("scipy")
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

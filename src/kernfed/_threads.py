"""Threads: BLAS runs on one, the work is spread over many, and no bit of a result depends on how many.

A multi-threaded matrix product may round differently for another number of threads. So everything that is computed
runs under one BLAS thread per call, and parallelism comes from independent calls (machines, query chunks, sites).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from joblib.parallel import get_active_backend
from threadpoolctl import OpenBLASController, ThreadpoolController


@cache
def _controller() -> ThreadpoolController:
    """The pools of the libraries kernfed is built on; looking for them takes milliseconds, so it is done once."""
    return ThreadpoolController()


_lock = threading.Lock()
_users = 0
_limiter: list[object] = []


@contextmanager
def single_blas_thread() -> Iterator[None]:
    """Hold every BLAS of the process, and OpenMP in this thread, at one thread.

    The limit of BLAS is a property of the process, and sites are answered from several Python threads: the first to
    come sets it and the last to leave restores it, so nobody's limit is lifted while it computes. That of OpenMP
    belongs to each thread.
    """
    global _users
    with _lock:
        if _users == 0:
            _take_control()
            _limiter.append(_controller().limit(limits=1, user_api="blas"))
        _users += 1
    try:
        with _controller().limit(limits=1, user_api="openmp"):
            yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _take_control()
                _limiter.pop().restore_original_limits()  # type: ignore[attr-defined]


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
    _, configured = get_active_backend()
    if configured not in (None, 1):
        return None
    with _lock:
        if _users:  # somebody computes already, so BLAS shows one thread and the cores are taken
            return 1
        pools = [pool["num_threads"] for pool in _controller().select(user_api="blas").info()]
    return max(pools, default=1)

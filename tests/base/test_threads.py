"""The limit of one BLAS thread also holds for a library that is loaded while it is in force."""

import subprocess
import sys

import pytest

LATE = """
import numpy, sys
from threadpoolctl import threadpool_info
from kernfed.base import linalg as _linalg
from kernfed.base.threads import single_blas_thread

def pools():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

assert "scipy.linalg" not in sys.modules
before = pools()
with single_blas_thread():
    few = len(pools())
    with single_blas_thread():
        {load}
        during = pools()
    still = pools()
print(few, before, during, still, pools())
assert set(during) == set(still) == {{1}}, during
assert set(pools()) == {{2}}, pools()
assert len(during) > few, "scipy brought no library of its own here, so this showed nothing"
"""


@pytest.mark.parametrize("load", ["_linalg.eigh", "import scipy.linalg\n        with single_blas_thread(): pass"])
def test_a_library_loaded_late_is_held_and_freed(load: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE.format(load=load)],
        capture_output=True,
        text=True,
        check=False,
        env={"OPENBLAS_NUM_THREADS": "2", "PATH": ""},
    )
    if "showed nothing" in done.stderr:
        pytest.skip("numpy and scipy share one BLAS here")
    assert done.returncode == 0, done.stdout + done.stderr

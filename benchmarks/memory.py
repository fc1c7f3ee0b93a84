"""Peak memory while a model file scores many queries; run as a process of its own, prints one JSON object.

python benchmarks/memory.py MODEL QUERIES.npy COUNT
"""

import json
import sys
from pathlib import Path

import numpy as np

import kernfed


def peak_bytes() -> int:
    """Largest resident size of this process so far, libraries included."""
    status = Path("/proc/self/status")
    if status.is_file():  # maxrss would include the process this one was forked from
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    import resource  # not on every platform

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main(model_file: str, query_file: str, count: int) -> None:
    model = kernfed.load(model_file)
    some = np.load(query_file)
    queries = np.empty((count, some.shape[1]), dtype=some.dtype)
    for start in range(0, count, len(some)):
        queries[start : start + len(some)] = some[: count - start]
    scores = model.scores(queries)
    held = queries.nbytes + some.nbytes + scores.nbytes
    print(json.dumps({"peak": peak_bytes() - held, "model": model.bank_.nbytes}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

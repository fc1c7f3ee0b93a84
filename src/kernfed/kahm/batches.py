"""How the rows of a class are divided among machines (SFM Remark 10, DP-KAHM (58)-(59))."""

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.base.threads import single_blas_thread

PARTITIONS = ("kmeans", "order", "random")


def batch_count(rows: int, batch_size: int) -> int:
    """SFM (119): ``rows / batch_size`` rounded to the nearest integer; one where there are no more rows than that."""
    return max(1, int(np.floor(rows / batch_size + 0.5))) if rows > batch_size else 1


def split_rows(
    rows: FloatArray, batch_size: int, partition: str, generator: np.random.Generator
) -> list[npt.NDArray[np.intp]]:
    """Sorted row numbers of each batch: consecutive rows, a random division, or k-means clusters.

    A k-means cluster keeps its own size; the other two divide evenly. The result does not depend on threads.
    """
    count = batch_count(len(rows), batch_size)
    everything = np.arange(len(rows), dtype=np.intp)
    if count == 1:
        return [everything]
    if partition == "order":
        return list(np.array_split(everything, count))
    if partition == "random":
        return [np.sort(part) for part in np.array_split(generator.permutation(everything), count)]
    from sklearn.cluster import KMeans  # here, for sites that only answer need no scikit-learn

    count = _distinct_rows(rows, count)  # with fewer different rows than clusters k-means warns
    with single_blas_thread():
        seed = int(generator.integers(2**31))
        labels = KMeans(n_clusters=count, n_init=1, random_state=seed).fit_predict(rows)
    return [part for label in range(count) if len(part := np.flatnonzero(labels == label))]


def _distinct_rows(rows: FloatArray, enough: int) -> int:
    """Number of different rows, counted up to ``enough``."""
    seen: set[bytes] = set()
    for row in rows:
        seen.add((row + 0.0).tobytes())  # 0 and -0 are the same point
        if len(seen) == enough:
            break
    return len(seen)

"""Rows that sites keep aside: fetched as the queries they are, answered by all sites together, counted at home."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_rows
from kernfed.base.labels import ClassIndex
from kernfed.errors import InputError, Refused, SchemaMismatch
from kernfed.federation.asking import Federation
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.task import task
from kernfed.site.rows import Rows
from kernfed.site.site import Site
from kernfed.statistics.bounds import saturate

#: Rows that a site may test on beside each that it learned from: a share of 0.8 kept aside.
_MOST_ASIDE = 4


def ask_held_out(
    model: Any, federation: Federation, answer: Callable[..., FloatArray], options: Any
) -> tuple[dict[str, FloatArray], dict[str, str]]:
    """Answers (n, C) to each site's held-out rows, fetched as queries and answered together; and who sent none."""

    def check(site: str, payload: Payload) -> None:
        rows = check_rows(payload.arrays["X"], "the rows kept aside", width=model.n_features_in_, min_rows=0)
        learned = model.members_[site].rows
        if len(rows) > _MOST_ASIDE * learned:  # all sites answer for them, from what they answer a day
            raise InputError(f"a site that learned from {learned:,} rows may test on {_MOST_ASIDE} times as many")

    queries = federation.ask("held_out_queries", Payload(), sites=model.sites, check=check, **options)
    missing = {site: refusal.reason for site, refusal in queries.missing.items()}
    if not len(queries):
        return {}, missing
    together = np.concatenate([payload.arrays["X"] for _, payload in queries])
    answers = answer(together, **options) if len(together) else np.zeros((0, len(model.classes_)))
    ends = np.cumsum([len(payload.arrays["X"]) for _, payload in queries])
    return {site: own for (site, _), own in zip(queries, np.split(answers, ends[:-1]), strict=True)}, missing


def check_labels_alike(classes: npt.NDArray[Any], rows: Rows, site: str) -> None:
    """Refuse rows labelled by text for a model of numbers, or the other way round, as sites that learn together are.

    Labels of the site are not told: what is said here may leave it.
    """
    if not len(rows.y):
        return
    own, known = ("text" if isinstance(labels[0], str) else "numbers" for labels in (rows.y, classes))
    if own != known:
        raise SchemaMismatch(
            f"labels of site {site!r} are {own}, and the model's classes are {known} such as "
            f"{classes.tolist()[0]!r}; look at the column of labels"
        )


def class_numbers(classes: npt.NDArray[Any], labels: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Classes (n,) of labels, and C of those that are none."""
    numbers = ClassIndex(classes).numbers(labels, "minus-one")
    return np.where(numbers < 0, len(classes), numbers)


def labelled_rows(site: Site, classes: npt.NDArray[Any]) -> Rows:
    """The site's held-out rows, or a refusal where their labels are of another type than the model's classes."""
    rows = site.held_out()
    try:
        check_labels_alike(classes, rows, site.name)
    except SchemaMismatch as error:
        raise Refused("bad labels", str(error)) from None
    return rows


def row_scores(
    score: Callable[[FloatArray], FloatArray],
    X: FloatArray,
    otherwise: npt.ArrayLike,
    *,
    low: float = -np.inf,
    high: float = np.inf,
) -> FloatArray:
    """Scores (n, C) of rows X (n, p) by a model that came with a question; ``otherwise`` (C,) for rows without any.

    An asker may choose a model that overflows for some rows. If all rows of the site failed with them, a sum over sites
    would tell which site has such a row. Rows are therefore cut to a public range, each is scored by itself where all
    together fail, and scores that are no numbers from ``low`` to ``high`` are replaced. A model that fails for a row of
    zeros fails whatever the site's rows are, and is refused.
    """
    rows = saturate(X)
    with np.errstate(all="ignore"):
        width = score(np.zeros((1, rows.shape[1]))).shape[1]
        try:
            made = np.array(score(rows)) if len(rows) else np.zeros((0, width))
        except MemoryError:
            raise
        except Exception:  # whatever a row does to a model
            made = np.array([_scores_alone(score, row, width) for row in rows])
        made[~((made >= low) & (made <= high)).all(axis=1)] = otherwise
    return made


def _scores_alone(score: Callable[[FloatArray], FloatArray], row: FloatArray, width: int) -> FloatArray:
    """Scores (width,) of one row; not a number where the model fails for it."""
    try:
        return np.asarray(score(row[None])[0])
    except Exception:
        return np.full(width, np.nan)


@task("held_out_queries", leaves="rows")
def held_out_queries(site: Site, payload: Payload) -> Payload:  # noqa: ARG001  every task has this signature
    """The site's held-out rows, without labels, to be scored by all sites as any query is."""
    return Payload({"X": site.held_out().X.astype(np.float64)})

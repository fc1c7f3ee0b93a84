"""Matrices of a model's report: what is taken for what, who has which class, and who decides it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from kernfed.report.content import MOST_OPEN, SHARE, HeatMap, PageTable, written
from kernfed.testing.outcomes import Evaluation

#: Sites whose decisions are told; those that decide most. Of many sites so many are drawn, half at either end.
MOST_TOLD, MOST_DRAWN = 120, 20
#: Errors that are listed where a matrix has more classes than can be overlooked.
_LISTED_ERRORS, _FEW_CLASSES = 10, 12


def confusion_map(evaluation: Evaluation) -> HeatMap:
    """Shares of each true class that got each label."""
    counts = evaluation.pooled.confusion
    names = tuple(str(label) for label in evaluation.classes_.tolist())
    rows = [*names, "other"] if counts[-1].any() else list(names)
    totals = counts[: len(rows)].sum(axis=1, keepdims=True)
    shares = counts[: len(rows)] / np.maximum(totals, 1)
    off = np.where(np.eye(*shares.shape) == 1, 0, counts[: len(rows)])
    words = "Each row is a true class; the numbers are per cent of its rows."
    if off.any():
        worst = np.unravel_index(int(off.argmax()), off.shape)
        words += f" The most frequent error: {int(off.max()):,} of class {rows[worst[0]]} taken for {names[worst[1]]}."
    return HeatMap(
        "Confusion matrix", words, tuple(rows), names, _tuples(shares), "true class", "predicted class", SHARE, 1.0
    )


def error_tables(evaluation: Evaluation) -> tuple[PageTable, ...]:
    """The most frequent errors, where there are so many classes that they hide in the matrix."""
    names = [str(label) for label in evaluation.classes_.tolist()]
    if len(names) <= _FEW_CLASSES:
        return ()
    counts = evaluation.pooled.confusion[: len(names)].copy()
    totals = counts.sum(axis=1)
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")[:_LISTED_ERRORS]
    rows = tuple(
        (names[true], names[said], f"{counts[true, said]:,}", written(counts[true, said] / totals[true], SHARE))
        for true, said in zip(*np.unravel_index(order, counts.shape), strict=True)
        if counts[true, said]
    )
    head = ("true class", "taken for", "rows", "of the class")
    return (PageTable(head, rows, "The most frequent errors"),) if rows else ()


def labels_map(title: str, labels: Mapping[str, Mapping[str, int]], what: str) -> HeatMap:
    """Rows of every class at every site; ``what`` says which rows."""
    classes = _in_order({name for counts in labels.values() for name in counts})
    sites = _in_order(labels)
    values = np.array([[labels[site].get(name, 0) for name in classes] for site in sites], dtype=float)
    lacking = int((values == 0).sum())
    words = (
        f"{what[:1].upper()}{what[1:]} per site and class, {int(values.sum()):,} in all; {lacking:,} of "
        f"{values.size:,} pairs of a site and a class are empty."
    )
    return _by_site(title, words, sites, classes, values, what)


def holders_map(sites: Sequence[str], classes: Sequence[str], holds: Any) -> HeatMap:
    """Which site has which class, where no more is known."""
    words = "Dark where a site has rows of a class. How many is known to the site only."
    return _by_site("Who has which class", words, sites, classes, np.asarray(holds, dtype=float), "classes", scale=1.6)


def _by_site(
    title: str,
    words: str,
    sites: Sequence[str],
    classes: Sequence[str],
    values: Any,
    what: str,
    scale: float | None = None,
) -> HeatMap:
    """A row per site; of many sites those that have most and those that have least of ``what`` are drawn."""
    order = np.arange(len(sites))
    drawn: tuple[int, ...] = ()
    if len(sites) > MOST_OPEN:
        order = np.argsort(-values.sum(axis=1), kind="stable")
        half = MOST_DRAWN // 2
        drawn = (*range(half), *range(len(sites) - half, len(sites)))
        words += f" Drawn are the {half} sites with most {what} and the {half} with fewest; the numbers have all."
    return HeatMap(
        title,
        words,
        tuple(sites[place] for place in order.tolist()),
        tuple(classes),
        _tuples(values[order]),
        "site",
        "class",
        scale=scale,
        drawn_rows=drawn,
    )


def winners_map(winners: Mapping[str, Mapping[str, int]]) -> HeatMap:
    """Per class, the share of answers that each site decided."""
    classes = [name for name in winners if winners[name]]
    sites = _in_order({site for counts in winners.values() for site in counts})
    counts = np.array([[winners[name].get(site, 0) for site in sites] for name in classes], dtype=float)
    shares = counts / counts.sum(axis=1, keepdims=True)
    kept = _largest(counts.sum(axis=0), MOST_TOLD)
    drawn = _largest(counts.sum(axis=0)[kept], MOST_DRAWN) if len(kept) > MOST_OPEN else []
    busiest = int(counts.sum(axis=0).argmax())
    words = (
        f"Of the answers with a class, per cent that each site decided by being the nearest. {sites[busiest]} "
        f"decided most, {counts[:, busiest].sum() / counts.sum():.0%} of all."
    )
    if drawn:
        words += f" Drawn are the {len(drawn)} sites of {len(sites)} that decided most."
    return HeatMap(
        "Who decides which class",
        words,
        tuple(classes),
        tuple(sites[i] for i in kept),
        _tuples(shares[:, kept]),
        "class",
        "site",
        SHARE,
        1.0,
        drawn_columns=tuple(drawn),
    )


def _in_order(names: Iterable[str]) -> list[str]:
    """Numbers by value, other names by their letters."""
    return sorted(names, key=lambda name: (0, float(name), name) if _is_number(name) else (1, 0.0, name))


def _is_number(name: str) -> bool:
    return name.lstrip("-").isdigit()


def _largest(weights: Any, most: int) -> list[int]:
    """Places of the largest weights, in their own order."""
    return sorted(np.argsort(-weights, kind="stable")[:most].tolist())


def _tuples(values: Any) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(value) for value in line) for line in values)

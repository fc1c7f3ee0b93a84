"""Sections that several kinds of report share: accuracy and traffic, and their matrices."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.report.content import (
    BYTES,
    MOST_OPEN,
    SHARE,
    Bars,
    Figure,
    HeatMap,
    PageTable,
    Section,
    figure_table,
    listed,
    site_table,
    written,
)
from kernfed.report.evidence import CONFIDENCE, TRAFFIC_KEYS, Evidence, all_bounds
from kernfed.testing.outcomes import Evaluation, RegressionEvaluation


def accuracy_section(evidence: Evidence) -> Section | None:
    """Bars per site, sorted, with what each site reaches alone and what is sure; and the confusion matrix."""
    figures: list[Figure] = []
    words: list[str] = []
    tables: tuple[PageTable, ...] = ()
    evaluation = evidence.evaluation
    if evidence.regression is not None:
        return _regression_section(evidence.regression)
    if evaluation is not None:
        figures += _accuracy_figures(evaluation, evidence)
        words.append(_accuracy_words(evaluation))
        tables = (*error_tables(evaluation), *_tested_tables(evidence))
    elif evidence.alone:
        figures.append(_alone_bars(evidence))
    return Section("Accuracy", tuple(words), tuple(figures), tables=tables) if figures else None


def _tested_tables(evidence: Evidence) -> tuple[PageTable, ...]:
    """Held-out rows of many sites, folded: of few they are drawn."""
    if len(evidence.tested) <= MOST_OPEN:
        return ()
    counts = figure_table(labels_map("What was tested where", evidence.tested, "held-out rows"))
    return (replace(counts, folded=True),)


def _regression_section(evaluation: RegressionEvaluation) -> Section:
    """Errors of predicted values per site, sorted, and R² where it is defined."""
    ordered = _sorted({site: sums.mean_squared_error for site, sums in evaluation.sites.items() if sums.rows})
    words = (
        f"R² over all {evaluation.pooled.rows:,} unseen rows is {written(evaluation.r2)}: 1 where every value is "
        "predicted exactly, 0 where the mean of the values would do as well."
    )
    if evaluation.missing:
        words += _missing_words(evaluation.missing)
    extremes = _extremes("The error", ordered, "")
    bars = Bars.of("Mean squared error per site", extremes, ordered, unit="", value_name="mean squared error")
    rows = tuple(
        (site, f"{sums.rows:,}", written(sums.mean_squared_error), written(sums.mean_absolute_error), written(sums.r2))
        for site, sums in evaluation.sites.items()
    )
    table = site_table(("site", "rows", "mean squared error", "mean absolute error", "R²"), rows, "Errors per site")
    return Section("Errors", (words,), (bars,), tables=(table,))


def _missing_words(missing: Mapping[str, str]) -> str:
    return f" Missing: {listed([f'{site} ({reason})' for site, reason in missing.items()])}."


def _accuracy_words(evaluation: Evaluation) -> str:
    pooled = evaluation.pooled
    text = f"Of {pooled.rows:,} rows that were not used for training, {pooled.correct:,} got their own label."
    if pooled.rows:
        text += f" Probabilities are off by {100 * pooled.calibration_error:.1f} points on average (calibration error)."
        text += _figure_words(evaluation)
    unknown = int(pooled.confusion[-1].sum())
    if unknown:
        text += f" {unknown:,} rows have a label that the model has never seen, and count as errors."
    if evaluation.missing:
        text += _missing_words(evaluation.missing)
    return text


def _figure_words(evaluation: Evaluation) -> str:
    """Figures that classes of unequal size do not distort, what always saying one class would give, and the alarm."""
    pooled = evaluation.pooled
    area = "" if math.isnan(pooled.mean_auc) else f", the mean area under ROC curves {pooled.mean_auc:.3f}"
    text = f" Balanced accuracy is {pooled.balanced_accuracy:.1%}, mean F1 {pooled.mean_f1:.3f}{area}."
    largest, share = pooled.majority
    if largest < len(evaluation.classes_):
        text += f" Always saying {evaluation.classes_.tolist()[largest]!r} would be right for {share:.1%}."
    return text if pooled.alarm is None else f"{text} {pooled.alarm}"


def _accuracy_figures(evaluation: Evaluation, evidence: Evidence) -> list[Figure]:
    accuracies = {site: outcome.accuracy for site, outcome in evaluation.sites.items() if outcome.rows}
    figures: list[Figure] = []
    if len(accuracies) > 1:
        ordered = _sorted(accuracies)
        bounds = all_bounds(evaluation)
        marks: dict[str, tuple[float | None, ...]] = {}
        if evidence.alone:
            marks["the site alone"] = tuple(evidence.alone.get(site) for site in ordered)
        marks[f"at least, {CONFIDENCE:.0%} sure"] = tuple(1 - bounds.sites[site].value for site in ordered)
        words = _extremes("Accuracy", ordered, SHARE)
        words += f" Alone means: on {evidence.alone_on}." if evidence.alone else ""
        figures.append(
            Bars.of(
                "Accuracy per site",
                words,
                ordered,
                marks=marks,
                lines=dict(evidence.compared),
                value_name="all sites together",
            )
        )
    elif evidence.alone:
        figures.append(_alone_bars(evidence))
    if len(evaluation.classes_) > 1 and evaluation.pooled.rows:
        figures.append(confusion_map(evaluation))
    if 1 < len(evidence.tested) <= MOST_OPEN:
        figures.append(labels_map("What was tested where", evidence.tested, "held-out rows"))
    return figures


def _alone_bars(evidence: Evidence) -> Bars:
    """What each site reaches alone, with lines for everything it can be compared with."""
    ordered = _sorted(evidence.alone)
    lines = dict(evidence.compared)
    if evidence.evaluation is not None:
        lines = {"all sites together": evidence.evaluation.accuracy, **lines}
    words = f"{_extremes('Accuracy of a site alone', ordered, SHARE)} Measured on {evidence.alone_on}."
    words += "".join(f" {name[:1].upper()}{name[1:]}: {written(value, SHARE)}." for name, value in lines.items())
    title = "Accuracy: each site alone, and together"
    return Bars.of(title, words, ordered, lines=lines, value_name="the site alone")


def traffic_section(entries: Sequence[Mapping[str, Any]]) -> Section | None:
    """Bytes that left each site, and what they were."""
    if not entries:
        return None
    up: dict[str, float] = {}
    for entry in entries:
        up[str(entry["site"])] = up.get(str(entry["site"]), 0) + entry["bytes_up"]
    ordered = _sorted(up)
    total, down = sum(up.values()), sum(entry["bytes_down"] for entry in entries)
    words = f"{written(total, BYTES)} left the sites in all, {written(down, BYTES)} were sent to them."
    extremes = _extremes("Bytes", ordered, BYTES)
    bars = Bars.of("Bytes that left each site", extremes, ordered, unit=BYTES, value_name="bytes from the site")
    return Section("What left the sites", (words,), (bars,), tables=(_traffic_table(entries),))


def _traffic_table(entries: Sequence[Mapping[str, Any]]) -> PageTable:
    """Messages of every kind, over all sites."""
    kinds: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in entries:
        kinds.setdefault((str(entry["task"]), str(entry["information"])), []).append(entry)
    head = (
        "question",
        "kind of answer",
        "sites",
        "messages",
        "bytes to the sites",
        "bytes from them",
        "numbers from them",
    )
    rows = tuple(
        (*kind, f"{len(alike):,}", *(f"{sum(entry[key] for entry in alike):,}" for key in TRAFFIC_KEYS[3:]))
        for kind, alike in sorted(kinds.items())
    )
    return PageTable(head, rows, "Every kind of message, over all sites")


def _sorted(values: Mapping[str, float]) -> dict[str, float]:
    """Values by name, largest first, equal ones by name."""
    return dict(sorted(values.items(), key=lambda item: (-item[1], item[0])))


def _extremes(what: str, ordered: Mapping[str, float], unit: str) -> str:
    """The largest and the smallest in words."""
    names = list(ordered)
    if not names:
        return f"{what}: nothing was measured."
    first, last = names[0], names[-1]
    if first == last:
        return f"{what}: {written(ordered[first], unit)} at {first}."
    high, low = (written(ordered[name], unit) for name in (first, last))
    if high == low:  # to the digits that are shown
        return f"{what}: {high} at each of {len(names)} sites."
    return f"{what} is highest at {first} ({high}) and lowest at {last} ({low}), over {len(names)} sites."


#: Sites whose decisions are listed, those that decide most. Of many sites so many are drawn, half at either end.
MOST_LISTED, MOST_DRAWN = 120, 20
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


def holders_map(sites: Sequence[str], classes: Sequence[str], holds: npt.NDArray[np.bool_]) -> HeatMap:
    """Which site has which class, where no more is known."""
    words = "Dark where a site has rows of a class. How many is known to the site only."
    return _by_site("Who has which class", words, sites, classes, np.asarray(holds, dtype=float), "classes", scale=1.6)


def _by_site(
    title: str,
    words: str,
    sites: Sequence[str],
    classes: Sequence[str],
    values: npt.NDArray[np.float64],
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
    kept = _largest(counts.sum(axis=0), MOST_LISTED)
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


def _largest(weights: npt.NDArray[np.float64], most: int) -> list[int]:
    """Places of the largest weights, from left to right."""
    return sorted(np.argsort(-weights, kind="stable")[:most].tolist())


def _tuples(values: npt.NDArray[np.float64]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(value) for value in line) for line in values)

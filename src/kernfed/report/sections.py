"""Sections that several kinds of report share: accuracy and traffic."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernfed.report.assurance import CONFIDENCE, all_bounds
from kernfed.report.content import BYTES, MOST_OPEN, SHARE, Bars, PageTable, Section, figure_table, site_table, written
from kernfed.report.evidence import TRAFFIC_KEYS, Evidence
from kernfed.report.maps import confusion_map, error_tables, labels_map
from kernfed.testing.outcomes import Evaluation, RegressionEvaluation


def accuracy_section(evidence: Evidence) -> Section | None:
    """Bars per site, sorted, with what each site reaches alone and what is sure; and the confusion matrix."""
    figures: list[Any] = []
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
    bars = Bars(
        "Mean squared error per site",
        _extremes("The error", ordered, ""),
        tuple(ordered),
        tuple(ordered.values()),
        "",
        "mean squared error",
    )
    rows = tuple(
        (site, f"{sums.rows:,}", written(sums.mean_squared_error), written(sums.mean_absolute_error), written(sums.r2))
        for site, sums in evaluation.sites.items()
    )
    table = site_table(("site", "rows", "mean squared error", "mean absolute error", "R²"), rows, "Errors per site")
    return Section("Errors", (words,), (bars,), tables=(table,))


def _missing_words(missing: Mapping[str, str]) -> str:
    return f" Missing: {_listed(f'{site} ({reason})' for site, reason in missing.items())}."


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


def _accuracy_figures(evaluation: Evaluation, evidence: Evidence) -> list[Any]:
    accuracies = {site: outcome.accuracy for site, outcome in evaluation.sites.items() if outcome.rows}
    figures: list[Any] = []
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
            Bars(
                "Accuracy per site",
                words,
                tuple(ordered),
                tuple(ordered.values()),
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
    return Bars(
        "Accuracy: each site alone, and together",
        words,
        tuple(ordered),
        tuple(ordered.values()),
        lines=lines,
        value_name="the site alone",
    )


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
    bars = Bars(
        "Bytes that left each site",
        _extremes("Bytes", ordered, BYTES),
        tuple(ordered),
        tuple(ordered.values()),
        BYTES,
        "bytes from the site",
    )
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
    """Largest first, ties by name."""
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


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:20]) + (f" and {len(listed) - 20} more" if len(listed) > 20 else "")

"""Horizontal bars, and the two ends of very many of them."""

from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FuncFormatter, MaxNLocator

from kernfed.report.canvas import MARKERS, SIGN, STEPS, WIDTH, canvas, legend
from kernfed.report.content import BYTES, MOST_OPEN, SHARE, Bars, byte_unit, written
from kernfed.report.svg import SERIES, color, shortened

#: Bars at each end of very many sorted ones; the numbers below a figure have them all.
END = 10
_LABELLED_BARS = 40
#: Pixels between the end of a bar and its number, in which half a mark fits.
_GAP = 14.0


def panels(figure: Bars) -> tuple[Bars, ...]:
    """The first and the last ten of many sorted bars, on one scale; otherwise all of them."""
    count, values = len(figure.labels), np.asarray(figure.values, dtype=float)
    steps = np.diff(values)
    if count <= MOST_OPEN or not (np.all(steps <= 0) or np.all(steps >= 0)):
        return (figure,)
    top = figure.top if figure.top is not None else _top(figure)
    order = ("highest", "lowest") if values[0] > values[-1] else ("lowest", "highest")
    ends = (slice(0, END), slice(count - END, count))
    return tuple(
        replace(
            figure,
            title=f"{figure.title}: The {END} {which} of {count:,}",
            labels=figure.labels[end],
            values=figure.values[end],
            marks={name: marks[end] for name, marks in figure.marks.items()},
            intervals=figure.intervals[end],
            top=top,
        )
        for which, end in zip(order, ends, strict=True)
    )


def _top(figure: Bars) -> float:
    """The largest value of all that is drawn."""
    marks = [mark for values in figure.marks.values() for mark in values if mark is not None]
    ends = [high for _, high in figure.intervals]
    return max([*figure.values, *figure.lines.values(), *marks, *ends])


def draw_bars(figure: Bars) -> Drawing:
    """A bar for each label, with marks on it, lines across all, and the numbers in a column on the right."""
    count = len(figure.labels)
    labelled = count <= _LABELLED_BARS
    step = 24.0 if labelled else max(4.0, 900.0 / count)
    drawing, axes = canvas(WIDTH, 64 + step * count + (34 if figure.marks or figure.lines or figure.intervals else 0))
    places = np.arange(count)
    divisor, suffix = _bar_scale(figure)
    values = np.asarray(figure.values) / divisor
    axes.barh(places, values, height=0.62 if labelled else 0.9, color=color("series-1"), label=figure.value_name)
    for number, (name, marks) in enumerate(figure.marks.items(), 1):
        kept = [place for place, mark in enumerate(marks) if mark is not None]
        axes.plot(
            [(marks[place] or 0.0) / divisor for place in kept],
            kept,
            linestyle="",
            marker=MARKERS[number + 1],
            markersize=7,
            color=color(SERIES[number]),
            markeredgecolor=color("paper"),
            clip_on=False,
            label=name,
        )
    for number, (name, value) in enumerate(figure.lines.items(), 1 + len(figure.marks)):
        style = ("--", ":", "-.")[(number - 1) % 3]
        axes.axvline(value / divisor, color=color(SERIES[number % 8]), linestyle=style, linewidth=1.6, label=name)
    if figure.unit == SHARE:
        axes.set_xlim(0, 100 if len(values) == 0 or max(values) <= 100 else None)
    elif figure.top:
        axes.set_xlim(0, 1.02 * figure.top / divisor)
    if figure.intervals:
        ends = np.asarray(figure.intervals) / divisor
        axes.errorbar(
            values,
            places,
            xerr=np.clip([values - ends[:, 0], ends[:, 1] - values], 0, None),
            fmt="none",
            color=color("ink"),
            elinewidth=1.6,
            capsize=4,
            label="sure to be within",
        )
    _label_bars(axes, figure, labelled, suffix)
    axes.invert_yaxis()
    axes.set_ylim(count - 0.4, -0.6)
    axes.spines["left"].set_visible(False)
    if figure.marks or figure.lines or figure.intervals:
        legend(drawing, axes, 3)
    return drawing


def _bar_scale(figure: Bars) -> tuple[float, str]:
    """Divisor of the values and the name of what results."""
    if figure.unit == SHARE:
        return 0.01, "%"
    if figure.unit == BYTES:
        return byte_unit(figure.top or max(figure.values, default=0.0))
    return 1.0, figure.unit


def _label_bars(axes: Axes, figure: Bars, labelled: bool, suffix: str) -> None:
    """Names on the left, numbers in a column on the right, where no bar or mark can cover them."""
    count = len(figure.labels)
    axes.set_yticks(range(count) if labelled else [])
    axes.tick_params(axis="y", length=0, labelcolor=color("ink"))
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=STEPS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} {suffix}".rstrip()))
    axes.grid(axis="x", color=color("rule"), linewidth=0.6)
    axes.set_axisbelow(True)
    if not labelled:
        axes.set_ylabel(f"{count:,} sorted", color=color("muted"))
        return
    axes.set_yticklabels([shortened(label) for label in figure.labels])
    numbers = [written(value, figure.unit) for value in figure.values]
    room = SIGN * max(map(len, numbers), default=0) + _GAP
    for place, number in enumerate(numbers):
        axes.annotate(
            number,
            (1.0, place),
            (room, 0.0),
            xycoords=axes.get_yaxis_transform(),
            textcoords="offset points",
            ha="right",
            va="center",
            color=color("ink"),
        )

"""Figures as SVG for a page: bars, curves, and the choice of the drawing.

matplotlib draws with stand-in colours, one per role, which become ``var(--role)`` afterwards. So the same drawing is
light, dark or on paper as the page is. Cells of heat maps are one colour at different opacity, for the same reason.
"""

import io
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FuncFormatter, MaxNLocator

from kernfed.report.canvas import (
    MARKERS,
    SERIES,
    SIGN,
    STEPS,
    STYLE,
    WIDTH,
    canvas,
    color,
    inline,
    legend,
    legend_columns,
    shortened,
)
from kernfed.report.content import (
    BYTES,
    MOST_OPEN,
    PUBLISHED,
    SHARE,
    Bars,
    Curves,
    Figure,
    HeatMap,
    Pictures,
    byte_unit,
    written,
)
from kernfed.report.heat import draw_heat_map, draw_pictures, heat_map_width

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


def draw_curves(figure: Curves) -> Drawing:
    """A curve for every series, each of another colour and marker; published ones are dashed."""
    names = [series.name for series in figure.series]
    lines = -(-len(names) // legend_columns(names, 2)) if len(names) > 1 else 0
    drawing, axes = canvas(WIDTH, 290 + 19 * lines)
    colors: dict[str, int] = {}
    for series in figure.series:
        # A published curve has the colour of ours, which is named alike before the bracket.
        place = colors.setdefault(series.name.removesuffix(PUBLISHED), len(colors)) % len(SERIES)
        style: dict[str, Any] = {
            "color": color(SERIES[place]),
            "linestyle": "--" if series.dashed else "-",
            "marker": MARKERS[place],
            "markersize": 4.5,
            "label": series.name,
        }
        if series.dashed:
            style["markerfacecolor"] = "none"
        axes.plot(series.x, series.y, **style)
        if any(value is not None for value in series.spread):
            wide = [value or 0.0 for value in series.spread]
            axes.errorbar(series.x, series.y, yerr=wide, fmt="none", ecolor=color(SERIES[place]), elinewidth=1)
    _scale_axes(axes, figure)
    axes.grid(color=color("rule"), linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(shortened(figure.x_name, 60), color=color("muted"))
    axes.set_ylabel(shortened(figure.y_name, 44), color=color("muted"))
    if len(names) > 1:
        legend(drawing, axes, 2)
    return drawing


def _scale_axes(axes: Axes, figure: Curves) -> None:
    """Linear or logarithmic, with plain numbers; on a short logarithmic axis 2 and 5 have numbers too."""
    axes.set_xscale("log" if figure.log_x else "linear")
    axes.set_yscale("log" if figure.log_y else "linear")
    for axis, log in ((axes.xaxis, figure.log_x), (axes.yaxis, figure.log_y)):
        low, high = axis.get_view_interval()
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        short = log and high < 50 * low
        axis.set_minor_formatter(FuncFormatter(_two_or_five if short else lambda *_: ""))
        if not log:
            whole = axis is axes.xaxis and _whole(figure)
            axis.set_major_locator(MaxNLocator(6, integer=whole, steps=[1, 2, 5, 10] if whole else STEPS))


def _two_or_five(value: float, _: object) -> str:
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""


def _whole(figure: Curves) -> bool:
    return all(float(x).is_integer() for series in figure.series for x in series.x)


_DRAWS: dict[type, Callable[[Any], Drawing]] = {
    Bars: draw_bars,
    HeatMap: draw_heat_map,
    Curves: draw_curves,
    Pictures: draw_pictures,
}


def draw(figure: Figure, name: str) -> str:
    """The figure as one ``<svg>`` element for a page that has the variables; ``name`` makes its ids unique."""
    with rc_context({**STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the reader's fonts draw the text, not ours
        drawing = _DRAWS[type(figure)](figure)
        FigureCanvasSVG(drawing)
        target = io.StringIO()
        drawing.savefig(target, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    return inline(target.getvalue(), figure.title, figure.words, name)


def drawn_parts(figure: Figure, name: str) -> list[tuple[str, str]]:
    """The figure as ``<svg>`` elements, each below its heading; of many bars both ends, side by side."""
    parts: tuple[Figure, ...] = panels(figure) if isinstance(figure, Bars) else (figure,)
    if len(parts) == 1:
        return [("", draw(figure, name))]
    headings = [part.title.removeprefix(f"{figure.title}: ") for part in parts]
    return [(headings[place], draw(part, f"{name}-{place + 1}")) for place, part in enumerate(parts)]


def is_wide(figure: Figure) -> bool:
    """Whether the figure needs the whole width of a page."""
    if isinstance(figure, Bars):
        return len(panels(figure)) > 1
    return isinstance(figure, HeatMap) and heat_map_width(figure) > WIDTH

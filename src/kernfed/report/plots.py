"""Figures as SVG for a page: text stays text, and every colour is a variable of the page.

matplotlib draws with stand-in colours, one per role, which become ``var(--role)`` afterwards. So the same drawing is
light, dark or on paper as the page is. Cells of heat maps are one colour at different opacity, for the same reason.
"""

import io
import warnings
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import FuncFormatter, MaxNLocator

from kernfed._validation import FloatArray
from kernfed.report.content import BYTES, PUBLISHED, SHARE, Bars, Curves, Figure, HeatMap, Pictures, byte_unit, written
from kernfed.report.svg import SERIES, color, inline, shortened

#: Every role of a curve has a marker of its own, so that colour is never the only difference.
_MARKERS = "osD^vPXh"
#: Opacity of a cell above which its text is in the colour made for dark cells; both themes cross here.
DARK_CELL = 0.69
_FAINTEST = 0.05
#: Design width in CSS pixels; a figure is shown at this width or less, a wide one may be scrolled.
WIDTH = 400
_INCH, _TEXT = 72.0, 11.5
_LABELLED_BARS, _LABELLED_ROWS, _WRITTEN_CELLS = 40, 60, 16
_LEGEND = 44
_STEPS = [1, 2, 2.5, 5, 10]
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": _TEXT,
    "font.family": "DejaVu Sans",  # comes with matplotlib; wider than most, so that what fits here fits everywhere
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "axes.unicode_minus": False,
}


def draw(figure: Figure, name: str) -> str:
    """The figure as one ``<svg>`` element for a page that has the variables; ``name`` makes its ids unique."""
    draws: dict[type, Callable[[Any], Drawing]] = {
        Bars: _bars,
        HeatMap: _heat_map,
        Curves: _curves,
        Pictures: _pictures,
    }
    with rc_context({**_STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the reader's fonts draw the text, not ours
        drawing = draws[type(figure)](figure)
        FigureCanvasSVG(drawing)
        target = io.StringIO()
        drawing.savefig(target, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    return inline(target.getvalue(), figure.title, figure.words, name)


def is_wide(figure: Figure) -> bool:
    """Whether the figure needs the whole width of a page."""
    return isinstance(figure, HeatMap) and _heat_map_width(figure) > WIDTH


# Drawing ----------------------------------------------------------------------------------------------------------


def _canvas(width: float, height: float) -> tuple[Drawing, Axes]:
    drawing = Drawing(figsize=(width / _INCH, height / _INCH), dpi=_INCH, layout="constrained")
    axes = drawing.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    for spine in axes.spines.values():
        spine.set_edgecolor(color("rule"))
    axes.tick_params(which="both", colors=color("muted"), labelcolor=color("muted"), length=3)
    return drawing, axes


def _bars(figure: Bars) -> Drawing:
    count = len(figure.labels)
    labelled = count <= _LABELLED_BARS
    step = 24.0 if labelled else max(4.0, 900.0 / count)
    drawing, axes = _canvas(WIDTH, 64 + step * count + (34 if figure.marks or figure.lines or figure.intervals else 0))
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
            marker=_MARKERS[number + 1],
            markersize=7,
            color=color(SERIES[number]),
            markeredgecolor=color("paper"),
            label=name,
        )
    for number, (name, value) in enumerate(figure.lines.items(), 1 + len(figure.marks)):
        style = ("--", ":", "-.")[(number - 1) % 3]
        axes.axvline(value / divisor, color=color(SERIES[number % 8]), linestyle=style, linewidth=1.6, label=name)
    if figure.unit == SHARE:
        axes.set_xlim(0, 100 if len(values) == 0 or max(values) <= 100 else None)
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
        _legend(drawing, axes, 3)
    return drawing


def _bar_scale(figure: Bars) -> tuple[float, str]:
    """Divisor of the values and the name of what results."""
    if figure.unit == SHARE:
        return 0.01, "%"
    if figure.unit == BYTES:
        return byte_unit(max(figure.values, default=0.0))
    return 1.0, figure.unit


def _label_bars(axes: Axes, figure: Bars, labelled: bool, suffix: str) -> None:
    """Names on the left, numbers in a column on the right, where no bar or mark can cover them."""
    count = len(figure.labels)
    axes.set_yticks(range(count) if labelled else [])
    axes.tick_params(axis="y", length=0, labelcolor=color("ink"))
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=_STEPS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} {suffix}".rstrip()))
    axes.grid(axis="x", color=color("rule"), linewidth=0.6)
    axes.set_axisbelow(True)
    if not labelled:
        axes.set_ylabel(f"{count:,} sorted", color=color("muted"))
        return
    axes.set_yticklabels([shortened(label) for label in figure.labels])
    for place, value in enumerate(figure.values):
        axes.text(
            1.19,
            place,
            written(value, figure.unit),
            ha="right",
            va="center",
            color=color("ink"),
            transform=axes.get_yaxis_transform(),
        )


def _legend_columns(names: Sequence[str], most: int) -> int:
    """How many names fit side by side."""
    longest = max((len(shortened(name, _LEGEND)) for name in names), default=1)
    return max(1, min(most, int(56 / (longest + 6))))


def _legend(drawing: Drawing, axes: Axes, most: int) -> None:
    handles, names = axes.get_legend_handles_labels()
    # Names are set on the texts: a legend leaves out what begins with an underscore.
    legend = drawing.legend(
        handles,
        [str(place) for place in range(len(handles))],
        loc="outside lower center",
        ncols=_legend_columns(names, most),
        frameon=False,
        fontsize=_TEXT - 0.5,
    )
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_text(shortened(name, _LEGEND))
        text.set_color(color("ink"))


def _heat_map_width(figure: HeatMap) -> float:
    """A cell with a number in it has room for four signs."""
    columns = len(figure.columns)
    return max(WIDTH, 120 + (28.0 if columns <= _WRITTEN_CELLS else 20.0) * columns)


def _heat_map(figure: HeatMap) -> Drawing:
    rows, columns = len(figure.rows), len(figure.columns)
    labelled = rows <= _LABELLED_ROWS
    step = 26.0 if rows <= 25 else 16.0 if labelled else max(3.0, 900.0 / rows)
    longest = max((len(shortened(name)) for name in figure.columns), default=1)
    turned = (longest > 3 and columns > 4) or longest * columns > 44
    drawing, axes = _canvas(_heat_map_width(figure), 50 + step * rows + (6.2 * longest if turned else 12))
    axes.spines[:].set_visible(False)
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    _cells(axes, figure, labels=labelled and columns <= _WRITTEN_CELLS)
    axes.set_xticks(
        np.arange(columns) + 0.5, [shortened(name) for name in figure.columns], rotation=90 if turned else 0
    )
    axes.set_yticks(
        np.arange(rows) + 0.5 if labelled else [], [shortened(name) for name in figure.rows] if labelled else []
    )
    axes.tick_params(length=0, top=False, bottom=False, labeltop=True, labelbottom=False, labelcolor=color("ink"))
    if turned:
        for text in axes.get_xticklabels():
            text.set_rotation_mode("anchor")
            text.set_horizontalalignment("left")
            text.set_verticalalignment("center")
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(shortened(figure.column_name, 44), color=color("muted"))
    named = shortened(figure.row_name, 30)
    axes.set_ylabel(named if labelled else f"{rows:,} of: {named}", color=color("muted"))
    return drawing


def _cells(axes: Axes, figure: HeatMap, *, labels: bool) -> None:
    """One rectangle per cell, as opaque as its value is large, with the number in it where there is room."""
    values = np.nan_to_num(np.asarray(figure.values, dtype=float))
    opacity = _opacity(values, figure.scale)
    _shade(axes, opacity, 0.03)
    for (row, column), value in np.ndenumerate(values):
        if labels and value > 0:
            axes.text(
                column + 0.5,
                row + 0.5,
                cell_text(value, figure.unit),
                ha="center",
                va="center",
                fontsize=_TEXT,
                in_layout=False,
                color=color("on-high" if opacity[row, column] > DARK_CELL else "on-low"),
            )


def _opacity(values: FloatArray, scale: float | None, levels: int = 50) -> FloatArray:
    """Opacity of each cell, in steps that the eye does not see."""
    top = scale or float(values.max(initial=0.0)) or 1.0
    steps = np.round(np.clip(values / top, 0, 1) * levels) / levels
    return np.asarray(_FAINTEST + (1 - _FAINTEST) * steps)


def _shade(axes: Axes, opacity: FloatArray, gap: float) -> None:
    """The cells of a matrix; those of one opacity are one shape, which keeps a page small."""
    boxes: dict[float, list[Path]] = {}
    for row, line in enumerate(opacity.tolist()):
        column = 0
        for level, run in groupby(line):
            width = len(list(run))
            ends = [(column, width)] if gap == 0 else [(column + place, 1) for place in range(width)]
            boxes.setdefault(level, []).extend(
                _box(start + gap, row + gap, size - 2 * gap, 1 - 2 * gap) for start, size in ends
            )
            column += width
    for level, paths in sorted(boxes.items()):
        axes.add_patch(PathPatch(Path.make_compound_path(*paths), facecolor=(color("heat"), level), linewidth=0))


def _box(x: float, y: float, width: float, height: float) -> Path:
    right, bottom = x + width, y + height
    return Path([(x, y), (right, y), (right, bottom), (x, bottom), (x, y)], closed=True)


def _pictures(figure: Pictures) -> Drawing:
    """Panels in rows of three, or below each other where they are long."""
    shapes = [np.asarray(matrix, dtype=float) for _, matrix in figure.panels]
    tall, broad = max(shape.shape[0] for shape in shapes), max(shape.shape[1] for shape in shapes)
    across = 1 if broad > 2 * tall else min(3, len(shapes))
    down = -(-len(shapes) // across)
    drawing = Drawing(
        figsize=(WIDTH / _INCH, down * (WIDTH / across * tall / broad + 24) / _INCH), dpi=_INCH, layout="constrained"
    )
    top = max(float(np.nan_to_num(shape).max(initial=0.0)) for shape in shapes)
    for place, ((name, _), values) in enumerate(zip(figure.panels, shapes, strict=True), 1):
        axes = drawing.add_subplot(down, across, place)
        axes.set_xlim(0, values.shape[1])
        axes.set_ylim(values.shape[0], 0)
        axes.set_aspect("equal")
        axes.set_axis_off()
        _shade(axes, _opacity(np.nan_to_num(values), top, 20), 0.0)
        axes.set_title(shortened(name, 60 // across), color=color("ink"), fontsize=_TEXT - 0.5)
    return drawing


def cell_text(value: float, unit: str) -> str:
    """A number of at most four signs: per cent without its sign, thousands as k.

    >>> cell_text(0.984, "share"), cell_text(12.0, ""), cell_text(48230, ""), cell_text(0.1234, "")
    ('98', '12', '48k', '.12')
    """
    if unit == SHARE:
        return f"{100 * value:.0f}" if value >= 0.005 else ""
    if float(value).is_integer():
        return f"{value:.0f}" if value < 10_000 else f"{value / 1000:.0f}k"
    return f"{value:.2g}".removeprefix("0") if value < 10 else f"{value:.0f}"


def _curves(figure: Curves) -> Drawing:
    names = [series.name for series in figure.series]
    lines = -(-len(names) // _legend_columns(names, 2)) if len(names) > 1 else 0
    drawing, axes = _canvas(WIDTH, 290 + 19 * lines)
    colors: dict[str, int] = {}
    for series in figure.series:
        # A published curve has the colour of ours, which is named alike before the bracket.
        place = colors.setdefault(series.name.removesuffix(PUBLISHED), len(colors)) % len(SERIES)
        style: dict[str, Any] = {
            "color": color(SERIES[place]),
            "linestyle": "--" if series.dashed else "-",
            "marker": _MARKERS[place],
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
        _legend(drawing, axes, 2)
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
            axis.set_major_locator(MaxNLocator(6, integer=whole, steps=[1, 2, 5, 10] if whole else _STEPS))


def _two_or_five(value: float, _: object) -> str:
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""


def _whole(figure: Curves) -> bool:
    return all(float(x).is_integer() for series in figure.series for x in series.x)

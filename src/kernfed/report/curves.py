"""Curves over a common horizontal axis."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FuncFormatter, MaxNLocator

from kernfed.report.canvas import MARKERS, STEPS, WIDTH, canvas, legend, legend_columns
from kernfed.report.content import PUBLISHED, Curves
from kernfed.report.svg import SERIES, color, shortened


def draw_curves(figure: Curves) -> Drawing:
    """A curve of its own colour and marker for every series; published ones are dashed."""
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

"""What drawings share: sizes, the empty canvas, and the legend below it."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from kernfed.report.svg import color, shortened

#: Every role of a curve has a marker of its own, so that colour is never the only difference.
MARKERS = "osD^vPXh"
#: Design width in CSS pixels; a figure is shown at this width or less, a wide one may be scrolled. A page is PAGE wide.
WIDTH, PAGE = 400, 940
INCH, TEXT = 72.0, 11.5
#: About how wide a sign is, in pixels, and the gap between the name of an axis and its labels.
SIGN, PAD = 6.4, 8.0
STEPS = [1, 2, 2.5, 5, 10]
_LEGEND = 44
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": TEXT,
    "font.family": "DejaVu Sans",  # comes with matplotlib; wider than most, so that what fits here fits everywhere
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "axes.unicode_minus": False,
}


def canvas(width: float, height: float) -> tuple[Drawing, Axes]:
    """An empty drawing of this size in CSS pixels, and its axes."""
    drawing = Drawing(figsize=(width / INCH, height / INCH), dpi=INCH, layout="constrained")
    axes = drawing.add_subplot()
    set_up(axes)
    return drawing, axes


def set_up(axes: Axes) -> None:
    """Lines and labels in the colours of the page."""
    axes.spines[["top", "right"]].set_visible(False)
    for spine in axes.spines.values():
        spine.set_edgecolor(color("rule"))
    axes.tick_params(which="both", colors=color("muted"), labelcolor=color("muted"), length=3)


def legend_columns(names: Sequence[str], most: int) -> int:
    """How many names fit side by side."""
    longest = max((len(shortened(name, _LEGEND)) for name in names), default=1)
    return max(1, min(most, int(56 / (longest + 6))))


def legend(drawing: Drawing, axes: Axes, most: int) -> None:
    """Names of what is drawn, below it, at most so many side by side."""
    handles, names = axes.get_legend_handles_labels()
    # Names are set on the texts: a legend leaves out what begins with an underscore.
    drawn = drawing.legend(
        handles,
        [str(place) for place in range(len(handles))],
        loc="outside lower center",
        ncols=legend_columns(names, most),
        frameon=False,
        fontsize=TEXT - 0.5,
    )
    for text, name in zip(drawn.get_texts(), names, strict=True):
        text.set_text(shortened(name, _LEGEND))
        text.set_color(color("ink"))

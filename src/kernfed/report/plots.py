"""Figures as SVG for a page: text stays text, and every colour is a variable of the page.

matplotlib draws with stand-in colours, one per role, which become ``var(--role)`` afterwards. So the same drawing is
light, dark or on paper as the page is. Cells of heat maps are one colour at different opacity, for the same reason.
"""

import io
import warnings
from collections.abc import Callable
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Drawing

from kernfed.report.bars import draw_bars, panels
from kernfed.report.canvas import STYLE, WIDTH
from kernfed.report.content import Bars, Curves, Figure, HeatMap, Pictures
from kernfed.report.curves import draw_curves
from kernfed.report.heat import draw_heat_map, draw_pictures, heat_map_width
from kernfed.report.svg import inline

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

"""Matrices of cells, darker where larger: heat maps with numbers or a scale of colours, and small pictures."""

from itertools import groupby, pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from kernfed.base.checks import FloatArray
from kernfed.report.canvas import PAD, PAGE, SIGN, TEXT, WIDTH, color, empty_drawing, set_up, shortened
from kernfed.report.content import SHARE, HeatMap, Pictures, written

#: Opacity of a cell above which its text is in the colour made for dark cells; both themes cross here.
DARK_CELL = 0.69
_FAINTEST = 0.05
#: Rows with names, and columns of cells with numbers in them.
_LABELLED_ROWS, _WRITTEN_CELLS = 60, 28
#: Widths of a cell in pixels: with a number of four signs, at most, and without. Heights likewise.
_WRITTEN, _WIDEST, _PLAIN = 28.0, 34.0, 20.0
_TALL, _FLAT = 24.0, 16.0
#: Rows up to which cells are tall enough for numbers; boxes of a scale of colours and their size.
_WRITTEN_ROWS, _SWATCHES, _SWATCH = 32, 11, 18.0


def heat_map_width(figure: HeatMap) -> float:
    """Pixels: a cell with a number in it has room for four signs, and a map that is wide fills the page if it can."""
    columns = len(_drawn(figure)[1])
    names = _names_width(figure)
    least = names + (_WRITTEN if _has_numbers(figure) else _PLAIN) * columns
    return WIDTH if least <= WIDTH else max(least, min(PAGE, names + _WIDEST * columns))


def _names_width(figure: HeatMap) -> float:
    """Room left of the cells: the longest name, the name of the axis, and gaps."""
    rows = _drawn(figure)[0]
    if len(rows) > _LABELLED_ROWS:
        return 50.0
    return 44.0 + SIGN * max((len(shortened(figure.rows[row])) for row in rows if row is not None), default=1)


def _drawn(figure: HeatMap) -> tuple[list[int | None], list[int]]:
    """Places of the rows and the columns that are drawn; None is a gap for rows that are not."""
    kept = list(figure.drawn_rows or range(len(figure.rows)))
    rows: list[int | None] = list(kept[:1])
    for before, place in pairwise(kept):
        rows += [place] if place == before + 1 else [None, place]
    return rows, list(figure.drawn_columns or range(len(figure.columns)))


def _has_numbers(figure: HeatMap) -> bool:
    rows, columns = _drawn(figure)
    return len(rows) <= _WRITTEN_ROWS and len(columns) <= _WRITTEN_CELLS


def draw_heat_map(figure: HeatMap) -> Drawing:
    """Rows from above, columns from the left; the numbers in the cells, or a scale of colours below them."""
    rows, columns = _drawn(figure)
    labelled, numbers = len(rows) <= _LABELLED_ROWS, _has_numbers(figure)
    step = _TALL if len(rows) <= _WRITTEN_ROWS else _FLAT if labelled else max(3.0, 900.0 / len(rows))
    names = [shortened(figure.columns[column]) for column in columns]
    longest = max(map(len, names), default=1)
    turned = (longest > 3 and len(columns) > 4) or longest * len(columns) > 44
    cells = step * len(rows)
    width, above = heat_map_width(figure), PAD + 34 + (6.2 * longest if turned else 14)
    height = above + cells + (0.0 if numbers else 3 * _SWATCH)
    drawing = empty_drawing(width, height)
    grid = drawing.add_gridspec(1 if numbers else 2, 1, height_ratios=None if numbers else [cells, _SWATCH])
    axes = drawing.add_subplot(grid[0])
    _set_up_map(axes, len(rows), len(columns))
    _cells(axes, figure, labels=numbers)
    axes.set_xticks(np.arange(len(columns)) + 0.5, names, rotation=90 if turned else 0)
    _name_rows(axes, figure, rows if labelled else [])
    if turned:
        for text in axes.get_xticklabels():
            text.set_rotation_mode("anchor")
            text.set_horizontalalignment("left")
            text.set_verticalalignment("center")
    axes.set_xlabel(shortened(figure.column_name, 44), color=color("muted"), labelpad=PAD)
    if not numbers:
        _color_scale(drawing.add_subplot(grid[1]), figure, width)
    return drawing


def _set_up_map(axes: Axes, rows: int, columns: int) -> None:
    set_up(axes)
    axes.spines[:].set_visible(False)
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    axes.tick_params(length=0, top=False, bottom=False, labeltop=True, labelbottom=False, labelcolor=color("ink"))
    axes.xaxis.set_label_position("top")


def _name_rows(axes: Axes, figure: HeatMap, rows: list[int | None]) -> None:
    """Names of rows, and in a gap how many are not drawn; of very many rows only how many they are."""
    hidden = len(figure.rows) - sum(row is not None for row in rows)
    names = [f"{hidden:,} between" if row is None else shortened(figure.rows[row]) for row in rows]
    axes.set_yticks(np.arange(len(rows)) + 0.5, names)
    for text, row in zip(axes.get_yticklabels(), rows, strict=True):
        if row is None:
            text.set_color(color("muted"))
    named = shortened(figure.row_name, 30)
    axes.set_ylabel(named if rows else f"{len(figure.rows):,} of: {named}", color=color("muted"), labelpad=PAD)


def _color_scale(axes: Axes, figure: HeatMap, width: float) -> None:
    """Which number is how dark: boxes from nothing to the darkest value."""
    _set_up_map(axes, 1, 1)
    axes.set_xlim(0, (width - _names_width(figure)) / _SWATCH)
    top = _top(_values(figure), figure.scale)
    _shade(axes, _opacity(np.linspace(0, top, _SWATCHES)[np.newaxis], top), 0.03)
    ends = (0.5, _SWATCHES / 2, _SWATCHES - 0.5)
    texts = [written(share * top, figure.unit) for share in (0.0, 0.5, 1.0)]
    axes.set_xticks(ends, texts)
    axes.set_yticks([])
    axes.tick_params(labeltop=False, labelbottom=True, labelcolor=color("muted"))


def _values(figure: HeatMap) -> FloatArray:
    """What is drawn (rows, columns); a gap is -1, and what is not known 0."""
    rows, columns = _drawn(figure)
    values = np.nan_to_num(np.asarray(figure.values, dtype=float).reshape(len(figure.rows), len(figure.columns)))
    lines = [np.full(len(columns), -1.0) if row is None else values[row, columns] for row in rows]
    return np.asarray(lines).reshape(len(rows), len(columns))


def _cells(axes: Axes, figure: HeatMap, *, labels: bool) -> None:
    """One rectangle per cell, as opaque as its value is large, with the number in it where there is room."""
    values = _values(figure)
    opacity = _opacity(values, _top(values, figure.scale))
    opacity[values < 0] = 0.0
    _shade(axes, opacity, 0.03)
    for (row, column), value in np.ndenumerate(values):
        if labels and value > 0:
            axes.text(
                column + 0.5,
                row + 0.5,
                cell_text(float(value), figure.unit),
                ha="center",
                va="center",
                fontsize=TEXT,
                in_layout=False,
                color=color("on-high" if opacity[row, column] > DARK_CELL else "on-low"),
            )


def _top(values: FloatArray, scale: float | None) -> float:
    """The value that is darkest: ``scale``, or the largest of all."""
    return scale or float(values.max(initial=0.0)) or 1.0


def _opacity(values: FloatArray, top: float, levels: int = 50) -> FloatArray:
    """Opacity of each cell, in steps that the eye does not see."""
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
    boxes.pop(0.0, None)
    for level, paths in sorted(boxes.items()):
        axes.add_patch(PathPatch(Path.make_compound_path(*paths), facecolor=(color("heat"), level), linewidth=0))


def _box(x: float, y: float, width: float, height: float) -> Path:
    right, bottom = x + width, y + height
    return Path([(x, y), (right, y), (right, bottom), (x, bottom), (x, y)], closed=True)


def draw_pictures(figure: Pictures) -> Drawing:
    """Panels in rows of three, or below each other where they are long."""
    shapes = [np.asarray(matrix, dtype=float) for _, matrix in figure.panels]
    tall, broad = max(shape.shape[0] for shape in shapes), max(shape.shape[1] for shape in shapes)
    across = 1 if broad > 2 * tall else min(3, len(shapes))
    down = -(-len(shapes) // across)
    drawing = empty_drawing(WIDTH, down * (WIDTH / across * tall / broad + 24))
    top = max(float(np.nan_to_num(shape).max(initial=0.0)) for shape in shapes) or 1.0
    for place, ((name, _), values) in enumerate(zip(figure.panels, shapes, strict=True), 1):
        axes = drawing.add_subplot(down, across, place)
        axes.set_xlim(0, values.shape[1])
        axes.set_ylim(values.shape[0], 0)
        axes.set_aspect("equal")
        axes.set_axis_off()
        _shade(axes, _opacity(np.nan_to_num(values), top, 20), 0.0)
        axes.set_title(shortened(name, 60 // across), color=color("ink"), fontsize=TEXT - 0.5)
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

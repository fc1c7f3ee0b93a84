"""Pictures of what kernel affine hull machines do to points of the plane.

Each is one file for light and dark pages: the ground is transparent, and labels, rows and images have shades that stand
out from both. Labels are large enough to be read where a phone shows the picture at its own width.
"""

from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.ticker import MaxNLocator
from PIL import Image

from kernfed import KAHM, KAHMClassifier

#: As far from white as from the dark ground of the site: both contrasts are 4 to 1.
_LABELS = "#7f7f7f"
_ROWS, _IMAGES = "#2f7fd1", "#e07b16"
_STYLE = {
    "font.size": 13,
    "font.weight": "bold",
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "figure.titlesize": 14,
    "figure.titleweight": "bold",
    "text.color": _LABELS,
    "xtick.color": _LABELS,
    "savefig.transparent": True,
}
#: Bands of a measure, and shades in a file that has little else: a quarter of the bytes.
_BANDS, _SHADES = 20, 128
_GRID = 160
#: Root mean square difference of shades in [0, 1] up to which a picture counts as unchanged.
_ALIKE = 0.04


def kahm_images() -> Figure:
    """KAHM images of two-dimensional rows: a grid of points and where each is mapped; DP-KAHM Figures 2, 4."""
    figure, axes = _panels(3, 1, 2.7, "Rows (blue), and a grid of points mapped (orange)")
    for place, (name, rows) in zip(axes, _shapes().items(), strict=True):
        machine = KAHM(scale=None).fit(rows)
        points = _grid_points(rows, 60)
        images = machine.image(points)
        place.plot(*images.T, ".", color=_IMAGES, markersize=2.5, alpha=0.6)
        place.plot(*rows.T, ".", color=_ROWS, markersize=3)
        place.set_title(name)
    return figure


def folding() -> Figure:
    """How a machine folds the plane: points joined with their images, and the measure in colour; SFM Figure 2."""
    rows = _shapes()["two moons"]
    machine = KAHM(scale=None).fit(rows)
    figure, (left, right) = _panels(2, 1, 3.4, "A machine folds the plane around its rows")
    points = _grid_points(rows, 18)
    images = machine.image(points)
    for point, image in zip(points, images, strict=True):
        left.plot(*np.stack([point, image]).T, color=_IMAGES, linewidth=0.7, alpha=0.8)
    left.plot(*rows.T, ".", color=_ROWS, markersize=3)
    extent = _grid(rows)[0]
    left.set(title="points and their images", xlim=extent[:2], ylim=extent[2:])
    _colours(right, rows, lambda grid: machine.folding(grid, "rms"))
    right.set_title('measure "rms"')
    return figure


def federated_folding() -> Figure:
    """The measure of three sites, and the smallest of them, which answers for all.

    SFM Figure 3, GIKM Figure 2, DP-KAHM Figure 10.
    """
    draws = np.random.default_rng(3)
    centres = np.array([[-2.0, 0.0], [1.5, 1.5], [1.2, -1.8]])
    sites = [centre + draws.normal(size=(60, 2)) @ np.array([[0.7, 0.2], [0.0, 0.35]]) for centre in centres]
    machines = [KAHM(scale=None).fit(rows) for rows in sites]
    everything = np.concatenate(sites)
    figure, axes = _panels(2, 2, 6.6, "Three sites, and together: the smallest measure")
    for number, (place, rows, machine) in enumerate(zip(axes, sites, machines, strict=False)):
        _colours(place, everything, lambda grid, machine=machine: machine.folding(grid, "rms"), rows)
        place.set_title(f"site {number + 1}")
    together = axes[3]
    _colours(together, everything, lambda grid: np.min([one.folding(grid, "rms") for one in machines], axis=0))
    together.set_title("together")
    return figure


def classifier() -> Figure:
    """Regions of a classifier of three classes, and how near the nearest class is; DP-KAHM Figure 8."""
    draws = np.random.default_rng(5)
    turns = np.linspace(0, 2.2, 80)
    rows, labels = [], []
    for label in range(3):
        angle = turns + label * 2 * np.pi / 3
        arm = np.stack([(0.4 + turns) * np.cos(angle), (0.4 + turns) * np.sin(angle)], axis=1)
        rows.append(arm + 0.12 * draws.normal(size=arm.shape))
        labels += [label] * len(arm)
    data = np.concatenate(rows)
    model = KAHMClassifier(batch_size=1000, partition="kmeans", scale=None).fit(data, labels)
    figure, (left, right) = _panels(2, 1, 4.3, "A classifier of three classes")
    colours = mpl.colors.ListedColormap(["#4c78a8", "#f2a33a", "#6aa56e"])
    extent, grid = _grid(data)
    regions = model.predict(grid).reshape(_GRID, _GRID)
    left.imshow(regions, extent=extent, origin="lower", cmap=colours, alpha=0.35, interpolation="nearest")
    left.scatter(*data.T, c=labels, cmap=colours, s=6)
    left.set_title("the nearest class")
    _colours(right, data, lambda points: model.scores(points).min(axis=1))
    right.set_title("distance to it")
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "kahm-images": kahm_images,
    "folding": folding,
    "federated-folding": federated_folding,
    "classifier": classifier,
}


def draw_all(folder: Path) -> Iterator[Path]:
    """Draw every picture into ``folder`` and say which; a file that shows the same already is left as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        path, drawn = folder / f"{name}.png", BytesIO()
        with mpl.rc_context(_STYLE):
            draw().savefig(drawn, format="png", dpi=105)
        drawn = _with_fewer_shades(drawn)
        if not path.exists() or not looks_alike(path, drawn):
            path.write_bytes(drawn.getvalue())
        yield path


def looks_alike(first: Path | BytesIO, second: Path | BytesIO) -> bool:
    """Whether two PNGs differ by less than other versions of Matplotlib and its fonts do, by eye not at all."""
    images = []
    for image in (first, second):
        if isinstance(image, BytesIO):
            image.seek(0)
        images.append(imread(image))
    same_size = images[0].shape == images[1].shape
    return same_size and bool(np.sqrt(np.square(images[0] - images[1]).mean()) < _ALIKE)


def _with_fewer_shades(png: BytesIO) -> BytesIO:
    """The same picture with a palette of ``_SHADES`` colours and transparencies."""
    fewer = BytesIO()
    Image.open(png).quantize(_SHADES, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(
        fewer, "PNG", optimize=True
    )
    return fewer


def _shapes() -> dict[str, np.ndarray]:
    draws = np.random.default_rng(1)
    turn = np.linspace(0, np.pi, 60)
    circle = np.stack([np.cos(2 * turn), np.sin(2 * turn)], axis=1) + 0.05 * draws.normal(size=(60, 2))
    upper = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    moons = np.concatenate([upper, [1.0, 0.4] - upper]) + 0.06 * draws.normal(size=(120, 2))
    wave = np.stack([np.linspace(-2, 2, 80), np.sin(np.linspace(-4, 4, 80))], axis=1) + 0.05 * draws.normal(
        size=(80, 2)
    )
    return {"circle": circle, "two moons": moons, "wave": wave}


def _panels(columns: int, lines: int, height: float, title: str) -> tuple[Figure, list[Axes]]:
    """Panels without frames, all together narrow enough that a phone shows their labels in a readable size."""
    figure = Figure(figsize=(6.0, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left")
    axes = [figure.add_subplot(lines, columns, place + 1) for place in range(lines * columns)]
    for place in axes:
        place.set_aspect("equal", anchor="N")
        place.set_axis_off()
    return figure, axes


def _grid(rows: np.ndarray, size: int = _GRID) -> tuple[tuple[float, float, float, float], np.ndarray]:
    low, high = rows.min(axis=0) - 0.8, rows.max(axis=0) + 0.8
    x, y = np.meshgrid(np.linspace(low[0], high[0], size), np.linspace(low[1], high[1], size))
    return (low[0], high[0], low[1], high[1]), np.stack([x.ravel(), y.ravel()], axis=1)


def _grid_points(rows: np.ndarray, size: int) -> np.ndarray:
    return _grid(rows, size)[1]


def _colours(
    place: Axes, around: np.ndarray, value: Callable[[np.ndarray], np.ndarray], marked: np.ndarray | None = None
) -> None:
    extent, grid = _grid(around)
    shades = value(grid).reshape(_GRID, _GRID)
    cmap = mpl.colormaps["viridis"].resampled(_BANDS)
    shown = place.imshow(shades, extent=extent, origin="lower", cmap=cmap, interpolation="bilinear", vmin=0)
    bar = place.figure.colorbar(shown, ax=place, orientation="horizontal", fraction=0.05, pad=0.03, panchor=False)
    bar.outline.set_visible(False)
    bar.locator = MaxNLocator(3)
    bar.update_ticks()
    bar.ax.tick_params(labelsize=12, length=3)
    place.plot(*(around if marked is None else marked).T, ".", color="white", markersize=2.5)

"""Pictures of what kernel affine hull machines do to points of the plane."""

from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread

from kernfed import KAHM, KAHMClassifier

_STYLE = {"font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False}
_GRID = 160
#: Root mean square difference of shades in [0, 1] up to which a picture counts as unchanged.
_ALIKE = 0.04


def kahm_images() -> Figure:
    """KAHM images of two-dimensional rows: a grid of points and where each is mapped; DP-KAHM Figures 2, 4."""
    figure, axes = _panels(3, "Rows (dark) and the images (orange) of a grid of points around them")
    for place, (name, rows) in zip(axes, _shapes().items(), strict=True):
        machine = KAHM().fit(rows)
        points = _grid_points(rows, 60)
        images = machine.image(points)
        place.plot(*images.T, ".", color="#d9730d", markersize=2.5, alpha=0.6)
        place.plot(*rows.T, ".", color="#20303c", markersize=3)
        place.set_title(name)
    return figure


def folding() -> Figure:
    """How a machine folds the plane: points joined with their images, and the measure in colour; SFM Figure 2."""
    rows = _shapes()["two moons"]
    machine = KAHM().fit(rows)
    figure, (left, right) = _panels(2, "A machine folds the plane around its rows")
    points = _grid_points(rows, 18)
    images = machine.image(points)
    for point, image in zip(points, images, strict=True):
        left.plot(*np.stack([point, image]).T, color="#d9730d", linewidth=0.7, alpha=0.8)
    left.plot(*rows.T, ".", color="#20303c", markersize=3)
    left.set_title("points and their images")
    _colours(right, rows, lambda grid: machine.folding(grid, "rms"))
    right.set_title('space folding measure "rms"')
    return figure


def federated_folding() -> Figure:
    """The measure of three sites, and the smallest of the three that answers for all; SFM Figure 3, GIKM Figure 2."""
    draws = np.random.default_rng(3)
    centres = np.array([[-2.0, 0.0], [1.5, 1.5], [1.2, -1.8]])
    sites = [centre + draws.normal(size=(60, 2)) @ np.array([[0.7, 0.2], [0.0, 0.35]]) for centre in centres]
    machines = [KAHM().fit(rows) for rows in sites]
    everything = np.concatenate(sites)
    figure, axes = _panels(4, "Three sites, and together: the smallest measure")
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
    model = KAHMClassifier().fit(data, labels)
    figure, (left, right) = _panels(2, "A classifier of three classes")
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
            draw().savefig(drawn, format="png", dpi=110, metadata={"Software": None})
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


def _panels(count: int, title: str) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(2.9 * count, 3.1), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    axes = [figure.add_subplot(1, count, place + 1) for place in range(count)]
    for place in axes:
        place.set_aspect("equal")
        place.set_xticks([])
        place.set_yticks([])
        for side in ("left", "bottom"):
            place.spines[side].set_visible(False)
    return figure, axes


def _grid(rows: np.ndarray, size: int = _GRID) -> tuple[tuple[float, float, float, float], np.ndarray]:
    low, high = rows.min(axis=0) - 0.8, rows.max(axis=0) + 0.8
    x, y = np.meshgrid(np.linspace(low[0], high[0], size), np.linspace(low[1], high[1], size))
    return (low[0], high[0], low[1], high[1]), np.stack([x.ravel(), y.ravel()], axis=1)


def _grid_points(rows: np.ndarray, size: int) -> np.ndarray:
    return _grid(rows, size)[1]


def _colours(place: Axes, around: np.ndarray, value: Callable[[np.ndarray], np.ndarray],
             marked: np.ndarray | None = None) -> None:  # fmt: skip
    extent, grid = _grid(around)
    shades = value(grid).reshape(_GRID, _GRID)
    shown = place.imshow(shades, extent=extent, origin="lower", cmap="viridis", interpolation="bilinear", vmin=0)
    bar = place.figure.colorbar(shown, ax=place, orientation="horizontal", fraction=0.05, pad=0.03)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7, length=2)
    place.plot(*(around if marked is None else marked).T, ".", color="white", markersize=2.5)

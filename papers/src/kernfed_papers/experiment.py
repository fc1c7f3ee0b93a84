"""What an experiment is: a published table, the data it needs, and a function that computes our numbers for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernfed.report import PageTable


@dataclass(frozen=True)
class Row:
    """One number beside the published one.

    published : as printed, or None where nothing was published. ours : or None where it was not run; ``note`` says why.
    unit : of both: "fraction", "%", "bytes up" (from the sites), "bytes down" (to them), ...
    deviation : standard deviation of ours over repetitions, where there were some. series, x : make the number a point
    of a figure: of which curve, and where on the horizontal axis (see ``Axes``). matrix : a picture that belongs to the
    number, such as collaboration weights, as rows of few digits.
    """

    label: str
    published: float | None
    ours: float | None
    unit: str
    note: str = ""
    deviation: float | None = None
    series: str = ""
    x: float | None = None
    matrix: tuple[tuple[float, ...], ...] | None = None

    @property
    def difference(self) -> float | None:
        """Ours minus published, where there are both."""
        return None if self.published is None or self.ours is None else self.ours - self.published


@dataclass(frozen=True)
class Axes:
    """How the rows that have a ``series`` are drawn: names of both axes, and whether they are logarithmic."""

    x: str
    y: str
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Selection:
    """What of an experiment in parts is wanted; empty is everything. ``rows`` lifts or lowers caps of training rows."""

    sets: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    rows: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Part:
    """One part of an experiment that is kept by itself: its name, its seed, how to run it, or why that cannot be."""

    name: str
    seed: int
    run: Callable[[], list[Row]]
    missing: str = ""


@dataclass(frozen=True)
class Experiment:
    """A published table or figure, or part of one.

    id : name on the command line and of the result file. source : paper and table. datasets : names of the data sets
    it uses; with none of them there is nothing to run, and rows that miss theirs are not run on their own. protocol :
    what is done, in words. run : (seed, quick) -> rows; ``quick`` is a slice of seconds, to see that everything works.
    axes : of the figure that the rows make, if they make one. parts : of an experiment too long to be run at once:
    each part is kept as a line of its own, and not run again. tables : of the rows, in the place of one long list.
    """

    id: str
    title: str
    source: str
    datasets: tuple[str, ...]
    protocol: str
    run: Callable[[int, bool], list[Row]]
    axes: Axes | None = None
    parts: Callable[[Selection], list[Part]] | None = None
    tables: Callable[[Sequence[Row]], tuple[PageTable, ...]] | None = None


def not_run(label: str, published: float | None, unit: str, reason: str) -> Row:
    """Row of a number that cannot be computed here."""
    return Row(label, published, None, unit, f"not run: {reason}")

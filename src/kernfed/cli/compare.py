"""``kernfed compare``: every site alone, together and pooled, on one table, beside what one would try first."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernfed.base.text import TextTable, format_bytes, format_seconds
from kernfed.cli.console import Json, emit, note, progress
from kernfed.cli.options import (
    DataFile,
    Features,
    Label,
    PreparationOption,
    RowIds,
    Seed,
    SiteColumn,
    TextColumns,
    check_outputs,
    text_encoders,
)
from kernfed.errors import InputError

if TYPE_CHECKING:
    from kernfed.testing.comparison import Contender, Setting

EXAMPLE = """Example: kernfed compare --data patients.csv --label readmitted --site hospital --out compared.html"""
#: Share of rows that everything is tested on.
_TESTED = 0.25
_GROUPS = {
    "nothing": "without learning",
    "alone": "one site alone",
    "together": "together",
    "pooled": "pooled",
}
_COLOURS = {"nothing": "#999999", "alone": "#c98f3c", "together": "#2f6f9f", "pooled": "#7a7f87"}


def compare(
    data: DataFile,
    label: Label,
    site: SiteColumn = None,
    features: Features = None,
    ids: RowIds = None,
    preparation: PreparationOption = "auto",
    text: TextColumns = None,
    task: Annotated[str, typer.Option(help="classify or regress, where labels do not tell.")] = "",
    epsilon: Annotated[float, typer.Option(help="Of the line with privacy, per record.", min=0.01)] = 3.0,
    most_rows: Annotated[int, typer.Option("--max-rows", help="Rows to compare on; of more a sample.", min=40)] = 6000,
    out: Annotated[Path | None, typer.Option(help="Picture to write (.png), or page with picture (.html).")] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Compare sites alone, together and pooled on a table that is here; nothing is written but what --out names.

    A quarter of each site's rows is kept aside, and everything is tested on these. Others are tuned too: each by
    3-fold cross-validation over four settings, on at most 2,000 rows.
    """
    from kernfed.jobs.learning import Learning
    from kernfed.jobs.tables import TableFile
    from kernfed.testing.comparison import run_trial, trials

    if out is not None and out.suffix.lower() not in (".png", ".html"):
        raise InputError(f"--out must end in .png or .html, got {out}")
    check_outputs({"--out": out}, data)
    if task not in ("", "classify", "regress"):
        raise InputError(f"--task must be classify or regress, got {task!r}")
    started = time.perf_counter()
    with progress(f"reading {data}"):
        rows = TableFile(data, features, label, site, ids).read_to_learn(preparation)
        assert rows.y is not None
        learning, what_for = Learning(values={"task": task} if task else {}).for_labels(rows.y, label)
        setting, about = _setting(rows, (preparation, text_encoders(text, preparation)), most_rows, seed)
    regress = learning.values.get("task") == "regress"
    setting = _for_task(setting, regress)
    planned = trials(setting, epsilon=epsilon)
    tried = []
    with progress("comparing", len(planned)) as advance:
        for trial in planned:
            advance(0, trial.name)
            tried.append(run_trial(trial))
            advance()
    seconds = time.perf_counter() - started
    if out is not None:
        _write(out, tried, f"{label!r} of {data.name}", _sentence(tried))
    result = {
        **about,
        "task": what_for,
        "seconds": seconds,
        "out": out,
        "prepare_bytes": about["prepare_bytes"],
        "results": [_plain(one) for one in tried],
    }
    emit(
        result,
        json,
        _table(tried),
        "",
        f"{what_for}.",
        f"{about['train']:,} rows of {about['sites']} site(s) learned from, {about['test']:,} to test on{about['of']}, "
        f"{format_seconds(seconds)} in all.",
        *(
            [f"Agreeing on columns took {format_bytes(about['prepare_bytes'])} of statistics."]
            * bool(about["prepare_bytes"])
        ),
        _sentence(tried),
        *([] if out is None else [f"Picture: {out}"]),
    )
    for one in tried:
        if not one.figures:
            note(f"{one.name}: {one.note}")


def _setting(rows: Any, preparation: tuple[str, dict[str, str]], most_rows: int, seed: int) -> tuple["Setting", Any]:
    """Rows to learn from by site, test rows, and facts about them; columns are prepared by rows to learn from alone."""
    import numpy as np

    from kernfed.base.random import generator
    from kernfed.data import RawTable
    from kernfed.federation import Federation
    from kernfed.jobs.jobs import prepare
    from kernfed.jobs.tables import prepared_table, rows_by_site, site_places
    from kernfed.testing.comparison import Setting

    every = np.arange(len(rows))
    order = generator(seed, "compare").permutation(len(rows))
    sample = np.sort(order[:most_rows])
    tested = np.zeros(len(rows), dtype=bool)
    for places in site_places(rows.site).values():
        site_rows = np.intersect1d(every[places], sample)
        kept = generator(seed, "compare", str(len(site_rows))).permutation(site_rows)
        tested[kept[: round(_TESTED * len(site_rows))]] = True
    learned = sample[~tested[sample]]
    test = sample[tested[sample]]
    sent = 0
    if isinstance(rows, RawTable):
        with Federation.local(rows_by_site(rows.take(learned), with_ids=True), seed=seed) as federation:
            prepare(federation, preparation[0], texts=preparation[1], raw=True)
            assert federation.preparation is not None
            table = prepared_table(rows, federation.preparation)
            sent = federation.traffic.bytes_up
    else:
        table = rows
    X, y = np.asarray(table.X, dtype=np.float64), table.y
    assert y is not None
    learned_rows = {name: np.intersect1d(every[places], learned) for name, places in site_places(rows.site).items()}
    sites = {name: (X[places], y[places]) for name, places in learned_rows.items() if len(places)}
    of = f", drawn from {len(rows):,}" if len(rows) > most_rows else ""
    about = {"train": len(learned), "test": len(test), "sites": len(sites), "of": of, "prepare_bytes": sent}
    return Setting(sites, (X[test], y[test]), False, seed), about


def _for_task(setting: "Setting", regress: bool) -> "Setting":
    from dataclasses import replace

    import numpy as np

    if not regress:
        return setting
    sites = {name: (X, y.astype(np.float64)) for name, (X, y) in setting.sites.items()}
    return replace(setting, sites=sites, test=(setting.test[0], setting.test[1].astype(np.float64)), regress=True)


def _table(tried: list["Contender"]) -> TextTable:
    names = next(list(one.figures) for one in tried if one.figures)
    rows = []
    for one in tried:
        figures = [_figure(name, one.figures[name]) if one.figures else "." for name in names]
        took = "." if one.seconds != one.seconds else format_seconds(one.seconds)
        left = "all rows" if one.bytes_up is None else format_bytes(one.bytes_up)
        rows.append((one.name, *figures, took, left, one.note))
    return TextTable(("what", *names, "time", "leaves sites", "settings"), rows)


def _figure(name: str, value: float) -> str:
    return f"{value:.2%}" if name in ("accuracy", "balanced") else f"{value:.4g}"


def _sentence(tried: list["Contender"]) -> str:
    """One line with the best contender of each group, by the first figure."""
    known = [one for one in tried if one.figures and one.score == one.score]
    measure = next(iter(known[0].figures))
    best = {
        group: max((one for one in known if one.group == group), key=lambda one: one.score, default=None)
        for group in _GROUPS
    }
    best_of_groups = [
        f"{words} {_figure(measure, found.score)} ({found.name})"
        for group, words in _GROUPS.items()
        if (found := best[group]) is not None
    ]
    return f"Best {measure}: {'; '.join(best_of_groups)}."


def _plain(one: "Contender") -> dict[str, Any]:
    known = {"what": one.name, "group": one.group, **one.figures}
    return {**known, "seconds": one.seconds, "bytes_up": one.bytes_up, "note": one.note}


def _write(out: Path, tried: list["Contender"], title: str, lead: str) -> None:
    known = [one for one in tried if one.figures]
    if out.suffix.lower() == ".png":
        _draw(out, known, title)
        return
    from kernfed.report import Bars, PageTable, ReportData, Section, write_html

    measure = next(iter(known[0].figures))
    view = _table(tried)
    bars = Bars(
        f"{measure} on the same test rows",
        f"Bars of {measure}, in the order of the table.",
        tuple(one.name for one in known),
        tuple(max(one.score, 0.0) for one in known),
        "share" if measure == "accuracy" else "",
        measure,
    )
    page = PageTable(tuple(view.columns), tuple(tuple(row) for row in view.rows), "All figures")
    section = Section("Compared", (lead,), (bars,), tables=(page,))
    write_html(ReportData("results", f"Alone, together, pooled: {title}", lead, sections=(section,)), out)


def _draw(out: Path, known: list["Contender"], title: str) -> None:
    """A dot for each, coloured by group, as a picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    from kernfed.files import atomic_path

    measure = next(iter(known[0].figures))
    drawing = Figure(figsize=(8.0, 0.9 + 0.32 * len(known)), layout="constrained")
    FigureCanvasAgg(drawing)
    axes = drawing.add_subplot()
    names, values = [one.name for one in known], [one.score for one in known]
    # Dots and no bars: an axis that does not begin at 0 would make lengths lie.
    axes.hlines(range(len(known)), min(values), max(values), color="#e4e4e4", linewidth=1, zorder=0)
    axes.scatter(values, range(len(known)), s=60, color=[_COLOURS[one.group] for one in known])
    axes.set_yticks(range(len(known)), names)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    for place, one in enumerate(known):
        axes.text(one.score, place, f"   {_figure(measure, one.score)}", va="center", fontsize=9)
    axes.set_xlabel(f"{measure} on the same test rows")
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    groups = [group for group in _GROUPS if any(one.group == group for one in known)]
    patches = [Patch(color=_COLOURS[group], label=_GROUPS[group]) for group in groups]
    drawing.legend(handles=patches, loc="outside lower center", ncols=len(groups), frameon=False, fontsize=9)
    with atomic_path(out) as temporary:
        drawing.savefig(temporary, format="png", dpi=150)

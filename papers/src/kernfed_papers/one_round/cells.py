"""Cells of the table: which are wanted, and how one is computed."""

import re
from collections.abc import Iterable, Sequence
from functools import partial

from kernfed.errors import InputError
from kernfed_papers.baselines.pooled import repetition_seeds
from kernfed_papers.experiment import Part, Row, Selection
from kernfed_papers.one_round.methods import METHODS, BenchMethod, Outcome, Setting
from kernfed_papers.one_round.sets import SETS, SPREADS, Spread, absent, used_rows

REPETITIONS = 3
_LABEL = re.compile(r"(?P<set>[^:]+?)(?:, (?P<sites>\d+) sites)?: (?P<column>.+)")


def cells(selection: Selection) -> list[Part]:
    """Cells of the selected sets, methods and seeds: what needs no spread first, small sets first."""
    names = _known(selection.sets, SETS, "sets")
    methods = [METHODS[name] for name in _known(selection.methods, METHODS, "methods")]
    seeds = selection.seeds or tuple(repetition_seeds(selection.seed, REPETITIONS))
    absent_sets = {name: absent(name) for name in names}
    absent_methods = {method.name: method.missing() for method in methods}
    return [
        _cell(method, setting, absent_sets[name] or absent_methods[method.name])
        for by_spread in (False, True)
        for name in names
        for method in methods
        if method.spread is by_spread
        for setting in _settings(name, method, seeds, selection.rows)
    ]


def _known(wanted: Sequence[str], known: Iterable[str], what: str) -> list[str]:
    strange = [name for name in wanted if name not in known]
    if strange:
        raise InputError(f"{what} must be some of {', '.join(known)}, got {strange[0]!r}")
    return [name for name in known if not wanted or name in wanted]


def _settings(name: str, method: BenchMethod, seeds: Sequence[int], rows: int | None) -> list[Setting]:
    """What a method is run under on one set."""
    count = used_rows(name, rows)
    spreads: tuple[Spread | None, ...] = (None,)
    if method.spread:
        spreads = tuple(spread for spread in SPREADS if spread.fits(count))
    return [
        Setting(name, count, seed, spread) for spread in spreads for seed in (seeds if method.random else seeds[:1])
    ]


def _cell(method: BenchMethod, setting: Setting, missing: str) -> Part:
    return Part(f"{place(setting)}: {method.name}", setting.seed, partial(_rows, method, setting), missing)


def place(setting: Setting) -> str:
    """The set, its training rows and the sites, as rows are labelled."""
    sites = f", {setting.spread.sites} sites" if setting.spread else ""
    return f"{setting.name}, {setting.rows:,} rows{sites}"


def split_label(label: str) -> tuple[str, int | None, str]:
    """Set with its rows, sites, or None where any spread gives the same, and column, of a row.

    >>> split_label("letter, 15,000 rows, 20 sites: fusion"), split_label("dna, 2,000 rows: AFL")
    (('letter, 15,000 rows', 20, 'fusion'), ('dna, 2,000 rows', None, 'AFL'))
    """
    match = _LABEL.fullmatch(label)
    if match is None:
        raise InputError(f"a row of one-round must be labelled 'SET, N rows[, Q sites]: METHOD', got {label!r}")
    return match["set"], int(match["sites"]) if match["sites"] else None, match["column"]


def _rows(method: BenchMethod, setting: Setting) -> list[Row]:
    return [row for outcome in method.run(setting) for row in _outcome_rows(place(setting), outcome)]


def _outcome_rows(where: str, outcome: Outcome) -> list[Row]:
    label = f"{where}: {outcome.label}"
    rows = [Row(label, None, outcome.accuracy, "%", outcome.note)]
    if outcome.bytes_up:
        rows += [
            Row(label, None, outcome.bytes_up, "bytes up"),
            Row(label, None, outcome.bytes_down, "bytes down"),
        ]
    return rows

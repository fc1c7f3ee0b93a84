"""What a site does when sites agree on a preparation: it counts its columns, and later uses what was agreed."""

import logging
from typing import Any

from kernfed.base.plain import read_text
from kernfed.data.preparation import Preparation
from kernfed.data.preparation_statistics import MOST_COLUMNS, TableStatistics, check_size
from kernfed.errors import InputError, Refused
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.task import task
from kernfed.site.site import Site

_log = logging.getLogger("kernfed.site")
#: Remarks about a site's columns that go to its log at most, and characters of each.
_MOST_REMARKS, _LONGEST_REMARK = 100, 500


@task("column_statistics", leaves="statistics")
def column_statistics(site: Site, payload: Payload) -> Payload:
    """Counts, sums and histograms of every column, and words that enough rows share: see ``TableStatistics``.

    ``categories`` names columns that the asker takes as categories; those that the site does not have are ignored.
    """
    declared = _read_categories(site.name, payload.values.get("categories", []))
    table = site.data.raw_learning(site.without_small_classes)
    if not len(table):
        raise Refused("empty", f"site {site.name!r} has no rows that it may speak of")
    site.allow(numbers=len(table) * len(table.names))
    statistics = TableStatistics.of(table, min_rows=site.policy.min_rows_per_value, categories=declared)
    check_size(statistics)
    return Payload(*statistics.to_message())


@task(
    "prepare",
    leaves="none",
    under_privacy="public",
    reason="whether a preparation fits follows from the names of columns, and what it makes of the rows stays",
    changes=True,
)
def prepare(site: Site, payload: Payload) -> Payload:
    """Use a preparation from now on; what the others noticed about this site's columns goes to its log."""
    try:
        preparation = Preparation.from_values(payload.values["preparation"])
        remarks = [_read_remark(remark) for remark in payload.values.get("remarks", [])[:_MOST_REMARKS]]
    except (InputError, TypeError) as error:
        raise Refused("bad question", f"site {site.name!r} cannot be prepared so: {error}") from None
    site.allow(features=len(preparation.columns))
    site.data.prepare(preparation)
    for remark in remarks:
        _log.warning("site %s: %s", site.name, remark)
    return Payload()


def _read_categories(site: str, names: Any) -> list[str]:
    """Names of columns out of a question."""
    if not isinstance(names, list) or len(names) > MOST_COLUMNS or not all(isinstance(name, str) for name in names):
        raise Refused("bad question", f"categories asked of site {site!r} must be at most {MOST_COLUMNS:,} names")
    return names


def _read_remark(remark: Any) -> str:
    """A remark on one line of the log: an asker must not write lines, or commands of a terminal, into it."""
    shown = read_text(remark, "a remark")[:_LONGEST_REMARK]
    return "".join(character if character.isprintable() else " " for character in shown)

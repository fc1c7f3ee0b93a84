"""What a site does when sites agree on a preparation: it counts its columns, and later uses what was agreed."""

import logging

from kernfed._plain import read_text
from kernfed.data.preparation import Preparation
from kernfed.data.preparation_statistics import TableStatistics, check_size
from kernfed.errors import InputError, Refused
from kernfed.federation.protocol.message import Payload
from kernfed.federation.protocol.task import task
from kernfed.federation.site.site import Site

_log = logging.getLogger("kernfed.site")
#: Remarks about a site's columns that it hears at most.
_MOST_REMARKS = 100


@task("column_statistics", leaves="statistics")
def column_statistics(site: Site, payload: Payload) -> Payload:  # noqa: ARG001  every task has this signature
    """Counts, sums and histograms of every column, and words that enough rows share: see ``TableStatistics``."""
    table = site.data.raw_learning(site.without_small_classes)
    if not len(table):
        raise Refused("empty", f"site {site.name!r} has no rows that it may speak of")
    site.allow(numbers=len(table) * len(table.names))
    statistics = TableStatistics.of(table, min_rows=site.policy.min_rows_per_value)
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
        remarks = [read_text(remark, "a remark") for remark in payload.values.get("remarks", [])[:_MOST_REMARKS]]
    except (InputError, TypeError) as error:
        raise Refused("bad question", f"site {site.name!r} cannot be prepared so: {error}") from None
    site.allow(features=len(preparation.columns))
    site.data.prepare(preparation)
    for remark in remarks:
        _log.warning("site %s: %.500s", site.name, remark)
    return Payload()

"""How sites agree on a preparation of raw columns."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernfed.base.plain import read_text
from kernfed.base.warn import warn
from kernfed.data.preparation import Preparation
from kernfed.data.preparation_choice import Rules, UnitSuspicion, suspect_units
from kernfed.data.preparation_statistics import MOST_COLUMNS, TableStatistics, check_size
from kernfed.errors import InputError, Refused, UnitsDiffer
from kernfed.federation.asking import Federation, warn_missing
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.schema import Schema
from kernfed.site.protocol.task import task
from kernfed.site.rows import PREPARED
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


@dataclass(frozen=True)
class Agreement:
    """A preparation, the sites that it was made of, what looks wrong at some, and who did not answer."""

    preparation: Preparation
    rows: Mapping[str, int]
    suspicions: tuple[UnitSuspicion, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)


def agree(
    federation: Federation,
    *,
    rules: Rules | None = None,
    min_replies: int | None = None,
    timeout: float = 600.0,
) -> Preparation:
    """Preparation of all sites' columns from their statistics, which every site uses from then on.

    Learners on this federation see prepared rows, and their models carry the preparation. A ``UnitsDiffer`` warning,
    and a line in the site's own log, names a site whose column looks to be in another unit. Sites that require privacy
    tell no statistics: give them a preparation from public knowledge with ``use``.
    """
    agreement = gather(federation, rules=rules, min_replies=min_replies, timeout=timeout)
    for suspicion in agreement.suspicions:
        warn(str(suspicion), UnitsDiffer)
    warn_missing(agreement.missing, "the preparation is that of the others")
    remarks: dict[str, list[str]] = {}
    for suspicion in agreement.suspicions:
        remarks.setdefault(suspicion.site, []).append(str(suspicion))
    use(federation, agreement.preparation, remarks=remarks, min_replies=min_replies, timeout=timeout)
    return agreement.preparation


def agree_where_raw(
    federation: Federation, *, rules: Rules | None = None, min_replies: int | None = None, timeout: float = 600.0
) -> bool:
    """``agree`` where a site has a raw table, also one that was prepared for an earlier model; says whether it did."""
    described = federation.describe(min_replies=0, timeout=timeout)
    schemas = [Schema.from_values(payload.values) for _, payload in described]
    waiting = any(refusal.code == "unprepared" for refusal in described.missing.values())
    if not waiting and not any(schema.scaling.startswith(PREPARED) for schema in schemas):
        return False
    agree(federation, rules=rules, min_replies=min_replies, timeout=timeout)
    return True


def gather(
    federation: Federation,
    *,
    rules: Rules | None = None,
    min_replies: int | None = None,
    timeout: float = 600.0,
) -> Agreement:
    """The preparation that the sites' statistics suggest, in one exchange; nothing changes at the sites.

    Which columns ``rules`` declares to be categories is part of the question: sites count the words of these.
    """
    asked = Payload(values={"categories": list(rules.categories)} if rules is not None else {})
    statistics: dict[str, TableStatistics] = {}

    def read(site: str, payload: Payload) -> None:
        statistics[site] = TableStatistics.from_message(payload.arrays, payload.values)

    replies = federation.ask("column_statistics", asked, min_replies=min_replies, timeout=timeout, check=read)
    told = {site: statistics[site] for site, _ in replies}
    preparation = Preparation.from_statistics((told[site] for site in sorted(told)), rules)
    return Agreement(
        preparation,
        {site: own.rows for site, own in told.items()},
        tuple(suspect_units(told)),
        {site: refusal.reason for site, refusal in replies.missing.items()},
    )


def use(
    federation: Federation,
    preparation: Preparation,
    *,
    remarks: Mapping[str, list[str]] | None = None,
    min_replies: int | None = None,
    timeout: float = 600.0,
) -> None:
    """Let every site use ``preparation``, and the models of this federation carry it. ``remarks`` go to sites' logs."""
    values = preparation.to_values()
    questions = {
        site: Payload(values={"preparation": values, "remarks": list((remarks or {}).get(site, []))})
        for site in federation.sites
    }
    federation.ask("prepare", questions, min_replies=min_replies, timeout=timeout)
    federation.preparation = preparation

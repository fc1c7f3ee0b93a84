"""How sites come to one preparation: statistics in one exchange, a choice from their sum, and every site is told."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernfed.base.warn import warn
from kernfed.data.preparation import Preparation
from kernfed.data.preparation_choice import Rules, UnitSuspicion, suspect_units
from kernfed.data.preparation_statistics import TableStatistics
from kernfed.errors import UnitsDiffer
from kernfed.federation.asking import Federation, warn_missing
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.schema import Schema
from kernfed.site.rows import PREPARED


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

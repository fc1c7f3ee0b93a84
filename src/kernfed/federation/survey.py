"""What a learner asks first, and how much one site may claim of all rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernfed.base.checks import FloatArray, check_choice, check_count, check_number
from kernfed.base.median import median_by_rows
from kernfed.base.random import generator
from kernfed.errors import InputError, Refused, SitesLost, TooFewReplies
from kernfed.federation.program import Ask, Meter, Program
from kernfed.kernels import median_bandwidth
from kernfed.kernels.features import MEDIAN_ROWS
from kernfed.kernels.predictor import TASKS, FeatureProblem
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.schema import Schema, agree, odd_sites
from kernfed.site.protocol.traffic import Replies
from kernfed.site.rows import Rows
from kernfed.site.site import Site

#: The largest share of all rows that one of three and more sites may have, unless told otherwise.
MAX_SHARE = 0.9
#: So many times the median over sites is no difference between data any more: a hundred times the unit, squared.
_FAR = 1e4


def outsized(rows: Mapping[str, float], max_share: float = MAX_SHARE) -> dict[str, str]:
    """Why each site that claims more than ``max_share`` of all rows is not believed; with one or two sites nobody is.

    A site of that share makes the result alone: what the others have is as good as nothing.

    >>> outsized({"a": 10, "b": 20, "c": 970})["c"]
    "site 'c' says that it has 970 of 1,000 rows; if that is true, give a max_share above 0.9"
    """
    check_number(max_share, "max_share", above=0, at_most=1)
    having = {site: count for site, count in rows.items() if count > 0}
    total = sum(having.values())
    if len(having) < 3:
        return {}
    return {
        site: f"site {site!r} says that it has {count:,.0f} of {total:,.0f} rows; "
        f"if that is true, give a max_share above {max_share:g}"
        for site, count in having.items()
        if count > max_share * total
    }


def far_above(values: Mapping[str, float], name: str) -> dict[str, str]:
    """Why each site whose ``name`` is far above the median over three and more sites is not believed.

    For numbers that have no public bound. What is below 10,000 is never far above.
    """
    if len(values) < 3:
        return {}
    limit = _FAR * max(1.0, float(np.median(list(values.values()))))
    return {
        site: f"site {site!r} has {value:.3g} for the {name}, and the median over sites is {limit / _FAR:.3g}"
        for site, value in values.items()
        if not value <= limit
    }


#: Why a survey may be told where privacy is required.
PUBLIC = "columns, the number of rows, and classes with theirs are public; the median distance is then not told"
#: What labels are for; "infer" takes floating-point ones as values and all others as classes.
ASKED_TASKS = ("infer", *TASKS)

Bandwidth = float | tuple[float, ...]


# At a site --------------------------------------------------------------------------------------------------------


def answer_survey(site: Site, payload: Payload, method: str) -> Payload:
    """Rows and their median distance (0 if not asked for, or not told), what labels are for, and the schema.

    The schema has no labels where they are values to regress. ``method`` names the draws of the median distance.
    """
    values = payload.values
    schema = site.schema().to_values()  # first: private labels are refused before anything is counted
    rows = site.some_rows()
    task = _task_of_labels(site, rows, values["task"])
    if task == "regress":  # every value of y would be a class
        schema |= {"classes": {"dtype": "<i8", "labels": []}, "counts": []}
    median = 0.0
    if values["median"] and len(rows.X) > 1 and not site.policy.require_privacy:
        draws = generator(check_count(values["seed"], "seed", at_least=0), method, "bandwidth")
        median = median_bandwidth(rows.X, draws, MEDIAN_ROWS)
    return Payload({"facts": np.array([float(len(rows.X)), median])}, {"schema": schema, "task": task})


def _task_of_labels(site: Site, rows: Rows, asked: Any) -> str:
    """What the site's labels are for, or a refusal where they are not for what is asked."""
    if asked not in ASKED_TASKS:
        raise Refused("bad question", f"task must be one of {', '.join(ASKED_TASKS)}, got {asked!r:.80}")
    kind = rows.y.dtype.kind
    task: str = asked if asked != "infer" else "regress" if kind == "f" else "classify"
    if task == "regress" and kind not in "fiub":
        raise Refused("bad labels", f"to regress y must be numbers, site {site.name!r} has dtype {rows.y.dtype}")
    if task == "classify":
        site.check_labels_are_classes()
    if task == "classify" and kind == "f" and (rows.y != np.floor(rows.y)).any():
        raise Refused("bad labels", f"site {site.name!r} has labels with fractions; use task='regress'")
    return task


def check_rows_of(site: Site, problem: FeatureProblem, rows: Rows) -> Rows:
    """The site's ``rows``, or a refusal where there are none, or of other columns than the problem has."""
    if not len(rows.y):
        raise Refused("empty", f"site {site.name!r} has no rows that it may speak of")
    if rows.X.shape[1] != problem.width:
        raise Refused("bad question", f"site {site.name!r} has {rows.X.shape[1]} columns, not {problem.width}")
    return rows


def read_targets(problem: FeatureProblem, rows: Rows) -> FloatArray:
    """Targets (n, C) of rows, or a refusal where their labels are not those of the problem."""
    try:
        return problem.targets(rows.y)
    except ValueError:
        known = f"the {len(problem.classes)} classes" if problem.classes else "values"
        raise Refused("stale", f"a label is not among {known} of this problem: rows came since the survey") from None


# At a learner -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Survey:
    """What a site says before anything is computed; a median distance of 0 says nothing."""

    schema: Schema
    task: str
    rows: int
    median: float


@dataclass
class Participants:
    """Surveys of the sites that take part in a fit, and why others do not; ``min_replies`` of them are enough.

    A site whose answers cannot be those of any rows is lost as one that does not answer.
    """

    surveys: dict[str, Survey]
    missing: dict[str, str]
    min_replies: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Sites that take part, sorted."""
        return tuple(sorted(self.surveys))

    @property
    def schema(self) -> Schema:
        """What they agree on."""
        return agree({site: survey.schema for site, survey in self.surveys.items()})

    def bandwidth(self) -> float:
        """Median of the sites' median distances, weighted by rows; 1 where no site told one."""
        return median_by_rows((survey.median, survey.rows) for survey in self.surveys.values() if survey.median > 0)

    def go_on_without(self, lost: SitesLost) -> None:
        """Those who did not answer take no part any more; ``TooFewReplies`` where the others are too few."""
        needed = len(self.surveys) if self.min_replies is None else max(1, self.min_replies)
        self.missing |= lost.reasons
        self.surveys = {site: survey for site, survey in self.surveys.items() if site not in self.missing}
        if len(self.surveys) < needed:
            raise TooFewReplies(lost.task, needed, lost.replies) from None


def agreeing(replies: Replies, read: Callable[[Payload], Schema], min_replies: int | None) -> tuple[Replies, Schema]:
    """Replies of the sites that describe their data alike, by the schemas ``read`` finds in them, and the common one.

    Without ``min_replies`` all must: ``SchemaMismatch`` says who differs. With it, those that differ from most are
    missing by name, as far as enough are left.
    """
    schemas = {site: read(payload) for site, payload in replies}
    if min_replies is not None:
        odd = odd_sites(schemas)
        if len(schemas) - len(odd) >= max(1, min_replies):
            replies = replies.without(odd)
            schemas = {site: schema for site, schema in schemas.items() if site not in odd}
    return replies, agree(schemas)


def leave_out(task: str, replies: Replies, reasons: Mapping[str, str], min_replies: int | None) -> Replies:
    """Replies without those that only a comparison of sites shows to be false; ``TooFewReplies`` where few are left.

    Without ``min_replies`` all are needed.
    """
    if not reasons:
        return replies
    needed = len(replies) + len(replies.missing) if min_replies is None else min_replies
    left = replies.without(reasons)
    if len(left) < needed:
        raise TooFewReplies(task, needed, left)
    return left


def ask_survey(
    name: str,
    task: str,
    *,
    seed: int,
    median: bool,
    min_replies: int | None,
    max_share: float = MAX_SHARE,
) -> Program[Participants]:
    """The sites that answer the survey ``name``; ``task`` is what labels are for, ``median`` whether it is needed.

    A site that describes other data than most, or claims more than ``max_share`` of all rows, is missing by name where
    ``min_replies`` of the others are enough, and ends the survey without it.
    """
    surveys: dict[str, Survey] = {}

    def read(site: str, payload: Payload) -> None:
        check_arrays(payload, {"facts": (2,)})
        rows, distance = map(float, payload.arrays["facts"])
        if rows < 1 or distance < 0:
            raise InputError(f"expected rows and their median distance, got {rows} and {distance}")
        told = check_choice(payload.values["task"], "task", TASKS if task == "infer" else (task,))
        schema = Schema.from_values(payload.values["schema"])
        if told == "classify" and schema.n_rows != int(rows):
            raise InputError(f"the site counts {rows:,.0f} rows, and {schema.n_rows:,} of all its classes")
        surveys[site] = Survey(schema, told, int(rows), distance)

    question = Payload(values={"task": task, "median": median, "seed": seed})
    replies = yield Ask(name, question, min_replies=min_replies, check=read)
    replies, _ = agreeing(replies, lambda payload: Schema.from_values(payload.values["schema"]), min_replies)
    replies = leave_out(
        name, replies, outsized({site: surveys[site].rows for site, _ in replies}, max_share), min_replies
    )
    taking_part = {site: surveys[site] for site, _ in replies}
    return Participants(taking_part, {site: refusal.reason for site, refusal in replies.missing.items()}, min_replies)


def ask_all(
    task: str,
    payload: Payload | Mapping[str, Payload],
    sites: tuple[str, ...],
    check: Callable[[str, Payload], object],
    compare: Callable[[Replies], Mapping[str, str]] | None = None,
    meter: Meter | None = None,
) -> Program[Replies]:
    """Answers of all sites, or ``SitesLost``; ``check(site, answer)`` raises ValueError for one that must not be used.

    ``compare`` looks at all of them together and gives the reasons of those that must not. ``meter`` counts the
    exchange.
    """
    replies: Replies = yield Ask(task, payload, sites, min_replies=0, check=check)
    if meter is not None:
        meter.add(replies)
    if compare is not None and not replies.missing:
        replies = replies.without(compare(replies))
    if replies.missing:
        raise SitesLost(task, replies)
    return replies


def check_arrays(payload: Payload, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse arrays that are not these, or not finite."""
    if set(payload.arrays) != set(shapes):
        raise InputError(f"expected arrays {sorted(shapes)}, got {sorted(payload.arrays)}")
    for name, shape in shapes.items():
        array = payload.arrays[name]
        if array.shape != tuple(shape) or array.dtype != np.float64:
            raise InputError(f"{name} must be float64 of shape {tuple(shape)}, got {array.dtype} of {array.shape}")
        if not np.isfinite(array).all():
            raise InputError(f"{name} must be finite")


def check_bandwidth(bandwidth: Any) -> Bandwidth | str:
    """A positive number, one for every column, or "median"."""
    if isinstance(bandwidth, str):
        return check_choice(bandwidth, "bandwidth", ("median",))
    if isinstance(bandwidth, (list, tuple, np.ndarray)):
        return tuple(check_number(value, "bandwidth", above=0) for value in bandwidth)
    return check_number(bandwidth, "bandwidth", above=0)

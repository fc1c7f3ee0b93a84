"""What a site releases under differential privacy: asked in plain values, allowed by its policy, charged, kept.

A release happens once. Its charge is on disk before the noise is drawn, and what was released stays in the store of the
site: the same mechanism on the same rows is answered from there and costs nothing, anything else is a second release. A
crash in between loses budget, never privacy.

A learner sends ``mechanism_to_values(mechanism)``. Its task reads it with ``mechanism_from_values``, which takes
anything as hostile, calls ``check_release`` before it looks at a row, and computes inside ``released``.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from kernfed._validation import FloatArray, check_count
from kernfed.errors import BudgetExceeded, InputError, Refused
from kernfed.federation.protocol.message import digest
from kernfed.federation.release.kept import FOLDER, read_release, row_marks, rows_of, write_rows
from kernfed.federation.site.site import Rows, Site
from kernfed.files import Record
from kernfed.kernels.fourier import FourierFeatures
from kernfed.privacy import (
    ElementLaplace,
    ElementStaircase,
    Guarantee,
    Ledger,
    RandomizedLabels,
    RecordEmbedding,
    RecordGaussian,
    RecordMoments,
    RecordRidge,
)
from kernfed.privacy.mechanism import RECORD_DELTA
from kernfed.promise import round_up

Mechanism = (
    ElementLaplace
    | ElementStaircase
    | RecordGaussian
    | RecordMoments
    | RecordRidge
    | RecordEmbedding
    | RandomizedLabels
)
Pair = tuple[float, float]

#: Mechanisms by the names that messages, policies and commands have for them.
MECHANISMS: Mapping[str, Callable[..., Mechanism]] = {
    "element-laplace": ElementLaplace,
    "element-staircase": ElementStaircase,
    "record-gaussian": RecordGaussian,
    "record-moments": RecordMoments,
    "record-ridge": RecordRidge,
    "record-embedding": RecordEmbedding,
    "randomized-labels": RandomizedLabels,
}
#: File of a site's ledger in its store.
LEDGER = "ledger.jsonl"
# The budget that the ledger of a site without one is begun with. It is not used: spending is recorded, never too much.
_NO_LIMIT = 1e9
# More Fourier features than this are a mistake or a trap.
_MOST_FEATURES = 1 << 20


# Mechanisms as plain values ---------------------------------------------------------------------------------------


def mechanism_name(mechanism: Any) -> str:
    """The name of a mechanism in messages; anything else raises ``ValueError``."""
    for name, kind in MECHANISMS.items():
        if type(mechanism) is kind:
            return name
    known = ", ".join(kind.__name__ for kind in MECHANISMS.values())
    raise InputError(f"a mechanism must be one of kernfed.privacy: {known}; got {mechanism!r}")


def mechanism_to_values(mechanism: Mechanism) -> dict[str, Any]:
    """Name and parameters of a mechanism, as messages and files hold them."""
    name = mechanism_name(mechanism)
    return {
        "kind": name,
        **{field.name: _plain(getattr(mechanism, field.name), field.type) for field in fields(mechanism)},
    }


def mechanism_from_values(values: Any) -> Mechanism:
    """The mechanism of ``mechanism_to_values``; anything else raises ``ValueError`` and says what is wrong."""
    if not isinstance(values, Mapping) or str(values.get("kind")) not in MECHANISMS:
        raise InputError(f"a mechanism must be one of {', '.join(MECHANISMS)} with its parameters, got {values!r:.200}")
    kind = MECHANISMS[values["kind"]]
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if set(values) != known | {"kind"}:
        odd = sorted(set(values) ^ (known | {"kind"}))
        raise InputError(f"{values['kind']} takes {', '.join(sorted(known))}; {odd[0]!r:.40} is missing or unknown")
    try:
        return kind(**{name: _parsed(name, values[name]) for name in known})
    except (TypeError, OverflowError, AttributeError) as error:
        raise InputError(f"{values['kind']} cannot have these parameters: {error}") from None


def describe_mechanism(values: Mapping[str, Any]) -> str:
    """The values of a mechanism on one line; a matrix by its size.

    >>> from kernfed.privacy import RecordGaussian
    >>> describe_mechanism(mechanism_to_values(RecordGaussian(3.0, 1e-5, radius=1.0)))
    'record-gaussian(epsilon=3.0, delta=1e-05, radius=1.0)'
    """
    shown = {
        name: "public matrix" if isinstance(value, list) and value and isinstance(value[0], list) else value
        for name, value in values.items()
        if name != "kind" and value is not None and (name, value) != ("seed", 0)
    }
    return f"{values['kind']}({', '.join(f'{name}={value}' for name, value in shown.items())})"


def _plain(value: Any, kind: Any = None) -> Any:
    """A parameter as JSON holds it. 3 and 3.0 are one epsilon, so they must not be two releases."""
    if isinstance(value, FourierFeatures):
        return {key: _plain(part) for key, part in asdict(value).items()}
    if isinstance(value, np.ndarray | list):
        return np.asarray(value, dtype=np.float64).tolist()
    if isinstance(value, tuple):
        return list(value)
    if value is not None and kind in (float, float | None):
        return float(value)
    return value.item() if isinstance(value, np.generic) else value


def _parsed(name: str, value: Any) -> Any:
    """A parameter as its mechanism takes it: matrices as arrays, lists as tuples."""
    if name == "features":
        if not isinstance(value, Mapping):
            raise InputError(f"features must be those of FourierFeatures, got {value!r:.80}")
        check_count(value.get("n_components"), "n_components", at_most=_MOST_FEATURES)
        check_count(value.get("width"), "width", at_most=_MOST_FEATURES)
        return FourierFeatures(**value)
    if name in ("projection", "basis") and isinstance(value, list):
        return np.array(value, dtype=np.float64)
    kinds = bool | int | float | str
    if name == "classes" and not (isinstance(value, list) and all(isinstance(label, kinds) for label in value)):
        raise InputError(f"classes must be a list of labels, got {value!r:.80}")
    return tuple(value) if isinstance(value, list) else value


# What is promised, and what a policy allows -----------------------------------------------------------------------


def promise(mechanism: Mechanism, width: int, *, delta: float = RECORD_DELTA) -> tuple[Guarantee, Guarantee]:
    """Guarantee per element and per record of releasing rows of ``width`` columns; no row is needed for it.

    ``delta`` is where the record's guarantee is stated for mechanisms that have none of their own.
    """
    columns = released_width(mechanism, width)  # which also checks that a projection fits
    if isinstance(mechanism, ElementLaplace | ElementStaircase):
        return _element_promise(mechanism, width, delta)
    if isinstance(mechanism, RecordGaussian):
        return mechanism.guarantees(columns)
    return mechanism.guarantees()


@lru_cache(maxsize=64)
def _element_promise(
    mechanism: ElementLaplace | ElementStaircase, width: int, delta: float
) -> tuple[Guarantee, Guarantee]:
    return mechanism.guarantees(width, record_delta=delta)


def released_width(mechanism: Mechanism, width: int) -> int:
    """Columns of what is released of rows of ``width`` columns."""
    if isinstance(mechanism, RecordGaussian | RecordMoments):
        return int(mechanism.project(np.zeros((1, width))).shape[1])
    return width


def public_projection(mechanism: Mechanism, width: int) -> FloatArray | None:
    """The public basis (width, k) that queries go through as the rows did, or None where there is none."""
    projects = isinstance(mechanism, RecordGaussian) and mechanism.projection is not None
    if isinstance(mechanism, RecordGaussian | RecordMoments) and (projects or isinstance(mechanism, RecordMoments)):
        return mechanism.project(np.eye(width))
    return None


def with_labels(pair: tuple[Guarantee, Guarantee], labels: RandomizedLabels | None) -> tuple[Guarantee, Guarantee]:
    """Guarantees of rows whose labels are randomised too: the epsilons of row and label add up."""
    if labels is None:
        return pair
    element, record = pair
    words = "one row and its label replaced by any other"
    return (
        replace(element, epsilon=max(element.epsilon, labels.epsilon)),
        replace(record, epsilon=record.epsilon + labels.epsilon, adjacency=words),
    )


def check_release(
    site: Site, mechanism: Mechanism, labels: RandomizedLabels | None = None, *, width: int | None = None
) -> None:
    """Refuse, before anything is computed, a release that the site's policy does not allow.

    ``width`` is that of the site's rows, for whoever knows it without reading them.
    """
    policy = site.policy
    check_terms(site, mechanism_name(mechanism), private_labels=labels is not None)
    if policy.max_record_epsilon is None:
        return
    try:
        columns = site.width if width is None else width
        _, record = with_labels(promise(mechanism, columns, delta=policy.record_delta), labels)
    except ValueError as error:  # parameters that do not fit the site's columns
        raise Refused("bad question", f"site {site.name!r} cannot release its columns: {error}") from None
    check_record(site, (record.epsilon, record.delta))


def check_terms(site: Site, name: str, *, private_labels: bool) -> None:
    """Refuse a mechanism that the site's policy does not name, or public labels where it wants private ones."""
    policy = site.policy
    if "*" not in policy.mechanisms and name not in policy.mechanisms:
        allowed = ", ".join(policy.mechanisms)
        raise Refused("policy", f"the policy of site {site.name!r} releases by {allowed}, not by {name!r}")
    if policy.private_labels and not private_labels:
        raise Refused(
            "policy", f"the policy of site {site.name!r} requires randomised labels, this learner takes them as public"
        )


def check_record(site: Site, record: Pair) -> None:
    """Refuse a release whose promise for a record is weaker than the site's policy demands."""
    policy, (epsilon, delta) = site.policy, record
    if policy.max_record_epsilon is not None and (epsilon > policy.max_record_epsilon or delta > policy.record_delta):
        raise Refused(
            "policy",
            f"the policy of site {site.name!r} allows a record epsilon of at most "
            f"{policy.max_record_epsilon:g} at delta {policy.record_delta:g}, this release has "
            f"({_shown(epsilon)}, {_shown(delta)})",
        )


def _shown(value: float) -> str:
    return f"{round_up(value):g}" if math.isfinite(value) else "no bound"


# Charging and keeping ---------------------------------------------------------------------------------------------


def open_ledger(site: Site) -> Ledger:
    """The site's ledger, in its store, under the budget that its policy has today."""
    policy, place = site.policy, site.store.path / LEDGER
    limit = policy.max_record_epsilon
    begun = place.exists() and place.stat().st_size > 0
    if not begun and site.store.names(FOLDER):
        raise Refused(
            "ledger",
            f"site {site.name!r} has released data, but its ledger {place} is missing: what was "
            "spent is not known. Restore it; nothing is released until then",
        )
    try:
        ledger = Ledger(place) if begun else Ledger(place, limit or _NO_LIMIT, policy.record_delta)
    except ValueError as error:  # it is damaged
        raise Refused("ledger", str(error)) from None
    # The file has the numbers of the day it was begun; the policy's are those of today.
    ledger.epsilon, ledger.delta = math.inf if limit is None else limit, policy.record_delta
    return ledger


def spent(site: Site) -> Pair:
    """(epsilon, delta) that the person who paid most has paid at this site; (0, delta) before any release."""
    if not (site.store.path / LEDGER).exists():
        return 0.0, site.policy.record_delta
    paid = open_ledger(site).spent()
    return paid.epsilon, paid.delta


def released(
    site: Site,
    mechanism: Mechanism,
    rows: Rows,
    compute: Callable[[Ledger], Record],
    *,
    key: str = "",
    labels: RandomizedLabels | None = None,
) -> Record:
    """What ``compute(ledger)`` once released of these ``rows`` under ``mechanism``: from the store ever after.

    ``compute`` calls the mechanism's ``release(..., ledger=ledger, ids=rows.ids)``, which charges before it draws, and
    returns what is to be kept. ``key`` tells apart releases of one mechanism, such as two features of the same rows;
    ``labels`` says how those of ``rows`` were randomised, if they were.
    """
    name = digest({"mechanism": mechanism_to_values(mechanism), "key": key, "data": rows.digest})
    with site.store.locked():
        found = read_release(site, name)
        if found is not None:
            return found
        check_release(site, mechanism, labels)
        record = _charged(site, compute)
        record = Record(record.arrays, {**record.values, "by": "site", "people": rows.ids.tolist()})
        site.store.write(record, FOLDER, name)
    return record


def released_rows(
    site: Site, mechanism: Mechanism, rows: Rows, compute: Callable[[Rows, Ledger], FloatArray], *, key: str = ""
) -> FloatArray:
    """Noisy rows (n, k) of ``rows``, for mechanisms that treat each row by itself.

    ``compute(rows, ledger)`` releases and charges; it gets only rows that were not released before, or that have
    changed since.
    """
    name = digest({"mechanism": mechanism_to_values(mechanism), "key": key})
    marks = row_marks(rows.X)
    with site.store.locked():
        known = rows_of(read_release(site, name))
        pairs = enumerate(zip(rows.ids.tolist(), marks.tolist(), strict=True))
        new = np.array(
            [place for place, (number, mark) in pairs if known.get(number, (None,))[0] != mark], dtype=np.intp
        )
        if len(new):
            made = _charged(site, lambda ledger: compute(rows.take(new), ledger))
            known |= dict(zip(rows.ids[new].tolist(), zip(marks[new].tolist(), made, strict=True), strict=True))
            write_rows(site, name, known)
    return np.stack([known[number][1] for number in rows.ids.tolist()])


def _charged(site: Site, compute: Callable[[Ledger], Any]) -> Any:
    try:
        return compute(open_ledger(site))
    except BudgetExceeded as error:
        raise Refused("budget", f"site {site.name!r} does not release this: {error}") from None

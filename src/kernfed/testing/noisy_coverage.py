"""Coverage from rows kept aside under differential privacy: noisy histograms of sites, or of all of them together.

A model that is whole travels to the sites. Each releases its own histogram once, or adds its share of one noise to a
masked sum; either way it charges its ledger before it draws, and rows are read inside a permit only.

Every row is scored by itself. The model comes with the question, and may be made so that some row overflows or raises:
such a row is in no set, as one of an unknown label, and neither another row's place nor the reply depends on it.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kernfed.abstain import NoisyConformal
from kernfed.abstain.conformal import LARGEST_OF_SITE, read_sums
from kernfed.base.checks import FloatArray, check_count
from kernfed.errors import InputError, Refused
from kernfed.federation.asking import Federation
from kernfed.federation.summing.released import gather_shares, guarantees, honest_sites, send_share
from kernfed.federation.summing.tasks import question_hash
from kernfed.federation.survey import leave_out, outsized
from kernfed.files import Record
from kernfed.privacy.generator import Ints
from kernfed.privacy.ledger import Ledger
from kernfed.privacy.noisy_sum import sum_deviation
from kernfed.privacy.record_sums import Places, RecordHistogram, left_out
from kernfed.privacy.shared import SharedHistogram
from kernfed.privacy.values import mechanism_to_values
from kernfed.promise import Guarantee, Terms
from kernfed.secure.committee.terms import read_setting
from kernfed.site.protocol.message import Payload
from kernfed.site.release.kept import check_kind, read_mechanism, warn_if_forgotten
from kernfed.site.release.permit import releasing, statement
from kernfed.site.rows import Rows
from kernfed.site.site import Site
from kernfed.testing.exchange import Options, whole_question
from kernfed.testing.held_out import MODEL, read_model, row_scores, way_of
from kernfed.testing.outcomes import class_numbers
from kernfed.testing.predictors import is_regressor
from kernfed.testing.statistics import Coverage

#: More rows than this at a site are a lie; sums of them stay exact.
_MOST_ROWS = 2**36
#: Histograms by odds and, where strangers are counted, by strangeness.
_NAMES = ("counts", "nearest")

# At a site ---------------------------------------------------------------------------------------------------------


def answer_with_noise(site: Site, payload: Payload) -> Payload:
    """Noisy histograms of the held-out rows, scored by the model in a question: a release, or a share of one noise."""
    mechanism, model = _question(site, payload)
    if way_of(payload) == "shared":
        return _share(site, payload, mechanism, model)
    with releasing(site, mechanism) as permit:
        rows = site.held_out()
        if not len(rows.y):
            raise Refused("empty", f"site {site.name!r} keeps no rows aside")

        def compute(ledger: Ledger) -> Record:
            made = mechanism.release(*_counted(model, mechanism, rows), ledger=ledger, ids=rows.people)
            return Record({"counts": made.counts, **({} if made.nearest is None else {"nearest": made.nearest})})

        record = permit.once(rows, compute, key=_scored_by(payload))
        count = len(rows.y)
    return Payload(record.arrays, {"privacy": statement(site, *mechanism.guarantees(site.width)), "rows": count})


def _share(site: Site, payload: Payload, mechanism: RecordHistogram, model: Any) -> Payload:
    """The site's share of the histograms of all sites' held-out rows, with its part of the noise, masked."""
    try:
        shared = SharedHistogram.of(mechanism, payload.values["honest"])
    except (KeyError, ValueError) as error:
        raise Refused("bad question", f"the sum asked for cannot be followed: {error}") from None
    count = 0

    def integers(rows: Rows, pays: npt.NDArray[np.bool_]) -> Mapping[str, Ints]:
        nonlocal count
        count = len(rows.y)
        places, strange = _counted(model, mechanism, rows)
        return shared.integers(left_out(places, pays), None if strange is None else left_out(strange, pays))

    options: Any = {"protects_labels": True, "aside": True}
    sent = send_share(site, "test_model", payload, mechanism, shared, "histogram", integers, **options)
    return Payload(sent.arrays, {**sent.values, "rows": count})


def _question(site: Site, payload: Payload) -> tuple[RecordHistogram, Any]:
    """The mechanism and the model in a question, before any row is looked at."""
    mechanism = read_mechanism(payload.values.get("privacy"), RecordHistogram)
    site.check_labels_are_classes()
    try:
        model = read_model(site, payload, 1)
        statistic = Coverage.read(0 if is_regressor(model) else len(model.classes_), {}, {}, model)
        if model.n_features_in_ != site.width:
            raise InputError(f"the model is for {model.n_features_in_} columns, and the site has {site.width}")
        if mechanism.strangers and not model.has_machines:
            raise InputError("a model without machines tells no strangers")
        with np.errstate(all="ignore"):
            statistic.score(model, np.zeros((1, site.width)))  # what it cannot answer for any row is said before one
    except (KeyError, TypeError, ValueError) as error:
        raise Refused("bad question", f"the model asked about cannot be used: {error}") from None
    return mechanism, model


def row_places(model: Any, X: FloatArray, y: npt.NDArray[Any]) -> tuple[Places, Places]:
    """Places (n,) of rows X (n, p) by the odds of their labels y (n,), and by their strangeness; each row by itself."""
    statistic = Coverage(len(model.classes_))
    scores = row_scores(statistic, model, X, alone=True)
    with np.errstate(all="ignore"):
        return statistic.places(scores, class_numbers(model.classes_, y))


def _counted(model: Any, mechanism: RecordHistogram, rows: Rows) -> tuple[Places, Places | None]:
    places, strange = row_places(model, rows.X, rows.y)
    return places, strange if mechanism.strangers else None


def _scored_by(payload: Payload) -> str:
    """Digest of the model in a question, without what it says of its own privacy: that changes no score.

    It names what a site's store has released, so that it stays what it was in earlier versions.
    """
    arrays = {name.removeprefix(MODEL): array for name, array in payload.arrays.items() if name.startswith(MODEL)}
    return question_hash("conform_release", Payload(arrays, {"model": _without(payload.values["model"])}))


def _without(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {name: _without(value) for name, value in values.items() if name != "privacy"}
    return values


# Who asks ----------------------------------------------------------------------------------------------------------


def conform_privately(
    model: Any, federation: Federation, mechanism: Any, committee: Any, max_share: float, options: Options
) -> Any:
    """The model with a coverage from noisy counts: of each site, or of all together where there is a ``committee``."""
    check_kind(mechanism, "record-histogram", "RecordHistogram(epsilon, delta)")
    bare = replace(model, conformal_=None)
    if getattr(bare, "hold", "machines") != "machines" or getattr(bare, "connection", None) is not None:
        raise InputError(
            "noise is for counts of a model that is whole (ridge, or hold='machines'): of one whose machines are at "
            "their sites, the rows kept aside would travel as they are"
        )
    if mechanism.strangers and not bare.has_machines:
        raise InputError("strangers are told by machines, and this model has none: leave strangers=True out")
    bare.conforming(np.zeros((1, bare.n_features_in_)))  # raises here, and not at every site, what has no probabilities
    warn_if_forgotten(federation.engine)
    question = whole_question(bare, federation, Coverage(len(bare.classes_), bare.has_machines))
    asked = Payload(question.arrays, {**question.values, "privacy": mechanism_to_values(mechanism)})
    if committee is None:
        found = _ask_releases(bare, federation, asked, mechanism, max_share, options)
    else:
        found = _ask_shares(federation, asked, mechanism, committee, options)
    stated = {site: values["privacy"] for site, values in found.replies.items()}
    rows = sum(int(values["rows"]) for values in found.replies.values())
    counts, nearest = (found.sums[name].astype(np.int64) if name in found.sums else None for name in _NAMES)
    assert counts is not None
    about: Any = {"unit": bare.distance_unit, "prior": bare.prior, "missing": found.missing}
    terms = found.terms.with_told(stated)
    record = NoisyConformal(counts, nearest, found.deviation, rows, len(stated), terms, **about)
    return _with_charges(replace(model, conformal_=record), stated)


class _NoisySums(NamedTuple):
    """Histograms of all sites with noise of this deviation, its terms, the values of each site's reply, the missing."""

    sums: Mapping[str, Ints]
    deviation: float
    terms: Terms
    replies: Mapping[str, Mapping[str, Any]]
    missing: Mapping[str, str]


def _ask_releases(
    model: Any,
    federation: Federation,
    question: Payload,
    mechanism: RecordHistogram,
    max_share: float,
    options: Options,
) -> _NoisySums:
    """Sums of the histograms that sites release by themselves."""
    terms = _terms(mechanism, mechanism.guarantees(model.n_features_in_), {})
    names = _NAMES[: mechanism.histograms]

    def check(_: str, payload: Payload) -> None:
        _check_values(terms, payload)
        for name in names:
            read_sums(payload.arrays[name], LARGEST_OF_SITE)

    replies = federation.ask("test_model", question, check=check, **options)
    claimed = {site: int(payload.values["rows"]) for site, payload in replies}
    replies = leave_out("test_model", replies, outsized(claimed, max_share), options["min_replies"])
    sums = {name: np.sum([payload.arrays[name] for _, payload in replies], axis=0) for name in names}
    deviation = math.sqrt(len(replies) * float(mechanism.law().variance))
    missing = {site: refusal.reason for site, refusal in replies.missing.items()}
    return _NoisySums(sums, deviation, terms, {site: payload.values for site, payload in replies}, missing)


def _ask_shares(
    federation: Federation, question: Payload, mechanism: RecordHistogram, committee: Any, options: Options
) -> _NoisySums:
    """The sum of all histograms, with one noise for all sites."""
    setting = read_setting(committee)
    if setting is None:
        raise InputError(f"sum must be 'secure' or a kernfed.secure.Committee, got {committee!r}")
    honest = honest_sites(setting, len(federation.sites), options["min_replies"])
    shared = SharedHistogram.of(mechanism, honest)
    terms = _terms(mechanism, guarantees(shared), {"sum": {"honest": honest, "alone": shared.alone}})
    replies: dict[str, Mapping[str, Any]] = {}

    def read(site: str, answer: Payload) -> None:
        _check_values(terms, answer)
        replies[site] = answer.values

    asked = Payload(question.arrays, {**question.values, "honest": honest})
    needed, sites = options["min_replies"], federation.sites
    program = gather_shares(
        federation, "test_model", asked, shared, "histogram", setting, sites, min_replies=needed, hear=read
    )
    total = federation.run(program, timeout=options["timeout"])
    deviation = sum_deviation(shared.arrays("histogram")["counts"].deviation, honest, len(total.sites))
    missing = {site: refusal.reason for site, refusal in total.missing.items()}
    return _NoisySums(total.integers, deviation, terms, {site: replies[site] for site in total.sites}, missing)


def _check_values(terms: Terms, payload: Payload) -> None:
    """Refuse a reply that promises something else than was asked, or states a number of rows that cannot be."""
    terms.check_told(payload.values["privacy"])
    check_count(payload.values["rows"], "rows", at_most=_MOST_ROWS)


def _terms(mechanism: RecordHistogram, promised: tuple[Guarantee, Guarantee], more: Mapping[str, Any]) -> Terms:
    asked = mechanism_to_values(mechanism)
    return Terms(asked, None, "rows and targets", *promised, request={"mechanism": asked, "labels": None, **more})


def _with_charges(model: Any, stated: Mapping[str, Any]) -> Any:
    """The model whose terms, where it has some, know what the ledgers of its sites have come to by now."""
    if model.privacy is None:
        return model
    known = {site: pairs for site, pairs in stated.items() if site in model.privacy.spent}
    terms = model.privacy.with_told(known)
    return model.with_privacy(terms)

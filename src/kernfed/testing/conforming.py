"""Coverage from rows that sites kept aside: histograms of their scores by class, added up over sites.

A model that is whole travels to the sites, and counts come back; added up under masks where that is asked. Of a model
whose machines stay at their sites the rows kept aside travel as queries, as in an evaluation, so that all machines
score them; where sites do not allow that, no coverage is stated. Labels do not travel in either case.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.abstain import BINS, RATIO_BINS, Conformal, count_scores, probability_bins, read_counts
from kernfed.base.checks import FloatArray, IntArray, check_column_names
from kernfed.base.model import as_model
from kernfed.data.preparation import prepared_rows
from kernfed.errors import InputError, NotConnected, Refused
from kernfed.federation.asking import Federation
from kernfed.federation.survey import MAX_SHARE, leave_out, outsized
from kernfed.files import labels_from_values, labels_to_values
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.task import task
from kernfed.site.rows import Rows, check_site_rows
from kernfed.site.site import Site
from kernfed.testing.evaluation import whole_question
from kernfed.testing.held_out import (
    ask_held_out,
    check_labels_alike,
    class_numbers,
    labelled_rows,
    row_scores,
)
from kernfed.testing.predictors import NOTHING_ASIDE, model_questions, read_model

#: More rows than this are a lie; sums of them stay exact.
_MOST_ROWS = 2**40

Counts = Mapping[str, tuple[IntArray, IntArray]]


def conform(
    model: Any,
    federation: Federation | None = None,
    holdout: Mapping[str, Any] | None = None,
    *,
    min_replies: int | None = None,
    timeout: float = 600.0,
    max_share: float = MAX_SHARE,
    sum: Any = None,
    privacy: Any = None,
) -> Any:
    """The same model with a coverage: ``predict_set``, ``p_values`` and ``predict(..., abstain=...)`` then answer.

    Needs sites that keep rows aside (``Federation.local(..., holdout=0.2)``), or rows ``holdout`` {site: (X, y)} that
    were not trained on and that the caller holds anyway. Coverage is for rows drawn as these: do not choose the model
    by them. Labels that the model does not know are in no set, and count as such.

    Nobody can check what a site counts on rows of its own; counts that cannot be are refused, and so is one of three
    and more sites that claims above ``max_share`` of all rows. With ``sum`` ("secure" or a
    ``kernfed.secure.Committee``, for a model that is whole) only counts of all sites together are seen, and there is
    no coverage at one site.

    privacy : a ``kernfed.privacy.RecordHistogram``, for a model that is whole: sites release counts with noise, each
    its own or, with ``sum``, one noise for all of them together. The coverage holds as stated, with larger sets, for
    all rows together and not by class or site; ``model.conformal_.privacy`` has the terms.
    """
    _check_model(model)
    options: Any = {"min_replies": min_replies, "timeout": timeout}
    if privacy is not None:
        if federation is None or holdout is not None:
            raise InputError(
                "privacy is for rows that sites keep aside: give the federation and no holdout; rows that are here are "
                "counted as they are"
            )
        return _with_noise(model, federation, privacy, sum, max_share, options)
    if model.privacy is not None and holdout is None:
        raise InputError(
            "this model promises differential privacy, and counts of raw rows at its sites are not covered by that; "
            "let sites add noise, as in conform(model, federation, privacy=kernfed.privacy.RecordHistogram(1.0, 1e-5)),"
            " or give rows whose counts may be in its file, as in conform(model, holdout={site: (X, y)})"
        )
    bare = replace(model, conformal_=None)
    if holdout is not None:
        return replace(model, conformal_=_record(bare, _count_here(bare, holdout), {}))
    if federation is None:
        raise InputError("conform needs a federation whose sites keep rows aside, or holdout={site: (X, y)}")
    if getattr(bare, "hold", "machines") == "sites" and bare.connection is None:
        raise NotConnected("the machines of this model are at its sites: use model.connect(federation) first")
    if sum is not None:
        return replace(model, conformal_=_conform_sum(bare, federation, sum, options))
    if getattr(bare, "connection", None) is not None:
        counts, missing = _conform_scores(bare, federation, options)
        return replace(model, conformal_=_record(bare, counts, missing))
    questions, _ = model_questions(bare, federation.sites)
    replies = federation.ask("conform", questions, check=_checker(len(bare.classes_)), **options)
    claimed = {site: int(payload.arrays["counts"].sum()) for site, payload in replies}
    replies = leave_out("conform", replies, outsized(claimed, max_share), min_replies)
    missing = {site: refusal.reason for site, refusal in replies.missing.items()}
    return replace(model, conformal_=_record(bare, {site: _read(payload) for site, payload in replies}, missing))


def _with_noise(
    model: Any, federation: Federation, mechanism: Any, committee: Any, max_share: float, options: Any
) -> Any:
    from kernfed.testing.conforming_private import conform_privately  # loads what accounts for noise

    return conform_privately(model, federation, mechanism, committee, max_share, options)


def sure_columns(
    model: Any, X: npt.ArrayLike, coverage: float | None, abstain: float | None, **options: Any
) -> dict[str, npt.NDArray[Any]]:
    """Columns (n,) of a table of predictions, from one scoring of rows (n, p).

    With ``coverage`` the "set" of each row, labels with bars between them; with ``abstain`` the "answer", nothing where
    the model abstains; with either the "p-value" of strangers, where the model has machines.
    """
    if coverage is None and abstain is None:
        return {}
    if model.conformal_ is None:
        raise InputError(
            f"this {type(model).__name__} states no coverage: run kernfed conform on it, or kernfed.conform, with rows "
            "that it was not trained on"
        )
    record, classes = model.conformal_, model.classes_
    likely, strange = model.conforming(X, **options)
    columns: dict[str, npt.NDArray[Any]] = {}
    if abstain is not None:
        answers = record.answers(classes, likely, strange, abstain)
        columns["answer"] = np.where(answers.mask, "", answers.data.astype(str))
    if coverage is not None:
        sets = probability_bins(likely) <= record.thresholds(classes, coverage)
        names = classes.astype(str)
        columns["set"] = np.array([" | ".join(names[own]) for own in sets], dtype=object)
    if strange is not None and record.nearest is not None:
        columns["p-value"] = record.p_values(strange)
    return columns


def _check_model(model: Any) -> None:
    if not as_model(model).can_conform:
        raise InputError(
            f"sets of classes are for a FoldingModel, a RidgeModel or a FusionModel that classifies, got a "
            f"{type(model).__name__}"
        )


def _record(model: Any, counts: Counts, missing: Mapping[str, str]) -> Conformal:
    """What is counted at all sites together, unless that is nothing."""
    classes = len(model.classes_)
    total, nearest = np.zeros((classes + 1, BINS), dtype=np.int64), np.zeros((classes, RATIO_BINS), dtype=np.int64)
    shares, by_site = np.zeros(BINS), {}
    for site in sorted(counts):
        own, own_nearest = counts[site]
        if not own.sum():
            continue
        total, nearest = total + own, nearest + own_nearest
        by_site[site] = np.append(own[:-1].sum(axis=0), own[-1].sum())
        shares = shares + _shares(own)
    return _checked(model, Conformal(total, nearest, by_site, shares, len(by_site), missing=missing))


def _checked(model: Any, record: Conformal) -> Conformal:
    """The record of a model, with its unit and prior; refused where it is of nothing that the model could know."""
    if not record.rows:
        raise InputError(NOTHING_ASIDE)
    if record.unknown == record.rows:
        raise InputError(
            f"the model knows none of the labels of the {record.rows:,} rows kept aside; look at the column of labels"
        )
    machines = record.nearest is not None and bool(record.nearest.any())
    return replace(record, nearest=record.nearest if machines else None, unit=model.distance_unit, prior=model.prior)


def _shares(counts: IntArray) -> FloatArray:
    """Shares (BINS,) of a site's rows by bin; rows that no set can have are in none."""
    return np.asarray(counts[:-1].sum(axis=0) / max(1, int(counts.sum())))


def _count_here(model: Any, holdout: Mapping[str, Any]) -> Counts:
    """Counts of rows that are here."""
    counted = {}
    for name in sorted(holdout):
        X, y = holdout[name][:2]
        X = prepared_rows(model.preparation, X)
        check_column_names(X, model.column_names, f"X of site {name!r}")
        rows = check_site_rows(X, y, None, name)
        check_labels_alike(model.classes_, rows, name)
        counted[name] = _count(model, rows)
    return counted


def _count(model: Any, rows: Rows) -> tuple[IntArray, IntArray]:
    """Histograms of rows, scored by a model that is here."""

    def score(X: FloatArray) -> FloatArray:
        probabilities, strange = model.conforming(X)
        ratios = np.full(len(X), np.inf) if strange is None else strange / model.distance_unit
        return np.column_stack([probabilities, ratios])

    # A row without scores is in no set of classes, and as strange as a row can be: the safe side of both.
    made = row_scores(score, rows.X, [*[0.0] * len(model.classes_), np.inf], low=0.0)
    ratios = made[:, -1] if model.has_machines else None
    return count_scores(class_numbers(model.classes_, rows.y), made[:, :-1], ratios)


def _conform_scores(model: Any, federation: Federation, options: Any) -> tuple[Counts, dict[str, str]]:
    """Let every site count the answers of all sites to the rows that it keeps aside."""

    def answer(rows: FloatArray, **asked: Any) -> FloatArray:
        # Whoever sends rows, all machines must score them: with fewer it is another model that is counted.
        probabilities, strange = model.conforming(rows, timeout=asked["timeout"])
        return np.column_stack([probabilities, strange / model.distance_unit])

    answered, missing = ask_held_out(model, federation, answer, options)
    count, classes = len(model.classes_), labels_to_values(model.classes_)
    questions = {
        site: Payload({"probabilities": own[:, :count], "ratios": own[:, -1]}, {"classes": classes})
        for site, own in answered.items()
        if len(own)
    }
    if not questions:
        return {}, missing
    sent = {site: len(answered[site]) for site in questions}
    replies = federation.ask("conform_scores", questions, check=_checker(count, sent), **options)
    missing |= {site: refusal.reason for site, refusal in replies.missing.items()}
    return {site: _read(payload) for site, payload in replies}, missing


def _conform_sum(model: Any, federation: Federation, committee: Any, options: Any) -> Conformal:
    """Counts of all sites together, of which nobody sees any site's own."""
    count, most = len(model.classes_), float(_MOST_ROWS)
    arrays = {
        "counts": ((count + 1, BINS), most),
        "nearest": ((count, RATIO_BINS), most),
        "shares": ((BINS,), 1.0),
        "sites": ((), 1.0),
    }
    total = federation.sum("conform", whole_question(model, federation), arrays, committee=committee, **options)
    counts, nearest = (np.rint(total.arrays[name]).astype(np.int64) for name in ("counts", "nearest"))
    missing = {site: refusal.reason for site, refusal in total.missing.items()}
    sites = int(np.rint(total.arrays["sites"]))
    shares = np.maximum(total.arrays["shares"], 0.0)
    return _checked(model, Conformal(counts, nearest, {}, shares, sites, missing=missing))


def _checker(classes: int, sent: Mapping[str, int] | None = None) -> Any:
    """A check of histograms: that they are some, of the same rows, and of as many as were ``sent``."""

    def check(site: str, payload: Payload) -> None:
        counts = read_counts(payload.arrays["counts"], (classes + 1, BINS))
        nearest = read_counts(payload.arrays["nearest"], (classes, RATIO_BINS))
        if counts.sum() > _MOST_ROWS:
            raise InputError(f"a site keeps at most {_MOST_ROWS:,} rows aside")
        if counts[-1, :-1].any():
            raise InputError("rows with unknown labels are in the last bin")
        if nearest.any() and (nearest.sum(axis=1) != counts[:-1].sum(axis=1)).any():
            raise InputError("both histograms must be of the same rows")
        if sent is not None and counts.sum() != sent[site]:
            raise InputError(f"the counts must be of the {sent[site]:,} rows that were asked, got {counts.sum():,}")

    return check


def _read(payload: Payload) -> tuple[IntArray, IntArray]:
    return payload.arrays["counts"], payload.arrays["nearest"]


def _told(counts: IntArray, nearest: IntArray) -> Payload:
    some = np.asarray(float(counts.sum() > 0))
    return Payload({"counts": counts, "nearest": nearest, "shares": _shares(counts), "sites": some})


@task("conform", leaves="counts", additive=True)
def conform_model(site: Site, payload: Payload) -> Payload:
    """Histograms of the held-out rows, scored by a model that came with the question."""
    model = read_model(site, payload.arrays, payload.values["model"], len(site.held_out().y))
    if not model.can_conform or model.hold != "machines":
        raise Refused("bad question", f"a {type(model).__name__} has no sets of classes here")
    return _told(*_count(model, labelled_rows(site, model.classes_)))


@task("conform_scores", leaves="counts")
def conform_scores(site: Site, payload: Payload) -> Payload:
    """Histograms of the held-out rows, in their order, by the probabilities and distances that came."""
    probabilities, ratios = payload.arrays["probabilities"], payload.arrays["ratios"]
    classes = labels_from_values(payload.values["classes"])
    rows = labelled_rows(site, classes)
    if probabilities.shape != (len(rows.y), len(classes)) or ratios.shape != (len(rows.y),):
        raise Refused("bad question", f"expected scores for {len(rows.y)} rows, got {probabilities.shape}")
    if np.isnan(probabilities).any() or np.isnan(ratios).any() or (ratios < 0).any():
        raise Refused("bad question", "probabilities and distances must be numbers, and distances at least 0")
    return _told(*count_scores(class_numbers(classes, rows.y), probabilities, ratios))

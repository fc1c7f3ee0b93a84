"""Temperatures and coverages of models, from rows that sites keep aside."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.abstain import BINS, RATIO_BINS, Abstaining, Conformal, count_scores, probability_bins, read_counts
from kernfed.base.checks import FloatArray, IntArray, check_column_names, check_finite
from kernfed.data.preparation import prepared_rows
from kernfed.errors import InputError, NotConnected, Refused
from kernfed.federation.asking import Federation, leave_out
from kernfed.federation.shares import MAX_SHARE, outsized
from kernfed.files import labels_from_values, labels_to_values
from kernfed.kahm.calibration import temperature_losses
from kernfed.kahm.model import FoldingModel
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
from kernfed.testing.predictors import NOTHING_ASIDE, is_regressor, model_questions, read_model

#: Temperatures that are tried, as factors of the sites' own: eight octaves each way, in eighths.
FACTORS = 2.0 ** (np.arange(-64, 65) / 8)


#: How far beyond what the other sites would choose the temperature may go: an octave, in eighths.
_REACH = 8
#: More rows than this are a lie, and so are losses of one site above this, at any temperature.
_MOST_ROWS, _LARGEST_LOSS = 2**40, 2.0**40
_NOTHING = "no site kept rows aside to calibrate on, with labels that the model knows: make the sites with holdout=0.2"


def calibrate(
    model: FoldingModel,
    federation: Federation,
    *,
    min_replies: int | None = None,
    timeout: float = 600.0,
    max_share: float = MAX_SHARE,
    sum: Any = None,
) -> FoldingModel:
    """The same model with the temperature that makes the labels of the rows kept aside most likely.

    Needs sites that keep rows aside (``Federation.local(..., holdout=0.2)``). Labels that the model does not know, and
    classes without an answer, are left out. Predicted labels do not change; evaluate on other rows than these.

    A site whose losses cannot be, or that claims above ``max_share`` of all rows, is missing. With three and more sites
    none can drive the temperature further than an octave beyond what the others would choose by themselves. With
    ``sum`` ("secure" or a ``kernfed.secure.Committee``, for machines held in the model) only the sum of all losses is
    seen, and nobody can check or limit a site's own.
    """
    if not isinstance(model, FoldingModel):
        raise InputError(f"only the probabilities of a FoldingModel have a temperature, got a {type(model).__name__}")
    if model.privacy is not None:
        raise InputError(
            "this model promises differential privacy, and a temperature found on raw rows is not covered by it; its "
            "sites have fitted one to what they released"
        )
    options: Any = {"min_replies": min_replies, "timeout": timeout}
    temperatures = replace(model, calibrated_=None).temperature_ * FACTORS
    if sum is not None:
        return _calibrate_sum(model, federation, temperatures, sum, options)
    scored: dict[str, FloatArray] = {}
    if model.connection is not None:
        scored, _ = ask_held_out(model, federation, model.scores, options)
        values = {"classes": labels_to_values(model.classes_)}
        questions: Any = {
            site: Payload({"scores": own, "temperatures": temperatures}, values) for site, own in scored.items()
        }
        name = "calibrate_scores"
    else:
        question, _ = model_questions(model, federation.sites)
        assert isinstance(question, Payload)
        questions = Payload({**question.arrays, "temperatures": temperatures}, question.values)
        name = "calibrate_model"

    def check(site: str, payload: Payload) -> None:
        _check(payload, 1 / temperatures)
        if site in scored:
            _check_scored(payload, scored[site], temperatures)

    replies = federation.ask(name, questions, check=check, **options)
    claimed = {site: int(payload.arrays["rows"]) for site, payload in replies}
    replies = leave_out(name, replies, outsized(claimed, max_share), min_replies)
    if not any(claimed[site] for site, _ in replies):
        raise InputError(_NOTHING)
    losses = [payload.arrays["losses"] for site, payload in replies if claimed[site]]
    return replace(model, calibrated_=float(temperatures[_best(losses)]))


def _calibrate_sum(
    model: FoldingModel, federation: Federation, temperatures: FloatArray, committee: Any, options: Any
) -> FoldingModel:
    question = whole_question(model, federation)
    payload = Payload({**question.arrays, "temperatures": temperatures}, question.values)
    arrays = {"losses": (FACTORS.shape, _LARGEST_LOSS), "rows": ((), float(_MOST_ROWS))}
    total = federation.sum("calibrate_model", payload, arrays, committee=committee, **options)
    if not total.arrays["rows"] > 0:
        raise InputError(_NOTHING)
    return replace(model, calibrated_=float(temperatures[int(np.argmin(total.arrays["losses"]))]))


def _best(losses: Sequence[FloatArray]) -> int:
    """Which temperature is best for the losses (129,) of all sites, as far as no site by itself decides it.

    The best of their sum, at most an octave beyond the second smallest and second largest of those that sites would
    choose alone, with a log-normal prior of deviation 1 around their usual one.
    """
    best = int(np.argmin(np.sum(losses, axis=0)))
    if len(losses) < 3:
        return best
    own = sorted(int(np.argmin(loss + np.log(FACTORS) ** 2 / 2)) for loss in losses)
    return int(np.clip(best, max(0, own[1] - _REACH), min(len(FACTORS) - 1, own[-2] + _REACH)))


def _check_scored(payload: Payload, scores: FloatArray, temperatures: FloatArray) -> None:
    """Refuse losses of more rows than were sent, or larger than any labels of these have at their scores (n, C)."""
    if payload.arrays["rows"] > len(scores):
        raise InputError(
            f"the losses must be of the {len(scores):,} rows that were asked, got {payload.arrays['rows']}"
        )
    finite = np.isfinite(scores)
    worst = np.argmax(np.where(finite, scores, -np.inf), axis=1) if len(scores) else np.zeros(0, dtype=np.intp)
    limits = temperature_losses(scores, worst, temperatures)
    if (payload.arrays["losses"] > limits * (1 + 1e-9) + 1e-9).any():
        raise InputError("no labels of the rows that were asked have such losses")


def _check(payload: Payload, rates: FloatArray) -> None:
    """Refuse what is not a loss at every temperature: it is convex in ``rates``, the inverse temperatures."""
    losses, rows = payload.arrays["losses"], payload.arrays["rows"]
    if losses.shape != FACTORS.shape or rows.shape != () or not np.isfinite(losses).all() or (losses < 0).any():
        raise InputError(f"expected {len(FACTORS)} losses of at least 0, got {losses.shape}")
    if rows.dtype.kind != "i" or not 0 <= rows <= _MOST_ROWS:
        raise InputError(f"expected a number of rows, got {rows}")
    share = (rates[1:-1] - rates[2:]) / (rates[:-2] - rates[2:])
    chords = losses[2:] + share * (losses[:-2] - losses[2:])
    if (losses[1:-1] > chords + 1e-9 * (1 + np.maximum(losses[:-2], losses[2:]))).any():
        raise InputError("a loss must be convex in the inverse temperature")


@task("calibrate_scores", leaves="counts")
def calibrate_scores(site: Site, payload: Payload) -> Payload:
    """Losses of scores of the held-out rows, in their order, at every temperature."""
    scores, classes = payload.arrays["scores"], labels_from_values(payload.values["classes"])
    rows = labelled_rows(site, classes)
    if scores.shape != (len(rows.y), len(classes)) or np.isnan(scores).any():
        raise Refused("bad question", f"expected scores for {len(rows.y)} rows, got {scores.shape}")
    return _losses(rows, classes, scores, payload)


@task("calibrate_model", leaves="counts", additive=True)
def calibrate_model(site: Site, payload: Payload) -> Payload:
    """Losses of a model that came with the question, on the held-out rows, at every temperature."""
    arrays = {name: array for name, array in payload.arrays.items() if name != "temperatures"}
    model = read_model(site, arrays, payload.values["model"], len(site.held_out().y))
    if not isinstance(model, FoldingModel) or model.banks_ is None:
        raise Refused("bad question", f"a {type(model).__name__} has no temperature to find here")
    rows = labelled_rows(site, model.classes_)
    scores = row_scores(model.scores, rows.X, 0.0)  # absent classes score infinity
    return _losses(rows, model.classes_, scores, payload)


def _losses(rows: Rows, classes: Any, scores: Any, payload: Payload) -> Payload:
    temperatures = payload.arrays["temperatures"]
    if temperatures.shape != FACTORS.shape or not (temperatures > 0).all():
        raise Refused("bad question", f"expected {len(FACTORS)} temperatures above 0, got {temperatures.shape}")
    check_finite(temperatures, "temperatures")
    place = {label: number for number, label in enumerate(classes.tolist())}
    numbers = np.array([place.get(label, -1) for label in rows.y.tolist()], dtype=np.intp)
    known = numbers >= 0
    losses = temperature_losses(scores[known], numbers[known], temperatures)
    return Payload({"losses": losses, "rows": np.asarray(int(known.sum()))})


#: More rows than this are a lie; sums of them stay exact.
_MOST_ASIDE = 2**40

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
    from kernfed.testing.noisy_coverage import conform_privately  # loads what accounts for noise

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
    if getattr(model, "conformal_", None) is None:
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
    if not isinstance(model, Abstaining) or is_regressor(model):
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
        X = prepared_rows(getattr(model, "preparation", None), X)
        check_column_names(X, getattr(model, "feature_names_in_", ()), f"X of site {name!r}")
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
    ratios = made[:, -1] if model.tells_strangers else None
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
    count, most = len(model.classes_), float(_MOST_ASIDE)
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
        if counts.sum() > _MOST_ASIDE:
            raise InputError(f"a site keeps at most {_MOST_ASIDE:,} rows aside")
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
    if not isinstance(model, Abstaining) or is_regressor(model) or getattr(model, "hold", "machines") != "machines":
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

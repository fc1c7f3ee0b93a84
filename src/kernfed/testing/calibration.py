"""Temperatures and coverages of models, from sums over rows that sites kept aside.

A model that is whole travels to the sites, and sums come back; added up under masks where that is asked, or with noise
(``noisy_coverage``). Of a model whose machines stay at their sites the rows kept aside travel as queries, so that all
machines score them. Labels do not travel in either case.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.abstain import BINS, RATIO_BINS, Conformal, probability_bins
from kernfed.base.checks import FloatArray
from kernfed.base.model import Model, as_model
from kernfed.errors import InputError, NotConnected
from kernfed.federation.asking import Federation
from kernfed.federation.survey import MAX_SHARE
from kernfed.kahm.model import FoldingModel
from kernfed.testing.exchange import NOTHING_ASIDE, Options, ask_sites, rows_here, sum_sites
from kernfed.testing.held_out import Sums, held_out_sums, label_numbers
from kernfed.testing.statistics import FACTORS, Coverage, Temperatures, bin_shares

#: How far beyond what the other sites would choose the temperature may go: an octave, in eighths.
_REACH = 8
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
    if not as_model(model).can_calibrate:
        raise InputError(f"only the probabilities of a FoldingModel have a temperature, got a {type(model).__name__}")
    if model.privacy is not None:
        raise InputError(
            "this model promises differential privacy, and a temperature found on raw rows is not covered by it; its "
            "sites have fitted one to what they released"
        )
    options: Options = {"min_replies": min_replies, "timeout": timeout}
    temperatures = replace(model, calibrated_=None).temperature_ * FACTORS
    statistic = Temperatures(len(model.classes_), temperatures)
    if sum is None:
        told, _ = ask_sites(model, federation, statistic, options, max_share)
        losses = [sums["losses"] for sums in told.values() if statistic.rows(sums)]
        chosen = _best(losses) if losses else None
    else:
        total, _ = sum_sites(model, federation, statistic, sum, options)
        chosen = int(np.argmin(total["losses"])) if statistic.rows(total) > 0 else None
    if chosen is None:
        raise InputError(_NOTHING)
    return replace(model, calibrated_=float(temperatures[chosen]))


def _best(losses: Sequence[FloatArray]) -> int:
    """Which temperature is best for the losses (129,) of all sites, as far as no site by itself decides it.

    The best of their sum, at most an octave beyond the second smallest and second largest of those that sites would
    choose alone, with a log-normal prior of deviation 1 around their usual one.
    """
    best = int(np.argmin(np.sum(losses, axis=0)))
    if len(losses) < 3:
        return best
    alone = sorted(int(np.argmin(loss + np.log(FACTORS) ** 2 / 2)) for loss in losses)
    return int(np.clip(best, max(0, alone[1] - _REACH), min(len(FACTORS) - 1, alone[-2] + _REACH)))


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
    options: Options = {"min_replies": min_replies, "timeout": timeout}
    if privacy is not None:
        if federation is None or holdout is not None:
            raise InputError(
                "privacy is for rows that sites keep aside: give the federation and no holdout; rows that are here are "
                "counted as they are"
            )
        from kernfed.testing.noisy_coverage import conform_privately  # loads what accounts for noise

        return conform_privately(model, federation, privacy, sum, max_share, options)
    if model.privacy is not None and holdout is None:
        raise InputError(
            "this model promises differential privacy, and counts of raw rows at its sites are not covered by that; "
            "let sites add noise, as in conform(model, federation, privacy=kernfed.privacy.RecordHistogram(1.0, 1e-5)),"
            " or give rows whose counts may be in its file, as in conform(model, holdout={site: (X, y)})"
        )
    bare = replace(model, conformal_=None)
    statistic = Coverage(len(bare.classes_), bare.has_machines)
    if holdout is not None:
        return replace(model, conformal_=_record(bare, _count_here(bare, statistic, holdout), {}))
    if federation is None:
        raise InputError("conform needs a federation whose sites keep rows aside, or holdout={site: (X, y)}")
    connected = getattr(bare, "connection", None) is not None
    if getattr(bare, "hold", "machines") == "sites" and not connected:
        raise NotConnected("the machines of this model are at its sites: use model.connect(federation) first")
    if sum is not None:
        total, missing = sum_sites(bare, federation, statistic, sum, options)
        shares, sites = np.maximum(total["shares"], 0.0), int(np.rint(total["sites"]))
        record = Conformal(total["counts"], total["nearest"], {}, shares, sites, missing=missing)
        return replace(model, conformal_=_checked(bare, record))
    # A site that sent its rows as queries cannot claim others.
    counts, missing = ask_sites(bare, federation, statistic, options, None if connected else max_share)
    return replace(model, conformal_=_record(bare, counts, missing))


def sure_columns(
    model: Any, X: npt.ArrayLike, coverage: float | None, abstain: float | None, **options: Any
) -> dict[str, npt.NDArray[Any]]:
    """Columns (n,) of a table of predictions, from one scoring of rows (n, p).

    With ``coverage`` the "set" of each row, labels with bars between them; with ``abstain`` the "answer", nothing where
    the model abstains; with either the "p-value" of strangers, where the model has machines.
    """
    if coverage is None and abstain is None:
        return {}
    if not isinstance(model, Model) or model.conformal_ is None:
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


def _record(model: Any, counts: Mapping[str, Sums], missing: Mapping[str, str]) -> Conformal:
    """What is counted at all sites together, unless that is nothing."""
    classes = len(model.classes_)
    total, nearest = np.zeros((classes + 1, BINS), dtype=np.int64), np.zeros((classes, RATIO_BINS), dtype=np.int64)
    shares, by_site = np.zeros(BINS), {}
    for site in sorted(counts):
        own = counts[site]["counts"]
        if not own.sum():
            continue
        total, nearest = total + own, nearest + counts[site]["nearest"]
        by_site[site] = np.append(own[:-1].sum(axis=0), own[-1].sum())
        shares = shares + bin_shares(own)
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


def _count_here(model: Any, statistic: Coverage, holdout: Mapping[str, Any]) -> Mapping[str, Sums]:
    """Counts of rows that are here."""
    counted = {}
    for name in sorted(holdout):
        rows = rows_here(model, model.classes_, name, holdout)
        counted[name] = held_out_sums(statistic, model, rows.X, label_numbers(model.classes_, rows))
    return counted

"""What is particular to kernel ridge regression over sites: its rounds, its choices, and how much the sites differ."""

from collections.abc import Sequence

import numpy as np

from kernfed.base.prior import Prior
from kernfed.guarantees import Bound
from kernfed.report.assurance import bound_claim
from kernfed.report.content import (
    BYTES,
    SENT,
    SHARE,
    Assumption,
    Claim,
    Curves,
    Fact,
    ModelParts,
    PageTable,
    Section,
    Series,
    missing_tables,
    site_table,
    written,
)
from kernfed.ridge.model import RidgeModel

#: Who chose a setting.
_BY = {
    "left out": "rows that were predicted without themselves",
    "averages left out": "rows that the average of sites predicted without them",
    "sums": "the sums alone",
    "median": "the median distance of rows",
}
#: Bandwidths up to which all are shown at once.
_FEW_WIDTHS = 6
#: Why training ended: in a sentence, and beside the number of rounds.
_ENDED = {
    "rounds": ("as all rounds asked for were done", "all that were asked for"),
    "tolerance": ("as the gradient was small enough", "until the gradient was small"),
    "converged": ("as nothing was left to improve", "until nothing was left to improve"),
    "diverged": ("as it diverged", "then it diverged"),
    "sites lost": ("as too many sites were lost", "then too many sites were lost"),
}


def describe_ridge(model: RidgeModel) -> ModelParts:
    """A ``RidgeModel``: its rounds, the choice of its regularisation, and how much the sites differ."""
    p = model.parameters
    what = "predict a value" if p.task == "regress" else f"classify into {len(model.classes_)} classes"
    rounds = max(0, len(model.history_) - 1)
    lasted, note = _lasted(rounds, model.stopped_)
    chosen = model.choices_
    if model.method == "exact" and rounds == 0 and chosen.exchanges > 2:  # the survey and the sums are two
        lasted, note = f"in {chosen.exchanges} exchanges, most of them to choose its settings", "none after the sums"
    lead = f"Sites {what} together by kernel ridge regression ({model.method}): {lasted}."
    up = sum(entry.bytes_up for entry in model.history_)
    facts = (
        Fact("Rounds", f"{rounds:,}", note),
        Fact("Features", f"{p.n_features:,}", f"{model.n_features_in_:,} columns"),
        *((Fact("Sent by the sites", written(up, BYTES), "in training"),) if model.history_ else ()),
    )
    settings = {
        "method": model.method,
        "head": model.head,
        "regularization": model.regularization_,
        "regularization by": _BY.get(chosen.regularization, chosen.regularization),
        "bandwidth by": _BY.get(chosen.bandwidth, chosen.bandwidth),
        "columns divided by": "one unit" if chosen.scale == "entries" else "their spreads",
        "features": p.features,
        "number of features": p.n_features,
        "task": p.task,
        "seed": p.seed,
        **({"shares of classes": _prior_words(model.prior)} if p.task == "classify" else {}),
    }
    tables = (*_site_heterogeneity(model), *missing_tables(model.missing_))
    sent = SENT["ridge" if model.privacy is None else "released sums"]
    return ModelParts(
        "Kernel ridge regression over sites",
        lead,
        facts,
        (sent,),
        settings,
        _ridge_sections(model),
        _ridge_claims(model),
        tables,
        ("FedNewton",),
    )


def _prior_words(prior: Prior) -> str:
    """The shares of classes that a model answers for."""
    if isinstance(prior, str):
        return {"training": "as in training", "uniform": "all the same"}[prior]
    return "as its weights make them" if prior is None else ", ".join(f"{k} {v:.3g}" for k, v in prior.items())


def _lasted(rounds: int, stopped: str) -> tuple[str, str]:
    """How long training took and why it ended: for a sentence, and beside the number of rounds."""
    if rounds == 0 and stopped in ("rounds", "tolerance", "converged"):
        return "in one exchange", "the first exchange was enough"
    why, note = _ENDED.get(stopped, (f"for this reason: {stopped}", stopped))
    return f"{rounds} round{'s' * (rounds != 1)} after the first exchange; training ended {why}", note


def _ridge_sections(model: RidgeModel) -> tuple[Section, ...]:
    history = model.history_
    figures: list[Curves] = []
    for values, what in (
        ([entry.objective for entry in history], "Objective: mean squared loss and penalty over all sites"),
        ([entry.gradient_norm for entry in history], "Norm of the gradient"),
    ):
        points = [(entry.round, value) for entry, value in zip(history, values, strict=True) if value is not None]
        if len(points) > 1:
            figures.append(history_curve(points, what))
    if len(history) > 1:
        figures.append(
            bytes_curve(
                [entry.round for entry in history],
                [entry.bytes_up for entry in history],
                [entry.bytes_down for entry in history],
            )
        )
    figures += _choice_curves(model)
    if model.path_ and not model.choices_.errors:
        tried = [(candidate, loss) for candidate, loss in sorted(model.path_.items()) if candidate > 0]
        words = f"Leave-one-out error of {len(tried)} candidates; chosen was {model.regularization_:g}."
        figures.append(
            Curves(
                "Choice of the regularisation",
                words,
                (_series("error", tried),),
                "regularisation",
                "leave-one-out squared error",
                log_x=True,
            )
        )
    tables = _width_tables(model)
    return (Section("Training", figures=tuple(figures), tables=tables),) if figures or tables else ()


def _choice_curves(model: RidgeModel) -> tuple[Curves, ...]:
    """What decided between the candidates of the regularisation, where the labels of left-out rows did."""
    errors = [(candidate, pair) for candidate, pair in sorted(model.choices_.errors.items()) if candidate > 0]
    if not errors:
        return ()
    words = (
        f"Of rows predicted without themselves, for {len(errors)} candidates, the mean negative log-likelihood, which "
        f"decides; chosen was {model.regularization_:g}."
    )
    losses = _series("negative log-likelihood", [(candidate, loss) for candidate, (loss, _) in errors])
    return (Curves("Choice of the regularisation", words, (losses,), "regularisation", "loss per row", log_x=True),)


def _width_tables(model: RidgeModel) -> tuple[PageTable, ...]:
    """Bandwidths that were tried, best first."""
    widths = sorted(model.choices_.widths.items(), key=lambda item: item[1])
    rows = tuple(
        ("one unit" if scale == "entries" else "their spreads", f"{width:g}", written(loss))
        for (scale, width), loss in widths
    )
    head = ("columns divided by", "bandwidth, in median distances", "loss that decides")
    return (PageTable(head, rows, "Bandwidths that were tried", folded=len(rows) > _FEW_WIDTHS),) if rows else ()


def _ridge_claims(model: RidgeModel) -> tuple[Claim, ...]:
    measured = model.heterogeneity_
    claims = []
    if measured.upsilon is not None:
        method = "the loss is squared and every round uses the global gradient"
        bound = Bound(measured.upsilon, 1.0, (method,), "proven", "FedNewton Theorem 1, with C = C_D and C_j = C_Dj")
        checks = {
            method: model.method == "newton",
            "the factor is below 1, without which nothing follows": measured.upsilon < 1,
        }
        claims.append(bound_claim("FedNewton on these sites", "A round multiplies the error by", bound, checks))
    if measured.largest_eigenvalue is not None:
        seen = measured.largest_eigenvalue
        statement = (
            f"The largest eigenvalue of the preconditioned system is at least {seen:.3g}; FedNewton converges "
            "if and only if it is below 2. Conjugate gradients converge in any case."
        )
        given = (Assumption("the eigenvalue is below 2", False if seen > 2 else None),)
        claims.append(Claim("Would FedNewton converge?", statement, "measured from below", False, assumptions=given))
    return tuple(claims)


def _site_heterogeneity(model: RidgeModel) -> tuple[PageTable, ...]:
    sites = model.heterogeneity_.sites
    if not sites:
        return ()
    rows = tuple(
        (name, written(s.share, SHARE), written(s.data), written(s.model), written(s.effective_dimension))
        for name, s in sorted(sites.items())
    )
    head = ("site", "share", "difference of data", "difference of models", "effective dimension")
    return (site_table(head, rows, "How much the sites differ"),)


def history_curve(points: Sequence[tuple[float, float]], what: str) -> Curves:
    """A curve of (round, value), logarithmic where it spans more than a decade; ``what`` is its title."""
    finite = [(x, y) for x, y in points if np.isfinite(y)]
    first, last = finite[0], finite[-1]
    words = f"{what}: {first[1]:.4g} at round {first[0]:g}, {last[1]:.4g} at round {last[0]:g}."
    values = [y for _, y in finite]
    decades = min(values) > 0 and max(values) > 10 * min(values)
    return Curves(what, words, (_series(what, finite),), "round", "", log_y=decades)


def bytes_curve(rounds: Sequence[int], up: Sequence[float], down: Sequence[float], *, total: bool = False) -> Curves:
    """Bytes added up over rounds; ``total`` where they are added up already."""
    sums = [np.asarray(values, dtype=float) if total else np.cumsum(values, dtype=float) for values in (up, down)]
    series = tuple(
        _series(name, list(zip(rounds, (values / 1e6).tolist(), strict=True)))
        for name, values in zip(("from the sites", "to the sites"), sums, strict=True)
    )
    ends = [written(float(values[-1]), BYTES) for values in sums]
    words = f"{ends[0]} from all sites and {ends[1]} to them in the end."
    return Curves("Bytes over the rounds", words, series, "round", "MB, added up")


def _series(name: str, points: Sequence[tuple[float, float]]) -> Series:
    return Series(name, tuple(float(x) for x, _ in points), tuple(float(y) for _, y in points))

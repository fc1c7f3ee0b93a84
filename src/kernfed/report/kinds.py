"""What is particular to each kind of model: its sentence, its facts, its figures, its claims."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernfed.guarantees import Bound
from kernfed.report.assurance import bound_claim
from kernfed.report.content import (
    BYTES,
    SHARE,
    Assumption,
    Bars,
    Claim,
    Curves,
    Fact,
    HeatMap,
    Section,
    Series,
    Table,
    written,
)


@dataclass(frozen=True)
class Parts:
    """What a kind of model adds to a report.

    privacy : words on what its sites send and its file holds. papers : those whose theorems speak of it.
    """

    title: str
    lead: str
    facts: tuple[Fact, ...] = ()
    privacy: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()
    claims: tuple[Claim, ...] = ()
    tables: tuple[Table, ...] = ()
    papers: tuple[str, ...] = ()


#: What the sites send and what the file holds, in words.
_SENT = {
    "sites": "Rows stay at their sites, and so do the machines made from them. This file holds a handle, names and "
    "numbers of rows. What leaves a site are its scores of queries; who may ask many learns something of the rows, and "
    "a site's own policy decides who may ask, and how often.",
    "machines": "The file of this model contains the rows it was trained on, in another form. Whoever has the file has "
    "the rows: keep it as you keep them.",
    "released": "The machines are made of rows to which noise was added. What is computed from these rows, this file "
    "included, keeps the promise below.",
    "ridge": "The file holds weights of features, no rows. In training the sites sent sums over their rows (gradients, "
    "products or second moments).",
    "released sums": "The file holds weights of features, no rows. The sites released noisy sums over their rows once, "
    "and what is computed from these keeps the promise below.",
    "averaging": "The file holds weights, no rows. In training the sites sent weights fitted to their rows.",
    "personal": "In training the sites sent means and second moments of their features. The file holds no rows.",
}

#: Where the machines of a model are.
_PLACES = {"sites": "at their sites", "machines": "in this file"}
#: Why training ended: in a sentence, and beside the number of rounds.
_ENDED = {
    "rounds": ("as all rounds asked for were done", "all that were asked for"),
    "tolerance": ("as the gradient was small enough", "until the gradient was small"),
    "converged": ("as nothing was left to improve", "until nothing was left to improve"),
    "diverged": ("as it diverged", "then it diverged"),
    "sites lost": ("as too many sites were lost", "then too many sites were lost"),
}


def _folding(model: Any) -> Parts:
    members = model.members_
    rows = sum(member.rows for member in members.values())
    lead = (
        f"{len(members)} sites classify together into {len(model.classes_)} classes, in one round and without "
        "gradients: a query gets the class whose machines, at any site, come nearest."
    )
    facts = (
        Fact("Sites", f"{len(members):,}", _missing_note(model.missing_)),
        Fact("Rows", f"{rows:,}", f"in {sum(member.machines for member in members.values()):,} machines"),
        Fact("Classes", f"{len(model.classes_):,}", f"{model.n_features_in_:,} columns"),
    )
    table = Table(
        ("site", "rows", "classes", "machines"),
        tuple(
            (site, f"{members[site].rows:,}", f"{len(members[site].classes):,}", f"{members[site].machines:,}")
            for site in model.sites
        ),
        "Sites",
    )
    settings = {**_folding_settings(model.parameters), "machines are": _PLACES[model.hold]}
    sent = _SENT[model.hold if model.privacy is None else "released"]
    return Parts(
        "A classifier of several sites",
        lead,
        facts,
        (sent,),
        settings,
        claims=_wrong_site(model),
        tables=(table, *_missing_tables(model.missing_)),
        papers=("SFM", "DP-KAHM", "GIKM"),
    )


def _folding_settings(parameters: Any) -> dict[str, Any]:
    """What was in force: k counts only where the k-th score does, and a dimension that was not given is chosen."""
    values = dict(parameters.to_values())
    if parameters.aggregate != "kth":
        del values["k"]
    if parameters.subspace_dim is None:
        values["subspace_dim"] = "chosen for each machine"
    return values


def _wrong_site(model: Any) -> tuple[Claim, ...]:
    """Whether a site that lies can decide a class alone."""
    open_classes = [str(label) for label in model.unprotected_.tolist()]
    total, p = len(model.classes_), model.parameters
    kth = p.aggregate == "kth" and p.k > 1
    statement = "A single wrong site can decide every class it claims to hold: the smallest score wins."
    if kth:
        statement = f"{total - len(open_classes)} of {total} classes cannot be decided by one wrong site alone."
    held = bool((model.holds.sum(axis=0) >= max(2, p.k)).all())
    checks = {
        "the k-th smallest score counts, with k of at least 2": kth,
        "every class is held by at least k sites": held,
    }
    given = tuple(Assumption(text, holds) for text, holds in checks.items())
    safe = kth and not open_classes
    status = "holds by construction" if safe else "not protected" if not kth else "protected in part"
    return (Claim("Against a site that lies", statement, status, safe, assumptions=given),)


def _ridge(model: Any) -> Parts:
    p = model.parameters
    what = "predict a value" if p.task == "regress" else f"classify into {len(model.classes_)} classes"
    rounds = max(0, len(model.history_) - 1)
    lasted, note = _lasted(rounds, model.stopped_)
    lead = f"Sites {what} together by kernel ridge regression ({model.method}): {lasted}."
    up = sum(entry.bytes_up for entry in model.history_)
    facts = (
        Fact("Rounds", f"{rounds:,}", note),
        Fact("Features", f"{p.n_features:,}", f"{model.n_features_in_:,} columns"),
        *((Fact("Sent by the sites", written(up, BYTES), "in training"),) if model.history_ else ()),
    )
    settings = {
        "method": model.method,
        "regularization": model.regularization_,
        "features": p.features,
        "number of features": p.n_features,
        "task": p.task,
        "seed": p.seed,
    }
    tables = (*_site_heterogeneity(model), *_missing_tables(model.missing_))
    sent = _SENT["ridge" if getattr(model, "privacy", None) is None else "released sums"]
    return Parts(
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


def _lasted(rounds: int, stopped: str) -> tuple[str, str]:
    """How long training took and why it ended: for a sentence, and beside the number of rounds."""
    if rounds == 0 and stopped in ("rounds", "tolerance", "converged"):
        return "in one exchange", "the first exchange was enough"
    why, note = _ENDED.get(stopped, (f"for this reason: {stopped}", stopped))
    return f"{rounds} round{'s' * (rounds != 1)} after the first exchange; training ended {why}", note


def _ridge_sections(model: Any) -> tuple[Section, ...]:
    history = model.history_
    figures: list[Any] = []
    for name, words in (
        ("objective", "Objective: mean squared loss and penalty over all sites"),
        ("gradient_norm", "Norm of the gradient"),
    ):
        points = [(entry.round, getattr(entry, name)) for entry in history if getattr(entry, name) is not None]
        if len(points) > 1:
            figures.append(_history_curve(points, words))
    if len(history) > 1:
        figures.append(
            _bytes_curve(
                [entry.round for entry in history],
                [entry.bytes_up for entry in history],
                [entry.bytes_down for entry in history],
            )
        )
    if model.path_:
        points = [(candidate, loss) for candidate, loss in sorted(model.path_.items()) if candidate > 0]
        words = f"Leave-one-out error of {len(points)} candidates; chosen was {model.regularization_:g}."
        figures.append(
            Curves(
                "Choice of the regularisation",
                words,
                (_series("error", points),),
                "regularisation",
                "leave-one-out squared error",
                log_x=True,
            )
        )
    return (Section("Training", figures=tuple(figures)),) if figures else ()


def _ridge_claims(model: Any) -> tuple[Claim, ...]:
    found = model.heterogeneity_
    claims = []
    if found.upsilon is not None:
        method = "the loss is squared and every round uses the global gradient"
        bound = Bound(found.upsilon, 1.0, (method,), "proven", "FedNewton Theorem 1, with C = C_D and C_j = C_Dj")
        checks = {
            method: model.method == "newton",
            "the factor is below 1, without which nothing follows": found.upsilon < 1,
        }
        claims.append(bound_claim("FedNewton on these sites", "A round multiplies the error by", bound, checks))
    if found.largest_eigenvalue is not None:
        seen = found.largest_eigenvalue
        statement = (
            f"The largest eigenvalue of the preconditioned system is at least {seen:.3g}; FedNewton converges "
            "if and only if it is below 2. Conjugate gradients converge in any case."
        )
        given = (Assumption("the eigenvalue is below 2", False if seen > 2 else None),)
        claims.append(Claim("Would FedNewton converge?", statement, "measured from below", False, assumptions=given))
    return tuple(claims)


def _site_heterogeneity(model: Any) -> tuple[Table, ...]:
    sites = model.heterogeneity_.sites
    if not sites:
        return ()
    rows = tuple(
        (name, written(s.share, SHARE), written(s.data), written(s.model), written(s.effective_dimension))
        for name, s in sorted(sites.items())
    )
    head = ("site", "share", "difference of data", "difference of models", "effective dimension")
    return (Table(head, rows, "How much the sites differ"),)


def _averaging(model: Any) -> Parts:
    history = model.history
    lead = (
        f"Federated averaging of a {model.parameters.model} model into {len(model.classes_)} classes, "
        f"{len(history)} rounds."
    )
    figures: list[Any] = []
    if len(history) > 1:
        figures.append(_history_curve([(entry.number, entry.loss) for entry in history], "Mean loss in training"))
        figures.append(
            _bytes_curve(
                [entry.number for entry in history],
                [entry.bytes_up for entry in history],
                [entry.bytes_down for entry in history],
                total=True,
            )
        )
    facts = (
        Fact("Rounds", f"{len(history):,}"),
        Fact("Classes", f"{len(model.classes_):,}", f"{model.n_features_in_:,} columns"),
    )
    sections = (Section("Training", figures=tuple(figures)),) if figures else ()
    settings = dict(model.parameters.to_values())
    if model.parameters.model == "linear":
        del settings["hidden"]
    return Parts(
        "Federated averaging",
        lead,
        facts,
        (_SENT["averaging"],),
        settings,
        sections,
        tables=_missing_tables(model.missing_),
    )


def _classifier(model: Any) -> Parts:
    lead = f"A classifier of one table into {len(model.classes_)} classes; nothing was federated."
    facts = (Fact("Classes", f"{len(model.classes_):,}", f"{model.n_features_in_:,} columns"),)
    return Parts("A classifier of one site", lead, facts, (_SENT["machines"],), model.get_params())


def _personal(model: Any) -> Parts:
    groups = model.groups_
    order = sorted(range(len(model.sites)), key=lambda place: (groups[model.sites[place]], model.sites[place]))
    sites = tuple(model.sites[place] for place in order)
    weights = np.clip(np.asarray(model.weights_, dtype=float), 0, None)[np.ix_(order, order)]
    own, count = float(np.diag(weights).mean()), len(set(groups.values()))
    words = (
        f"Each row is a site and how much it learns from every site; from itself {own:.0%} on average. Sites of a "
        "group stand together."
    )
    drawn = HeatMap(
        "Collaboration weights",
        words,
        sites,
        sites,
        tuple(map(tuple, weights.tolist())),
        "site",
        "learns from",
        SHARE,
        1.0,
    )
    facts = (
        Fact("Sites", f"{len(sites):,}", _missing_note(model.missing_)),
        Fact("Groups", f"{count:,}", "found"),
        Fact("Learned from itself", written(own, SHARE), "mean over sites"),
    )
    settings = {
        "weights by": model.rule,
        "model": model.kind,
        "task": model.problem.task,
        "features": model.problem.features,
        "columns": model.problem.width,
    }
    table = Table(("site", "group"), tuple((site, f"{groups[site] + 1}") for site in sites), "Groups", folded=True)
    return Parts(
        "A model for every site",
        f"{len(sites)} sites, each with a model of its own that borrows from sites like it.",
        facts,
        (_SENT["personal"],),
        settings,
        (Section("Who learns from whom", figures=(drawn, *_gains(model))),),
        tables=(table, *_missing_tables(model.missing_)),
        papers=("KME",),
    )


def _gains(model: Any) -> tuple[Bars, ...]:
    """What the others were worth to each site on its own rows."""
    if not model.gains_:
        return ()
    ordered = sorted(model.gains_, key=lambda site: (-model.gains_[site].gain, site))
    together, alone = (
        tuple(float(getattr(model.gains_[site], name)) for site in ordered) for name in ("together", "alone")
    )
    classify = model.problem.task == "classify"
    better = sum(model.gains_[site].gain > 0 for site in ordered)
    measured = "Share of wrong labels" if classify else "Mean squared error"
    words = (
        f"{measured} on a site's own rows that were left out; {better} of {len(ordered)} sites do better "
        "together. Largest gain first."
    )
    return (
        Bars(
            "Error with the others and alone",
            words,
            tuple(ordered),
            together,
            SHARE if classify else "",
            "together",
            {"alone": alone},
        ),
    )


#: By the name of the model's class.
DESCRIPTIONS: Mapping[str, Callable[[Any], Parts]] = {
    "FoldingModel": _folding,
    "RidgeModel": _ridge,
    "PrivateRidgeModel": _ridge,
    "PersonalModel": _personal,
    "AveragingModel": _averaging,
    "KAHMClassifier": _classifier,
}


def _history_curve(points: Sequence[tuple[float, float]], what: str) -> Curves:
    finite = [(x, y) for x, y in points if np.isfinite(y)]
    first, last = finite[0], finite[-1]
    words = f"{what}: {first[1]:.4g} at round {first[0]:g}, {last[1]:.4g} at round {last[0]:g}."
    values = [y for _, y in finite]
    decades = min(values) > 0 and max(values) > 10 * min(values)
    return Curves(what, words, (_series(what, finite),), "round", "", log_y=decades)


def _bytes_curve(rounds: Sequence[int], up: Sequence[float], down: Sequence[float], *, total: bool = False) -> Curves:
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


def _missing_note(missing: Mapping[str, str]) -> str:
    return f"{len(missing)} took no part" if missing else "all took part"


def _missing_tables(missing: Mapping[str, str]) -> tuple[Table, ...]:
    rows = tuple((str(site), str(reason)) for site, reason in missing.items())
    return (Table(("site", "why it took no part"), rows, "Missing sites"),) if rows else ()

"""What is particular to each kind of model: its sentence, its facts, its figures, its claims."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernfed.report.content import (
    SHARE,
    Assumption,
    Bars,
    Claim,
    Fact,
    HeatMap,
    PageTable,
    Section,
    site_table,
    written,
)
from kernfed.report.parts import SENT, Parts, missing_note, missing_tables
from kernfed.report.rounds import describe_averaging, describe_ridge

#: Where the machines of a model are.
_PLACES = {"sites": "at their sites", "machines": "in this file"}


def _folding(model: Any) -> Parts:
    members = model.members_
    rows = sum(member.rows for member in members.values())
    lead = (
        f"{len(members)} sites classify together into {len(model.classes_)} classes, in one round and without "
        "gradients: a query gets the class whose machines, at any site, come nearest."
    )
    facts = (
        Fact("Sites", f"{len(members):,}", missing_note(model.missing_)),
        Fact("Rows", f"{rows:,}", f"in {sum(member.machines for member in members.values()):,} machines"),
        Fact("Classes", f"{len(model.classes_):,}", f"{model.n_features_in_:,} columns"),
    )
    table = site_table(
        ("site", "rows", "classes", "machines"),
        tuple(
            (site, f"{members[site].rows:,}", f"{len(members[site].classes):,}", f"{members[site].machines:,}")
            for site in model.sites
        ),
        "Sites",
    )
    settings = {**_folding_settings(model.parameters), "machines are": _PLACES[model.hold]}
    if model.chosen is not None:
        settings["chosen"] = str(model.chosen)
    sent = SENT[model.hold if model.privacy is None else "released"]
    return Parts(
        "A classifier of several sites",
        lead,
        facts,
        (sent,),
        settings,
        claims=_wrong_site(model),
        tables=(table, *missing_tables(model.missing_)),
        papers=("SFM", "DP-KAHM", "GIKM"),
    )


def _folding_settings(parameters: Any) -> dict[str, Any]:
    """What was in force: k counts only where the k-th score does, and a dimension that was not given is chosen."""
    values = dict(parameters.to_values())
    if parameters.aggregate != "kth":
        del values["k"]
    if parameters.subspace_dim is None:
        values["subspace_dim"] = "chosen for each machine"
    if parameters.scale is not None:
        values["scale"] = f"{parameters.scale.kind}, to a root mean square of {parameters.scale.unit:g}"
    return values


def _wrong_site(model: Any) -> tuple[Claim, ...]:
    """Whether a site that lies can decide a class alone."""
    open_classes, out = model.unprotected_.tolist(), model.left_out_.tolist()
    total, p = len({*model.classes_.tolist(), *open_classes}), model.parameters
    kth = p.aggregate == "kth" and p.k > 1
    statement = "A single wrong site can decide every class it claims to hold: the smallest score wins."
    if kth:
        statement = f"{total - len(open_classes)} of {total} classes cannot be decided by {_wrong(p.k - 1)}."
        statement += f" {len(out)} that can be take no part: they are never predicted." if out else ""
        trusted = len(open_classes) - len(out)
        statement += f" {trusted} take part all the same, as trusted classes." if trusted else ""
    checks = {
        "the k-th smallest score counts, with k of at least 2": kth,
        "every class that takes part is held by at least k + 1 sites": kth and len(open_classes) == len(out),
    }
    given = tuple(Assumption(text, holds) for text, holds in checks.items())
    safe = all(checks.values())
    status = "holds by construction" if safe else "not protected" if not kth else "protected in part"
    return (Claim("Against a site that lies", statement, status, safe, assumptions=given),)


def _wrong(sites: int) -> str:
    return "one wrong site alone" if sites == 1 else f"{sites} wrong sites"


def _classifier(model: Any) -> Parts:
    lead = f"A classifier of one table into {len(model.classes_)} classes; nothing was federated."
    facts = (Fact("Classes", f"{len(model.classes_):,}", f"{model.n_features_in_:,} columns"),)
    return Parts("A classifier of one site", lead, facts, (SENT["machines"],), model.get_params())


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
        Fact("Sites", f"{len(sites):,}", missing_note(model.missing_)),
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
    table = PageTable(("site", "group"), tuple((site, f"{groups[site] + 1}") for site in sites), "Groups", folded=True)
    return Parts(
        "A model for every site",
        f"{len(sites)} sites, each with a model of its own that borrows from sites like it.",
        facts,
        (SENT["personal" if model.privacy is None else "released embeddings"],),
        settings,
        (Section("Who learns from whom", figures=(drawn, *_gains(model))),),
        tables=(table, *missing_tables(model.missing_)),
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
    "RidgeModel": describe_ridge,
    "PersonalModel": _personal,
    "AveragingModel": describe_averaging,
    "KAHMClassifier": _classifier,
}

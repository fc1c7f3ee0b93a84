"""What is particular to each kind of model: its sentence, its facts, its figures, its claims."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernfed.report.content import SHARE, Bars, Fact, HeatMap, PageTable, Section, written
from kernfed.report.fused import describe_fusion
from kernfed.report.machines import describe_folding
from kernfed.report.parts import SENT, Parts, missing_note, missing_tables
from kernfed.report.rounds import describe_averaging, describe_ridge


def _classifier(model: Any) -> Parts:
    lead = f"A classifier of one table into {len(model.classes_)} classes; nothing was federated."
    facts = (Fact("Classes", f"{len(model.classes_):,}", f"{model.n_features_in_:,} columns"),)
    return Parts("A classifier of one site", lead, facts, (SENT["machines"],), model.get_params())


def describe_other(model: Any) -> Parts:
    """A model of another package, by what models have in common: classes, columns, sites and parameters."""
    classes = len(getattr(model, "classes_", ()))
    what = f"classifies into {classes} classes" if classes else "predicts values"
    columns = int(getattr(model, "n_features_in_", 0))
    missing = getattr(model, "missing_", {})
    facts = (
        *((Fact("Classes", f"{classes:,}"),) if classes else ()),
        *((Fact("Columns", f"{columns:,}", missing_note(missing) if missing else ""),) if columns else ()),
    )
    given = model.get_params() if hasattr(model, "get_params") else {}
    words = "What its sites sent, and what its file holds, the package says that it comes from."
    name = type(model).__name__
    return Parts(name, f"A {name} {what}.", facts, (words,), given, tables=missing_tables(missing))


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
    "FoldingModel": describe_folding,
    "FusionModel": describe_fusion,
    "RidgeModel": describe_ridge,
    "PersonalModel": _personal,
    "AveragingModel": describe_averaging,
    "KAHMClassifier": _classifier,
    "FusionClassifier": _classifier,
}

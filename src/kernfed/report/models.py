"""Reports of models: the page, the model card, and what is particular to the kinds of model without rounds."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from kernfed.errors import InputError
from kernfed.privacy.audit import stated_epsilon
from kernfed.promise import Terms, delta_words
from kernfed.report.assurance import (
    bounds_section,
    coverage_section,
    influence_fact,
    influence_section,
    privacy_section,
)
from kernfed.report.content import (
    BYTES,
    SENT,
    SHARE,
    Bars,
    Fact,
    HeatMap,
    PageTable,
    Parts,
    ReportData,
    Section,
    figure_table,
    missing_note,
    missing_tables,
    written,
)
from kernfed.report.evidence import Evidence, model_labels
from kernfed.report.machines import PART_WORDS, describe_folding, describe_fusion
from kernfed.report.officer import protection
from kernfed.report.pages import render_markdown
from kernfed.report.rounds import describe_averaging, describe_ridge
from kernfed.report.sections import accuracy_section, holders_map, labels_map, traffic_section, winners_map


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


def is_model(value: Any) -> bool:
    """Whether there is a report of such a model: one of this package, or of another that predicts."""
    return type(value).__name__ in DESCRIPTIONS or callable(getattr(value, "predict", None))


def model_report(model: Any, evidence: Evidence | None = None, *, title: str = "") -> ReportData:
    """The report of a model of this or another package, with the ``evidence`` there is."""
    if not is_model(model):
        raise InputError(
            f"model must be one of {', '.join(DESCRIPTIONS)}, or have a method predict, got {type(model).__name__}"
        )
    known = evidence or Evidence()
    parts = DESCRIPTIONS.get(type(model).__name__, describe_other)(model)
    sections = (
        accuracy_section(known),
        influence_section(known),
        _who_section(model, known),
        *parts.sections,
        traffic_section(known.traffic),
        privacy_section(_terms(model), parts.privacy),
        bounds_section(known, parts.claims, parts.papers),
        coverage_section(model),
        _making_section(parts),
    )
    facts = (*_result_facts(known), *influence_fact(known), *parts.facts, *_traffic_facts(known), _privacy_fact(model))
    return ReportData("model", title or parts.title, parts.lead, facts, tuple(filter(None, sections)))


def _who_section(model: Any, known: Evidence) -> Section | None:
    """Who was trained on which class, and who decides where sites do."""
    figures: list[Any] = []
    machines = getattr(model, "folding", None) or model
    trained = known.labels or model_labels(model)
    if trained:
        figures.append(labels_map("Who has which class", trained, known.labels_of))
    elif hasattr(machines, "holds"):
        classes = [str(label) for label in machines.classes_.tolist()]
        figures.append(holders_map(machines.sites, classes, machines.holds))
    if known.parts:
        figures.append(_parts_bars(known.parts))
    if any(known.winners.values()):
        figures.append(winners_map(known.winners))
    decides = known.parts or any(known.winners.values())
    title = "Who has what, and who decides" if decides else "Who has what"
    return Section(title, figures=tuple(figures)) if figures else None


def _parts_bars(parts: Mapping[str, int]) -> Bars:
    """Which part of a fusion the labels come from."""
    total = sum(parts.values())
    ordered = sorted(parts, key=lambda part: (-parts[part], part))
    words = f"Of {total:,} labels, per cent that each part decided: {PART_WORDS[ordered[0]]} in most cases."
    names = tuple(PART_WORDS[part] for part in ordered)
    return Bars("Which part decides", words, names, tuple(parts[part] / total for part in ordered), value_name="labels")


def _making_section(parts: Parts) -> Section:
    rows = tuple((name.replace("_", " "), _told(value)) for name, value in parts.settings.items())
    return Section("How it was made", tables=(PageTable(("setting", "value"), rows, "Settings"), *parts.tables))


def _told(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_told, value[:20])) + (f" and {len(value) - 20} more" if len(value) > 20 else "")
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not set"}[value]
    return written(value) if isinstance(value, (int, float)) else str(value)


def _result_facts(known: Evidence) -> tuple[Fact, ...]:
    """Accuracy over all rows, and of the sites alone."""
    facts = []
    evaluation = known.evaluation
    if evaluation is not None and evaluation.pooled.rows:
        facts.append(
            Fact("Accuracy", written(evaluation.accuracy, SHARE), f"on {evaluation.pooled.rows:,} unseen rows")
        )
    if known.alone:
        mean = sum(known.alone.values()) / len(known.alone)
        facts.append(Fact("Each site alone", written(mean, SHARE), f"mean, on {known.alone_on}"))
    if known.regression is not None:
        facts.append(Fact("R²", written(known.regression.r2), f"on {known.regression.pooled.rows:,} unseen rows"))
    return tuple(facts)


def _traffic_facts(known: Evidence) -> tuple[Fact, ...]:
    if not known.traffic:
        return ()
    up = sum(entry["bytes_up"] for entry in known.traffic)
    return (Fact("Left the sites", written(up, BYTES), "questions, answers and tests"),)


def _privacy_fact(model: Any) -> Fact:
    terms = _terms(model)
    if terms is None:
        return Fact("Privacy", "none", "no noise was added")
    weak = protection(terms.record)
    note = f"at δ {delta_words(terms.record.delta)}" + (f": {weak}" if weak else "")
    return Fact("Privacy of one person", f"ε {stated_epsilon(terms.record)}", note)


def _terms(model: Any) -> Terms | None:
    """What the model promises; an estimator of one table promises nothing."""
    terms: Terms | None = getattr(model, "privacy", None)
    return terms


def model_card(model: Any, evidence: Evidence | None = None, *, title: str = "") -> str:
    """The card of a model, with the ``evidence`` there is; figures are told as tables."""
    page = model_report(model, evidence, title=title)
    facts = PageTable(("", "value", "note"), tuple((fact.name, fact.value, fact.note) for fact in page.facts))
    known = evidence or Evidence()
    sections = (
        Section("What it is", (str(model).partition("\n")[0],), tables=(facts,)),
        Section("Data", tuple(_data_words(model)), tables=_site_tables(model)),
        *(_in_words(section) for section in page.sections),
        Section("Limits", points=tuple(_limits(model, known))),
    )
    return render_markdown(replace(page, sections=sections))


def _in_words(section: Section) -> Section:
    """A section without figures: what is to be seen in them, and their numbers."""
    words = (*section.words, *(f"{figure.title}: {figure.words}" for figure in section.figures))
    return replace(section, figures=(), words=words, tables=(*section.tables, *map(figure_table, section.figures)))


def _data_words(model: Any) -> Iterator[str]:
    columns = tuple(getattr(model, "feature_names_in_", ()))
    preparation = getattr(model, "preparation", None)
    if preparation is not None:
        yield f"Raw columns, prepared by the model itself: {_listed(preparation.used)}."
    named = f": {_listed(columns)}" if columns else ", which have no names"
    yield f"{model.n_features_in_} columns of numbers{named}."
    classes = [str(label) for label in getattr(model, "classes_", ())]
    yield f"Classes: {_listed(classes)}." if classes else "It predicts values, not classes."
    missing = dict(getattr(model, "missing_", {}))
    if missing:
        yield f"Not in it: {'; '.join(f'{site}, because {reason}' for site, reason in list(missing.items())[:20])}."


def _site_tables(model: Any) -> tuple[PageTable, ...]:
    """Rows and classes of every site, where the model knows them."""
    members = getattr(model, "members_", {})
    rows = tuple((site, f"{one.rows:,}", f"{len(one.classes)}") for site, one in sorted(members.items()))
    return (PageTable(("site", "rows", "classes"), rows),) if rows else ()


def _limits(model: Any, known: Evidence) -> Iterator[str]:
    """What must be known before the model is used, by what it is and by what was not tested."""
    if known.evaluation is None and known.regression is None:
        yield "It was not tested for this card: give rows that it has not seen, with --data and --label."
    if len(getattr(model, "classes_", ())):
        yield "It answers with one of its classes whatever it is asked; rows unlike all that it has seen get one too."
    hold = getattr(model, "hold", "")
    if hold == "sites":
        yield "It answers only where its sites are asked; they see the queries."
    terms = getattr(model, "privacy", None)
    if hold == "machines" and terms is None and getattr(model, "members_", None):
        yield "The file holds machines, which contain rows of the sites: whoever has it has these rows."
    if terms is None:
        yield "No noise was added: what it says may tell of rows that it was trained on."
    exposed = model.exposure() if hasattr(model, "exposure") else None
    if exposed:
        yield exposed
    if getattr(model, "preparation", None) is None:
        yield "Rows must have the columns above in their order and in the units of the training."


def _listed(names: Any, most: int = 20) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more

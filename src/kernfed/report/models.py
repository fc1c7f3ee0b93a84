"""Reports of models: the page, the model card, and what is particular to a kind of model."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import singledispatch
from typing import Any

import numpy as np

from kernfed.base.model import Model, ModelSummary, as_model
from kernfed.federation.estimators import FusionClassifier, KAHMClassifier
from kernfed.personal.model import PersonalModel
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
    Figure,
    HasReport,
    HeatMap,
    ModelParts,
    PageTable,
    ReportData,
    Section,
    figure_table,
    listed,
    missing_note,
    missing_tables,
    written,
)
from kernfed.report.evidence import Evidence, model_labels
from kernfed.report.machines import PART_WORDS, describe_folding, describe_fusion
from kernfed.report.officer import protection
from kernfed.report.pages import render_markdown
from kernfed.report.rounds import describe_ridge
from kernfed.report.sections import accuracy_section, holders_map, labels_map, traffic_section, winners_map


@singledispatch
def model_parts(model: Model) -> ModelParts:
    """What is particular to a model: what it says by ``report_parts``, otherwise what ``describe`` tells of any."""
    if isinstance(model, HasReport):
        return model.report_parts()
    about = model.describe()
    classes, missing = len(about.classes), about.missing
    what = f"classifies into {classes} classes" if classes else "predicts values"
    facts = (
        *((Fact("Classes", f"{classes:,}"),) if classes else ()),
        *((Fact("Columns", f"{about.width:,}", missing_note(missing) if missing else ""),) if about.width else ()),
    )
    words = "What its sites sent, and what its file holds, the package says that it comes from."
    lead = f"A {about.kind} {what}."
    return ModelParts(about.kind, lead, facts, (words,), about.settings, tables=missing_tables(missing))


model_parts.register(describe_folding)
model_parts.register(describe_fusion)
model_parts.register(describe_ridge)


@model_parts.register(KAHMClassifier)
@model_parts.register(FusionClassifier)
def _of_one_table(model: KAHMClassifier | FusionClassifier) -> ModelParts:
    lead = f"A classifier of one table into {len(model.classes_)} classes; nothing was federated."
    facts = (Fact("Classes", f"{len(model.classes_):,}", f"{model.n_features_in_:,} columns"),)
    return ModelParts("A classifier of one site", lead, facts, (SENT["machines"],), model.get_params())


@model_parts.register
def _personal(model: PersonalModel) -> ModelParts:
    groups = model.groups_
    order = sorted(range(len(model.sites)), key=lambda place: (groups[model.sites[place]], model.sites[place]))
    sites = tuple(model.sites[place] for place in order)
    weights = np.clip(np.asarray(model.weights_, dtype=float), 0, None)[np.ix_(order, order)]
    kept, count = float(np.diag(weights).mean()), len(set(groups.values()))
    words = (
        f"Each row is a site and how much it learns from every site; from itself {kept:.0%} on average. Sites of a "
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
        Fact("Learned from itself", written(kept, SHARE), "mean over sites"),
    )
    settings = {
        "weights by": model.rule,
        "model": model.kind,
        "task": model.problem.task,
        "features": model.problem.features,
        "columns": model.problem.width,
    }
    table = PageTable(("site", "group"), tuple((site, f"{groups[site] + 1}") for site in sites), "Groups", folded=True)
    return ModelParts(
        "A model for every site",
        f"{len(sites)} sites, each with a model of its own that borrows from sites like it.",
        facts,
        (SENT["personal" if model.privacy is None else "released embeddings"],),
        settings,
        (Section("Who learns from whom", figures=(drawn, *_gains(model))),),
        tables=(table, *missing_tables(model.missing_)),
        papers=("KME",),
    )


def _gains(model: PersonalModel) -> tuple[Bars, ...]:
    """What the others were worth to each site, on rows of the site."""
    if not model.gains_:
        return ()
    ordered = sorted(model.gains_, key=lambda site: (-model.gains_[site].gain, site))
    together = tuple(float(model.gains_[site].together) for site in ordered)
    alone = tuple(float(model.gains_[site].alone) for site in ordered)
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


def model_report(model: Any, evidence: Evidence | None = None, *, title: str = "") -> ReportData:
    """The report of a model of this package, or of another that predicts, with the ``evidence`` there is."""
    return _report(as_model(model), evidence or Evidence(), title)


def _report(model: Model, known: Evidence, title: str) -> ReportData:
    parts = model_parts(model)
    sections = (
        accuracy_section(known),
        influence_section(known),
        _who_section(model, known),
        *parts.sections,
        traffic_section(known.traffic),
        privacy_section(model.privacy, parts.privacy),
        bounds_section(known, parts.claims, parts.papers),
        coverage_section(model),
        _making_section(parts),
    )
    facts = (
        *_result_facts(known),
        *influence_fact(known),
        *parts.facts,
        *_traffic_facts(known),
        _privacy_fact(model.privacy),
    )
    return ReportData("model", title or parts.title, parts.lead, facts, tuple(filter(None, sections)))


def _who_section(model: Model, known: Evidence) -> Section | None:
    """Who was trained on which class, and who decides where sites do."""
    figures: list[Figure] = []
    machines = model.folding
    trained = known.labels or model_labels(model)
    if trained:
        figures.append(labels_map("Who has which class", trained, known.labels_of))
    elif machines is not None:
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


def _making_section(parts: ModelParts) -> Section:
    rows = tuple((name.replace("_", " "), _setting_text(value)) for name, value in parts.settings.items())
    return Section("How it was made", tables=(PageTable(("setting", "value"), rows, "Settings"), *parts.tables))


def _setting_text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return listed([_setting_text(entry) for entry in value])
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


def _privacy_fact(terms: Terms | None) -> Fact:
    if terms is None:
        return Fact("Privacy", "none", "no noise was added")
    weak = protection(terms.record)
    note = f"at δ {delta_words(terms.record.delta)}" + (f": {weak}" if weak else "")
    return Fact("Privacy of one person", f"ε {stated_epsilon(terms.record)}", note)


def model_card(model: Any, evidence: Evidence | None = None, *, title: str = "") -> str:
    """The card of a model as Markdown: what it is, of which data, how private, how good, and what it is not for.

    Figures are given as tables.
    """
    asked, known = as_model(model), evidence or Evidence()
    page, about = _report(asked, known, title), asked.describe()
    facts = PageTable(("", "value", "note"), tuple((fact.name, fact.value, fact.note) for fact in page.facts))
    sections = (
        Section("What it is", (about.text.partition("\n")[0],), tables=(facts,)),
        Section("Data", tuple(_data_words(about)), tables=_site_tables(about)),
        *(_in_words(section) for section in page.sections),
        Section("Limits", points=tuple(_limits(about, known))),
    )
    return render_markdown(replace(page, sections=sections))


def _in_words(section: Section) -> Section:
    """A section without figures: what is to be seen in them, and their numbers."""
    words = (*section.words, *(f"{figure.title}: {figure.words}" for figure in section.figures))
    return replace(section, figures=(), words=words, tables=(*section.tables, *map(figure_table, section.figures)))


def _data_words(about: ModelSummary) -> Iterator[str]:
    if about.raw_columns:
        yield f"Raw columns, prepared by the model itself: {listed(about.raw_columns)}."
    named = f": {listed(about.columns)}" if about.columns else ", which have no names"
    yield f"{about.width} columns of numbers{named}."
    classes = [str(label) for label in about.classes]
    yield f"Classes: {listed(classes)}." if classes else "It predicts values, not classes."
    if about.missing:
        reasons = [f"{site}, because {reason}" for site, reason in about.missing.items()]
        yield f"Not in it: {'; '.join(reasons[:20])}."


def _site_tables(about: ModelSummary) -> tuple[PageTable, ...]:
    """Rows and classes of every site, where the model knows them."""
    known = sorted((site for site in about.sites if site.rows is not None), key=lambda site: site.name)
    rows = tuple((site.name, f"{site.rows:,}", f"{site.classes}") for site in known)
    return (PageTable(("site", "rows", "classes"), rows),) if rows else ()


def _limits(about: ModelSummary, known: Evidence) -> Iterator[str]:
    """What must be known before the model is used, by what it is and by what was not tested."""
    if known.evaluation is None and known.regression is None:
        yield "It was not tested for this card: give rows that it has not seen, with --data and --label."
    if about.classes:
        yield "It answers with one of its classes whatever it is asked; rows unlike all that it has seen get one too."
    if about.hold == "sites":
        yield "It answers only where its sites are asked; they see the queries."
    elif about.privacy is None and any(site.machines for site in about.sites):
        yield "The file holds machines, which contain rows of the sites: whoever has it has these rows."
    if about.privacy is None:
        yield "No noise was added: what it says may tell of rows that it was trained on."
    if about.exposure:
        yield about.exposure
    if not about.raw_columns:
        yield "Rows must have the columns above in their order and in the units of the training."

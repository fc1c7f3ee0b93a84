"""A model card: what a model is, of which data, under which privacy, how good, and what it is not for, as Markdown."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kernfed.report.content import PageTable, Section, figure_table
from kernfed.report.evidence import Evidence
from kernfed.report.markdown import render_markdown
from kernfed.report.models import model_report


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
    return render_markdown(page.title, page.lead, sections)


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

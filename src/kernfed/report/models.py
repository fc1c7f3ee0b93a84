"""Reports of models: of each kind what can be shown, and of the rest where it is."""

from collections.abc import Mapping
from typing import Any

from kernfed.errors import InputError
from kernfed.privacy.audit import stated_epsilon
from kernfed.promise import Terms, delta_words
from kernfed.report.assurance import bounds_section, privacy_section
from kernfed.report.content import BYTES, SHARE, Bars, Fact, PageTable, ReportData, Section, written
from kernfed.report.coverage import coverage_section
from kernfed.report.evidence import Evidence, model_labels
from kernfed.report.fused import PART_WORDS
from kernfed.report.influence import influence_fact, influence_section
from kernfed.report.kinds import DESCRIPTIONS, describe_other
from kernfed.report.maps import holders_map, labels_map, winners_map
from kernfed.report.officer import protection
from kernfed.report.parts import Parts
from kernfed.report.sections import accuracy_section, traffic_section


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

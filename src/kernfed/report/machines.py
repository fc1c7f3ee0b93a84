"""What is particular to machines, and to a fusion of machines and a head."""

from dataclasses import replace
from typing import Any

from kernfed.fusion.model import FusionModel
from kernfed.fusion.parts import FusionChoice
from kernfed.kahm.choice import Chosen
from kernfed.kahm.members import FoldingParameters
from kernfed.kahm.model import FoldingModel
from kernfed.report.content import (
    MISSING_COLUMNS,
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
    missing_note,
    missing_tables,
    site_table,
    written,
)
from kernfed.report.rounds import describe_ridge

#: Candidates up to which all are shown at once.
_FEW_TRIED = 6
#: Where the machines of a model are.
_PLACES = {"sites": "at their sites", "machines": "in this file"}


def describe_folding(model: FoldingModel) -> ModelParts:
    """A ``FoldingModel``: who is in it, how rows were scaled and divided, and what a lying site can do."""
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
    return ModelParts(
        "A classifier of several sites",
        lead,
        facts,
        (sent,),
        settings,
        claims=_wrong_site(model),
        tables=(*_tried_tables(model.chosen), table, *missing_tables(model.missing_)),
        papers=("SFM", "DP-KAHM", "GIKM"),
    )


def _folding_settings(parameters: FoldingParameters) -> dict[str, Any]:
    """What was in force: k counts only where the k-th score does, and a dimension that was not given is chosen."""
    values = dict(parameters.to_values())
    if parameters.aggregate != "kth":
        del values["k"]
    if parameters.subspace_dim is None:
        values["subspace_dim"] = "chosen for each machine"
    if parameters.scale is not None:
        values["scale"] = f"{parameters.scale.kind}, to a root mean square of {parameters.scale.unit:g}"
    return values


def _wrong_site(model: FoldingModel) -> tuple[Claim, ...]:
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


def _tried_tables(chosen: Chosen | None) -> tuple[PageTable, ...]:
    """Every scale and division that was tried, with the left-out rows it gets right, best first."""
    if chosen is None or not chosen.rows:
        return ()
    order = sorted(range(len(chosen.tried)), key=lambda place: (-chosen.right[place], place))
    rows = tuple(
        (
            "as they are" if one.scale is None else f"{one.scale} to {one.unit:g}",
            f"{one.batch_size:,}",
            one.partition,
            written(right / chosen.rows, SHARE),
            "yes" if one == chosen.candidate else "",
        )
        for one, right in ((chosen.tried[place], chosen.right[place]) for place in order)
    )
    head = ("scale", "rows in a machine", "divided by", "right", "chosen")
    counted = f" of {len(chosen.sites):,} sites" if chosen.sites else ""
    caption = f"What was tried, on {chosen.rows:,} left-out rows{counted}"
    return (PageTable(head, rows, caption, folded=len(rows) > _FEW_TRIED),)


#: Where the weight comes from, by ``FusionChoice.how``.
_HOW = {
    "default": "taken by default, as no site let rows travel to choose it by",
    "given": "given by whoever trained the model",
}

#: Which part a label comes from, by ``FusionExplanation.part``.
PART_WORDS = {
    "both": "both agree",
    "head": "the head",
    "machines": "the machines",
    "together": "neither alone",
}


def describe_fusion(model: FusionModel) -> ModelParts:
    """A ``FusionModel``: what each part adds, how they were weighed, and what of either is missing."""
    machines = None if model.folding is None else describe_folding(model.folding)
    head = None if model.ridge is None else describe_ridge(model.ridge)
    inner = [part for part in (machines, head) if part is not None]
    sections = (_weighing(model), *(section for part in inner for section in part.sections))
    return ModelParts(
        "Machines and a head together" if len(inner) == 2 else inner[0].title,
        _lead(model),
        (*_facts(model), *(() if machines is None else machines.facts[1:])),
        _sent(model),
        _settings(model, machines, head),
        sections,
        (*_machine_claims(model, machines), *(() if head is None else head.claims)),
        _tables(model, machines, head),
        tuple(paper for part in inner for paper in part.papers),
    )


def _machine_claims(model: FusionModel, machines: ModelParts | None) -> tuple[Claim, ...]:
    """What holds for machines, of their part only where there is a head, too."""
    claims = () if machines is None else machines.claims
    if model.ridge is None:
        return claims
    return tuple(
        replace(
            claim, title=f"{claim.title}: the machines' part", statement=f"Of the machines alone: {claim.statement}"
        )
        for claim in claims
    )


def _lead(model: FusionModel) -> str:
    classes = f"into {len(model.classes_)} classes" if len(model.classes_) else ""
    if model.folding is None:
        return f"A head of all sites' rows answers alone{', ' if classes else ''}{classes}."
    if model.ridge is None:
        return f"Machines of {len(model.sites)} sites classify {classes}, without a head: no site allowed sums for one."
    return (
        f"{len(model.sites)} sites classify together {classes}: machines that stay near their rows and a head of "
        "all rows say each how likely a class is, and one weight decides how much the machines count."
    )


def _facts(model: FusionModel) -> tuple[Fact, ...]:
    facts = []
    if model.folding is not None:
        facts.append(Fact("Sites", f"{len(model.sites):,}", missing_note(model.missing_)))
    if model.folding is not None and model.ridge is not None:
        how = {"rows": "chosen on left-out rows", "default": "by default", "given": "given"}[model.choice_.how]
        facts.append(Fact("Weight of the machines", f"{model.weight_:.3g}", how))
    if model.exchanges_:
        facts.append(Fact("Exchanges", f"{model.exchanges_:,}", "choices included"))
    return tuple(facts)


def _weighing(model: FusionModel) -> Section:
    """The parts, and the errors by the weights that were tried."""
    rows = []
    if model.folding is not None:
        count = sum(member.machines for member in model.members_.values())
        rows.append(("machines", f"{count:,} machines at {len(model.sites):,} sites"))
    if model.ridge is not None:
        known = len(model.ridge.classes_)
        of_classes = f", {known:,} classes" if known else ""
        rows.append(("head", f"{model.ridge.parameters.n_features:,} features{of_classes}, {model.ridge.method}"))
    words: list[str] = []
    figures: tuple[Curves, ...] = ()
    if model.folding is not None and model.ridge is not None:
        words.append(_weight_words(model.weight_, model.choice_))
        figures = _errors_by_weight(model.weight_, model.choice_)
    if model.visit_.when == "unsure":
        words.append(_visit_words(model))
    absent = tuple((site, str(reason)) for site, reason in sorted(model.headless_.items()))
    tables = [PageTable(("part", "what it is"), tuple(rows), "Parts")]
    if absent:
        words.append(f"{len(absent):,} site(s) are not in the head; their machines answer all the same.")
        tables.append(site_table(("site", "why it is not in the head"), absent, "Not in the head"))
    return Section("Two parts and their weight" if words else "Parts", tuple(words), figures, tables=tuple(tables))


def _weight_words(weight: float, choice: FusionChoice) -> str:
    chosen = f"chosen by {choice.rows:,} left-out rows of {len(choice.sites):,} sites"
    return (
        f"The machines count {weight:.3g} times their logits beside the head's. The weight was "
        f"{chosen if choice.how == 'rows' else _HOW[choice.how]}."
    )


def _errors_by_weight(weight: float, choice: FusionChoice) -> tuple[Curves, ...]:
    """Share of wrong labels on the rows that chose, by weight; 0 is the head alone."""
    points = sorted((c, error) for c, error in choice.errors.items() if c > 0)
    if not points:
        return ()
    series = [Series("machines and head", tuple(c for c, _ in points), tuple(100 * error for _, error in points))]
    words = f"Least wrong at weight {min(points, key=lambda point: point[1])[0]:.3g}; in force is {weight:.3g}, "
    words += "by the likelihood of the labels, not the errors alone." if choice.how == "rows" else "as it was given."
    if 0.0 in choice.errors:
        alone = 100 * choice.errors[0.0]
        series.append(Series("the head alone", (points[0][0], points[-1][0]), (alone, alone), dashed=True))
        words += f" The head alone gives {written(choice.errors[0.0], SHARE)} a wrong label."
    curves = Curves("Errors by weight", words, tuple(series), "weight of the machines", "% wrong", log_x=True)
    return (curves,)


def _visit_words(model: FusionModel) -> str:
    visit = model.visit_
    text = f"The head answers alone where it is sure with probability {visit.threshold:.3g} or more"
    if visit.travelled is None:
        return f"{text}; what that gives up was not measured."
    lost = 100 * (visit.given_up or 0.0)
    return f"{text}: {visit.travelled:.0%} of left-out rows had to travel, and {lost:.2f} points were given up."


def _sent(model: FusionModel) -> tuple[str, ...]:
    words = []
    if model.folding is not None:
        words.append(SENT[model.hold if model.privacy is None else "released"])
    if model.folding is None:
        words.append(SENT["ridge" if model.privacy is None else "released sums"])
    elif model.ridge is not None and model.privacy is None:
        words.append("For the head the sites sent sums over their rows in training (products or second moments).")
    if model.choice_.rows and model.privacy is None:
        words.append(
            f"To weigh the parts {model.choice_.rows:,} training rows of {len(model.choice_.sites):,} sites "
            "travelled to the other sites as queries, without their labels, as the policies of these sites allow."
        )
    return tuple(words)


def _settings(model: FusionModel, machines: ModelParts | None, head: ModelParts | None) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if machines is not None and head is not None:
        settings = {
            "weight": model.weight_,
            "temperature": model.temperature_,
            "queries visit sites": model.visit_.when,
        }
    for name, part in (("machines", machines), ("head", head)):
        settings |= {} if part is None else {f"{name}: {key}": value for key, value in part.settings.items()}
    return settings


def _tables(model: FusionModel, machines: ModelParts | None, head: ModelParts | None) -> tuple[PageTable, ...]:
    """Those of both parts, and once for both, who took no part."""
    kept = [
        table
        for part in (machines, head)
        if part is not None
        for table in part.tables
        if table.columns != MISSING_COLUMNS
    ]
    return (*kept, *missing_tables(model.missing_))

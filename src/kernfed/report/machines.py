"""What is particular to models of machines: who holds them, what was chosen, and what one wrong site can do."""

from typing import Any

from kernfed.kahm.choice import Chosen
from kernfed.report.content import SHARE, Assumption, Claim, Fact, PageTable, site_table, written
from kernfed.report.parts import SENT, Parts, missing_note, missing_tables

#: Candidates up to which all are shown at once.
_FEW_TRIED = 6
#: Where the machines of a model are.
_PLACES = {"sites": "at their sites", "machines": "in this file"}


def describe_folding(model: Any) -> Parts:
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
    return Parts(
        "A classifier of several sites",
        lead,
        facts,
        (sent,),
        settings,
        claims=_wrong_site(model),
        tables=(*_tried_tables(model.chosen), table, *missing_tables(model.missing_)),
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

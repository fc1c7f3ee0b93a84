"""Attacks that once worked, run against a site's own policy and rows in stores that vanish afterwards.

Each returns whether the site held, with a sentence that holds nothing of a row. Where a policy does not offer what an
attack is about, it does not apply. Those on labels, values and persons are here, those on guards in ``doors``,
those by refusals, charges and bounds in ``oracles``.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from kernfed.base.random import generator
from kernfed.errors import KernfedError
from kernfed.files import labels_to_values
from kernfed.privacy.accounting import Event, epsilon_for
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.task import known_parts
from kernfed.site.release.books import open_ledger
from kernfed.site.site import Site
from kernfed.testing.verify.crafted import agree, leaves
from kernfed.testing.verify.doors import many_names, no_cap, readable_scores, tampered_ledger, words_of_tables
from kernfed.testing.verify.oracles import asked_bounds, hostile_preparations, kept_releases
from kernfed.testing.verify.target import Outcome, Target, Verdict, ask_twins
from kernfed.testing.verify.twins import other_rows, site_of

#: Tasks that release something, each by mechanisms of its own.
RELEASING = ("folding_fit", "folding_schema", "ridge_release", "personal_release")

# Labels -----------------------------------------------------------------------------------------------------------


def wrong_classes(target: Target) -> Verdict:
    """Ask to classify by classes that no label is among, and by fractions."""
    strange = labels_to_values(np.array([0.25, 0.5]))
    questions = []
    for task in ("ridge_release", "personal_release", "folding_schema", "ridge_survey", "personal_survey"):
        for payload in target.honest(task)[:4]:
            values = copy.deepcopy(dict(payload.values))
            for home, key in list(leaves(values)):
                if key == "classes" and isinstance(home, dict) and home.get(key):
                    home[key] = strange if isinstance(home[key], dict) else [0.25, 0.5]
                elif key == "task" and isinstance(home, dict):
                    home[key] = "classify"
            questions.append((task, Payload(payload.arrays, values)))
    shuffled = other_rows(target.rows, target.policy, "other", generator(1, "verify", "labels"))
    wrong = ask_twins(target, shuffled, questions)
    return not wrong, wrong or f"{len(questions)} questions, refused or answered alike whatever the labels are"


def listed_labels(target: Target) -> Verdict:
    """Ask what the site describes."""
    told = [target.ask(target.site(), "describe", Payload())]
    told += [
        target.ask(target.site(), task, payload)
        for task in ("ridge_survey", "personal_survey")
        for payload in target.honest(task)
    ]
    schemas = [reply.payload.values.get("schema", reply.payload.values) for reply in told if reply.refusal is None]
    listed = any(schema.get("counts") for schema in schemas)
    if target.secret_labels:
        return not listed, "labels are listed with their counts" if listed else "no label and no count is told"
    floats = target.rows.y.dtype.kind == "f" and bool((target.rows.y % 1).any())
    if floats and listed:
        return False, "values to regress are listed: say labels = 'targets' in the policy"
    return None, "classes and their numbers of rows are public by policy"


def undeclared_label(target: Target) -> Verdict:
    """Give one person a label that was not declared, and see whether anybody notices."""
    if not (target.policy.require_privacy and target.policy.private_labels):
        return None, "labels are not private by policy"
    draws = generator(2, "verify", "labels")
    others = target.rows
    for _ in range(20):  # until it is one with a label that nobody has declared
        others = other_rows(target.rows, target.policy, "a trillionth", draws)
        if set(others.y.tolist()) - set(target.rows.y.tolist()):
            break
    questions = [(task, payload) for task in RELEASING for payload in target.honest(task)[:4]]
    wrong = ask_twins(target, others, questions)
    return not wrong, wrong or "a label that was not declared is not noticed"


# Values -----------------------------------------------------------------------------------------------------------


def overflow(target: Target) -> Verdict:
    """Parameters near the ends of what a number can be, before and after the budget is spent."""
    questions = []
    for task in RELEASING:
        for payload in target.honest(task)[:12]:
            for value in (1e308, 1e-308, 5e-324):
                values = copy.deepcopy(dict(payload.values))
                if _set_extremes(values, value):
                    agree(task, values)
                    questions.append((task, Payload(payload.arrays, values)))
        questions += [(task, payload) for payload in target.honest(task)[:6]]
    draws = generator(3, "verify", "overflow")
    for shape in ("largest", "denormal", "one far away"):
        wrong = ask_twins(target, other_rows(target.rows, target.policy, shape, draws), questions[:60])
        if wrong:
            return False, wrong
    return True, f"{min(60, len(questions))} questions with extreme parameters, refused or answered alike"


def _set_extremes(values: dict[str, Any], value: float) -> bool:
    """Put a value where radius, bandwidth and basis are; whether there was any."""
    changed = False
    for home, key in list(leaves(values)):
        if key in ("radius", "target_radius", "bandwidth", "target_bandwidth", "spread"):
            home[key], changed = value, True
        elif key in ("projection", "basis") and home[key] is not None:
            home[key], changed = [[value, value], [value, value]], True
    return changed


def subnormal_radius(target: Target) -> Verdict:
    """Ask for noise at a radius below what numbers can be divided by."""
    site, answered = target.site(), 0
    for payload in target.honest("folding_fit"):
        values = copy.deepcopy(dict(payload.values))
        if isinstance(values["privacy"], dict) and "radius" in values["privacy"]["mechanism"]:
            values["privacy"]["mechanism"]["radius"] = 5e-324
            agree("folding_fit", values)
            answered += target.ask(site, "folding_fit", Payload({}, values)).refusal is None
    return not answered, f"answered {answered} times" if answered else "refused"


# Rows -------------------------------------------------------------------------------------------------------------


def membership(target: Target) -> Verdict:
    """Ask to forget and to add rows, by ids that exist and by ids that do not."""
    site, known = target.site(), int(target.rows.ids[0])
    unknown = int(target.rows.ids.max()) + 1
    width, label = target.rows.X.shape[1], target.rows.y[:1]
    reasons: dict[str, list[str | None]] = {}
    for number in (known, unknown):
        forgetting = Payload({"ids": np.array([number])}, {})
        adding = Payload(
            {"X": np.zeros((1, width)), "ids": np.array([number])}, {"y": labels_to_values(label), "handle": ""}
        )
        for task, payload in (("add_rows", adding), ("forget_rows", forgetting)):
            reply = target.ask(site, task, payload)
            reasons.setdefault(task, []).append(None if reply.refusal is None else reply.refusal.reason)
    for task, told in reasons.items():
        if told[0] != told[1]:
            return False, f"{task} answers differently for an id that exists"
        if None in told and target.policy.require_privacy:
            return False, f"{task} is answered, where it should be a command at the site"
    return True, "refused, whether or not the id exists: they are commands at the site"


def tests_on_rows(target: Target) -> Verdict:
    """Ask for errors, counts and losses of models on the site's own rows."""
    tasks = [name for name, part in known_parts().items() if part.under_privacy == "refused"]
    tasks += ["held_out_queries", "machines", "ridge_moments", "personal_statistics"]
    site = target.site()
    answered = [
        task
        for task in tasks
        if any(target.ask(site, task, payload).refusal is None for payload in target.honest(task)[:3])
    ]
    return not answered, f"answered: {', '.join(answered)}" if answered else "refused"


#: New ids of one person: with as many releases in between whoever pays by the row goes far beyond any budget.
_NEW_NAMES = 8


def another_name(target: Target) -> Verdict:
    """Forget a person's row, add it under a new id, and have it released again, until the budget should be spent."""
    cap = target.policy.max_record_epsilon
    if cap is None:
        return None, "the policy has no budget"
    people = np.array([f"person {name}" for name in target.rows.people.tolist()])
    rows = replace(target.rows, persons=people)
    site = site_of(target.name, target.policy, rows, columns=target.columns)
    row, number = 0, int(target.rows.ids.max())
    released, ids = 0, int(target.rows.ids[row])
    names: set[str] = set()  # what the site calls the person, whichever row is theirs
    for _ in range(_NEW_NAMES):
        known = site.rows(every_class=True)
        names |= set(known.people[known.ids == ids].tolist())
        for task in ("folding_fit", "ridge_release", "personal_release"):
            for payload in target.honest(task)[:6]:
                released += target.ask(site, task, payload).refusal is None
        number += 1
        try:
            site.as_owner("forget_rows", Payload({"ids": np.array([ids])}))
            new = {"X": target.rows.X[row : row + 1].astype(np.float64), "ids": np.array([number])}
            about = {"y": labels_to_values(target.rows.y[row : row + 1]), "persons": [str(people[row])], "handle": ""}
            site.as_owner("add_rows", Payload(new, about))
            site.data.publish()
        except KernfedError:
            break
        ids = number
    if not released:
        return None, "the policy releases nothing that was asked for"
    paid = _paid_by(site, names)
    if not paid <= cap * (1 + 1e-9):
        return False, f"the person has paid epsilon {paid:.4g}, over the budget of {cap:g}"
    return True, f"the person has paid epsilon {paid:.4g} of {cap:g}, under all ids together"


def _paid_by(site: Site, names: set[str]) -> float:
    """Epsilon of all charges that left none of these names out, as if they were one person."""
    ledger = open_ledger(site)
    keys = ledger.keys(np.array(sorted(names)))
    events: list[Event] = [event for entry in ledger.entries() if entry.concerns(keys).any() for event in entry.events]
    return epsilon_for(events, site.policy.record_delta) if events else 0.0


ATTACKS: Mapping[str, Callable[[Target], Verdict]] = {
    "classes that no label is among": wrong_classes,
    "labels listed by a description": listed_labels,
    "overflow as an oracle": overflow,
    "a label that was not declared": undeclared_label,
    "ids that exist and ids that do not": membership,
    "tests, machines and sums of the site's rows": tests_on_rows,
    "one person under several ids": another_name,
    "scores encrypted by a scheme that does not": readable_scores,
    "no cap, and atoms": no_cap,
    "a ledger that was tampered with": tampered_ledger,
    "cells and paths in messages": words_of_tables,
    "a radius too small to divide by": subnormal_radius,
    "many names of one caller": many_names,
    "preparations at the ends of numbers": hostile_preparations,
    "a word that is charged for only where it is": kept_releases,
    "bounds of masked sums that the asker writes": asked_bounds,
}


def run_attacks(target: Target, advance: Callable[[], None] | None = None) -> list[Outcome]:
    """All attacks, in their order."""
    outcomes = []
    for name, attack in ATTACKS.items():
        held, told = attack(target)
        outcomes.append(Outcome(name, held, told))
        if advance is not None:
            advance()
    return outcomes

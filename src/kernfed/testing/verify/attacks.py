"""Attacks that once worked, run against a site's own policy and rows in stores that vanish afterwards.

Each returns whether the site held, with a sentence that holds nothing of a row. Where a policy does not offer what an
attack is about, it does not apply. Those by refusals, charges and bounds are in ``oracles``.
"""

import copy
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kernfed.base.random import generator
from kernfed.errors import InputError, KernfedError
from kernfed.files import labels_to_values
from kernfed.privacy import ElementLaplace, RecordGaussian
from kernfed.privacy.accounting import Event, epsilon_for
from kernfed.privacy.release import Mechanism
from kernfed.privacy.values import mechanism_to_values
from kernfed.site.protocol.message import Payload, Reply
from kernfed.site.protocol.task import known_parts
from kernfed.site.release.books import LEDGER, open_ledger
from kernfed.site.site import Site
from kernfed.testing.verify.crafted import agree, cheaper, leaves, trainings
from kernfed.testing.verify.oracles import asked_bounds, hostile_preparations, kept_releases
from kernfed.testing.verify.questions import asked_promise
from kernfed.testing.verify.twins import Outcome, Target, Verdict, ask_twins, other_rows, site_of

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


# Guards: the encryption of scores, the cap, the ledger, refusals, the quota ----------------------------------------

#: Something that can be in a cell and in no sentence of ours.
_CELL = "cell-4711"


def readable_scores(target: Target) -> Verdict:
    """Ask for encrypted scores by the scheme that encrypts nothing."""
    site, machines = target.site(), trainings(target.recording)
    for payload in target.honest("secure_scores"):
        if b'"plain"' not in payload.arrays["key"].tobytes()[:400]:
            continue
        training = machines.get(str(payload.values["handle"]))
        if training is not None:
            target.ask(site, "folding_fit", training)
        if target.ask(site, "secure_scores", payload).refusal is None:
            if "plain" in target.policy.schemes and target.policy.allows("scores"):
                return None, "the policy names the scheme 'plain' and allows scores that anybody reads"
            return False, "scores left readable, labelled as encrypted"
    return True, "refused"


def no_cap(target: Target) -> Verdict:
    """Ask for a release at epsilon 100, and for one that publishes values as they are now and then."""
    if not target.policy.require_privacy:
        return False, "the policy requires no privacy, so there is no cap"
    width, honest = target.rows.X.shape[1], target.honest("folding_fit")
    site, answered = target.site(), []
    wanted: dict[str, Mechanism] = {"epsilon 100": RecordGaussian(100.0, 1e-6, radius=1.0)}
    if not target.policy.atoms:
        epsilon = max(1e-6, asked_promise(target.policy)[0] / (2 * width))
        wanted["an atom"] = ElementLaplace(epsilon, d=2.0, bounds=(-1.0, 1.0), delta=1e-9)
    for words, mechanism in wanted.items():
        for payload in honest:
            values = copy.deepcopy(dict(payload.values))
            if isinstance(values["privacy"], dict):
                values["privacy"]["mechanism"] = mechanism_to_values(mechanism)
                agree("folding_fit", values)
                if target.ask(site, "folding_fit", Payload({}, values)).refusal is None:
                    answered.append(words)
    allowed = target.policy.max_record_epsilon or 0.0
    if "an atom" in answered or (answered and allowed < 100):
        return False, f"released with {answered[0]}"
    return True, "refused" if not answered else f"the policy's cap is {allowed:g}, which protects nobody"


def tampered_ledger(target: Target) -> Verdict:
    """A second release after the ledger was cut, shortened, deleted or set back."""
    for words, tamper in _TAMPERINGS.items():
        site = target.site()
        first = _release(target, site, 0)
        if first is None:
            return None, "the policy releases nothing that was asked for"
        ledger = site.store.path / LEDGER
        backup = ledger.read_bytes()
        _release(target, site, 1)
        before = len(ledger.read_bytes().splitlines())
        tamper(ledger, backup)
        if _release(target, site, 2) is not None and len(ledger.read_bytes().splitlines()) <= before:
            return False, f"{words}: released again, and what was spent before is not known any more"
    return True, f"{len(_TAMPERINGS)} ways to lose what was spent: refused, or charged on top"


def _release(target: Target, site: Site, number: int) -> Reply | None:
    """A reply to some question that releases something new, the same for the same number."""
    for task in ("ridge_release", "personal_release", "folding_fit"):
        for payload in target.honest(task):
            asked = cheaper(task, payload, 1 - 0.01 * number)
            reply = None if asked is None else target.ask(site, task, asked)
            if reply is not None and reply.refusal is None:
                return reply
    return None


def _delete(ledger: Path, _: bytes) -> None:
    ledger.unlink()
    shutil.rmtree(ledger.parent / "releases", ignore_errors=True)


#: Ways to lose what was spent, each a function of the ledger's file and of its content some releases ago.
_TAMPERINGS: Mapping[str, Callable[[Path, bytes], object]] = {
    "the last newline lost": lambda ledger, _: ledger.write_bytes(ledger.read_bytes().rstrip(b"\n")),
    "the last line cut": lambda ledger, _: ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(True)[:-1])),
    "the ledger deleted with its releases": _delete,
    "an older copy of the ledger": lambda ledger, backup: ledger.write_bytes(backup),
}


def words_of_tables(target: Target) -> Verdict:
    """A table that cannot be read, whose cells and path are in the error."""

    def broken() -> Any:
        raise InputError(f"/private/{_CELL}.csv: row 7 of column 'age' holds {_CELL!r}")

    for task in target.recording:
        for payload in target.honest(task)[:2]:
            question, data = target.question(task, payload)
            reply = Site(target.name, broken, policy=target.policy).answer(data)
            if _CELL.encode() in reply:
                return False, f"{question.task}: the text of a cell and a path leave"
    return True, "neither cells nor paths leave"


def many_names(target: Target) -> Verdict:
    """Ask for scores under ever new names of the caller."""
    limit = target.policy.queries_per_day
    if limit is None:
        return None, "the policy has no limit of queries"
    site, machines = target.site(), trainings(target.recording)
    answered = 0
    for payload in target.honest("scores"):
        training = machines.get(str(payload.values["handle"]))
        if training is None or target.ask(site, "folding_fit", training).refusal is not None:
            continue
        queries = np.resize(payload.arrays["X"], (max(1, limit // 4), payload.arrays["X"].shape[1]))
        for caller in range(8):
            reply = target.ask(site, "scores", Payload({"X": queries}, payload.values), f"caller {caller}")
            answered += len(queries) if reply.refusal is None else 0
        break
    told = f"{answered:,} queries answered, the policy allows {limit:,} a day"
    return answered <= limit, told


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

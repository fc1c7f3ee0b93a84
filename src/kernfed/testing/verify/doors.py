"""Attacks on what guards a site: the encryption of scores, the cap, the ledger, its refusals, its quota."""

import copy
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kernfed.errors import InputError
from kernfed.privacy import ElementLaplace, RecordGaussian
from kernfed.privacy.release import Mechanism
from kernfed.privacy.values import mechanism_to_values
from kernfed.site.protocol.message import Payload, Reply
from kernfed.site.release.books import LEDGER
from kernfed.site.site import Site
from kernfed.testing.verify.crafted import agree, cheaper, trainings
from kernfed.testing.verify.honest import asked_promise
from kernfed.testing.verify.target import Target, Verdict

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


def _without_newline(ledger: Path, backup: bytes) -> None:  # noqa: ARG001  every tampering has this signature
    ledger.write_bytes(ledger.read_bytes().rstrip(b"\n"))


def _shortened(ledger: Path, backup: bytes) -> None:  # noqa: ARG001  every tampering has this signature
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))


def _deleted(ledger: Path, backup: bytes) -> None:  # noqa: ARG001  every tampering has this signature
    ledger.unlink()
    shutil.rmtree(ledger.parent / "releases", ignore_errors=True)


def _set_back(ledger: Path, backup: bytes) -> None:
    ledger.write_bytes(backup)


_TAMPERINGS: Mapping[str, Callable[[Path, bytes], None]] = {
    "the last newline lost": _without_newline,
    "the last line cut": _shortened,
    "the ledger deleted with its releases": _deleted,
    "an older copy of the ledger": _set_back,
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

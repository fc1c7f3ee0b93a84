"""Sites killed (-9) between every two durable writes of an operation, opened again, and asked the same again."""

import os
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np

import kernfed as kf
from kernfed.federation import Payload, Policy, Site, SiteStore
from kernfed.federation.folding.machines import folding_handle, read_machines
from kernfed.federation.folding.release import Recipe
from kernfed.kahm.model import FoldingParameters
from kernfed.site.protocol.message import Question, decode_reply, digest, encode_question
from kernfed.site.release.permit import open_ledger

from .outcome import SURVIVED, WRONG, Outcomes

NAME = "a"
FORGOTTEN = (4, 11)
#: Machines of one row hold it verbatim: a trace of a forgotten one could be found.
PARAMETERS = FoldingParameters(batch_size=1, measure="rms", partition="order")
#: What an answer may have otherwise: generations are never used twice, noise and what it costs is drawn anew.
VARIES = ("generation", "temperature", "privacy")
#: More writes than any operation has.
_MOST_WRITES = 60


@dataclass(frozen=True)
class Operation:
    """Something a site is asked to do, and what must hold after it was killed on the way and asked again."""

    name: str
    run: Callable[[Site], Payload]
    check: Callable[[Site, Path], str]


def attack_kills(outcomes: Outcomes, folder: Path, seed: int, count: int) -> None:
    """``count`` times over other rows, each operation killed at its first, second, ... write."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for repetition in range(count):
            rows = _rows(seed + repetition)
            for operation in _operations(rows):
                place = folder / f"{repetition}-{operation.name}"
                _attack(outcomes, operation, rows, place)


def _attack(outcomes: Outcomes, operation: Operation, rows: Any, place: Path) -> None:
    start = place / "start"
    if operation.name in ("forget", "add"):
        _ask(_open(rows, start), "folding_fit", "first", Payload(values=_training()))
    _open(rows, start)
    copytree(start, place / "honest")
    honest = operation.run(_open(rows, place / "honest"))
    for number in range(1, _MOST_WRITES):
        copy = place / str(number)
        copytree(start, copy)
        killed = _killed_at(number, lambda copy=copy: operation.run(_open(rows, copy)))
        if not killed:
            return
        try:
            told = _after(operation, rows, copy, honest)
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
        outcomes.add("kill", operation.name, WRONG if told else SURVIVED, f"at write {number}: {told}")


def _killed_at(number: int, work: Callable[[], Any]) -> bool:
    """Run ``work`` in a process that dies at its ``number``-th durable write; says whether it came to that."""
    child = os.fork()
    if child == 0:
        honest, left = os.fsync, [number]

        def fsync(handle: Any) -> None:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            honest(handle)

        os.fsync = fsync
        try:
            work()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def _after(operation: Operation, rows: Any, copy: Path, honest: Payload) -> str:
    """What is wrong after a kill, or nothing: the same question completes, once, with the answer there would be."""
    site = _open(rows, copy)
    forgotten = set(site.store.read_state()["forgotten"])
    kept = read_machines(site, _training()["handle"])
    if kept is not None and forgotten & set(kept.ids.tolist()):
        return "machines of rows that are forgotten"
    first, again = operation.run(site), operation.run(_open(rows, copy))
    if not _same(first, again):
        return "asked a third time it answers something else"
    if not _same(first, honest, apart=VARIES):
        return "asked again it answers something else than without a kill"
    return operation.check(_open(rows, copy), copy)


def _same(one: Payload, other: Payload, apart: tuple[str, ...] = ()) -> bool:
    """Whether two answers are the same, some values apart."""
    values = [{k: v for k, v in payload.values.items() if k not in apart} for payload in (one, other)]
    arrays = [{k: a.tobytes() for k, a in payload.arrays.items()} for payload in (one, other)]
    return values[0] == values[1] and arrays[0] == arrays[1]


# Operations ----------------------------------------------------------------------------------------------------------


def _rows(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((20, 4)), np.arange(20) % 2, rng.standard_normal((3, 4))


def _open(rows: Any, path: Path) -> Site:
    return Site(NAME, rows[0], rows[1], store=SiteStore(path), policy=Policy.open())


def _ask(site: Site, task: str, identity: str, payload: Payload) -> Payload:
    question = Question("run", identity, task, payload)
    reply = decode_reply(site.answer(encode_question(question)), question, NAME)
    if reply.refusal is not None:
        raise RuntimeError(f"{task} is refused: {reply.refusal.reason}")
    return reply.payload


def _training() -> dict[str, Any]:
    values = PARAMETERS.to_values()
    return {"handle": digest(values), "parameters": values, "privacy": None}


def _operations(rows: Any) -> list[Operation]:
    X, _, new = rows
    recipe = Recipe(kf.privacy.RecordGaussian(2.0, 1e-5, 3.0), rows_per_class=20).to_values()
    released = FoldingParameters(batch_size=10, measure="rms", partition="order")
    release = {
        "handle": folding_handle(released, recipe),
        "parameters": released.to_values(),
        "privacy": recipe,
    }
    labels = {"dtype": "<i8", "labels": [0, 1, 1]}
    return [
        Operation("train", lambda site: _ask(site, "folding_fit", "q", Payload(values=_training())), _check_trained),
        Operation(
            "forget",
            lambda site: _ask(site, "forget_rows", "q", Payload({"ids": np.array(FORGOTTEN)})),
            lambda site, place: _check_forgotten(site, place, X),
        ),
        Operation("add", lambda site: _ask(site, "add_rows", "q", Payload({"X": new}, {"y": labels})), _check_added),
        Operation("release", lambda site: _ask(site, "folding_fit", "q", Payload(values=release)), _check_released),
    ]


def _check_trained(site: Site, _: Path) -> str:
    entry = read_machines(site, _training()["handle"])
    return "" if entry is not None and len(entry.ids) == 20 else "machines are not of all rows"


def _check_forgotten(site: Site, place: Path, X: Any) -> str:
    if set(FORGOTTEN) & set(site.rows().ids.tolist()) or len(site.rows().ids) != 18:
        return "rows are used that are forgotten"
    for number in FORGOTTEN:
        traces = [path.name for path in place.rglob("*") if path.is_file() and X[number].tobytes() in path.read_bytes()]
        if traces:
            return f"row {number} is still in {traces[0]}"
    return ""


def _check_added(site: Site, _: Path) -> str:
    ids = site.rows().ids.tolist()
    return "" if len(ids) == len(set(ids)) == 23 else f"there are {len(ids)} rows, expected 23"


def _check_released(site: Site, _: Path) -> str:
    """Charged before it was told: at least once, and once more only where a kill came between charge and release."""
    charges = len(open_ledger(site).entries())
    return "" if 1 <= charges <= 2 else f"charged {charges} times"

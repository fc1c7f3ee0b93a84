"""Mechanisms on a tape: they check, clip and charge as ever, and then release what the tape supplies.

Two sites whose mechanisms release the same may differ in no reply, whatever their rows are. A mechanism runs to its end
first, so that an error it raises for some rows and not for others shows as well; only the numbers it drew are replaced.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import wraps
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.random import generator
from kernfed.kernels.moments import Moments
from kernfed.privacy.mechanism import RandomizedLabels
from kernfed.privacy.moments import MomentsRelease
from kernfed.privacy.names import MECHANISMS, mechanism_class
from kernfed.privacy.record_sums import EmbeddingRelease, HistogramRelease, RidgeRelease
from kernfed.privacy.release import Release
from kernfed.privacy.shared import SharedSum
from kernfed.secure.committee import contribution, member
from kernfed.secure.committee.keys import KEY, Identity, OneTimeKey, one_time_of
from kernfed.secure.protocol import Site as EncryptingSite
from kernfed.site.protocol import task as registry
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.task import find_task, shown_name, task_names

#: Methods by which mechanisms release; a mechanism has the first one, and perhaps others.
_RELEASES = ("release", "release_means", "release_spreads")


class Tape:
    """What mechanisms release, by the number of the call and by shape: never by rows."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.calls = 0

    def draws(self, *about: Any) -> np.random.Generator:
        """Draws of the next call, for something of this shape."""
        self.calls += 1
        return generator(self.seed, "tape", str(self.calls), repr(about))


_playing: ContextVar[Tape | None] = ContextVar("tape", default=None)


@contextmanager
def playing(tape: Tape) -> Iterator[None]:
    """Mechanisms that this thread calls release what the tape supplies; needs ``taped_mechanisms`` around it."""
    token = _playing.set(tape)
    try:
        yield
    finally:
        _playing.reset(token)


@contextmanager
def taped_mechanisms() -> Iterator[None]:
    """Every mechanism listens to the tape of its thread, if there is one; as before at the end.

    Encryption and masks draw at random too: under a tape an encrypted message is a digest of what was encrypted, and
    masks, boxes and keys for one run are the tape's.
    """
    taped: dict[tuple[Any, str], Any] = {}
    for name in MECHANISMS:
        for method in _RELEASES:
            home = next((base for base in mechanism_class(name).__mro__ if method in base.__dict__), None)
            if home is not None:
                taped[home, method] = _on_tape(home.__dict__[method], _release)
    others: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
        (EncryptingSite, "encrypt", _digest),
        (SharedSum, "share", _share),
        (contribution, "draw_seed", _seed),
        (contribution, "seal", _box),
        (member, "make_one_time", _one_time),
    )
    taped |= {(home, method): _on_tape(getattr(home, method), supply) for home, method, supply in others}
    originals = {(home, method): getattr(home, method) for home, method in taped}
    try:
        for (home, method), function in taped.items():
            setattr(home, method, function)
        yield
    finally:
        for (home, method), function in originals.items():
            setattr(home, method, function)


def _on_tape(original: Callable[..., Any], supply: Callable[..., Any]) -> Callable[..., Any]:
    """``original``, whose result is replaced by ``supply(tape, result, *arguments)`` where a tape is playing."""

    @wraps(original)
    def call(*arguments: Any, **options: Any) -> Any:
        made = original(*arguments, **options)
        tape = _playing.get()
        return made if tape is None else supply(tape, made, *arguments)

    return call


def _release(tape: Tape, made: Any, mechanism: Any, *_: Any) -> Any:
    return supplied(tape, mechanism, made)


def _digest(_: Tape, message: bytes, role: EncryptingSite, scores: npt.ArrayLike) -> bytes:
    return message if role.setting.scheme == "plain" else sha256(np.asarray(scores, dtype="<f8").tobytes()).digest()


def _share(tape: Tape, made: dict[str, npt.NDArray[Any]], *_: Any) -> dict[str, npt.NDArray[Any]]:
    return {name: tape.draws(name, array.shape).integers(-99, 99, array.shape) for name, array in made.items()}


def _seed(tape: Tape, made: bytes) -> bytes:
    return tape.draws("seed").bytes(len(made))


def _box(tape: Tape, made: bytes, *_: Any) -> bytes:
    return tape.draws("box", len(made)).bytes(len(made))


def _one_time(tape: Tape, _: Any, identity: Identity) -> tuple[bytes, OneTimeKey]:
    return one_time_of(identity, tape.draws("key").bytes(KEY))


def supplied(tape: Tape, mechanism: Any, made: Any) -> Any:
    """A release like ``made``, with every number that was drawn replaced by the tape's."""
    if isinstance(made, Release):
        draws = tape.draws(type(mechanism).__name__, made.values.shape)
        if isinstance(mechanism, RandomizedLabels):
            classes = np.asarray(mechanism.classes)
            return replace(made, values=classes[draws.integers(len(classes), size=made.values.shape)])
        return replace(made, values=draws.normal(size=made.values.shape))
    if isinstance(made, MomentsRelease):
        return replace(made, classes=tuple(_class_moments(tape, part) for part in made.classes))
    if isinstance(made, RidgeRelease):
        return _ridge(tape, made)
    if isinstance(made, EmbeddingRelease):
        return replace(made, vector=tape.draws("embedding", made.vector.shape).normal(size=made.vector.shape))
    if isinstance(made, HistogramRelease):
        return _histogram(tape, made)
    raise TypeError(f"no tape for what {type(mechanism).__name__} releases, a {type(made).__name__}")


def _class_moments(tape: Tape, part: Any) -> Any:
    """Moments of a class with the mean (k,) and the scatter (k, k) of the tape, which has negative eigenvalues too."""
    k, n = part.moments.width, part.moments.n
    draws = tape.draws("moments", k)
    return replace(part, moments=Moments(n, k, draws.normal(size=k), n * _symmetric(draws, k)))


def _ridge(tape: Tape, made: RidgeRelease) -> RidgeRelease:
    """Sums (p + q, p + q) and the regularisation of the tape."""
    size, p = len(made.moments.joint_mean), made.moments.width
    draws = tape.draws("ridge", size, p)
    sums = Moments(made.moments.n, p, np.zeros(size), _symmetric(draws, size))
    return replace(made, moments=sums, regularization=float(draws.uniform()))


def _histogram(tape: Tape, made: HistogramRelease) -> HistogramRelease:
    """Sums of the tape, in the range of noise."""
    numbers = tape.draws("histogram", made.counts.shape).integers(-(2**20), 2**20, (2, *made.counts.shape))
    return replace(made, counts=numbers[0], nearest=None if made.nearest is None else numbers[1])


def _symmetric(draws: np.random.Generator, size: int) -> npt.NDArray[np.float64]:
    root = draws.normal(size=(size, size))
    matrix: npt.NDArray[np.float64] = root @ root.T / size - 0.1 * np.eye(size)
    return matrix


# While it runs ----------------------------------------------------------------------------------------------------


@contextmanager
def counted_tasks(entered: Counter[str]) -> Iterator[None]:
    """Count how often each task, or part of one, is run."""
    known: Mapping[str, registry.Task] = {name: task for name in task_names() if (task := find_task(name)) is not None}

    def counting(task: registry.Task) -> registry.Task:
        def run(site: object, payload: Payload) -> Payload:
            entered[shown_name(task.name, payload)] += 1
            return task.run(site, payload)

        return replace(task, run=run)

    registry._tasks.update({name: counting(task) for name, task in known.items()})
    try:
        yield
    finally:
        registry._tasks.update(known)


@contextmanager
def quiet_sites() -> Iterator[None]:
    """Thousands of refusals, on purpose, are nothing for the log of a site."""
    log = logging.getLogger("kernfed.site")
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before

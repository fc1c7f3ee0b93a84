"""Mechanisms on a tape: they check, clip and charge as ever, and then release what the tape supplies.

Two sites whose mechanisms release the same may differ in no reply, whatever their rows are. A mechanism runs to its end
first, so that an error it raises for some rows and not for others shows as well; only the numbers it drew are replaced.
"""

from collections.abc import Callable, Iterator
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
from kernfed.secure.committee.keys import KEY, one_time_of
from kernfed.secure.protocol import Site as EncryptingSite

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
    changed: list[tuple[Any, str, Any]] = []
    for name in MECHANISMS:
        kind = mechanism_class(name)
        for method in _RELEASES:
            own = _definition(kind, method)
            if own is not None and (own, method) not in [(home, done) for home, done, _ in changed]:
                changed.append((own, method, own.__dict__[method]))
    sending: Any = contribution
    answering: Any = member
    others: list[tuple[Any, str, Any]] = [
        (EncryptingSite, "encrypt", _digested(EncryptingSite.encrypt)),
        (SharedSum, "share", _taped_share(SharedSum.share)),
        (sending, "draw_seed", _taped_seed(sending.draw_seed)),
        (sending, "seal", _taped_seal(sending.seal)),
        (answering, "make_one_time", _taped_key(answering.make_one_time)),
    ]
    released = list(changed)
    changed += [(home, method, getattr(home, method)) for home, method, _ in others]
    try:
        for home, method, original in released:
            setattr(home, method, _taped(original))
        for home, method, taped in others:
            setattr(home, method, taped)
        yield
    finally:
        for home, method, original in changed:
            setattr(home, method, original)


def _definition(kind: type, method: str) -> type | None:
    """The class that defines a method of ``kind``."""
    return next((base for base in kind.__mro__ if method in base.__dict__), None)


def _taped(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def release(mechanism: Any, *arguments: Any, **options: Any) -> Any:
        made = original(mechanism, *arguments, **options)
        tape = _playing.get()
        return made if tape is None else supplied(tape, mechanism, made)

    return release


def _digested(original: Callable[..., bytes]) -> Callable[..., bytes]:
    @wraps(original)
    def encrypt(role: Any, scores: npt.ArrayLike, **options: Any) -> bytes:
        message = original(role, scores, **options)
        if _playing.get() is None or role.setting.scheme == "plain":
            return message
        return sha256(np.asarray(scores, dtype="<f8").tobytes()).digest()

    return encrypt


def _taped_share(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def share(shared: Any, part: str, *arguments: Any) -> Any:
        made = original(shared, part, *arguments)
        tape = _playing.get()
        if tape is None:
            return made
        return {name: tape.draws(name, array.shape).integers(-99, 99, array.shape) for name, array in made.items()}

    return share


def _taped_seed(original: Callable[[], bytes]) -> Callable[[], bytes]:
    def draw() -> bytes:
        tape = _playing.get()
        return original() if tape is None else tape.draws("seed").bytes(len(original()))

    return draw


def _taped_seal(original: Callable[..., bytes]) -> Callable[..., bytes]:
    def seal(content: bytes, *about: Any) -> bytes:
        tape, box = _playing.get(), original(content, *about)
        return box if tape is None else tape.draws("box", len(box)).bytes(len(box))

    return seal


def _taped_key(original: Callable[..., Any]) -> Callable[..., Any]:
    def make(identity: Any) -> Any:
        tape = _playing.get()
        return original(identity) if tape is None else one_time_of(identity, tape.draws("key").bytes(KEY))

    return make


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

"""Programs: a learner as a generator of asks, so that learners which run in step share their exchanges.

A program yields one ``Ask`` (or several, as ``together`` does) for each exchange, receives the ``Replies`` to it, and
returns its result. Where too few sites answer, ``TooFewReplies`` is raised at the ``yield``. ``Federation.run`` drives
a program; nothing in it depends on the engine that carries the messages.

>>> def widths():
...     replies = yield Ask("describe", Payload())
...     return {site: payload.values["width"] for site, payload in replies}
>>> from kernfed.federation import Federation
>>> with Federation.local({"a": ([[0.0], [1.0]], [0, 1]), "b": ([[2.0], [3.0]], [0, 1])}) as federation:
...     federation.run(together(widths(), widths())), federation.traffic.exchanges
(({'a': 1, 'b': 1}, {'a': 1, 'b': 1}), 1)
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from kernfed.errors import MessageError, TooFewReplies
from kernfed.site.protocol.message import Payload, Refusal, decode_bundle
from kernfed.site.protocol.traffic import Replies

Result = TypeVar("Result")


@dataclass(frozen=True)
class Ask:
    """One question of an exchange.

    task, payload : what is asked; a mapping of payloads has one for every site that it names
    sites : who is asked; None is all sites of the federation
    min_replies : how many sites must answer; None is all that are asked
    check : called with (site, payload); raises ``ValueError`` for a reply that must not be used, whose site then counts
        as missing
    question_id : a question that is repeated under the same id changes nothing at the sites
    keep : whether replies are kept once ``check`` has seen them; without it few are in memory at a time
    """

    task: str
    payload: Payload | Mapping[str, Payload]
    sites: Sequence[str] | None = None
    min_replies: int | None = None
    check: Callable[[str, Payload], object] | None = None
    question_id: str | None = None
    keep: bool = True


Outcome = Replies | TooFewReplies
#: Yields an ask and receives its replies, or yields a tuple of asks and receives a tuple of outcomes.
Program = Generator[Ask | tuple[Ask, ...], Any, Result]


def advance(program: Program[Result], outcomes: Sequence[Outcome], alone: bool) -> Ask | tuple[Ask, ...]:
    """What a program asks next, once it has the outcomes of what it asked last; ``alone``: it asked one ``Ask``."""
    if not alone:
        return program.send(tuple(outcomes))
    (outcome,) = outcomes
    return program.throw(outcome) if isinstance(outcome, TooFewReplies) else program.send(outcome)


def together(*programs: Program[Any]) -> Program[tuple[Any, ...]]:
    """The results of all programs, run in step: one exchange carries what each of them asks next."""
    results: list[Any] = [None] * len(programs)
    asks = [_next(partial(next, program), results, number) for number, program in enumerate(programs)]
    while any(ask is not None for ask in asks):
        parts = [ask if isinstance(ask, tuple) else () if ask is None else (ask,) for ask in asks]
        outcomes = yield tuple(ask for part in parts for ask in part)
        start = 0
        for number, part in enumerate(parts):
            mine, start = outcomes[start : start + len(part)], start + len(part)
            if asks[number] is not None:
                step = partial(advance, programs[number], mine, isinstance(asks[number], Ask))
                asks[number] = _next(step, results, number)
    return tuple(results)


def _next(step: Callable[[], Ask | tuple[Ask, ...]], results: list[Any], number: int) -> Ask | tuple[Ask, ...] | None:
    """What a program asks next; None where it has returned, with its result at its place in ``results``."""
    try:
        return step()
    except StopIteration as end:
        results[number] = end.value
        return None


@dataclass
class Meter:
    """Exchanges and bytes of one program, also where others share its exchanges."""

    exchanges: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def add(self, replies: Replies, exchanges: int = 1) -> None:
        """Count the replies to an ask."""
        self.exchanges += exchanges
        self.bytes_up += replies.bytes_up
        self.bytes_down += replies.bytes_down


def reply_parts(carried: bytes | Refusal | None, count: int, site: str) -> Sequence[bytes | Refusal | None]:
    """A site's reply to every part of what it was asked; a reply that is no bundle of so many stands for all."""
    if count == 1 or not isinstance(carried, bytes):
        return [carried] * count
    try:
        parts = decode_bundle(carried, f"the reply of {site!r}")
    except MessageError as error:
        return [Refusal("bad reply", f"the reply of site {site!r} is not usable: {error}")] * count
    if len(parts) not in (1, count):
        reason = f"the reply of site {site!r} has {len(parts)} parts, and {count} were asked for"
        return [Refusal("bad reply", reason)] * count
    return parts if len(parts) == count else parts * count

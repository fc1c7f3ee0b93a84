"""What learners use: a federation of sites that can be asked, on whatever engine.

An engine only moves bytes. ``Federation`` gives questions their identity, refuses replies that do not fit, says who is
missing and why, and keeps the record of traffic; so learners are the same on every engine.
"""

import copy
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernfed.base.checks import check_count, check_number
from kernfed.base.threads import in_threads
from kernfed.base.warn import warn
from kernfed.errors import InputError, MessageError, MissingSites, TooFewReplies
from kernfed.federation.engines.local import DeliveringEngine, Engine, LocalEngine
from kernfed.federation.program import Ask, Outcome, Program, Result, advance, reply_parts
from kernfed.site.protocol.message import (
    Payload,
    Question,
    Refusal,
    decode_reply,
    encode_bundle,
    encode_question,
)
from kernfed.site.protocol.schema import Schema, agree
from kernfed.site.protocol.task import connector, summer
from kernfed.site.protocol.traffic import Replies, Total, Traffic

#: Bytes of all replies from which on they are checked in threads: starting these takes a millisecond.
_CHECKED_IN_THREADS = 1_000_000


class Federation:
    """Sites behind one engine. Use ``Federation.local`` for arrays in this process.

    ``helpers`` names those of the engine's sites that have no data and only serve in committees of masked sums.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        seed: int = 0,
        caller: str = "local",
        on_missing: Callable[[str, str, Refusal], None] | None = None,
        helpers: Sequence[str] = (),
    ) -> None:
        self.engine = engine
        self.helpers = tuple(sorted(helpers))
        #: What members and sites have told of their keys, for the sums to come.
        self.sum_keys: dict[str, Any] = {}
        self.seed = check_count(seed, "seed", at_least=0)
        self.caller = caller
        #: Id of everything that this federation asks.
        self.run_id = secrets.token_hex(8)
        self.traffic = Traffic()
        self._on_missing = on_missing
        self._only: frozenset[str] | None = None
        #: What becomes of raw columns, where the sites agreed on it: a ``kernfed.data.Preparation``.
        self.preparation: Any = None

    @classmethod
    def local(
        cls,
        data: Mapping[str, Any],
        *,
        seed: int = 0,
        store: Any = None,
        holdout: float = 0.0,
        columns: Sequence[str] = (),
        policies: Any = None,
        faults: Any = None,
        on_missing: Callable[[str, str, Refusal], None] | None = None,
        helpers: Sequence[str] = (),
    ) -> "Federation":
        """Federation of arrays in this process: ``{site: (X, y)}`` or ``{site: (X, y, ids)}``.

        ``store`` is a folder with one store per site (temporary without it), ``holdout`` the share of its rows that
        each site keeps aside for ``evaluate``, ``columns`` the names of X's columns (a table has its own), ``policies``
        maps sites to a ``Policy`` (open without it), ``faults`` maps sites to a ``Fault`` to try out failures. A value
        may also be a ``Site`` that was made by hand. ``helpers`` names those that have no data.
        """
        engine = LocalEngine.from_data(
            data, seed=seed, store=store, holdout=holdout, columns=columns, policies=policies, faults=faults
        )
        return cls(engine, seed=seed, on_missing=on_missing, helpers=helpers)

    @classmethod
    def flower(
        cls,
        grid: Any,
        *,
        seed: int = 0,
        caller: str = "flower",
        expect: Sequence[str] = (),
        min_sites: int = 1,
        wait: float = 60.0,
        report: Callable[[str], None] | None = None,
    ) -> "Federation":
        """Federation of the nodes of a Flower run, inside a ServerApp: ``grid`` is what its main function is given.

        ``expect`` names the sites that shall take part; without it the run waits for ``min_sites``, either way at most
        ``wait`` seconds. ``report`` hears of progress and of missing sites, in lines of text. ``caller`` is who asks,
        as the sites' policies know them. Needs the extra ``[flower]``.
        """
        from kernfed.federation.engines.flower import FlowerEngine  # needs the extra

        def on_missing(site: str, task: str, refusal: Refusal) -> None:
            if report is not None:
                report(f"{task}: site {site} is missing ({refusal.code}): {refusal.reason}")

        engine = FlowerEngine(grid, expect=expect, min_sites=min_sites, wait=wait, report=report)
        return cls(engine, seed=seed, caller=caller, on_missing=on_missing)

    @classmethod
    def nats(
        cls,
        url: str = "",
        *,
        credentials: Any,
        seed: int = 0,
        sites: Sequence[str] = (),
        wait: float = 10.0,
        patience: float = 0.0,
        on_missing: Callable[[str, str, Refusal], None] | None = None,
    ) -> "Federation":
        """Federation of the sites that are connected to a hub, as the caller that ``credentials`` (a file) name.

        ``url`` is another address of the hub than the one in the credentials, ``sites`` those that shall take part, by
        default all that the caller may ask. ``wait`` is how many seconds the hub is waited for, and ``patience`` how
        many a site that is not connected. Needs the extra ``[serve]``.
        """
        from kernfed.federation.engines.nats import NatsEngine  # needs the extra

        engine = NatsEngine(credentials, url=url, sites=sites, wait=wait, patience=patience)
        return cls(engine, seed=seed, caller=engine.credentials.name, on_missing=on_missing)

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of all sites, sorted."""
        return tuple(site for site in self.engine.sites if site not in self.helpers and self._among(site))

    def _among(self, site: str) -> bool:
        return self._only is None or site in self._only

    def only(self, sites: Sequence[str]) -> "Federation":
        """The same federation as if it had these sites alone; traffic and engine are shared."""
        strangers = sorted(set(sites) - set(self.sites))
        if strangers:
            raise InputError(f"no site {strangers[0]!r}; there are {', '.join(map(repr, self.sites[:20]))}")
        view = copy.copy(self)
        view._only = frozenset(sites)
        return view

    def on_behalf_of(self, person: str) -> "Federation":
        """The same federation, whose questions say that they are asked for ``person``; traffic and engine are shared.

        It is only said: over a hub, a site goes by the key of the connection, and its journal has both names.
        """
        view = copy.copy(self)
        view.caller = person
        return view

    def schemas(
        self, sites: Sequence[str] | None = None, *, min_replies: int | None = None, timeout: float = 600.0
    ) -> dict[str, Schema]:
        """Schemas of the sites (all of them without ``sites``), asked anew."""
        replies = self.describe(sites, min_replies=min_replies, timeout=timeout)
        return {site: Schema.from_values(payload.values) for site, payload in replies}

    def describe(
        self, sites: Sequence[str] | None = None, *, min_replies: int | None = None, timeout: float = 600.0
    ) -> Replies:
        """Replies that hold the sites' schemas, and who did not give theirs."""
        return self.ask(
            "describe",
            Payload(),
            sites=sites,
            check=lambda _, payload: Schema.from_values(payload.values),
            min_replies=min_replies,
            timeout=timeout,
        )

    @property
    def schema(self) -> Schema:
        """What all sites agree on; raises ``SchemaMismatch`` where they do not."""
        return agree(self.schemas())

    def ask(
        self,
        task: str,
        payload: Payload | Mapping[str, Payload],
        *,
        sites: Sequence[str] | None = None,
        timeout: float = 600.0,
        min_replies: int | None = None,
        check: Callable[[str, Payload], object] | None = None,
        question_id: str | None = None,
        keep: bool = True,
    ) -> Replies:
        """Replies of ``sites`` (default all) to one question; see ``Ask`` for the arguments.

        ``TooFewReplies`` is raised where fewer than ``min_replies`` (default: all asked) remain.
        """
        asked = Ask(task, payload, sites, min_replies, check, question_id, keep)
        (outcome,) = self.exchange([asked], timeout)
        if isinstance(outcome, TooFewReplies):
            raise outcome
        return outcome

    def run(self, program: Program[Result], *, timeout: float = 600.0) -> Result:
        """The result of a program. Each of its asks is one exchange, of at most ``timeout`` seconds."""
        try:
            asked = next(program)
            while True:
                alone = isinstance(asked, Ask)
                outcomes = self.exchange((asked,) if isinstance(asked, Ask) else asked, timeout)
                asked = advance(program, outcomes, alone)
        except StopIteration as end:
            result: Result = end.value
            return result

    def exchange(self, asks: Sequence[Ask], timeout: float = 600.0) -> tuple[Outcome, ...]:
        """The outcome of every ask. Each site gets one message with everything that is asked of it, and sends one back.

        Large replies are checked several at a time. Where an ask does not keep its replies, they are taken one after
        the other: few are in memory at a time, whatever the number of sites.
        """
        check_number(timeout, "timeout", above=0)
        asked = [_Asked.of(ask, self) for ask in asks]
        by_site: dict[str, list[_Asked]] = {}
        for one in asked:
            for site in one.questions:
                by_site.setdefault(site, []).append(one)
        bundles: dict[tuple[int, ...], bytes] = {}  # sites that are asked the same get the same bytes
        data = {
            site: bundles.setdefault(
                tuple(id(one.sent[site]) for one in ones), encode_bundle([one.sent[site] for one in ones])
            )
            for site, ones in sorted(by_site.items())
        }
        sites = list(data)
        started = time.monotonic()

        def take(site: str, carried: bytes | Refusal | None) -> None:
            ones = by_site[site]
            extra = len(data[site]) - sum(len(one.sent[site]) for one in ones)  # of the bundle; the first part has it
            for place, (one, part) in enumerate(zip(ones, reply_parts(carried, len(ones), site), strict=True)):
                self._receive(one, site, part, extra if place == 0 else 0)

        carried_data: bytes | dict[str, bytes] = next(iter(data.values())) if len(bundles) == 1 else data
        keep = all(ask.keep for ask in asks)
        if not sites:
            pass
        elif keep or not isinstance(self.engine, DeliveringEngine):
            carried = self.engine.carry(carried_data, sites, timeout)
            size = sum(len(reply) for reply in carried.values() if isinstance(reply, bytes))
            # Checks of large replies (is this matrix positive?) take as long as sites take to make them: one core each.
            # Where replies are not kept the check adds them up, and two at once would lose one.
            one_by_one = not keep or size < _CHECKED_IN_THREADS
            in_threads(lambda site: take(site, carried.get(site)), sites, 1 if one_by_one else None)
        else:
            taken: set[str] = set()

            def deliver(site: str, answer: bytes | Refusal) -> None:
                taken.add(site)
                take(site, answer)

            self.engine.deliver(carried_data, sites, timeout, deliver)
            for site in sites:
                if site not in taken:
                    take(site, None)
        self.traffic.exchanges += bool(sites)
        seconds = time.monotonic() - started
        return tuple(self._outcome(one, seconds) for one in asked)

    def _outcome(self, asked: "_Asked", seconds: float) -> Outcome:
        """Replies to an ask, or ``TooFewReplies``; ``on_missing`` is called for every site that is missing."""
        payloads: dict[str, Payload] = {}
        missing: dict[str, Refusal] = {}
        for site in asked.questions:
            outcome = asked.outcomes[site]
            if isinstance(outcome, Refusal):
                missing[site] = outcome
                if self._on_missing is not None:
                    self._on_missing(site, asked.ask.task, outcome)
            else:
                payloads[site] = outcome
        replies = Replies(payloads, missing, seconds, sum(asked.down.values()), sum(asked.up.values()))
        return replies if len(replies) >= asked.needed else TooFewReplies(asked.ask.task, asked.needed, replies)

    def _receive(self, asked: "_Asked", site: str, carried: bytes | Refusal | None, extra: int) -> None:
        """Take the reply of one site to an ask: its payload if it may be used, otherwise why not."""
        question, down = asked.questions[site], len(asked.sent[site]) + extra
        up, information, scalars = 0, "none", 0
        outcome: Payload | Refusal
        if carried is None:
            outcome = Refusal("no answer", f"site {site!r} did not answer in time")
        elif isinstance(carried, Refusal):
            outcome = carried
        else:
            up = len(carried)
            try:
                reply = decode_reply(carried, question, site)
                information, scalars = reply.information, reply.payload.scalars
                if reply.refusal is None and asked.ask.check is not None:
                    asked.ask.check(site, reply.payload)
                outcome = (reply.payload if asked.ask.keep else Payload()) if reply.refusal is None else reply.refusal
            except MessageError as error:
                outcome = Refusal("bad reply", f"the reply of site {site!r} is not usable: {error}")
            except Exception as error:  # a reply made to break the check must not stop the round of the others
                plain = type(error) is ValueError or isinstance(error, InputError)
                reason = str(error) if plain else f"{type(error).__name__}: {error}"
                outcome = Refusal("bad reply", f"the reply of site {site!r} was refused: {reason}")
        asked.outcomes[site], asked.down[site], asked.up[site] = outcome, down, up
        self.traffic.add(site, question.task, information, down=down, up=up, scalars=scalars)

    def sum(
        self,
        task: str,
        payload: Payload,
        arrays: Mapping[str, tuple[tuple[int, ...], float]],
        *,
        committee: Any = None,
        sites: Sequence[str] | None = None,
        min_replies: int | None = None,
        timeout: float = 600.0,
        check: Callable[[str, Payload], None] | None = None,
    ) -> Total:
        """The sum over ``sites`` (default all) of what an additive task answers; see ``docs/secure-sums.md``.

        ``arrays`` says of each array its shape and the most that an entry of one site can be in size. ``committee`` is
        None for answers in the clear, of which ``check`` may refuse some; "secure" or a ``kernfed.secure.Committee``
        for masked ones, of which nobody sees any. The sum is the same to the last bit. ``min_replies`` as in ``ask``.
        """
        asked = self.sites if sites is None else sites
        program = summer()(
            self, task, payload, arrays, committee=committee, sites=asked, min_replies=min_replies, check=check
        )
        total: Total = self.run(program, timeout=timeout)
        return total

    def connect(self, model: Any) -> Any:
        """``model`` answered by the sites of this federation."""
        connect = connector(model)
        if connect is None:
            raise InputError(f"a {type(model).__name__} does not need a federation")
        return connect(self, model)

    def close(self) -> None:
        """Release what the engine holds."""
        self.engine.close()

    def __enter__(self) -> "Federation":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class _Asked:
    """An ask on its way: the question and its bytes for every site, and what came back."""

    ask: Ask
    needed: int
    questions: dict[str, Question]
    sent: dict[str, bytes]
    outcomes: dict[str, Payload | Refusal] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)
    up: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, ask: Ask, federation: Federation) -> "_Asked":
        """Questions of an ask, encoded; once where it is the same for all sites."""
        payload = ask.payload
        known = federation.sites if isinstance(payload, Payload) else tuple(payload)
        sites = sorted(set(known if ask.sites is None else ask.sites))
        strangers = [site for site in sites if site not in (*federation.sites, *federation.helpers)]
        if strangers:
            raise InputError(f"no site {strangers[0]!r}; there are {', '.join(map(repr, federation.sites[:20]))}")
        needed = len(sites) if ask.min_replies is None else check_count(ask.min_replies, "min_replies", at_least=0)
        identity = ask.question_id or secrets.token_hex(12)

        def question(payload: Payload) -> Question:
            return Question(federation.run_id, identity, ask.task, payload, federation.caller)

        if isinstance(payload, Payload):
            one = question(payload)
            return cls(ask, needed, dict.fromkeys(sites, one), dict.fromkeys(sites, encode_question(one)))
        questions = {site: question(payload[site]) for site in sites}
        return cls(ask, needed, questions, {site: encode_question(one) for site, one in questions.items()})


def warn_missing(missing: Mapping[str, str], how: str) -> None:
    """Warn of the sites in ``missing`` (site: reason), if any, and say ``how`` the work went on without them."""
    if not missing:
        return
    listed = "; ".join(f"{site!r}: {reason}" for site, reason in list(missing.items())[:10])
    more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
    warn(f"{len(missing)} site(s) missing, {how}: {listed}{more}", MissingSites)

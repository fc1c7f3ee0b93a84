"""What learners use: a federation of sites that can be asked, on whatever engine.

An engine only moves bytes. ``Federation`` gives questions their identity, refuses replies that do not fit, says who is
missing and why, and keeps the record of traffic; so learners are the same on every engine.
"""

import copy
import secrets
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernfed.base.checks import check_count, check_number
from kernfed.base.threads import in_threads
from kernfed.errors import InputError, MessageError, MissingSites, TooFewReplies
from kernfed.federation.engines.local import DeliveringEngine, Engine, LocalEngine
from kernfed.site.protocol.message import Payload, Question, Refusal, Reply, decode_reply, encode_question
from kernfed.site.protocol.replies import Replies, Total
from kernfed.site.protocol.schema import Schema, agree, odd_sites
from kernfed.site.protocol.task import connector, summer
from kernfed.site.protocol.traffic import Traffic

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
        self.run = secrets.token_hex(8)
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
            "describe", Payload(), sites=sites, check=_check_schema, min_replies=min_replies, timeout=timeout
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
        check: Callable[[str, Payload], None] | None = None,
        question_id: str | None = None,
        keep: bool = True,
    ) -> Replies:
        """Ask ``sites`` (default all) and return what fits. A mapping of payloads asks every site it names its own.

        ``check(site, payload)`` raises ``ValueError`` for a payload that must not be used: the site then counts as
        missing. Large replies are checked several at a time. ``min_replies`` (default: all asked) is how many must
        remain, or ``TooFewReplies`` is raised. A question repeated with the same ``question_id`` changes nothing at the
        sites. Without ``keep`` a payload is let go once ``check`` has seen it, one after the other: whatever the number
        of sites, few are held at a time.
        """
        known = self.sites if isinstance(payload, Payload) else tuple(payload)
        asked = sorted(set(known if sites is None else sites))
        strangers = [site for site in asked if site not in (*self.sites, *self.helpers)]
        if strangers:
            raise InputError(f"no site {strangers[0]!r}; there are {', '.join(map(repr, self.sites[:20]))}")
        check_number(timeout, "timeout", above=0)
        needed = len(asked) if min_replies is None else check_count(min_replies, "min_replies", at_least=0)
        identity = question_id or secrets.token_hex(12)
        own = dict.fromkeys(asked, payload) if isinstance(payload, Payload) else {site: payload[site] for site in asked}
        questions = {site: Question(self.run, identity, task, own[site], self.caller) for site in asked}
        data: bytes | dict[str, bytes]
        if isinstance(payload, Payload):  # the same for all, so encoded once
            data = encode_question(Question(self.run, identity, task, payload, self.caller))
        else:
            data = {site: encode_question(question) for site, question in questions.items()}
        started = time.monotonic()
        outcomes: dict[str, Payload | Refusal] = {}

        def take(site: str, carried: bytes | Refusal | None) -> None:
            down = len(data if isinstance(data, bytes) else data[site])
            outcome = self._receive(site, questions[site], carried, down, check)
            outcomes[site] = Payload() if isinstance(outcome, Payload) and not keep else outcome

        if keep or not isinstance(self.engine, DeliveringEngine):
            carried = self.engine.carry(data, asked, timeout)
            size = sum(len(reply) for reply in carried.values() if isinstance(reply, bytes))
            # Checks of large replies (is this matrix positive?) take as long as sites take to make them: one core each.
            # Where replies are not kept the check adds them up, and two at once would lose one.
            alone = not keep or size < _CHECKED_IN_THREADS
            in_threads(lambda site: take(site, carried.get(site)), asked, 1 if alone else None)
        else:
            self.engine.deliver(data, asked, timeout, take)
            for site in asked:
                if site not in outcomes:
                    take(site, None)
        payloads: dict[str, Payload] = {}
        missing: dict[str, Refusal] = {}
        for site in asked:
            outcome = outcomes[site]
            if isinstance(outcome, Refusal):
                missing[site] = outcome
                if self._on_missing is not None:
                    self._on_missing(site, task, outcome)
            else:
                payloads[site] = outcome
        replies = Replies(payloads, missing, time.monotonic() - started)
        if len(replies) < needed:
            raise TooFewReplies(task, needed, replies)
        return replies

    def _receive(
        self,
        site: str,
        question: Question,
        carried: bytes | Refusal | None,
        down: int,
        check: Callable[[str, Payload], None] | None,
    ) -> Payload | Refusal:
        """Payload of one site if it may be used, otherwise why not; the traffic is noted either way."""
        if carried is None or isinstance(carried, Refusal):
            self.traffic.add(site, question.task, "none", down=down, up=0, scalars=0)
            return carried if carried is not None else Refusal("no answer", f"site {site!r} did not answer in time")
        reply: Reply | None = None
        try:
            reply = decode_reply(carried, question, site)
            if reply.refusal is not None:
                return reply.refusal
            if check is not None:
                check(site, reply.payload)
            return reply.payload
        except MessageError as error:
            return Refusal("bad reply", f"the reply of site {site!r} is not usable: {error}")
        except Exception as error:  # a reply made to break the check must not stop the round of the others
            told = (
                str(error)
                if type(error) is ValueError or isinstance(error, InputError)
                else f"{type(error).__name__}: {error}"
            )
            return Refusal("bad reply", f"the reply of site {site!r} was refused: {told}")
        finally:
            information = reply.information if reply is not None else "none"
            scalars = reply.payload.scalars if reply is not None else 0
            self.traffic.add(site, question.task, information, down=down, up=len(carried), scalars=scalars)

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
        total: Total = summer()(
            self,
            task,
            payload,
            arrays,
            committee=committee,
            sites=self.sites if sites is None else sites,
            min_replies=min_replies,
            timeout=timeout,
            check=check,
        )
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


def agreeing(replies: Replies, read: Callable[[Payload], Schema], min_replies: int | None) -> tuple[Replies, Schema]:
    """Replies of the sites that describe their data alike, by the schemas ``read`` finds in them, and the common one.

    Without ``min_replies`` all must: ``SchemaMismatch`` says who differs. With it, those that differ from most are
    missing by name, as far as enough are left.
    """
    schemas = {site: read(payload) for site, payload in replies}
    if min_replies is not None:
        odd = odd_sites(schemas)
        if len(schemas) - len(odd) >= max(1, min_replies):
            replies = replies.without(odd)
            schemas = {site: schema for site, schema in schemas.items() if site not in odd}
    return replies, agree(schemas)


def leave_out(task: str, replies: Replies, reasons: Mapping[str, str], min_replies: int | None) -> Replies:
    """Replies without those that only a comparison of sites shows to be false; ``TooFewReplies`` where few are left.

    Without ``min_replies`` all are needed.
    """
    if not reasons:
        return replies
    needed = len(replies) + len(replies.missing) if min_replies is None else min_replies
    left = replies.without(reasons)
    if len(left) < needed:
        raise TooFewReplies(task, needed, left)
    return left


def _check_schema(site: str, payload: Payload) -> None:  # noqa: ARG001  every check has this signature
    Schema.from_values(payload.values)


def warn_missing(missing: Mapping[str, str], how: str, *, stacklevel: int) -> None:
    """Warn of the sites in ``missing`` (site: reason), if any, and say ``how`` the work went on without them."""
    if not missing:
        return
    listed = "; ".join(f"{site!r}: {reason}" for site, reason in list(missing.items())[:10])
    more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
    warnings.warn(f"{len(missing)} site(s) missing, {how}: {listed}{more}", MissingSites, stacklevel=stacklevel + 1)

"""The same learners over Flower: an engine on the grid of a ServerApp. ``flower_site`` is the other end.

A question travels as one array of bytes, so whatever a learner asks, Flower sees the same message; replies are found by
the id of the question they answer, never by their order.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kernfed.base.checks import check_count, check_number
from kernfed.errors import InputError
from kernfed.federation.engines.local import Answer, DeliveringEngine, Questions
from kernfed.site.protocol.message import Refusal

try:
    from flwr.app import Array, ArrayRecord, Message, RecordDict
    from flwr.serverapp import Grid
except ImportError as error:
    raise ImportError("the Flower engine needs Flower: pip install -e '.[flower]' in a clone of kernfed") from error

#: Message type under which a ClientApp registers ``answer``: ``@app.query("kernfed")``.
ACTION = "kernfed"
_TYPE = f"query.{ACTION}"
RECORD, BYTES, NAME = "kernfed", "message", "site"
#: How far clocks of machines may differ, in seconds: a message is valid that much longer than its question waits.
_CLOCKS = 60.0
#: Seconds between two looks for replies, at first and at most; Flower's own loop always waits 3.
_FIRST_LOOK, _LONGEST_LOOK = 0.05, 1.0
#: Seconds after which the operator is told again who is being waited for.
_REMINDER = 15.0
#: More sites than this are not listed one by one.
_FEW = 20
#: What Flower says of a node that vanished, and of a ClientApp that could not be loaded.
_GONE, _NOT_LOADED = 5, 1


class FlowerEngine(DeliveringEngine):
    """Carries questions to the nodes of a Flower run.

    A node is known by the name it was registered with; nodes without one are asked for the name in their
    configuration, which takes a round. ``expect`` names the sites that shall take part, and no other is asked anything
    else than its name: they are waited for, and one that does not come is still listed and counts as unreachable.
    Without it all nodes take part, and ``min_sites`` is how many to wait for.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        expect: Sequence[str] = (),
        min_sites: int = 1,
        wait: float = 60.0,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self._grid = grid
        self._expected = frozenset(expect)
        self._report = report or (lambda _: None)
        self._progress = Progress(self._report)
        self._progress.watch(grid)
        self._nodes: dict[str, int] = {}  # of sites that take part
        self._names: dict[int, str] = {}  # of all nodes that have said which site they are
        self._others: list[str] = []
        check_count(min_sites, "min_sites", at_least=0)
        self._find_nodes(max(min_sites, len(self._expected)), check_number(wait, "wait", at_least=0))

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites expected, or else of those that are connected; sorted."""
        return tuple(sorted(self._expected or self._nodes))

    def deliver(
        self, data: Questions, sites: Sequence[str], timeout: float, take: Callable[[str, Answer], None]
    ) -> None:
        """Send the question to the sites' nodes and hand over their answers as the SuperLink gives them out."""
        deadline = time.monotonic() + timeout
        if any(site not in self._nodes for site in sites):  # a node may have come since
            self._look_for_nodes(deadline)
        for site in sites:
            if site not in self._nodes:
                take(site, Refusal("unreachable", f"no node of site {site!r} is connected"))
        nodes = {site: self._nodes[site] for site in sites if site in self._nodes}
        if isinstance(data, bytes):
            contents = dict.fromkeys(nodes, wrap(data))
        else:
            contents = {site: wrap(data[site]) for site in nodes}
        self._exchange(contents, nodes, deadline, lambda site, reply: take(site, _open(site, reply)))

    def close(self) -> None:
        """Leave the grid, which belongs to the run, as it was."""
        self._progress.close()

    def _find_nodes(self, number: int, wait: float) -> None:
        """Wait until the sites are there: all that are expected, otherwise ``number`` of them."""
        deadline = time.monotonic() + wait
        pause = _FIRST_LOOK
        while True:
            self._look_for_nodes(max(deadline, time.monotonic() + 30.0))
            complete = self._expected <= set(self._nodes) and len(self._nodes) >= number
            if complete or time.monotonic() >= deadline:
                break
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK)
        absent = sorted(self._expected - set(self._nodes))
        self._report(
            f"{len(self._nodes)} site(s) connected: {_listed(self._nodes)}"
            + (f"; not connected: {_listed(absent)}" if absent else "")
            + (f"; not asked: {_listed(self._others)}" if self._others else "")
        )
        if len(self._nodes) < number and not self._expected:
            raise InputError(f"expected {number} site(s) within {wait:g} s, {len(self._nodes)} connected")

    def _look_for_nodes(self, deadline: float) -> None:
        """Learn which sites are connected now; nodes without a name are asked for theirs."""
        nodes = [(int(node.node_id), str(node.name)) for node in self._grid.get_nodes()]
        known = dict(self._names)
        nameless = {str(node): node for node, name in nodes if not name and node not in known}
        replies: dict[str, Message | Refusal] = {}
        self._exchange(dict.fromkeys(nameless, RecordDict()), nameless, deadline, replies.__setitem__)
        for key, reply in replies.items():
            if isinstance(reply, Message) and reply.has_content() and NAME in reply.content.config_records:
                known[nameless[key]] = str(reply.content.config_records[NAME].get(NAME))
            else:
                refusal = _error_of(key, reply) if isinstance(reply, Message) else reply
                self._report(f"node {key} does not say which site it is: {refusal.reason}")
        self._names = known | {node: name for node, name in nodes if name}
        sites: dict[str, int] = {}
        for node, site in sorted((node, self._names[node]) for node, _ in nodes if node in self._names):
            if site in sites:
                raise InputError(f"two nodes ({sites[site]} and {node}) say they are site {site!r}; give each its own")
            sites[site] = node
        self._others = sorted(set(sites) - self._expected) if self._expected else []
        self._nodes = {site: node for site, node in sites.items() if site not in self._others}

    def _exchange(
        self,
        contents: Mapping[str, RecordDict],
        nodes: Mapping[str, int],
        deadline: float,
        take: Callable[[str, Message | Refusal], None],
    ) -> None:
        """Hand over replies by key of ``nodes`` to what each is sent, until all are here or the deadline has come."""
        if not nodes:
            return
        size = sum({id(content): _size(content) for content in contents.values()}.values())
        self._progress.start({}, size, deadline)
        waiting = self._send(contents, nodes, max(1.0, deadline - time.monotonic()) + _CLOCKS)
        self._progress.start(dict(waiting), size, deadline)
        for key in nodes:
            if key not in waiting.values():
                take(key, Refusal("unreachable", f"the SuperLink takes no message for node {nodes[key]}"))
        answered = len(nodes) - len(waiting)
        pause, reminded = _FIRST_LOOK, time.monotonic()
        while waiting:
            for reply in self._newest(waiting):
                key = waiting.pop(reply.metadata.reply_to_message_id)
                answered += 1
                came = _size(reply.content) if reply.has_content() else 0
                if len(nodes) <= _FEW or answered % _FEW == 0 or answered == len(nodes):
                    self._report(f"{answered} of {len(nodes)}: {key} answered, {came:,} bytes")
                take(key, reply)
            now = time.monotonic()
            if not waiting or now >= deadline:
                break
            if now - reminded >= _REMINDER:
                reminded = now
                self._report(f"waiting for {_listed(waiting.values())}, {deadline - now:.0f} s left")
            time.sleep(min(pause, max(0.0, deadline - now)))
            pause = min(1.5 * pause, _LONGEST_LOOK)
        if waiting:
            self._report(f"no answer in time from {_listed(waiting.values())}")

    def _send(self, contents: Mapping[str, RecordDict], nodes: Mapping[str, int], ttl: float) -> dict[str, str]:
        """Keys of ``nodes`` by the id of the message that was accepted for each.

        They go one by one: the list that comes back then tells for certain which message was not accepted. Chunks that
        the SuperLink has already are not sent again, so the same question to many sites is uploaded once.
        """
        waiting = {}
        for key in sorted(nodes):
            ids = list(self._grid.push_messages([Message(contents[key], nodes[key], _TYPE, ttl=ttl)]))
            if ids and ids[0]:
                waiting[ids[0]] = key
        return waiting

    def _newest(self, waiting: Mapping[str, str]) -> list[Message]:
        """Replies to questions that are still open, one each; none once the time is up."""
        try:
            replies: Iterable[Message] = self._grid.pull_messages(list(waiting))
        except TimeoutError:
            return []
        by_question = {reply.metadata.reply_to_message_id: reply for reply in replies}
        return [reply for question, reply in by_question.items() if question in waiting]


# Messages --------------------------------------------------------------------------------------------------------


def wrap(data: bytes) -> RecordDict:
    """Bytes as one array, which Flower cuts into chunks; they are not copied."""
    return RecordDict({RECORD: ArrayRecord({BYTES: Array("uint8", (len(data),), "kernfed", data)})})


def _open(site: str, reply: Message | Refusal) -> Answer:
    """Bytes of a reply, or why there are none."""
    if isinstance(reply, Refusal):
        return reply
    if reply.has_error():
        return _error_of(site, reply)
    record = reply.content.array_records.get(RECORD)
    array = record.get(BYTES) if record is not None else None
    if array is None:
        return Refusal("bad reply", f"the reply of site {site!r} is not a kernfed message; update its ClientApp")
    return array.data


def _error_of(name: str, reply: Message) -> Refusal:
    """What Flower says went wrong at a node, as a refusal."""
    if not reply.has_error():
        return Refusal("bad reply", f"{name!r} did not answer with a name")
    code, reason = reply.error.code, reply.error.reason or "no reason given"
    if code == _GONE:
        return Refusal("unreachable", f"the node of site {name!r} is gone: {reason}")
    if code == _NOT_LOADED:
        return Refusal(
            "error", f"the ClientApp of site {name!r} cannot be loaded, is kernfed installed there? {reason}"
        )
    return Refusal("error", f"the ClientApp of site {name!r} failed (Flower error {code}): {reason}")


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _FEW} more" if len(ordered) > _FEW else ""
    return ", ".join(ordered[:_FEW]) + more


def _size(content: RecordDict) -> int:
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


# Progress ---------------------------------------------------------------------------------------------------------

#: Seconds between two lines about the same message, and how many bytes are not worth one.
_PAUSE, _SMALL = 5.0, 10_000_000


class Progress:
    """Counts the pieces of one exchange and reports how far it is.

    Flower's grid sends and fetches a message in pieces and says nothing until it is whole. The pieces are counted where
    they pass, in the client that the grid uses for its calls. It is not part of Flower's public interface: in a grid
    without such a client nothing is counted, and everything else works as before.

    Fetching stops with ``TimeoutError`` after the deadline: a site that dies while its reply is being fetched would
    otherwise hold the round for minutes.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._client: Any = None
        self._calls = {"PullMessages": self._announced, "PullObject": self._pulled, "PushObject": self._pushed}
        self.start({}, 0, float("inf"))

    def start(self, questions: Mapping[str, str], size: int, deadline: float) -> None:
        """A new exchange: ``questions`` names the site of every message id, ``size`` is the bytes of a question."""
        self._questions, self._size, self._deadline = questions, size, deadline
        self._site_of: dict[str, str] = {}
        self._pieces: dict[str, int] = {}
        self._fetched: dict[str, tuple[int, int]] = {}
        self._sent = 0
        self._reported = time.monotonic()

    def watch(self, grid: Any) -> None:
        """Count the pieces that pass through ``grid``, if it has the client that is known here."""
        client = getattr(grid, "_runtime_client", None)
        if all(callable(getattr(client, name, None)) for name in self._calls):
            self._client = client
            for name, count in self._calls.items():
                setattr(client, name, self._counted(name, getattr(client, name), count))

    def close(self) -> None:
        """Leave the grid as it was."""
        if self._client is not None:
            for name in self._calls:
                delattr(self._client, name)
            self._client = None

    def _counted(self, name: str, call: Callable[[Any], Any], count: Callable[[Any, Any], None]) -> Any:
        """The client's ``call``, followed by ``count(request, response)``."""

        def counted(request: Any) -> Any:
            if name == "PullObject" and time.monotonic() > self._deadline:
                raise TimeoutError("a reply was not fetched in time")
            response = call(request)
            with self._lock:
                count(request, response)
            return response

        return counted

    def _announced(self, _request: Any, response: Any) -> None:
        """Learn which pieces the replies that are there consist of."""
        for message, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            site = self._questions.get(message.metadata.reply_to_message_id)
            if site is not None:
                pieces = set(_pieces(tree))
                self._site_of |= dict.fromkeys(pieces, site)
                self._pieces[site] = len(pieces)

    def _pulled(self, request: Any, response: Any) -> None:
        site, size = self._site_of.get(request.object_id), len(response.object_content)
        if site is None or not size:
            return
        count, fetched = self._fetched.get(site, (0, 0))
        self._fetched[site] = count, fetched = count + 1, fetched + size
        if fetched > _SMALL and self._due():
            self._report(f"receiving from {site}: {fetched:,} bytes, {count / max(self._pieces[site], count):.0%}")

    def _pushed(self, request: Any, _response: Any) -> None:
        self._sent += len(request.object_content)
        if self._sent > _SMALL and self._due():
            self._report(f"sending: {self._sent:,} bytes, {min(1.0, self._sent / max(self._size, 1)):.0%}")

    def _due(self) -> bool:
        """Whether the last line is long enough ago for another one."""
        now = time.monotonic()
        due = now - self._reported >= _PAUSE
        self._reported = now if due else self._reported
        return due


def _pieces(tree: Any) -> Iterator[str]:
    """Ids of an object and of all that it is made of."""
    yield tree.object_id
    for child in tree.children:
        yield from _pieces(child)

"""The same learners over Flower: an engine on its grid, and a site behind its ClientApp.

The only file that imports ``flwr``. A question travels as one array of bytes, so whatever a learner asks, Flower sees
the same message; replies are found by the id of the question they answer, never by their order.
"""

import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernfed._validation import check_count, check_number
from kernfed.data import Table, read_table
from kernfed.errors import InputError
from kernfed.federation.asking import Federation
from kernfed.federation.engines.flower_progress import Progress
from kernfed.federation.protocol.message import Refusal, Reply, encode_reply, error_refusal
from kernfed.federation.site.policy import Policy
from kernfed.federation.site.site import Site
from kernfed.federation.site.store import SiteStore

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.serverapp import Grid
except ImportError as error:
    raise ImportError("the Flower engine needs Flower: pip install -e '.[flower]' in a clone of kernfed") from error

#: Message type under which a ClientApp registers ``answer``: ``@app.query("kernfed")``.
ACTION = "kernfed"
_TYPE = f"query.{ACTION}"
_RECORD, _BYTES, _NAME = "kernfed", "message", "site"
#: What the configuration of a virtual node of Flower's simulation says.
_VIRTUAL = "partition-id"
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

Answers = dict[str, bytes | Refusal]


class FlowerEngine:
    """Carries questions to the nodes of a Flower run.

    A node is known by the name it was registered with; nodes without one are asked for the name in their
    configuration, which takes a round. ``expect`` names sites that shall take part: they are waited for, and one that
    does not come is still listed and counts as unreachable. ``min_sites`` is how many to wait for otherwise.
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
        self._nodes: dict[str, int] = {}
        check_count(min_sites, "min_sites", at_least=0)
        self._find_nodes(max(min_sites, len(self._expected)), check_number(wait, "wait", at_least=0))

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites found or expected, sorted."""
        return tuple(sorted(self._expected | set(self._nodes)))

    def carry(
        self, data: bytes | Mapping[str, bytes], sites: Sequence[str], timeout: float
    ) -> Mapping[str, bytes | Refusal]:
        """Send the question to the sites' nodes and return when all have answered or time is up."""
        deadline = time.monotonic() + timeout
        if any(site not in self._nodes for site in sites):  # a node may have come since
            self._look_for_nodes(deadline)
        answers: Answers = {
            site: Refusal("unreachable", f"no node of site {site!r} is connected")
            for site in sites
            if site not in self._nodes
        }
        nodes = {site: self._nodes[site] for site in sites if site in self._nodes}
        if isinstance(data, bytes):
            contents = dict.fromkeys(nodes, _wrap(data))
        else:
            contents = {site: _wrap(data[site]) for site in nodes}
        for site, reply in self._exchange(contents, nodes, deadline).items():
            answers[site] = _open(site, reply)
        return answers

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
        )
        if len(self._nodes) < number and not self._expected:
            raise InputError(f"expected {number} site(s) within {wait:g} s, {len(self._nodes)} connected")

    def _look_for_nodes(self, deadline: float) -> None:
        found = [(int(node.node_id), str(node.name)) for node in self._grid.get_nodes()]
        known = {node: site for site, node in self._nodes.items()}
        nameless = {str(node): node for node, name in found if not name and node not in known}
        for key, reply in self._exchange(dict.fromkeys(nameless, RecordDict()), nameless, deadline).items():
            if isinstance(reply, Message) and reply.has_content() and _NAME in reply.content.config_records:
                known[nameless[key]] = str(reply.content.config_records[_NAME].get(_NAME))
            else:
                told = _error_of(key, reply) if isinstance(reply, Message) else reply
                self._report(f"node {key} does not say which site it is: {told.reason}")
        known |= {node: name for node, name in found if name}
        online = {node for node, _ in found}
        sites: dict[str, int] = {}
        for node, site in sorted(known.items()):
            if node not in online:
                continue
            if site in sites:
                raise InputError(f"two nodes ({sites[site]} and {node}) say they are site {site!r}; give each its own")
            sites[site] = node
        self._nodes = sites

    def _exchange(
        self, contents: Mapping[str, RecordDict], nodes: Mapping[str, int], deadline: float
    ) -> dict[str, Message | Refusal]:
        """Replies by key of ``nodes`` to what each is sent, until all are here or the deadline has come."""
        if not nodes:
            return {}
        size = sum({id(content): _size(content) for content in contents.values()}.values())
        self._progress.start({}, size, deadline)
        waiting = self._send(contents, nodes, max(1.0, deadline - time.monotonic()) + _CLOCKS)
        self._progress.start(dict(waiting), size, deadline)
        replies: dict[str, Message | Refusal] = {
            key: Refusal("unreachable", f"the SuperLink takes no message for node {nodes[key]}")
            for key in nodes
            if key not in waiting.values()
        }
        pause, reminded = _FIRST_LOOK, time.monotonic()
        while waiting:
            for reply in self._newest(waiting):
                key = waiting.pop(reply.metadata.reply_to_message_id)
                replies[key] = reply
                came = _size(reply.content) if reply.has_content() else 0
                if len(nodes) <= _FEW or len(replies) % _FEW == 0 or len(replies) == len(nodes):
                    self._report(f"{len(replies)} of {len(nodes)}: {key} answered, {came:,} bytes")
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
        return replies

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
        return list(
            {
                reply.metadata.reply_to_message_id: reply
                for reply in replies
                if reply.metadata.reply_to_message_id in waiting
            }.values()
        )


def flower_federation(
    grid: Grid,
    *,
    seed: int = 0,
    caller: str = "flower",
    expect: Sequence[str] = (),
    min_sites: int = 1,
    wait: float = 60.0,
    report: Callable[[str], None] | None = None,
) -> Federation:
    """Federation of the nodes of a Flower run, for use inside a ServerApp."""
    engine = FlowerEngine(grid, expect=expect, min_sites=min_sites, wait=wait, report=report)

    def on_missing(site: str, task: str, refusal: Refusal) -> None:
        if report is not None:
            report(f"{task}: site {site} is missing ({refusal.code}): {refusal.reason}")

    return Federation(engine, seed=seed, caller=caller, on_missing=on_missing)


def serve(grid: Grid, context: Context) -> None:
    """Main function of a ServerApp: do the job that the run's configuration names, and write its results.

    See ``kernfed.federation.jobs`` for the settings. A job that fails raises, so that Flower calls the run failed.
    """
    from kernfed.federation.jobs import Job, run_job

    job = Job.from_settings(context.run_config, run=str(context.run_id))

    def report(text: str) -> None:
        print("\n".join(f"kernfed: {line}" for line in text.splitlines()), flush=True)

    with flower_federation(
        grid, seed=job.seed, caller=job.caller, expect=job.sites, min_sites=job.min_sites, wait=job.wait, report=report
    ) as federation:
        report(f"{job.kind}: results are in {run_job(federation, job)}")


# At a site -------------------------------------------------------------------------------------------------------


def answer(message: Message, context: Context, make_site: Callable[[Context], Site] | None = None) -> Message:
    """Reply of a ClientApp to a message of ``FlowerEngine``.

    ``make_site`` builds the site (default: from the node's configuration). What it raises becomes a refusal with its
    traceback, for the operator; it is printed here as well.
    """
    name = site_name(context)
    if _RECORD not in message.content.array_records:
        return Message(RecordDict({_NAME: ConfigRecord({_NAME: name})}), reply_to=message)
    try:
        site = (make_site or site_from_config)(context)
        reply = site.answer(message.content.array_records[_RECORD][_BYTES].data)
    except Exception as error:  # whatever it is, the operator must see it and the other sites must go on
        refusal = error_refusal(error)
        print(refusal.reason, file=sys.stderr, flush=True)
        reply = encode_reply(Reply(name, "", "", "", "", refusal=refusal))
    return Message(_wrap(reply), reply_to=message)


def site_name(context: Context) -> str:
    """Name of the site in the node's configuration; that of a virtual node without one is its number: site-007."""
    config = node_config(context)
    name = config.get("site")
    if name is None and _VIRTUAL in config:
        return f"site-{int(config[_VIRTUAL]):03}"
    if not isinstance(name, str) or not name:
        raise InputError(
            f"the node's configuration must name its site, got {name!r}; "
            'start it with --node-config \'site="a" data="/path" ...\''
        )
    return name


def node_config(context: Context) -> Mapping[str, Any]:
    """The node's configuration. Virtual nodes of Flower's simulation take theirs from the run's folder ``nodes``.

    It holds a file of settings for each of them, ``*.toml``, in the order of their names. A node that names its site is
    none: whoever starts a run must not choose its policy.
    """
    folder = context.run_config.get("nodes")
    if _VIRTUAL not in context.node_config or "site" in context.node_config or not folder:
        return context.node_config
    files, number = sorted(Path(str(folder)).glob("*.toml")), int(context.node_config[_VIRTUAL])
    if number >= len(files):
        raise InputError(f"virtual node {number} needs its settings, {folder} holds {len(files)} files *.toml")
    return tomllib.loads(files[number].read_text(encoding="utf-8"))


def site_from_config(context: Context) -> Site:
    """Site described by the node's configuration.

    site, data (a table), label, store (a folder) are needed; features, ids, policy (``site.toml``; without it only
    schema and scores leave), holdout, seed, scaling and encoder may be given. Paths are absolute, for a ClientApp does
    not choose its working folder.
    """
    config = node_config(context)
    known = {"site", "data", "label", "store", "features", "ids", "policy", "holdout", "seed", "scaling", "encoder"}
    unknown = sorted(set(config) - known)
    if unknown:
        raise InputError(f"unknown setting {unknown[0]!r} in the node's configuration; known are {sorted(known)}")
    data, store = _path(config, "data"), _path(config, "store")
    label, features, ids = (_text(config, word) for word in ("label", "features", "ids"))
    if label is None:
        raise InputError('the node\'s configuration must name the column of labels: label="y"')
    policy = Policy.read(_path(config, "policy")) if "policy" in config else Policy()

    def read() -> Table:
        return read_table(data, features=features, label=label, ids=ids)

    return Site(
        site_name(context),
        read,
        store=SiteStore(store),
        policy=policy,
        scaling=_text(config, "scaling") or "",
        encoder=_text(config, "encoder") or "",
        holdout=float(config.get("holdout", 0.0)),
        seed=int(config.get("seed", 0)),
    )


def _text(config: Mapping[str, Any], word: str) -> str | None:
    value = config.get(word)
    if value is not None and (not isinstance(value, str) or not value):
        raise InputError(f"{word} in the node's configuration must be text, got {value!r}")
    return value


def _path(config: Mapping[str, Any], word: str) -> Path:
    value = _text(config, word)
    if value is None or not Path(value).is_absolute():
        raise InputError(f"{word} in the node's configuration must be an absolute path, got {value!r}")
    return Path(value)


# Messages --------------------------------------------------------------------------------------------------------


def _wrap(data: bytes) -> RecordDict:
    """Bytes as one array, which Flower cuts into chunks; they are not copied."""
    return RecordDict({_RECORD: ArrayRecord({_BYTES: Array("uint8", (len(data),), "kernfed", data)})})


def _open(site: str, reply: Message | Refusal) -> bytes | Refusal:
    """Bytes of a reply, or why there are none."""
    if isinstance(reply, Refusal):
        return reply
    if reply.has_error():
        return _error_of(site, reply)
    record = reply.content.array_records.get(_RECORD)
    array = record.get(_BYTES) if record is not None else None
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

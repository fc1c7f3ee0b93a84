"""A site behind Flower: what a ClientApp answers to the questions of ``FlowerEngine``, and a site from its settings."""

import logging
import sys
import tomllib
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict

from kernfed.errors import InputError
from kernfed.federation.engines.flower import ACTION, BYTES, NAME, RECORD, wrap
from kernfed.site.protocol.message import Refusal, Reply, encode_reply
from kernfed.site.settings import site_from_settings
from kernfed.site.site import Site

__all__ = ["ACTION", "answer", "node_config", "site_from_config", "site_name"]
#: What the configuration of a virtual node of Flower's simulation says.
_VIRTUAL = "partition-id"


def answer(message: Message, context: Context, make_site: Callable[[Context], Site] | None = None) -> Message:
    """Reply of a ClientApp to a message of ``FlowerEngine``.

    ``make_site`` builds the site (default: from the node's configuration). What it raises is printed here, for the
    operator of the site, and nobody else is told more than that it happened.
    """
    _listen()
    name = site_name(context)
    if RECORD not in message.content.array_records:
        return Message(RecordDict({NAME: ConfigRecord({NAME: name})}), reply_to=message)
    try:
        site = (make_site or site_from_config)(context)
        reply = site.answer(message.content.array_records[RECORD][BYTES].data)
    except Exception:  # the operator must see it and the other sites must go on
        traceback.print_exc(file=sys.stderr)  # here, and nowhere else: a table that cannot be read has cells in it
        refusal = Refusal("error", f"site {name!r} cannot be set up; the log of its node says why")
        reply = encode_reply(Reply(name, "", "", "", "", refusal=refusal))
    return Message(wrap(reply), reply_to=message)


def _listen() -> None:
    """Let what goes wrong at the site, with the way there, reach the log of its node: stderr."""
    log = logging.getLogger("kernfed.site")
    if logging.lastResort is not None and logging.lastResort not in log.handlers:
        log.addHandler(logging.lastResort)


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

    site, data (a table), label, store (a folder) are needed; features, ids, persons, policy (``site.toml``; without it
    only schema and scores leave), holdout, seed, scaling and encoder may be given. Paths are absolute, for a ClientApp
    does not choose its working folder.
    """
    config = node_config(context)
    settings = {name: value for name, value in config.items() if name != "site"}
    return site_from_settings(site_name(context), settings, "the node's configuration")

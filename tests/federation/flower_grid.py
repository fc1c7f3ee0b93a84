"""A Flower grid in this process: every node is a thread that calls the ClientApp.

``Message`` asks Flower's private ``TaskIdentity`` who is speaking; nothing but this file touches it.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from kernfed.federation import Fault
from kernfed.federation.engines.flower_site import ACTION, answer
from kernfed.site.site import Site
from oracles.federation import Data

RUN, SERVER = 7, 1
RAISED, GONE = 2, 5


def client_app(make_site: Callable[[Context], Site] | None = None) -> ClientApp:
    """The ClientApp that ``kernfed flower-app`` writes."""
    app = ClientApp()

    @app.query(ACTION)
    def query(message: Message, context: Context) -> Message:
        return answer(message, context, make_site)

    return app


class InProcessGrid(Grid):
    """``configs`` maps node ids to node configurations; ``names`` to the names they were registered with."""

    def __init__(
        self,
        app: ClientApp,
        configs: Mapping[int, dict[str, Any]],
        *,
        names: Mapping[int, str] | None = None,
        faults: Mapping[int, Fault] | None = None,
        run_config: dict[str, Any] | None = None,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, SERVER, 1
        self.app, self.configs = app, dict(configs)
        self.names, self.faults = dict(names or {}), dict(faults or {})
        self.run_config = run_config or {}
        self.replies: dict[str, Message] = {}
        self.pushed: list[Message] = []

    def set_run(self, run: Any) -> None:
        self.the_run = run

    @property
    def run(self) -> Any:
        return self.the_run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        ids = list(self.push_messages(messages))
        time.sleep(timeout or 0.1)
        return self.pull_messages(ids)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.configs)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, name=self.names.get(node, "")) for node in self.configs]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
            self.pushed.append(message)
            ids.append(message.metadata.message_id)
            threading.Thread(target=self._answer, args=(message,), daemon=True).start()
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(name) for name in list(message_ids) if name in self.replies]

    def _answer(self, message: Message) -> None:
        node = message.metadata.dst_node_id
        fault = self.faults.get(node, Fault("slow", 0.0))
        context = Context(RUN, node, self.configs[node], RecordDict(), self.run_config)
        if fault.kind == "dead":
            reply = Message(Error(GONE, "Node Unavailable"), reply_to=message)
        else:
            time.sleep(fault.seconds)
            try:
                reply = self.app(message, context)
            except Exception as error:  # as Flower's own runner does
                reply = Message(Error(RAISED, f"{type(error)}:<'{error}'>"), reply_to=message)
        if fault.kind == "garbage" and reply.has_content():
            for record in reply.content.array_records.values():
                for array in record.values():
                    array.data = bytes(reversed(array.data))
        self.replies[message.metadata.message_id] = reply


def node_configs(data: Data, folder: Path, **more: Any) -> dict[int, dict[str, Any]]:
    """Configurations of nodes whose tables and stores are in ``folder``, open to every task."""
    (folder / "site.toml").write_text('tasks = ["*"]\n')
    configs = {}
    for number, (name, (X, y)) in enumerate(data.items(), start=11):
        np.savez(folder / f"{name}.npz", X=X, y=y)
        paths = {"data": folder / f"{name}.npz", "store": folder / f"store-{name}", "policy": folder / "site.toml"}
        configs[number] = {"site": name, "label": "y", **{key: str(path) for key, path in paths.items()}, **more}
    return configs


def over_files(data: Data, folder: Path, **more: Any) -> InProcessGrid:
    """Grid of nodes that read their tables from ``folder``."""
    return InProcessGrid(client_app(), node_configs(data, folder, **more))

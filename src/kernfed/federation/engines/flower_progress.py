"""How far a large message has come: Flower's grid sends and fetches it in pieces, and says nothing until it is whole.

The pieces are counted where they pass, in the client that the grid uses for its calls. It is not part of Flower's
public interface: in a grid without such a client nothing is counted, and everything else works as before.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

#: Seconds between two lines about the same message, and how many bytes are not worth one.
_PAUSE, _SMALL = 5.0, 10_000_000


class Progress:
    """Counts the pieces of one exchange and reports how far it is.

    Fetching stops with ``TimeoutError`` after the deadline: a site that dies while its reply is being fetched would
    otherwise hold the round for minutes.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._client: Any = None
        self.start({}, 0, float("inf"))

    def start(self, questions: Mapping[str, str], size: int, deadline: float) -> None:
        """A new exchange: ``questions`` names the site of every message id, ``size`` is the bytes of a question."""
        self._questions, self._size, self._deadline = questions, size, deadline
        self._owner: dict[str, str] = {}
        self._pieces: dict[str, int] = {}
        self._fetched: dict[str, list[int]] = {}
        self._sent = 0
        self._told = time.monotonic()

    def watch(self, grid: Any) -> None:
        """Count the pieces that pass through ``grid``, if it has the client that is known here."""
        client = getattr(grid, "_runtime_client", None)
        calls = {"PullMessages": self._announced, "PullObject": self._pulled, "PushObject": self._pushed}
        if all(callable(getattr(client, name, None)) for name in calls):
            self._client = client
            for name, counted in calls.items():
                setattr(client, name, counted(getattr(client, name)))

    def close(self) -> None:
        """Leave the grid as it was."""
        if self._client is not None:
            for name in ("PullMessages", "PullObject", "PushObject"):
                delattr(self._client, name)
            self._client = None

    def _announced(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Learn which pieces the replies that are there consist of."""

        def counted(request: Any) -> Any:
            response = call(request)
            for message, tree in zip(response.messages_list, response.message_object_trees, strict=True):
                site = self._questions.get(message.metadata.reply_to_message_id)
                if site is not None:
                    pieces = set(_pieces(tree))
                    self._owner |= dict.fromkeys(pieces, site)
                    self._pieces[site] = len(pieces)
            return response

        return counted

    def _pulled(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def counted(request: Any) -> Any:
            if time.monotonic() > self._deadline:
                raise TimeoutError("a reply was not fetched in time")
            response = call(request)
            site, size = self._owner.get(request.object_id), len(response.object_content)
            with self._lock:
                if site is not None and size:
                    so_far = self._fetched.setdefault(site, [0, 0])
                    so_far[0] += 1
                    so_far[1] += size
                    if so_far[1] > _SMALL and self._due():
                        share = so_far[0] / max(self._pieces[site], so_far[0])
                        self._report(f"receiving from {site}: {so_far[1]:,} bytes, {share:.0%}")
            return response

        return counted

    def _pushed(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def counted(request: Any) -> Any:
            response = call(request)
            with self._lock:
                self._sent += len(request.object_content)
                if self._sent > _SMALL and self._due():
                    self._report(f"sending: {self._sent:,} bytes, {min(1.0, self._sent / max(self._size, 1)):.0%}")
            return response

        return counted

    def _due(self) -> bool:
        now = time.monotonic()
        if now - self._told < _PAUSE:
            return False
        self._told = now
        return True


def _pieces(tree: Any) -> Iterator[str]:
    """Ids of an object and of all that it is made of."""
    yield tree.object_id
    for child in tree.children:
        yield from _pieces(child)

"""Lines about large messages, from the pieces that pass through a stand-in for the client of Flower's grid."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra flower: pip install -e '.[flower]' in a clone of kernfed")

from kernfed.federation.engines import flower
from kernfed.federation.engines.flower import Progress

PIECE = 5 * 1024 * 1024


def tree(name: str, *children: Any) -> SimpleNamespace:
    return SimpleNamespace(object_id=name, children=children)


class Client:
    """Announces a reply of four chunks to question 1, whose site is north, and hands out its pieces."""

    def PullMessages(self, request: Any) -> Any:  # noqa: ARG002
        message = SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id="1"))
        chunks = [tree(f"chunk {i}") for i in range(4)]
        return SimpleNamespace(messages_list=[message], message_object_trees=[tree("message", *chunks)])

    def PullObject(self, request: Any) -> Any:
        return SimpleNamespace(object_content=bytes(PIECE if "chunk" in request.object_id else 100))

    def PushObject(self, request: Any) -> Any:  # noqa: ARG002
        return SimpleNamespace()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(flower, "_PAUSE", 0.0)
    return Client()


def watched(client: Any) -> tuple[Progress, list[str]]:
    told: list[str] = []
    progress = Progress(told.append)
    progress.watch(SimpleNamespace(_runtime_client=client))
    return progress, told


def pull(client: Client, *names: str) -> None:
    for name in names:
        client.PullObject(SimpleNamespace(object_id=name))


def test_what_is_received_is_told_by_site_and_share(client: Client) -> None:
    progress, told = watched(client)
    progress.start({"1": "north"}, 100, time.monotonic() + 60)
    client.PullMessages(None)
    pull(client, "message", "chunk 0")
    assert not told, "too little to speak of"
    pull(client, "chunk 1", "chunk 2", "chunk 3")
    assert told[0] == f"receiving from north: {2 * PIECE + 100:,} bytes, 60%"
    assert told[-1] == f"receiving from north: {4 * PIECE + 100:,} bytes, 100%"


def test_lines_do_not_come_too_often(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "_PAUSE", 1000.0)
    progress, told = watched(client)
    progress.start({"1": "north"}, 100, time.monotonic() + 60)
    client.PullMessages(None)
    pull(client, "message", "chunk 0", "chunk 1", "chunk 2", "chunk 3")
    assert not told


def test_what_is_sent_is_told(client: Client) -> None:
    progress, told = watched(client)
    progress.start({}, 4 * PIECE, time.monotonic() + 60)
    for _ in range(4):
        client.PushObject(SimpleNamespace(object_content=bytes(PIECE)))
    assert told == [f"sending: {n * PIECE:,} bytes, {n * 25}%" for n in (2, 3, 4)]


def test_fetching_ends_at_the_deadline(client: Client) -> None:
    progress, _ = watched(client)
    progress.start({"1": "north"}, 100, time.monotonic() - 1)
    client.PullMessages(None)
    with pytest.raises(TimeoutError):
        pull(client, "message")
    progress.close()
    pull(client, "message")


def test_replies_of_earlier_exchanges_are_not_counted(client: Client) -> None:
    progress, told = watched(client)
    progress.start({"2": "south"}, 100, time.monotonic() + 60)
    client.PullMessages(None)
    pull(client, "message", "chunk 0", "chunk 1", "chunk 2")
    assert not told


@pytest.mark.parametrize("grid", [SimpleNamespace(), SimpleNamespace(_runtime_client=SimpleNamespace(PullObject=1))])
def test_grids_with_other_insides_are_left_alone(grid: SimpleNamespace) -> None:
    before = dict(vars(grid))
    progress = Progress(lambda _: None)
    progress.watch(grid)
    progress.close()
    assert vars(grid) == before


def test_flowers_own_grid_has_the_client_that_is_watched() -> None:
    from flwr.superlink.grid.http_grid import HttpGrid

    grid = HttpGrid(insecure=True, token="t")
    progress = Progress(lambda _: None)
    progress.watch(grid)
    assert "PullObject" in vars(grid._runtime_client)
    progress.close()
    assert "PullObject" not in vars(grid._runtime_client)
    grid.close()

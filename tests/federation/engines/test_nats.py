"""The engine over a hub: the contract of all engines, and what is its own. The server is real, and speaks TLS."""

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.engines import EngineContract
from kernfed.errors import HubUnreachable, InputError, StaleModel, TooFewReplies
from kernfed.federation import Engine, Fault, Federation, FoldingLearner, Payload, Policy, Site, SiteStore
from oracles.federation import Data, sites_data

pytest.importorskip("nats", reason="needs the extra serve: pip install -e '.[serve]' in a clone of kernfed")

from federation.hub_server import SOON, Faulty, HubServer, WholeHub, wait_for
from kernfed.federation.engines import nats, nats_site
from kernfed.federation.engines.nats import NatsEngine
from kernfed.federation.engines.nats_frames import ANY, Address, Frame, Kind, ask_subject, cut, reply_subject
from kernfed.federation.engines.nats_link import Link
from kernfed.federation.engines.nats_site import SiteService


class TestNats(EngineContract):
    late, patience = 1.5, 0.7

    @pytest.fixture(autouse=True)
    def ended(self) -> Iterator[None]:
        """Nothing is left of engines that a test did not close."""
        self.engines: list[WholeHub] = []
        yield
        for engine in self.engines:
            engine.close()

    def engine(
        self, data: Data, *, faults: Mapping[str, Fault] | None = None, policies: Mapping[str, Policy] | None = None
    ) -> Engine:
        sites = {
            name: Site(name, X, y, policy=(policies or {}).get(name, Policy.open())) for name, (X, y) in data.items()
        }
        self.engines.append(WholeHub(sites, faults))
        return self.engines[-1]

    @pytest.mark.parametrize("scheme", ["plain", pytest.param("bfv", marks=pytest.mark.slow)])
    def test_answers_on_encrypted_scores(self, data: Data, scheme: str) -> None:
        super().test_answers_on_encrypted_scores(data, scheme)


@pytest.fixture
def data(rng: np.random.Generator) -> Data:
    return sites_data(rng, ["north", "south"])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HubServer]:
    """A hub that knows the sites north and south, and alice, who may ask both."""
    with HubServer(tmp_path, ["north", "south"]) as running:
        yield running


@pytest.fixture
def serving(server: HubServer) -> Iterator[Any]:
    """Lets a site answer at the hub, until the test ends."""
    services: list[SiteService] = []

    def serve(site: Any) -> SiteService:
        services.append(SiteService(site, server.credentials(site.name)))
        services[-1].link.wait(SOON)
        return services[-1]

    yield serve
    for service in services:
        service.stop(grace=0.0)


def open_site(data: Data, name: str, **settings: Any) -> Site:
    store = settings.pop("store", None)
    return Site(name, *data[name], policy=Policy(**{"tasks": ("*",), **settings}), store=store)


# Who asks and who answers ----------------------------------------------------------------------------------------


def test_the_caller_is_who_the_connection_says(server: HubServer, serving: Any, data: Data) -> None:
    """Whatever a question says: callers, and queries of the day, go by the key that the hub let in."""
    server.add("caller", "bob", ("*",))
    serving(open_site(data, "north", callers=("alice",), queries_per_day=3))
    key = server.credentials("bob").key
    serving(open_site(data, "south", callers=(key,)))
    with (
        Federation.nats(credentials=server.credentials("alice")) as alice,
        Federation(NatsEngine(server.credentials("bob")), caller="alice") as bob,
    ):
        assert alice.caller == "alice"
        told = alice.ask("describe", Payload(), min_replies=1)
        assert tuple(told.payloads) == ("north",)
        assert "does not answer caller 'alice'" in told.missing["south"].reason
        pretended = bob.ask("describe", Payload(), min_replies=1)
        assert tuple(pretended.payloads) == ("south",)
        assert "does not answer caller 'bob'" in pretended.missing["north"].reason


def test_every_caller_has_its_own_queries_of_the_day(server: HubServer, serving: Any, data: Data) -> None:
    server.add("caller", "bob", ("north",))
    serving(open_site(data, "north", queries_per_day=4))
    rows = data["north"][0][:3]
    with (
        Federation.nats(credentials=server.credentials("alice"), sites=["north"]) as alice,
        Federation.nats(credentials=server.credentials("bob")) as bob,
    ):
        assert bob.sites == ("north",)
        model = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(alice)
        expected = model.predict(rows)
        with pytest.raises(TooFewReplies, match="4 queries a day for 'alice', this would be number 6"):
            model.predict(rows)
        np.testing.assert_array_equal(model.connect(bob).predict(rows), expected)


def raw_link(server: HubServer, name: str, *subjects: str) -> tuple[Link, list[tuple[str, bytes]], list[str]]:
    """A party's connection without any of our manners, what it hears, and what it was not allowed to publish."""
    heard: list[tuple[str, bytes]] = []
    denied: list[str] = []
    hear = {subject: ("", lambda message: heard.append((message.subject, message.data))) for subject in subjects}
    link = Link(server.credentials(name), hear, denied=denied.append)
    link.wait(SOON)
    return link, heard, denied


def test_nobody_speaks_or_hears_for_others(server: HubServer, serving: Any, data: Data) -> None:
    """With the keys of a caller and of a site, and a client that tries: all that is not their own is refused."""
    server.add("caller", "mallory", ("north",))
    serving(open_site(data, "north", callers=("alice",)))
    alice, mallory = server.credentials("alice"), server.credentials("mallory")
    question = cut(Kind.QUESTION, b"hello", 0, patience=10.0).encode()
    to_alice = reply_subject("kernfed", "north", Address("alice", "", "", "asker", "question"))
    forged = [
        ask_subject("kernfed", "north", "alice", alice.key, ANY, "asker", "question"),
        ask_subject("kernfed", "north", "alice", mallory.key, ANY, "asker", "question"),
        ask_subject("kernfed", "south", "mallory", mallory.key, ANY, "asker", "question"),
        to_alice,
    ]
    caller, heard, denied = raw_link(server, "mallory", "kernfed.>", "kernfed.reply.*.alice.>", "kernfed.ask.north.>")
    # A site that would lend itself: it may answer for itself alone, wherever it is told to reply to.
    site, overheard, refused = raw_link(server, "south", "kernfed.>", "kernfed.ask.north.>", "kernfed.reply.>")
    for subject in forged:
        assert caller.call(caller.publish(subject, question))
        assert site.call(site.publish(subject, question))
    wait_for(lambda: (len(denied), len(refused)) == (4, 4), "the hub to refuse all of it")
    with Federation.nats(credentials=alice) as federation:
        assert len(federation.ask("describe", Payload(), sites=["north"])) == 1
    assert heard == []
    assert overheard == []
    caller.close()
    site.close()


def test_a_revoked_key_stops_at_once_and_the_others_go_on(server: HubServer, serving: Any, data: Data) -> None:
    server.add("caller", "bob", ("*",))
    serving(open_site(data, "north"))
    serving(open_site(data, "south"))
    of_bob = server.credentials("bob")
    with (
        Federation(NatsEngine(of_bob, wait=0.2)) as bob,
        Federation.nats(credentials=server.credentials("alice")) as alice,
    ):
        assert len(bob.describe()) == 2
        server.hub = server.hub.revoke("bob")
        assert server.hub.reload()
        wait_for(lambda: bob.engine.link.trouble, "the hub to end the connection")  # type: ignore[attr-defined]
        missing = bob.ask("describe", Payload(), min_replies=0).missing
        assert {refusal.code for refusal in missing.values()} == {"unreachable"}
        assert len(alice.describe()) == 2
        with pytest.raises(HubUnreachable, match="refuses the key; it was revoked"):
            NatsEngine(of_bob)
        server.hub = server.hub.revoke("south")
        server.hub.reload()
        wait_for(lambda: "south" in alice.ask("describe", Payload(), min_replies=0).missing, "site south to be out")
        assert tuple(alice.ask("describe", Payload(), min_replies=1).payloads) == ("north",)


def test_a_hub_that_is_another_is_not_trusted(server: HubServer, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    nats_template = HubServer(tmp_path / "other", ["elsewhere"])
    known = replace(server.credentials("alice"), authority=nats_template.credentials("alice").authority)
    with pytest.raises(HubUnreachable, match="certificate is not trusted"):
        NatsEngine(known, wait=0.5)
    with pytest.raises(InputError, match="those of a caller, got those of site 'north'"):
        NatsEngine(server.credentials("north"))


# What goes wrong --------------------------------------------------------------------------------------------------


def test_what_is_no_frame_is_refused_and_nothing_is_kept(server: HubServer, serving: Any, data: Data) -> None:
    service = serving(open_site(data, "north"))
    alice = server.credentials("alice")
    link, heard, _ = raw_link(server, "alice", "kernfed.reply.*.alice.>")
    head = Frame(Kind.QUESTION).encode()
    hostile = [
        b"",
        b"hello",
        bytes(40),
        head[:-1],
        head[:3] + b"\xff" + head[4:],
        replace(Frame(Kind.QUESTION), patience=float("nan")).encode(),
        replace(Frame(Kind.QUESTION), size=2**40, parts=2**21).encode(),
        replace(Frame(Kind.QUESTION), size=10, parts=2).encode(),
        replace(Frame(Kind.QUESTION), part=1).encode(),
        replace(Frame(Kind.QUESTION), content=b"more than it says").encode(),
        replace(Frame(Kind.QUESTION), process="../etc").encode(),
        Frame(Kind.ANSWER).encode(),
        Frame(Kind.HERE).encode(),
        Frame(Kind.WANT, 0, 2**32 - 1).encode(),
    ]
    for number, content in enumerate(hostile):
        subject = ask_subject("kernfed", "north", "alice", alice.key, ANY, "asker", f"q{number}")
        assert link.call(link.publish(subject, content))
    wait_for(lambda: len(heard) == len(hostile), "an answer to each")
    kinds = {subject.rpartition(".")[2]: Frame.decode(content).kind for subject, content in heard}
    assert set(kinds) == {f"q{number}" for number in range(len(hostile))}
    assert kinds.pop(f"q{len(hostile) - 1}") == Kind.LOST
    assert set(kinds.values()) == {Kind.REFUSED}
    assert service._visits == {}
    link.close()


def test_a_site_that_falls_silent_is_named_and_a_second_process_takes_over(
    server: HubServer, serving: Any, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that took the question ends without a word: the other one answers; without one, it is named."""
    monkeypatch.setattr(nats, "_SILENCE", 0.2)
    store = tmp_path / "store"
    begun = threading.Event()

    class Dying(Faulty):
        def answer(self, data: bytes, caller: str | None = None) -> bytes:
            begun.set()
            time.sleep(1.0)
            return self.site.answer(data, caller)

    dying = serving(Dying(open_site(data, "north", store=SiteStore(store)), Fault("slow")))
    with Federation.nats(credentials=server.credentials("alice"), sites=["north"]) as alice:
        for helped in (True, False):
            outcome: list[Any] = []
            begun.clear()
            asking = threading.Thread(
                target=lambda kept=outcome: kept.append(alice.ask("describe", Payload(), min_replies=0))
            )
            asking.start()
            assert begun.wait(SOON)
            dying.link.close()
            other = serving(open_site(data, "north", store=SiteStore(store))) if helped else None
            asking.join(SOON)
            assert tuple(outcome[0].payloads) == (("north",) if helped else ())
            if other is not None:
                other.stop()
                dying = serving(Dying(open_site(data, "north", store=SiteStore(store)), Fault("slow")))
            else:
                assert "no process of site 'north' is connected" in outcome[0].missing["north"].reason


def test_a_busy_site_is_asked_again_until_it_has_room(
    server: HubServer, serving: Any, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_site, "_WAITING", 2)
    service = serving(Faulty(open_site(data, "north"), Fault("slow", 0.02)))
    with Federation.nats(credentials=server.credentials("alice"), sites=["north"]) as alice:

        def ask(_: int) -> int:
            return len(alice.ask("describe", Payload()))

        with ThreadPoolExecutor(8) as callers:
            assert sum(callers.map(ask, range(16))) == 16
        hasty = alice.ask("describe", Payload(), timeout=0.01, min_replies=0).missing["north"]
        assert "in time" in hasty.reason
    wait_for(lambda: not service._visits, "the site to forget them")


def test_sites_and_callers_come_back_after_the_hub(server: HubServer, serving: Any, data: Data) -> None:
    serving(open_site(data, "north"))
    with Federation.nats(credentials=server.credentials("alice"), sites=["north"], patience=SOON) as alice:
        assert alice.engine.present()["north"] is not None  # type: ignore[attr-defined]
        server.stop()
        wait_for(lambda: alice.engine.link.trouble, "the caller to notice")  # type: ignore[attr-defined]
        away = alice.ask("describe", Payload(), timeout=0.2, min_replies=0).missing["north"]
        assert away.code == "unreachable"
        assert "cannot be reached" in away.reason
        server.start()
        assert len(alice.describe()) == 1


def test_a_connection_that_ends_while_something_is_left_to_send_is_made_again(server: HubServer) -> None:
    """The client itself says nothing then; a site would stay away for ever."""
    link, _, _ = raw_link(server, "north")
    subject = reply_subject("kernfed", "north", Address("alice", "", "", "asker", "question"))

    async def flood() -> None:
        while await link.publish(subject, bytes(900_000)):
            continue

    floods = [link.submit(flood()) for _ in range(3)]
    server.stop()
    for flooded in floods:
        flooded.result(SOON)
    wait_for(lambda: link.trouble, "the link to notice")
    server.start()
    link.wait(SOON)
    link.close()


# Several processes of one site ------------------------------------------------------------------------------------


def test_two_processes_share_store_ledger_and_memory(
    server: HubServer, serving: Any, data: Data, tmp_path: Path
) -> None:
    """Rows that one adds the other has, and a question that one answered the other answers the same, once."""
    asked: dict[int, int] = {}

    class Counted(Faulty):
        def answer(self, data: bytes, caller: str | None = None) -> bytes:
            asked[id(self)] = asked.get(id(self), 0) + 1
            return self.site.answer(data, caller)

    for _ in range(2):
        serving(Counted(open_site(data, "north", store=SiteStore(tmp_path / "store")), Fault("slow")))
    rows = Payload({"X": data["north"][0][:2]}, {"y": {"dtype": "<i8", "labels": [0, 0]}})
    before = len(data["north"][1])
    with Federation.nats(credentials=server.credentials("alice"), sites=["north"]) as alice:
        for number in range(4):
            replies = [alice.ask("add_rows", rows, question_id=f"add-{number}")["north"] for _ in range(4)]
            for reply in replies:
                np.testing.assert_array_equal(reply.arrays["ids"], replies[0].arrays["ids"])
            assert {alice.schemas()["north"].n_rows for _ in range(4)} == {before + 2 * (number + 1)}
        model = FoldingLearner(batch_size=8, measure="rms", partition="order", scale=None).fit(alice)
        queries = data["south"][0]
        expected = model.scores(queries)
        for _ in range(4):
            np.testing.assert_array_equal(model.scores(queries), expected)
        fewer = model.forget("north", rows=[0, 1])
        for _ in range(4):
            with pytest.raises(StaleModel):
                model.scores(queries)
            np.testing.assert_array_equal(fewer.scores(queries), fewer.scores(queries))
    assert len(asked) == 2
    assert min(asked.values()) > 3


def test_a_process_that_is_stopped_finishes_and_sends_the_others_on(
    server: HubServer, serving: Any, data: Data, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    slow = serving(Faulty(open_site(data, "north", store=SiteStore(store)), Fault("slow", 0.3)))
    with Federation.nats(credentials=server.credentials("alice"), sites=["north"]) as alice:
        with ThreadPoolExecutor(4) as callers:
            answers = [callers.submit(alice.ask, "describe", Payload()) for _ in range(4)]
            wait_for(lambda: len(slow._visits) == 4, "all questions to arrive")
            serving(open_site(data, "north", store=SiteStore(store)))
            slow.stop()
            assert [len(answer.result(SOON)) for answer in answers] == [1, 1, 1, 1]
        assert len(alice.describe()) == 1

"""A site: hostile data, rows that come and go, a policy that is obeyed, answers whatever happens."""

import datetime
import re
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernfed.errors import Refused, StoreError
from kernfed.federation import Payload, Policy, Refusal, Site, SiteStore
from kernfed.site import authorise
from kernfed.site.protocol import task as tasks_module
from kernfed.site.protocol.message import Question, Reply, decode_reply, encode_question
from kernfed.site.protocol.task import Task
from kernfed.site.rows import Rows, check_site_rows
from oracles.federation import sites_data


def ask(
    site: Site,
    task: str,
    payload: Payload | None = None,
    *,
    id: str = "",
    caller: str = "local",
    connected: str | None = None,
) -> Reply:
    question = Question("run", id or secrets.token_hex(4), task, payload or Payload(), caller)
    return decode_reply(site.answer(encode_question(question), connected), question, site.name)


def answered(reply: Reply) -> Payload:
    assert reply.refusal is None, reply.refusal
    return reply.payload


def refusal(reply: Reply) -> Refusal:
    assert reply.refusal is not None
    return reply.refusal


@pytest.fixture
def site(rng: np.random.Generator, tmp_path: Path) -> Site:
    X, y = sites_data(rng, "a", rows=12)["a"]
    return Site("a", X, y, store=SiteStore(tmp_path / "site"), policy=Policy.open())


# Data --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("X", "y", "ids", "told"),
    [
        (np.zeros((0, 3)), [], None, "at least 1 row"),
        (np.zeros((2, 0)), [0, 1], None, "at least 1 column"),
        (np.zeros(3), [0, 1, 2], None, "X of site 'a' must be a matrix"),
        ([[1, np.nan]], [0], None, "X of site 'a' must be finite"),
        ([["x"]], [0], None, "real numbers"),
        (np.eye(2), [0], None, r"one label per row, got shape \(1,\) for 2 rows"),
        (np.eye(2), [[0], [1]], None, "one label per row"),
        (np.eye(2), [0.0, np.nan], None, "y of site 'a' must be finite; drop rows without a label"),
        (np.eye(2), np.array([0.0, np.nan], dtype=object), None, "y of site 'a' must be finite"),
        (np.eye(2), np.array(["a", None], dtype=object), None, "all numbers or all booleans, got NoneType, str"),
        (np.eye(2), np.array(["a", 1], dtype=object), None, "all booleans, got int, str"),
        (np.eye(2), np.array([True, 2], dtype=object), None, "all booleans, got bool, int"),
        (np.eye(2), np.array([1j, 2]), None, "numbers, booleans or text, got dtype complex128"),
        (np.eye(2), np.array(["2024-01-01", "2024-01-02"], dtype="M8[D]"), None, "numbers, booleans or text"),
        (np.eye(2), [b"a", b"b"], None, "numbers, booleans or text"),
        (np.eye(2), [0, 1], [3, 3], "ids of site 'a' must be 2 different integers"),
        (np.eye(2), [0, 1], [3], "2 different integers"),
        (np.eye(2), [0, 1], [0.5, 1.5], "2 different integers"),
        (np.eye(2), [0, 1], ["x", "y"], "2 different integers"),
    ],
)
def test_data_that_is_refused(X: Any, y: Any, ids: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Site("a", X, y, ids=ids)


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ([3, 1], "i"),
        ([True, False], "b"),
        ([0.5, 1.5], "f"),
        (["x", "yy"], "U"),
        (np.array(["x", "y"], object), "U"),
        (np.array([1, 2], object), "i"),
        (np.array([1.5, 2], object), "f"),
        (np.array([True, False], object), "b"),
        (np.array([1, 2], np.uint8), "u"),
    ],
)
def test_labels_of_every_kind(labels: Any, kind: str) -> None:
    assert check_site_rows(np.eye(2), labels, None, "a").y.dtype.kind == kind


def test_columns_must_be_named_all_or_none() -> None:
    with pytest.raises(ValueError, match="columns of site 'a' must name 2 columns, got 1"):
        Site("a", np.eye(2), [0, 1], columns=("x",))


@pytest.mark.parametrize("holdout", [-0.1, 1.0, 2, np.nan, "0.5", None])
def test_shares_that_are_none(holdout: Any) -> None:
    with pytest.raises(ValueError, match="holdout must be"):
        Site("a", np.eye(2), [0, 1], holdout=holdout)


def test_one_row_is_a_site() -> None:
    site = Site("a", [[1.0, 2.0]], ["only"])
    assert site.schema().counts == (1,)
    assert answered(ask(site, "describe")).values["width"] == 2


def test_digest_sees_rows_labels_ids_and_their_order() -> None:
    rows = Rows(np.arange(6.0).reshape(3, 2), np.array([0, 1, 0]), np.arange(3))
    others = [
        rows.take(np.array([1, 0, 2])),
        Rows(rows.X + 1e-15, rows.y, rows.ids),
        Rows(rows.X, np.array([0, 1, 1]), rows.ids),
        Rows(rows.X, rows.y, rows.ids + 1),
        Rows(rows.X.astype(np.float32), rows.y, rows.ids),
        Rows(rows.X, rows.y.astype(str), rows.ids),
    ]
    assert len({found.digest for found in [rows, *others]}) == 7
    assert rows.digest == Rows(np.asfortranarray(rows.X), rows.y.astype(np.int32), rows.ids).digest


# Rows kept aside ---------------------------------------------------------------------------------------------------


def test_held_out_rows_are_chosen_by_id_and_name(rng: np.random.Generator) -> None:
    X, y = rng.standard_normal((2000, 2)), np.zeros(2000)
    site = Site("a", X, y, holdout=0.25)
    aside = set(site.held_out().ids.tolist())
    assert aside.isdisjoint(site.rows().ids.tolist())
    assert len(aside) + len(site.rows().ids) == 2000
    assert 400 < len(aside) < 600
    order = rng.permutation(2000)
    assert set(Site("a", X[order], y, ids=order, holdout=0.25).held_out().ids.tolist()) == aside
    assert set(Site("b", X, y, holdout=0.25).held_out().ids.tolist()) != aside
    assert set(Site("a", X, y, holdout=0.25, seed=1).held_out().ids.tolist()) != aside
    assert aside < set(Site("a", X, y, holdout=0.5).held_out().ids.tolist())  # a larger share keeps these aside too


def test_classes_too_small_are_not_spoken_of() -> None:
    site = Site("a", np.arange(14.0).reshape(7, 2), list("xxxxyyz"), policy=Policy(min_rows_per_class=3))
    assert site.schema().classes == ("x",)
    assert set(site.rows().y) == {"x"}
    shy = Site("a", np.eye(2), [0, 1], policy=Policy(min_rows_per_class=3))
    assert shy.schema().classes == ()
    assert answered(ask(shy, "describe")).values["counts"] == []


# Rows that come and go ---------------------------------------------------------------------------------------------


def test_ids_are_never_used_again(site: Site) -> None:
    first = site.add_rows(np.ones((2, 5)), [0, 1])
    assert first.tolist() == [12, 13]
    site.forget_rows(np.array([13, 4]))
    assert site.add_rows(np.ones((2, 5)), [0, 1]).tolist() == [14, 15]
    for taken in (3, 4, 12, 13, 15):  # there, forgotten, added, added and forgotten
        with pytest.raises(ValueError, match=rf"ids \[{taken}\] are taken; an id is never reused"):
            site.add_rows(np.ones((1, 5)), [0], ids=[taken])
    site.add_rows(np.ones((1, 5)), [0], ids=[1000])
    site.forget_rows(np.array([1000]))
    assert site.add_rows(np.ones((1, 5)), [0]).tolist() == [1001]
    again = Site("a", site.data._given.X, site.data._given.y, store=SiteStore(site.store.path))
    assert again.add_rows(np.ones((1, 5)), [0]).tolist() == [1002]
    assert 4 not in again.rows().ids
    assert 13 not in again.rows().ids


@pytest.mark.parametrize(
    ("X", "y", "told"),
    [
        (np.ones((1, 4)), [0], "X must have 5 columns as the site has, got 4"),
        (np.ones((1, 5)), ["text"], "labels must be of the site's type int64"),
        (np.ones((1, 5)), [0, 1], "one label per row"),
        (np.full((1, 5), np.inf), [0], "finite"),
        (np.ones((0, 5)), [], "at least 1 row"),
        (np.ones(5), [0], "must be a matrix"),
    ],
)
def test_rows_that_cannot_be_added(site: Site, X: Any, y: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        site.add_rows(X, y)
    assert len(site.rows().ids) == 12
    assert site.store.read("rows") is None


def test_forgetting_what_is_not_there(site: Site) -> None:
    with pytest.raises(Refused, match=r"site 'a' has no rows with ids \[77\]"):
        site.forget_rows(np.array([3, 77]))
    assert 3 in site.rows().ids  # all or nothing
    site.forget_rows(np.array([3]))
    site.forget_rows(np.array([3]))  # an interrupted forgetting can be completed
    assert site.store.read_state()["forgotten"] == [3]


def test_all_rows_may_be_forgotten(site: Site) -> None:
    site.add_rows(np.ones((1, 5)), [2])
    site.forget_rows(np.arange(13))
    assert len(site.rows().y) == 0
    assert site.schema().classes == ()
    assert site.schema().width == 5


def test_data_that_grew_over_the_ids_of_added_rows_is_noticed(site: Site) -> None:
    """Rows without ids are numbered; a longer table would give an added row's id to another row."""
    site.add_rows(np.ones((2, 5)), [0, 1])
    longer = Site("a", np.ones((13, 5)), np.zeros(13, int), store=site.store)
    with pytest.raises(StoreError, match="have ids of rows that were added"):
        longer.rows()
    assert "give every row an id" in refusal(ask(longer, "describe")).reason


def test_labels_stay_as_they_are_when_added(tmp_path: Path) -> None:
    site = Site("a", np.eye(2), ["x", "y"], store=SiteStore(tmp_path))
    site.add_rows(np.ones((1, 2)), ["a longer label"])
    assert site.schema().classes == ("a longer label", "x", "y")


# Answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 100, b"\xff" * 100, encode_question(Question("r", "i", "t", Payload()))[:-1]]
)
def test_bytes_that_are_no_question_are_answered(site: Site, data: bytes) -> None:
    question = Question("run", "q", "describe", Payload())
    assert refusal(decode_reply(site.answer(data), question, "a")).code == "bad question"


@pytest.mark.parametrize("id", ["../../up", "", "x" * 500, "a/b", "ü", "."])
def test_ids_of_questions_cannot_leave_the_store(site: Site, tmp_path: Path, id: str) -> None:
    payload = Payload({"X": np.ones((1, 5))}, {"y": {"dtype": "<i8", "labels": [0]}})
    for _ in range(2):  # asked again, it changes nothing again
        site.answer(encode_question(Question("run", id, "add_rows", payload)))
        assert len(site.rows().ids) == 13
    files = {str(place.relative_to(tmp_path / "site")) for place in tmp_path.rglob("*") if place.is_file()}
    journal = {f"journal/{name}" for name in ("000000000001.jsonl", "head", "lock")}
    receipts = {f"receipts/{name}" for name in ("000000000001.jsonl", "head", "lock")}
    own = {"lock", "state.json", "rows.safetensors", "receipts.key", "sum.key"}
    (answer,) = files - own - journal - receipts
    assert re.fullmatch(r"answers/[0-9a-f]{16}\.safetensors", answer)


def test_a_task_that_breaks_is_a_refusal(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(_: Site, payload: Payload) -> Payload:
        if payload.values["how"] == "reply":
            return Payload(values={"not": float("nan")})
        raise RuntimeError("it broke")

    monkeypatch.setitem(tasks_module._tasks, "break", Task("break", breaks, "none"))
    found = refusal(ask(site, "break", Payload(values={"how": "raise"})))
    assert found.code == "error"
    assert found.reason == "RuntimeError: it broke"
    assert refusal(ask(site, "break", Payload(values={"how": "reply"}))).code == "error"
    assert answered(ask(site, "describe")).values["width"] == 5  # and the site goes on


def test_damage_in_the_store_is_told(site: Site) -> None:
    site.store.write_state({**site.store.read_state(), "forgotten": [2]})
    (site.store.path / "state.json").write_text("{")
    found = refusal(ask(site, "describe"))
    assert found.code == "error"
    assert "state.json is damaged" in found.reason


def test_damaged_added_rows_are_told(site: Site) -> None:
    site.add_rows(np.ones((2, 5)), [0, 1])
    place = site.store.path / "rows.safetensors"
    place.write_bytes(place.read_bytes()[:-3])
    assert "rows.safetensors is damaged" in refusal(ask(site, "describe")).reason


# Policy ------------------------------------------------------------------------------------------------------------


def test_tasks_and_callers_are_refused_before_anything_is_read(rng: np.random.Generator) -> None:
    X, y = sites_data(rng, "a")["a"]
    site = Site("a", X, y, policy=Policy(callers=("me",)))
    assert refusal(ask(site, "forget_rows")).code == "policy"
    assert "does not answer caller 'you'" in refusal(ask(site, "describe", caller="you")).reason
    assert answered(ask(site, "describe", caller="me")).values["width"] == 5
    assert refusal(ask(site, "nonsense", caller="me")).code == "unknown task"
    assert site.store.names("answers") == []


class TestQueriesPerDay:
    @pytest.fixture(autouse=True)
    def task(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(
            tasks_module._tasks, "scores", Task("scores", lambda *_: Payload(), "scores", queries=True, locked=False)
        )

    def queries(self, count: int) -> Payload:
        return Payload({"X": np.zeros((count, 5))})

    def test_rows_are_counted_by_caller(self, rng: np.random.Generator, tmp_path: Path) -> None:
        X, y = sites_data(rng, "a")["a"]
        site = Site("a", X, y, policy=Policy(queries_per_day=10), store=SiteStore(tmp_path))
        answered(ask(site, "scores", self.queries(6)))
        assert "scores 10 queries a day for 'everybody', this would be number 12" in (
            refusal(ask(site, "scores", self.queries(6))).reason
        )
        answered(ask(site, "scores", self.queries(4)))  # what was refused did not count
        answered(ask(site, "scores", self.queries(0)))
        assert refusal(ask(site, "scores", self.queries(1), caller="a new name")).code == "policy"  # it has no quota
        answered(ask(site, "scores", self.queries(10), connected="other"))  # the engine knows this one
        again = Site("a", X, y, policy=Policy(queries_per_day=10), store=SiteStore(tmp_path))
        assert refusal(ask(again, "scores", self.queries(1))).code == "policy"  # remembered between processes

    def test_a_question_asked_again_counts_once_and_another_one_cannot_hide_behind_its_id(self) -> None:
        site = Site("a", np.eye(5), np.arange(5) % 2, policy=Policy(queries_per_day=10))
        for _ in range(3):  # its reply was lost
            answered(ask(site, "scores", self.queries(6), id="lost"))
        assert refusal(ask(site, "scores", self.queries(5), id="lost")).code == "repeated id"
        answered(ask(site, "scores", self.queries(4), id="lost", caller="other"))  # another caller's id is another one
        assert refusal(ask(site, "scores", self.queries(1))).code == "policy"

    def test_another_day_another_count(self, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
        class Clock(datetime.datetime):
            @classmethod
            def now(cls, tz: datetime.tzinfo | None = None) -> "Clock":
                return cls(2030, 1, day, tzinfo=tz)

        day = 1
        monkeypatch.setattr(authorise.datetime, "datetime", Clock)
        X, y = sites_data(rng, "a")["a"]
        site = Site("a", X, y, policy=Policy(queries_per_day=5))
        answered(ask(site, "scores", self.queries(5)))
        assert refusal(ask(site, "scores", self.queries(1))).code == "policy"
        day = 2
        answered(ask(site, "scores", self.queries(5)))
        kept = [place.name for place in (site.store.path / "queries").iterdir()]
        assert kept == ["2030-01-02.jsonl"]  # past days are not kept


def test_rows_that_the_site_cannot_hold_are_refused_when_they_come(tmp_path: Path) -> None:
    """Finite in float64 and infinite in the site's float32: found later, it would be a refusal that tells of a row."""
    site = Site("a", np.eye(3, dtype=np.float32), [0, 1, 0], store=SiteStore(tmp_path))
    with pytest.raises(ValueError, match="must be finite"):
        site.add_rows(np.array([[1e39, 0.0, 0.0]]), [1])
    assert len(site.rows().ids) == 3


def test_persons_must_be_words_that_can_be_written() -> None:
    with pytest.raises(ValueError, match="persons of site 'a' must be words that can be written"):
        Site("a", np.eye(2), [0, 1], persons=["x", "\ud800"])
    with pytest.raises(ValueError, match="a number or a word for each of 2 rows"):
        Site("a", np.eye(2), [0, 1], persons=["x"])


@pytest.mark.parametrize("name", ["run", "id", "task", "caller"])
def test_names_too_long_to_be_repeated_are_refused(site: Site, name: str) -> None:
    question = {"run": "r", "id": "i", "task": "describe", "caller": "c", name: "x" * 400_000}
    sent = encode_question(Question(question["run"], question["id"], question["task"], Payload(), question["caller"]))
    reply = decode_reply(site.answer(sent), Question("r", "i", "describe", Payload()), "a")
    assert f"{name} must have at most 1,000 characters" in refusal(reply).reason


def test_forgetting_models_that_never_were_leaves_nothing(site: Site) -> None:
    for number in range(20):
        answered(ask(site, "forget_model", Payload(values={"handle": f"h{number}"})))
    assert site.store.read_state()["generations"] == {}

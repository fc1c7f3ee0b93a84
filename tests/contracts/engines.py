"""What every engine must do: one suite, run for each of them.

A subclass gives ``engine(data)``, which may inject faults. Everything else goes through ``Federation``, so that what
holds for one engine holds for all.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from kernfed._version import __version__
from kernfed.errors import TooFewReplies
from kernfed.federation import Engine, Fault, Federation, FoldingLearner, Payload, Policy
from kernfed.kahm.bank import fit_machines
from kernfed.kahm.choice import split_rows
from kernfed.kahm.model_file import pack_machines
from kernfed.ridge.parameters import RidgeParameters
from kernfed.secure import Committee, classify
from kernfed.site.protocol.message import (
    PROTOCOL,
    Question,
    Refusal,
    Reply,
    decode_reply,
    encode_question,
    encode_reply,
)
from kernfed.site.protocol.schema import Schema
from oracles.federation import Data, sites_data

Edit = Callable[[str, bytes], bytes | Refusal | None]


class Tampering:
    """An engine whose replies are changed on the way: ``edit(site, reply)`` gives what arrives, or None for nothing."""

    def __init__(self, engine: Engine, edit: Edit) -> None:
        self.inner, self.edit, self.asked = engine, edit, list[bytes]()

    @property
    def sites(self) -> tuple[str, ...]:
        return self.inner.sites

    def carry(self, data: bytes, sites: Sequence[str], timeout: float) -> Mapping[str, bytes | Refusal]:
        self.asked.append(data)
        carried = self.inner.carry(data, sites, timeout)
        # In order of names, whatever the order of arrival: some lies are made of what another site said.
        changed = {site: self.edit(site, r) if isinstance(r, bytes) else r for site, r in sorted(carried.items())}
        return {site: reply for site, reply in changed.items() if reply is not None}

    def close(self) -> None:
        self.inner.close()


def read_message(message: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Our header, the description of the arrays, and their bytes."""
    size = int.from_bytes(message[:8], "little")
    tensors = json.loads(message[8 : 8 + size])
    header = json.loads(tensors.pop("__metadata__")["kernfed"])
    return header, tensors, message[8 + size :]


def write_message(header: Any, tensors: Mapping[str, Any] | None = None, body: bytes = b"") -> bytes:
    """Message of these parts, however wrong; a header that is text is taken as it is."""
    text = header if isinstance(header, str) else json.dumps(header)
    head = json.dumps({"__metadata__": {"kernfed": text}, **(tensors or {})}).encode()
    return len(head).to_bytes(8, "little") + head + body


def with_header(message: bytes, **changes: Any) -> bytes:
    """The same message with other words in its header."""
    header, tensors, body = read_message(message)
    return write_message({**header, **changes}, tensors, body)


def with_payload(reply: bytes, change: Callable[[Payload], Payload]) -> bytes:
    """The same reply with another payload; ``change`` may write into the arrays it gets."""
    header = read_message(reply)[0]
    payload = change(Payload(load(reply), header["values"]))
    fields = ("site", "run", "id", "task", "parameters", "information")
    return encode_reply(Reply(*(header[name] for name in fields), payload))


def lying(engine: Engine, liar: str, change: Callable[[Payload], Payload], task: str = "scores") -> Tampering:
    """Engine on which one site's answers to a task are false; refusals are left as they are."""

    def lie(site: str, reply: bytes) -> bytes:
        header = read_message(reply)[0]
        return with_payload(reply, change) if (site, header["task"]) == (liar, task) else reply

    return Tampering(engine, lie)


class EngineContract(ABC):
    """Order, failures, refusals, repetition, traffic."""

    #: Seconds by which a slow site answers late, and seconds that are waited for it.
    late, patience = 1.0, 0.1

    @abstractmethod
    def engine(
        self, data: Data, *, faults: Mapping[str, Fault] | None = None, policies: Mapping[str, Policy] | None = None
    ) -> Engine:
        """Engine over sites with these rows, which answer everything unless a policy says otherwise."""

    @pytest.fixture
    def data(self, rng: np.random.Generator) -> Data:
        return sites_data(rng, ["delta", "alpha", "charlie", "bravo"])

    @pytest.fixture
    def federation(self, data: Data) -> Iterator[Federation]:
        with Federation(self.engine(data)) as federation:
            yield federation

    def rows_at(self, federation: Federation, site: str) -> int:
        return federation.schemas([site])[site].n_rows

    # Order and choice

    def test_sites_are_sorted_and_so_are_replies(self, federation: Federation) -> None:
        names = ("alpha", "bravo", "charlie", "delta")
        assert federation.sites == names
        assert tuple(federation.ask("describe", Payload()).payloads) == names
        some = federation.ask("describe", Payload(), sites=["delta", "bravo", "delta"])
        assert tuple(some.payloads) == ("bravo", "delta")
        assert [site for site, _ in some] == ["bravo", "delta"]
        assert len(some) == 2
        assert not some.missing

    def test_every_site_answers_for_itself(self, data: Data) -> None:
        changed = {**data, "bravo": (data["bravo"][0][:7], data["bravo"][1][:7])}
        with Federation(self.engine(changed)) as other:
            assert {site: schema.n_rows for site, schema in other.schemas().items()} == {
                site: len(y) for site, (_, y) in changed.items()
            }

    def test_unknown_site_is_an_error_before_anything_is_sent(self, data: Data) -> None:
        engine = Tampering(self.engine(data), lambda _, reply: reply)
        with Federation(engine) as federation:
            with pytest.raises(ValueError, match="no site 'zulu'; there are 'alpha', 'bravo'"):
                federation.ask("describe", Payload(), sites=["alpha", "zulu"])
            assert engine.asked == []
            assert len(federation.traffic) == 0

    def test_every_site_may_be_asked_its_own(self, data: Data) -> None:
        own = {"delta": _rows(2), "alpha": _rows(5)}
        with Federation(self.engine(data)) as federation:
            replies = federation.ask("add_rows", own)
            assert {site: len(payload.arrays["ids"]) for site, payload in replies} == {"alpha": 5, "delta": 2}
            sizes = {entry.site: entry.bytes_down for entry in federation.traffic}
            assert sizes["alpha"] - sizes["delta"] >= 3 * 5 * 8
            with pytest.raises(ValueError, match="no site 'zulu'"):
                federation.ask("add_rows", {"zulu": _rows(1)})

    def test_nobody_asked_nobody_answers(self, federation: Federation) -> None:
        assert len(federation.ask("describe", Payload(), sites=[])) == 0

    # Failures

    def test_missing_sites_are_named_with_reasons(self, data: Data) -> None:
        told: list[tuple[str, str, str]] = []
        engine = self.engine(data, faults={"bravo": Fault("dead"), "delta": Fault("garbage")})
        with Federation(engine, on_missing=lambda s, task, refusal: told.append((s, task, refusal.code))) as federation:
            replies = federation.ask("describe", Payload(), min_replies=2)
            assert tuple(replies.payloads) == ("alpha", "charlie")
            assert tuple(replies.missing) == ("bravo", "delta")
            assert "'bravo'" in replies.missing["bravo"].reason
            assert replies.missing["delta"].code == "bad reply"
            assert "'delta'" in replies.missing["delta"].reason
            assert told == [("bravo", "describe", replies.missing["bravo"].code), ("delta", "describe", "bad reply")]

    def test_timeout_is_kept_and_a_late_answer_disturbs_nobody(self, data: Data) -> None:
        with Federation(self.engine(data, faults={"charlie": Fault("slow", self.late)})) as federation:
            hasty = federation.ask("describe", Payload(), timeout=self.patience, min_replies=3)
            assert tuple(hasty.missing) == ("charlie",)
            assert "in time" in hasty.missing["charlie"].reason
            patient = federation.ask("describe", Payload())
            assert not patient.missing
            assert Schema.from_values(patient["charlie"].values).n_rows == len(data["charlie"][1])

    @pytest.mark.parametrize("timeout", [0, -1, np.nan, np.inf, "1", None])
    def test_senseless_timeouts(self, federation: Federation, timeout: Any) -> None:
        with pytest.raises(ValueError, match="timeout must be"):
            federation.ask("describe", Payload(), timeout=timeout)

    def test_min_replies(self, data: Data) -> None:
        engine = self.engine(data, faults={"alpha": Fault("dead"), "delta": Fault("dead")})
        with Federation(engine) as federation:
            assert len(federation.ask("describe", Payload(), min_replies=2)) == 2
            assert len(federation.ask("describe", Payload(), min_replies=0)) == 2
            for needed, asked in ((3, None), (None, None), (None, ["alpha", "bravo"])):
                with pytest.raises(TooFewReplies, match=r"'describe' needs . replies and got .; 'alpha': ") as error:
                    federation.ask("describe", Payload(), min_replies=needed, sites=asked)
                assert "alpha" in error.value.missing
            for wrong in (-1, 1.5, "all"):
                with pytest.raises(ValueError, match="min_replies must be"):
                    federation.ask("describe", Payload(), min_replies=wrong)  # type: ignore[arg-type]

    def test_refusals_arrive_with_code_and_reason(self, data: Data) -> None:
        with Federation(self.engine(data, policies={"bravo": Policy(tasks=("describe",))})) as federation:
            replies = federation.ask("add_rows", _rows(1), min_replies=3, question_id="q")
            assert replies.missing["bravo"].code == "policy"
            assert "'bravo' allows describe, not 'add_rows'" in replies.missing["bravo"].reason
            unknown = federation.ask("nonsense", Payload(), min_replies=0)
            assert {refusal.code for refusal in unknown.missing.values()} == {"unknown task"}

    # Identity

    def test_a_repeated_question_changes_nothing(self, federation: Federation) -> None:
        before = self.rows_at(federation, "alpha")
        first = federation.ask("add_rows", _rows(3), sites=["alpha"], question_id="one")
        again = federation.ask("add_rows", _rows(3), sites=["alpha"], question_id="one")
        later = Federation(federation.engine).ask("add_rows", _rows(3), sites=["alpha"], question_id="one")
        assert self.rows_at(federation, "alpha") == before + 3
        for replies in (again, later):
            np.testing.assert_array_equal(replies["alpha"].arrays["ids"], first["alpha"].arrays["ids"])
        federation.ask("add_rows", _rows(3), sites=["alpha"], question_id="two")
        assert self.rows_at(federation, "alpha") == before + 6

    def test_another_question_cannot_hide_behind_an_id(self, federation: Federation) -> None:
        before = self.rows_at(federation, "alpha")
        ids = federation.ask("add_rows", _rows(3), sites=["alpha"], question_id="one")["alpha"].arrays["ids"]
        others = (("add_rows", _rows(4)), ("forget_rows", Payload({"ids": ids})))
        for task, payload in others:
            replies = federation.ask(task, payload, sites=["alpha"], question_id="one", min_replies=0)
            assert replies.missing["alpha"].code == "repeated id"
        assert self.rows_at(federation, "alpha") == before + 3

    def carried(self, federation: Federation, **changes: Any) -> Reply:
        question = Question(federation.run, "q", "describe", Payload())
        carried = federation.engine.carry(encode_question(replace(question, **changes)), ["alpha"], 60.0)
        return decode_reply(carried["alpha"], question, "alpha")  # type: ignore[arg-type]

    def test_questions_of_another_protocol_are_refused_by_name(self, federation: Federation) -> None:
        refusal = self.carried(federation, protocol=PROTOCOL + 1).refusal
        assert refusal is not None
        assert refusal.code == "bad question"
        assert f"protocol {PROTOCOL + 1}" in refusal.reason
        assert f"this is protocol {PROTOCOL} (kernfed {__version__}); update the older one" in refusal.reason

    def test_another_package_of_the_same_protocol_is_answered(self, federation: Federation) -> None:
        reply = self.carried(federation, package="99.0")
        assert reply.refusal is None
        assert reply.payload.values["width"] > 0

    @pytest.mark.parametrize("data_sent", [b"", b"\0" * 8, b"hello", bytes(range(256))])
    def test_questions_that_are_none_are_refused(self, federation: Federation, data_sent: bytes) -> None:
        question = Question(federation.run, "q", "describe", Payload())
        for site, reply in federation.engine.carry(data_sent, federation.sites, 60.0).items():
            refusal = decode_reply(reply, question, site).refusal  # type: ignore[arg-type]
            assert refusal is not None
            assert refusal.code == "bad question"

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"protocol": 7}, "the reply of 'bravo' speaks protocol 7"),
            ({"site": "alpha"}, "site must be 'bravo', got 'alpha'"),
            ({"run": "other"}, "run must be"),
            ({"id": "other"}, "id must be"),
            ({"task": "scores"}, "task must be 'describe', got 'scores'"),
            ({"parameters": "0"}, "parameters must be"),
            ({"is": "question"}, "is must be 'reply'"),
            ({"refusal": 5}, "a refusal must be a code and a reason"),
            ({"information": None}, "information must be text"),
            ({"values": []}, "values must be a mapping"),
        ],
    )
    def test_replies_that_do_not_fit_are_refused_by_name(self, data: Data, changes: dict[str, Any], told: str) -> None:
        engine = Tampering(self.engine(data), lambda s, reply: with_header(reply, **changes) if s == "bravo" else reply)
        with Federation(engine) as federation:
            replies = federation.ask("describe", Payload(), min_replies=3)
            assert tuple(replies.missing) == ("bravo",)
            assert replies.missing["bravo"].code == "bad reply"
            assert told in replies.missing["bravo"].reason

    @pytest.mark.parametrize("scheme", ["plain", "bfv"])
    def test_answers_on_encrypted_scores(self, data: Data, scheme: str) -> None:
        if scheme == "bfv":
            pytest.importorskip("tenseal", reason="extra [fhe] not installed")
        queries = np.concatenate([X[:3] for X, _ in data.values()])
        with Federation(self.engine(data)) as federation:
            model = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
            index = classify(model.scores_by_site(queries), scheme="plain", bits=8)
            assert (model.predict(queries, secure=scheme) == model.classes_[index]).all()

    def test_replies_of_others_and_of_earlier_are_refused(self, data: Data) -> None:
        seen: dict[str, bytes] = {}

        def swap(site: str, reply: bytes) -> bytes:
            seen.setdefault(site, reply)
            return seen["alpha"] if site == "bravo" else (seen[site] if site == "delta" else reply)

        with Federation(Tampering(self.engine(data), swap)) as federation:
            first = federation.ask("describe", Payload(), min_replies=0)
            assert tuple(first.missing) == ("bravo",)
            second = federation.ask("describe", Payload(), min_replies=0)
            assert tuple(second.missing) == ("bravo", "delta")
            assert "id must be" in second.missing["delta"].reason

    def test_whatever_a_check_raises_the_others_go_on(self, federation: Federation) -> None:
        wrong: list[Exception] = [ValueError("no"), OverflowError("big"), RuntimeError("odd"), AttributeError("none")]

        def check(site: str, payload: Payload) -> None:  # noqa: ARG001
            if wrong and site == "charlie":
                raise wrong[0]

        while wrong:
            replies = federation.ask("describe", Payload(), check=check, min_replies=0)
            assert tuple(replies.missing) == ("charlie",)
            assert f"site 'charlie' was refused: {_told(wrong[0])}" in replies.missing["charlie"].reason
            wrong.pop(0)

    # Size and record

    def test_traffic_is_counted_to_the_byte(self, data: Data) -> None:
        sizes: dict[str, list[int]] = {}

        def note(site: str, reply: bytes) -> bytes | None:
            sizes.setdefault(site, []).append(len(reply))
            return None if site == "delta" else reply

        engine = Tampering(self.engine(data), note)
        with Federation(engine) as federation:
            for _ in range(2):
                federation.ask("describe", Payload(values={"some": "words"}), min_replies=3)
            entries = {entry.site: entry for entry in federation.traffic}
            assert sorted(entries) == sorted(data)
            for site, entry in entries.items():
                arrived = 0 if site == "delta" else sum(sizes[site])
                assert (entry.task, entry.messages, entry.bytes_up) == ("describe", 2, arrived)
                assert entry.bytes_down == sum(map(len, engine.asked))
                assert entry.information == ("none" if site == "delta" else "schema")
            assert federation.traffic.bytes_up == sum(entry.bytes_up for entry in entries.values())

    def test_large_messages_arrive_whole(self, rng: np.random.Generator) -> None:
        """16 MB down; some MB up, equal to the bit to machines fitted here."""
        X, y = rng.standard_normal((800, 100)), np.repeat([0, 1], 400)
        with Federation(self.engine({"alpha": (X, y), "bravo": (X, y)})) as federation:
            model = FoldingLearner(batch_size=100, partition="order", scale=None).fit(federation)
            question = Payload(values={"handle": model.handle, "generation": {"alpha": 1, "bravo": 1}})
            found = federation.ask("machines", question)["bravo"].arrays
            batches = [X[y == label][part] for label in (0, 1) for part in split_rows(X[y == label], 100, "order", rng)]
            for name, array in pack_machines(fit_machines(batches)).items():
                np.testing.assert_array_equal(found[name], array)
            federation.ask("forget_model", Payload(values={"handle": model.handle}))
            many = Payload({"X": rng.standard_normal((20_000, 100))}, {"y": {"dtype": "<i8", "labels": [0] * 20_000}})
            assert len(federation.ask("add_rows", many, sites=["bravo"])["bravo"].arrays["ids"]) == 20_000
            assert self.rows_at(federation, "bravo") == 20_800

    def test_learning_needs_nothing_else(self, federation: Federation, data: Data) -> None:
        """A whole round and its answers, equal to the bit with the names given in another order."""
        queries = np.concatenate([X[:3] for X, _ in data.values()])
        found = FoldingLearner(batch_size=8).fit(federation).scores(queries)
        with Federation(self.engine(dict(sorted(data.items())))) as other:
            np.testing.assert_array_equal(FoldingLearner(batch_size=8).fit(other).scores(queries), found)

    @pytest.mark.parametrize("corrupt", [False, True])
    def test_a_masked_sum_is_that_of_the_clear_answers(self, data: Data, corrupt: bool) -> None:
        """The same integers, in two exchanges, or three where a member may be corrupt; a site that fails is named."""
        labels = sorted({label for _, y in data.values() for label in y.tolist()})
        width = next(iter(data.values()))[0].shape[1]
        parameters = RidgeParameters(width, n_components=4, classes=tuple(labels))
        size = 4 + len(labels)
        arrays = {"products": ((size * (size + 1) // 2,), 1e4), "sums": ((size,), 1e4), "mass": ((1,), 1e4)}
        question = Payload(values={"parameters": parameters.to_values()})
        members = Committee(("alpha", "bravo", "charlie", "delta")[: 4 if corrupt else 3], corrupt)
        with Federation(self.engine(data)) as federation:
            clear = federation.sum("ridge_sums", question, arrays)
            masked = federation.sum("ridge_sums", question, arrays, committee=members)
            again = federation.sum("ridge_sums", question, arrays, committee=members)
            told = {entry.task: entry.information for entry in federation.traffic}
        assert masked.sites == clear.sites == tuple(sorted(data))
        for name in arrays:
            np.testing.assert_array_equal(masked.integers[name], clear.integers[name])
        assert (again.exchanges, told["sum_masked"]) == (3 if corrupt else 2, "masked")

    def test_closing_twice_is_fine(self, data: Data) -> None:
        engine = self.engine(data)
        engine.close()
        engine.close()


def _rows(count: int) -> Payload:
    return Payload({"X": np.arange(5.0 * count).reshape(count, 5)}, {"y": {"dtype": "<i8", "labels": [0] * count}})


def _told(error: Exception) -> str:
    return str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"

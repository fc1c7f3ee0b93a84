"""The gateway's HTTP: answers, refusals, tokens, limits, and what Prometheus reads."""

import io
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("fastapi", reason="needs the extra serve: pip install -e '.[serve]' in a clone of kernfed")

from kernfed.errors import InputError, NotConnected, TooFewReplies
from kernfed.federation import Fault, Federation, FoldingLearner, Model, conform
from kernfed.serve.app import make_app
from kernfed.serve.gateway import Gateway
from kernfed.serve.requests import Limits, Tokens, new_token, revoke_token
from kernfed.serve.rows import ARROW
from serve.http_client import Running


@pytest.fixture
def client(small):
    with Running(make_app(Gateway(small[0]))) as opened:
        yield opened


def test_rows_are_answered_as_the_model_answers(client, small):
    model, _, X = small
    expected = model.answer(X)
    told = client.post("/predict", {"rows": X.tolist()})
    assert told.status == 200
    answers = told.json()["answers"]
    assert [one["label"] for one in answers] == expected.labels.tolist()
    assert [list(one["probabilities"].values()) for one in answers] == expected.probabilities.tolist()
    assert list(answers[0]["probabilities"]) == ["ant", "bee", "cat"]
    assert [(one["site"], one["batch"]) for one in answers] == list(
        zip(expected.site.tolist(), expected.batch.tolist(), strict=True)
    )
    assert [one["score"] for one in answers] == expected.score.tolist()
    assert [one["distance"] for one in answers] == model.scores(X).min(axis=1).tolist()
    assert told.json()["sites"] == ["north", "south"]
    assert told.json()["missing"] == {}
    sink, table = io.BytesIO(), pa.table(dict(zip("abc", X.T, strict=True)))
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    for body, kind in [
        (sink.getvalue(), ARROW),
        ("b,a,c\n" + "\n".join(f"{b},{a},{c}" for a, b, c in X.tolist()), "text/csv; charset=utf-8"),
    ]:
        assert client.post("/predict", content=body, headers={"Content-Type": kind}).json() == told.json()


def test_values_of_a_head_are_answered(small):
    _, ridge, X = small
    with Running(make_app(Gateway(ridge))) as opened:
        answers = opened.post("/predict", {"rows": X.tolist()}).json()["answers"]
    assert [one["label"] for one in answers] == ridge.predict(X).tolist()
    assert "site" not in answers[0]


def test_everybody_gets_their_own_rows_back(client, small):
    model, _, X = small
    expected = model.predict(X).tolist()

    def ask(number):
        place = number % len(X)
        told = client.post("/predict", {"rows": [X[place].tolist()]}).json()
        return told["answers"][0]["label"] == expected[place]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(64)))
    text = client.get("/metrics").text
    assert 'kernfed_requests_total{caller="anybody",status="200"} 64.0' in text
    assert 'kernfed_rows_total{caller="anybody"} 64.0' in text


def refused(reply, status, words):
    assert reply.status == status, reply.text
    assert list(reply.json()) == ["error"]
    assert words in reply.json()["error"]


def test_what_is_not_answered_is_refused_in_one_sentence(client):
    refused(client.post("/predict", content=b"{", headers={"Content-Type": "application/json"}), 400, "JSON")
    refused(client.post("/predict", content=b"x"), 415, "content type must be")
    refused(client.post("/predict", {"rows": [[1, 2]]}), 422, "row 1 has 2 values")
    refused(client.post("/predict", {"rows": [[1, 2, 3]] * 10_001}), 413, "at most 10,000 rows")
    refused(client.get("/predict"), 405, "Not Allowed")
    refused(client.get("/nothing"), 404, "Not Found")
    refused(client.get("/about", headers={"Host": "elsewhere.example"}), 403, "localhost")
    refused(client.post("/predict", {}, headers={"Host": "[bad"}), 403, "localhost")
    assert 'kernfed_requests_total{caller="anybody",status="422"} 1.0' in client.get("/metrics").text


def test_sizes_are_limited_before_they_are_read(small):
    gateway = Gateway(small[0], limits=Limits(rows=5, bytes=1000))
    with Running(make_app(gateway)) as opened:
        headers = {"Content-Type": "application/json"}
        refused(opened.post("/predict", content=b" " * 1001, headers=headers), 413, "at most 1,000 bytes")

        def parts():  # without a Content-Length
            for _ in range(20):
                yield b" " * 100

        refused(opened.post("/predict", content=parts(), headers=headers), 413, "at most 1,000 bytes")
        refused(opened.post("/predict", {"rows": [[1, 2, 3]] * 6}), 413, "at most 5 rows")


def test_callers_have_tokens_and_rates(small, tmp_path):
    path = tmp_path / "tokens.json"
    ann, ben = new_token(path, "ann"), new_token(path, "ben")
    gateway = Gateway(small[0], limits=Limits(rate=2))
    with Running(make_app(gateway, Tokens(path))) as opened:

        def ask(token, path="/predict"):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            return opened.post(path, {"rows": [[1, 2, 3]]}, headers=headers)

        assert opened.get("/health").json() == {"status": "ok", "sites_up": 0, "sites": 0}
        for token in ("", "kfd_wrong", ann + "x"):
            refused(ask(token), 401, "Bearer TOKEN")
            assert ask(token).headers["www-authenticate"] == "Bearer"
        for place in ("/about", "/metrics"):
            refused(opened.get(place), 401, "token")
        assert [ask(ann).status for _ in range(3)] == [200, 200, 429]
        assert ask(ann).headers["retry-after"] == "1"
        assert ask(ben).status == 200
        revoke_token(path, "ben")
        refused(ask(ben), 401, "token")
        text = opened.get("/metrics", headers={"Authorization": f"Bearer {ann}"}).text
        assert 'kernfed_requests_total{caller="ann",status="200"} 2.0' in text
        assert 'kernfed_requests_total{caller="unknown",status="401"} 7.0' in text
        path.unlink()
        refused(ask(ann), 422, "make it with kernfed serve --new-token")


def test_the_page_and_the_schema_are_served(client):
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "http" not in page.text.replace("http-equiv", "")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    schema = client.get("/openapi.json").json()
    assert set(schema["paths"]) == {"/predict", "/health", "/about", "/metrics"}
    assert set(schema["paths"]["/predict"]["post"]["requestBody"]["content"]) == {"application/json", "text/csv", ARROW}
    about = client.get("/about").json()
    assert about["columns"] == ["a", "b", "c"]
    assert about["classes"] == ["ant", "bee", "cat"]
    assert [(site["name"], site["up"], site["rows"]) for site in about["sites"]] == [
        ("north", None, 60),
        ("south", None, 60),
    ]


class Breaking(Model):
    """A model that raises."""

    n_features_in_ = 3
    classes_ = np.array(["a"])

    def __init__(self, error):
        self.error = error

    def answer(self, X):
        raise self.error if len(X) else AssertionError


class NoReplies:
    missing = MappingProxyType({})

    def __len__(self):
        return 0


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (RuntimeError("secret place /root"), 500, "its log says why"),
        (TooFewReplies("scores", 1, NoReplies()), 503, "too few sites"),
        (NotConnected("no sites"), 503, "no sites"),
    ],
)
def test_errors_of_scoring_are_told_without_their_place(error, status, words):
    with Running(make_app(Gateway(Breaking(error)))) as opened:
        refused(opened.post("/predict", {"rows": [[1, 2, 3]]}), status, words)


def test_a_model_at_its_sites_needs_them(rng):
    data = {"north": (rng.standard_normal((20, 2)), np.arange(20) % 2)}
    with Federation.local(data) as federation:
        model = FoldingLearner(batch_size=20).fit(federation)
        with pytest.raises(NotConnected, match="credentials of their hub"):
            Gateway(model)


def test_sites_hear_who_asks_and_the_answer_names_who_is_missing(rng, tmp_path):
    """On the local engine, whose journal has what the question says."""
    data = {site: (rng.standard_normal((20, 2)), np.arange(20) % 2) for site in ("north", "south")}
    with Federation.local(data, store=tmp_path) as federation:
        model = FoldingLearner(batch_size=20).fit(federation)
    tokens = tmp_path / "tokens.json"
    ann = new_token(tokens, "ann")
    federation = Federation.local(data, store=tmp_path, faults={"south": Fault("dead")})
    with Running(make_app(Gateway(model, federation, timeout=0.3), Tokens(tokens))) as opened:
        told = opened.post("/predict", {"rows": [[1, 2]]}, headers={"Authorization": f"Bearer {ann}"}).json()
        assert told["sites"] == ["north"]
        assert list(told["missing"]) == ["south"]
        text = opened.get("/metrics", headers={"Authorization": f"Bearer {ann}"}).text
        assert 'kernfed_missing_total{site="south"} 1.0' in text
    [journal] = tmp_path.glob("*north*/journal")
    asked = [line for line in "".join(map(Path.read_text, journal.iterdir())).splitlines() if '"scores"' in line]
    assert [json.loads(line)["on_behalf_of"] for line in asked] == ["ann"]


def test_rows_of_which_the_model_does_not_know_get_no_label(rng):
    data = {
        site: (rng.standard_normal((120, 2)) + 1.5 * (np.arange(120) % 2)[:, None], np.arange(120) % 2) for site in "ab"
    }
    X = np.vstack([rng.standard_normal((30, 2)) + 0.7, [[90.0, -90.0]]])
    with Federation.local(data, holdout=0.4) as federation:
        model = conform(FoldingLearner(hold="machines", batch_size=100).fit(federation), federation)
        sets, labels = model.predict_set(X, 0.9), model.predict(X, abstain=0.1)
    with Running(make_app(Gateway(model, abstain=0.1))) as opened:
        answers = opened.post("/predict", {"rows": X.tolist()}).json()["answers"]
    assert [one["label"] for one in answers] == labels.tolist()
    assert [one["abstained"] for one in answers] == np.ma.getmaskarray(labels).tolist()
    assert [one["set"] for one in answers] == [np.flatnonzero(own).tolist() for own in sets]
    assert answers[-1]["abstained"]
    assert answers[-1]["p_value"] < 0.1 < max(one["p_value"] for one in answers)
    with pytest.raises(InputError, match="kernfed conform"):
        Gateway(Breaking(None), abstain=0.1)


def test_what_is_no_http_is_refused(client):
    for words in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000, b"POST /predict\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", client.port), timeout=30) as connection:
            connection.sendall(words)
            assert connection.recv(100).startswith(b"HTTP/1.1 400 ")

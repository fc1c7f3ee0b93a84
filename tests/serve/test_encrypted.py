"""A gateway that combines encrypted answers: who holds which key, what is refused, and what nobody else can read."""

import base64
import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("fastapi", reason="needs the extra serve: pip install -e '.[serve]' in a clone of kernfed")

from kernfed.cli import app
from kernfed.data import write_table
from kernfed.errors import ProtocolError, RunFailed
from kernfed.federation import Fault, Federation, FoldingLearner, Policy
from kernfed.secure import KeyHolder, Server, Site
from kernfed.secure.protocol import name_of_keys, pack_keys
from kernfed.serve.app import make_app
from kernfed.serve.client import GatewayClient, Rows
from kernfed.serve.gateway import Gateway
from kernfed.serve.requests import Limits, Tokens, new_token
from serve.conftest import blobs
from serve.http_client import Running

SITES = ("east", "north", "south")
NAMES = ("a", "b", "c")


def made(measure="rms", policies=None):
    """A federation of three sites, its model and queries."""
    rng = np.random.default_rng(7)
    federation = Federation.local({site: blobs(rng) for site in SITES}, columns=NAMES, policies=policies)
    model = FoldingLearner(measure=measure, batch_size=30, partition="order", scale=None).fit(federation)
    return federation, model, blobs(rng, 12)[0]


@pytest.fixture(scope="module")
def opened():
    federation, model, X = made()
    with Running(make_app(Gateway(model, federation))) as running:
        yield running, model, X, federation


def ask(*words, code=0):
    done = CliRunner().invoke(app, ["ask", *map(str, words)])
    assert done.exit_code == code, done.output + done.stderr
    return done


def rows_file(folder, X, name="rows.csv"):
    write_table(folder / name, dict(zip(NAMES, X.T, strict=True)))
    return folder / name


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_the_command_answers_as_the_model_does(opened, tmp_path, name):
    running, model, X, _ = opened
    rows, out = rows_file(tmp_path, X, name), tmp_path / "out.csv"
    told = json.loads(ask(running.url, rows, "--secure", "plain", "--json").stdout)
    assert told["predictions"] == model.predict(X, secure="plain").tolist()
    assert told["missing"] == {}
    ask(running.url, rows, "--secure", "plain", "--bits", 16, "--out", out)
    lines = [line.replace('"', "").split(",") for line in out.read_text().splitlines()]
    assert lines[0] == ["row", "prediction", "classes_attaining"]
    assert [line[1] for line in lines[1:]] == model.predict(X, secure="plain", bits=16).tolist()


def test_rows_go_in_several_requests_and_keys_once(tmp_path):
    federation, model, X = made()
    expected, limits = model.predict(X, secure="plain").tolist(), Limits(rows=5)
    with Running(make_app(Gateway(model, federation, limits=limits))) as running:
        told = json.loads(ask(running.url, rows_file(tmp_path, X), "--secure", "plain", "--json").stdout)
        counted = running.get("/metrics").text
    assert told["predictions"] == expected
    assert 'kernfed_requests_total{caller="anybody",status="200"} 3.0' in counted
    assert 'kernfed_requests_total{caller="anybody",status="404"} 1.0' in counted  # the keys were not known yet


def test_a_key_is_kept_for_its_owner_and_named_in_policies(tmp_path):
    key = tmp_path / "ann.key"
    federation, model, X = made()
    rows = rows_file(tmp_path, X)
    with Running(make_app(Gateway(model, federation))) as running:
        made_key = ask(running.url, "--secure", "plain", "--key", key)
        digest = re.fullmatch(r".*: ([0-9a-f]{64})", made_key.stdout.strip()).group(1)
        assert f'keys = ["{digest}"]' in made_key.stderr
        assert key.stat().st_mode & 0o777 == 0o600
        again = json.loads(ask(running.url, "--secure", "plain", "--key", key, "--json").stdout)
        assert (again["digest"], again["made"]) == (digest, False)
    assert KeyHolder.load(key.read_bytes()).site_key_digest == digest
    policies = {site: Policy(tasks=("*",), keys=(digest,)) for site in SITES}
    federation, model, X = made(policies=policies)
    with Running(make_app(Gateway(model, federation))) as running:
        told = json.loads(ask(running.url, rows, "--secure", "plain", "--key", key, "--json").stdout)
        assert told["predictions"] == model.predict(X).tolist()
        other = ask(running.url, rows, "--secure", "plain", "--key", tmp_path / "bob.key", code=2)
    assert "does not know the key" in other.stderr


def test_at_least_two_sites_speak_and_the_others_are_named(opened, tmp_path):
    running, _, X, federation = opened
    rows = rows_file(tmp_path, X)
    federation.engine.faults["north"] = Fault("dead")
    done = ask(running.url, rows, "--secure", "plain", "--json")
    assert "site north is missing" in done.stderr
    assert list(json.loads(done.stdout)["missing"]) == ["north"]
    federation.engine.faults["south"] = Fault("dead")
    alone = ask(running.url, rows, "--secure", "plain", code=2)  # /predict would answer; here it would tell east's own
    assert "too few sites answer" in alone.stderr
    assert running.post("/predict", {"rows": X.tolist()}).status == 200
    federation.engine.faults.clear()


def test_keys_that_cannot_be_used_are_refused(opened):
    body = pack_keys(KeyHolder(3, 3, scheme="plain"))
    for spoilt, said in [
        (b"", "keys must be the length"),
        (body[:7], "keys must be the length"),
        ((1 << 60).to_bytes(8, "little") + body[8:], "keys must be the length"),
        (body[:8] + b"X" + body[9:], "not a kernfed message"),
        (body[:-1], "damaged message"),
        (body.replace(b'"plain"', b'"tfhe" '), "whose keys do not decrypt"),
        (pack_keys(KeyHolder(2, 3, scheme="plain")), "3 sites and 3 classes"),
        (pack_keys(KeyHolder(3, 4, scheme="plain")), "3 sites and 3 classes"),
    ]:
        reply = opened[0].request("PUT", "/encrypted/keys", spoilt)
        assert (reply.status, said in reply.json()["error"]) == (422, True), reply.text


def test_keys_of_two_holders_are_refused(opened):
    pytest.importorskip("tenseal", reason="extra [fhe] not installed")
    first, second = KeyHolder(3, 3, scheme="bfv"), KeyHolder(3, 3, scheme="plain")
    site_key = first.site_key
    mixed = len(site_key).to_bytes(8, "little") + site_key + second.evaluation_keys
    reply = opened[0].request("PUT", "/encrypted/keys", mixed)
    assert reply.status == 422
    assert "must be of one key holder" in reply.json()["error"]


def test_the_oldest_keys_are_forgotten_and_others_are_refused():
    federation, model, X = made()
    with Running(make_app(Gateway(model, federation, limits=Limits(key_holders=1)))) as running:
        _ask_with_keys_of_two(running, X)


def _ask_with_keys_of_two(running, X):
    client = GatewayClient(running.url)
    sites, classes, _ = client.needs()
    assert (sites, classes.tolist()) == (3, ["ant", "bee", "cat"])
    body = json.dumps({"rows": X.tolist()}).encode()
    bodies = [pack_keys(KeyHolder(3, 3, bits=bits, scheme="plain")) for bits in (8, 16)]
    names = [running.request("PUT", "/encrypted/keys", one).json()["keys"] for one in bodies]
    assert names == [name_of_keys(one) for one in bodies]
    headers = {"Content-Type": "application/json", "Kernfed-Keys": names[1]}
    assert running.request("POST", "/encrypted/predict", body, headers).status == 200
    for unknown in (names[0], "", "0" * 64, names[1].upper()):
        reply = running.request("POST", "/encrypted/predict", body, {**headers, "Kernfed-Keys": unknown})
        assert (reply.status, "send them with PUT" in reply.text) == (404, True)


def test_tokens_and_models_that_cannot(tmp_path, small):
    federation, model, X = made()
    tokens, rows = tmp_path / "tokens.json", rows_file(tmp_path, X)
    token = tmp_path / "ann.token"
    token.write_text(new_token(tokens, "ann") + "\n")
    with Running(make_app(Gateway(model, federation), Tokens(tokens))) as running:
        assert "a token is needed" in ask(running.url, rows, "--secure", "plain", code=2).stderr
        for method, path in [("GET", "/encrypted"), ("PUT", "/encrypted/keys"), ("POST", "/encrypted/predict")]:
            assert running.request(method, path, b"x").status == 401
        told = json.loads(ask(running.url, rows, "--secure", "plain", "--token", token, "--json").stdout)
        assert told["rows"] == len(X)
    with Running(make_app(Gateway(small[0]))) as running:
        assert "whose machines are at the sites" in ask(running.url, rows, code=2).stderr
    federation, model, _ = made("distance")
    with Running(make_app(Gateway(model, federation))) as running:
        assert "has no upper bound" in ask(running.url, rows, code=2).stderr


def test_what_is_wrong_is_said_before_anything_is_sent(tmp_path):
    rows = rows_file(tmp_path, np.zeros((2, 3)))
    for words, said in [
        (("ftp://x", rows), "must be https://"),
        (("http://example.org", rows), "use https"),
        (("http://127.0.0.1:9", rows), "cannot be reached"),
        (("http://127.0.0.1:9",), "name a table of rows"),
        (("http://127.0.0.1:9", rows, "--bits", 9), "--bits must be 8 or 16"),
        (("http://127.0.0.1:9", rows, "--out", tmp_path / "x.txt"), "--out must end in"),
    ]:
        error = ask(*words, code=2).stderr
        assert said in error
        assert error.count("\n") == 1


def client_of(monkeypatch, told):
    """A client whose gateway says this."""
    client = GatewayClient("https://gateway.example.org")
    monkeypatch.setattr(client, "_ask", lambda *_: told)
    return client


def test_a_gateway_that_lies_is_not_believed(monkeypatch):
    holder, classes = KeyHolder(3, 3, scheme="plain"), np.array(["ant", "bee", "cat"])
    rows = [Rows(b"", "text/csv", 2)]
    for told in ({}, {"answer": 3, "missing": {}}, {"answer": "?", "missing": {}}, {"answer": "", "missing": []}):
        with pytest.raises(RunFailed, match="something else than an encrypted answer"):
            client_of(monkeypatch, told).decide(holder, classes, rows)
    scores = [Site(holder.site_key, site).encrypt(np.full((3, 3), 0.5)) for site in range(3)]
    answer = base64.b64encode(Server(holder.evaluation_keys).combine(scores)).decode()
    with pytest.raises(ProtocolError, match="must be to 2 rows"):
        client_of(monkeypatch, {"answer": answer, "missing": {}}).decide(holder, classes, rows)
    for told in ({}, {"sites": 3}, {"sites": [], "classes": {"kind": "int", "values": []}, "most_rows": 1}):
        with pytest.raises(RunFailed, match=r"does not say|names 0 sites"):
            client_of(monkeypatch, told).needs()

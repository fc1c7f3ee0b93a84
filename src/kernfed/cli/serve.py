"""``kernfed serve`` and ``kernfed ask``: an HTTP gateway in front of a model, and labels from encrypted scores."""

import io
import ipaddress
import logging
import os
import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernfed.base.text import TextTable, format_seconds
from kernfed.cli.console import Json, emit, note, progress
from kernfed.cli.options import (
    CredentialsFile,
    HubAddress,
    check_output,
    check_table_output,
    open_hub,
    require_machines,
)
from kernfed.errors import InputError

if TYPE_CHECKING:
    from kernfed.secure import KeyHolder
    from kernfed.serve.client import Decision, Rows

SERVE_EXAMPLE = "Example: kernfed serve model.kfd --port 8080"
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: Seconds that a site is waited for of which no process is connected: callers do not wait for a site that is gone.
_PATIENCE = 0.0


def serve(
    model: Annotated[Path | None, typer.Argument(help="Model file of `kernfed train` or `model.save`.")] = None,
    credentials: CredentialsFile = None,
    hub: HubAddress = "",
    for_site: Annotated[
        str, typer.Option("--for-site", help="Of a personalised model, the site whose own predictor answers.")
    ] = "",
    host: Annotated[str, typer.Option(help="Address to listen at; another than this machine's needs --tokens.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port to listen at; 0 for one that is free.", min=0, max=65535)] = 8080,
    tokens: Annotated[
        Path | None, typer.Option(help="File of the callers' tokens; without it anybody on this machine may ask.")
    ] = None,
    max_rows: Annotated[int, typer.Option(help="Rows of one request, at most.", min=1, max=1_000_000)] = 10_000,
    max_megabytes: Annotated[float, typer.Option(help="Size of one request, at most.", min=0.001, max=1000)] = 16.0,
    rate: Annotated[float, typer.Option(help="Requests of one caller in a second; 0 for any number.", min=0)] = 200.0,
    min_replies: Annotated[int, typer.Option(help="Of a hub's sites, how many must answer.", min=1)] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds that sites have to answer.", min=0.1)] = 10.0,
    abstain: Annotated[
        float | None,
        typer.Option(help="Of a model of `kernfed conform`: the share of wrong labels allowed; unsure rows get none."),
    ] = None,
    grace: Annotated[float, typer.Option(help="Seconds for what is under way when it is stopped.", min=0)] = 30.0,
    new_token: Annotated[
        str, typer.Option("--new-token", help="Make a token for this caller, write its hash to --tokens, and end.")
    ] = "",
    revoke_token: Annotated[
        str, typer.Option("--revoke-token", help="Take this caller's token out of --tokens, and end.")
    ] = "",
    json: Json = False,
) -> None:
    """Answer rows over HTTP, and show a page at the same address.

    A whole model (machines, ridge, fusion) needs nothing else; of one whose machines are at its sites, --credentials of
    a hub let these answer. SIGTERM stops the gateway once what is under way is answered.
    """
    if new_token or revoke_token:
        _change_tokens(tokens, new_token, revoke_token, json)
        return
    if model is None:
        raise InputError("name the model file to serve, as in kernfed serve model.kfd")
    if tokens is None and not _is_loopback(host):
        raise InputError(
            f"--host {host} can be reached by others: give --tokens FILE, and make one with --new-token NAME"
        )
    from kernfed.serve.app import bind, make_app, run
    from kernfed.serve.requests import Limits, Tokens

    size = round(max_megabytes * 1_000_000)
    limits = Limits(max_rows, size, rate, bodies=max(Limits.bodies, 2 * size))
    known = None if tokens is None else Tokens(tokens)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=_FORMAT)
    settings = {"limits": limits, "min_replies": min_replies, "timeout": timeout, "abstain": abstain}
    gateway = _gateway(model, for_site, credentials, hub, **settings)
    with bind(host, port) as listening:
        url = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
        kind = type(gateway.model).__name__
        about = {"model": model, "kind": kind, "url": url, "pid": os.getpid(), "tokens": tokens is not None}
        emit(about, json, f"gateway: {kind} of {model} answers at {url} (pid {os.getpid()})")
        sys.stdout.flush()  # whoever started it may wait for this line
        run(make_app(gateway, known), listening, grace=grace)
    note("gateway: has stopped")


def _gateway(path: Path, for_site: str, credentials: Path | None, hub: str, **settings: Any) -> Any:
    """The model behind the gateway, connected to its sites where they answer for it."""
    from kernfed.federation import load
    from kernfed.jobs.jobs import asks_sites
    from kernfed.serve.gateway import Gateway
    from kernfed.testing.predictors import predictor_for

    model = predictor_for(load(path), for_site, "--for-site")
    if not hasattr(model, "answer"):
        raise InputError(f"a {type(model).__name__} does not answer rows, expected a model of kernfed train")
    if credentials is None:
        require_machines(model, path, "let them answer with --credentials FILE of a hub")
        return Gateway(model, **settings)
    if not asks_sites(model):
        raise InputError("this model is whole and needs no sites: leave --credentials out")
    return Gateway(model, open_hub(credentials, hub, patience=_PATIENCE), **settings)


def _change_tokens(tokens: Path | None, new: str, revoked: str, json: bool) -> None:
    from kernfed.serve.requests import new_token, revoke_token

    if tokens is None:
        raise InputError("--new-token and --revoke-token need --tokens FILE, which keeps the hashes")
    if new and revoked:
        raise InputError("--new-token and --revoke-token are two commands; give one of them")
    if revoked:
        revoke_token(tokens, revoked)
        emit({"revoked": revoked, "tokens": tokens}, json, f"the token of {revoked} is refused from now on")
        return
    token = new_token(tokens, new)
    text = (
        f"{token}\n\nThis is {new}'s token, shown once; {tokens} keeps its hash. Send it as Authorization: Bearer ..."
    )
    emit({"caller": new, "token": token, "tokens": tokens}, json, text)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


ASK_EXAMPLE = "Example: kernfed ask https://gateway.example.org rows.csv --secure bfv --key ann.key --out pred.csv"
#: Rows of one request, at most: some ciphertexts, and a body that every gateway takes.
_AT_ONCE = 256
_BITS = (8, 16)


class Secure(StrEnum):
    """How scores are hidden; "plain" hides nothing and is there to try it out."""

    BFV = "bfv"
    PLAIN = "plain"


def ask(
    service: Annotated[
        str, typer.Argument(help="Address of a gateway (kernfed serve --credentials ...), or folder of a Flower app.")
    ],
    rows: Annotated[
        Path | None, typer.Argument(help="Table of rows: CSV, Parquet or Arrow. Without it only --key is made.")
    ] = None,
    secure: Annotated[Secure, typer.Option(help="How the sites' scores are encrypted.")] = Secure.BFV,
    bits: Annotated[int, typer.Option(help="Bits to which scores are rounded: 8 or 16.")] = 8,
    key: Annotated[
        Path | None,
        typer.Option(help="File of your keys, made where there is none; without it keys are made for this once."),
    ] = None,
    token: Annotated[Path | None, typer.Option(help="File that holds your token of the gateway.")] = None,
    model: Annotated[
        Path | None, typer.Option(help="Of a Flower app, the model file to ask with; a gateway has its own.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="CSV or Parquet file to write; default only a summary.")] = None,
    json: Json = False,
) -> None:
    """Ask for labels that nobody else learns: sites encrypt their scores under your key, and the gateway combines them.

    You learn, for every row, the set of classes that have the smallest score, and nothing else. The sites, the hub and
    the gateway see the rows. Your policy line for the sites is printed when a key is made.
    """
    from kernfed.serve.client import make_or_check

    if bits not in _BITS:
        raise InputError(f"--bits must be 8 or 16, got {bits}")
    if rows is None and key is None:
        raise InputError("name a table of rows, or --key FILE to make keys")
    if out is not None and rows is not None:
        check_table_output(out, rows)
    asked = _service(service, token, model)
    with progress("keys"):
        known = _read_key(key)
        holder = make_or_check(known, asked.sites, len(asked.classes), secure.value, bits)
    if key is not None and known is None:
        _write_key(holder, key)
        note(f'{key} is your secret key. The sites\' policies must name it: keys = ["{holder.site_key_digest}"]')
    if rows is None:
        result = {"key": key, "digest": holder.site_key_digest, "made": known is None}
        emit(result, json, f"digest of {key}: {holder.site_key_digest}")
        return
    started = time.perf_counter()
    with progress("asking"):
        decision = asked.decide(holder, rows)
    _show_decision(decision, time.perf_counter() - started, holder, out, json)


def _service(service: str, token: Path | None, model: Path | None) -> "_Gateway | _FlowerApp":
    """The gateway at an address, or the Flower app in a folder, that answers rows."""
    if not Path(service).is_dir():
        if model is not None:
            raise InputError("--model is for a Flower app; a gateway has a model of its own")
        return _Gateway(service, token)
    if model is None or token is not None:
        raise InputError(f"{service} is a folder: a Flower app needs --model FILE, and no --token")
    return _FlowerApp(Path(service), model)


class _Gateway:
    """A gateway, which asks the sites of its hub."""

    def __init__(self, url: str, token: Path | None) -> None:
        from kernfed.serve.client import GatewayClient

        self._client = GatewayClient(url, _read_token(token))
        self.sites, self.classes, self._most = self._client.needs()

    def decide(self, holder: "KeyHolder", rows: Path) -> "Decision":
        return self._client.decide(holder, self.classes, read_parts(rows, min(_AT_ONCE, self._most)))


class _FlowerApp:
    """A deployment of Flower: its run combines, on the SuperLink's machine, and this process alone reads the answer."""

    def __init__(self, app: Path, model: Path) -> None:
        from kernfed.federation import load
        from kernfed.federation.folding.secure import check_encryptable
        from kernfed.kahm.model import FoldingModel

        self._app, self._path, self._model = app, model, load(model)
        if not isinstance(self._model, FoldingModel) or self._model.hold != "sites":
            kind = type(self._model).__name__
            problem = f"{model} must be a folding model whose machines are at its sites, not a {kind}"
            raise InputError(f"{problem}: train with learner folding and measure rms")
        check_encryptable(self._model)
        self.sites, self.classes = len(self._model.sites), self._model.classes_

    def decide(self, holder: "KeyHolder", rows: Path) -> "Decision":
        import numpy as np

        from kernfed.jobs.flower_run import encrypted_with_flower
        from kernfed.jobs.tables import TableFile
        from kernfed.secure.protocol import pack_keys
        from kernfed.serve.client import Decision

        queries = TableFile(rows).read_for(self._model).X
        message, result = encrypted_with_flower(self._app, self._path, queries, pack_keys(holder), report=note)
        attaining = holder.attaining(message)
        if len(attaining) != len(queries):
            raise InputError(f"the answer must be to {len(queries)} rows, it is to {len(attaining)}")
        labels = np.asarray(self.classes[attaining.argmax(axis=1)])
        return Decision(labels, attaining.sum(axis=1), dict(result.get("missing", {})))


def _show_decision(decision: "Decision", seconds: float, holder: "KeyHolder", out: Path | None, as_json: bool) -> None:
    import numpy as np

    from kernfed.data import write_table

    labels = decision.labels
    if out is not None:
        numbers = np.arange(1, len(labels) + 1)
        write_table(out, {"row": numbers, "prediction": labels, "classes_attaining": decision.attaining})
    for site, reason in decision.missing.items():
        note(f"site {site} is missing: {reason}")
    tally = dict(zip(*(part.tolist() for part in np.unique(labels, return_counts=True)), strict=True))
    result: dict[str, Any] = {
        "rows": len(labels),
        "seconds": seconds,
        "out": out,
        "counts": tally,
        "ties": int((decision.attaining > 1).sum()),
        "missing": decision.missing,
        "digest": holder.site_key_digest,
    }
    if out is None:
        result["predictions"] = labels
    where = f"; wrote {out}" if out is not None else "; use --out FILE to keep them"
    table = TextTable(("label", "rows"), [(str(label), str(count)) for label, count in tally.items()]).shortened(20)
    emit(result, as_json, table, f"{len(labels):,} rows in {format_seconds(seconds)}{where}")


def read_parts(path: Path, most: int) -> Iterator["Rows"]:
    """The rows of a table, in parts of at most ``most``, as a gateway reads them; cells of CSV travel as they are."""
    import pyarrow as pa
    import pyarrow.csv

    from kernfed.data.columns import read_arrow
    from kernfed.serve.client import Rows

    table = read_arrow(path)
    if not table.num_rows:
        raise InputError(f"{path} has no rows")
    for start in range(0, table.num_rows, most):
        part, sink = table.slice(start, most), io.BytesIO()
        if path.suffix.lower() == ".csv":
            pyarrow.csv.write_csv(part, sink)
            yield Rows(sink.getvalue(), "text/csv", part.num_rows)
        else:
            with pa.ipc.new_stream(sink, part.schema) as writer:
                writer.write_table(part)
            yield Rows(sink.getvalue(), "application/vnd.apache.arrow.stream", part.num_rows)


def _read_token(path: Path | None) -> str:
    if path is None:
        return ""
    words = path.read_text(encoding="utf-8").split()
    if len(words) != 1 or not words[0].isascii():
        raise InputError(f"{path} must hold one token, as kernfed serve --new-token prints it, got {len(words)} words")
    return words[0]


def _read_key(path: Path | None) -> "KeyHolder | None":
    from kernfed.secure import KeyHolder

    if path is None or not path.exists():
        return None
    return KeyHolder.load(path.read_bytes())


def _write_key(holder: "KeyHolder", path: Path) -> None:
    from kernfed.files import atomic_path

    check_output("--key", path)
    with atomic_path(path, private=True) as temporary:
        temporary.write_bytes(holder.save())

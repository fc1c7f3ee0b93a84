"""``kernfed serve``: an HTTP gateway in front of a model, with a page; and the tokens of its callers."""

import ipaddress
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kernfed.cli.console import Json, emit, note
from kernfed.cli.hub_jobs import CredentialsFile, HubAddress, hub_federation
from kernfed.cli.tables import require_machines
from kernfed.errors import InputError

EXAMPLE = "Example: kernfed serve model.kfd --port 8080"
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
    from kernfed.serve.gateway import Gateway
    from kernfed.testing.predictors import predictor_for

    model = predictor_for(load(path), for_site, "--for-site")
    if not hasattr(model, "answer"):
        raise InputError(f"a {type(model).__name__} does not answer rows, expected a model of kernfed train")
    if credentials is None:
        require_machines(model, path, "let them answer with --credentials FILE of a hub")
        return Gateway(model, **settings)
    if getattr(model, "hold", "machines") != "sites":
        raise InputError("this model is whole and needs no sites: leave --credentials out")
    return Gateway(model, hub_federation(credentials, hub, patience=_PATIENCE), **settings)


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
    told = (
        f"{token}\n\nThis is {new}'s token, shown once; {tokens} keeps its hash. Send it as Authorization: Bearer ..."
    )
    emit({"caller": new, "token": token, "tokens": tokens}, json, told)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

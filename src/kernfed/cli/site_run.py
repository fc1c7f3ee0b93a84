"""``kernfed site run``: the service of one site, which stays and answers until it is told to stop."""

import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from kernfed.cli.console import note
from kernfed.errors import Refused

EXAMPLE = "Example: kernfed site run site.toml"
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def run(
    settings: Annotated[Path, typer.Argument(help="site.toml: credentials, data, label, store and [policy].")],
    grace: Annotated[
        float, typer.Option(help="Seconds that a question may still take when the service is stopped.", min=0)
    ] = 30.0,
) -> None:
    """Answer questions of the hub's callers, for as long as the process lives.

    Connects outward only, and again whenever the connection is lost. Start it several times to have several processes:
    they share the store. SIGTERM stops it once the question at hand is answered.
    """
    from kernfed.federation.engines.nats_settings import read_service

    site, credentials, hub = read_service(settings)
    from kernfed.federation.engines.nats_site import SiteService, serve_until_stopped

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=_FORMAT)
    with site.store.locked():
        _ = (
            site.width
        )  # a table that cannot be read is told of now, and read rows are not waited for by the first caller
    serve_until_stopped(SiteService(site, credentials, url=hub), note, grace=grace)

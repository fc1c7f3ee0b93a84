"""``kernfed site run``: the service of one site, which stays and answers until it is told to stop."""

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from kernfed.cli.console import Json, emit, note
from kernfed.errors import Refused

EXAMPLE = "Example: kernfed site run site.toml"
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def run(
    settings: Annotated[Path, typer.Argument(help="site.toml: credentials, data, label, store and [policy].")],
    grace: Annotated[
        float, typer.Option(help="Seconds that a question may still take when the service is stopped.", min=0)
    ] = 30.0,
    json: Json = False,
) -> None:
    """Answer questions of the hub's callers, for as long as the process lives.

    Connects outward only, and again whenever the connection is lost. Start it several times to have several processes:
    they share the store. SIGTERM stops it once the question at hand is answered.
    """
    from kernfed.federation.engines.nats_site import SiteService, read_service, serve_until_stopped

    site, credentials, hub = read_service(settings)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=_FORMAT)
    # A table that cannot be read is told of now, and the first caller does not wait for it. A raw one has no width
    # before the sites agree on a preparation.
    with site.store.locked(), suppress(Refused):
        _ = site.width
    service = SiteService(site, credentials, url=hub)
    about = {"site": site.name, "process": service.process, "pid": os.getpid(), "hub": service.link.url}
    emit(about, json, "site {site}: process {process} (pid {pid}) serves at {hub}".format(**about))
    sys.stdout.flush()  # whoever started it may wait for this line
    serve_until_stopped(service, note, grace=grace)

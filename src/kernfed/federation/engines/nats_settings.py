"""The file that a site's service is started with: its rows, its store, its policy, and its credentials at the hub."""

import tomllib
from pathlib import Path
from typing import Any

from kernfed.errors import InputError
from kernfed.federation.engines.nats_credentials import Credentials, check_hub_url
from kernfed.site.settings import site_from_settings
from kernfed.site.site import Site


def read_service(path: str | Path) -> tuple[Site, Credentials, str]:
    """The site that a ``site.toml`` describes, its credentials, and the hub's address where the file names another.

    credentials (a file of ``kernfed hub add-site``), data, label and store are needed; hub, and what
    ``site_from_settings`` lists, may be given; ``[policy]`` is a table of it, or the name of a file. Paths begin at the
    file's own folder. The site's name is that of the credentials: no other would be let in.
    """
    place = Path(path)
    if not place.is_file():
        raise InputError(f"no settings of a site at {place}")
    try:
        settings: dict[str, Any] = tomllib.loads(place.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{place}: {error}") from None
    folder = place.resolve().parent
    where = settings.pop("credentials", None)
    if not isinstance(where, str) or not where:
        raise InputError(f"{place} must name the file of the site's credentials, got {where!r}")
    credentials = Credentials.read(folder / where)
    hub = settings.pop("hub", "")
    if hub:
        check_hub_url(hub if isinstance(hub, str) else repr(hub))
    name = settings.pop("site", credentials.name)
    if name != credentials.name:
        raise InputError(f"{place} is of site {name!r}, its credentials are those of {credentials.name!r}")
    return site_from_settings(credentials.name, settings, str(place), folder=folder), credentials, hub

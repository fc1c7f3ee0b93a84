"""Certificates of a hub: an authority that the parties trust, for ten years, and the server's, for one."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kernfed.errors import InputError
from kernfed.files import atomic_path

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

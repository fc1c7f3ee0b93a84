"""The asker's side of a gateway: rows go out, and where they are encrypted, answers are read here and nowhere else.

Needs nothing of a gateway: ``kernfed.secure`` and, for scheme "bfv", the extra ``[fhe]``.
"""

import base64
import binascii
import ipaddress
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import check_choice
from kernfed.base.plain import read_json
from kernfed.errors import InputError, ProtocolError, RunFailed
from kernfed.files import labels_from_values
from kernfed.secure import KeyHolder, read_header
from kernfed.secure.protocol import name_of_keys, pack_keys

#: Seconds for an answer and for sending keys; bytes of an answer at most.
_PATIENCE, _MOST_BYTES = 600.0, 256_000_000
_UNKNOWN_KEYS = 404


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token goes to the address that was named, and to no other."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True)
class Rows:
    """A part of the rows, as a gateway reads them: the body, its content type, and how many rows it has."""

    body: bytes
    kind: str
    count: int


@dataclass(frozen=True)
class Decision:
    """Labels (n,), how many classes (n,) attain the smallest score, and for each request, who was missing and why."""

    labels: npt.NDArray[Any]
    attaining: npt.NDArray[np.int64]
    missing: Mapping[str, str]


class GatewayClient:
    """Asks the gateway at ``url``, with a token where it wants one."""

    def __init__(self, url: str, token: str = "") -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"the service must be https://HOST[:PORT], got {url!r:.200}")
        if parts.scheme == "http" and not _is_loopback(parts.hostname):
            raise InputError(f"rows and tokens travel readable over http: use https, got {url!r:.200}")
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._open = urllib.request.build_opener(_NoRedirect).open
        #: The public keys of whoever asked last, and their name: packing some 40 MB takes longer than asking.
        self._packed: tuple[KeyHolder, bytes, str] | None = None

    def needs(self) -> tuple[int, npt.NDArray[Any], int]:
        """What keys are made for: how many sites, and the classes (C,); and rows of one request at most."""
        reply = self._ask("GET", "/encrypted")
        try:
            sites, classes, rows = len(reply["sites"]), labels_from_values(reply["classes"]), int(reply["most_rows"])
        except (KeyError, TypeError, ValueError):
            raise RunFailed(f"{self.url} does not say what keys to make; is it a gateway of this version?") from None
        if not sites or not len(classes) or rows < 1:
            raise RunFailed(f"{self.url} names {sites} sites, {len(classes)} classes and {rows} rows")
        return sites, classes, rows

    def decide(self, holder: KeyHolder, classes: npt.NDArray[Any], parts: Iterable[Rows]) -> Decision:
        """Labels of rows, read with the secret key of ``holder``, which stays in this process."""
        if self._packed is None or self._packed[0] is not holder:
            body = pack_keys(holder)
            self._packed = (holder, body, name_of_keys(body))
        _, body, name = self._packed
        sets: list[npt.NDArray[np.bool_]] = []
        missing: dict[str, str] = {}
        for part in parts:
            reply = self._encrypted(part, name, body)
            try:
                message = base64.b64decode(reply["answer"], validate=True)
                missing |= {str(site): str(reason) for site, reason in reply["missing"].items()}
            except (KeyError, TypeError, AttributeError, binascii.Error):
                raise RunFailed(f"{self.url} sent something else than an encrypted answer") from None
            if read_header(message)[0].queries != part.count:
                raise ProtocolError(f"the answer must be to {part.count} rows, it is to another number")
            sets.append(holder.attaining(message))
        attaining = np.concatenate(sets)
        return Decision(np.asarray(classes[attaining.argmax(axis=1)]), attaining.sum(axis=1), missing)

    def _encrypted(self, rows: Rows, name: str, keys: bytes) -> Any:
        """The answer to some rows; keys that the gateway does not know, or no longer, are sent first."""
        headers = {"Content-Type": rows.kind, "Kernfed-Keys": name}
        try:
            return self._ask("POST", "/encrypted/predict", rows.body, headers)
        except _Refused as refusal:
            if refusal.status != _UNKNOWN_KEYS:
                raise
        self._ask("PUT", "/encrypted/keys", keys, {"Content-Type": "application/octet-stream"})
        return self._ask("POST", "/encrypted/predict", rows.body, headers)

    def _ask(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Any:
        asked = urllib.request.Request(
            self.url + path, body, {**self._headers, **(headers or {})}, method=method
        )  # its address was checked
        try:
            with self._open(asked, timeout=_PATIENCE) as response:
                content = response.read(_MOST_BYTES + 1)
        except urllib.error.HTTPError as error:
            raise _Refused(error.code, f"{self.url} refuses: {_sentence(error)}") from None
        except (urllib.error.URLError, OSError) as error:
            raise RunFailed(f"{self.url} cannot be reached: {getattr(error, 'reason', error)}") from None
        if len(content) > _MOST_BYTES:
            raise RunFailed(f"{self.url} sent more than {_MOST_BYTES:,} bytes")
        try:
            reply = read_json(content)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise RunFailed(f"{self.url} did not answer in JSON; is it a gateway?")
        return reply


class _Refused(RunFailed):
    """What a gateway refused, with the status of HTTP."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def make_or_check(holder: KeyHolder | None, sites: int, classes: int, scheme: str, bits: int) -> KeyHolder:
    """New keys for so many sites and classes, or those of ``holder``, if they are made for them."""
    check_choice(scheme, "scheme", ("bfv", "plain"))
    if holder is None:
        return KeyHolder(sites, classes, bits=bits, scheme=scheme)
    made = holder.setting
    if (made.scheme, made.n_sites, made.n_classes, made.bits) != (scheme, sites, classes, bits):
        raise InputError(
            f"the keys are for {made.scheme}, {made.n_sites} sites, {made.n_classes} classes and {made.bits} bits, "
            f"needed are {scheme}, {sites}, {classes} and {bits}: make new ones in another file"
        )
    return holder


def _sentence(error: urllib.error.HTTPError) -> str:
    """What the gateway said, or the status."""
    try:
        reply = read_json(error.read(10_000))
        return str(reply["error"])[:1000]
    except (ValueError, KeyError, TypeError, OSError):
        return f"status {error.code}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

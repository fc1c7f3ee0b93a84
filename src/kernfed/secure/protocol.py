"""Roles of an encrypted answer: the key holder asks, sites score, a server combines; they exchange only bytes.

The decision is SFM (106) and (122) on p-bit integers (SFM section 3.9): the class whose score, the minimum over
sites, is smallest; among equal classes the lowest index. A scheme (``plain``, ``bfv``, ``tfhe``) says how scores are
hidden; roles, encoding, headers and checks are the same for all.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import check_choice, check_count, check_rows
from kernfed.errors import InputError, ProtocolError
from kernfed.secure.message import Header, Part, digest, pack, read_header, unpack

Scores = npt.NDArray[np.int64]
Sets = npt.NDArray[np.bool_]
Parts = Sequence[Part]

SCHEMES = ("plain", "bfv", "tfhe")
BITS = (8, 16)
MEASURES = ("rms", "product", "min", "max", "euclidean", "cosine")


@dataclass(frozen=True)
class Keys:
    """What a scheme makes: parts for the key holder, for the sites and for the server."""

    secret: Parts
    site: Parts
    evaluation: Parts


class Decryptor(Protocol):
    """The key holder's side of a scheme."""

    def attaining(self, answer: Parts, queries: int) -> Sets:
        """Classes (n, C) that attain the minimum."""


class Encryptor(Protocol):
    """What a site computes under a scheme: encrypts its scores."""

    def encrypt(self, scores: Scores, site: int) -> Parts:
        """Scores (n, C) as p-bit integers, encrypted."""


class Combiner(Protocol):
    """What the server computes under a scheme: combines encrypted scores."""

    def combine(self, scores: Mapping[int, Parts], queries: int) -> Parts:
        """The answer from what the sites sent, by site."""


class Scheme(Protocol):
    """A way to hide scores. Every method takes the setting, so a scheme holds no state."""

    def parameters(self, setting: "Setting") -> str:
        """The parameters in words; ValueError if the scheme cannot hold the setting."""

    def keys(self, setting: "Setting") -> Keys:
        """Generate keys from the system's random source."""

    def decryptor(self, setting: "Setting", secret: Parts) -> Decryptor:
        """What the key holder computes: decrypts answers."""

    def encryptor(self, setting: "Setting", site: Parts) -> Encryptor:
        """What a site computes: encrypts its scores."""

    def combiner(self, setting: "Setting", evaluation: Parts) -> Combiner:
        """What the server computes: combines the sites' scores."""


@dataclass(frozen=True)
class Setting:
    """What all roles must agree on."""

    scheme: str
    n_sites: int
    n_classes: int
    bits: int

    def __post_init__(self) -> None:
        check_choice(self.scheme, "scheme", SCHEMES)
        for name in ("n_sites", "n_classes", "bits"):
            object.__setattr__(self, name, check_count(getattr(self, name), name))  # numpy integers become int
        if self.bits not in BITS:
            raise InputError(f"bits must be 8 or 16, got {self.bits}")

    @property
    def implementation(self) -> Scheme:
        """The module of the scheme, imported when it is used."""
        scheme: Scheme = import_module(f"kernfed.secure.{self.scheme}").SCHEME
        return scheme

    @cached_property
    def fingerprint(self) -> str:
        """Hash of setting and parameters; ValueError if the scheme cannot hold the setting."""
        return digest(repr(self).encode(), self.implementation.parameters(self).encode())[:16]

    def message(
        self, kind: str, key: str, parts: Parts, *, site: int = -1, queries: int = 0, question: str = ""
    ) -> bytes:
        """Bytes of a message whose header names this setting."""
        return pack(
            parts,
            scheme=self.scheme,
            parameters=self.fingerprint,
            kind=kind,
            n_sites=self.n_sites,
            n_classes=self.n_classes,
            bits=self.bits,
            key=key,
            site=site,
            queries=queries,
            question=question,
        )


def setting_of(header: Header) -> Setting:
    """The setting that a message states, whose parameters this version derives alike."""
    try:
        setting = Setting(header.scheme, header.n_sites, header.n_classes, header.bits)
        same = setting.fingerprint == header.parameters
    except ValueError as error:
        raise ProtocolError(f"the message's setting is refused: {error}") from None
    if not same:
        raise ProtocolError(
            f"parameters {header.parameters} of the message are not the {setting.fingerprint} derived here: "
            "use equal versions of kernfed in every role"
        )
    return setting


def check_rule(measure: str, aggregate: str) -> None:
    """Refuse a decision that cannot be computed on encrypted scores, with the reason."""
    if measure == "distance":
        raise InputError(
            "measure 'distance' has no upper bound and cannot be encoded in p bits; "
            f"secure answers need one of {', '.join(MEASURES)}"
        )
    check_choice(measure, "measure", MEASURES)
    if aggregate != "min":
        raise InputError(f"secure answers need aggregate='min', got {aggregate!r}: the server finds only minima")


def encode(scores: npt.ArrayLike, bits: int, n_classes: int) -> Scores:
    """``round((2^p - 1) T)``, SFM section 3.9, for scores (n, C) in [0, 1].

    >>> encode([[0.0, 0.5, 1.0]], bits=8, n_classes=3).tolist()
    [[0, 128, 255]]
    """
    rows = check_rows(scores, "scores")
    if rows.shape[1] != n_classes:
        raise InputError(f"scores must have {n_classes} columns, one per class, got {rows.shape[1]}")
    outside = np.argwhere((rows < 0) | (rows > 1))
    if len(outside):
        place = tuple(int(i) for i in outside[0])
        raise InputError(
            f"scores must lie in [0, 1], got {rows[place]} at index {place}; "
            "only folding measures can be encoded, not distances"
        )
    encoded: Scores = np.rint(rows.astype(np.float64) * (2**bits - 1)).astype(np.int64)
    return encoded


class KeyHolder:
    """Makes the keys and reads the answers: the one who asks.

    Learns the set of classes that attain the minimum and nothing else.
    """

    def __init__(self, n_sites: int, n_classes: int, *, bits: int = 8, scheme: str = "bfv") -> None:
        setting = Setting(scheme, n_sites, n_classes, bits)
        setting.fingerprint  # noqa: B018 - a setting that cannot be held is refused before keys are made
        self._open(setting, setting.implementation.keys(setting))

    def _open(self, setting: Setting, keys: Keys) -> None:
        self.setting = setting
        self._keys = keys
        self.key = digest(*keys.site)[:16]
        self._side = setting.implementation.decryptor(setting, keys.secret)

    @property
    def site_key(self) -> bytes:
        """For the sites: a public key in scheme ``bfv``; in ``tfhe`` it can decrypt, so only sites may have it."""
        return self.setting.message("site key", self.key, self._keys.site)

    @property
    def site_key_digest(self) -> str:
        """SHA-256 of the key for the sites: what their policies name in ``keys``."""
        return digest(*self._keys.site)

    @property
    def evaluation_keys(self) -> bytes:
        """Evaluation keys, which the server needs and which decrypt nothing."""
        return self.setting.message("evaluation keys", self.key, self._keys.evaluation)

    def save(self) -> bytes:
        """Everything, the secret key included: keep it where only the key holder can read it."""
        keys = self._keys
        counts = bytes([len(keys.secret), len(keys.site)])
        return self.setting.message("secret key", self.key, [counts, *keys.secret, *keys.site, *keys.evaluation])

    @classmethod
    def load(cls, data: bytes) -> "KeyHolder":
        """The key holder that :meth:`save` wrote."""
        header, parts = unpack(data, "secret key")
        if not parts or len(parts[0]) != 2:
            raise ProtocolError("damaged message: it does not say how many parts the keys have")
        counts, parts = parts[0], parts[1:]
        secret, site = counts[0], counts[0] + counts[1]
        holder = cls.__new__(cls)
        holder._open(setting_of(header), Keys(parts[:secret], parts[secret:site], parts[site:]))
        return holder

    def attaining(self, answer: bytes, *, question: str = "") -> Sets:
        """Classes (n, C) that attain the smallest score of a query."""
        header, parts = unpack(answer, "answer")
        _check_same(header, self.setting, self.key, "the answer")
        if header.question != question:
            raise ProtocolError(f"the answer is to question {header.question!r}, expected {question!r}")
        sets = self._side.attaining(parts, header.queries)
        empty = np.flatnonzero(~sets.any(axis=1))
        if len(empty):
            raise ProtocolError(
                f"no class attains the minimum of query {empty[0]}: a site sent something else than scores, "
                "or the answer was not computed by the protocol"
            )
        return sets

    def decide(self, answer: bytes, *, question: str = "") -> npt.NDArray[np.int64]:
        """Class index (n,): the lowest of those that attain the minimum."""
        lowest: Scores = np.argmax(self.attaining(answer, question=question), axis=1).astype(np.int64)
        return lowest


class Site:
    """Encrypts scores with the site key, which is all it has."""

    def __init__(self, site_key: bytes, site: int) -> None:
        header, parts = unpack(site_key, "site key")
        self.setting, self.key = setting_of(header), header.key
        if digest(*parts)[:16] != header.key:
            raise ProtocolError("the site key is not the one its header names")
        self.site = check_count(site, "site", at_least=0, at_most=self.setting.n_sites - 1)
        self._side = self.setting.implementation.encryptor(self.setting, parts)

    def encrypt(self, scores: npt.ArrayLike, *, question: str = "") -> bytes:
        """Scores (n, C) in [0, 1] as a message; ``question`` names the batch of queries they answer."""
        values = encode(scores, self.setting.bits, self.setting.n_classes)
        parts = self._side.encrypt(values, self.site)
        return self.setting.message("scores", self.key, parts, site=self.site, queries=len(values), question=question)


class Server:
    """Combines what the sites sent. Has evaluation keys only: it can decrypt nothing and learns sizes only."""

    def __init__(self, evaluation_keys: bytes) -> None:
        header, parts = unpack(evaluation_keys, "evaluation keys")
        self.setting, self.key = setting_of(header), header.key
        self._side = self.setting.implementation.combiner(self.setting, parts)

    def check(self, message: bytes, site: int, queries: int) -> None:
        """Refuse a message that is not of ``site``, for these keys and so many queries, before others are combined."""
        header, _ = unpack(message, "scores")
        _check_same(header, self.setting, self.key, f"the message of site {site}")
        if (header.site, header.queries) != (site, queries):
            raise ProtocolError(
                f"expected {queries} queries of site {site}, got {header.queries} of site {header.site}"
            )

    def combine(self, messages: Sequence[bytes]) -> bytes:
        """The answer from the messages of sites, at most one per site; sites may be missing."""
        if not messages:
            raise ProtocolError("at least one site must answer, got none")
        if len(messages) > self.setting.n_sites:
            raise ProtocolError(
                f"the keys are made for at most {self.setting.n_sites} sites, got {len(messages)} messages; "
                "make keys for more sites"
            )
        opened: dict[int, Parts] = {}
        headers = [unpack(message, "scores") for message in messages]
        first = headers[0][0]
        for header, parts in headers:
            name = f"the message of site {header.site}"
            _check_same(header, self.setting, self.key, name)
            if not 0 <= header.site < self.setting.n_sites or header.site in opened:
                raise ProtocolError(f"{name} must be the only one of a site in 0..{self.setting.n_sites - 1}")
            if (header.queries, header.question) != (first.queries, first.question):
                raise ProtocolError(
                    f"{name} answers {header.queries} queries of {header.question!r}, "
                    f"that of site {first.site} {first.queries} of {first.question!r}"
                )
            opened[header.site] = parts
        answer = self._side.combine(opened, first.queries)
        return self.setting.message("answer", self.key, answer, queries=first.queries, question=first.question)


def _check_same(header: Header, setting: Setting, key: str, name: str) -> None:
    """Refuse a message of another setting or of other keys."""
    stated = {
        "scheme": header.scheme,
        "classes": header.n_classes,
        "bits": header.bits,
        "sites": header.n_sites,
        "parameters": header.parameters,
        "key": header.key,
    }
    wanted = {
        "scheme": setting.scheme,
        "classes": setting.n_classes,
        "bits": setting.bits,
        "sites": setting.n_sites,
        "parameters": setting.fingerprint,
        "key": key,
    }
    for what, value in wanted.items():
        if stated[what] != value:
            raise ProtocolError(f"{name} is for {what} {stated[what]!r}, expected {value!r}")
    if header.queries < 1:
        raise ProtocolError(f"{name} must hold at least 1 query, got {header.queries}")


#: Schemes whose key for the sites is public. In "tfhe" it can decrypt, so that it must not pass through a server.
PUBLIC_KEY_SCHEMES = ("bfv", "plain")
_LENGTH = 8


@dataclass(frozen=True)
class PublicKeys:
    """A key to encrypt with, and a server that can evaluate; neither decrypts."""

    site_key: bytes
    server: Server


def pack_keys(holder: KeyHolder) -> bytes:
    """The keys of a holder that are no secret: the length of the key for the sites in 8 bytes, it, and the others."""
    site_key = holder.site_key
    return len(site_key).to_bytes(_LENGTH, "little") + site_key + holder.evaluation_keys


def name_of_keys(body: bytes) -> str:
    """SHA-256 of packed keys: whoever remembers them under it cannot be given others in their place."""
    return hashlib.sha256(body).hexdigest()


def open_keys(body: bytes) -> PublicKeys:
    """The keys in bytes that may be hostile, or :class:`ProtocolError`."""
    length = int.from_bytes(body[:_LENGTH], "little")
    if len(body) < _LENGTH or length > len(body) - _LENGTH:
        raise ProtocolError("keys must be the length of the key for the sites, this key, and the evaluation keys")
    site_key, evaluation = body[_LENGTH : _LENGTH + length], body[_LENGTH + length :]
    for message in (site_key, evaluation):
        scheme = read_header(message)[0].scheme
        if scheme not in PUBLIC_KEY_SCHEMES:
            schemes = " or ".join(PUBLIC_KEY_SCHEMES)
            raise ProtocolError(f"a server elsewhere combines by {schemes}, whose keys do not decrypt, got {scheme!r}")
    return PublicKeys(site_key, Server(evaluation))

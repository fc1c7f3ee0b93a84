import numpy as np
import pytest

from kernfed.errors import ProtocolError
from kernfed.secure import KeyHolder, Setting, Site, check_rule, encode, read_header
from kernfed.secure.message import LONGEST_HEADER, MAGIC, pack, unpack
from oracles.secure import encode_one


@pytest.mark.parametrize("bits", [8, 16])
def test_encoding_rounds_to_nearest(bits: int, rng: np.random.Generator) -> None:
    scores = np.concatenate([rng.random(200), [0.0, 1.0, 0.5, 1 / 3]]).reshape(-1, 4)
    expected = [[encode_one(float(score), bits) for score in row] for row in scores]
    assert encode(scores, bits, 4).tolist() == expected
    assert encode(scores.astype(np.float32), bits, 4).max() == 2**bits - 1


def test_encoding_takes_integers_and_strided_rows() -> None:
    assert encode([[0, 1]], 8, 2).tolist() == [[0, 255]]
    wide = np.zeros((3, 6))
    wide[:, ::2] = 1.0
    assert encode(wide[:, ::2], 8, 3).tolist() == [[255] * 3] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("aes", 2, 3, 8), "scheme must be one of 'plain', 'bfv', 'tfhe', got 'aes'"),
        (("plain", 0, 3, 8), "n_sites must be >= 1, got 0"),
        (("plain", 2, 0, 8), "n_classes must be >= 1, got 0"),
        (("plain", 2.0, 3, 8), "n_sites must be an integer"),
        (("plain", 2, 3, 12), "bits must be 8 or 16, got 12"),
        (("plain", 2, 3, True), "bits must be an integer, got True"),
    ],
)
def test_settings_are_checked(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Setting(*arguments)  # type: ignore[arg-type]


def test_numpy_integers_are_settings_too() -> None:
    holder = KeyHolder(np.int64(2), np.int32(3), bits=np.uint8(16), scheme="plain")  # type: ignore[arg-type]
    assert read_header(holder.site_key)[0].bits == 16


def test_rules_that_cannot_be_computed_are_refused_with_the_reason() -> None:
    for measure in ("rms", "product", "min", "max", "euclidean", "cosine"):
        check_rule(measure, "min")
    with pytest.raises(ValueError, match="'distance' has no upper bound"):
        check_rule("distance", "min")
    with pytest.raises(ValueError, match="measure must be one of"):
        check_rule("manhattan", "min")
    with pytest.raises(ValueError, match="aggregate='min', got 'kth'"):
        check_rule("rms", "kth")


def test_messages_say_what_they_are_and_how_large() -> None:
    holder = KeyHolder(3, 4, bits=16, scheme="plain")
    header, offset = read_header(holder.site_key)
    assert (header.scheme, header.kind, header.n_sites, header.n_classes, header.bits) == (
        "plain",
        "site key",
        3,
        4,
        16,
    )
    assert header.key == holder.key
    assert sum(header.parts) == len(holder.site_key) - offset


def test_fingerprints_differ_between_settings() -> None:
    prints = {Setting("plain", q, c, b).fingerprint for q in (1, 2) for c in (2, 3) for b in (8, 16)}
    assert len(prints) == 8


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "must begin with"),
        (b"PK\x03\x04 etc", "must begin with"),
        (MAGIC + (LONGEST_HEADER + 1).to_bytes(4, "little") + b"{}", "header of"),
        (MAGIC + (10).to_bytes(4, "little") + b"{}", "header of 10 bytes"),
        (MAGIC + (2).to_bytes(4, "little") + b"{]", "not JSON"),
        (MAGIC + (2).to_bytes(4, "little") + b"[]", "must have the fields"),
        (MAGIC + (2).to_bytes(4, "little") + b"\xff\xfe", "not JSON"),
    ],
)
def test_bytes_that_are_no_message(data: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        read_header(data)


def test_a_site_key_that_is_not_the_named_one() -> None:
    header, _ = unpack(KeyHolder(2, 3, scheme="plain").site_key, "site key")
    named = {k: v for k, v in header.__dict__.items() if k not in ("version", "parts", "digest")}
    with pytest.raises(ProtocolError, match="not the one its header names"):
        Site(pack([b"another key"], **named), 0)


def test_a_saved_key_holder_without_counts() -> None:
    header, _ = unpack(KeyHolder(2, 3, scheme="plain").save(), "secret key")
    named = {k: v for k, v in header.__dict__.items() if k not in ("version", "parts", "digest")}
    with pytest.raises(ProtocolError, match="how many parts"):
        KeyHolder.load(pack([], **named))

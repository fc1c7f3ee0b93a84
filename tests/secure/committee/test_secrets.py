"""What each coalition sees of a site, computed from the equations, is uniform; boxes and terms cannot be altered."""

import json

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from kernfed.errors import InputError, StoreError
from kernfed.secure.committee.contribution import contribute
from kernfed.secure.committee.keys import (
    Identity,
    about,
    add_stream,
    is_signed,
    keep_identity,
    make_one_time,
    open_box,
    read_identity,
    seal,
)
from kernfed.secure.committee.terms import RunTerms


def stream(seed: bytes, size: int) -> np.ndarray:
    """AES-256 in counter mode by the book: block i is the encryption of i."""
    box = Cipher(algorithms.AES(seed), modes.ECB()).encryptor()
    blocks = b"".join(box.update(i.to_bytes(16, "big")) for i in range(-(-size // 2)))
    return np.frombuffer(blocks, dtype="<u8")[:size]


def test_streams_are_counter_mode():
    seed, total = bytes(range(32)), np.arange(70_001, dtype=np.uint64)
    expected = total + stream(seed, len(total))
    add_stream(total, seed)
    np.testing.assert_array_equal(total, expected)


@pytest.mark.parametrize("corrupt", [False, True])
def test_what_any_one_member_and_the_coordinator_see_of_a_site_is_uniform(make_cast, corrupt):
    """They lack one stream; and for every vector there is one value of it that explains all they see.

    With the stream drawn uniformly, as AES of an unknown key is taken to be, each vector is then equally likely.
    """
    cast = make_cast(corrupt, size=50_000)
    terms = cast.terms()
    sent = cast.contribution(terms, "s0")
    for member in cast.members.values():
        place = terms.place(member.name)
        private = (member.folder / f"{terms.committee[place].once.public}.key").read_bytes()
        held = terms.held(member.name)
        seeds = open_box(sent.boxes[place].tobytes(), private, about(terms.id, "s0", member.name, 32 * len(held)))
        rest = sent.masked.copy()
        for position in range(len(held)):
            rest -= stream(seeds[32 * position : 32 * (position + 1)], len(rest))
        missing = rest - terms.layout.encode({"x": cast.vectors["s0"]})
        # The stream that is missing passes for random: bytes are equally frequent (255 degrees of freedom).
        counts = np.bincount(missing.view(np.uint8), minlength=256)
        statistic = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
        assert 150 < statistic < 380
    assert len(held) == len(cast.members) - 1


def test_two_contributions_share_nothing(make_cast):
    cast = make_cast(False)
    terms, vector = cast.terms(), np.zeros(40, dtype=np.uint64)
    first, again = (contribute(terms, "s0", vector, cast.sites["s0"]) for _ in range(2))
    assert not (first.masked == again.masked).any()
    assert not (first.boxes == again.boxes).all(axis=1).any()


def test_boxes_open_for_what_they_are_about():
    identity = Identity.make()
    private, key = make_one_time(identity)
    said = about("run", "site", "member", 7)
    box = seal(b"content", key.public, said)
    assert open_box(box, private, said) == b"content"
    for other in [about("ran", "site", "member", 7), about("run", "sit", "emember", 7), about("run", "site", "m", 7)]:
        with pytest.raises(InputError, match="do not open"):
            open_box(box, private, other)
    altered = bytes([box[0] ^ 1]) + box[1:]
    for wrong, own in [(altered, private), (box[:-1], private), (b"", private), (box, make_one_time(identity)[0])]:
        with pytest.raises(InputError, match="do not open"):
            open_box(wrong, own, said)


def test_a_key_for_one_run_is_its_owners():
    identity, other = Identity.make(), Identity.make()
    _, key = make_one_time(identity)
    key.check(identity.public, "a")
    with pytest.raises(InputError, match="not signed"):
        key.check(other.public, "a")
    assert not is_signed(identity.public, b"another message", identity.sign(b"a message"))


def test_a_key_is_made_once_and_kept_to_its_owner(tmp_path):
    place = tmp_path / "sum.key"
    assert read_identity(place) is None
    made = keep_identity(place)
    assert keep_identity(place) == made
    assert place.stat().st_mode & 0o777 == 0o600
    place.write_bytes(b"short")
    with pytest.raises(StoreError, match="damaged"):
        keep_identity(place)


def test_terms_are_one_text(make_cast):
    terms = make_cast(True).terms()
    again = RunTerms.from_bytes(terms.to_bytes())
    assert (again, again.id) == (terms, terms.id)
    values = json.loads(terms.to_bytes())
    for changes in [{"min_sites": 4}, {"corrupt_sites": 1}, {"task": "toys"}, {"nonce": "11" * 32}]:
        text = json.dumps({**values, **changes}, sort_keys=True, separators=(",", ":")).encode()
        assert RunTerms.from_bytes(text).id != terms.id


@pytest.mark.parametrize(
    "changes",
    [
        {"corrupt": False},
        {"corrupt": 2},
        {"min_sites": 1},
        {"min_sites": 7},
        {"honest": 5, "corrupt_sites": 2},
        {"noise": {}},
        {"adjacency": "one row"},
        {"question": "short"},
        {"committee": []},
        {"roster": {"s0": "no key"}},
        {"layout": {}},
        {"unknown": 1},
    ],
)
def test_terms_that_cannot_be(make_cast, changes):
    values = json.loads(make_cast(True).terms().to_bytes())
    with pytest.raises(InputError, match="cannot be followed"):
        RunTerms.from_bytes(json.dumps({**values, **changes}, sort_keys=True, separators=(",", ":")).encode())


def test_terms_in_another_order_are_refused(make_cast):
    values = json.loads(make_cast(False).terms().to_bytes())
    with pytest.raises(InputError, match="one way"):
        RunTerms.from_bytes(json.dumps(values).encode())
    with pytest.raises(InputError, match="cannot be followed"):
        RunTerms.from_bytes(b"\xff")

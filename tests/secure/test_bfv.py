import subprocess
import sys
from functools import lru_cache
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.schemes import SchemeContract, roles
from kernfed.errors import ProtocolError
from kernfed.secure import KeyHolder, Server, Site
from kernfed.secure import seal as seal_module
from kernfed.secure.arithmetic import PLAIN_MODULUS, Ring
from kernfed.secure.circuit import attaining as circuit
from kernfed.secure.circuit import score_factor
from kernfed.secure.message import pack, unpack
from kernfed.secure.parameters import derive
from oracles.secure import attaining_sets, scores_with_ties

api = pytest.importorskip("tenseal.sealapi", reason="extra [fhe] not installed")


@lru_cache
def keys(n_sites: int, n_classes: int, bits: int = 8) -> KeyHolder:
    """Keys are made once per setting: they are the slow part."""
    return KeyHolder(n_sites, n_classes, bits=bits, scheme="bfv")


def forged(holder: KeyHolder, site: int, thermometer: np.ndarray, scores: np.ndarray) -> bytes:
    """A message of a site that encrypts whatever it likes: slots of the thermometer, scores (n, C)."""
    side = Site(holder.site_key, site)._side
    parameters = side.parameters
    factor = score_factor(holder.setting.n_sites, 8)
    slots = parameters.layout.scores(scores * factor % PLAIN_MODULUS, site)
    parts = [
        side.seal.encrypt(side.encryptor, thermometer % PLAIN_MODULUS, parameters.ring.levels),
        side.seal.encrypt(side.encryptor, slots, parameters.scores_level),
    ]
    return holder.setting.message("scores", holder.key, parts, site=site, queries=len(scores))


def opened(holder: KeyHolder, answer: bytes) -> np.ndarray:
    """All that the key holder can read: the slots (queries of a ciphertext, 256) of every answer ciphertext."""
    side = holder._side
    pages = []
    for part in unpack(answer, "answer")[1]:
        plain = api.Plaintext()
        side.decryptor.decrypt(side.seal.cipher(part, side.parameters.sent_level), plain)
        slots = np.array(side.seal.encoder.decode_uint64(plain))
        pages.append(slots.reshape(2, 256, -1).swapaxes(1, 2).reshape(-1, 256))
    return np.concatenate(pages)


class TestBfv(SchemeContract):
    scheme = "bfv"
    settings = ((1, 3, 8), (2, 1, 8), (2, 3, 8), (2, 4, 16), (1, 256, 8), (5, 10, 8))

    def holder(self, n_sites: int, n_classes: int, bits: int) -> KeyHolder:
        return keys(n_sites, n_classes, bits)


def test_an_answer_without_a_class_is_refused() -> None:
    """A site states a minimum of 0 for the second query and scores that are all larger."""
    holder = keys(2, 3)
    layout = holder._side.parameters.layout
    message = forged(holder, 0, layout.thermometer(np.array([3, 0])), np.array([[3, 9, 9], [7, 8, 9]]))
    with pytest.raises(ProtocolError, match="no class attains the minimum of query 1"):
        holder.attaining(Server(holder.evaluation_keys).combine([message]))


@pytest.mark.slow
def test_twenty_sites_in_two_groups(rng: np.random.Generator) -> None:
    holder = keys(20, 10)
    sites, server = roles(holder)
    scores = scores_with_ties(rng, 20, 64, 10)
    messages = [site.encrypt(rows) for site, rows in zip(sites, scores, strict=True)]
    np.testing.assert_array_equal(holder.attaining(server.combine(messages)), attaining_sets(scores, 8))
    some = [0, 3, 15]  # none of the second group
    answer = server.combine([messages[q] for q in some])
    np.testing.assert_array_equal(holder.attaining(answer), attaining_sets(scores[some], 8))


@pytest.mark.parametrize("present", [[0], [1]])
def test_missing_sites_with_two_digits(present: list[int], rng: np.random.Generator) -> None:
    holder = keys(2, 4, 16)
    sites, server = roles(holder)
    scores = scores_with_ties(rng, 2, 20, 4, 16)
    answer = server.combine([sites[q].encrypt(scores[q]) for q in present])
    np.testing.assert_array_equal(holder.attaining(answer), attaining_sets(scores[present], 16))


@pytest.mark.parametrize(
    ("n_sites", "n_classes", "bits"),
    [(1, 3, 8), (2, 3, 8), (2, 4, 16), (5, 10, 8), pytest.param(20, 10, 8, marks=pytest.mark.slow)],
)
def test_noise_stays_below_the_derived_bound(n_sites: int, n_classes: int, bits: int) -> None:
    holder = keys(n_sites, n_classes, bits)
    sites, server = roles(holder)
    side = server._side
    layout = side.parameters.layout
    scores = np.random.default_rng(3).random((n_sites, layout.batch, n_classes))
    parts = {q: unpack(sites[q].encrypt(scores[q]), "scores")[1] for q in range(n_sites)}
    factors = layout.random_factors(np.random.default_rng(4).integers(0, 2**16, (layout.batch, n_classes)))
    answer = circuit(side.ops, layout, side._receive(parts), bits, factors)
    budget = holder._side.decryptor.invariant_noise_budget(answer.data)  # -log2 (2 v), rounded down
    assert answer.bound == side.parameters.answer_bound
    assert answer.level == side.parameters.answer_level
    assert budget >= floor(-1 - answer.bound)
    assert budget <= -1 - answer.bound + 60  # the bound is not so loose that it says nothing
    alone = circuit(side.ops, layout, side._receive({0: parts[0]}), bits, factors)
    assert (alone.bound, alone.level) == (answer.bound, answer.level)  # the plan holds whoever answers


def test_each_operation_stays_below_its_bound() -> None:
    holder = keys(2, 3)
    server = Server(holder.evaluation_keys)
    ops, side = server._side.ops, holder._side
    encryptor = Site(holder.site_key, 0)._side
    slots = np.random.default_rng(0).integers(0, PLAIN_MODULUS, side.parameters.ring.degree)
    top = side.parameters.ring.levels
    fresh = ops.fresh(side.seal.cipher(side.seal.encrypt(encryptor.encryptor, slots, top), top), top)
    square = ops.multiply(fresh, fresh)
    lowered = ops.to_level(square, 2)
    results = {
        "fresh": fresh,
        "sum": ops.add(fresh, fresh),
        "square": square,
        "inner": ops.inner([(fresh, square), (square, square)]),
        "rotation": ops.rotate(fresh, 16),
        "switch": lowered,
        "rotation below": ops.rotate(lowered, 32),
        "plain": ops.multiply_plain(fresh, slots),
        "constant": ops.scale(fresh, 1000),
        "negative": ops.scale(fresh, -1000),
    }
    for name, cipher in results.items():
        budget = side.decryptor.invariant_noise_budget(cipher.data)
        assert budget >= floor(-1 - cipher.bound), name
        assert budget <= -1 - cipher.bound + 24, name


def test_key_holder_reads_zero_or_noise_and_nothing_else() -> None:
    """Zero exactly on the set; elsewhere uniform over 1..65536, fresh in every answer; zero outside the answer."""
    holder = keys(5, 10)
    sites, server = roles(holder)
    scores = np.tile(np.linspace(0.2, 0.9, 10), (5, 64, 1))
    scores[1:, :, 0] = 0.5  # one site alone attains the minimum in half the queries, all of them in the others
    scores[:, 32:, 0] = 0.1
    messages = [site.encrypt(rows) for site, rows in zip(sites, scores, strict=True)]
    pages = np.stack([opened(holder, server.combine(messages)) for _ in range(3)])
    assert not pages[:, :, 10:].any()
    assert not pages[:, :, 0].any()
    others = pages[:, :, 1:10]
    assert (others > 0).all()
    assert (others <= 65536).all()
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert np.mean(others[a] == others[b]) < 0.01
    for half in (others[:, :32], others[:, 32:]):
        counts = np.bincount((half.ravel() - 1) >> 13, minlength=8)
        expected = half.size / 8
        assert ((counts - expected) ** 2 / expected).sum() < 40  # chi-square, 7 degrees: 1e-6


def test_flooding_drowns_the_noise_of_the_computation() -> None:
    """Before flooding the noise tells which computation it was; afterwards it is that of the flood."""
    holder = keys(2, 3)
    server = Server(holder.evaluation_keys)
    side, reader = server._side, holder._side
    parts = {0: unpack(Site(holder.site_key, 0).encrypt(np.full((1, 3), 0.5)), "scores")[1]}
    factors = reader.parameters.layout.random_factors(np.zeros((1, 3), np.uint16))
    answer = circuit(side.ops, reader.parameters.layout, side._receive(parts), 8, factors)
    before = reader.decryptor.invariant_noise_budget(answer.data)
    after = reader.decryptor.invariant_noise_budget(side._flood(answer))
    assert reader.parameters.privacy_bits >= 40
    assert before > 40
    assert after == 0  # between 1/4 and 1/2 of what would be wrong: correct, and no room for anything else


def test_flood_is_uniform_on_its_range() -> None:
    library = holder_seal = keys(2, 3)._side.seal
    bound = 10**20
    cipher = library.noise(bound, 2)
    degree, (p, q) = library.ring.degree, holder_seal.primes[:2]
    array = cipher.dyn_array()
    values = []
    for i in range(degree):
        a, b = array.at(i), array.at(degree + i)
        value = (a + p * ((b - a) * pow(p, -1, q) % q)) % (p * q)
        values.append(value if value < p * q // 2 else value - p * q)
    unit = np.array([value / bound for value in values])
    assert np.abs(unit).max() <= 1
    counts = np.histogram(unit, bins=8, range=(-1, 1))[0]
    assert ((counts - degree / 8) ** 2 / (degree / 8)).sum() < 40
    assert not any(array.at(2 * degree + i) for i in range(0, 2 * degree, 97))


def test_a_forged_thermometer_changes_the_class_but_reveals_no_more() -> None:
    """A site that subtracts another's vote: classes come out as zero or as random numbers all the same."""
    holder = keys(2, 3)
    layout = holder._side.parameters.layout
    honest = Site(holder.site_key, 0).encrypt(np.array([[10, 20, 30]]) / 255)
    cancels = layout.thermometer(np.array([15])) - layout.thermometer(np.array([10]))
    message = forged(holder, 1, cancels, np.array([[40, 15, 40]]))
    answer = Server(holder.evaluation_keys).combine([honest, message])
    assert holder.attaining(answer).tolist() == [[False, True, False]]
    assert not opened(holder, answer)[1:].any()


def test_ciphertexts_of_another_place_are_refused() -> None:
    holder = keys(2, 3)
    server, side = Server(holder.evaluation_keys), Site(holder.site_key, 0)._side
    layout, top = side.parameters.layout, side.parameters.ring.levels
    good = side.seal.encrypt(side.encryptor, layout.thermometer(np.array([3])), top)
    low = side.seal.encrypt(side.encryptor, layout.thermometer(np.array([3])), 1)
    nothing = seal_module.dump(side.seal._cipher_of(np.zeros((2, top, layout.degree), np.uint64), top))
    three = seal_module.dump(side.seal._cipher_of(np.ones((3, top, layout.degree), np.uint64), top))
    for wrong, message in (
        (low, "at the level"),
        (nothing, "encrypts nothing"),
        (three, "malformed"),
        (good + bytes(2_000_000), "at most"),
    ):
        packed = holder.setting.message("scores", holder.key, [wrong, good], site=0, queries=1)
        with pytest.raises(ProtocolError, match=message):
            server.combine([packed])
    with pytest.raises(ProtocolError, match="malformed"):
        side.seal._cipher_of(np.full((2, top, layout.degree), 2**61, np.uint64), top)


def test_keys_of_too_few_parts_are_refused() -> None:
    holder = keys(2, 3)
    message = holder.setting.message("evaluation keys", holder.key, holder._keys.evaluation[:2])
    with pytest.raises(ProtocolError, match=r"expected 3 parts \(PublicKey, RelinKeys, GaloisKeys\), got 2"):
        Server(message)


def test_an_answer_under_another_secret_key_does_not_decrypt() -> None:
    """Also if its header claims the right key."""
    mine, other = keys(2, 3), KeyHolder(2, 3)
    answer = Server(other.evaluation_keys).combine([Site(other.site_key, 0).encrypt(np.full((1, 3), 0.5))])
    header, parts = unpack(answer, "answer")
    named = {**header.__dict__, "key": mine.key}
    for name in ("version", "parts", "digest"):
        named.pop(name)
    with pytest.raises(ProtocolError, match="does not decrypt"):
        mine.decide(pack(parts, **named))


@pytest.mark.parametrize("n_sites", [1, 2, 3, 5, 20, 33, 100, 256])
@pytest.mark.parametrize("bits", [8, 16])
def test_seal_accepts_every_derived_ring_at_128_bits(n_sites: int, bits: int) -> None:
    if n_sites >= 100 and bits == 16:
        with pytest.raises(ValueError, match="use fewer sites or 8 bits"):
            derive(n_sites, 10, bits)
        return
    parameters = derive(n_sites, 10, bits)
    library = seal_module.seal.__wrapped__(parameters.ring)
    assert library.context.parameters_set()
    assert sorted(library.ids) == list(range(1, parameters.ring.levels + 1))
    assert parameters.privacy_bits >= 40


def test_insecure_rings_are_refused_by_seal() -> None:
    with pytest.raises(RuntimeError, match="SEAL refuses"):
        seal_module.seal(Ring(8192, 60, 4, 60))


@pytest.mark.parametrize(
    ("n_sites", "n_classes", "bits", "message"),
    [(257, 3, 8, "at most 256 sites"), (2, 257, 8, "256 classes"), (150, 10, 16, "needs a modulus of [0-9]+ bits")],
)
def test_settings_beyond_any_parameters_are_refused_before_keys(
    n_sites: int, n_classes: int, bits: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seal_module, "sealapi", lambda: pytest.fail("work was done"))
    with pytest.raises(ValueError, match=message):
        KeyHolder(n_sites, n_classes, bits=bits)


def test_objects_pass_through_private_files_that_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where files without a name do not exist, a private folder serves and nothing stays."""
    library = keys(2, 3)._side.seal
    monkeypatch.delattr("os.memfd_create", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    seen: list[int] = []

    class Spy:
        def save(self, path: str) -> None:
            seen.append(Path(path).parent.stat().st_mode & 0o777)
            Path(path).write_bytes(b"content")

    assert seal_module.dump(Spy()) == b"content"
    assert seen == [0o700]
    plain: Any = library.plaintext(np.arange(library.ring.degree))
    again = seal_module.load("Plaintext", library.context, seal_module.dump(plain))
    assert again.to_string() == plain.to_string()
    with pytest.raises(ProtocolError, match="malformed Plaintext"):
        seal_module.load("Plaintext", library.context, b"rubbish")
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_one_sentence_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['tenseal'] = None\n"
        "import kernfed.secure as s\n"
        "assert s.classify([[[0.5, 0.1]]]).tolist() == [1]\n"
        "try: s.KeyHolder(2, 3)\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "scheme 'bfv' needs SEAL: pip install -e '.[fhe]' in a clone of kernfed\n"

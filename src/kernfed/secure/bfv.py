"""Scheme ``bfv``: exact and batched, without bootstrapping (Brakerski 2012; Fan and Vercauteren 2012), by SEAL.

What each role learns, if all follow the protocol:

- The **key holder** learns, per query, the set of classes that attain the minimum. Not the minimum, not how many or
  which sites attain it: each class arrives as 0 or as a uniformly random non-zero number, all other slots as 0. The
  noise of the answer, which depends on the computation, is drowned in uniform noise (statistical distance at most
  2^-40 per answer ciphertext, by the derived noise bound), and a fresh encryption of zero is added, so the answer
  says nothing else either: *circuit privacy* for honestly made inputs.
- The **server** learns sizes: sites, classes, bits, number of queries. Scores are hidden at 128-bit security.
- A **site** learns nothing from the others. It sees the query in clear: this protocol does not hide queries from sites.

What is not covered:

- Key holder and server together can read every score: they must not collude.
- Keys are taken to be made by this package, and the server to compute what it should. BFV is not secure against
  chosen ciphertexts: a server that alters ciphertexts and also sees the decisions could learn about the key.
- A malicious site may send anything a ciphertext can hold. It cannot make the answer carry more than one bit per
  class and query, since the random factors come after it; but it decides the outcome (so can a site that states a
  score of 0), and together with the key holder it may turn those bits into other questions about the others'
  scores. An answer without any class is detected. Excessive noise spoils the answer, which is detected where slots
  that must be zero are not, and weakens the flooding.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from kernfed.errors import ProtocolError
from kernfed.secure.arithmetic import PLAIN_MODULUS, Arithmetic, Cipher
from kernfed.secure.circuit import DIGIT_BITS, NEVER, UNITS, attaining, score_factor
from kernfed.secure.parameters import FLOOD, Parameters, derive
from kernfed.secure.protocol import Keys, Parts, Scores, Sets, Setting
from kernfed.secure.seal import Seal, SealBackend, dump, load_all, seal, sealapi


def _parameters(setting: Setting) -> Parameters:
    return derive(setting.n_sites, setting.n_classes, setting.bits)


@dataclass(frozen=True)
class BfvEncryptor:
    """A site's side: thermometers of its smallest score and the scores themselves."""

    parameters: Parameters
    seal: Seal
    encryptor: Any

    def encrypt(self, scores: Scores, site: int) -> Parts:
        """Per chunk of queries: a thermometer for each digit, then the scores."""
        layout = self.parameters.layout
        parts: list[bytes] = []
        for start in range(0, len(scores), layout.batch):
            chunk = scores[start : start + layout.batch]
            smallest = chunk.min(axis=1)
            digits = [smallest] if self.parameters.bits == DIGIT_BITS else list(divmod(smallest, UNITS))
            levels = [self.parameters.ring.levels, self.parameters.second_level]
            for digit, level in zip(digits, levels, strict=False):
                parts.append(self.seal.encrypt(self.encryptor, layout.thermometer(digit), level))
            factor = score_factor(layout.n_sites, self.parameters.bits)
            slots = layout.scores(chunk * factor % PLAIN_MODULUS, site)
            parts.append(self.seal.encrypt(self.encryptor, slots, self.parameters.scores_level))
        return parts


@dataclass(frozen=True)
class _Received:
    """The ciphertexts of one chunk of queries, loaded and checked; the inputs of the circuit."""

    ops: Arithmetic[Any]
    parameters: Parameters
    first_sum: Any
    first_all: Sequence[Any]
    second_all: Sequence[Any]
    score_sums: Sequence[Any]

    def first_total(self) -> Cipher[Any]:
        """Bounded as the sum of all sites, also if some are missing."""
        return self.ops.fresh(self.first_sum, self.parameters.ring.levels, self.parameters.layout.n_sites)

    def first(self) -> Sequence[Cipher[Any]]:
        """Thermometers of the first digit."""
        return [self.ops.fresh(cipher, self.parameters.ring.levels) for cipher in self.first_all]

    def second(self, level: int) -> Sequence[Cipher[Any]]:  # noqa: ARG002 - sites encrypt at the planned level
        """Thermometers of the second digit."""
        return [self.ops.fresh(cipher, self.parameters.second_level) for cipher in self.second_all]

    def scores(self, level: int) -> Sequence[Cipher[Any]]:  # noqa: ARG002 - as above
        """Sums of the scores of each group of sites."""
        groups = zip(self.score_sums, self.parameters.layout.groups, strict=True)
        return [self.ops.fresh(cipher, self.parameters.scores_level, len(sites)) for cipher, sites in groups]


@dataclass(frozen=True)
class BfvCombiner:
    """The server's side: evaluation keys, and the public key to re-randomise answers."""

    parameters: Parameters
    seal: Seal
    ops: Arithmetic[Any]
    encryptor: Any

    def combine(self, scores: Mapping[int, Parts], queries: int) -> Parts:
        """One ciphertext per chunk. All inputs are loaded, and so checked, before anything is computed."""
        batch = self.parameters.layout.batch
        chunks = -(-queries // batch)
        per_chunk = 1 + self.parameters.bits // DIGIT_BITS
        for site, parts in scores.items():
            if len(parts) != chunks * per_chunk:
                raise ProtocolError(
                    f"site {site} must send {chunks * per_chunk} ciphertexts for {queries} queries, got {len(parts)}"
                )
        received = [
            self._receive({q: p[per_chunk * k : per_chunk * (k + 1)] for q, p in scores.items()}) for k in range(chunks)
        ]
        return [self._answer(chunk, min(batch, queries - batch * k)) for k, chunk in enumerate(received)]

    def _receive(self, scores: Mapping[int, Parts]) -> _Received:
        parameters, layout, backend = self.parameters, self.parameters.layout, self.ops.backend
        first_sum, first, second, sums = None, [], [], []
        for _, parts in sorted(scores.items()):
            cipher = self.seal.cipher(parts[0], parameters.ring.levels)
            first_sum = cipher if first_sum is None else backend.add(first_sum, cipher)
            if parameters.bits > DIGIT_BITS:
                first.append(cipher)
                second.append(self.seal.cipher(parts[1], parameters.second_level))
        never = NEVER * score_factor(layout.n_sites, parameters.bits) % PLAIN_MODULUS
        for sites in layout.groups:
            total = self.seal.zero(self.encryptor, parameters.scores_level)  # perhaps none of the group answered
            for site in sorted(set(sites) & set(scores)):
                total = backend.add(total, self.seal.cipher(scores[site][-1], parameters.scores_level))
            absent = [b for b in range(UNITS // layout.block) if b >= len(sites) or sites[b] not in scores]
            sums.append(backend.add_plain(total, layout.blocks(absent, never)))
        return _Received(self.ops, parameters, first_sum, first, second, sums)

    def _answer(self, received: _Received, queries: int) -> bytes:
        layout = self.parameters.layout
        random = np.frombuffer(secrets.token_bytes(2 * queries * layout.n_classes), "<u2")
        factors = layout.random_factors(random.reshape(queries, layout.n_classes))
        answer = attaining(self.ops, layout, received, self.parameters.bits, factors)
        return dump(self._flood(answer))

    def _flood(self, answer: Cipher[Any]) -> Any:
        """Drown the noise of the computation, re-randomise, then drop the primes that are not needed to decrypt."""
        backend, level = self.ops.backend, answer.level
        most = int(FLOOD * prod(self.seal.primes[:level]) / PLAIN_MODULUS)
        flooded = backend.add(answer.data, self.seal.noise(most, level))
        fresh = backend.add(flooded, self.seal.zero(self.encryptor, level))
        return backend.switch(fresh, self.parameters.sent_level)


@dataclass(frozen=True)
class BfvDecryptor:
    """What the key holder computes: decrypts answers."""

    parameters: Parameters
    seal: Seal
    decryptor: Any

    def attaining(self, answer: Parts, queries: int) -> Sets:
        """Zero says that a class attains the minimum; every slot that is no answer must be zero as well."""
        layout, api = self.parameters.layout, sealapi()
        chunks = -(-queries // layout.batch)
        if len(answer) != chunks:
            raise ProtocolError(f"the answer to {queries} queries must be {chunks} ciphertexts, got {len(answer)}")
        ciphers = [self.seal.cipher(part, self.parameters.sent_level) for part in answer]
        sets = []
        for k, cipher in enumerate(ciphers):
            plain = api.Plaintext()
            self.decryptor.decrypt(cipher, plain)
            slots = np.array(self.seal.encoder.decode_uint64(plain), dtype=np.int64)
            sets.append(layout.answer(slots, min(layout.batch, queries - layout.batch * k)))
        return np.concatenate(sets)


@dataclass(frozen=True)
class Bfv:
    """BFV at 128-bit security with parameters derived from the setting."""

    def parameters(self, setting: Setting) -> str:
        """Ring, layout and levels."""
        return repr(_parameters(setting))

    def keys(self, setting: Setting) -> Keys:
        """Rotation keys for the eight steps of the circuit; half of each of the server's keys is stored as a seed."""
        parameters, api = _parameters(setting), sealapi()
        context = seal(parameters.ring).context
        generator = api.KeyGenerator(context)
        public = api.PublicKey()
        generator.create_public_key(public)
        order = 2 * parameters.ring.degree
        steps = [pow(3, parameters.layout.width << k, order) for k in range(DIGIT_BITS)]
        return Keys(
            secret=[dump(generator.secret_key())],
            site=[dump(public)],
            evaluation=[
                dump(public),
                dump(generator.create_relin_keys()),
                dump(generator.create_galois_keys(steps)),
            ],
        )

    def decryptor(self, setting: Setting, secret: Parts) -> BfvDecryptor:
        """What the key holder computes: decrypts answers."""
        parameters = _parameters(setting)
        library = seal(parameters.ring)
        (key,) = load_all(["SecretKey"], library.context, secret)
        return BfvDecryptor(parameters, library, sealapi().Decryptor(library.context, key))

    def encryptor(self, setting: Setting, site: Parts) -> BfvEncryptor:
        """What a site computes: encrypts its scores."""
        parameters = _parameters(setting)
        library = seal(parameters.ring)
        (key,) = load_all(["PublicKey"], library.context, site)
        return BfvEncryptor(parameters, library, sealapi().Encryptor(library.context, key))

    def combiner(self, setting: Setting, evaluation: Parts) -> BfvCombiner:
        """What the server computes: combines the sites' scores."""
        parameters = _parameters(setting)
        library = seal(parameters.ring)
        public, *keys = load_all(["PublicKey", "RelinKeys", "GaloisKeys"], library.context, evaluation)
        ops: Arithmetic[Any] = Arithmetic(parameters.ring, SealBackend(library, *keys))
        return BfvCombiner(parameters, library, ops, sealapi().Encryptor(library.context, public))


SCHEME = Bfv()

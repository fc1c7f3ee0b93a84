"""Scheme ``tfhe``: the circuit of SFM 3.9.1 as printed, by Concrete (extra ``[tfhe]``, in an environment of its own).

Scores are digits of two bits, most significant first. Minima over sites form a tree, then minima over classes, then C
equality comparisons with the overall minimum: Q C - 1 minima of 11 programmable bootstraps each at 8 bits, and 5 per
comparison. Every bootstrap works on at most four bits. One query is one evaluation; ``bfv`` is far faster.

What differs from ``bfv``:

- Concrete has no public-key encryption. The site key *contains the secret key*: a site could decrypt what another
  site sent, if it got hold of it. Only the server must be without it. Use ``bfv`` where sites distrust each other.
- An answer is wrong with probability at most 2^-40 (``global_p_error`` of the compiler).
- The noise of an answer is that of a last bootstrap; it is not flooded.
- Concrete's licence, BSD-3-Clause-Clear, grants no patents.

The server compiles the circuit itself from the setting: it never runs code that came with a message.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.random import generator
from kernfed.errors import ProtocolError
from kernfed.secure.message import Part
from kernfed.secure.protocol import Keys, Parts, Scores, Sets, Setting

ERROR = 2.0**-40
SAMPLES = 100  # inputs from which the compiler learns the ranges; the extremes are added


def concrete() -> Any:
    """The module, or one sentence that says what to install."""
    try:
        return import_module("concrete.fhe")
    except ImportError:
        raise ImportError(
            "scheme 'tfhe' needs Concrete: pip install -e '.[tfhe]' in a clone of kernfed, in an environment of its "
            "own (numpy<2)"
        ) from None


def digits_of(scores: Scores, bits: int) -> npt.NDArray[np.int64]:
    """Digits (..., p/2) of two bits, most significant first.

    >>> digits_of(np.array([228]), 8).tolist()
    [[3, 2, 1, 0]]
    """
    shifts = np.arange(bits - 2, -1, -2)
    return np.asarray((scores[..., None] >> shifts) & 3)


def _minimum(fhe: Any, a: Any, b: Any) -> Any:
    """Smaller of numbers (rows, digits), row by row.

    Signs of digit differences are merged in pairs, 2 s + s', which keeps the sign of the first that is not zero. The
    last table gives 12 or 4: added to a difference in -3..3 it stays within four bits, from which the next reads
    both; the difference is kept where a is smaller.
    """
    difference = a - b
    signs = fhe.univariate(np.sign)(difference)
    while signs.shape[1] > 2:
        signs = fhe.univariate(np.sign)(2 * signs[:, 0::2] + signs[:, 1::2])
    smaller = fhe.univariate(lambda x: np.where(x < 0, 12, 4))(2 * signs[:, 0:1] + signs[:, 1:2])
    return b + fhe.univariate(lambda x: np.where(x >= 8, x - 12, 0))(smaller + difference)


def attaining(fhe: Any, scores: Sequence[Any]) -> Any:
    """Ones (C,) where a class attains the minimum of the sites' digits, each (C, p/2)."""
    waiting = list(scores)
    while len(waiting) > 1:
        waiting = [*waiting[2:], _minimum(fhe, waiting[0], waiting[1])]
    by_class = overall = waiting[0]
    while (rows := overall.shape[0]) > 1:
        half = rows // 2
        smaller = _minimum(fhe, overall[:half], overall[half : 2 * half])
        overall = np.concatenate((smaller, overall[2 * half :])) if rows % 2 else smaller
    different = fhe.univariate(lambda x: np.where(x != 0, 1, 0))(by_class - overall)
    return fhe.univariate(lambda x: np.where(x == 0, 1, 0))(np.sum(different, axis=1))


@lru_cache(maxsize=4)
def circuit(n_sites: int, n_classes: int, bits: int) -> Any:
    """The compiled circuit; the same on every machine with the same version of Concrete."""
    fhe = concrete()
    names = [f"site{q}" for q in range(n_sites)]

    def compute(**sites: Any) -> Any:
        return attaining(fhe, [sites[name] for name in names])

    keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
    compute.__signature__ = inspect.Signature([inspect.Parameter(name, keyword) for name in names])  # type: ignore[attr-defined]
    random = generator(0, "tfhe inputs")
    shape = (n_classes, bits // 2)
    samples = [tuple(random.integers(0, 4, shape) for _ in names) for _ in range(SAMPLES)]
    samples += [tuple(np.full(shape, digit) for _ in names) for digit in (0, 3)]
    samples += [tuple(np.full(shape, 3 * ((q + k) % 2)) for q in range(n_sites)) for k in (0, 1)]
    compiler = fhe.Compiler(compute, dict.fromkeys(names, "encrypted"))
    strategy = fhe.ParameterSelectionStrategy.MONO
    return compiler.compile(
        samples,
        fhe.Configuration(
            global_p_error=ERROR,
            parameter_selection_strategy=strategy,
            compress_input_ciphertexts=True,
            compress_evaluation_keys=True,
        ),
    )


def _expect(parts: Parts, count: int) -> Parts:
    if len(parts) != count:
        raise ProtocolError(f"expected keys of {count} parts, got {len(parts)}")
    return parts


def _value(data: Part) -> Any:
    try:
        return concrete().Value.deserialize(bytes(data))
    except Exception as error:
        raise ProtocolError(f"malformed ciphertext: {error}") from None


@dataclass(frozen=True)
class _Client:
    """Key holder and sites: encryption and decryption need the same keys."""

    setting: Setting
    client: Any

    def encrypt(self, scores: Scores, site: int) -> Parts:
        """One ciphertext per query."""
        parts = []
        for row in digits_of(scores, self.setting.bits):
            arguments = [row if q == site else None for q in range(self.setting.n_sites)]
            values = self.client.encrypt(*arguments)
            parts.append((values[site] if isinstance(values, tuple) else values).serialize())
        return parts

    def attaining(self, answer: Parts, queries: int) -> Sets:
        """One ciphertext per query."""
        if len(answer) != queries:
            raise ProtocolError(f"the answer to {queries} queries must be {queries} ciphertexts, got {len(answer)}")
        values = [_value(part) for part in answer]
        return np.stack([np.asarray(self.client.decrypt(value)) == 1 for value in values])


@dataclass(frozen=True)
class _Server:
    """Evaluation keys only."""

    setting: Setting
    server: Any
    keys: Any

    def combine(self, scores: Mapping[int, Parts], queries: int) -> Parts:
        """Query by query; in place of a missing site stands one that answered, which changes no minimum."""
        for site, parts in scores.items():
            if len(parts) != queries:
                raise ProtocolError(f"site {site} must send {queries} ciphertexts, one per query, got {len(parts)}")
        values = {site: [_value(part) for part in parts] for site, parts in scores.items()}
        anyone = next(iter(values.values()))
        answers = []
        for k in range(queries):
            arguments = [values.get(q, anyone)[k] for q in range(self.setting.n_sites)]
            try:
                answers.append(self.server.run(*arguments, evaluation_keys=self.keys).serialize())
            except Exception as error:
                raise ProtocolError(f"the ciphertexts do not fit the circuit: {error}") from None
        return answers


@dataclass(frozen=True)
class Tfhe:
    """TFHE with parameters chosen by Concrete at 128-bit security."""

    def parameters(self, setting: Setting) -> str:
        """The version decides the parameters."""
        concrete()
        return f"concrete {version('concrete-python')} error {ERROR} digits of 2 of {setting.bits} bits"

    def keys(self, setting: Setting) -> Keys:
        """The client's specification and keys, and the evaluation keys alone."""
        compiled = circuit(setting.n_sites, setting.n_classes, setting.bits)
        client = concrete().Client(compiled.client.specs)
        client.keygen()
        own = [client.specs.serialize(), client.keys.serialize()]
        return Keys(secret=own, site=own, evaluation=[client.evaluation_keys.serialize()])

    def decryptor(self, setting: Setting, secret: Parts) -> _Client:
        """What the key holder computes: decrypts answers."""
        fhe = concrete()
        specs, keys = _expect(secret, 2)
        client = fhe.Client(fhe.ClientSpecs.deserialize(bytes(specs)))
        client.keys.load_from_bytes(bytes(keys))
        return _Client(setting, client)

    def encryptor(self, setting: Setting, site: Parts) -> _Client:
        """What a site computes: encrypts its scores."""
        return self.decryptor(setting, site)

    def combiner(self, setting: Setting, evaluation: Parts) -> _Server:
        """What the server computes: combines the sites' scores."""
        compiled = circuit(setting.n_sites, setting.n_classes, setting.bits)
        (keys,) = _expect(evaluation, 1)
        return _Server(setting, compiled.server, concrete().EvaluationKeys.deserialize(bytes(keys)))


SCHEME = Tfhe()

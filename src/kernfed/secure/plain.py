"""The reference: the same decision without encryption.

Scores travel as integers that anyone can read. It serves to try out the roles and as the result that every scheme
must reproduce, ties included.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernfed.errors import ProtocolError
from kernfed.secure.protocol import Keys, Parts, Scores, Sets, Setting


def attaining_minimum(scores: Scores) -> Sets:
    """Classes (n, C) that attain the minimum of scores (Q, n, C): Q C - 1 minima, C comparisons (SFM 3.9.1)."""
    by_class = scores.min(axis=0)
    return np.asarray(by_class == by_class.min(axis=1, keepdims=True))


@dataclass(frozen=True)
class _Side:
    """Every role: nothing is hidden."""

    setting: Setting

    def encrypt(self, scores: Scores, site: int) -> Parts:  # noqa: ARG002
        return [scores.astype("<u2").tobytes()]

    def combine(self, scores: Mapping[int, Parts], queries: int) -> Parts:
        read = [self._read(parts, "<u2", queries) for _, parts in sorted(scores.items())]
        values = np.stack(read).astype(np.int64)
        return [attaining_minimum(values).astype("u1").tobytes()]

    def attaining(self, answer: Parts, queries: int) -> Sets:
        return np.asarray(self._read(answer, "u1", queries) != 0)

    def _read(self, parts: Parts, dtype: str, queries: int) -> npt.NDArray[np.uint16]:
        shape = (queries, self.setting.n_classes)
        size = np.dtype(dtype).itemsize * shape[0] * shape[1]
        if len(parts) != 1 or len(parts[0]) != size:
            raise ProtocolError(f"expected one part of {size} bytes, got {[len(part) for part in parts]}")
        return np.frombuffer(parts[0], dtype).reshape(shape)


@dataclass(frozen=True)
class Plain:
    """No encryption; the key is a random name."""

    def parameters(self, setting: Setting) -> str:
        """Name of the parameters: there are none to choose."""
        return f"plain {setting.bits} bits"

    def keys(self, setting: Setting) -> Keys:  # noqa: ARG002
        """A name, so that answers of another key holder are recognised."""
        return Keys(secret=[], site=[secrets.token_bytes(16)], evaluation=[])

    def decryptor(self, setting: Setting, secret: Parts) -> _Side:  # noqa: ARG002
        """What the key holder computes: decrypts answers."""
        return _Side(setting)

    def encryptor(self, setting: Setting, site: Parts) -> _Side:  # noqa: ARG002
        """What a site computes: encrypts its scores."""
        return _Side(setting)

    def combiner(self, setting: Setting, evaluation: Parts) -> _Side:  # noqa: ARG002
        """What the server computes: combines the sites' scores."""
        return _Side(setting)


SCHEME = Plain()

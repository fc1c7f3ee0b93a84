"""Where things stand in a ciphertext: the slots of the BFV circuit.

A ciphertext of degree N has two rows of N/2 slots. A row is 256 *units* of N/512 slots, one slot per query; the two
rows hold different queries, so N/256 queries share a ciphertext. A thermometer uses unit u for the value 255 - u.
Scores use one unit per (site, class): sites have their own blocks of units, so adding the sites' ciphertexts puts
all of them side by side. Every function returns the vector of all slots, row by row.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernfed.errors import ProtocolError
from kernfed.secure.arithmetic import Slots

UNITS = 256  # as many as a digit has values
DIGIT_BITS = 8


@dataclass(frozen=True)
class Layout:
    """Positions for ``n_sites`` sites and ``n_classes`` classes in ciphertexts of degree ``degree``."""

    degree: int
    n_sites: int
    n_classes: int

    @property
    def width(self) -> int:
        """Slots of a unit: queries per row."""
        return self.degree // (2 * UNITS)

    @property
    def batch(self) -> int:
        """Queries per ciphertext."""
        return 2 * self.width

    @property
    def block(self) -> int:
        """Units of a site's block: the classes, rounded up to a power of two so rotations are shared."""
        return 1 << (self.n_classes - 1).bit_length()

    @property
    def group(self) -> int:
        """Sites whose blocks share a ciphertext: a power of two.

        Half of the smallest that holds all sites, if the second group is then at most half full: it finishes early
        and takes the random factors at no cost in noise.
        """
        all_sites = 1 << (self.n_sites - 1).bit_length()
        fitting = all_sites // 2 if 4 * self.n_sites <= 3 * all_sites else all_sites
        return min(fitting, UNITS // self.block)

    @property
    def groups(self) -> list[range]:
        """The sites of each group."""
        every = range(self.n_sites)
        return [every[start : start + self.group] for start in every[:: self.group]]

    def _slots(self, units: npt.NDArray[np.int64]) -> Slots:
        """Units (n, 256) of n queries, zero for the queries that are not there."""
        full = np.zeros((self.batch, UNITS), dtype=np.int64)
        full[: len(units)] = units
        return full.reshape(2, self.width, UNITS).swapaxes(1, 2).ravel()

    def thermometer(self, digits: npt.NDArray[np.int64]) -> Slots:
        """``[digit <= 255 - u]`` at unit u, for digits (n,) in 0..255."""
        return self._slots((digits[:, None] <= UNITS - 1 - np.arange(UNITS)).astype(np.int64))

    def scores(self, scores: npt.NDArray[np.int64], site: int) -> Slots:
        """Scores (n, C) in the block of ``site``."""
        units = np.zeros((len(scores), UNITS), dtype=np.int64)
        start = self.block * (site % self.group)
        units[:, start : start + self.n_classes] = scores
        return self._slots(units)

    def blocks(self, absent: list[int], value: int) -> Slots:
        """``value`` throughout the blocks at these positions of a group."""
        units = np.zeros((self.batch, UNITS // self.block, self.block), dtype=np.int64)
        units[:, absent] = value
        return self._slots(units.reshape(self.batch, UNITS))

    def last_unit(self, value: int) -> Slots:
        """``value`` at unit 255, where a thermometer holds the digit 0."""
        units = np.zeros((self.batch, UNITS), dtype=np.int64)
        units[:, -1] = value
        return self._slots(units)

    def random_factors(self, random: npt.NDArray[np.uint16]) -> Slots:
        """1 + ``random`` (n, C), uniform over the non-zero elements of the field, and 0 outside the answer."""
        return self.scores(1 + random.astype(np.int64), site=0)

    def answer(self, slots: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.bool_]:
        """The set (n, C) of a decrypted answer: zero says that the class attains the minimum.

        Slots that are no answer are zero if all went well.
        """
        queries = slots.reshape(2, UNITS, self.width).swapaxes(1, 2).reshape(self.batch, UNITS)
        if queries[n:].any() or queries[:, self.n_classes :].any():
            raise ProtocolError("the answer does not decrypt: other keys, or noise beyond what the protocol allows")
        return np.asarray(queries[:n, : self.n_classes] == 0)

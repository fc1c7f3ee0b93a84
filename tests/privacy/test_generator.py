"""The generator and the exact draws made of its words."""

import os
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chisquare

from kernfed.privacy.generator import BLOCK, Coin, NoiseGenerator, check_generator, random_signs, uniform


class Script(NoiseGenerator):
    """Hands out given words, to reach cases that happen once in 1e19 draws."""

    def __init__(self, *words: int) -> None:
        super().__init__()
        self.script = list(words)

    def words(self, count):
        taken, self.script = self.script[:count], self.script[count:]
        return np.array(taken, dtype=np.uint64)


def test_a_seed_repeats_the_words_and_is_not_private():
    assert np.array_equal(NoiseGenerator(3).words(100), NoiseGenerator(3).words(100))
    assert not np.array_equal(NoiseGenerator(3).words(100), NoiseGenerator(4).words(100))
    assert not NoiseGenerator(3).private


def test_without_a_seed_no_two_generators_agree():
    first, second = NoiseGenerator(), NoiseGenerator()
    assert first.private
    assert not np.array_equal(first.words(4), second.words(4))
    assert not np.array_equal(first.words(4), first.words(4))


def test_words_do_not_depend_on_how_many_are_asked_for_at_a_time():
    source = NoiseGenerator(1)
    parts = np.concatenate([source.words(n) for n in (1, 7, 1000, BLOCK)])
    whole = NoiseGenerator(1)
    assert np.array_equal(parts, np.concatenate([whole.words(1008), whole.words(BLOCK)]))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the child only draws and exits
def test_a_forked_process_gets_other_words():
    source = NoiseGenerator()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, source.words(4).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) != source.words(4).tobytes()
    os.close(reader)
    os.close(writer)


def test_words_are_uniform_in_every_byte():
    counts = np.bincount(NoiseGenerator(5).words(BLOCK).view(np.uint8), minlength=256)
    assert chisquare(counts).pvalue > 1e-4


def test_a_tie_in_64_bits_is_decided_by_the_bits_after_them():
    coin = Coin((7 << 64) + 5, 128)
    assert coin.toss(Script(6, 8), 2).tolist() == [True, False]
    assert coin.toss(Script(7, 4), 1).tolist() == [True]
    assert coin.toss(Script(7, 5), 1).tolist() == [False]


@pytest.mark.parametrize("probability", [Fraction(0), Fraction(1, 3), Fraction(999, 1000)])
def test_coins_have_their_probability(probability):
    heads = Coin.of(probability, 192).toss(NoiseGenerator(2), BLOCK).mean()
    assert abs(heads - probability) < 4 * float(probability * (1 - probability) / BLOCK) ** 0.5 + 1e-12


@pytest.mark.parametrize("size", [1, 2, 10, 97])
def test_uniform_integers(size):
    values = uniform(NoiseGenerator(8), size, BLOCK)
    assert (values.min(), values.max()) == (0, size - 1)
    assert size == 1 or chisquare(np.bincount(values)).pvalue > 1e-4


def test_words_beyond_the_last_multiple_are_drawn_again():
    # 2^64 = 6 mod 10: the last six words would favour 0 to 5.
    assert uniform(Script(2**64 - 6, 2**64 - 7, 13), 10, 2).tolist() == [3, 9]
    assert uniform(Script(2**64 - 1), 16, 1).tolist() == [15]


def test_signs():
    signs = random_signs(NoiseGenerator(4), BLOCK - 3)
    assert set(signs.tolist()) == {-1, 1}
    assert abs(signs.sum()) < 4 * np.sqrt(BLOCK)


@pytest.mark.parametrize("wrong", [0, "secret", np.random.default_rng(0)])
def test_other_generators_are_refused(wrong):
    with pytest.raises(ValueError, match="generator must be a NoiseGenerator"):
        check_generator(wrong)


@pytest.mark.parametrize("seed", [-1, 1.5, True, "a"])
def test_bad_seeds(seed):
    with pytest.raises(ValueError, match="seed must be"):
        NoiseGenerator(seed)

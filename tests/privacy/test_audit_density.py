"""The papers' membership score against a naive fit, numerical integrals and closed forms."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import kstest

from kernfed.base.random import generator
from kernfed.privacy import roc as density
from kernfed.privacy.roc import REGULARIZATIONS, WIDTHS, density_differences, membership_score


def naive_fit(first, second, centres, width, regularization):
    """LSDD, Sugiyama et al. (2013): coefficients of the kernels, with H by numerical integration."""

    def kernel(x, c):
        return np.exp(-((x - c) ** 2) / (2 * width**2))

    ends = (min(centres) - 12 * width, max(centres) + 12 * width)
    H = [
        [quad(lambda x, a=a, b=b: kernel(x, a) * kernel(x, b), *ends, points=(a, b))[0] for b in centres]
        for a in centres
    ]
    h = [np.mean([kernel(x, c) for x in first]) - np.mean([kernel(x, c) for x in second]) for c in centres]
    theta = np.linalg.solve(np.array(H) + regularization * np.eye(len(centres)), h)
    return theta, np.array(h), lambda x: sum(t * kernel(x, c) for t, c in zip(theta, centres, strict=True)), ends


def naive_score(first, second, folds=5):
    """Folds by position, every width and regularisation, one solve at a time."""
    points = np.concatenate([first, second])
    centres = np.quantile(points, (np.arange(density._CENTRES) + 0.5) / density._CENTRES)
    best = None
    for width in WIDTHS:
        for regularization in REGULARIZATIONS:
            error = 0.0
            for fold in range(folds):
                held = [np.arange(len(part)) % folds == fold for part in (first, second)]
                theta, _, fit, ends = naive_fit(first[~held[0]], second[~held[1]], centres, width, regularization)
                square = quad(lambda x, fit=fit: fit(x) ** 2, *ends, limit=200)[0]
                error += square - 2 * (np.mean(fit(first[held[0]])) - np.mean(fit(second[held[1]])))
            if best is None or error < best[0]:
                best = (error, width, regularization)
    theta, h, fit, ends = naive_fit(first, second, centres, *best[1:])
    return 2 * theta @ h - quad(lambda x: fit(x) ** 2, *ends, limit=200)[0], *best[1:]


@pytest.mark.parametrize("sizes", [(11, 7), (5, 5), (6, 13)])
def test_equals_the_naive_fit(monkeypatch, rng, sizes):
    monkeypatch.setattr(density, "_CENTRES", 4)
    monkeypatch.setattr(density, "WIDTHS", (0.2, 1.0))
    monkeypatch.setattr(density, "REGULARIZATIONS", (0.01, 1.0))
    monkeypatch.setitem(naive_score.__globals__, "WIDTHS", (0.2, 1.0))
    monkeypatch.setitem(naive_score.__globals__, "REGULARIZATIONS", (0.01, 1.0))
    first, second = rng.normal(0, 1, sizes[0]), rng.normal(1, 0.5, sizes[1])
    points = np.concatenate([first, second])
    found = density_differences(points, np.arange(len(points))[None], len(first))
    np.testing.assert_allclose([part[0] for part in found], naive_score(first, second), rtol=1e-6)


@pytest.mark.parametrize("shift", [0.5, 1.0, 3.0])
def test_close_to_the_distance_of_gaussians(rng, shift):
    """The integral of (N(0,1) - N(shift,1))^2 is (1 - exp(-shift^2/4))/sqrt(pi), times the scale divided by."""
    score = membership_score(rng.normal(0, 1, 4000), rng.normal(shift, 1, 4000), permutations=1)
    exact = quad(lambda x: (np.exp(-x * x / 2) - np.exp(-((x - shift) ** 2) / 2)) ** 2 / (2 * np.pi), -9, 12)[0]
    assert exact == pytest.approx((1 - np.exp(-(shift**2) / 4)) / np.sqrt(np.pi), rel=1e-6)
    assert score.value == pytest.approx(exact * score.scale, rel=0.12)
    assert score.scale == pytest.approx(np.sqrt(1 + shift**2 / 4), rel=0.05)


def test_scale_and_origin_do_not_matter(rng):
    members, others = rng.gamma(2, 1, 300), rng.gamma(3, 1, 200)
    plain = membership_score(members, others, permutations=20)
    for scale, origin in ((0.1, 0.0), (10.0, -3.0), (1e200, 0.0), (1e-200, 0.0)):
        other = membership_score(scale * members + origin, scale * others + origin, permutations=20)
        assert other.value == pytest.approx(plain.value, rel=1e-6)
        assert other.p_value == plain.p_value
        assert other.scale == pytest.approx(scale * plain.scale)


@pytest.mark.slow
def test_p_values_are_uniform_under_the_null():
    values = []
    for number in range(80):
        sample = generator(number, "null").gamma(2, 1, 100)
        values.append(membership_score(sample[:40], sample[40:], permutations=39, seed=number).p_value)
    assert np.mean(np.array(values) <= 0.1) <= 0.2
    # p-values are multiples of 1/40; a uniform number taken off makes them continuous.
    assert kstest(np.array(values) - generator(0, "jitter").random(80) / 40, "uniform").pvalue > 0.01


def test_difference_is_found(rng):
    score = membership_score(rng.normal(0, 1, 300), rng.normal(1, 1, 300), permutations=99)
    assert score.p_value == 0.01
    assert "p = 0.01" in str(score)


def test_few_exposed_members_are_not_seen(rng):
    """Why the score is for comparison only: 1 % of members at distance 0 change it by next to nothing."""
    others, members = rng.normal(5, 1, 2000), rng.normal(5, 1, 2000)
    members[:20] = 0.0
    assert membership_score(members, others, permutations=1).value < 0.02


def test_seed_decides_everything(rng):
    members, others = rng.normal(0, 1, 50), rng.normal(0.3, 1, 60)
    first, again, other = (membership_score(members, others, permutations=30, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("value", [0.0, 7.0, -1e300])
def test_equal_values_cannot_be_told_apart(value):
    score = membership_score(np.full(9, value), np.full(6, value))
    assert (score.value, score.p_value) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"members": [1.0] * 4}, "members must have at least 5"),
        ({"others": [[1.0] * 9]}, "others must be a vector"),
        ({"members": [1.0, 2, 3, 4, np.nan]}, "members must be finite"),
        ({"others": ["a"] * 9}, "others must be a vector of numbers"),
        ({"permutations": 0}, "permutations must be >= 1"),
        ({"seed": -1}, "seed must be >= 0"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        membership_score(**{"members": np.arange(9.0), "others": np.arange(9.0), **arguments})

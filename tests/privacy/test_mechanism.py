"""The contract of every mechanism that releases rows, and what is particular to each."""

import math

import numpy as np
import pytest

from kernfed.privacy import (
    ElementLaplace,
    ElementStaircase,
    Ledger,
    NoiseGenerator,
    RandomizedLabels,
    RecordGaussian,
)
from kernfed.privacy.noise import DiscreteGaussian
from kernfed.statistics.bounds import clip_rows, nearest, toward_zero

MECHANISMS = {
    "laplace": ElementLaplace(1.0, d=1.0, bounds=(0.0, 1.0)),
    "laplace awkward": ElementLaplace(0.7, d=0.3, bounds=(-1.1, 2.7)),
    "laplace with atom": ElementLaplace(2.0, d=1.0, bounds=(0.0, 1.0), delta=0.1),
    "staircase": ElementStaircase(3.0, d=1.0, bounds=(0.0, 1.0)),
    "staircase awkward": ElementStaircase(8.0, d=0.3, bounds=(-1.1, 2.7)),
    "gaussian": RecordGaussian(1.0, 1e-5, radius=2.0),
    "gaussian awkward": RecordGaussian(20.0, 1e-9, radius=0.3),
    "gaussian projected": RecordGaussian(3.0, 1e-5, radius=2.0, projection=3),
}


@pytest.fixture(params=MECHANISMS)
def mechanism(request):
    return MECHANISMS[request.param]


@pytest.fixture
def rows(rng):
    return rng.uniform(-2, 3, (40, 6))


def step_of(mechanism, width):
    return mechanism.law(width)[1] if isinstance(mechanism, RecordGaussian) else mechanism.step


def test_values_are_on_the_grid(mechanism, rows):
    release = mechanism.release(rows)
    assert math.frexp(release.step)[0] == 0.5
    multiples = release.values / release.step
    assert np.array_equal(multiples, np.rint(multiples))
    assert np.abs(multiples).max() < 2**53


def test_grid_is_fine(mechanism):
    if isinstance(mechanism, RecordGaussian):
        noise, _, _ = mechanism.law(6)
        assert noise.variance >= 1000**2
    else:
        assert mechanism.step <= mechanism.d / (1000 * mechanism.epsilon)


def test_noise_does_not_depend_on_the_data(mechanism, rows, rng):
    """The same words give the same integers whatever the rows: no scale, bound or order was read from them."""
    other = rng.normal(100, 1000, rows.shape)
    first, second = (mechanism.release(x, generator=NoiseGenerator(1)) for x in (rows, other))
    noise = [release.values / release.step - on_grid(mechanism, x) for release, x in ((first, rows), (second, other))]
    assert np.array_equal(*noise)
    assert first.step == second.step
    assert (first.element, first.record) == (second.element, second.record)


def on_grid(mechanism, rows):
    if isinstance(mechanism, RecordGaussian):
        projected = mechanism.project(rows)
        return toward_zero(clip_rows(projected, mechanism.radius), step_of(mechanism, projected.shape[1]))
    return nearest(np.clip(rows, *mechanism.bounds), mechanism.step)


def float_laplace(x, k):
    """Textbook Laplace noise of scale 1 by inversion, for the k-th of the 2^53 uniform numbers: the control."""
    u = k / 2.0**53
    return x + np.where(u < 0.5, np.log(2 * u), -np.log(2 * (1 - u)))


def float_possible(y, x):
    """Whether some uniform number gives y at x: those next to the inverse are tried."""
    t = y - x
    u = np.where(t < 0, 0.5 * np.exp(t), 1 - 0.5 * np.exp(-t))
    nearby = np.rint(u * 2.0**53)[:, None] + np.arange(-8, 9)
    return (float_laplace(x, np.clip(nearby, 1, 2**53 - 1)) == y[:, None]).any(axis=1)


def test_the_float_attack_works_on_textbook_noise(rng):
    y = float_laplace(0.1, rng.integers(1, 2**53, 2000))
    assert float_possible(y, 0.1).all()
    assert float_possible(y, 0.7).mean() < 0.5


@pytest.mark.parametrize("name", ["laplace", "laplace awkward", "staircase", "gaussian"])
def test_the_float_attack_finds_nothing(name):
    """Every output of one input has a positive mass under its neighbour, by the exact law."""
    mechanism = MECHANISMS[name]
    here, there = np.full((500, 6), 0.1), np.full((500, 6), 0.7)
    noise = mechanism.law(6)[0] if isinstance(mechanism, RecordGaussian) else mechanism.noise
    release = mechanism.release(here)
    needed = release.values / release.step - on_grid(mechanism, there)
    assert np.array_equal(needed, np.rint(needed))
    assert noise.pmf(needed.astype(np.int64)).min() > 0


def test_neighbours_stay_within_the_sensitivity(mechanism, rng):
    """Random and extreme neighbours, on the grid, where the noise is added."""
    for scale in (0.1, 1.0, 1e6):
        x, y = rng.normal(0, scale, (2, 300, 6))
        if isinstance(mechanism, RecordGaussian):
            moved = (on_grid(mechanism, x) - on_grid(mechanism, y)) * step_of(mechanism, on_grid(mechanism, x).shape[1])
            assert np.linalg.norm(moved, axis=1).max() <= 2 * mechanism.radius
        else:
            y = x + rng.choice([-1, 1, 0.3], x.shape) * mechanism.d * (1 - 1e-12)
            assert np.abs(on_grid(mechanism, x) - on_grid(mechanism, y)).max() <= mechanism.shift
            assert np.abs(on_grid(mechanism, x) - on_grid(mechanism, -x)).max() <= mechanism.reach


def test_seeded_noise_is_marked_and_repeats(mechanism, rows):
    first, second = (mechanism.release(rows, generator=NoiseGenerator(7)) for _ in range(2))
    assert np.array_equal(first.values, second.values)
    assert not first.private
    free = mechanism.release(rows)
    assert free.private
    assert not np.array_equal(free.values, mechanism.release(rows).values)


def test_no_ledger_takes_seeded_noise(mechanism, rows, tmp_path):
    ledger = Ledger(tmp_path / "ledger", 1e6, 0.9)
    with pytest.raises(ValueError, match="private releases only"):
        mechanism.release(rows, ledger=ledger, generator=NoiseGenerator(7))
    assert ledger.entries() == ()


def test_charge_comes_before_noise(mechanism, rows, tmp_path):
    """A crash between the two loses budget, never privacy."""

    class Broken(NoiseGenerator):
        def words(self, count):
            raise KeyboardInterrupt(f"before the first of {count} words")

    ledger = Ledger(tmp_path / "ledger", 1e6, 0.9)
    with pytest.raises(KeyboardInterrupt):
        mechanism.release(rows, ledger=ledger, generator=Broken())
    assert len(ledger.entries()) == 1


def test_the_input_is_not_changed_and_may_have_any_layout(mechanism, rows):
    kept = rows.copy()
    reference = mechanism.release(rows, generator=NoiseGenerator(3)).values
    layouts = (np.asfortranarray(rows), np.repeat(rows, 2, axis=0)[::2], rows.tolist())
    for layout in layouts:
        assert np.array_equal(mechanism.release(layout, generator=NoiseGenerator(3)).values, reference)
    assert np.array_equal(rows, kept)
    assert mechanism.release(np.ones((1, 3), dtype=np.int32)).values.shape[0] == 1
    assert mechanism.release(np.ones((2, 3), dtype=np.float32)).values.dtype == np.float64


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(mechanism, rows, bad):
    rows[3, 2] = bad
    with pytest.raises(ValueError, match="X must be finite"):
        mechanism.release(rows)


def test_guarantees_come_in_both_units_and_in_words(mechanism, rows):
    release = mechanism.release(rows)
    assert (release.element.unit, release.record.unit) == ("element", "record")
    assert release.element.epsilon == mechanism.epsilon
    assert release.record.epsilon >= release.element.epsilon
    assert release.element.adjacency in str(release.element)
    if not isinstance(mechanism, RecordGaussian):
        assert (release.element.d, release.element.bounds) == (mechanism.d, mechanism.bounds)
        assert f"[{mechanism.bounds[0]:g}, {mechanism.bounds[1]:g}]" in str(release.record)


@pytest.mark.parametrize("name", ["laplace", "laplace awkward", "staircase", "staircase awkward"])
def test_element_masses_of_neighbours(name):
    """For every shift up to d the ratio of masses, computed, is at most exp(epsilon)."""
    mechanism = MECHANISMS[name]
    span = 3 * mechanism.shift
    k = np.arange(-span, span + 1, max(1, span // 5000))
    mass = mechanism.noise.pmf(k)
    for shift in {1, mechanism.shift // 3, mechanism.shift}:
        ratio = np.log(mass / mechanism.noise.pmf(k - shift))
        assert np.abs(ratio).max() <= mechanism.epsilon * (1 + 1e-12)


def test_the_atom_releases_raw_values():
    mechanism = ElementLaplace(1e-3, d=1.0, bounds=(0.0, 1.0), delta=0.1)
    values = mechanism.release(np.full((200, 100), 0.5)).values
    assert abs((values == 0.5).mean() - 0.1) < 0.01
    element, record = mechanism.guarantees(100)
    assert element.delta >= 0.1
    assert record.delta >= 1 - 0.9**100


def test_record_epsilon_of_elements():
    assert math.isclose(ElementLaplace(1.0, 2.0, (-1, 1)).guarantees(784)[1].epsilon, 382.3, rel_tol=1e-3)
    # A wider range than d costs a record in proportion, a narrower one less.
    wide, same, narrow = (ElementLaplace(0.1, 1.0, (0, high)).guarantees(50)[1].epsilon for high in (3, 1, 0.5))
    assert wide > 2.9 * same > 2.9 * narrow
    stair, laplace = (kind(3.0, 1.0, (0, 1)).guarantees(784)[1].epsilon for kind in (ElementStaircase, ElementLaplace))
    assert stair > laplace


@pytest.mark.parametrize("epsilon", [1.0, 3.0, 8.0, 16.0])
def test_mean_size_of_laplace_noise(epsilon):
    values = ElementLaplace(epsilon, 1.0, (0, 1)).release(np.zeros((500, 400)), generator=NoiseGenerator(2)).values
    assert math.isclose(np.abs(values).mean(), 1 / epsilon, rel_tol=0.02)


@pytest.mark.parametrize(("epsilon", "size"), [(1.0, 2.98), (3.0, 1.11), (8.0, 0.479), (16.0, 0.275)])
def test_mean_size_of_gaussian_noise(epsilon, size):
    """Sensitivity 1, that is radius 1/2, at delta 1e-5."""
    values = RecordGaussian(epsilon, 1e-5, 0.5).release(np.zeros((500, 400)), generator=NoiseGenerator(2)).values
    assert math.isclose(np.abs(values).mean(), size, rel_tol=0.02)


def test_gaussian_calibration_is_kept_by_the_grid():
    mechanism = RecordGaussian(2.0, 1e-6, radius=5.0)
    noise, step, event = mechanism.law(100)
    assert isinstance(noise, DiscreteGaussian)
    assert 2 * mechanism.radius / (math.sqrt(noise.variance - 16) * step) <= event.mu
    from kernfed.privacy import epsilon_for

    assert epsilon_for([event], 1e-6) <= 2.0


def test_projection_is_public_and_fixed(rows):
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 2)))[0]
    assert np.allclose(RecordGaussian(1, 1e-5, 1, projection=basis).project(rows), rows @ basis)
    random = RecordGaussian(1, 1e-5, 1, projection=2, seed=4)
    assert np.array_equal(random.project(rows), RecordGaussian(2, 1e-6, 1, projection=2, seed=4).project(rows))
    assert not np.allclose(random.project(rows), RecordGaussian(1, 1e-5, 1, projection=2, seed=5).project(rows))
    assert random.release(rows).values.shape == (40, 2)


GOOD = {"epsilon": 1.0, "d": 1.0, "bounds": (0.0, 1.0)}


@pytest.mark.parametrize("kind", [ElementLaplace, ElementStaircase])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be > 0, got 0.0"),
        ({"epsilon": -1}, "epsilon must be > 0"),
        ({"epsilon": math.nan}, "epsilon must be a finite number"),
        ({"epsilon": "1"}, "epsilon must be a finite number"),
        ({"epsilon": 101}, "epsilon must be <= 100"),
        ({"epsilon": 1e-9}, "epsilon must be >= 1e-06"),
        ({"d": 0.0}, "d must be > 0"),
        ({"d": math.inf}, "d must be a finite number"),
        ({"bounds": None}, r"bounds must be \(lo, hi\), known without looking at the data"),
        ({"bounds": (0, 1, 2)}, "bounds must be"),
        ({"bounds": (1.0, 1.0)}, r"bounds\[1\] must be > 1.0"),
        ({"bounds": (0.0, math.nan)}, r"bounds\[1\] must be a finite number"),
        ({"bounds": (-math.inf, 1)}, r"bounds\[0\] must be a finite number"),
        ({"bounds": (0.0, 1e5)}, r"epsilon \(hi - lo\) / d must be <= 1000"),
        ({"bounds": (1e16, 1e16 + 4)}, r"bounds must fit a grid of 2\^50 steps"),
    ],
)
def test_bad_parameters_of_element_mechanisms(kind, change, message):
    with pytest.raises(ValueError, match=message):
        kind(**{**GOOD, **change})


def test_bounds_must_be_given():
    with pytest.raises(ValueError, match="bounds must be"):
        ElementLaplace(1.0, 1.0)


@pytest.mark.parametrize(("delta", "message"), [(-0.1, "delta must be >= 0"), (1.0, "delta must be < 1")])
def test_bad_delta_of_the_atom(delta, message):
    with pytest.raises(ValueError, match=message):
        ElementLaplace(1.0, 1.0, (0, 1), delta=delta)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0}, "epsilon must be > 0"),
        ({"delta": 0.0}, "delta must be >= 1e-20"),
        ({"delta": 1.0}, "delta must be < 1"),
        ({"delta": math.nan}, "delta must be a finite number"),
        ({"radius": 0.0}, "radius must be > 0"),
        ({"projection": 0}, "projection must be >= 1"),
        ({"projection": 1.5}, "projection must be an integer"),
        ({"seed": -1}, "seed must be >= 0"),
    ],
)
def test_bad_parameters_of_the_gaussian(change, message):
    with pytest.raises(ValueError, match=message):
        RecordGaussian(**{"epsilon": 1.0, "delta": 1e-5, "radius": 1.0, **change})


def test_bad_projections(rows):
    with pytest.raises(ValueError, match="dimension must be <= 6"):
        RecordGaussian(1, 1e-5, 1, projection=7).release(rows)
    with pytest.raises(ValueError, match="orthonormal"):
        RecordGaussian(1, 1e-5, 1, projection=np.ones((6, 2))).release(rows)
    with pytest.raises(ValueError, match=r"basis must have shape \(6, 2\)"):
        RecordGaussian(1, 1e-5, 1, projection=np.eye(5, 2)).release(rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ids": ["a"]}, "ids must name each of the 40 rows, got 1"),
        ({"ledger": "ledger.jsonl"}, "ledger must be a Ledger, got str"),
        ({"generator": np.random.default_rng()}, "generator must be a NoiseGenerator"),
    ],
)
def test_bad_release_options(mechanism, rows, options, message):
    with pytest.raises(ValueError, match=message):
        mechanism.release(rows, **options)


def test_randomized_labels_have_their_probabilities():
    classes, epsilon = ("a", "b", "c", "d"), 1.0
    release = RandomizedLabels(epsilon, classes).release(["b"] * 100_000, generator=NoiseGenerator(1))
    shares = np.array([(release.values == label).mean() for label in classes])
    keep = math.e / (math.e + 3)
    assert np.allclose(shares, [(1 - keep) / 3, keep, (1 - keep) / 3, (1 - keep) / 3], atol=0.005)
    assert (release.record.epsilon, release.record.delta) == (epsilon, 0.0)
    assert not release.private


def test_label_coin_is_not_biased_towards_the_truth():
    epsilon = 0.3
    coin = RandomizedLabels(epsilon, range(7))._keep
    from decimal import Decimal, localcontext

    with localcontext() as context:
        context.prec = 150
        exact = Decimal(epsilon).exp() / (Decimal(epsilon).exp() + 6)
        assert 0 <= exact - Decimal(coin.numerator) / Decimal(2) ** coin.precision < Decimal(2) ** -255


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RandomizedLabels(0, (0, 1)), "epsilon must be > 0"),
        (lambda: RandomizedLabels(1, (0,)), "classes must be two or more"),
        (lambda: RandomizedLabels(1, (0, 0)), "classes must be two or more"),
        (lambda: RandomizedLabels(1, 3), "classes must be two or more"),
        (lambda: RandomizedLabels(1, (0, 1)).release([[0]]), "y must be a vector"),
        (lambda: RandomizedLabels(1, (0, 1)).release([]), "y must be a vector"),
    ],
)
def test_bad_labels(call, message):
    with pytest.raises(ValueError, match=message):
        call()

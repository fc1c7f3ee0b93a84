import numpy as np
import pytest
from scipy.optimize import minimize

from kernfed.personal.gradient import descend, minimise, weighted_risks


def quadratic(rng, width):
    """Site with loss 1/2 (t-c)'H(t-c), as a function of many t."""
    root, centre = rng.standard_normal((width, width)), rng.standard_normal(width)
    H = root @ root.T + 0.1 * np.eye(width)

    def site(theta):
        steps = theta - centre
        return 0.5 * np.einsum("tp,pq,tq->t", steps, H, steps), steps @ H

    return site, H, centre


def simplex(rng, *shape):
    return rng.dirichlet(np.full(shape[-1], 0.5), shape[0])


def test_every_target_finds_the_minimum_of_its_own_mixture(rng):
    sites, hessians, centres = zip(*(quadratic(rng, 7) for _ in range(5)), strict=True)
    W = simplex(rng, 11, 5)
    found = minimise(weighted_risks(W, lambda t: [site(t) for site in sites]), np.zeros((11, 7)), tolerance=1e-9)
    assert found.converged.all()
    for shares, theta in zip(W, found.parameters, strict=True):
        H = sum(w * h for w, h in zip(shares, hessians, strict=True))
        b = sum(w * h @ c for w, h, c in zip(shares, hessians, centres, strict=True))
        np.testing.assert_allclose(theta, np.linalg.solve(H, b), atol=1e-7)


def rosenbrock(theta, _):
    a, b = theta.T
    values = (1 - a) ** 2 + 100 * (b - a**2) ** 2
    return values, np.column_stack([-2 * (1 - a) - 400 * a * (b - a**2), 200 * (b - a**2)])


def test_a_curved_valley_where_lines_must_be_searched():
    found = minimise(rosenbrock, [[-1.2, 1.0], [2.0, 2.0], [1.0, 1.0]], tolerance=1e-8)
    assert found.converged.all()
    np.testing.assert_allclose(found.parameters, 1, atol=1e-7)
    assert found.steps < 200


def test_a_target_does_not_feel_the_others():
    starts = np.array([[-1.2, 1.0], [2.0, 2.0], [0.5, -3.0]])
    together = minimise(rosenbrock, starts)
    for start, theta in zip(starts, together.parameters, strict=True):
        assert np.array_equal(minimise(rosenbrock, [start]).parameters[0], theta)


def test_targets_that_are_done_are_not_asked_again():
    asked = []

    def risks(theta, targets):
        asked.append(targets.tolist())
        return rosenbrock(theta, targets)

    minimise(risks, [[1.0, 1.0], [-1.2, 1.0]])
    assert asked[0] == [0, 1]
    assert all(targets == [1] for targets in asked[1:])


def test_one_question_a_step_and_a_stop_at_the_limit():
    asked = []
    found = minimise(lambda t, _: asked.append(1) or rosenbrock(t, _), [[-1.2, 1.0]], max_steps=5)
    assert len(asked) == found.steps == len(found.history) == 6
    assert not found.converged.any()
    assert found.norms[0] == pytest.approx(np.linalg.norm(rosenbrock(found.parameters, None)[1]))


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_step_out_of_the_domain_is_taken_back(bad):
    def risks(theta, _):  # -log(1 - t) - log(1 + t) + t, defined on (-1, 1)
        inside = np.abs(theta[:, 0]) < 1
        t = np.where(inside, theta[:, 0], 0)
        return np.where(inside, -np.log(1 - t**2) + 5 * t, bad), (2 * t / (1 - t**2) + 5)[:, None]

    found = minimise(risks, [[0.0]], tolerance=1e-9)
    reference = minimize(lambda t: -np.log(1 - t**2) + 5 * t, -0.5, bounds=[(-0.999, 0.999)], tol=1e-14).x
    assert found.converged.all()
    np.testing.assert_allclose(found.parameters[0], reference, atol=1e-6)


def test_a_risk_without_minimum_ends_unconverged():
    found = minimise(lambda t, _: (t[:, 0] + 0.0, np.ones_like(t)), [[0.0]], max_steps=20)
    assert not found.converged[0]
    wrong = minimise(lambda t, _: (np.abs(t[:, 0]), -np.ones_like(t)), [[1.0]])  # the gradient points the wrong way
    assert not wrong.converged[0]
    assert wrong.risks[0] < 1 + 1e-8


def test_descend_takes_the_steps_of_adam(rng):
    torch = pytest.importorskip("torch")
    site, H, centre = quadratic(rng, 4)
    start = rng.standard_normal((3, 4))
    found = descend(weighted_risks(np.ones((3, 1)), lambda t: [site(t)]), start, steps=50, learning_rate=0.02)
    theta = torch.tensor(start, requires_grad=True)
    optimiser = torch.optim.Adam([theta], lr=0.02)
    for _ in range(50):
        optimiser.zero_grad()
        steps = theta - torch.tensor(centre)
        (0.5 * (steps @ torch.tensor(H) * steps).sum()).backward()
        optimiser.step()
    np.testing.assert_allclose(found.parameters, theta.detach().numpy(), atol=1e-10)
    assert found.steps == len(found.history) == 51
    np.testing.assert_allclose(found.risks, site(found.parameters)[0])


def test_descend_keeps_the_precision_and_the_start():
    start = np.ones((2, 3), dtype=np.float32)
    found = descend(lambda t, _: ((t**2).sum(axis=1), 2 * t), start, steps=5)
    assert found.parameters.dtype == np.float32
    assert (start == 1).all()
    assert (np.abs(found.parameters) < 1).all()


def test_a_run_that_explodes_says_so():
    def risks(theta, _):
        return np.where(np.abs(theta[:, 0]) > 1, np.nan, 0.0), -np.ones_like(theta)

    with pytest.raises(ValueError, match="risks must be finite, got nan at step 2; lower learning_rate"):
        descend(risks, [[0.0]], learning_rate=0.9)
    with pytest.raises(ValueError, match="at step 0; look at the rows or the start"):
        minimise(risks, [[2.0]])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([[0.5, 0.6]], r"weights must sum to 1 in every row, got 1.1 in row 0"),
        ([[1.0, 0.0], [0.2, 0.2]], r"got 0.4 in row 1"),
        ([[1.5, -0.5]], r"weights must be >= 0, got -0.5"),
        ([[np.nan, 1.0]], "weights must be finite"),
        ([0.5, 0.5], "weights must be a matrix"),
    ],
)
def test_weights_off_the_simplex_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        weighted_risks(weights, lambda _: [])


def test_other_bad_input_is_refused():
    risks = weighted_risks([[0.5, 0.5]], lambda _: [(np.zeros(1), np.zeros((1, 2)))])
    with pytest.raises(ValueError, match="shorter"):
        minimise(risks, np.zeros((1, 2)))
    with pytest.raises(ValueError, match="start must have a row for each of 1 rows of weights, got 2"):
        minimise(risks, np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"must have shapes \(1,\) and \(1, 2\)"):
        minimise(lambda *_: (np.zeros(1), np.zeros((1, 3))), np.zeros((1, 2)))
    with pytest.raises(ValueError, match="tolerance must be > 0"):
        minimise(rosenbrock, [[0.0, 0.0]], tolerance=0)
    with pytest.raises(ValueError, match="learning_rate must be > 0"):
        descend(rosenbrock, [[0.0, 0.0]], learning_rate=-1)
    with pytest.raises(ValueError, match="start must be finite"):
        descend(rosenbrock, [[0.0, np.inf]])

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import reload

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kernfed.personal import network  # noqa: E402
from kernfed.personal.gradient import descend, weighted_risks  # noqa: E402
from kernfed.personal.network import NetworkRisk, initial_parameters, n_parameters, outputs, relu_network  # noqa: E402


def small():
    return relu_network(3, (5, 4), 2)


def loaded(vector, build=small):
    """One network with the parameters of a row."""
    module = build()
    torch.nn.utils.vector_to_parameters(torch.as_tensor(vector), module.parameters())
    return module


def one_by_one(theta, X, y, loss, weights, build=small):
    """Losses and gradients of each network on its own, by backward()."""
    losses, gradients = [], []
    for place, vector in enumerate(theta):
        module = loaded(vector, build)
        rows, targets = (part[place] if X.ndim == 3 else part for part in (X, y))
        found = module(torch.as_tensor(rows, dtype=torch.float32))
        if loss == "squared":
            each = (found[:, 0] - torch.as_tensor(targets, dtype=torch.float32)) ** 2
        else:
            each = torch.nn.functional.cross_entropy(found, torch.as_tensor(targets), reduction="none")
        value = (torch.as_tensor(weights[place], dtype=torch.float32) * each).sum()
        value.backward()
        losses.append(value.item())
        gradients.append(torch.cat([parameter.grad.ravel() for parameter in module.parameters()]).numpy())
    return np.array(losses), np.array(gradients)


@pytest.mark.parametrize("own", [False, True], ids=["common rows", "own rows"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_all_networks_at_once_are_each_alone(rng, loss, weighted, own):
    lead = (4, 9) if own else (9,)
    X = rng.standard_normal((*lead, 3))
    y = rng.integers(2, size=lead) if loss == "cross-entropy" else rng.standard_normal(lead)
    weights = rng.uniform(size=(4, 9)) if weighted else None
    theta = initial_parameters(small, list("abcd"), 0)
    losses, gradients = NetworkRisk(small(), X, y, loss, weights)(theta)
    each = np.full((4, 9), 1 / 9) if weights is None else weights
    expected = one_by_one(theta, X, y, loss, each)
    np.testing.assert_allclose(losses, expected[0], rtol=1e-5)
    np.testing.assert_allclose(gradients, expected[1], atol=1e-6)
    assert gradients.dtype == np.float32


def test_other_modules_with_buffers_and_dropout(rng):
    def build():
        layers = [torch.nn.Unflatten(1, (1, 6)), torch.nn.Conv1d(1, 2, 3), torch.nn.BatchNorm1d(2), torch.nn.Tanh()]
        return torch.nn.Sequential(*layers, torch.nn.Dropout(0.5), torch.nn.Flatten(), torch.nn.Linear(8, 1))

    X, y, module = rng.standard_normal((5, 6)), rng.standard_normal(5), build()
    theta = initial_parameters(build, ["a", "b"], 0)
    losses, _ = NetworkRisk(module, X, y)(theta)
    rows = torch.as_tensor(X, dtype=torch.float32)
    alone = [loaded(vector, build).eval()(rows).detach().numpy()[:, 0] for vector in theta]
    expected = [np.mean((values - y) ** 2) for values in alone]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert module.training  # what was given is left as it was


def test_pooled_rows_are_the_weighted_sum_of_the_sites(rng):
    sites = [(rng.standard_normal((n, 3)), rng.standard_normal(n)) for n in (4, 1, 7)]
    W = rng.dirichlet(np.ones(3), 5)
    theta = initial_parameters(small, [str(i) for i in range(5)], 1)
    risks = [NetworkRisk(small(), X, y) for X, y in sites]
    asked = weighted_risks(W, lambda t: [risk(t) for risk in risks])(theta, np.arange(5))
    pooled = NetworkRisk.pooled(small(), sites, W)(theta)
    np.testing.assert_allclose(pooled[0], asked[0], rtol=1e-5)
    np.testing.assert_allclose(pooled[1], asked[1], atol=1e-6)


def test_sixty_networks_learn_in_one_run_what_each_would_alone(rng):
    X = rng.uniform(-1, 1, (40, 2))
    y = np.abs(X[:, 0])

    def build():
        return relu_network(2, (8,))

    start = initial_parameters(build, [f"site {i}" for i in range(60)], 0)
    weights = rng.uniform(size=(60, 40)) / 20
    together = descend(
        lambda t, _: NetworkRisk(build(), X, y, "squared", weights)(t), start, steps=60, learning_rate=0.02
    )
    for place in (0, 37):
        alone = NetworkRisk(build(), X, y, "squared", weights[[place]])
        found = descend(lambda t, _, alone=alone: alone(t), start[[place]], steps=60, learning_rate=0.02)
        np.testing.assert_allclose(together.parameters[place], found.parameters[0], atol=1e-4)
    assert together.history[-1] < 0.3 * together.history[0]


def test_parameters_are_drawn_by_name():
    state = torch.random.get_rng_state()
    first = initial_parameters(small, ["a", "b", "a"], 3)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert np.array_equal(first[0], first[2])
    assert not np.array_equal(first[0], first[1])
    assert np.array_equal(initial_parameters(small, ["b"], 3)[0], first[1])
    assert not np.array_equal(initial_parameters(small, ["b"], 4)[0], first[1])
    assert first.shape == (3, n_parameters(small()))
    assert first.dtype == np.float32


def test_outputs_of_all_networks(rng):
    X, theta = rng.standard_normal((6, 3)), initial_parameters(small, ["a", "b"], 0)
    found = outputs(small(), theta, X)
    for vector, values in zip(theta, found, strict=True):
        expected = loaded(vector)(torch.as_tensor(X, dtype=torch.float32)).detach().numpy()
        np.testing.assert_allclose(values, expected, atol=1e-6)
    assert found.shape == (2, 6, 2)


@pytest.mark.parametrize(("hidden", "count"), [((16,), 97), ((32, 32), 1249), ((32, 32, 32), 2305), ((), 5)])
def test_sizes_of_relu_networks(hidden, count):
    assert n_parameters(relu_network(4, hidden)) == count


def test_threads_are_as_before_also_when_several_compute(rng):
    before = torch.get_num_threads()
    risk, theta = NetworkRisk(small(), rng.standard_normal((9, 3)), np.zeros(9)), initial_parameters(small, ["a"], 0)
    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: risk(theta)[1], range(40)))
        assert torch.get_num_threads() == 2
        assert all(np.array_equal(gradients, found[0]) for gradients in found)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": np.full((2, 3), np.inf)}, "X must be finite"),
        ({"X": np.zeros(3)}, "X must be a matrix"),
        ({"y": np.zeros(3)}, r"y must have shape \(2,\) like the rows, got \(3,\)"),
        ({"y": [np.nan, 0]}, "y must be finite"),
        ({"y": [0.5, 0.5], "loss": "cross-entropy"}, "y must be 2 class numbers"),
        ({"y": [-1, 0], "loss": "cross-entropy"}, r"got -1 \.\. 0"),
        ({"loss": "hinge"}, "loss must be one of"),
        ({"row_weights": np.ones((2, 3))}, "row_weights must have a column for each of 2 rows"),
    ],
)
def test_bad_input_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        NetworkRisk(**{"module": small(), "X": np.zeros((2, 3)), "y": [0, 1], **change})


def test_parameters_of_another_network_are_refused():
    with pytest.raises(ValueError, match=r"parameters must have shape \(targets, 54\) for this network, got \(1, 7\)"):
        outputs(small(), np.zeros((1, 7)), np.zeros((1, 3)))
    with pytest.raises(ValueError, match="names must have at least one entry"):
        initial_parameters(small, [], 0)


def test_without_torch_one_sentence_says_what_to_install(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        without = reload(network)
        with pytest.raises(ImportError, match=r"networks need PyTorch: pip install -e '\.\[torch\]' in a clone"):
            without.relu_network(3, (4,))
    reload(network)

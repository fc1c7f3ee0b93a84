"""The intercept of a federated ridge regression: that of scikit-learn on pooled rows, not penalised."""

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from contracts.engines import lying
from kernfed.errors import FileFormatError, MissingSites, TooFewReplies
from kernfed.federation import Fault, Federation, Payload, RidgeLearner
from kernfed.files import Record, from_record, load, to_record
from kernfed.privacy import RecordRidge
from kernfed.ridge import METHODS, RidgeModel, RidgeParameters
from kernfed.ridge.local import fit_local
from kernfed.ridge.sums import row_means
from oracles import ridge as oracle
from oracles.ridge_sites import Data, class_sites, features_of, fit, value_sites


def far_sites(offset: float = 100.0, sizes: tuple[int, ...] = (60, 3, 35)) -> Data:
    """Sites whose values and columns have means far from 0, other ones at every site; "s1" has few rows."""
    return {name: (X + 5 * number + 3, y + offset) for number, (name, (X, y)) in enumerate(value_sites(sizes).items())}


def scikit_learn(model: RidgeModel, data: Data, weights: Any = None) -> tuple[Any, Any]:
    """Coefficients (M, C) and intercept (C,) on pooled rows with the same penalty."""
    phi, y = oracle.pooled(features_of(model, data))
    mass = len(phi) if weights is None else weights.sum()
    ridge = Ridge(alpha=model.regularization_ * mass, solver="cholesky").fit(phi, y, sample_weight=weights)
    return ridge.coef_.reshape(y.shape[1], -1).T, np.atleast_1d(ridge.intercept_)


def assert_same(model: RidgeModel, expected: tuple[Any, Any], tolerance: float = 1e-8) -> None:
    for fitted, wanted in zip((model.weights_, model.intercept_), expected, strict=True):
        np.testing.assert_allclose(fitted, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


@pytest.mark.parametrize("features", ["given", "fourier"])
@pytest.mark.parametrize("task", ["classify", "regress"])
@pytest.mark.parametrize("method", ["exact", "conjugate", "newton"])
def test_it_is_that_of_scikit_learn(method: str, task: str, features: str) -> None:
    data = class_sites() if task == "classify" else far_sites(sizes=(60, 20, 35))
    rounds = 200 if method == "newton" else 30
    level = 30.0 if method == "newton" else 1e-3  # with so much FedNewton converges
    model = fit(method, data, task=task, features=features, rounds=rounds, regularization=level, fit_intercept=True)
    assert_same(model, scikit_learn(model, data))
    X = data["s0"][0]
    phi = features_of(model, data)[0][0]
    values = phi @ model.weights_ + model.intercept_
    if task == "regress":
        np.testing.assert_allclose(model.predict(X), values[:, 0], rtol=1e-12)
    else:
        np.testing.assert_allclose(model.decision_function(X), values, atol=1e-12)
        np.testing.assert_allclose(values.sum(axis=1), 1.0, atol=1e-9)  # a constant is learned exactly


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [80, 3], ids=["more rows than features", "fewer"])
def test_with_one_site_every_method_has_it(method: str, n: int) -> None:
    data = far_sites(sizes=(n,))
    model = fit(method, data, task="regress", features="given", rounds=3, fit_intercept=True)
    assert_same(model, scikit_learn(model, data))


@pytest.mark.parametrize("method", ["exact", "conjugate"])
@pytest.mark.parametrize("features", ["given", "fourier"])
def test_weights_of_classes_count_in_the_means(method: str, features: str) -> None:
    data = class_sites()
    options: dict[str, Any] = {"rounds": 30, "features": features, "fit_intercept": True}
    model = fit(method, data, class_weight={0: 1.0, 1: 5.0, 2: 0.25}, **options)
    y = np.concatenate([data[name][1] for name in sorted(data)])
    assert_same(model, scikit_learn(model, data, np.array([1.0, 5.0, 0.25])[y]))


@pytest.mark.parametrize("method", ["exact", "conjugate"])
def test_it_is_the_default_and_makes_a_linear_regression_right(method: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 3))
    y = X @ [1.0, 2.0, 3.0] + 100
    with Federation.local({name: (X[i::3], y[i::3]) for i, name in enumerate("abc")}) as federation:
        options: Any = {"task": "regress", "features": "given", "regularization": 0.0}
        model = RidgeLearner(method, **options).fit(federation)
        without = RidgeLearner(method, **options, fit_intercept=False).fit(federation)
    np.testing.assert_allclose(model.weights_[:, 0], [1, 2, 3], atol=1e-9)
    np.testing.assert_allclose(model.intercept_, [100], atol=1e-9)
    assert without.intercept_ is None
    assert without.score(X, y) < 0


@pytest.mark.parametrize("method", ["exact", "conjugate"])
def test_far_offsets_keep_their_digits(method: str) -> None:
    near = far_sites()
    far = {name: (X + 1e6, y + 1e8) for name, (X, y) in near.items()}
    options: dict[str, Any] = {"task": "regress", "features": "given", "fit_intercept": True}
    np.testing.assert_allclose(fit(method, far, **options).weights_, fit(method, near, **options).weights_, rtol=1e-7)


def test_the_regularisation_is_chosen_with_it() -> None:
    data, path = far_sites(sizes=(40, 12, 35)), [1e-3, 0.1, 10.0]
    model = fit("conjugate", data, task="regress", features="given", regularization=path, rounds=30, fit_intercept=True)
    sites = features_of(model, data)
    phi, y = oracle.pooled(sites)
    around = [(own - phi.mean(axis=0), values - y.mean(axis=0)) for own, values in sites]
    assert model.path_ == pytest.approx({value: oracle.leave_one_out(around, value) for value in path}, rel=1e-6)
    assert_same(model, scikit_learn(model, data))


def test_of_the_exact_solution_every_row_is_left_out_literally() -> None:
    data, path = far_sites(sizes=(40, 12, 35)), [1e-3, 0.1, 10.0]
    model = fit("exact", data, task="regress", features="given", regularization=path, fit_intercept=True)
    phi, y = oracle.pooled(features_of(model, data))
    expected = {value: oracle.pooled_leave_one_out(phi, y, value)[0] for value in path}
    assert model.path_ == pytest.approx(expected, rel=1e-8)
    assert model.regularization_ == min(expected, key=expected.__getitem__)
    assert_same(model, scikit_learn(model, data))


def test_one_more_exchange_and_none_for_exact() -> None:
    for method, tasks in (("exact", {"ridge_moments"}), ("dkrr", {"ridge_means", "ridge_start"})):
        with Federation.local(far_sites()) as federation:
            RidgeLearner(method, task="regress", features="given", regularization=1e-3).fit(federation)
            asked = {entry.task: entry.messages for entry in federation.traffic}
        assert asked == {"ridge_survey": 1, **dict.fromkeys(tasks, 1)}


def test_a_factor_around_other_means_is_not_used() -> None:
    data = far_sites()
    options: Any = {"task": "regress", "features": "given", "fit_intercept": True}
    expected = fit("conjugate", data, **options)
    with Federation.local(data) as federation:
        learner = RidgeLearner("conjugate", regularization=1e-3, **options)
        assert learner.fit(federation).weights_.tobytes() == expected.weights_.tobytes()
        federation.engine.faults["s0"] = Fault("dead")  # type: ignore[attr-defined]
        with pytest.warns(MissingSites):  # the rows of the others stay, all means move
            fewer = learner.fit(federation, min_replies=2)
    rest = {name: data[name] for name in ("s1", "s2")}
    np.testing.assert_allclose(fewer.weights_, fit("conjugate", rest, **options).weights_, atol=1e-12)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: Payload({"means": p.arrays["means"][1:]}),
        lambda p: Payload({"means": -p.arrays["means"]}),
        lambda p: Payload({"means": p.arrays["means"] * np.nan}),
        lambda p: Payload({"means": p.arrays["means"].astype(np.float32)}),
        lambda p: Payload({}),  # noqa: ARG005
    ],
)
def test_means_that_cannot_be_are_refused(change: Any) -> None:
    federation = Federation(lying(Federation.local(far_sites()).engine, "s1", change, task="ridge_means"))
    with pytest.raises(TooFewReplies, match="'s1'"):
        RidgeLearner("conjugate", task="regress", features="given", regularization=1e-3).fit(federation)


@pytest.mark.parametrize("means", [None, np.zeros(3), np.full(6, np.inf)])
def test_a_site_wants_the_means(means: Any) -> None:
    values = RidgeParameters(4, features="given", task="regress", fit_intercept=True).to_values()
    question = Payload({} if means is None else {"means": means}, {"parameters": values})
    with Federation.local(far_sites()) as federation:
        refusal = federation.ask("ridge_start", question, min_replies=0).missing["s0"]
    assert (refusal.code, "an intercept needs the means" in refusal.reason) == ("bad question", True)


def test_files_with_and_without(tmp_path: Any) -> None:
    X = far_sites()["s0"][0]
    options: dict[str, Any] = {"task": "regress", "features": "given"}
    for intercept in (True, False):
        model = fit("exact", far_sites(), **options, fit_intercept=intercept)
        model.save(tmp_path / "model.kfd")
        np.testing.assert_array_equal(load(tmp_path / "model.kfd").predict(X), model.predict(X))
        assert ("and an intercept" in str(model)) == intercept
        record = to_record(model)
        assert ("fit_intercept" in record.values["values"]["parameters"]) == intercept  # older files have no such entry
        assert set(record.arrays) == ({"weights", "intercept"} if intercept else {"weights"})
    record = to_record(fit("exact", far_sites(), **options, fit_intercept=True))
    for arrays in ({"weights": record.arrays["weights"]}, {**record.arrays, "intercept": np.zeros(2)}):
        with pytest.raises(FileFormatError):
            from_record(Record(arrays, record.values))


def test_not_with_privacy() -> None:
    options: Any = {"method": "exact", "features": "given", "privacy": RecordRidge(1.0, 1e-5, 1.0, 1.0)}
    with pytest.raises(ValueError, match="intercept needs means of the raw rows; leave it out, and subtract from y"):
        RidgeLearner(**options, fit_intercept=True).options()
    assert RidgeLearner(**options).options().fit_intercept is False
    with pytest.raises(ValueError, match="fit_intercept must be True or False, got 1"):
        RidgeLearner(fit_intercept=1).options()  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fit_intercept must be True or False"):
        RidgeParameters.from_values({**RidgeParameters(2, task="regress").to_values(), "fit_intercept": "yes"})


@pytest.mark.parametrize("n", [5000, 2])
def test_means_of_rows_are_the_naive_ones(rng: np.random.Generator, n: int) -> None:
    X, targets, weights = rng.standard_normal((n, 3)) + 1e6, rng.standard_normal((n, 2)), rng.uniform(0.1, 3, n)
    for c in (None, weights):
        means = row_means(X, targets, c, None)
        np.testing.assert_allclose(means.features, np.average(X, axis=0, weights=c), rtol=1e-14)
        np.testing.assert_allclose(means.targets, np.average(targets, axis=0, weights=c), rtol=1e-9, atol=1e-12)
        assert means.mass == pytest.approx(n if c is None else weights.sum())


@pytest.mark.parametrize("regularization", [0.0, 1e-3])
def test_columns_that_do_not_vary_change_nothing(regularization: float) -> None:
    data = {name: (np.hstack([X, np.full((len(X), 1), 0.1)]), y) for name, (X, y) in far_sites().items()}
    options: Any = {"task": "regress", "features": "given", "regularization": regularization, "fit_intercept": True}
    for method in ("exact", "conjugate"):
        model = fit(method, data, **options)
        expected = fit(method, far_sites(), **options)
        np.testing.assert_allclose(model.weights_[:-1], expected.weights_, rtol=1e-7)
        assert abs(model.weights_[-1, 0]) < 1e-6
    parameters = RidgeParameters(
        2, features="given", task="regress", regularization=(regularization,), fit_intercept=True
    )
    X, y = np.full((4, 2), 0.5), np.arange(4.0)
    constant = fit_local(X, y, parameters, row_means(X, y[:, None], None, None))
    assert not constant.solutions.any()

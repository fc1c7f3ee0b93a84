"""Ridge regression that survives wrong sites: aggregate="median" against literal rows, liars, and what it refuses."""

import numpy as np
import pytest

import kernfed as kf
from contracts.engines import lying
from kernfed.errors import InputError, MissingSites, UnprotectedClasses
from kernfed.federation import Federation, LocalEngine, Payload, RidgeLearner
from kernfed.federation.fusion.learner import recorded_learner
from kernfed.federation.ridge.pooling import ask_site_sums
from kernfed.files import load
from kernfed.fusion import combination
from kernfed.ridge.leave_one_out import TEMPERATURES
from kernfed.ridge.robust import CAP
from oracles import robust as oracle
from oracles.ridge_sites import class_sites, features_of, fit, value_sites

SIZES = (60, 40, 35, 90, 50)
LIAR = "site-4"


def solved(second, cross, regularization=1e-3):
    return np.linalg.solve(second + regularization * np.eye(len(second)), cross)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("class_weight", [None, {0: 1.0, 1: 2.0, 2: 0.5}])
def test_classes_are_those_of_the_literal_rows(intercept, class_weight):
    data = class_sites(SIZES)
    model = fit("exact", data, aggregate="median", fit_intercept=intercept, class_weight=class_weight)
    weights = np.ones(3) if class_weight is None else np.array(list(class_weight.values()))
    second, cross, middle, shares = oracle.classes(features_of(model, data), CAP, weights, intercept=intercept)
    expected = solved(second, cross)
    np.testing.assert_allclose(model.weights_, expected, atol=1e-5 * np.abs(expected).max())
    if intercept:
        np.testing.assert_allclose(model.intercept_, shares - middle @ expected, atol=1e-5)
    assert model.choices_.aggregate == "median"
    assert "by 'exact' of most sites" in str(model)


@pytest.mark.parametrize("intercept", [True, False])
def test_values_are_those_of_the_literal_rows(intercept):
    data = value_sites(SIZES)
    model = fit("exact", data, aggregate="median", task="regress", fit_intercept=intercept)
    second, cross, middle, constant = oracle.values(features_of(model, data), CAP, intercept=intercept)
    expected = solved(second, cross)
    np.testing.assert_allclose(model.weights_, expected, atol=1e-4 * np.abs(expected).max())
    if intercept:
        np.testing.assert_allclose(model.intercept_, constant - middle @ expected, atol=1e-4)
    assert model.exposure() is None


def test_balanced_weights_are_those_of_rows_that_count():
    """One site claims many rows of one class: the weight of that class falls no farther than the site counts."""
    data = class_sites(SIZES)
    X, y = data["s0"]
    many = {**data, "s0": (np.tile(X[y == 0], (50, 1)), np.zeros(50 * (y == 0).sum(), dtype=int))}
    found = fit("exact", many, aggregate="median", class_weight="balanced").parameters.class_weights
    believed = fit("exact", many, class_weight="balanced").parameters.class_weights
    assert believed[0] < 0.4 < 0.5 < found[0]
    np.testing.assert_allclose(found, counted_weights(many), rtol=0.02)


def counted_weights(data):
    rows = np.array([len(y) for _, y in data.values()], dtype=float)
    share = np.minimum(rows, CAP * np.median(rows)) / rows
    counts = sum(f * np.bincount(y, minlength=3) for f, (_, y) in zip(share, data.values(), strict=True))
    return counts.sum() / (3 * counts)


@pytest.mark.parametrize("task", ["classify", "regress"])
def test_sites_alike_are_the_sum(task):
    own = (class_sites if task == "classify" else value_sites)()["s0"]
    data = dict.fromkeys("abcd", own)
    options = {"task": task, "bandwidth": "auto", "regularization": "auto", "fit_intercept": True}
    found, expected = (fit("exact", data, aggregate=how, **options) for how in ("median", "sum"))
    assert found.regularization_ == pytest.approx(expected.regularization_, rel=1e-6)
    np.testing.assert_allclose(found.weights_, expected.weights_, atol=1e-5 * np.abs(expected.weights_).max())


def test_the_order_of_sites_changes_no_bit():
    data = class_sites((60, 40, 35, 90))
    options = {"aggregate": "median", "regularization": "auto", "bandwidth": "auto"}
    reference = fit("exact", data, **options)
    other = fit("exact", dict(reversed(data.items())), **options)
    np.testing.assert_array_equal(other.weights_, reference.weights_)
    assert other.choices_ == reference.choices_


@pytest.mark.parametrize("sites", [1, 2])
def test_without_a_majority_it_is_refused(sites):
    with pytest.raises(InputError, match=f"needs at least 3 sites, so that one is a minority, got {sites}"):
        fit(
            "exact",
            {f"s{place}": own for place, own in enumerate([*class_sites().values()][:sites])},
            aggregate="median",
        )


def test_so_it_is_where_a_site_is_lost():
    def refuse(_: Payload) -> Payload:
        return Payload({})

    engine = LocalEngine.from_data(class_sites())
    learner = RidgeLearner(n_components=20, bandwidth=1.0, regularization=0.1, aggregate="median")
    with pytest.raises(InputError, match="needs at least 3 sites"):
        learner.fit(Federation(lying(engine, "s0", refuse, "ridge_moments")), min_replies=2)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"method": "conjugate"}, "method='conjugate' averages answers of every round; use method='exact'"),
        ({"head": "logistic"}, "head='logistic' adds up gradients"),
        ({"sum": "secure"}, "nobody sees a site's part, so there is nothing to take a median of"),
        (
            {"privacy": kf.privacy.RecordRidge(1.0, 1e-6, radius=1.0, target_radius=1.0), "bandwidth": 1.0},
            "released sums are added up",
        ),
    ],
)
def test_what_a_median_has_no_part_in_is_refused(options, told):
    with pytest.raises(InputError, match=told):
        RidgeLearner(aggregate="median", **options).options()
    with pytest.raises(InputError, match="aggregate must be one of"):
        RidgeLearner(aggregate="mean").options()


def test_a_class_of_few_sites_takes_part_and_is_named(tmp_path):
    data = class_sites(SIZES)
    data = {name: (X, y) if name in ("s0", "s3") else (X[y != 2], y[y != 2]) for name, (X, y) in data.items()}
    with pytest.warns(UnprotectedClasses, match=r"1 of 3 classes can be decided by a wrong site: 2; fewer than 3"):
        model = fit("exact", data, aggregate="median")
    assert model.unprotected_.tolist() == [2]
    assert model.choices_.holders == (5, 5, 2)
    assert 2 in model.predict(np.concatenate([X for X, _ in data.values()]))
    assert str(model).endswith(model.exposure())
    believing = fit("exact", data)
    assert (believing.unprotected_.tolist(), believing.exposure()) == ([0, 1, 2], None)
    model.save(tmp_path / "model.kfd")
    again = load(tmp_path / "model.kfd")
    assert again.choices_ == model.choices_
    assert again.exposure() == model.exposure()


def test_a_file_of_a_sum_says_nothing_of_it():
    values = fit("exact", class_sites()).choices_.to_values()
    assert not {"aggregate", "holders"} & set(values)
    assert kf.ridge.parameters.RidgeChoices.from_values(values).aggregate == "sum"


# Liars --------------------------------------------------------------------------------------------------------------

SETTINGS = {"n_components": 300, "bandwidth": 2.0, "regularization": 1e-4}


@pytest.fixture(scope="module")
def digits():
    return kf.data.load_dataset("digits", scaling="unit")


@pytest.fixture(scope="module")
def sites(digits):
    order = np.random.default_rng(0).permutation(len(digits.y_train))
    parts = np.array_split(order, 10)
    return {f"site-{place}": (digits.x_train[rows], digits.y_train[rows]) for place, rows in enumerate(parts)}


def accuracy(model, digits):
    return float((model.predict(digits.x_test) == digits.y_test).mean())


def learned(sites, **settings):
    with Federation.local(sites) as federation:
        return RidgeLearner(**{**SETTINGS, **settings}).fit(federation)


def shifted(sites, liars, copies):
    """Sites of which some have labels that are wrong by one, and say that they have their rows many times."""
    lies = {name: (np.tile(X, (copies, 1)), np.tile((y + 1) % 10, copies)) for name, (X, y) in sites.items()}
    return {name: lies[name] if name in liars else own for name, own in sites.items()}


def test_honest_sites_lose_nothing(sites, digits):
    assert accuracy(learned(sites, aggregate="median"), digits) >= accuracy(learned(sites), digits) - 0.01


@pytest.mark.parametrize(("liars", "copies", "most"), [((LIAR,), 60, 0.02), ((LIAR, "site-7"), 30, 0.05)])
def test_wrong_labels_of_many_rows_that_nobody_can_count(sites, digits, liars, copies, most):
    honest, data = accuracy(learned(sites), digits), shifted(sites, liars, copies)
    assert accuracy(learned(data), digits) < 0.5
    assert accuracy(learned(data, aggregate="median"), digits) > honest - most


def test_a_liar_does_not_choose_the_regularisation(sites):
    def lie(payload: Payload) -> Payload:
        """The strongest regularisation is the best, by far."""
        array = payload.arrays["0"].copy()
        array[:-1, 3:] += 100.0 * array[:-1, 2:3]
        array[-1, 3:] = 0.0
        return Payload({**payload.arrays, "0": array}, payload.values)

    engine = LocalEngine.from_data(sites)
    options = {**SETTINGS, "regularization": (1e-6, 1e-4, 1e-2, 10.0)}
    chosen = {
        how: RidgeLearner(aggregate=how, **options).fit(Federation(lying(engine, LIAR, lie, "ridge_left_out")))
        for how in ("sum", "median")
    }
    honest = RidgeLearner(aggregate="median", **options).fit(Federation(engine))
    assert chosen["sum"].regularization_ == 10.0
    assert chosen["median"].regularization_ == honest.regularization_ < 1.0
    assert TEMPERATURES[0] < chosen["median"].temperature_ < TEMPERATURES[-1]


def test_a_liar_does_not_choose_the_scale_of_columns(sites):
    def lie(payload: Payload) -> Payload:
        return Payload({**payload.arrays, "squares": payload.arrays["squares"] * 1e12}, payload.values)

    engine = LocalEngine.from_data(sites)
    widths = {}
    for how in ("sum", "median"):
        learner = RidgeLearner(aggregate=how, **{**SETTINGS, "bandwidth": "median"}, scale="columns")
        honest, lied = (learner.fit(Federation(own)) for own in (engine, lying(engine, LIAR, lie, "ridge_columns")))
        widths[how] = np.median(np.divide(lied.parameters.bandwidth, honest.parameters.bandwidth))
    assert widths["sum"] > 1e4
    assert 0.5 < widths["median"] < 2


def test_no_class_is_farther_away_than_rows_can_be(sites):
    def lie(payload: Payload) -> Payload:
        """Products of targets of other classes than surveyed, the trace as it should be."""
        own = kf.kernels.Moments.from_arrays({name: payload.arrays[name] for name in ("n", "width", "mean", "scatter")})
        joint = own.joint_scatter.copy()
        joint[-1, -1] += 0.5 * joint[-2, -2]
        joint[-2, -2] *= 0.5
        joint[-2, :-2], joint[:-2, -2] = joint[-2, :-2] / 2, joint[:-2, -2] / 2
        joint[-2, -1] = joint[-1, -2] = 0.0
        arrays = {**payload.arrays, "scatter": joint[np.triu_indices(len(joint))]}
        return Payload(arrays, payload.values)

    engine = LocalEngine.from_data(sites)
    with pytest.warns(MissingSites, match=f"'{LIAR}': .*products of targets"):
        model = RidgeLearner(**SETTINGS).fit(Federation(lying(engine, LIAR, lie, "ridge_moments")), min_replies=5)
    assert list(model.missing_) == [LIAR]


# Beside machines ----------------------------------------------------------------------------------------------------


def test_a_head_is_made_again_in_the_same_way(tmp_path):
    data = class_sites(SIZES)
    head = kf.RidgeLearner(n_components=40, aggregate="median")
    with kf.Federation.local(data, store=tmp_path) as federation:
        model = kf.FusionLearner(ridge=head, visit="unsure").fit(federation)
        fewer = model.forget("s0")
        assert recorded_learner(model.ridge).aggregate == fewer.ridge.choices_.aggregate == "median"
        assert fewer.ridge.choices_.holders == (4, 4, 3)
    others = {name: own for name, own in data.items() if name != "s0"}
    with kf.Federation.local(others) as federation:
        expected = recorded_learner(model.ridge).fit(federation)
    np.testing.assert_array_equal(fewer.ridge.weights_, expected.weights_)


def test_a_head_without_a_site_is_that_of_the_others():
    data = class_sites(SIZES)
    with kf.Federation.local(data, seed=7) as federation:
        head = kf.RidgeLearner(n_components=40, bandwidth=2.0, regularization=1e-3, aggregate="median").fit(federation)
        without = ask_site_sums(federation, head).without(["s0"])
    with kf.Federation.local({name: own for name, own in data.items() if name != "s0"}, seed=7) as federation:
        expected = recorded_learner(head).fit(federation)
    np.testing.assert_allclose(without.weights_, expected.weights_, atol=1e-12)


def test_a_liar_does_not_choose_the_weight_of_machines(sites):
    def lie(payload: Payload) -> Payload:
        """Machines alone are never wrong."""
        arrays = {name: array.copy() for name, array in payload.arrays.items()}
        arrays["surprise"][-1], arrays["wrong"][-1] = 0.0, 0.0
        arrays["surprise"][:-1] += arrays["total"][0] / combination.TEMPERATURES  # no more than labels can bring about
        return Payload(arrays, payload.values)

    engine = LocalEngine.from_data({name: sites[name] for name in sorted(sites)[:6]})
    weights = {}
    for how in ("sum", "median"):
        learner = kf.FusionLearner(ridge=RidgeLearner(aggregate=how, **SETTINGS))
        lied, honest = (
            learner.fit(Federation(own)).weight_ for own in (lying(engine, LIAR, lie, "fusion_losses"), engine)
        )
        weights[how] = lied / honest
    assert weights["sum"] >= 8
    assert 0.25 <= weights["median"] <= 4

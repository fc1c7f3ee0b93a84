"""The personal learner: the same models as on rows in one place, few messages, and every way a site can fail."""

import numpy as np
import pytest

from contracts.engines import lying
from kernfed.errors import InputError, MissingSites, TooFewReplies
from kernfed.federation import Fault, Federation, Payload, Policy, RidgeLearner, load
from kernfed.federation.personal import METHOD
from kernfed.federation.personal import sites as personal_sites
from kernfed.federation.personal.learner import PersonalLearner
from kernfed.kernels import FourierFeatures
from kernfed.personal.fit import aggregation_weights, fit_groups, site_statistics
from kernfed.personal.statistics import Problem
from kernfed.personal.weights import EmbeddingKernel, penalty_constants
from kernfed.privacy import RecordEmbedding, RecordGaussian
from oracles import personal as oracle

B = 12
PERSONAL_TASKS = tuple(name for names in METHOD.tasks.values() for name in names)


def value_sites(sigma=0.05, n=10, d=6, sites=B):
    rows, _, labels = oracle.concept_shift(sigma, 3, B=sites, n=n, d=d)
    return {f"s{k:02d}": row for k, row in enumerate(rows)}, labels


def class_sites(rng, sites=6, n=25):
    data = {}
    for k in range(sites):
        y = rng.integers(0, 3, n)
        X = np.eye(3)[y if k % 2 else 2 - y] + 0.3 * rng.standard_normal((n, 3))
        data[f"s{k}"] = (X, np.array(["a", "b", "c"])[y])
    return data


def fit(data, *args, **options):
    with Federation.local(data, seed=7) as federation:
        return PersonalLearner(*args, **options).fit(federation)


class Losing:
    """A federation that loses a site at a task."""

    def __init__(self, data, site, task, kind="dead"):
        self.federation = Federation.local(data, seed=7)
        ask, engine = self.federation.ask, self.federation.engine

        def watching(name, *args, **options):
            if name == task:
                engine.faults[site] = Fault(kind)
            return ask(name, *args, **options)

        self.federation.ask = watching


# The same as in one place -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("intercept", [False, True])
def test_auto_is_the_fit_of_the_statistics(intercept):
    data, labels = value_sites()
    model = fit(data, fit_intercept=intercept)
    problem = Problem(6)
    expected, _ = fit_groups(
        problem, {name: site_statistics(problem, *row) for name, row in data.items()}, intercept=intercept
    )
    np.testing.assert_allclose(model.coefficients_, expected.coefficients_, atol=1e-8)
    np.testing.assert_allclose(model.weights_, expected.weights_, atol=1e-8)
    assert (model.rule, model.sites, model.problem.task) == ("auto", tuple(sorted(data)), "regress")
    assert len({(a, b) for a, b in zip(model.groups_.values(), labels, strict=True)}) == 2
    assert np.mean([gain.gain for gain in model.gains_.values()]) > 0
    assert all(gain.rows == 10 for gain in model.gains_.values())


@pytest.mark.parametrize(
    ("weights", "kernel"),
    [("printed", "fourier"), ((0.2, 0.1), "fourier"), ((0.2, 0.1), "polynomial"), ((0.0, 0.3), "fourier")],
)
def test_aggregation_is_that_of_rows_in_one_place(weights, kernel):
    data, _ = value_sites()
    model = fit(data, weights, kernel=kernel, bandwidth=2.0, target_bandwidth=3.0, kernel_components=40, gains=False)
    used = EmbeddingKernel(6, 1, kernel, "both", 2.0, 3.0, 40, seed=7)
    rows = {name: (X, y[:, None]) for name, (X, y) in data.items()}
    expected = aggregation_weights(rows, used, penalty_constants(weights, B))
    np.testing.assert_allclose(model.weights_, expected, atol=1e-6)


def test_baselines_share_the_interface():
    data, labels = value_sites()
    groups = dict(zip(data, labels.tolist(), strict=True))
    local, mean, known = (fit(data, rule) for rule in ("local", "grand_mean", groups))
    assert local.weights_.tolist() == np.eye(B).tolist()
    assert local.gains_ == {}
    np.testing.assert_allclose(mean.weights_, 1 / B)
    same = labels[:, None] == labels
    np.testing.assert_allclose(known.weights_, same / same.sum(axis=1, keepdims=True))
    assert known.rule == "groups"
    assert np.mean([gain.gain for gain in known.gains_.values()]) > np.mean([g.gain for g in mean.gains_.values()])
    given = fit(data, known.weights_, gains=False)
    np.testing.assert_allclose(given.coefficients_, known.coefficients_)


def test_one_site_learns_from_itself():
    data, _ = value_sites(sites=1)
    for rule in ("auto", "printed", "local", "grand_mean"):
        model = fit(data, rule)
        assert model.weights_.tolist() == [[1.0]]
        assert np.isfinite(model.for_site("s00").predict(data["s00"][0])).all()


@pytest.mark.parametrize("features", ["given", "fourier"])
@pytest.mark.parametrize("model", ["ridge", "logistic"])
def test_classes_at_each_site_their_own(rng, model, features, tmp_path):
    data = class_sites(rng)
    fitted = fit(data, "auto", model=model, features=features, n_components=60, steps=60)
    assert fitted.problem.task == "classify"
    for name, (X, y) in data.items():
        assert fitted.for_site(name).score(X, y) > 0.9
        np.testing.assert_allclose(fitted.for_site(name).predict_proba(X).sum(axis=1), 1.0)
    fitted.save(tmp_path / "model.kfd")
    again = load(tmp_path / "model.kfd")
    X = data["s0"][0]
    np.testing.assert_array_equal(again.for_site("s0").predict(X), fitted.for_site("s0").predict(X))


def test_networks_are_trained_for_all_targets_at_once(rng, tmp_path):
    pytest.importorskip("torch")
    data = {f"s{k}": (X := rng.standard_normal((30, 2)), (1 if k % 2 else -1) * np.abs(X[:, 0])) for k in range(4)}
    with Federation.local(data) as federation:
        groups = {name: k % 2 for k, name in enumerate(data)}
        model = PersonalLearner(groups, model=(12,), steps=60, learning_rate=0.05).fit(federation)
        asked = [entry.messages for entry in federation.traffic if entry.task == "personal_gradient"]
    assert asked == [61] * 4
    assert all(model.for_site(name).score(X, y) > 0.7 for name, (X, y) in data.items())
    model.save(tmp_path / "model.kfd")
    again, X = load(tmp_path / "model.kfd"), data["s0"][0]
    np.testing.assert_array_equal(again.for_site("s0").predict(X), model.for_site("s0").predict(X))


def test_few_messages_and_floats_leave():
    data, _ = value_sites()
    with Federation.local(data) as federation:
        PersonalLearner("auto", gains=False).fit(federation)
        sent = {entry.task: entry for entry in federation.traffic if entry.site == "s00"}
    assert set(sent) == {"personal_survey", "personal_statistics"}
    assert sent["personal_statistics"].scalars_up <= 2 + 7 + 28 + 1
    with Federation.local(data) as federation:
        PersonalLearner((1.0, 1.0), model="none", kernel_components=100).fit(federation)
        sent = {entry.task: entry for entry in federation.traffic if entry.site == "s00"}
    assert set(sent) == {"personal_survey", "personal_statistics", "personal_forms"}
    assert sent["personal_statistics"].scalars_up == 100 + 3
    assert sent["personal_forms"].scalars_up == B
    assert all(entry.messages == 1 for entry in sent.values())


def test_weights_alone_have_no_predictor():
    data, _ = value_sites()
    model = fit(data, (0.5, 0.5), model="none")
    assert model.weights_.shape == (B, B)
    with pytest.raises(ValueError, match="weights only"):
        model.for_site("s00")


def test_a_new_site_joins_by_one_message():
    data, _ = value_sites()
    model = fit({name: row for name, row in data.items() if name != "s11"})
    with Federation.local(data, seed=7) as federation:
        joined = PersonalLearner().join(federation, model, "s11")
        assert [(entry.site, entry.task, entry.messages) for entry in federation.traffic] == [
            ("s11", "personal_statistics", 1)
        ]
        federation.engine.faults["s11"] = Fault("dead")
        with pytest.raises(TooFewReplies, match="cannot be reached"):
            PersonalLearner().join(federation, model, "s11")
    assert joined.own + sum(joined.weights.values()) == pytest.approx(1.0)
    expected = model.join(*data["s11"])
    np.testing.assert_allclose(joined.model.coefficients_, expected.model.coefficients_, atol=1e-9)


# Sites that fail ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["personal_survey", "personal_statistics", "personal_forms"])
@pytest.mark.parametrize("kind", ["dead", "garbage"])
def test_a_site_lost_on_the_way_takes_no_part(task, kind):
    """Lost in "personal_forms" is lost between embedding and training."""
    data, _ = value_sites()
    options = {"bandwidth": 2.0, "gains": False}
    with pytest.warns(MissingSites, match=r"1 site.s. missing, they have no model: 's03'"):
        model = PersonalLearner((0.1, 0.1), **options).fit(Losing(data, "s03", task, kind).federation, min_replies=5)
    rest = {name: row for name, row in data.items() if name != "s03"}
    expected = fit(rest, (0.1, 0.1), **options)
    np.testing.assert_allclose(model.coefficients_, expected.coefficients_)
    assert list(model.missing_) == ["s03"]
    with pytest.raises(ValueError, match="it is missing"):
        model.for_site("s03")
    with pytest.raises(TooFewReplies, match="needs 12 replies"):
        PersonalLearner((0.1, 0.1), **options).fit(Losing(data, "s03", task, kind).federation)


def test_a_site_lost_while_gradients_are_exchanged(rng):
    data = class_sites(rng)
    learner = PersonalLearner(np.full((6, 6), 1 / 6), model="logistic", steps=40)
    with pytest.warns(MissingSites):
        model = learner.fit(Losing(data, "s1", "personal_gradient").federation, min_replies=1)
    np.testing.assert_allclose(model.weights_, 1 / 5)


def test_gains_are_asked_at_once_or_in_parts_that_memory_holds(monkeypatch):
    data, _ = value_sites()
    with Federation.local(data, seed=7) as federation:
        together = PersonalLearner().fit(federation).gains_
    asked = []
    ask = personal_sites.PersonalSites._ask_gains
    monkeypatch.setattr(
        personal_sites.PersonalSites,
        "_ask_gains",
        lambda sites, questions: asked.append(len(questions)) or ask(sites, questions),
    )
    assert fit(data).gains_ == together
    assert asked == [len(data)]
    monkeypatch.setattr(personal_sites, "_ASKED_AT_ONCE", 0)
    assert fit(data).gains_ == together
    assert asked[1:] == [1] * len(data) + [0]


@pytest.mark.parametrize("learner", [PersonalLearner(), RidgeLearner("exact", task="regress", n_components=20)])
def test_names_of_columns_are_kept(learner, tmp_path):
    data, _ = value_sites(d=3)
    with Federation.local(data, columns=["age", "dose", "weight"]) as federation:
        model = learner.fit(federation)
    model.save(tmp_path / "model.kfd")
    assert load(tmp_path / "model.kfd").feature_names_in_ == model.feature_names_in_ == ("age", "dose", "weight")
    if isinstance(learner, PersonalLearner):
        assert model.for_site("s00").feature_names_in_ == model.feature_names_in_
        model.for_site("s00").save(tmp_path / "site.kfd")
        assert load(tmp_path / "site.kfd").feature_names_in_ == model.feature_names_in_
        assert model.n_features_in_ == 3


def test_a_site_that_does_not_tell_its_gain_has_a_model():
    data, _ = value_sites()
    model = PersonalLearner().fit(Losing(data, "s03", "personal_gain").federation)
    assert "s03" in model.sites
    assert sorted(model.gains_) == sorted(set(data) - {"s03"})


def test_labels_that_are_missing_or_of_another_kind():
    data, _ = value_sites()
    X, y = data["s00"]
    with pytest.raises(ValueError, match="y of site 's00' must be finite"):
        Federation.local({**data, "s00": (X, np.full(len(y), np.nan))})
    text = {**data, "s00": (X, np.array(["a"] * len(y)))}
    with pytest.raises(ValueError, match=r"kinds of labels|type of labels"):
        fit(text)
    with pytest.raises(TooFewReplies, match="y must be numbers"):
        fit(text, task="regress")
    with pytest.warns(MissingSites, match="y must be numbers"), Federation.local(text) as federation:
        model = PersonalLearner(task="regress").fit(federation, min_replies=3)
    assert "s00" not in model.sites
    with pytest.raises(TooFewReplies, match="fractions"):
        fit(data, task="classify")
    with pytest.raises(ValueError, match="logistic"):
        fit(data, model="logistic")
    with pytest.raises(ValueError, match="at least 2 classes"):
        fit({"a": (X, np.ones(len(X), dtype=int)), "b": (X, np.ones(len(X), dtype=int))})


def test_a_site_with_one_row_takes_part():
    data, _ = value_sites()
    X, y = data["s00"]
    data["s00"] = (X[:1], y[:1])
    for rule in ("auto", "printed", (0.1, 0.1), "local"):
        model = fit(data, rule, bandwidth=2.0)
        assert np.isfinite(model.for_site("s00").predict(X)).all()
        np.testing.assert_allclose(model.weights_.sum(axis=1), 1.0)


def test_identical_sites_are_one_group():
    data, _ = value_sites()
    same = dict.fromkeys(data, data["s00"])
    model = fit(same, "auto")
    values = [model.for_site(name).predict(data["s01"][0]) for name in same]
    np.testing.assert_allclose(values, np.tile(values[0], (B, 1)), atol=1e-8)
    assert np.isfinite(fit(same, "printed").coefficients_).all()


def test_policies_are_kept():
    data, _ = value_sites()
    private = Policy(tasks=("*",), require_privacy=True, max_record_epsilon=50.0, labels="targets")
    strict = {"s00": private, "s01": Policy()}
    with (
        pytest.warns(MissingSites, match=r"requires privacy|allows describe"),
        Federation.local(data, policies=strict) as federation,
    ):
        model = PersonalLearner().fit(federation, min_replies=3)
    assert sorted(model.missing_) == ["s00", "s01"]
    allowed = {name: Policy(tasks=PERSONAL_TASKS) for name in data}
    with Federation.local(data, policies=allowed) as federation:
        assert len(PersonalLearner().fit(federation).gains_) == B


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("personal_survey", {"task": "rank", "median": False, "seed": 0}, "task must be one of"),
        ("personal_statistics", {"problem": {"width": 3}, "kernel": None, "statistics": True}, "problem"),
        ("personal_forms", {"problem": Problem(6).to_values(), "kernel": {"width": -1}}, "kernel"),
    ],
)
def test_questions_that_cannot_be_followed_are_refused(name, values, message):
    data, _ = value_sites()
    with Federation.local(data) as federation, pytest.raises(TooFewReplies, match=message):
        federation.ask(name, Payload(values=values))


def test_what_is_kept_for_a_training_goes_with_forgotten_rows(rng):
    with Federation.local(class_sites(rng)) as federation:
        PersonalLearner("local", model="logistic", steps=3).fit(federation)
        site = federation.engine.site("s0")
        assert "personal" in site.cache
        site.forget_rows(np.array([0]))
        assert "personal" not in site.cache


# Privacy ------------------------------------------------------------------------------------------------------------


def mechanism(epsilon=20.0, width=6):
    return RecordEmbedding(epsilon, 1e-5, FourierFeatures(width, 40, 1.0, seed=3, kind="paired"))


def test_private_embeddings_give_weights_and_are_charged_once(tmp_path):
    data, _ = value_sites(n=60)
    policies = {name: Policy(tasks=("*",), max_record_epsilon=25.0, labels="targets") for name in data}
    learner = PersonalLearner((0.0, 0.5), model="none", columns="features", privacy=mechanism())
    with Federation.local(data, policies=policies, store=tmp_path) as federation:
        first = learner.fit(federation)
        again = learner.fit(federation)
        np.testing.assert_array_equal(first.weights_, again.weights_)
        other = PersonalLearner((0.0, 0.5), model="none", columns="features", privacy=mechanism(19.0))
        with pytest.raises(TooFewReplies, match=r"does not release|budget"):
            other.fit(federation)
        assert {entry.task for entry in federation.traffic} == {"personal_survey", "personal_release"}
    np.testing.assert_allclose(first.weights_.sum(axis=1), 1.0)
    assert (first.privacy.record.epsilon, first.privacy.protects) == (20.0, "rows and targets")
    assert first.privacy.spent["s00"][0] == pytest.approx(20.0, rel=1e-6)
    first.save(tmp_path / "model.kfd")
    assert load(tmp_path / "model.kfd").privacy == first.privacy


@pytest.mark.parametrize("statistics", [True, False])
def test_where_privacy_is_required_nothing_but_releases_leaves(statistics):
    data, _ = value_sites()
    kernel = EmbeddingKernel(6, 1).to_values()
    values = {"problem": Problem(6).to_values(), "statistics": statistics, "intercept": True, "kernel": kernel}
    policy = Policy(("*",), require_privacy=True, max_record_epsilon=50.0, labels="targets")
    with Federation.local(data, policies=dict.fromkeys(data, policy)) as federation:
        refusal = federation.ask("personal_statistics", Payload(values=values), min_replies=0).missing["s00"]
    assert "requires privacy" in refusal.reason


@pytest.mark.parametrize(
    "change",
    [
        lambda p: Payload(p.arrays, {"privacy": {**p.values["privacy"], "record": ["1.0", "1e-5"]}}),
        lambda p: Payload({**p.arrays, "facts": np.array([0.0, 1.0])}, p.values),
        lambda p: Payload({**p.arrays, "vector": p.arrays["vector"][1:]}, p.values),
        lambda p: Payload(p.arrays, {}),
    ],
)
def test_lies_about_releases_are_refused(change, tmp_path):
    data, _ = value_sites(sites=3)
    learner = PersonalLearner((0.0, 0.5), model="none", columns="features", privacy=mechanism())
    engine = Federation.local(data, store=tmp_path).engine
    with pytest.raises(TooFewReplies, match="'s01'"):
        learner.fit(Federation(lying(engine, "s01", change, task="personal_release")))


@pytest.mark.parametrize("values", [{}, 5, {"kind": "record-embedding"}], ids=str)
def test_hostile_releases_are_refused(values):
    data, _ = value_sites()
    asked = {"problem": Problem(6).to_values(), "kernel": EmbeddingKernel(6, 1).to_values(), "privacy": values}
    with Federation.local(data) as federation:
        refusal = federation.ask("personal_release", Payload(values=asked), min_replies=0).missing["s00"]
    assert refusal.code == "bad question"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "use model='none'"),
        ({"model": "none", "weights": "auto"}, "privacy covers"),
        ({"model": "none", "kernel": "polynomial"}, "privacy covers"),
        ({"model": "none", "privacy": RecordGaussian(1.0, 1e-5, radius=1.0)}, "RecordEmbedding"),
    ],
)
def test_privacy_that_does_not_cover_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        PersonalLearner(**{"weights": (1.0, 1.0), "privacy": mechanism(), **options}).options()


def test_features_of_privacy_must_fit_the_rows(tmp_path):
    data, _ = value_sites()
    learner = PersonalLearner((1.0, 1.0), model="none", privacy=mechanism())
    with Federation.local(data, store=tmp_path) as federation, pytest.raises(ValueError, match="7 compared columns"):
        learner.fit(federation)


# Settings -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "best"}, "weights must be one of"),
        ({"weights": (1.0, -2.0)}, "C_P must be >= 0"),
        ({"weights": [[0.5, 0.4], [0.0, 1.0]]}, "sum to 1"),
        ({"weights": 3.0}, "weights must be"),
        ({"weights": [[1.5, -0.5], [0.0, 1.0]]}, ">= 0"),
        ({"kernel": "linear"}, "kernel"),
        ({"bandwidth": -1.0}, "bandwidth must be > 0"),
        ({"target_bandwidth": 0.0}, "target_bandwidth must be > 0"),
        ({"columns": "labels"}, "columns"),
        ({"task": "rank"}, "task"),
        ({"model": "forest"}, "model"),
        ({"model": 3}, "NetworkRisk"),
        ({"model": (0,)}, "size of a layer"),
        ({"regularization": -1.0}, "regularization"),
        ({"regularization": "best"}, "regularization"),
        ({"features": "all"}, "features"),
        ({"max_groups": -1}, "max_groups"),
        ({"n_components": 0}, "n_components"),
        ({"steps": 0}, "steps"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"bandwidth": "mean"}, "bandwidth"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        PersonalLearner(**options).options()
    data, _ = value_sites(sites=2)
    with Federation.local(data) as federation:
        with pytest.raises(InputError, match=message):
            PersonalLearner(**options).fit(federation)
        assert not list(federation.traffic)  # nothing was asked


def test_groups_and_matrices_that_do_not_fit_the_sites_are_refused():
    data, _ = value_sites()
    with pytest.raises(ValueError, match="none for 's11'"):
        fit(data, dict.fromkeys(list(data)[:-1], 0))
    with pytest.raises(ValueError, match=r"weights must have shape \(12, 12\)"):
        fit(data, np.eye(3))

"""Federated averaging against a gradient step written by hand, finite differences and its degenerate limits."""

import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from threadpoolctl import threadpool_limits

from kernfed.errors import FileFormatError, InputError, MissingSites, TooFewReplies
from kernfed.federation import Fault, Federation, Policy, evaluate
from kernfed.files import load, save
from kernfed.site.protocol import task as tasks
from kernfed_papers.baselines.averaging import AveragingLearner, average_weights
from kernfed_papers.baselines.averaging_model import AveragingModel, AveragingParameters, Scaling
from kernfed_papers.baselines.averaging_tasks import round_question
from kernfed_papers.baselines.network import initial_weights
from kernfed_papers.draws import generator

KINDS = ("linear", "mlp")


def make_rows(rng, count, width=4, classes=3, shift=2.0):
    y = np.arange(count) % classes
    centres = np.random.default_rng(1).standard_normal((classes, width)) * shift
    return centres[y] + rng.standard_normal((count, width)), y


def make_sites(rng, sizes, **options):
    return {f"site {number}": make_rows(rng, size, **options) for number, size in enumerate(sizes)}


def softmax_step(W, b, X, y, rate):
    """One full-batch gradient step of the mean cross-entropy of a linear softmax, row by row."""
    gradient_W, gradient_b = np.zeros_like(W), np.zeros_like(b)
    for x, label in zip(X, y, strict=True):
        raised = np.exp(x @ W + b)
        error = raised / raised.sum()
        error[label] -= 1
        gradient_W += np.outer(x, error)
        gradient_b += error
    return W - rate * gradient_W / len(X), b - rate * gradient_b / len(X)


# Rounds -----------------------------------------------------------------------------------------------------------


def test_one_site_with_one_full_batch_epoch_is_a_gradient_step(rng):
    X, y = make_rows(rng, 30)
    with Federation.local({"only": (X, y)}) as federation:
        learner = AveragingLearner(rounds=2, learning_rate=0.5, batch_size=30, standardize=False, dtype="float64")
        model = learner.fit(federation)
    expected = softmax_step(*softmax_step(np.zeros((4, 3)), np.zeros(3), X, y, 0.5), X, y, 0.5)
    np.testing.assert_allclose(model.weights_[0], expected[0], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(model.weights_[1], expected[1], rtol=1e-12, atol=1e-14)


def test_full_batch_rounds_of_many_sites_are_gradient_descent_on_all_rows(rng):
    data = make_sites(rng, (12, 30, 3))
    X, y = (np.concatenate(part) for part in zip(*data.values(), strict=True))
    with Federation.local(data) as federation:
        learner = AveragingLearner(rounds=1, learning_rate=0.5, batch_size=30, standardize=False, dtype="float64")
        model = learner.fit(federation)
    expected = softmax_step(np.zeros((4, 3)), np.zeros(3), X, y, 0.5)
    np.testing.assert_allclose(model.weights_[0], expected[0], rtol=1e-12, atol=1e-14)


def test_weights_are_averaged_by_rows():
    weights = [(np.array([[0.0]]), np.array([1.0])), (np.array([[4.0]]), np.array([5.0]))]
    means = average_weights(weights, [3, 1], "float64")
    assert means[0].tolist() == [[1.0]]
    assert means[1].tolist() == [2.0]


@pytest.mark.parametrize("proximal", [0.0, 1.0, 100.0])
def test_the_proximal_term_holds_weights_back(rng, proximal):
    data = make_sites(rng, (20, 20))
    with Federation.local(data) as federation:
        free = AveragingLearner("mlp", rounds=1, local_epochs=5, learning_rate=0.005, hidden=6).fit(federation)
        held = AveragingLearner("mlp", rounds=1, local_epochs=5, learning_rate=0.005, hidden=6, proximal=proximal).fit(
            federation
        )
    start = initial_weights((4, 6, 3), "float32", generator(0, "averaging", "start"))
    moved_free, moved_held = (
        sum(np.sum((a - b) ** 2) for a, b in zip(model.weights_, start, strict=True)) for model in (free, held)
    )
    if proximal == 0:
        assert moved_held == moved_free
    else:
        assert 0 < moved_held < moved_free


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_what_one_site_alone_cannot(rng, kind):
    X, y = make_rows(rng, 300, shift=3.0)
    data = {f"class {label}": (X[y == label], y[y == label]) for label in range(3)}  # the hardest skew
    queries, truth = make_rows(rng, 300, shift=3.0)
    seen = []
    with Federation.local(data) as federation:
        learner = AveragingLearner(kind, rounds=30, learning_rate=0.05)
        model = learner.fit(federation, callback=lambda number, now: seen.append((number, now)))
    assert (model.predict(queries) == truth).mean() > 0.85
    assert [number for number, _ in seen] == list(range(1, 31))
    assert seen[-1][1] is model
    assert [done.number for done in model.history_] == list(range(1, 31))
    assert model.history_[-1].loss < model.history_[0].loss
    assert model.history_[-1].bytes_up == federation.traffic.bytes_up
    assert {entry.information for entry in federation.traffic} == {"schema", "statistics"}


def test_standardization_is_that_of_all_rows(rng):
    data = make_sites(rng, (5, 40, 13))
    data = {site: (X * [1, 1e3, 1e-3, 0] + [0, 1e6, 0, 5], y) for site, (X, y) in data.items()}
    every = np.concatenate([X for X, _ in data.values()])
    with Federation.local(data) as federation:
        scaling = AveragingLearner(rounds=1).fit(federation).scaling
    np.testing.assert_allclose(scaling.mean, every.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(scaling.scale[:3], every.std(axis=0)[:3], rtol=1e-9)
    assert scaling.scale[3] == 1.0
    assert np.isfinite(scaling.apply(every, "float32")).all()


def test_scale_and_offset_of_a_column_do_not_matter(rng):
    data = make_sites(rng, (30, 30))
    moved = {site: (X * 1000 - 7, y) for site, (X, y) in data.items()}
    queries, _ = make_rows(rng, 50)
    answers = []
    for rows, asked in ((data, queries), (moved, queries * 1000 - 7)):
        with Federation.local(rows) as federation:
            answers.append(
                AveragingLearner("mlp", rounds=3, hidden=8, dtype="float64").fit(federation).predict_proba(asked)
            )
    np.testing.assert_allclose(answers[0], answers[1], atol=1e-9)


# Determinism ------------------------------------------------------------------------------------------------------


def fitted(data, seed=0, kind="mlp", **options):
    with Federation.local(data, seed=seed) as federation:
        return AveragingLearner(kind, rounds=2, **{"hidden": 16, **options}).fit(
            federation, callback=lambda _, model: model.predict(np.zeros((3, model.n_features_in_)))
        )


def same_weights(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one.weights_, other.weights_, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_order_of_sites_and_threads_change_no_bit(rng, kind):
    data = make_sites(rng, (200, 300, 150, 90), width=784, classes=10)  # products that BLAS divides
    with threadpool_limits(2):
        model = fitted(data, kind=kind, hidden=128)
    turned = fitted(dict(reversed(data.items())), kind=kind, hidden=128)
    with threadpool_limits(1):
        narrow = fitted(data, kind=kind, hidden=128)
    assert same_weights(model, turned)
    assert same_weights(model, narrow)
    assert model.history_ == turned.history_ == narrow.history_


def test_the_seed_decides(rng):
    data = make_sites(rng, (40, 40))
    assert same_weights(fitted(data, seed=5), fitted(data, seed=5))
    assert not same_weights(fitted(data, seed=5), fitted(data, seed=6))


def test_another_site_does_not_change_the_draws_of_a_site(rng):
    data = make_sites(rng, (40, 40))
    more = {**data, "site 2": make_rows(rng, 40)}
    replies = []
    for rows in (data, more):
        with Federation.local(rows) as federation:
            parameters = AveragingParameters("mlp", hidden=5, seed=3)
            start = initial_weights((4, 5, 3), "float32", np.random.default_rng(0))
            model = AveragingModel(parameters, np.arange(3), 4, start, Scaling.none(4))
            replies.append(federation.ask("averaging_round", round_question(model, 1))["site 0"].arrays["w0"])
    assert np.array_equal(*replies)


@pytest.mark.parametrize("sizes", [(1,), (256, 44), (100, 100, 100)])
def test_how_queries_are_cut_changes_no_bit(rng, sizes):
    model = fitted(make_sites(rng, (40, 40), width=50))
    queries = rng.standard_normal((sum(sizes), 50))
    whole = model.predict_proba(queries)
    parts = np.split(queries, np.cumsum(sizes)[:-1])
    assert np.array_equal(whole, np.concatenate([model.predict_proba(part) for part in parts]))
    np.testing.assert_allclose(whole.sum(axis=1), 1.0)
    assert np.array_equal(model.predict(queries), model.classes_[whole.argmax(axis=1)])


# Missing sites ----------------------------------------------------------------------------------------------------


def test_missing_sites_leave_the_mean_of_the_others(rng):
    with Federation.local(make_sites(rng, (20, 40, 60))) as federation:

        def break_one(*_):
            federation.engine.faults = {"site 1": Fault("dead")}

        with pytest.warns(MissingSites, match="site 1"):
            model = AveragingLearner(rounds=2).fit(federation, callback=break_one, min_replies=2)
    assert [done.sites for done in model.history_] == [3, 2]
    assert [done.rows for done in model.history_] == [120, 80]
    assert [list(done.missing) for done in model.history_] == [[], ["site 1"]]
    assert model.missing_ == {}


@pytest.mark.parametrize("kind", ["dead", "garbage"])
def test_a_site_that_never_answers_is_as_if_it_were_not_there(rng, kind):
    data = make_sites(rng, (20, 40, 60))
    with Federation.local(data, faults={"site 1": Fault(kind)}) as federation:
        with pytest.warns(MissingSites):
            model = AveragingLearner("mlp", rounds=2, hidden=4).fit(federation, min_replies=2)
        with pytest.raises(TooFewReplies, match="site 1"):
            AveragingLearner("mlp", rounds=2, hidden=4).fit(federation)
    assert list(model.missing_) == ["site 1"]
    assert same_weights(model, fitted({site: data[site] for site in ("site 0", "site 2")}, hidden=4))


def test_sites_may_refuse(rng):
    data = make_sites(rng, (20, 20))
    closed = Policy(tasks=("describe", "scores"))
    careful = Policy(tasks=("*",), require_privacy=True, max_record_epsilon=50.0)
    for policy, reason in ((closed, "allows"), (careful, "privacy")):
        with (
            Federation.local(data, policies={"site 1": policy}) as federation,
            pytest.raises(TooFewReplies, match=reason),
        ):
            AveragingLearner(rounds=1).fit(federation)


def test_divergence_is_named(rng):
    data = make_sites(rng, (50, 50))
    with Federation.local(data) as federation, pytest.raises(TooFewReplies, match="lower learning_rate"):
        AveragingLearner("mlp", rounds=20, learning_rate=1e6).fit(federation)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda arrays: {**arrays, "w0": arrays["w0"] * np.nan}, "finite"),
        (lambda arrays: {**arrays, "w0": arrays["w0"][:2]}, "shape"),
        (lambda arrays: {**arrays, "w0": arrays["w0"].astype(np.float64)}, "float32"),
        (lambda arrays: {**arrays, "rows": arrays["rows"] * 1000}, "described 20 rows"),
        (lambda arrays: {**arrays, "more": arrays["rows"]}, "expected arrays"),
        (lambda arrays: {name: array for name, array in arrays.items() if name != "w1"}, "expected arrays"),
    ],
)
def test_bad_replies_are_refused_before_they_are_averaged(rng, monkeypatch, spoil, reason):
    known = tasks._tasks["averaging_round"]

    def spoilt(site, payload):
        answer = known.run(site, payload)
        return replace(answer, arrays=spoil(answer.arrays)) if site.name == "site 0" else answer

    monkeypatch.setitem(tasks._tasks, "averaging_round", replace(known, run=spoilt))
    data = make_sites(rng, (20, 30))
    with Federation.local(data) as federation:
        with pytest.raises(TooFewReplies, match=reason):
            AveragingLearner(rounds=1).fit(federation)
        with pytest.warns(MissingSites, match="site 0"):
            model = AveragingLearner(rounds=1, standardize=False).fit(federation, min_replies=1)
    alone = fitted({"site 1": data["site 1"]}, kind="linear", standardize=False)
    assert model.history_[0].rows == 30
    assert model.history_[0].loss == alone.history_[0].loss


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: replace(p, arrays={**p.arrays, "w0": np.zeros((9, 3), np.float32)}), "do not fit"),
        (lambda p: replace(p, values={**p.values, "classes": {"dtype": "<i8", "labels": [0, 1]}}), "do not fit"),
        (lambda p: replace(p, values={**p.values, "classes": {"dtype": "<i8", "labels": [0, 1, 7]}}), "lacks"),
        (lambda p: replace(p, values={**p.values, "parameters": {"model": "tree"}}), "model must be one of"),
    ],
)
def test_sites_refuse_questions_that_do_not_fit(rng, change, reason):
    model = AveragingModel(
        AveragingParameters(), np.arange(3), 4, (np.zeros((4, 3), np.float32), np.zeros(3, np.float32)), Scaling.none(4)
    )
    with Federation.local(make_sites(rng, (20,))) as federation, pytest.raises(TooFewReplies, match=reason):
        federation.ask("averaging_round", change(round_question(model, 1)))


# Edges and files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "forest"}, "model must be one of"),
        ({"rounds": 0}, "rounds must be >= 1"),
        ({"local_epochs": 0}, "local_epochs must be >= 1"),
        ({"learning_rate": 0.0}, "learning_rate must be > 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be a finite number"),
        ({"batch_size": 1.5}, "batch_size must be an integer"),
        ({"hidden": 0}, "hidden must be >= 1"),
        ({"proximal": -1.0}, "proximal must be >= 0"),
        ({"standardize": "yes"}, "standardize must be True or False"),
        ({"dtype": "float16"}, "dtype must be one of"),
    ],
)
def test_bad_settings_are_refused_by_fit(rng, options, message):
    learner = AveragingLearner(**options)
    with Federation.local(make_sites(rng, (20,))) as federation, pytest.raises(InputError, match=message):
        learner.fit(federation)


def test_it_is_copied_and_changed_as_an_estimator_is():
    learner = AveragingLearner("mlp", rounds=3, hidden=8)
    copy = clone(learner).set_params(rounds=4)
    assert copy.get_params() == {**learner.get_params(), "rounds": 4}
    with pytest.raises(InputError, match="no parameter 'depth'"):
        learner.set_params(depth=2)
    with pytest.raises(TypeError, match="positional"):
        AveragingLearner("mlp", 3)


def test_bad_federations_and_queries_are_refused(rng):
    X, y = make_rows(rng, 20)
    with Federation.local({"only": (X, np.zeros(20))}) as federation, pytest.raises(ValueError, match="2 classes"):
        AveragingLearner().fit(federation)
    with Federation.local({"only": (X, y)}) as federation:
        with pytest.raises(ValueError, match="min_replies must be >= 1"):
            AveragingLearner().fit(federation, min_replies=0)
        model = AveragingLearner(rounds=1).fit(federation)
    with pytest.raises(ValueError, match="4 columns"):
        model.predict(np.zeros((2, 5)))
    with pytest.raises(ValueError, match="finite"):
        model.predict([[0, 0, np.nan, 0]])


@pytest.mark.parametrize("labels", [np.array(["b", "a", "c"]), np.array([-1.0, 0.0, 7.0]), np.array([10, 2, 30])])
def test_labels_of_any_type_come_back(rng, labels):
    data = {site: (X, labels[y]) for site, (X, y) in make_sites(rng, (40, 41)).items()}
    model = fitted(data, kind="linear")
    assert model.classes_.tolist() == sorted(labels.tolist())
    assert set(model.predict(make_rows(rng, 30)[0])) <= set(labels.tolist())


def test_rows_one_and_classes_unseen_by_most_are_no_problem(rng):
    X, y = make_rows(rng, 40)
    data = {"many": (X[y < 2], y[y < 2]), "one": (X[2:3], y[2:3])}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = fitted(data)
    assert model.classes_.tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_is_the_same_model(rng, tmp_path, kind):
    model = fitted(make_sites(rng, (30, 30)), kind=kind)
    model.save(tmp_path / "model.kfd")
    again = load(tmp_path / "model.kfd")
    queries, _ = make_rows(rng, 20)
    assert np.array_equal(again.predict_proba(queries), model.predict_proba(queries))
    assert again.history_ == model.history_
    assert again.parameters == model.parameters
    save(again, tmp_path / "again.kfd")
    assert (tmp_path / "again.kfd").read_bytes() == (tmp_path / "model.kfd").read_bytes()


def test_a_damaged_file_is_refused(rng, tmp_path):
    model = fitted(make_sites(rng, (30, 30)))
    for broken in (replace(model, weights_=model.weights_[:2]), replace(model, n_features_in_=3)):
        save(broken, tmp_path / "model.kfd")
        with pytest.raises(FileFormatError, match="damaged"):
            load(tmp_path / "model.kfd")
    spoilt = replace(model, weights_=tuple(array * np.nan for array in model.weights_))
    with pytest.raises(FileFormatError, match="array 'w0' holds NaN or infinity"):
        save(spoilt, tmp_path / "spoilt.kfd")
    assert not (tmp_path / "spoilt.kfd").exists()


def test_sites_evaluate_the_model_on_rows_they_kept_aside(rng):
    with Federation.local(make_sites(rng, (100, 200), shift=3.0), holdout=0.3) as federation:
        model = AveragingLearner(rounds=10).fit(federation)
        tested = evaluate(model, federation)
    assert model.history_[0].rows + tested.pooled.rows == 300
    assert tested.accuracy > 0.8


def test_a_fresh_process_reads_the_file(rng, tmp_path):
    fitted(make_sites(rng, (30, 30))).save(tmp_path / "model.kfd")
    program = f"import kernfed; print(type(kernfed.load({str(tmp_path / 'model.kfd')!r})).__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "AveragingModel"


def test_epochs_without_end_are_refused_before_they_begin():
    """A question for 10^9 epochs used to hold the site, and the lock of its store, for good."""
    X, y = np.random.default_rng(0).standard_normal((20, 3)), np.arange(20) % 2
    endless = AveragingLearner(rounds=1, local_epochs=10**9)
    with Federation.local({"a": (X, y)}) as federation, pytest.raises(TooFewReplies, match="max_steps = 100,000"):
        endless.fit(federation)

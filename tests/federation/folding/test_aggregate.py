"""How scores of sites become one answer, against loops; and what one wrong site can do."""

from collections.abc import Callable

import numpy as np
import pytest

import kernfed as kf
from contracts.engines import lying
from kernfed.errors import InputError, MissingSites, UnprotectedClasses
from kernfed.federation import Fault, Federation, FoldingLearner, LocalEngine, Payload
from kernfed.kahm.members import (
    AGGREGATES,
    Explanation,
    check_trusted,
    combine,
    deciding,
    exposure,
    shared_labels,
    unprotected,
)
from oracles.federation import combined, sites_data


@pytest.mark.parametrize("absent", [1.0, np.inf])
@pytest.mark.parametrize("k", [1, 2, 3, 50])
@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 4, 3), (5, 6, 4), (7, 0, 2)])
def test_combine_equals_the_loop(
    rng: np.random.Generator, shape: tuple[int, int, int], aggregate: str, k: int, absent: float
) -> None:
    for share in (0.0, 0.5, 1.0):
        holds = rng.random((shape[0], shape[2])) < share
        scores = np.round(rng.random(shape), 1)  # with ties
        scores[~np.broadcast_to(holds[:, None, :], shape)] = absent
        expected = combined(scores, holds, aggregate, k, absent)
        np.testing.assert_array_equal(combine(scores, holds, aggregate, k, absent), expected)


def test_what_a_site_says_of_a_class_it_lacks_is_not_heard(rng: np.random.Generator) -> None:
    scores, holds = rng.random((3, 5, 2)), np.array([[True, True], [True, False], [True, True]])
    lie = scores.copy()
    lie[1, :, 1] = 0.0
    for aggregate in AGGREGATES:
        np.testing.assert_array_equal(combine(lie, holds, aggregate, 2, 1.0), combine(scores, holds, aggregate, 2, 1.0))


def test_unprotected_classes() -> None:
    holds = np.array([[True, True, True, False], [True, True, False, False], [True, False, False, False]])
    assert unprotected(holds, "min", 3).all()
    assert unprotected(holds, "kth", 1).all()  # the first smallest is the smallest
    assert unprotected(holds, "kth", 2).tolist() == [False, True, True, True]  # one of two holders can suppress it
    assert unprotected(holds, "kth", 3).all()


def test_classes_that_take_part() -> None:
    holds = np.array([[True, True, True], [True, True, False], [True, False, False]])
    classes = np.array([4, 5, 6])
    assert deciding(classes, holds, "min", 2).all()
    assert deciding(classes, holds, "kth", 1).all()
    assert deciding(classes, holds, "kth", 2).tolist() == [True, False, False]
    assert deciding(classes, holds, "kth", 2, (6,)).tolist() == [True, False, True]
    assert deciding(classes, holds, "kth", 2, ("5",)).tolist() == [True, True, False]  # as a command line says it
    assert deciding(classes, holds, "kth", 2, "all").all()
    held = {"a": [4, 5, 6], "b": [4, 5], "c": [4]}
    assert shared_labels(held, "min", 2) == [4, 5, 6]
    assert shared_labels(held, "kth", 2) == [4, 5]
    assert shared_labels(held, "kth", 2, [6]) == [4, 5, 6]
    scores = np.zeros((3, 2, 3))
    assert (
        combine(scores, holds, "kth", 2, 1.0, deciding(classes, holds, "kth", 2)).tolist() == [[0, np.inf, np.inf]] * 2
    )
    for wrong in ("some", 5):
        with pytest.raises(InputError, match="trusted_classes must be"):
            check_trusted(wrong)


@pytest.mark.parametrize("k", [2, 3])
def test_kth_survives_what_it_promises(rng: np.random.Generator, k: int) -> None:
    """With k - 1 liars, whatever they say, the k-th smallest lies between honest scores: the smallest and the k-th."""
    honest = rng.random((5, 30, 3))
    for lie in (np.zeros((k - 1, 30, 3)), np.ones((k - 1, 30, 3)), rng.random((k - 1, 30, 3))):
        scores = np.concatenate([lie, honest])
        found = combine(scores, np.ones((len(scores), 3), dtype=bool), "kth", k, 1.0)
        ordered = np.sort(honest, axis=0)
        assert (found >= ordered[0]).all()
        assert (found <= ordered[k - 1]).all()


def test_shares() -> None:
    found = Explanation(np.zeros(5), np.array(["b", "a", "b", "b", "c"]), np.zeros(5, np.intp), np.zeros(5))
    assert found.shares() == {"b": 0.6, "a": 0.2, "c": 0.2}
    assert list(found.shares()) == ["b", "a", "c"]  # largest first, then by name
    empty = Explanation(np.zeros(0), np.zeros(0, str), np.zeros(0, np.intp), np.zeros(0))
    assert empty.shares() == {}


# One wrong site in a federation ------------------------------------------------------------------------------------


def zero_for(column: int) -> Callable[[Payload], Payload]:
    """0 for one class, which is a score that a site may give."""

    def change(payload: Payload) -> Payload:
        payload.arrays["scores"][:, column] = 0.0
        return payload

    return change


@pytest.mark.parametrize("measure", ["rms", "distance"])
def test_with_min_one_wrong_site_owns_every_prediction_and_kth_survives(rng: np.random.Generator, measure: str) -> None:
    data = sites_data(rng, "abcd", rows=90)
    queries = rng.permutation(np.concatenate([X[:30] for X, _ in sites_data(rng, "xy", rows=90).values()]))
    engine = LocalEngine.from_data(data)
    honest = FoldingLearner(measure, batch_size=100, partition="order", scale=None).fit(Federation(engine))
    assert set(honest.predict(queries)) == {0, 1, 2}
    wrong = Federation(lying(engine, "c", zero_for(1)))
    owned = FoldingLearner(measure, batch_size=100, partition="order", scale=None).fit(wrong)
    assert (owned.predict(queries) == 1).all()
    assert owned.explain(queries).shares() == {"c": 1.0}
    assert owned.unprotected_.tolist() == [0, 1, 2]

    learner = FoldingLearner(measure, aggregate="kth", k=2, batch_size=100, partition="order", scale=None)
    robust, undisturbed = learner.fit(wrong), learner.fit(Federation(engine))
    assert robust.unprotected_.tolist() == []
    found, right, best = robust.scores(queries), undisturbed.scores(queries), honest.scores(queries)
    np.testing.assert_array_equal(found[:, [0, 2]], right[:, [0, 2]])
    assert (found[:, 1] >= best[:, 1]).all()  # never below an honest answer
    assert (found[:, 1] <= right[:, 1]).all()
    assert (robust.predict(queries) == honest.predict(queries)).mean() > 0.9


def test_classes_of_too_few_holders_are_listed_and_take_no_part_unless_trusted(rng: np.random.Generator) -> None:
    data = sites_data(rng, "abcd")
    for site, label in (("a", 7), ("b", 7), ("c", 8)):  # 7 is held by a and b, 8 by c, 2 by d
        X, y = data[site]
        data[site] = (X, np.where(y == 2, label, y))
    federation, queries = Federation.local(data), np.concatenate([X[:6] for X, _ in data.values()])
    told = (
        "3 of 5 classes take no part: 2, 7, 8; fewer than k . 1 = 3 of 4 .* hold them: let further .* trusted_classes"
    )
    with pytest.warns(UnprotectedClasses, match=told):
        model = FoldingLearner(aggregate="kth", k=2, measure="rms", batch_size=100, partition="order", scale=None).fit(
            federation
        )
    assert model.classes_.tolist() == [0, 1, 7]  # what one site alone says is no class
    assert model.unprotected_.tolist() == model.left_out_.tolist() == [2, 7, 8]
    assert set(model.predict(queries)) == {0, 1}
    assert (model.predict_proba(queries)[:, 2] == 0).all()
    assert "\n3 of 5 classes take no part: 2, 7, 8; fewer than k + 1 = 3 of 4 site(s) hold them\n" in str(model)
    by_site = model.scores_by_site(queries)
    expected = combined(by_site, model.holds, "kth", 2, 1.0)
    np.testing.assert_array_equal(model.scores(queries), np.where([True, True, False], expected, np.inf))
    assert set(model.local("d").predict(queries)) <= {0, 1}
    assert set(model.local("a").predict(data["a"][0])) == {0, 1, 7}

    with pytest.warns(UnprotectedClasses, match="1 of 5 classes take no part: 8, and 2 of 5 .* trusted .*: 2, 7"):
        trusting = FoldingLearner(
            aggregate="kth", k=2, trusted_classes=[2, "7"], measure="rms", batch_size=100, partition="order", scale=None
        ).fit(federation)
    assert trusting.classes_.tolist() == [0, 1, 2, 7]
    assert (trusting.unprotected_.tolist(), trusting.left_out_.tolist()) == ([2, 7, 8], [8])
    expected = combined(trusting.scores_by_site(queries), trusting.holds, "kth", 2, 1.0)
    np.testing.assert_array_equal(trusting.scores(queries), expected)
    with pytest.warns(UnprotectedClasses):
        everything = FoldingLearner(
            aggregate="kth", k=2, trusted_classes="all", measure="rms", batch_size=100, partition="order", scale=None
        ).fit(federation)
    assert everything.classes_.tolist() == [0, 1, 2, 7, 8]
    assert everything.left_out_.tolist() == []


@pytest.mark.filterwarnings("ignore::kernfed.errors.UnprotectedClasses")
@pytest.mark.filterwarnings("ignore::kernfed.errors.TemporaryStores")
@pytest.mark.parametrize("hold", ["sites", "machines"])
def test_a_class_becomes_one_when_sites_join_and_goes_when_they_leave(rng, tmp_path, hold) -> None:
    data = sites_data(rng, "abcd")
    data["a"] = (data["a"][0], np.where(data["a"][1] == 2, 1, data["a"][1]))
    data["b"] = (data["b"][0], np.where(data["b"][1] == 2, 1, data["b"][1]))
    queries, first = data["d"][0], {name: data[name] for name in "abc"}
    learner = FoldingLearner(aggregate="kth", hold=hold, measure="rms", batch_size=100, partition="order", scale=None)
    model = learner.fit(Federation.local(first))
    assert (model.classes_.tolist(), model.members_["c"].left_out) == ([0, 1], (2,))
    model.save(tmp_path / "model.kfd")
    again = kf.load(tmp_path / "model.kfd")
    assert (again.members_, again.left_out_.tolist()) == (dict(model.members_), [2])
    if hold == "machines":
        np.testing.assert_array_equal(again.scores(queries), model.scores(queries))
        return
    larger = model.add_site("d", data["d"])
    assert (larger.classes_.tolist(), larger.left_out_.tolist()) == ([0, 1, 2], [2])
    np.testing.assert_array_equal(larger.scores(queries), learner.fit(Federation.local(data)).scores(queries))
    smaller = larger.forget("d")
    assert smaller.classes_.tolist() == [0, 1]
    np.testing.assert_array_equal(smaller.scores(queries), model.scores(queries))


@pytest.mark.parametrize("k", [3, 4])
def test_a_k_that_leaves_no_class_is_refused(rng: np.random.Generator, k: int) -> None:
    with Federation.local(sites_data(rng, "abc")) as federation:
        with pytest.raises(InputError, match=f"at least {k + 1} sites hold it, and of 3 .*trusted_classes"):
            FoldingLearner(aggregate="kth", k=k, measure="rms", batch_size=100, partition="order", scale=None).fit(
                federation
            )
        with pytest.warns(UnprotectedClasses, match="with k=1 a single wrong site can decide every class: choose k=2"):
            FoldingLearner(aggregate="kth", k=1, measure="rms", batch_size=100, partition="order", scale=None).fit(
                federation
            )
        for learner in (
            FoldingLearner(k=k, measure="rms", batch_size=100, partition="order", scale=None),
            FoldingLearner(aggregate="kth", k=2, measure="rms", batch_size=100, partition="order", scale=None),
        ):  # nothing promised; all protected
            assert "wrong" not in str(learner.fit(federation))


def test_a_class_whose_holders_do_not_answer_takes_no_part(rng: np.random.Generator) -> None:
    data = sites_data(rng, "abcd")
    data["d"] = (data["d"][0], np.where(data["d"][1] == 2, 1, data["d"][1]))
    engine = LocalEngine.from_data(data)
    model = FoldingLearner(aggregate="kth", measure="rms", batch_size=100, partition="order", scale=None).fit(
        Federation(engine)
    )
    queries = data["a"][0]
    assert set(model.predict(queries)) == {0, 1, 2}
    engine.faults["a"] = Fault("dead")
    with pytest.warns(MissingSites):
        assert set(model.predict(queries, min_replies=3)) == {0, 1}
    engine.faults |= {"b": Fault("dead")}
    with pytest.warns(MissingSites), pytest.raises(InputError, match=r"of the 2 site.s. that answer no 3 hold"):
        model.predict(queries, min_replies=2)


def test_many_unprotected_classes_make_a_short_line() -> None:
    assert exposure(range(30), 30, 1, "kth", 2) == (
        "30 of 30 classes take no part: 0, 1, 2, 3, 4 and 25 more; fewer than k + 1 = 3 of 1 site(s) hold them"
    )

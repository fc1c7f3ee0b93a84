"""How scores of sites become one answer, against loops; and what one wrong site can do."""

from collections.abc import Callable

import numpy as np
import pytest

from contracts.engines import lying
from kernfed.errors import UnprotectedClasses
from kernfed.federation import Federation, FoldingLearner, LocalEngine, Payload
from kernfed.kahm.aggregate import AGGREGATES, Explanation, combine, exposure, unprotected
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
    assert unprotected(holds, "kth", 2).tolist() == [False, False, True, True]
    assert unprotected(holds, "kth", 3).tolist() == [False, True, True, True]


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
    honest = FoldingLearner(measure).fit(Federation(engine))
    assert set(honest.predict(queries)) == {0, 1, 2}
    wrong = Federation(lying(engine, "c", zero_for(1)))
    owned = FoldingLearner(measure).fit(wrong)
    assert (owned.predict(queries) == 1).all()
    assert owned.explain(queries).shares() == {"c": 1.0}
    assert owned.unprotected_.tolist() == [0, 1, 2]

    learner = FoldingLearner(measure, aggregate="kth", k=2)
    robust, undisturbed = learner.fit(wrong), learner.fit(Federation(engine))
    assert robust.unprotected_.tolist() == []
    found, right, best = robust.scores(queries), undisturbed.scores(queries), honest.scores(queries)
    np.testing.assert_array_equal(found[:, [0, 2]], right[:, [0, 2]])
    assert (found[:, 1] >= best[:, 1]).all()  # never below an honest answer
    assert (found[:, 1] <= right[:, 1]).all()
    assert (robust.predict(queries) == honest.predict(queries)).mean() > 0.9


def test_classes_of_too_few_holders_are_listed(rng: np.random.Generator) -> None:
    data = sites_data(rng, "abc")
    X, y = data["a"]
    data["a"] = (X, np.where(y == 2, 7, y))  # only a holds class 7, and class 2 is held by b and c
    with pytest.warns(UnprotectedClasses, match="2 of 4 classes, which fewer than k=3 of 3 .* hold: 2, 7; let further"):
        model = FoldingLearner(aggregate="kth", k=3).fit(Federation.local(data))
    assert model.classes_.tolist() == [0, 1, 2, 7]
    assert model.unprotected_.tolist() == [2, 7]
    queries = X[:6]
    by_site = model.scores_by_site(queries)
    np.testing.assert_array_equal(model.scores(queries), combined(by_site, model.holds, "kth", 3, 1.0))
    np.testing.assert_array_equal(model.scores(queries)[:, 3], by_site[0, :, 3])
    np.testing.assert_array_equal(model.scores(queries)[:, 2], by_site[1:, :, 2].max(axis=0))
    with pytest.warns(UnprotectedClasses, match="hold: 7; let further sites with these classes take part; model.unp"):
        fewer = FoldingLearner(aggregate="kth", k=2).fit(Federation.local(data))
    assert fewer.unprotected_.tolist() == [7]
    assert "\nwrong sites can decide 1 of 4 classes, which fewer than k=2 of 3 site(s) hold: 7\n" in str(fewer)


@pytest.mark.parametrize(
    ("k", "told"),
    [
        (1, "with k=1 a single wrong site can decide every class; .* or choose k=2"),
        (4, "3 of 3 classes, which fewer than k=4 of 3 site.*0, 1, 2; .* or choose a smaller k"),
    ],
)
def test_a_k_that_protects_nothing_is_told(rng: np.random.Generator, k: int, told: str) -> None:
    with Federation.local(sites_data(rng, "abc")) as federation:
        with pytest.warns(UnprotectedClasses, match=told):
            FoldingLearner(aggregate="kth", k=k).fit(federation)
        for learner in (FoldingLearner(k=k), FoldingLearner(aggregate="kth", k=3)):  # nothing promised; all protected
            assert "wrong" not in str(learner.fit(federation))


def test_many_unprotected_classes_make_a_short_line() -> None:
    classes, holds = np.arange(30), np.ones((1, 30), dtype=bool)
    assert exposure(classes, holds, "kth", 2) == (
        "wrong sites can decide 30 of 30 classes, which fewer than k=2 of 1 site(s) hold: 0, 1, 2, 3, 4 and 25 more"
    )

import numpy as np
import pytest
from sklearn.datasets import load_digits

import kernfed as kf
from kernfed.base.random import generator
from kernfed.errors import InputError
from kernfed.kahm.choice import Candidate, Chosen, Tally, candidates, usual
from kernfed.kahm.left_out import Machines, leave_out, sample, try_candidates
from kernfed.kernels.rows import ColumnStatistics

MACHINES = Machines("distance", n_jobs=1)


def tally_of(*right: str) -> Tally:
    """A tally of candidates whose left-out rows are right where there is a 1."""
    table = np.array([[int(letter) for letter in word] for word in right], dtype=np.int64).T
    return Tally(len(table), table.T @ table, np.zeros(3, dtype=np.int64))


@pytest.fixture(scope="module")
def local():
    """Two classes that are interleaved stripes: only small local machines tell them apart."""
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, size=(600, 2))
    return X, (np.floor(X[:, 0] * 4) % 2).astype(int)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_the_unit_of_rows_does_not_matter(factor):
    X, y = load_digits(return_X_y=True)
    learn, ask = X[:300], X[300:500]
    model, other = kf.KAHMClassifier().fit(learn, y[:300]), kf.KAHMClassifier().fit(learn * factor, y[:300])
    assert (model.predict(ask) == other.predict(ask * factor)).all()
    machine, larger = kf.KAHM().fit(learn[:50]), kf.KAHM().fit(learn[:50] * factor)
    np.testing.assert_allclose(larger.distance(ask * factor), machine.distance(ask) * factor, rtol=1e-9)
    np.testing.assert_allclose(larger.image(ask[:3] * factor), machine.image(ask[:3]) * factor, rtol=1e-7, atol=factor)
    unscaled = kf.KAHM(scale=None)
    small, large = (
        unscaled.fit(learn[:50]).distance(ask),
        kf.KAHM(scale=None).fit(learn[:50] * 1e-3).distance(ask * 1e-3),
    )
    assert not np.allclose(large, small * 1e-3, rtol=0.01)  # as the papers have it


def test_columns_of_any_unit_are_alike_once_they_are_scaled(local):
    X, y = local
    odd = X * [1e5, 1e-5] + [1e6, 0.0]
    model, other = (kf.KAHMClassifier(scale="columns").fit(rows, y) for rows in (X, odd))
    assert (model.predict(X) == other.predict(odd)).mean() > 0.99
    assert other.scaling_ is not None
    assert other.scaling_.kind == "columns"


def test_small_batches_are_chosen_where_only_they_work(local):
    X, y = local
    model = kf.KAHMClassifier().fit(X[:400], y[:400])
    assert model.chosen_ is not None
    assert model.chosen_.candidate.batch_size <= 20
    whole = kf.KAHMClassifier(batch_size=1000, partition="kmeans").fit(X[:400], y[:400])
    assert model.score(X[400:], y[400:]) > whole.score(X[400:], y[400:]) + 0.1
    assert model.get_params()["batch_size"] == "auto"
    assert len(model.bank_.machines) > 20
    regressor = kf.KAHMRegressor().fit(X[:400], y[:400].astype(float))
    usually = kf.KAHMRegressor(batch_size=1000, partition="kmeans").fit(X[:400], y[:400].astype(float))
    assert regressor.score(X[400:], y[400:]) > usually.score(X[400:], y[400:])


def test_counts_are_those_of_fitting_each_candidate(local):
    """Naive twin: every candidate on the same sample, divided and answered on its own."""
    X, y = local
    tried = (*candidates("auto", 5, "kmeans"), *candidates(None, 50, "order"))
    tally = try_candidates(X, y, tried, MACHINES, generator(1, "choose"))
    draws = generator(1, "choose")
    learned, left = sample(y, draws)
    seed = int(draws.integers(2**31))
    statistics = ColumnStatistics.of(X)
    for number, one in enumerate(tried):
        scaling = one.scaling(statistics)
        rows = X if scaling is None else scaling.apply(X)
        division = []
        for label in (0, 1):
            own = np.flatnonzero(y[learned] == label)
            draw = np.random.default_rng([seed, label])
            parts = kf.kahm.split_rows(rows[learned][own], one.batch_size, one.partition, draw)
            division.append(tuple(own[part] for part in parts))
        right = MACHINES.nearest(rows[learned], tuple(division), rows[left]) == y[left]
        assert abs(tally.right[number, number] - right.sum()) <= 1  # k-means at another unit may round otherwise
    assert tally.rows == len(left)
    assert (tally.right <= np.minimum.outer(tally.right.diagonal(), tally.right.diagonal())).all()


def test_rows_are_left_out_but_never_the_last_of_a_class():
    labels = np.array([0] * 30 + [1] * 2 + [2])
    learned, left = leave_out(np.random.default_rng(0).permutation(33), labels, 33)
    assert sorted([*learned, *left]) == list(range(33))
    assert set(labels[learned]) == {0, 1, 2}
    assert np.bincount(labels[learned]).tolist() == [1, 1, 1]
    assert (
        try_candidates(np.ones((5, 2)), np.zeros(5), candidates("auto", 5, "order"), MACHINES, generator(0)).rows == 0
    )


def test_a_scale_is_preferred_where_rows_do_not_tell_and_the_better_one_where_they_do():
    tried = candidates("auto", 10, "order")
    ones, none = "1" * 40, "0" * 40
    alike = tally_of("1" * 40 + "0" * 10, "0" * 9 + "1" * 41, "0" * 50, "0" * 50)
    assert tried[alike.best(tried)].unit_of == ("columns", 0.3)
    better = tally_of(ones[:25] + none[:15], ones, none, none)
    assert tried[better.best(tried)].unit_of == ("entries", 0.3)
    few = tally_of("1" * 5, "1" * 5, "0" * 5, "0" * 5)
    assert tried[few.best(tried)] == usual(tried)


def test_the_division_is_that_of_most_rows_and_large_classes_tell_large_ones_apart():
    tried = candidates(None, "auto", "auto")
    ones, none = "1" * 60, "0" * 60
    assert tried[tally_of(ones, ones, none, ones).best(tried)].division == (100, "order")  # the cheapest of equals
    clear = tally_of(ones[:30] + none[:30], ones[:30] + none[:30], none, ones)
    assert tried[clear.best(tried)].division == (5, "kmeans")
    assert tried[Tally(60, clear.right, np.array([5, 9, 10])).best(tried)].division == (5, "kmeans")
    told = Tally(60, tally_of(ones, ones, none, none).right, np.array([5, 9, 10]))
    assert tried[told.best(tried)].division == (1000, "kmeans")


def test_what_is_given_is_not_tried():
    assert {one.division for one in candidates("auto", 7, "random")} == {(7, "random")}
    assert {one.unit_of for one in candidates(None, "auto", "auto")} == {(None, 1.0)}
    assert {one.scale for one in candidates("entries", "auto", "order")} == {"entries"}
    assert usual(candidates("auto", "auto", "auto")) == Candidate("columns", 0.3, 1000, "kmeans")
    for wrong in (("rows", 5, "order"), ("auto", 0, "order"), ("auto", "some", "order"), ("auto", 5, "best")):
        with pytest.raises(InputError):
            candidates(*wrong)
    model = kf.KAHMClassifier(batch_size=5, partition="order", scale=None).fit(np.eye(6), [0, 1] * 3)
    assert (model.chosen_, model.scaling_) == (None, None)


def test_a_choice_and_its_counts_survive_the_file(local, tmp_path):
    X, y = local
    model = kf.KAHMClassifier().fit(X, y)
    model.save(tmp_path / "model.kfd")
    again = kf.load(tmp_path / "model.kfd")
    assert (again.chosen_, again.scaling_) == (model.chosen_, model.scaling_)
    assert again.get_params() == model.get_params()
    np.testing.assert_array_equal(again.scores(X), model.scores(X))
    good = model.chosen_.to_values()
    for change in ({"candidate": 99}, {"right": [1]}, {"tried": [[None, 1.0]]}, {"large": [1]}, {"sites": [1]}):
        with pytest.raises(InputError):
            Chosen.from_values({**good, **change})


def test_counts_that_cannot_be_are_refused():
    good = {"right": np.array([[3, 2], [2, 4]]), "large": np.array([1, 2, 2])}
    assert Tally.from_arrays(5, good, tried=2).rows == 5
    wrong = [
        {"right": np.array([[3, 4], [4, 4]])},
        {"right": np.array([[6, 2], [2, 4]])},
        {"right": np.array([[3, 1], [2, 4]])},
        {"right": np.array([[3.0, 2.0], [2.0, 4.0]])},
        {"large": np.array([3, 2, 2])},
        {"large": np.array([1, -1, 2])},
    ]
    for change in wrong:
        with pytest.raises(InputError):
            Tally.from_arrays(5, {**good, **change}, tried=2)

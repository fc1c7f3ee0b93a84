"""Labels that are values, and labels of different kinds, are not learned as classes without a word."""

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from kernfed.errors import ManyClasses, SchemaMismatch, TooFewReplies
from kernfed.federation import Federation, FoldingLearner, LocalEngine, RidgeLearner, Site
from kernfed.site.protocol.schema import Schema, check_classes, fraction_reason, label_kind
from oracles.federation import Data, sites_data

RIDGE = RidgeLearner("exact", n_components=20)


@pytest.fixture
def data(rng: np.random.Generator) -> Data:
    return sites_data(rng, "ab", labels=(0.0, 1.0, 2.0))


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ([0, 1], None),
        ([True, False], None),
        (["0.5", "1.5"], None),
        ([-1.0, 2.0, 1e300], None),
        ([], None),
        ([1.0, 2.5, 2.5, -0.5], "y holds 2 different fraction(s), such as 2.5, which are values and no classes"),
        (np.array([0.25], dtype=np.float32), "to regress use RidgeLearner(task='regress')"),
    ],
)
def test_fractions(labels: Any, told: str | None) -> None:
    found = fraction_reason(np.array(labels))
    assert found is None if told is None else told in str(found)


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ([0, 1], "number"),
        ([0.0], "number"),
        (np.array([1], dtype=np.uint8), "number"),
        ([True], "boolean"),
        (["a"], "text"),
        (np.array(["a"], dtype=object), "text"),
    ],
)
def test_kinds(labels: Any, kind: str) -> None:
    assert label_kind(np.array(labels)) == kind


def test_values_are_not_classes(data: Data) -> None:
    values = {name: (X, X[:, 0]) for name, (X, _) in data.items()}
    with Federation.local(values) as federation:
        with pytest.raises(ValueError, match=r"y holds 80 different fraction\(s\), .*RidgeLearner\(task='regress'\)"):
            FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        assert {entry.task for entry in federation.traffic} == {"describe"}
        with pytest.raises(TooFewReplies, match=r"labels with fractions; use task='regress'"):
            RIDGE.fit(federation)
        assert RidgeLearner("exact", n_components=20, task="regress").fit(federation).score(*values["a"]) > 0
        assert len(federation.schema.classes) == 80  # to describe is not to classify


def test_a_site_refuses_them_whatever_it_said_before(data: Data) -> None:
    """Rows that come after the description, and sites that join."""
    with Federation.local(data) as federation:
        model = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        X, y = data["a"]
        for change in (lambda: model.add_rows("a", X[:2], [0.5, 1.0]), lambda: model.add_site("c", (X, y + 0.5))):
            with pytest.raises(TooFewReplies, match=r"'[ac]': y holds \d different fraction"):
                change()
        assert federation.sites == ("a", "b")
        assert model.add_rows("a", X[:2], y[:2]).members_["a"].rows == len(X) + 2  # those refused were not kept


def test_whole_floating_point_labels_are_classes(data: Data) -> None:
    with Federation.local(data) as federation:
        for learner in (FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None), RIDGE):
            assert learner.fit(federation).classes_.tolist() == [0.0, 1.0, 2.0]


def test_whole_values_are_told() -> None:
    """The targets of this data set are whole floating-point numbers, most of which occur once or twice."""
    X, y = load_diabetes(return_X_y=True)
    with Federation.local({"a": (X[::4], y[::4]), "b": (X[1::4], y[1::4])}) as federation:
        for learner in (FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None), RIDGE):
            with pytest.warns(ManyClasses, match=r"\d+ classes in 222 rows, .*RidgeLearner\(task='regress'\)") as told:
                learner.fit(federation)
            assert [warning.filename for warning in told] == [__file__]


@pytest.mark.parametrize(
    ("classes", "rows"),
    [(np.arange(30), 1), (np.arange(30.0), 5), (np.arange(20.0), 1), (list(map(str, range(30))), 1)],
)
def test_many_classes_that_are_none_of_values(classes: Any, rows: int) -> None:
    check_classes(Schema(2, tuple(np.array(classes).tolist()), (rows,) * len(classes)))


@pytest.mark.parametrize("classes", [(), (1,)])
def test_one_class_is_too_few(classes: Any) -> None:
    with pytest.raises(ValueError, match="at least 2 classes together"):
        check_classes(Schema(2, classes, (3,) * len(classes)))


def test_truth_is_not_one(rng: np.random.Generator) -> None:
    data = sites_data(rng, "abc", labels=(0, 1))
    X, y = data["c"]
    truths = {**data, "c": (X, y == 1)}
    for learner in (FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None), RIDGE):
        with Federation.local(truths) as federation, pytest.raises(SchemaMismatch, match="'c' has 'boolean'"):
            learner.fit(federation)
    with Federation.local(data) as federation:
        model = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        with pytest.raises(TooFewReplies, match="labels must be of the site's type int64, got bool"):
            model.add_rows("a", X[:2], [True, False])
        with pytest.raises(SchemaMismatch, match="'d' has 'boolean'"):
            model.add_site("d", (X, y == 1))


def test_truths_alone_are_classes(rng: np.random.Generator) -> None:
    data = sites_data(rng, "ab", labels=(False, True))
    objects = {name: (X, y.astype(object)) for name, (X, y) in data.items()}
    engine = LocalEngine({name: Site(name, X, y) for name, (X, y) in objects.items()})
    for federation in (Federation.local(data), Federation(engine)):
        assert (
            FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None)
            .fit(federation)
            .predict(data["a"][0])
            .dtype
            == bool
        )

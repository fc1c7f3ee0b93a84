"""Names of columns: taken from tables, the same at all sites, and the same when a model is used."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from kernfed.base.checks import check_column_names, check_rows, column_names, name_differences
from kernfed.errors import SchemaMismatch
from kernfed.federation import Federation, FoldingLearner, LocalEngine, Site
from kernfed.federation.personal.learner import PersonalLearner
from kernfed.federation.ridge.learner import RidgeLearner
from oracles.federation import Data, sites_data

NAMES = ["age", "dose", "emb[0]", "emb[1]", "weight"]
LEARNERS: dict[str, Any] = {
    "folding": FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None),
    "machines": FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None),
    "ridge": RidgeLearner("exact", n_components=20),
    "personal": PersonalLearner(task="classify", gains=False),
}
Change = Callable[[pd.DataFrame], Any]
REFUSED: list[tuple[Change, str]] = [
    (lambda t: t[t.columns[::-1]], "has them in another order: column 0 is 'weight' and not 'age'"),
    (lambda t: t.rename(columns={"dose": "Dose"}), "lacks 'dose' and has unknown 'Dose'"),
    (lambda t: t.drop(columns="age"), "X must have the 5 columns .* in this order, and lacks 'age'"),
    (
        lambda t: t.assign(extra=0.0),
        "has unknown 'extra'; choose them by name, as X.list.model.feature_names_in_.. does",
    ),
]


@pytest.fixture
def data(rng: np.random.Generator) -> Data:
    return sites_data(rng, "abc")


@pytest.fixture
def tables(data: Data) -> dict[str, Any]:
    return {name: (pd.DataFrame(X, columns=NAMES), y) for name, (X, y) in data.items()}


class Polars:
    """What a table of polars shows of itself: names as a list."""

    def __init__(self, X: np.ndarray[Any, Any]) -> None:
        self._X = X

    @property
    def columns(self) -> list[str]:
        return NAMES

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return np.array(self._X, dtype=dtype, copy=copy is not False)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (np.eye(2), ()),
        ([[1, 2]], ()),
        (pd.DataFrame(np.eye(3)), ()),  # numbered by pandas, not named
        (pd.DataFrame(np.eye(3))[[2, 1, 0]], ("2", "1", "0")),
        (pd.DataFrame(np.eye(2), columns=["0", "1"]), ("0", "1")),
        (pd.DataFrame({"columns": [1], "column_names": [2]}), ("columns", "column_names")),
        (pd.DataFrame(np.eye(2), columns=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)])), ("('a', 1)", "('b', 2)")),
        (pa.table({"x": [1.0], "y": [2.0]}), ("x", "y")),
        (Polars(np.ones((1, 5))), tuple(NAMES)),
        (pd.Series([1, 2]), ()),
    ],
)
def test_names_of_what_has_some(values: Any, names: tuple[str, ...]) -> None:
    assert column_names(values) == names


@pytest.mark.parametrize(
    ("found", "known", "told"),
    [
        ("ba", "ab", "another order: column 0 is 'b' and not 'a'"),
        ("aab", "abb", "names some columns twice"),
        ("", "ab", "has no names"),
        ("ab", "", "has names"),
        ("x", [f"c{i}" for i in range(9)], "lacks 'c0', 'c1', 'c2', 'c3', 'c4' and 4 more and has unknown 'x'"),
    ],
)
def test_differences_in_words(found: str, known: Any, told: str) -> None:
    assert name_differences(tuple(found), tuple(known)).endswith(told)


def test_what_has_no_names_passes() -> None:
    table = pd.DataFrame(np.eye(2), columns=["a", "b"])
    for values, known in (
        (np.eye(2), ("a", "b")),
        (table, ()),
        (table, ["a", "b"]),
        (pd.DataFrame(np.eye(2)), ("x", "y")),
    ):
        check_column_names(values, known)
        assert check_rows(values, columns=known).shape == (2, 2)


def test_numbered_columns_keep_their_order() -> None:
    table = pd.DataFrame(np.eye(3))
    check_column_names(table, ())
    with pytest.raises(ValueError, match="the 3 columns '0', '1', '2' in this order, and has them in another"):
        check_column_names(table[[2, 1, 0]], ())


@pytest.mark.parametrize("kind", [pd.DataFrame, pa.Table.from_pandas, lambda t: Polars(t.to_numpy())])
def test_tables_give_sites_and_models_their_names(tables: dict[str, Any], data: Data, kind: Any) -> None:
    with Federation.local({name: (kind(X), y) for name, (X, y) in tables.items()}) as federation:
        assert federation.schema.columns == tuple(NAMES)
        model = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
    with Federation.local(data) as plain:
        expected = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(plain)
        assert (model.feature_names_in_, expected.feature_names_in_) == (tuple(NAMES), ())
        assert model.members_ == expected.members_


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (REFUSED[0][0], "'b' has them in another order: column 0 is 'weight' and not 'age'"),
        (REFUSED[1][0], "'b' lacks 'dose' and has unknown 'Dose'"),
        (pd.DataFrame.to_numpy, "'b' has no names"),
    ],
)
@pytest.mark.parametrize("kind", LEARNERS)
def test_sites_whose_columns_differ_are_refused(tables: dict[str, Any], change: Change, told: str, kind: str) -> None:
    X, y = tables["b"]
    with Federation.local({**tables, "b": (change(X), y)}) as federation, pytest.raises(SchemaMismatch) as error:
        LEARNERS[kind].fit(federation)
    assert "columns are ('age', 'dose', 'emb[0]'," in str(error.value)
    assert told in str(error.value)


@pytest.mark.parametrize("kind", LEARNERS)
def test_a_model_refuses_tables_with_other_columns(tables: dict[str, Any], kind: str) -> None:
    X, y = tables["a"]
    with Federation.local(tables) as federation:
        model: Any = LEARNERS[kind].fit(federation)
        used = model.for_site("a") if kind == "personal" else model
        for change, told in REFUSED:
            with pytest.raises(ValueError, match=told):
                used.predict(change(X))
        turned = X[X.columns[::-1]]
        names = ("predict", "predict_proba", "scores", "decision_function", "explain", "scores_by_site")
        usable = [name for name in names if hasattr(used, name) and (name != "explain" or used.can_explain)]
        for use in [getattr(used, name) for name in usable]:
            with pytest.raises(ValueError, match="another order"):
                use(turned)
            use(X), use(X.to_numpy())
        with pytest.raises(ValueError, match="another order"):
            used.score(turned, y)
        assert used.score(X, y) == used.score(X.to_numpy(), y) == (used.predict(X) == y).mean()


def test_a_site_that_joins_a_personal_model_is_checked(tables: dict[str, Any]) -> None:
    with Federation.local(tables) as federation:
        model = LEARNERS["personal"].fit(federation)
    X, y = tables["b"]
    assert isinstance(model.join(X, y).own, float)
    with pytest.raises(ValueError, match="another order"):
        model.join(X[X.columns[::-1]], y)


def test_rows_and_sites_that_come_later(tables: dict[str, Any]) -> None:
    X, y = tables["a"]
    turned = X[X.columns[::-1]]
    with Federation.local(tables) as federation:
        model = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        with pytest.raises(ValueError, match="another order"):
            model.add_rows("a", turned[:2], y[:2])
        with pytest.raises(SchemaMismatch, match="'d' has them in another order"):
            model.add_site("d", (turned, y))
        assert "d" not in federation.sites
        site = federation.engine.site("a")  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match="another order"):
            site.add_rows(turned[:2], y[:2])
        assert site.rows().X.shape == X.shape
        changed = model.add_site("d", (X, y)).add_rows("a", X[:2], y[:2])
        assert changed.members_["a"].rows == len(X) + 2


def test_given_names_are_those_a_table_must_have(tables: dict[str, Any]) -> None:
    X, y = tables["a"]
    assert Site("a", X, y, columns=tuple(NAMES)).schema().columns == tuple(NAMES)
    with pytest.raises(ValueError, match=r"X of site 'a' must have the 5 columns .* another order"):
        Site("a", X, y, columns=tuple(NAMES[::-1]))
    engine = LocalEngine.from_data({"a": (X.to_numpy(), y)}, columns=NAMES)
    with pytest.raises(ValueError, match="lacks 'dose' and has unknown 'Dose'"):
        engine.add_site("b", (X.rename(columns={"dose": "Dose"}), y))

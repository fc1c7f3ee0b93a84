"""What every learner must do, whatever it computes: one class for each says how it is made and how it answers."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid

import kernfed as kf
from kernfed.errors import InputError, MissingSites, TooFewReplies
from kernfed.federation import Fault, Learner, Payload
from oracles.federation import Data, sites_data

Answers = npt.NDArray[Any]


class LearnerContract(ABC):
    """A learner over sites: clonable, fair to the order of sites, patient with missing ones, and able to forget."""

    #: Another value of the first parameter, and a setting that cannot be: (name, value).
    wrong: tuple[str, Any]
    #: A parameter with two values that are both allowed.
    grid: tuple[str, tuple[Any, Any]]
    #: How far answers of two ways to the same model may be apart; 0 asks for the same bits.
    tolerance = 0.0

    @abstractmethod
    def learner(self) -> Any:
        """A learner, of settings that fit in a second."""

    @abstractmethod
    def answers(self, model: Any, X: npt.NDArray[Any]) -> Answers:
        """What the model says to rows X, as numbers."""

    @abstractmethod
    def pooled(self, X: npt.NDArray[Any], y: npt.NDArray[Any], queries: npt.NDArray[Any]) -> Answers:
        """What a model of one table, made without any federation, says to ``queries``."""

    # Data -------------------------------------------------------------------------------------------------------

    @pytest.fixture
    def data(self, rng: np.random.Generator) -> Data:
        return sites_data(rng, "abc", rows=40)

    @pytest.fixture
    def queries(self, rng: np.random.Generator) -> npt.NDArray[Any]:
        return rng.standard_normal((9, 5))

    def same(self, first: Answers, second: Answers) -> None:
        if self.tolerance:
            np.testing.assert_allclose(first, second, rtol=0, atol=self.tolerance)
        else:
            np.testing.assert_array_equal(first, second)

    # Parameters -------------------------------------------------------------------------------------------------

    def test_it_shows_copies_and_changes_its_parameters(self) -> None:
        learner = self.learner()
        assert isinstance(learner, Learner)
        copy = clone(learner)
        assert copy is not learner
        assert repr(copy) == repr(learner)
        parts = [name for name, value in learner.get_params().items() if isinstance(value, Learner)]  # copied, too
        plain = {name: value for name, value in learner.get_params().items() if name not in parts}
        assert {name: value for name, value in copy.get_params().items() if name not in parts} == plain
        name, values = self.grid
        for setting in ParameterGrid({name: values}):
            assert clone(learner).set_params(**setting).get_params()[name] == setting[name]
        with pytest.raises(InputError, match="has no parameter 'nonsense'"):
            learner.set_params(nonsense=1)

    def test_only_the_first_parameter_is_positional(self) -> None:
        with pytest.raises(TypeError, match="positional"):
            type(self.learner())(next(iter(self.learner().get_params().values())), 1)

    def test_a_wrong_setting_is_told_by_fit_before_anything_is_asked(self, data: Data) -> None:
        name, value = self.wrong
        learner = self.learner().set_params(**{name: value})
        with kf.Federation.local(data) as federation:
            with pytest.raises(InputError, match=name):
                learner.fit(federation)
            assert len(federation.traffic) == 0

    # Answers ----------------------------------------------------------------------------------------------------

    def test_one_site_is_pooled(self, data: Data, queries: npt.NDArray[Any]) -> None:
        X, y = data["a"]
        with kf.Federation.local({"a": (X, y)}) as federation:
            model = self.learner().fit(federation)
            np.testing.assert_allclose(self.answers(model, queries), self.pooled(X, y, queries), atol=1e-8)

    def test_the_order_of_sites_changes_nothing(self, data: Data, queries: npt.NDArray[Any]) -> None:
        told = []
        for names in ("abc", "cab"):
            with kf.Federation.local({name: data[name] for name in names}) as federation:
                told.append(self.answers(self.learner().fit(federation), queries))
        np.testing.assert_array_equal(*told)

    def test_saved_is_loaded(self, data: Data, queries: npt.NDArray[Any], tmp_path: Path) -> None:
        with kf.Federation.local(data, store=tmp_path / "stores") as federation:
            model = self.learner().fit(federation)
            model.save(tmp_path / "model.kfd")
            loaded = kf.load(tmp_path / "model.kfd")
            if getattr(loaded, "hold", "machines") == "sites":
                loaded = loaded.connect(federation)
            np.testing.assert_array_equal(self.answers(loaded, queries), self.answers(model, queries))
            assert loaded.privacy == model.privacy

    def test_a_missing_site_is_named_and_the_others_go_on(self, data: Data, queries: npt.NDArray[Any]) -> None:
        with kf.Federation.local(data, faults={"b": Fault("dead")}) as federation:
            with pytest.raises(TooFewReplies, match="'b': site 'b' cannot be reached"):
                self.learner().fit(federation)
            with pytest.warns(MissingSites, match="'b'"):
                model = self.learner().fit(federation, min_replies=2)
            assert list(model.missing_) == ["b"]
            told = self.answers(model, queries)
        with kf.Federation.local({name: data[name] for name in "ac"}) as federation:
            self.same(told, self.answers(self.learner().fit(federation), queries))

    def test_forgetting_is_never_having_seen(self, data: Data, queries: npt.NDArray[Any]) -> None:
        """Rows forgotten at a site that has trained before: what is learned then is what was never learned of them."""
        gone = np.array([0, 3, 17])
        X, y = data["b"]
        ids = np.arange(len(y))
        kept = ~np.isin(ids, gone)
        with kf.Federation.local(data) as federation:
            self.learner().fit(federation)
            federation.ask("forget_rows", Payload({"ids": gone}), sites=["b"])
            told = self.answers(self.learner().fit(federation), queries)
        never = {**data, "b": (X[kept], y[kept], ids[kept])}
        with kf.Federation.local(never) as federation:
            self.forgotten_as_never_seen(told, self.answers(self.learner().fit(federation), queries))

    def forgotten_as_never_seen(self, told: Answers, never: Answers) -> None:
        """Compare; a learner that keeps its division into batches overrides it."""
        self.same(told, never)

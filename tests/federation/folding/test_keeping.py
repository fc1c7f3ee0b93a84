"""Models that are saved, pickled and shown: what is kept of their sites, and what the user is told of the rest."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernfed as kf
from kernfed.errors import NotConnected, StaleModel, TemporaryStores
from kernfed.federation import Federation, FoldingLearner, LocalEngine, Site, SiteStore
from oracles.federation import Data, sites_data

ADVICE = r"train with Federation.local\(..., store=DIR\) and name the same folder later, or with hold='machines'"


@pytest.fixture
def data(rng: np.random.Generator) -> Data:
    return sites_data(rng, "abc")


def test_saving_says_that_nobody_will_remember(data: Data, tmp_path: Path) -> None:
    place = tmp_path / "model.kfd"
    with Federation.local(data) as federation:
        model = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        with pytest.warns(TemporaryStores, match=f"3 site.*such as 'a', .*: {ADVICE}") as told:
            model.save(place)
        assert [warning.filename for warning in told] == [__file__]
        assert kf.load(place).members_ == model.members_  # it was written all the same
        kf.load(place).save(place)  # not connected: nothing is known of the sites
    with pytest.warns(TemporaryStores):  # also when the stores have gone
        model.save(place)
    with Federation.local(data) as federation:
        FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None).fit(
            federation
        ).save(place)
    with Federation.local(data, store=tmp_path / "stores") as federation:
        FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation).save(place)


def test_only_the_forgetful_members_count(data: Data, tmp_path: Path) -> None:
    kept = {name: Site(name, *data[name], store=SiteStore(tmp_path / name)) for name in "ab"}
    engine = LocalEngine(kept)
    engine.add_site("c", Site("c", *data["c"]))
    assert engine.temporary_sites == ("c",)
    model = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(Federation(engine))
    model.local("a").save(tmp_path / "model.kfd")
    with pytest.warns(TemporaryStores, match="of 1 site.*such as 'c'"):
        model.save(tmp_path / "model.kfd")
    engine.remove_site("c")
    engine.add_site("c", data["c"], store=tmp_path)
    assert engine.temporary_sites == ()


LATER = """
import sys
import numpy as np
import kernfed as kf
content = np.load(sys.argv[1] + "/data.npz")
data = {name: (content["X" + name], content["y" + name]) for name in "abc"}
model = kf.load(sys.argv[1] + "/model.kfd").connect(kf.Federation.local(data))
try:
    model.predict(content["Xa"])
except RuntimeError as error:
    print(type(error).__name__, error)
"""


def test_a_later_process_is_told_what_is_missing(data: Data, tmp_path: Path) -> None:
    with Federation.local(data) as federation, pytest.warns(TemporaryStores):
        FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation).save(
            tmp_path / "model.kfd"
        )
    arrays: Any = {f"X{name}": X for name, (X, _) in data.items()} | {f"y{name}": y for name, (_, y) in data.items()}
    np.savez(tmp_path / "data.npz", **arrays)
    done = subprocess.run([sys.executable, "-c", LATER, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.startswith(
        "StaleModel the store of site 'a' holds no machines of this model, which was made with another store; train "
        "with Federation.local(..., store=DIR)"
    ), done.stderr


def test_another_store_and_another_state_are_told_apart(data: Data, tmp_path: Path) -> None:
    with Federation.local(data, store=tmp_path / "one") as federation:
        model = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        with Federation.local(data) as elsewhere, pytest.raises(StaleModel, match=f"site 'a' holds no .*; {ADVICE}"):
            model.connect(elsewhere).predict(data["a"][0])
        with Federation.local({**data, "d": data["a"]}, store=tmp_path / "one") as more:
            joined = model.connect(more).add_site("d")
            assert joined.score(*data["a"]) == model.score(*data["a"])
        model.forget("b", rows=[0])
        with pytest.raises(StaleModel, match="site 'b' has changed since this model was made; use the newer model"):
            model.predict(data["a"][0])


@pytest.mark.parametrize("hold", ["sites", "machines"])
def test_a_pickled_model_is_what_its_file_is(data: Data, hold: str) -> None:
    with Federation.local(data) as federation:
        model = FoldingLearner(hold=hold, measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        again = pickle.loads(pickle.dumps(model))
        assert model.connection is None if hold == "machines" else model.connection is not None  # it keeps its own
        assert again.connection is None
        X, y = data["a"]
        if hold == "sites":
            with pytest.raises(NotConnected, match=r"use model\.connect\(federation\) first"):
                again.predict(X)
            again = again.connect(federation)
        np.testing.assert_array_equal(again.scores(X), model.scores(X))
        assert again.score(X, y) == model.score(X, y) == (model.predict(X) == y).mean()


@pytest.mark.parametrize(
    ("learner", "shown"),
    [
        (
            FoldingLearner("distance", k=3, batch_size=100, partition="order", scale=None),
            "FoldingLearner(measure='distance', batch_size=100, partition='order', ",
        ),
        (kf.RidgeLearner(regularization=(0.1, 1.0)), "regularization=(0.1, 1.0), task='classify', class_weight=None"),
        (kf.PersonalLearner(model=(8, 4)), "PersonalLearner(weights='auto', kernel='fourier', task='infer', model=(8,"),
        (kf.PersonalLearner(np.eye(40)), "PersonalLearner(weights=array([[1., 0., 0., ..., 0., 0., 0.], [0., 1., "),
        (
            FoldingLearner(
                privacy=kf.privacy.RecordGaussian(1.0, 1e-5, 1.0),
                measure="rms",
                batch_size=100,
                partition="order",
                scale=None,
            ),
            "privacy=RecordGaussian(epsilon=1.0",
        ),
    ],
)
def test_learners_show_what_they_were_made_with(learner: Any, shown: str) -> None:
    assert shown in repr(learner)
    assert len(repr(learner).splitlines()) == 1
    assert repr(pickle.loads(pickle.dumps(learner))) == repr(learner)


def test_wrong_arguments_are_refused_as_before() -> None:
    with pytest.raises(TypeError, match="surprise"):
        FoldingLearner(surprise=1, measure="rms", batch_size=100, partition="order", scale=None)  # type: ignore[call-arg]

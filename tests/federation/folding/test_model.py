"""The folding model and its file: with the sites' machines, or with a handle on them and no rows."""

import json
import subprocess
import sys
import textwrap
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import kernfed as kf
from kernfed.errors import FileFormatError, NotConnected
from kernfed.federation import Federation, FoldingLearner
from kernfed.files import content_digest
from kernfed.kahm.model import FoldingModel, FoldingParameters
from oracles.federation import SFM, Data, files_with_row, sites_data


@pytest.fixture
def data(rng: np.random.Generator) -> Data:
    return sites_data(rng, "abc", labels=("x", "y", "zz"))


@pytest.fixture
def queries(rng: np.random.Generator) -> Any:
    return rng.standard_normal((9, 5))


@pytest.fixture
def connected(data: Data, tmp_path_factory: pytest.TempPathFactory) -> FoldingModel:
    return FoldingLearner(batch_size=6, aggregate="kth", measure="rms", partition="order", scale=None).fit(
        Federation.local(data, store=tmp_path_factory.mktemp("s"))
    )


@pytest.fixture
def whole(data: Data) -> FoldingModel:
    return FoldingLearner(
        batch_size=6, aggregate="kth", hold="machines", measure="rms", partition="order", scale=None
    ).fit(Federation.local(data))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("layers", [1, 3])
def test_a_file_with_machines_is_whole(data: Data, queries: Any, tmp_path: Path, dtype: str, layers: int) -> None:
    """Equal to the bit to the model whose machines are at the sites, without any federation."""
    X, y = data["b"]
    data["b"] = (X[y != "x"], y[y != "x"])
    options: Any = {**SFM, "batch_size": 6, "dtype": dtype, "layers": layers}
    with Federation.local(data) as federation:
        at_sites = FoldingLearner(**options).fit(federation)
        whole = FoldingLearner(**options, hold="machines").fit(federation)
        assert (at_sites.hold, whole.hold, whole.connection) == ("sites", "machines", None)
        whole.save(tmp_path / "model.kfd")
        scores, told = at_sites.scores_by_site(queries), at_sites.explain(queries)
        sure = at_sites.predict_proba(queries)
    found = kf.load(tmp_path / "model.kfd")
    for model in (whole, found):
        np.testing.assert_array_equal(model.scores_by_site(queries), scores)
        np.testing.assert_array_equal(model.explain(queries).batch, told.batch)
        np.testing.assert_array_equal(model.explain(queries).site, told.site)
        np.testing.assert_array_equal(model.predict_proba(queries), sure)
        assert model.local("b").predict(queries).tolist() == at_sites_local(scores[1], at_sites.classes_)
    found.forget("b").save(tmp_path / "less.kfd")
    less = kf.load(tmp_path / "less.kfd")
    np.testing.assert_array_equal(less.scores_by_site(queries), scores[[0, 2]])


def at_sites_local(scores: Any, classes: Any) -> list[Any]:
    return [classes[row.argmin()] for row in scores]


def test_a_file_with_machines_needs_sites_only_to_change(whole: FoldingModel, data: Data) -> None:
    for change in (
        lambda: whole.forget("a", rows=[1]),
        lambda: whole.add_site("d", data["a"]),
        lambda: whole.add_rows("a", np.ones((1, 5)), ["x"]),
    ):
        with pytest.raises(NotConnected, match=r"only its sites can do this: use model\.connect\(federation\) first"):
            change()


def test_a_file_without_machines_has_no_rows(connected: FoldingModel, data: Data, tmp_path: Path) -> None:
    place = tmp_path / "model.kfd"
    connected.save(place)
    for X, _ in data.values():
        assert not any(files_with_row(place, row) for row in X)
    with safe_open(place, framework="numpy") as content:
        assert list(content.keys()) == []
    found = kf.load(place)
    assert found.hold == "sites"
    assert (found.handle, found.n_features_in_, found.sites) == (connected.handle, 5, ("a", "b", "c"))
    assert found.members_ == connected.members_
    assert found.temperature_ == connected.temperature_
    assert found.classes_.tolist() == ["x", "y", "zz"]


def test_used_without_a_federation_it_says_so(connected: FoldingModel, queries: Any, tmp_path: Path) -> None:
    connected.save(tmp_path / "model.kfd")
    found = kf.load(tmp_path / "model.kfd")
    for use in (
        found.predict,
        found.scores,
        found.explain,
        found.predict_proba,
        found.scores_by_site,
        lambda _: found.forget("a"),
        lambda _: found.add_site("d"),
        found.local("a").predict,
    ):
        with pytest.raises(NotConnected, match=r"are at its sites: use model\.connect\(federation\) first"):
            use(queries)


def test_connecting_needs_all_sites(connected: FoldingModel, data: Data) -> None:
    data.pop("b")
    with pytest.raises(ValueError, match="the model needs site 'b', the federation has a, c"):
        connected.connect(Federation.local(data))


LATER = textwrap.dedent(
    """
    import sys
    import numpy as np
    import kernfed as kf
    from kernfed.federation.folding import machines as folding_tasks

    def refuse(*args, **options):
        raise AssertionError("fitted again")

    folding_tasks.fit_machines = refuse
    content = np.load(sys.argv[1] + "/data.npz")
    data = {name: (content["X" + name], content["y" + name]) for name in "abc"}
    federation = kf.Federation.local(data, store=sys.argv[1] + "/store")
    model = kf.load(sys.argv[1] + "/model.kfd").connect(federation)
    assert model.scores(content["queries"]).tobytes() == content["scores"].tobytes()
    learner = kf.FoldingLearner("rms", batch_size=6, partition="order", scale=None)
    assert learner.fit(federation).members_ == model.members_
    """
)


def test_another_process_connects_and_fits_nothing(data: Data, queries: Any, tmp_path: Path) -> None:
    with Federation.local(data, store=tmp_path / "store") as federation:
        model = FoldingLearner(batch_size=6, measure="rms", partition="order", scale=None).fit(federation)
        model.save(tmp_path / "model.kfd")
        scores = model.scores(queries)
    content = {f"X{name}": X for name, (X, _) in data.items()} | {f"y{name}": y for name, (_, y) in data.items()}
    np.savez(tmp_path / "data.npz", queries=queries, scores=scores, **content)
    done = subprocess.run([sys.executable, "-c", LATER, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_same_federation_makes_the_same_file(data: Data, tmp_path: Path) -> None:
    for hold in ("sites", "machines"):
        for name in ("one", "two"):
            federation = Federation.local(data, store=tmp_path / f"{hold}-{name}")
            FoldingLearner(hold=hold, measure="rms", batch_size=100, partition="order", scale=None).fit(
                federation
            ).save(tmp_path / name)
        assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


# Damaged and hostile files -----------------------------------------------------------------------------------------


def rewritten(place: Path, others: dict[str, Any] | None = None, **changes: Any) -> None:
    """The file with other values in its header and ``others`` among its arrays, under the digest that it then has."""
    arrays = {**load_file(place), **(others or {})}
    with safe_open(place, framework="numpy") as content:
        header = json.loads(content.metadata()["kernfed"])
    header["values"] = {**header["values"], **changes}
    with suppress(ValueError):  # a value that JSON does not have: no digest fits
        header["digest"] = content_digest(header, arrays)
    save_file(arrays, place, metadata={"kernfed": json.dumps(header)})


def member(**changes: Any) -> dict[str, Any]:
    return {"a": {"classes": [0], "generation": 1, "machines": 1, "rows": 3, "temperature": None, **changes}}


@pytest.mark.parametrize(
    "changes",
    [
        {"members": {}},
        {"members": member(classes=[3])},
        {"members": member(classes=[-1])},
        {"members": member(classes=[0, 0])},
        {"members": member(classes=[])},
        {"members": member(classes=[True])},
        {"members": member(machines=0)},
        {"members": member(machines="1")},
        {"members": member(rows=-3)},
        {"members": member(generation=None)},
        {"members": member(temperature=0)},
        {"members": member(temperature="hot")},
        {"members": member(more=1)},
        {"members": [1]},
        {"width": 0},
        {"width": "5"},
        {"width": float("inf")},
        {"classes": None},
        {"parameters": {}, "handle": 5, "columns": 3},
        {"parameters": {"measure": "volume"}},
        {"parameters": {"batch_size": -1}},
        {"parameters": {"dtype": "object"}},
        {"parameters": {"surprise": 1}},
    ],
)
def test_files_of_senseless_values(connected: FoldingModel, whole: FoldingModel, tmp_path: Path, changes: Any) -> None:
    for model in (connected, whole):
        model.save(tmp_path / "model.kfd")
        rewritten(tmp_path / "model.kfd", **changes)
        with pytest.raises(FileFormatError, match="damaged"):
            kf.load(tmp_path / "model.kfd")


def test_files_whose_machines_are_not_their_members(whole: FoldingModel, tmp_path: Path) -> None:
    place = tmp_path / "model.kfd"
    whole.save(place)
    groups = load_file(place)["groups"]
    for wrong in (groups * 0, groups + 1, groups[:-1]):
        rewritten(place, {"groups": wrong})
        with pytest.raises(FileFormatError, match=r"do not cover its classes|do not belong to the members"):
            kf.load(place)
    whole.save(place)
    rewritten(place, members={**json.loads(json.dumps(kept(whole))), "a": {**kept(whole)["a"], "machines": 1}})
    with pytest.raises(FileFormatError, match="do not belong to the members"):
        kf.load(place)


def kept(model: FoldingModel) -> dict[str, Any]:
    return {name: {**vars(found), "classes": list(found.classes)} for name, found in model.members_.items()}


@pytest.mark.parametrize(
    "settings", [{"k": 0}, {"seed": -1}, {"subspace_dim": 0}, {"aggregate": "sum"}, {"layers": 1.5}]
)
def test_parameters_are_checked_wherever_they_come_from(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(settings))} must be"):
        FoldingParameters(**settings)
    with pytest.raises(ValueError, match=f"{next(iter(settings))} must be"):
        replace(FoldingParameters(measure="rms", batch_size=100, partition="order"), **settings)

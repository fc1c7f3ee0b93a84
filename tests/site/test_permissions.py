"""Files and folders of a store, and model files, are their owner's alone, whatever the umask."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import kernfed as kf
from kernfed.federation import Federation, FoldingLearner, Payload, Policy, RidgeLearner, SiteStore
from kernfed.files import atomic_path
from kernfed.privacy import RecordMoments
from kernfed.secure import Committee
from kernfed.site.protocol.traffic import Traffic
from oracles.federation import Data, sites_data


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct, autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def data(rng: np.random.Generator) -> Data:
    return sites_data(rng, "abcd")


def mode(place: Path) -> int:
    return stat.S_IMODE(place.stat().st_mode)


def too_open(folder: Path) -> dict[str, str]:
    """Permissions of a folder and all below it that are not those of its owner alone."""
    found = {str(place): mode(place) for place in (folder, *folder.rglob("*"))}
    return {name: oct(own) for name, own in found.items() if own != (0o700 if Path(name).is_dir() else 0o600)}


def test_everything_in_a_store(data: Data, tmp_path: Path) -> None:
    """After fits, answers, a release, rows forgotten and added, masked sums, and a question that waits."""
    rules = Policy(("*",), queries_per_day=10**6, approve=("test_model:outcomes",))
    mechanism = RecordMoments(20.0, 1e-5, 5, radius=8.0)
    with Federation.local(
        data, store=tmp_path / "deep" / "stores", holdout=0.2, policies=dict.fromkeys(data, rules)
    ) as federation:
        learner = FoldingLearner("distance", batch_size=10, scale=None)
        model = learner.fit(federation)
        model.predict(data["a"][0][:3])
        model.forget("a", rows=[3]).add_rows("b", np.zeros((2, 5)), [0, 1], [70, 71])
        FoldingLearner("distance", privacy=mechanism, batch_size=10, rows_per_class=10, scale=None).fit(federation)
        RidgeLearner("exact", n_components=10, sum=Committee(corrupt=True)).fit(federation)
        federation.ask("test_model", Payload(values={"statistics": {"outcomes": {}}}), min_replies=0)
    assert too_open(tmp_path / "deep") == {}
    names = {place.name for place in (tmp_path / "deep").rglob("*")}
    assert {"state.json", "lock", "head", "rows.safetensors", "ledger.jsonl", "secret.key", "approvals.json"} <= names
    assert {"sum.key", "sum-keys", "sum-sent", "sum-answers", "receipts", "queries", "releases", "journal"} <= names


def test_a_store_of_an_earlier_version_is_tightened_when_it_is_opened(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("of somebody")
    outside.chmod(0o644)
    folder = tmp_path / "store"
    (folder / "folding").mkdir(parents=True)
    (folder / "folding" / "it.safetensors").write_bytes(b"rows")
    (folder / "link").symlink_to(outside)
    for place, shown in ((folder, 0o755), (folder / "folding", 0o775), (folder / "folding" / "it.safetensors", 0o644)):
        place.chmod(shown)
    SiteStore(folder)
    assert mode(outside) == 0o644
    (folder / "link").unlink()
    assert too_open(folder) == {}


@pytest.mark.parametrize("hold", ["machines", "sites"])
def test_a_model_file(data: Data, tmp_path: Path, hold: str) -> None:
    place = tmp_path / "model.kfd"
    place.touch()
    place.chmod(0o666)
    with Federation.local(data, store=tmp_path) as federation:
        FoldingLearner("distance", batch_size=10, hold=hold, scale=None).fit(federation).save(place)
    assert mode(place) == 0o600
    kf.load(place)


def test_reports_and_tables_are_as_the_umask_says(tmp_path: Path, umask: int) -> None:
    Traffic().save(tmp_path / "traffic.json")
    with atomic_path(tmp_path / "page.html") as temporary:
        temporary.write_text("page")
    assert [mode(tmp_path / name) for name in ("traffic.json", "page.html")] == [0o666 & ~umask] * 2

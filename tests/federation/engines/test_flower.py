"""The Flower engine in one process: the contract of all engines, and what is its own."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernfed
from contracts.engines import EngineContract, read_message
from kernfed.errors import StaleModel, TooFewReplies
from kernfed.federation import Engine, Fault, Federation, FoldingLearner, Payload, Policy, Site, evaluate
from kernfed.site.protocol.task import methods
from oracles.federation import Data, sites_data

pytest.importorskip("flwr", reason="needs the extra flower: pip install -e '.[flower]' in a clone of kernfed")

from federation.flower_grid import InProcessGrid, client_app, node_configs, over_files
from kernfed.federation.engines.flower import FlowerEngine
from kernfed.federation.engines.flower_site import site_from_config
from kernfed.jobs.run import job_settings, serve


def over_sites(sites: Mapping[str, Site], **options: Any) -> InProcessGrid:
    """Grid whose ClientApp answers for sites that are here."""
    configs = {number: {"site": name} for number, name in enumerate(sites, start=11)}
    return InProcessGrid(client_app(lambda context: sites[context.node_config["site"]]), configs, **options)


class TestFlower(EngineContract):
    late, patience = 1.0, 0.4

    def engine(
        self, data: Data, *, faults: Mapping[str, Fault] | None = None, policies: Mapping[str, Policy] | None = None
    ) -> Engine:
        sites = {
            name: Site(name, X, y, policy=(policies or {}).get(name, Policy.open())) for name, (X, y) in data.items()
        }
        grid = over_sites(sites)
        numbers = {config["site"]: node for node, config in grid.configs.items()}
        grid.names = {node: site for site, node in numbers.items()}
        engine = FlowerEngine(grid, wait=5.0)
        grid.faults = {numbers[site]: fault for site, fault in (faults or {}).items()}
        return engine


@pytest.fixture
def data(rng: np.random.Generator) -> Data:
    return sites_data(rng, ["a", "b", "c"])


@pytest.mark.parametrize("hold", ["sites", "machines"])
def test_models_are_those_of_the_local_engine_to_the_bit(data: Data, tmp_path: Path, hold: str) -> None:
    queries = np.concatenate([X[:4] for X, _ in data.values()])
    learner = FoldingLearner(batch_size=7, partition="random", hold=hold, measure="rms", scale=None)
    found = {}
    names = [f"X[{i}]" for i in range(queries.shape[1])]
    grid = over_files(data, tmp_path, holdout=0.3, seed=5)
    for kind, federation in (
        ("local", Federation.local(data, seed=5, store=tmp_path / "stores", holdout=0.3, columns=names)),
        ("flower", Federation.flower(grid, seed=5)),
    ):
        with federation:
            model = learner.fit(federation)
            model.save(tmp_path / kind)
            tested = evaluate(model, federation)
            fewer = model.forget("b") if hold == "machines" else model.forget("b", rows=[0, 3])
            found[kind] = (
                model.scores(queries) if hold == "machines" else fewer.scores(queries),
                tested.pooled.confusion,
                fewer.scores(queries),
            )
    for one, other in zip(found["local"], found["flower"], strict=True):
        np.testing.assert_array_equal(one, other)
    assert (tmp_path / "local").read_bytes() == (tmp_path / "flower").read_bytes()


@pytest.mark.parametrize("task", ["classify", "regress"])
@pytest.mark.parametrize("settings", [{"weights": "auto"}, {"weights": (0.2, 0.1), "features": "fourier"}])
def test_personal_models_are_those_of_the_local_engine_to_the_bit(
    data: Data, tmp_path: Path, settings: dict[str, Any], task: str
) -> None:
    """By statistics alone, and by kernel mean embeddings with their forms and random features."""
    if task == "regress":
        data = {name: (X, np.sin(X[:, 0]) - X[:, 1] * (name == "b")) for name, (X, _) in data.items()}
    learner = kernfed.PersonalLearner(kernel_components=30, n_components=20, **settings)
    grid = over_files(data, tmp_path, holdout=0.3, seed=5)
    names = [f"X[{i}]" for i in range(data["a"][0].shape[1])]
    tested, asked = {}, {}
    for kind, federation in (
        (
            "local",
            Federation.local(data, seed=5, holdout=0.3, columns=names),
        ),
        ("flower", Federation.flower(grid, seed=5)),
    ):
        with federation:
            model = learner.fit(federation)
            model.save(tmp_path / kind)
            tested[kind] = evaluate(model, federation).to_json()
            asked[kind] = {(entry.site, entry.task): entry.messages for entry in federation.traffic}
    assert model.problem.task == task
    assert (tmp_path / "local").read_bytes() == (tmp_path / "flower").read_bytes()
    assert tested["local"] == tested["flower"]
    assert asked["local"] == asked["flower"]
    exchanges = {name for _, name in asked["flower"]} - {"test_model", "personal_gain"}
    forms = {"personal_forms"} if "features" in settings else set()
    assert exchanges == {"personal_survey", "personal_statistics"} | forms
    assert set(asked["flower"].values()) == {1}


def test_a_second_run_finds_the_stores_of_the_first(data: Data, tmp_path: Path) -> None:
    with Federation.flower(over_files(data, tmp_path)) as federation:
        model = FoldingLearner(batch_size=7, measure="rms", partition="order", scale=None).fit(federation)
    queries = data["a"][0]
    expected = model.scores(queries)
    with Federation.flower(over_files(data, tmp_path)) as later:
        np.testing.assert_array_equal(model.connect(later).scores(queries), expected)
    (tmp_path / "moved").mkdir()
    with Federation.flower(over_files(data, tmp_path / "moved")) as elsewhere, pytest.raises(StaleModel):
        model.connect(elsewhere).scores(queries)


def test_expected_sites_that_do_not_come_are_listed_and_unreachable(data: Data, tmp_path: Path) -> None:
    grid = over_files(data, tmp_path)
    engine = FlowerEngine(grid, expect=["a", "b", "c", "zulu"], wait=0.2)
    assert engine.sites == ("a", "b", "c", "zulu")
    with Federation(engine) as federation:
        replies = federation.ask("describe", Payload(), min_replies=3)
        assert replies.missing["zulu"].code == "unreachable"
        grid.configs[99] = {**grid.configs[11], "site": "zulu"}  # it comes late
        assert not federation.ask("describe", Payload()).missing


@pytest.mark.parametrize("named", [True, False], ids=["registered", "nameless"])
def test_only_the_sites_that_are_named_are_asked(data: Data, tmp_path: Path, named: bool) -> None:
    """Others are connected and no sites of the run: before, their rows were fetched with those of the named one."""
    grid, told = over_files(data, tmp_path), list[str]()
    if named:
        grid.names = {node: config["site"] for node, config in grid.configs.items()}
    with Federation.flower(grid, expect=["b"], report=told.append) as federation:
        assert federation.sites == ("b",)
        model = FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None).fit(
            federation
        )
        assert model.sites == ("b",)
        with pytest.raises(ValueError, match="no site 'a'; there are 'b'"):
            federation.ask("describe", Payload(), sites=["a"])
    assert "1 site(s) connected: b; not asked: a, c" in told
    asked = {message.metadata.dst_node_id for message in grid.pushed if message.content.array_records}
    assert asked == {node for node, config in grid.configs.items() if config["site"] == "b"}


def test_a_job_asks_only_the_sites_that_it_names(data: Data, tmp_path: Path) -> None:
    from flwr.app import Context, RecordDict

    grid = over_files(data, tmp_path)
    config = {**job_settings(), "results": str(tmp_path / "results"), "sites": "b,c", "hold": "machines"}
    serve(grid, Context(5, 1, {}, RecordDict(), config))
    result = json.loads((tmp_path / "results" / "5" / "result.json").read_text())
    assert result["sites"] == result["members"] == ["b", "c"]
    traffic = (tmp_path / "results" / "5" / "traffic.json").read_text()
    assert '"a"' not in traffic


def test_waiting_for_nodes_ends(data: Data, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected 4 site\(s\) within 0.1 s, 3 connected"):
        FlowerEngine(over_files(data, tmp_path), min_sites=4, wait=0.1)


def test_two_nodes_with_one_name_are_refused(data: Data, tmp_path: Path) -> None:
    configs = node_configs(data, tmp_path)
    configs[12]["site"] = "a"
    with pytest.raises(ValueError, match=r"two nodes \(11 and 12\) say they are site 'a'"):
        FlowerEngine(InProcessGrid(client_app(), configs))


def test_a_node_under_another_name_than_registered_is_refused(data: Data, tmp_path: Path) -> None:
    names = {11: "a", 12: "b", 13: "d"}
    grid = InProcessGrid(client_app(), node_configs(data, tmp_path), names=names)
    with Federation.flower(grid) as federation:
        replies = federation.ask("describe", Payload(), min_replies=2)
        assert "site must be 'd', got 'c'" in replies.missing["d"].reason


def test_what_a_client_app_raises_is_in_the_log_of_its_node_and_nowhere_else(
    data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []

    def broken(context: Any) -> Site:
        if context.node_config["site"] == "b":
            raise ZeroDivisionError("no such denominator")
        return site_from_config(context)

    grid = InProcessGrid(client_app(broken), node_configs(data, tmp_path))
    with Federation.flower(grid, report=told.append) as federation:
        replies = federation.ask("describe", Payload(), min_replies=2)
        assert replies.missing["b"].reason == "site 'b' cannot be set up; the log of its node says why"
        logged = capsys.readouterr().err
        assert "ZeroDivisionError: no such denominator" in logged
        assert f'File "{__file__}", line ' in logged
        assert any("site b is missing" in text for text in told)


def test_what_a_task_raises_reaches_the_operator_and_nothing_of_others(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from flwr.app import Context, RecordDict

    from kernfed.site.site import Site as AnySite

    def broken(site: Any) -> Any:
        if site.name == "b":
            raise ZeroDivisionError("no such denominator")
        return whole(site)

    whole = AnySite.schema
    monkeypatch.setattr(AnySite, "schema", broken)
    config = {**job_settings(), "results": str(tmp_path / "results"), "sites": "a,b,c"}
    with pytest.raises(TooFewReplies, match="'b': ZeroDivisionError: no such denominator"):
        serve(over_files(data, tmp_path), Context(5, 1, {}, RecordDict(), config))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("kernfed: ")]
    assert any("site b is missing (error)" in line for line in lines)
    assert not any(place in "".join(lines) for place in (str(__file__), str(tmp_path / "a.npz"), "raise Zero"))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"data": "/none.npz"}, "none.npz: there is no such file"),
        ({"data": "relative.npz"}, "data in the node's configuration must be an absolute path, got 'relative.npz'"),
        ({"label": "z"}, "'z'"),
        ({"label": 5}, "label in the node's configuration must be text, got 5"),
        ({"store": ""}, "store in the node's configuration must be text, got ''"),
        ({"policy": "/none.toml"}, "no policy file at /none.toml"),
        ({"holdout": 2.0}, "holdout in the node's configuration must be < 1, got 2.0"),
        ({"colour": "red"}, "unknown setting 'colour' in the node's configuration"),
    ],
)
def test_wrong_node_configurations_are_told_where_they_are(
    data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], told: str
) -> None:
    configs = node_configs(data, tmp_path)
    configs[12] |= changes
    with Federation.flower(InProcessGrid(client_app(), configs)) as federation:
        replies = federation.ask("describe", Payload(), min_replies=2)
        assert told in replies.missing["b"].reason + capsys.readouterr().err
        assert not any(place in replies.missing["b"].reason for place in ("/none", "relative.npz", str(tmp_path)))


def test_without_a_policy_only_schema_and_scores_leave(data: Data, tmp_path: Path) -> None:
    configs = node_configs(data, tmp_path)
    for config in configs.values():
        del config["policy"]
    with Federation.flower(InProcessGrid(client_app(), configs)) as federation:
        assert FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation).sites == (
            "a",
            "b",
            "c",
        )
        with pytest.raises(TooFewReplies, match="allows describe, folding_choose, folding_fit, scores, not 'machines'"):
            FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None).fit(
                federation
            )


def test_node_without_a_name(data: Data, tmp_path: Path) -> None:
    configs, told = node_configs(data, tmp_path), list[str]()
    del configs[13]["site"]
    with Federation.flower(InProcessGrid(client_app(), configs), report=told.append) as federation:
        assert federation.sites == ("a", "b")
    assert any("node 13 does not say which site it is" in text and "must name its site" in text for text in told)


#: What only some sites need, and only for some questions; each takes longer to import than a small question to answer.
HEAVY = (
    "sklearn",
    "pandas",
    "pyarrow",
    "matplotlib",
    "torch",
    "joblib",
    "scipy.linalg",
    "scipy.special",
    "scipy.optimize",
    "scipy.stats",
    "dp_accounting",
)

ANSWERS = """
import json, sys
from flwr.app import Context, RecordDict
from kernfed.federation.engines.flower_site import site_from_config
from kernfed.site.protocol.message import _unpack
node, *questions = [bytes.fromhex(word) for word in sys.stdin.read().split()]
for question in questions:
    reply = site_from_config(Context(1, 1, json.loads(node), RecordDict(), {})).answer(question)
    assert "refusal" not in _unpack(reply)[0], _unpack(reply)[0]["refusal"]
print([name for name in sys.argv[1].split(",") if name in sys.modules])
"""


def test_answering_imports_only_what_is_needed(data: Data, tmp_path: Path) -> None:
    """A ClientApp is a new process for every question, so a site pays for what it imports each time."""
    asked: dict[str, bytes] = {}

    class Recording(FlowerEngine):
        def carry(self, data: Any, sites: Any, timeout: float) -> Any:
            asked[read_message(data)[0]["task"]] = data
            return super().carry(data, sites, timeout)

    grid = over_files(data, tmp_path)
    with Federation(Recording(grid)) as federation:
        FoldingLearner(batch_size=7, measure="rms", partition="order", scale=None).fit(federation).predict(data["a"][0])
    assert set(asked) == {"describe", "folding_fit", "scores"}
    for name in ("numpy array", "parquet table"):
        config = grid.configs[11]
        if name == "parquet table":
            columns = {f"X[{i}]": column for i, column in enumerate(data["a"][0].T)}
            kernfed.data.write_table(tmp_path / "a.parquet", {**columns, "y": data["a"][1]})
            config = {**config, "data": str(tmp_path / "a.parquet")}
        words = [json.dumps(config).encode(), asked["describe"], asked["scores"]]  # to train may import what it needs
        done = subprocess.run(
            [sys.executable, "-c", ANSWERS, ",".join(HEAVY)],
            capture_output=True,
            text=True,
            check=False,
            input=" ".join(word.hex() for word in words),
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == str(["pyarrow"] if name == "parquet table" else [])


def test_rows_are_forgotten_by_learners_that_the_process_has_not_met() -> None:
    code = (
        "import sys\nfrom kernfed.site.protocol.task import forgetters\n"
        "assert 'kernfed.federation.ridge.tasks' not in sys.modules\n"
        "print(sorted({function.__module__ for function in forgetters()}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = sorted(
        f"kernfed.{name}" for name in ("federation.personal.tasks", "federation.ridge.tasks", "site.release.kept")
    )
    assert done.stdout.strip() == str(expected)


def test_every_task_is_found_by_a_process_that_has_met_no_learner() -> None:
    """A new process imports the module that a method names for a task, and no other method."""
    code = (
        "import sys\nfrom kernfed.site.protocol.task import find_task, methods\nimport json\n"
        "names = [name for method in methods() for names in method.tasks.values() for name in names]\n"
        "print(json.dumps({name: find_task(name).run.__module__ for name in names}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    homes = {name: module for method in methods() for module, names in method.tasks.items() for name in names}
    assert {"scores", "ridge_start", "personal_survey", "test_model", "forget_rows"} <= set(homes)
    assert json.loads(done.stdout) == homes


def test_scores_of_a_model_that_exists_do_not_read_the_rows(data: Data, tmp_path: Path) -> None:
    grid = over_files(data, tmp_path)
    with Federation.flower(grid) as federation:
        model = FoldingLearner(batch_size=7, measure="rms", partition="order", scale=None).fit(federation)
        expected = model.scores(data["a"][0])
        for name in data:
            (tmp_path / f"{name}.npz").unlink()
        np.testing.assert_array_equal(model.scores(data["a"][0]), expected)
        with pytest.raises(TooFewReplies, match="there is no such file"):
            federation.schemas()


def test_the_public_name(data: Data, tmp_path: Path) -> None:
    told: list[str] = []
    with kernfed.Federation.flower(over_files(data, tmp_path), seed=3, expect=["a"], report=told.append) as federation:
        assert federation.seed == 3
        assert federation.sites == ("a",)
        assert isinstance(federation.engine, FlowerEngine)
    assert told


def test_virtual_nodes_take_their_settings_from_a_folder(data: Data, tmp_path: Path) -> None:
    folder = tmp_path / "nodes"
    folder.mkdir()
    for config in node_configs(data, tmp_path).values():
        text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in config.items())
        (folder / f"{config['site']}.toml").write_text(text)
    virtual = {number: {"partition-id": number, "num-partitions": 4} for number in range(4)}
    told: list[str] = []
    grid = InProcessGrid(client_app(), virtual, run_config={"nodes": str(folder)})
    with kernfed.Federation.flower(grid, min_sites=3, report=told.append) as federation:
        assert federation.sites == ("a", "b", "c")
        queries = data["a"][0]
        found = (
            FoldingLearner(batch_size=7, measure="rms", partition="order", scale=None).fit(federation).scores(queries)
        )
    assert any("virtual node 3 needs its settings" in text and "holds 3 files" in text for text in told)
    with Federation.local(data) as local:
        np.testing.assert_array_equal(
            found, FoldingLearner(batch_size=7, measure="rms", partition="order", scale=None).fit(local).scores(queries)
        )
    real = {9: {**node_configs(data, tmp_path)[12], "partition-id": 0}}
    with kernfed.Federation.flower(InProcessGrid(client_app(), real, run_config={"nodes": str(folder)})) as alone:
        assert alone.sites == ("b",), "a run does not choose the settings of a node that has its own"
    with kernfed.Federation.flower(InProcessGrid(client_app(), virtual)) as numbered:
        assert numbered.sites == ("site-000", "site-001", "site-002", "site-003")


def test_many_sites_are_not_listed_one_by_one(data: Data) -> None:
    told: list[str] = []
    X, y = data["a"]
    sites = {f"s{number:02}": Site(f"s{number:02}", X, y, policy=Policy.open()) for number in range(25)}
    with kernfed.Federation.flower(over_sites(sites), min_sites=25, report=told.append) as federation:
        told.clear()
        federation.schemas()
        assert len(told) == 2
        assert told[-1].startswith("25 of 25")
        federation.engine._find_nodes(25, 1.0)  # type: ignore[attr-defined]
        assert told[-1].endswith("s18, s19 and 5 more")


def test_progress_is_told(data: Data, tmp_path: Path) -> None:
    told: list[str] = []
    with Federation.flower(over_files(data, tmp_path), report=told.append) as federation:
        federation.schema  # noqa: B018  asking is what counts
    assert any("3 site(s) connected: a, b, c" in text for text in told)
    assert any("3 of 3" in text and "bytes" in text for text in told)


def test_without_flower_one_sentence() -> None:
    code = "import sys; sys.modules['flwr'] = None; import kernfed.federation; import kernfed.federation.engines.flower"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().endswith(
        "ImportError: the Flower engine needs Flower: pip install -e '.[flower]' in a clone of kernfed"
    )

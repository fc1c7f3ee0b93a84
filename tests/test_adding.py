"""A stranger adds things in a package of their own: entry points declare them; sites, files and policies find them."""

import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

METHOD = '''
"""Means of columns over sites: the smallest method there is."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import kernfed as kf
from kernfed.federation import Learner, Method, Payload, task
from kernfed.files import Record, Savable, register

METHOD = Method(
    name="toy",
    tasks={"toy_means": ("toy_sums",)},
    formats={"MeansModel": "toy_means"},
    learner="toy_means:MeansLearner",
)


@task("toy_sums", leaves="statistics")
def toy_sums(site: Any, payload: Payload) -> Payload:
    """Sums of columns and the number of rows."""
    rows = site.some_rows()
    return Payload({"sums": rows.X.sum(axis=0), "rows": np.array([float(len(rows.y))])})


@dataclass(frozen=True)
class MeansModel(Savable):
    """Means of the columns."""

    means: Any
    privacy: Any = None


register("MeansModel", 1, MeansModel, lambda m: Record({"means": m.means}), lambda r: MeansModel(r.arrays["means"]))


class MeansLearner(Learner):
    """Adds up what sites tell."""

    def __init__(self, *, scale: float = 1.0) -> None:
        self.scale = scale

    def fit(self, federation: kf.Federation) -> MeansModel:
        """One exchange."""
        replies = [payload.arrays for _, payload in federation.ask("toy_sums", Payload())]
        total = sum(arrays["sums"] for arrays in replies) / sum(arrays["rows"] for arrays in replies)
        return MeansModel(self.scale * total)
'''
USE = """
import sys
import numpy as np
import kernfed as kf
from kernfed.federation import Policy

X = np.arange(12.0).reshape(6, 2)
sites = {"a": (X[:4], [0, 1, 0, 1]), "b": (X[4:], [0, 1])}
assert "toy_means" not in sys.modules  # nobody has met the method
policies = {name: Policy(tasks=("toy_sums",)) for name in sites}  # a policy knows its tasks by name
with kf.Federation.local(sites, policies=policies) as federation:
    from toy_means import MeansLearner

    model = MeansLearner().set_params(scale=2.0).fit(federation)
    assert model.means.tolist() == (2 * X.mean(axis=0)).tolist()
    model.save(sys.argv[1])
private = {name: Policy(("*",), max_record_epsilon=1.0) for name in sites}
with kf.Federation.local(sites, policies=private) as federation:
    try:
        MeansLearner().fit(federation)
    except kf.errors.TooFewReplies as error:  # nobody wrote a line about privacy, and nothing leaves
        assert "requires privacy" in str(error)
    else:
        raise AssertionError("raw sums left a site that requires privacy")
"""
READ = "import sys, kernfed as kf; print(kf.load(sys.argv[1]).means.tolist())"


def run(code: str, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_method_of_another_package_is_found_by_its_entry_point(tmp_path: Path) -> None:
    (tmp_path / "toy_means.py").write_text(textwrap.dedent(METHOD))
    about = tmp_path / "toy_means-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-means\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[kernfed.methods]\ntoy = toy_means:METHOD\n")
    run(USE, tmp_path, str(tmp_path / "model.kfd"))
    assert run(READ, tmp_path, str(tmp_path / "model.kfd")) == "[10.0, 12.0]"


# The page for those who extend it ---------------------------------------------------------------------------------

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"
TABLE = """
import sys
from kernfed_papers.runner import find_experiment

print(find_experiment("nearest-means").run(0, True)[0].ours > 70)
"""


@pytest.fixture(scope="module")
def extension(tmp_path_factory):
    """A package of the files on the page, installed as far as entry points are concerned."""
    folder = tmp_path_factory.mktemp("extension")
    text = PAGE.read_text(encoding="utf-8")
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, flags=re.DOTALL):
        (folder / name).write_text(code, encoding="utf-8")
    (declared,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    groups = tomllib.loads(declared)["project"]["entry-points"]
    lines = [line for group, own in groups.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in own.items()))]
    about = folder / "nearest_means-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: nearest-means\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_every_example_of_the_page_is_a_file(extension):
    names = {path.name for path in extension.glob("*.py")}
    assert names == {"nearest_means.py", "by_parity.py", "nearest_table.py", "letters.py", "use.py"}
    assert len(names) == PAGE.read_text(encoding="utf-8").count("```python")


def test_the_examples_of_the_page_work_together(extension):
    tested, encoded = run((extension / "use.py").read_text(encoding="utf-8"), extension).splitlines()
    assert int(re.fullmatch(r"held-out rows at the sites: (\d+)%", tested)[1]) > 80
    assert encoded == "(2, 26)"
    page = (extension / "report.html").read_text(encoding="utf-8")
    assert "A NearestMeans classifies into 4 classes." in page
    assert "Confusion matrix" in page


@pytest.mark.slow  # imports every experiment there is
def test_a_table_of_another_package_is_run_by_its_id(extension):
    pytest.importorskip("kernfed_papers", reason="the papers are a package of their own: pip install --editable papers")
    assert run(TABLE, extension) == "True"

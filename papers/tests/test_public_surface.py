"""The papers use kernfed as any researcher's package can: by public names, and kernfed finds them by entry points."""

import ast
from importlib import import_module
from importlib.metadata import distribution, entry_points
from pathlib import Path

import pytest

import kernfed
import kernfed_papers
from kernfed.federation import Method

ROOT = Path(kernfed_papers.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
#: Whose public names may be used. Commands are made with those of the command line, nothing else is.
PACKAGES = {
    "data",
    "errors",
    "federation",
    "files",
    "guarantees",
    "kahm",
    "kernels",
    "personal",
    "privacy",
    "promise",
    "report",
    "ridge",
    "secure",
    "statistics",
}
COMMANDS = {"bench.py": {"cli"}}


def public_names(module):
    """What a package declares; what a single module calls without an underscore."""
    loaded = import_module(module)
    return set(getattr(loaded, "__all__", (name for name in vars(loaded) if not name.startswith("_"))))


def private_imports(source, packages):
    """Imports of kernfed in a text that are not those of its public names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "kernfed" and (alias.name, alias.asname) != ("kernfed", "kf"):
                    yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "kernfed":
            _, _, package = node.module.partition(".")
            if package and package not in packages:
                yield ast.unparse(node)
            elif strange := {alias.name for alias in node.names} - public_names(node.module):
                yield f"{ast.unparse(node)}: {', '.join(sorted(strange))}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_public_names_are_imported(path):
    allowed = PACKAGES | COMMANDS.get(str(path.relative_to(ROOT)), set())
    assert list(private_imports(path.read_text(encoding="utf-8"), allowed)) == []


@pytest.mark.parametrize(
    "line",
    [
        "import kernfed",
        "import kernfed.data as data",
        "from kernfed import _random",
        "from kernfed.base.random import generator",
        "from kernfed.personal.groups import find_groups",
        "from kernfed.data import _anything",
        "from kernfed.cli import emit",
        "def later():\n    from kernfed.kahm.bank import Bank",
    ],
)
def test_other_imports_would_be_seen(line):
    assert len(list(private_imports(line, PACKAGES))) == 1


@pytest.mark.parametrize(
    "line", ["import kernfed as kf", "from kernfed import KAHM", "from kernfed.errors import Refused"]
)
def test_public_imports_are_allowed(line):
    assert list(private_imports(line, PACKAGES)) == []


def test_every_public_name_is_there():
    for package in sorted(PACKAGES):
        module = import_module(f"kernfed.{package}")
        assert [name for name in public_names(module.__name__) if not hasattr(module, name)] == []


def test_versions_are_in_step():
    assert kernfed_papers.__version__ == kernfed.__version__ == distribution("kernfed-papers").version


@pytest.mark.parametrize(
    ("group", "name"), [("kernfed.methods", "averaging"), ("kernfed.commands", "bench"), ("kernfed.reports", "results")]
)
def test_entry_points_lead_somewhere(group, name):
    (entry,) = entry_points(group=group, name=name)
    assert entry.load() is not None


def test_the_method_is_declared_from_outside():
    (entry,) = entry_points(group="kernfed.methods", name="averaging")
    method = entry.load()
    assert isinstance(method, Method)
    for module, names in method.tasks.items():
        assert set(names) <= set(vars(import_module(module)))
    for name, module in method.formats.items():
        assert hasattr(import_module(module), name)
    module, _, learner = method.learner.partition(":")
    assert hasattr(import_module(module), learner)

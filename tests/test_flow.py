"""Imports follow one direction, between packages and between the folders of ``federation``, and go in no circle."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import kernfed
from kernfed import METHODS

ROOT = Path(kernfed.__file__).parent
SOURCES = [ROOT, ROOT.parents[1] / "papers" / "src"]
#: Each layer may import from the layers before it and from itself. Helpers (``_name``) stand right of ``errors`` only.
PACKAGES = [
    {"errors"},
    {"base", "promise", "files"},
    {"abstain"},
    {"data"},
    {"kernels"},
    {"kahm", "ridge", "personal"},
    {"fusion"},
    {"statistics"},
    {"privacy", "secure", "guarantees"},
    {"site"},
    {"federation"},
    {"testing"},
    {"jobs"},
    {"report", "serve", "export"},
    {"cli"},
]
#: The same for the folders and modules of ``federation``.
FOLDERS = [
    {"engines", "program"},
    {"asking", "learner"},
    {"survey", "preparing"},
    {"summing"},
    {"folding", "ridge", "personal"},
    {"fusion"},
    {"estimators"},
    {"estimator_files", "settings", "planning"},
]
#: What answers, asks and plans, whatever is learned.
CORE = {"engines", "program", "asking", "learner", "survey", "planning"}
#: Estimators are federations of one site.
ESTIMATORS = {"estimators", "estimator_files"}
PACKAGE_LEVEL = {name: level for level, layer in enumerate(PACKAGES) for name in layer}
FOLDER_LEVEL = {name: level for level, layer in enumerate(FOLDERS) for name in layer}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
#: Two files stand beside all packages: the names of the package, and ``python -m kernfed``.
PLACED = [name for name in MODULES if name not in ("kernfed", "kernfed.__main__")]
#: All of ``federation`` but its public names.
INSIDE = [name for name in MODULES if name.startswith("kernfed.federation.")]


def running_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes, those inside functions too, without what only a type checker reads."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from (other, *running_nodes(other))
        else:
            yield from (child, *running_nodes(child))


@cache
def imported_modules(name: str) -> set[str]:
    """The modules of kernfed that a module imports, wherever in it; a name counts for the module that has it."""
    modules = set()
    for node in running_nodes(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import"
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            modules |= {part if part in MODULES else str(node.module) for part in full}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return {module for module in modules if module.split(".")[0] == "kernfed"} - {name}


def part(module: str, depth: int) -> str:
    """The package of a module at depth 1, the folder of ``federation`` at depth 2; the names of a package are none."""
    parts = module.split(".")
    return parts[depth] if len(parts) > depth else ""


@pytest.mark.parametrize("name", PLACED)
def test_packages_import_from_their_left(name):
    own = part(name, 1)
    for other in {part(module, 1) for module in imported_modules(name)} - {own, ""}:
        if own.startswith("_"):
            assert other.startswith("_") or other == "errors", f"{name} is a helper and imports {other}"
        elif other.startswith("_"):
            assert own != "errors", f"errors imports {other}, and should import nothing"
        else:
            assert PACKAGE_LEVEL[other] < PACKAGE_LEVEL[own] + (own in PACKAGES[1]), (
                f"{name} imports {other}, not to the left of {own}"
            )


@pytest.mark.parametrize("name", INSIDE)
def test_folders_of_federation_import_from_their_left(name):
    own = part(name, 2)
    modules = imported_modules(name)
    assert "kernfed.federation" not in modules, (
        f"{name} imports a public name from above; import it where it is defined"
    )
    for other in {part(module, 2) for module in modules if part(module, 1) == "federation"} - {own}:
        assert FOLDER_LEVEL[other] < FOLDER_LEVEL[own], f"{name} imports {other}, not to the left of {own}"


def test_everything_has_its_place():
    assert {part(name, 1) for name in PLACED if not part(name, 1).startswith("_")} <= set(PACKAGE_LEVEL)
    assert {part(name, 2) for name in INSIDE} <= set(FOLDER_LEVEL)
    assert set(METHODS) <= set(MODULES) - {f"kernfed.federation.{folder}" for folder in CORE}


def test_public_names_of_federation_need_only_the_declaration_of_tasks():
    assert imported_modules("kernfed.federation") == {"kernfed.files", "kernfed.site.protocol.task"}


def test_no_module_is_imported_by_what_it_imports():
    graph = {name: imported_modules(name) for name in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("a circle of imports: " + " imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize("name", [name for name in INSIDE if part(name, 2) in CORE])
def test_the_core_names_no_method(name):
    methods = {f"kernfed.federation.{folder}" for folder in set(FOLDER_LEVEL) - CORE}
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for method in sorted(methods):
        assert not any(method in text for text in texts), f"{name} has {method} in a text"
        assert not any(f"{module}.".startswith(f"{method}.") for module in imported_modules(name))


def declared_tasks(name: str) -> set[str]:
    """Names in the ``@task("...")`` of a module."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    calls = (mark for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for mark in node.decorator_list)
    named = (call for call in calls if isinstance(call, ast.Call) and ast.unparse(call.func) == "task")
    return {ast.literal_eval(call.args[0]) for call in named}


@pytest.mark.parametrize("package", METHODS)
def test_a_method_lists_the_tasks_that_its_modules_declare(package):
    method = import_module(package).METHOD
    declared = {name: declared_tasks(name) for name in MODULES if name.startswith(f"{package}.")}
    assert {name: set(tasks) for name, tasks in method.tasks.items()} == {k: v for k, v in declared.items() if v}
    assert method.name == package.rsplit(".", 1)[1]
    assert set(method.default_tasks) <= set().union(*declared.values())


def test_only_methods_and_the_core_declare_tasks():
    declared = {name.rsplit(".", 1)[0] for name in MODULES if declared_tasks(name)}
    assert declared <= {*METHODS, "kernfed.site"}


def test_formatting_is_the_formatters():
    texts = [path.read_text(encoding="utf-8") for source in SOURCES for path in source.rglob("*.py")]
    assert sum(text.count("fmt: off") for text in texts) == 0
    assert sum(text.count("fmt: skip") for text in texts) < 20

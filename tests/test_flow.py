"""Imports follow one direction: files, data -> kernels -> models -> guarantees -> federation -> ... -> cli."""

import ast
from pathlib import Path

import pytest

import kernfed

ROOT = Path(kernfed.__file__).parent
#: Each layer may import from the layers before it, from itself, and from the private helpers.
LAYERS = [
    {"files", "data"},
    {"kernels"},
    {"kahm", "ridge", "personal"},
    {"privacy", "secure", "guarantees"},
    {"federation"},
    {"experiments"},
    {"report"},
    {"cli"},
]
LEVEL = {package: level for level, layer in enumerate(LAYERS) for package in layer}
#: Two files stand beside all packages: the names of the package, and ``python -m kernfed``.
MODULES = sorted(path for path in ROOT.rglob("*.py") if path not in (ROOT / "__init__.py", ROOT / "__main__.py"))


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_packages(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module] if node.module != "kernfed" else [f"kernfed.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name and name.startswith("kernfed.")}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_left(path):
    own = package_of(path)
    for other in imported_packages(path) - {own}:
        if own.startswith("_"):
            assert other.startswith("_"), f"{path} is a helper and imports {other}"
        elif not other.startswith("_"):
            assert LEVEL[other] < LEVEL[own], f"{path} imports {other}, which is not to the left of {own}"


def test_every_package_has_its_place():
    assert {package_of(path) for path in MODULES if not package_of(path).startswith("_")} <= set(LEVEL)

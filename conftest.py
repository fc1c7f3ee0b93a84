"""Modules that need an extra are not collected where it is not installed."""

from importlib.util import find_spec

NEEDS = {"src/kernfed/federation/flower.py": "flwr", "tests/federation/flower_grid.py": "flwr"}
collect_ignore = [path for path, package in NEEDS.items() if find_spec(package) is None]

"""What holds for every test: no modules without their extra, and examples that do not depend on the day's load."""

from importlib.util import find_spec

from hypothesis import settings

NEEDS = {"src/kernfed/federation/flower.py": "flwr", "tests/federation/flower_grid.py": "flwr"}
collect_ignore = [path for path, package in NEEDS.items() if find_spec(package) is None]

# Time is measured in benchmarks; the same examples every time make a failure one that can be looked at.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")

"""What holds for every test: no modules without their extra, and examples that do not depend on the day's load."""

from importlib.util import find_spec

from hypothesis import settings

#: Modules that cannot be imported without an extra, which tests of documentation strings would do.
NEEDS = {
    "src/kernfed/federation/engines/flower.py": "flwr",
    "src/kernfed/federation/engines/flower_site.py": "flwr",
    "src/kernfed/jobs/flower.py": "flwr",
    "src/kernfed/federation/engines/nats.py": "nats",
    "src/kernfed/federation/engines/nats_link.py": "nats",
    "src/kernfed/federation/engines/nats_site.py": "nats",
    "src/kernfed/serve/app.py": "fastapi",
    "src/kernfed/serve/encrypted.py": "prometheus_client",
    "src/kernfed/serve/gateway.py": "prometheus_client",
    "src/kernfed/serve/metrics.py": "prometheus_client",
    "src/kernfed/export/mlflow.py": "mlflow",
    "tests/federation/flower_grid.py": "flwr",
    "tests/federation/hub_server.py": "nats",
    "tests/serve/http_client.py": "uvicorn",
}
collect_ignore = [path for path, package in NEEDS.items() if find_spec(package) is None]

# Time is measured in benchmarks. The same examples every time, without a memory of earlier runs that processes would
# share, make a failure one that can be looked at.
settings.register_profile("steady", deadline=None, derandomize=True, database=None)
settings.load_profile("steady")

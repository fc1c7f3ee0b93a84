"""A run on a Flower deployment, from its start to its results.

``flwr run`` says "success" once a run is submitted; how it ended is asked afterwards, and a run has succeeded only if
Flower calls it completed and its results are there.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernfed.errors import InputError, RunFailed
from kernfed.files import load
from kernfed.jobs.jobs import Predicted, asks_sites
from kernfed.testing.predictors import is_regressor

#: Seconds that one call of Flower's command may take, and between two looks at a run while its log goes on and after:
#: every look is a process that imports Flower, and the log ends when the run does.
_CALL, _LOOK, _LATE_LOOK = 120.0, 20.0, 2.0
#: Seconds that a SuperLink has to come back, and by which words Flower's command says that it is not there.
_PATIENCE, _AWAY = 60.0, ("unavailable", "connection refused", "failed to connect")
_PRODUCTS = ("model", "predictions", "evaluation", "answer")


class _Unreachable(RunFailed):
    """Flower's command could not reach the SuperLink, which may come back."""


@dataclass(frozen=True)
class Finished:
    """A run that succeeded: its number, the folder of its results, and what ``result.json`` says."""

    run: str
    folder: Path
    result: Mapping[str, Any]

    def product(self) -> Path:
        """Path of the model, predictions, evaluation or answer that the job wrote."""
        return self.folder / next(str(self.result[name]) for name in _PRODUCTS if name in self.result)


def parse_settings(app: Path, given: list[str]) -> dict[str, Any]:
    """NAME=VALUE words as values of the type that the app's configuration gives each."""
    usual = read_config(app)
    settings: dict[str, Any] = {}
    for word in given:
        name, sign, text = word.partition("=")
        if not sign or name not in usual:
            raise InputError(f"--set must be NAME=VALUE with a name of {', '.join(sorted(usual))}, got {word!r}")
        kind = type(usual[name])
        try:
            settings[name] = kind(text)
        except ValueError:
            raise InputError(f"{name} must be a number such as {usual[name]}, got {text!r}") from None
    return settings


def run_app(
    app: Path, settings: Mapping[str, Any], *, timeout: float = 3600.0, report: Callable[[str], None]
) -> Finished:
    """Start a run of ``app`` with these settings, relay its log, and return its results once it has succeeded."""
    results = Path({**read_config(app), **settings}["results"])
    deadline = time.monotonic() + timeout
    run = _start(app, settings)
    try:
        with _relayed_log(app, run, report) as relay:
            status, details = _wait(app, run, relay, deadline, report)
            if not status.startswith("finished"):
                _flwr(app, "stop", run)
                raise RunFailed(f"run {run} was {status} after {timeout:g} s and was stopped")
            relay.join(_CALL)  # the last lines of the log say why
    except KeyboardInterrupt:
        report(_stop(app, run))
        raise
    if status != "finished:completed":
        raise RunFailed(f"run {run} failed ({status}): {_reason(details)}; see flwr log {run}")
    from kernfed.base.plain import read_json_file

    folder = results / run
    if not (folder / "result.json").is_file():
        raise RunFailed(
            f"run {run} is completed but {folder}/result.json is not here; "
            "use this command on the SuperLink's machine, or share the folder of results"
        )
    return Finished(run, folder, read_json_file(folder / "result.json"))


def _wait(
    app: Path, run: str, relay: threading.Thread, deadline: float, report: Callable[[str], None]
) -> tuple[str, str]:
    """Status and details of a run once it has finished, or as it is when the time is up.

    A SuperLink that does not answer is waited for: it may be starting again.
    """
    lost = None
    while True:
        if relay.is_alive():
            relay.join(min(_LOOK, max(0.0, deadline - time.monotonic())))
        else:
            time.sleep(_LATE_LOOK)
        try:
            status, details = _status(app, run)
        except _Unreachable as error:
            now = time.monotonic()
            if lost is None:
                lost = now
                report(f"kernfed: the SuperLink does not answer, waiting for it up to {_PATIENCE:g} s")
            if now - lost > _PATIENCE or now > deadline:
                raise RunFailed(
                    f"the SuperLink stopped while run {run} was going on and did not come back: start it, with its "
                    f"--database, and then the run again ({error})"
                ) from None
            continue
        lost = None
        if status.startswith("finished") or time.monotonic() > deadline:
            return status, details


def _stop(app: Path, run: str) -> str:
    """Stop a run that nobody waits for any longer; says whether it is, and otherwise how."""
    try:
        done = _flwr(app, "stop", run)
    except RunFailed as error:
        return f"kernfed: run {run} may go on ({error}); stop it: {_by_hand(app, 'stop', run)}"
    if done.returncode:
        printed = " ".join((done.stderr or done.stdout).split())[:200]
        return f"kernfed: run {run} may go on ({printed}); stop it: {_by_hand(app, 'stop', run)}"
    return f"kernfed: run {run} is stopped; what sites have done for it stays at the sites"


def _by_hand(app: Path, *words: str) -> str:
    return f"FLWR_HOME={_environment(app)['FLWR_HOME']} flwr {' '.join(words)}"


def _reason(details: str) -> str:
    """What Flower says of a failed run; of one whose ServerApp just vanished it knows nothing."""
    vanished = any(words in details.lower() for words in ("unknown error", "no heartbeat"))
    if not vanished:
        return details or "Flower gives no reason"
    return (
        f"{details.rstrip('.')}: the ServerApp ended without a word, as it does where the SuperLink was stopped or "
        "restarted during the run; start the run again"
    )


def predict_with_flower(
    app: Path, model: Path, rows: Any, *, site: str = "", timeout: float = 3600.0, report: Callable[[str], None]
) -> Predicted:
    """Predictions of a model for rows (n, p) by the sites of a deployment.

    ``site`` is the one whose predictor answers, of a personalised model. Runs on the SuperLink's machine, where
    the rows are left beside the results for as long as the run lasts.
    """
    import pyarrow.parquet as pq

    loaded = load(model)  # a model that is whole waits for no site by name
    sites = ",".join(loaded.sites) if asks_sites(loaded) else ""
    results = Path(read_config(app)["results"])
    results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="batch-", dir=results) as folder:
        queries = Path(folder) / "queries.npy"
        np.save(queries, rows, allow_pickle=False)
        settings = {
            "job": "predict",
            "model": str(model.resolve()),
            "queries": str(queries),
            "sites": sites,
            "site": site,
        }
        finished = run_app(app, settings, timeout=timeout, report=report)
    table = pq.read_table(finished.product())
    columns = {name: np.array(table[name].to_pylist()) for name in table.column_names if name != "row"}
    return Predicted(columns, dict(finished.result.get("missing", {})), is_regressor(loaded))


def encrypted_with_flower(
    app: Path, model: Path, rows: Any, keys: bytes, *, timeout: float = 3600.0, report: Callable[[str], None]
) -> tuple[bytes, Mapping[str, Any]]:
    """An encrypted answer to rows (n, p) of the sites of a deployment, and what ``result.json`` says.

    ``keys`` are the packed public keys of whoever can read it. They and the rows are left beside the results, on the
    SuperLink's machine, for as long as the run lasts; the secret key does not leave this process.
    """
    results = Path(read_config(app)["results"])
    results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="batch-", dir=results) as folder:
        queries, public = Path(folder) / "queries.npy", Path(folder) / "public.keys"
        np.save(queries, rows, allow_pickle=False)
        public.write_bytes(keys)
        settings = {
            "job": "predict",
            "model": str(model.resolve()),
            "queries": str(queries),
            "keys": str(public),
            "sites": ",".join(load(model).sites),
        }
        finished = run_app(app, settings, timeout=timeout, report=report)
    return finished.product().read_bytes(), finished.result


# Flower's command ------------------------------------------------------------------------------------------------


def read_config(app: Path) -> dict[str, Any]:
    """Configuration of an app that ``kernfed flower-app`` wrote."""
    place = app / "pyproject.toml"
    if not place.is_file():
        raise InputError(f"{app} is not a Flower app; make one with kernfed flower-app")
    try:
        config: dict[str, Any] = tomllib.loads(place.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise InputError(f"{place} has no [tool.flwr.app.config]: {error}") from None
    if not config.get("results"):
        raise InputError(f"{place} must set results in [tool.flwr.app.config]")
    return config


def _start(app: Path, settings: Mapping[str, Any]) -> str:
    """Submit a run and return its number."""
    with tempfile.TemporaryDirectory(prefix="kernfed-run-") as folder:
        place = Path(folder) / "run.toml"
        place.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
        done = _flwr(app, "run", str(app.resolve()), "--run-config", str(place), "--format", "json")
    printed = _json(done.stdout)
    if done.returncode or not printed.get("success") or not printed.get("run-id"):
        reason = printed.get("error-message") or done.stderr.strip() or done.stdout.strip()
        raise RunFailed(f"the run could not be started: {reason}")
    return str(printed["run-id"])


def _status(app: Path, run: str) -> tuple[str, str]:
    """Status of a run and its details, as ``flwr list`` knows them."""
    done = _flwr(app, "list", "--run-id", run, "--format", "json")
    runs = _json(done.stdout).get("runs")
    if done.returncode or not runs:
        printed = done.stderr.strip() or done.stdout.strip()
        if any(word in printed.lower() for word in _AWAY):
            raise _Unreachable(printed)
        raise RunFailed(
            f"nothing is known of run {run}: {printed}; a SuperLink that was restarted without its --database has "
            "forgotten its runs"
        )
    return str(runs[0]["status"]), str(runs[0].get("status-details", ""))


@contextmanager
def _relayed_log(app: Path, run: str, report: Callable[[str], None]) -> Iterator[threading.Thread]:
    """Pass on what the ServerApp prints for us, in a thread that ends with the log, at the latest with the block."""
    command = [_executable(), "log", run, "--stream"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=_environment(app)
    ) as log:

        def relay() -> None:
            for line in log.stdout or ():
                if "kernfed:" in line or "Error" in line:
                    report(line.rstrip())

        thread = threading.Thread(target=relay, daemon=True)
        thread.start()
        try:
            yield thread
        finally:
            log.terminate()
            thread.join()


def _flwr(app: Path, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [_executable(), *words], capture_output=True, text=True, check=False, timeout=_CALL, env=_environment(app)
        )
    except subprocess.TimeoutExpired:
        raise RunFailed(f"flwr {words[0]} did not answer within {_CALL:g} s; is the SuperLink running?") from None


def _executable() -> str:
    beside = Path(sys.executable).with_name("flwr")
    executable = str(beside) if beside.exists() else shutil.which("flwr")
    if executable is None:
        raise ImportError("running on Flower needs Flower: pip install -e '.[flower]' in a clone of kernfed")
    return executable


def _environment(app: Path) -> dict[str, str]:
    """Environment of this process, with telemetry off and the app's connection unless another is set."""
    usual = {"FLWR_HOME": str(app.resolve() / "home")}
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    return {**usual, **os.environ, **quiet}


def _json(text: str) -> dict[str, Any]:
    """The JSON object in what a command printed, or none."""
    from kernfed.base.plain import read_json

    try:
        printed = read_json(text[text.index("{") :])
    except ValueError:
        return {}
    return printed if isinstance(printed, dict) else {}

"""What a user installs, with the newest versions: core alone and core with each extra alone, each used on a raw table.

The environment of the tests has all extras at once, and one extra may hold back a version that another install gets:
so each of these environments has one install and nothing else. Every command in the README's blocks of commands runs in
each of them as it stands there, then what the extra is for. Needs nothing but Python; every server is on loopback.

    python3 .ci/installs.py                 all of them, two at a time
    python3 .ci/installs.py core serve      some of them
"""

import argparse
import csv
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SITES = ("north", "south", "east")
#: Seconds that a command may take, and that a server has to come up.
PATIENCE, START = 600, 60
#: Commands of the README that need more than the package: the published tables are a package of their own.
ELSEWHERE = ("bench",)


class Failed(Exception):
    """A command that did not do what it should, with what it printed."""


class Install:
    """A new environment with one install, and a folder with raw tables in which its commands run."""

    def __init__(self, folder: Path, name: str, wheel: Path) -> None:
        self.name, self.venv, self.folder = name, folder / name / "venv", folder / name / "work"
        shutil.rmtree(folder / name, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.report: list[str] = []
        # One thread of BLAS and OpenMP each: two installs are tried at a time, on machines of two cores.
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        path = f"{self.venv / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.env = {**kept, **threads, "PATH": path, "COLUMNS": "160"}
        subprocess.run([sys.executable, "-m", "venv", str(self.venv)], check=True)
        wanted = str(wheel) if name == "core" else f"{wheel}[{name}]"
        self.run("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted)
        _write_tables(self.folder)

    def run(self, *words: str) -> str:
        """What a command prints; anything but exit code 0, and a warning, is a failure."""
        started = time.monotonic()
        done = subprocess.run(
            words, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        seconds = time.monotonic() - started
        self.report.append(f"    {seconds:6.1f} s  {shlex.join(words).splitlines()[0][:110]}")
        warned = words[0] == "kernfed" and re.search(r"\w*Warning\b", done.stderr)
        if done.returncode != 0 or warned:
            printed = f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
            raise Failed(f"{shlex.join(words)}\nended with {done.returncode} and printed\n{printed}")
        return done.stdout

    def json(self, *words: str) -> dict[str, object]:
        """The JSON object that a command prints with --json."""
        return dict(json.loads(self.run(*words, "--json")))

    def expect(self, what: bool, sentence: str) -> None:
        """Fail with this sentence unless it holds."""
        if not what:
            raise Failed(sentence)

    @contextmanager
    def serving(self, *words: str) -> Iterator[None]:
        """A command that runs until it is stopped; its log is shown where something fails."""
        log = self.folder / f"{'-'.join(words[1:4]).replace('/', '-')}.log"
        with log.open("w") as out:
            process = subprocess.Popen(words, cwd=self.folder, env=self.env, stdout=out, stderr=out)
        try:
            yield
        except Exception as error:
            raise Failed(f"{error}\n{log.name}:\n{log.read_text()[-3000:]}") from error
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(START)
            except subprocess.TimeoutExpired:
                process.kill()


# What every install does -------------------------------------------------------------------------------------------


def use_tables(install: Install) -> None:
    """The README's commands for a table, as they stand there, and a look at what they wrote."""
    install.run("kernfed", "--version")
    for words in readme_commands():
        install.run(*words)
    folder = install.folder
    answers = list(csv.DictReader((folder / "answers.csv").open()))
    install.expect(len(answers) == 60, f"answers.csv has {len(answers)} rows, new.csv has 60")
    labels = {value for row in answers for value in row.values()}
    install.expect({"ill", "well"} <= labels, "answers.csv must name both classes")
    install.expect("<html" in (folder / "report.html").read_text().lower(), "report.html must be a page")
    tested = install.json(*shlex.split("kernfed evaluate model.kfd --data test.csv --label outcome --site hospital"))
    accuracy = _number(tested, "accuracy")
    install.expect(accuracy > 0.6, f"accuracy on test.csv is {accuracy}, a coin has 0.5")


def readme_commands() -> list[list[str]]:
    """Commands of the README's blocks that begin with ``kernfed``, without comments."""
    blocks = re.findall(r"```\n(kernfed .*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    return [words for words in lines if words[1] not in ELSEWHERE]


def _number(values: object, name: str) -> float:
    """The first number of this name in nested values."""
    if isinstance(values, dict):
        if isinstance(values.get(name), (int, float)):
            return float(values[name])
        values = list(values.values())
    found = [_number(value, name) for value in values] if isinstance(values, list) else []
    return next((number for number in found if number == number), float("nan"))


# What each extra is for --------------------------------------------------------------------------------------------


def use_serve(install: Install) -> None:
    """A hub, three sites with raw tables, a training by the default learner, a gateway and one question."""
    hub, gateway = free_port(), free_port()
    run, credentials = install.run, "hub/credentials/alice.toml"
    run("kernfed", "hub", "init", "hub", "--address", f"127.0.0.1:{hub}")
    for site in SITES:
        run("kernfed", "hub", "add-site", "hub", site)
        (install.folder / f"{site}.toml").write_text(
            textwrap.dedent(f"""
                credentials = "hub/credentials/{site}.toml"
                data = "{site}.csv"
                label = "outcome"
                raw = true
                store = "store-{site}"
                [policy]
                tasks = ["*"]
                callers = ["alice"]
                """)
        )
    run("kernfed", "hub", "add-caller", "hub", "alice")
    with install.serving("kernfed", "hub", "run", "hub"):
        _wait(lambda: socket.create_connection(("127.0.0.1", hub), 1).close())
        north, south, east = (install.serving("kernfed", "site", "run", f"{site}.toml") for site in SITES)
        with north, south, east:
            run("kernfed", "train", "--credentials", credentials, "--out", "served.kfd")
            run("kernfed", "predict", "served.kfd", "new.csv", "--credentials", credentials, "--out", "hub.csv")
            port = ("--port", str(gateway))
            with install.serving("kernfed", "serve", "served.kfd", "--credentials", credentials, *port):
                at = f"http://127.0.0.1:{gateway}"
                _wait(lambda: urllib.request.urlopen(f"{at}/health", timeout=5).read())
                rows = (install.folder / "new.csv").read_bytes()
                asked = urllib.request.Request(f"{at}/predict", rows, {"Content-Type": "text/csv"})
                answer = json.loads(urllib.request.urlopen(asked, timeout=60).read())
    labels = [row["label"] for row in answer["answers"]]
    there = [row["prediction"] for row in csv.DictReader((install.folder / "hub.csv").open())]
    install.expect(labels == there, "the gateway must answer what kernfed predict does")


def use_flower(install: Install) -> None:
    """The operator's guide up to a trained model: an app, certificates, a SuperLink and three nodes over TLS."""
    guide = (ROOT / "docs" / "operator.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", guide.partition("\n## 6")[0], re.DOTALL)
    commands = "\n".join(blocks).replace("PORT=9092", f"PORT={free_port()}")
    stop = "trap 'kill $(cat *.pid) 2>/dev/null' EXIT\n"
    install.run("bash", "-e", "-c", f"{stop}{commands}")
    install.expect((install.folder / "model.kfd").stat().st_size > 0, "the guide's training must write model.kfd")


def use_fhe(install: Install) -> None:
    """Labels computed on encrypted scores are those computed in the clear."""
    install.run(
        "python",
        "-c",
        textwrap.dedent("""
            import kernfed as kf
            digits = kf.data.load_dataset("digits", scaling="unit")
            sites = {f"s{i}": (digits.x_train[i:300:3], digits.y_train[i:300:3]) for i in range(3)}
            model = kf.FoldingLearner("rms").fit(kf.Federation.local(sites))
            X = digits.x_test[:4]
            assert (model.predict(X, secure="bfv") == model.predict(X)).all()
            """),
    )


def use_text(install: Install) -> None:
    """A column of text is learned from and answered."""
    install.run(
        *shlex.split("kernfed train --data notes.csv --text note --label topic --site hospital --out notes.kfd")
    )
    install.run(*shlex.split("kernfed predict notes.kfd notes.csv --out topics.csv"))


def use_onnx(install: Install) -> None:
    """The head of the README's model is written as a file that onnx finds valid."""
    write = "kernfed.load('model.kfd').to_onnx('head.onnx', part='head')"
    install.run("python", "-c", f"import onnx, kernfed; {write}; onnx.checker.check_model('head.onnx')")


USES: dict[str, Callable[[Install], None] | None] = {
    "core": None,
    "serve": use_serve,
    "flower": use_flower,
    "fhe": use_fhe,
    "text": use_text,
    "onnx": use_onnx,
}


# Tables, and how it runs -------------------------------------------------------------------------------------------


def _write_tables(folder: Path) -> None:
    """Raw tables as people have them (ids, words, dates, gaps), one of numbers and one of text."""
    draws = random.Random(7)
    patients = [_patient(draws, number) for number in range(420)]
    _write(folder / "patients.csv", patients[:300])
    _write(folder / "test.csv", patients[300:360])
    _write(folder / "new.csv", [{k: v for k, v in row.items() if k != "outcome"} for row in patients[360:]])
    for site in SITES:
        rows = [row for row in patients[:300] if row["hospital"] == site]
        _write(folder / f"{site}.csv", [{k: v for k, v in row.items() if k != "hospital"} for row in rows])
    words = {"heart": ("chest pain", "valve", "arrhythmia", "aorta"), "bone": ("fracture", "cast", "femur", "joint")}
    topics = [(topic, draws.choice(SITES)) for topic in words for _ in range(60)]
    notes = [
        {"hospital": site, "topic": topic, "note": f"{' and '.join(draws.choices(words[topic], k=4))}, day {day % 9}"}
        for day, (topic, site) in enumerate(topics)
    ]
    _write(folder / "notes.csv", notes)
    numbers = [{f"x{k}": round(draws.uniform(-1, 1), 3) for k in range(4)} for _ in range(200)]
    _write(folder / "rows.csv", [{**row, "y": int(row["x0"] > 0)} for row in numbers])


def _patient(draws: random.Random, number: int) -> dict[str, object]:
    age, smoker, score = draws.randint(20, 90), draws.choice(["yes", "no", ""]), round(draws.gauss(27, 4), 1)
    risk = (age - 55) / 9 + 2 * (smoker == "yes") - 0.7
    return {
        "patient": f"P{number:05}",
        "hospital": draws.choice(SITES),
        "age": age,
        "smoker": smoker,
        "admitted": f"2024-{draws.randint(1, 12):02}-{draws.randint(1, 28):02}",
        "bmi": "" if draws.random() < 0.05 else score,
        "ward": draws.choice(["surgery", "surgery", "cardiology", "oncology"]),
        "outcome": "ill" if draws.random() < 1 / (1 + 2.718**-risk) else "well",
    }


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)


def free_port() -> int:
    """A port of this machine that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(until: Callable[[], object]) -> None:
    deadline = time.monotonic() + START
    while True:
        try:
            until()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise Failed(f"a server did not come up within {START} s: {error}") from error
            time.sleep(0.2)


def try_install(folder: Path, name: str, wheel: Path) -> tuple[str, bool]:
    """What came of one install, as text, and whether all went well."""
    started = time.monotonic()
    lines: list[str] = []
    try:
        install = Install(folder, name, wheel)
        lines = install.report
        use_tables(install)
        use = USES[name]
        if use is not None:
            use(install)
        outcome = "passed"
    except (Failed, subprocess.SubprocessError, OSError, KeyError, ValueError) as error:
        lines.append(textwrap.indent(str(error), "    "))
        outcome = "FAILED"
    seconds = time.monotonic() - started
    return "\n".join([f"{name}: {outcome} in {seconds:.0f} s", *lines]), outcome == "passed"


def main() -> int:
    """Exit code 0 where every install does what it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*USES, []], help="which installs; all by default")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "installs", help="where environments are made")
    given = parser.parse_args()
    folder, names = given.folder.resolve(), given.names or list(USES)
    shutil.rmtree(folder, ignore_errors=True)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("kernfed-*.whl")
    # Those that wait for servers come first: the others fill the time.
    order = sorted(names, key=lambda name: name not in ("flower", "serve"))
    failures = 0
    with ThreadPoolExecutor(2) as pool:
        for text, fine in pool.map(lambda name: try_install(folder, name, wheel), order):
            failures += not fine
            print(text, flush=True)
    print(f"{len(names) - failures} passed, {failures} failed")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())

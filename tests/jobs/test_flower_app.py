"""The Flower app that is written, and the command that runs it, with a stand-in for Flower's own command."""

import configparser
import datetime
import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from cryptography import x509

from kernfed.cli import flower
from kernfed.errors import RunFailed
from kernfed.jobs import flower_run
from kernfed.jobs.flower_app import renew_certificates, write_app
from kernfed.jobs.flower_run import parse_settings, run_app
from kernfed.jobs.run import Job, job_settings

#: A stand-in for ``flwr``: says what a script in the environment tells it to say.
STAND_IN = """#!{python}
import json, os, pathlib, sys
script = json.loads(os.environ["SCRIPT"])
word = sys.argv[1]
if word == "run":
    config = sys.argv[sys.argv.index("--run-config") + 1]
    pathlib.Path(os.environ["SEEN"]).write_text(pathlib.Path(config).read_text())
print(script[word]["out"])
sys.exit(script[word].get("code", 0))
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    write_app(tmp_path / "app")
    return tmp_path / "app"


def flower_says(monkeypatch: pytest.MonkeyPatch, folder: Path, **script: dict[str, object]) -> None:
    command = folder / "flwr"
    command.write_text(STAND_IN.format(python=sys.executable))
    command.chmod(0o755)
    started = {
        "run": {"out": json.dumps({"success": True, "run-id": "17"})},
        "log": {"out": "kernfed: at work"},
        "stop": {"out": ""},
    }
    monkeypatch.setenv("SCRIPT", json.dumps({**started, **script}))
    monkeypatch.setenv("SEEN", str(folder / "seen.toml"))
    monkeypatch.setattr(flower_run, "_executable", lambda: str(command))
    monkeypatch.setattr(flower_run, "_LATE_LOOK", 0.01)


def listed(status: str, details: str = "") -> dict[str, object]:
    return {"out": "Listing...\n" + json.dumps({"runs": [{"status": status, "status-details": details}]})}


def test_the_app_is_complete_and_installs_nothing(app: Path) -> None:
    project = tomllib.loads((app / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == []
    config = project["tool"]["flwr"]["app"]["config"]
    assert config == {**job_settings(), "results": str(app / "results")}
    assert Job.from_settings(config, "1").folder == app / "results" / "1"
    for name in ("server_app.py", "client_app.py"):
        compile((app / "kernfed_app" / name).read_text(), name, "exec")
    for name in ("make-certificates.sh", "make-node-key.sh"):
        assert os.access(app / name, os.X_OK)
    connection = tomllib.loads((app / "home" / "config.toml").read_text())["superlink"]["deployment"]
    assert connection["root-certificates"] == str(app / "certificates" / "ca.crt")


def test_an_app_for_the_simulation(tmp_path: Path) -> None:
    write_app(tmp_path / "app", simulate=100)
    connection = tomllib.loads((tmp_path / "app" / "home" / "config.toml").read_text())["superlink"]
    told = {"address": "127.0.0.1:9092", "insecure": True, "options": {"num-supernodes": 100}}
    assert connection == {"default": "simulation", "simulation": told}


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_only_code_travels_to_the_sites(app: Path) -> None:
    """Results, keys and certificates are not part of what Flower sends."""
    build = pytest.importorskip("flwr.cli.build", reason="needs the extra flower: pip install -e '.[flower]'")
    for name in ("results/1/result.json", "keys/a.json", "certificates/ca.json"):
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text("{}")
    names = zipfile.ZipFile(io.BytesIO(build.build_fab_from_disk(app))).namelist()
    code = {"kernfed_app/__init__.py", "kernfed_app/client_app.py", "kernfed_app/server_app.py"}
    assert {name for name in names if not name.startswith(".info")} == {"pyproject.toml", *code}


def test_scripts_make_certificates_and_keys_that_others_cannot_read(app: Path) -> None:
    subprocess.run([app / "make-certificates.sh", "link.example.org", "10.0.0.7"], check=True, capture_output=True)
    shown = subprocess.run(
        ["openssl", "x509", "-in", app / "certificates" / "server.pem", "-noout", "-text"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "DNS:localhost, IP Address:127.0.0.1, DNS:link.example.org, IP Address:10.0.0.7" in shown
    subprocess.run(
        [
            "openssl",
            "verify",
            "-x509_strict",
            "-CAfile",
            app / "certificates" / "ca.crt",
            app / "certificates" / "server.pem",
        ],
        check=True,
        capture_output=True,
    )
    subprocess.run([app / "make-node-key.sh", "north"], check=True, capture_output=True)
    for name in ("certificates/ca.key", "certificates/server.key", "keys/north"):
        assert not stat.S_IMODE((app / name).stat().st_mode) & 0o077
    assert (app / "keys" / "north.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    before = (app / "certificates" / "ca.key").read_bytes()
    again = subprocess.run([app / "make-certificates.sh"], capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "exists already" in again.stderr
    assert (app / "certificates" / "ca.key").read_bytes() == before


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_certificates_are_renewed_by_the_same_authority(app: Path) -> None:
    """The sites keep their ca.crt; before, one had to begin anew after a year."""
    folder = app / "certificates"
    subprocess.run([app / "make-certificates.sh", "link.example.org"], check=True, capture_output=True)
    authority, first = (folder / "ca.crt").read_bytes(), certificate(folder / "server.pem")
    told = renew_certificates(app)
    second = certificate(folder / "server.pem")
    assert (folder / "ca.crt").read_bytes() == authority
    assert second.serial_number != first.serial_number
    assert second.public_key() == first.public_key()
    assert second.not_valid_after_utc >= first.not_valid_after_utc
    assert 364 <= (second.not_valid_after_utc - datetime.datetime.now(datetime.UTC)).days <= 365
    names = [one.extensions.get_extension_for_class(x509.SubjectAlternativeName).value for one in (first, second)]
    assert names[0] == names[1]
    assert second.issuer == certificate(folder / "ca.crt").subject
    second.verify_directly_issued_by(certificate(folder / "ca.crt"))
    assert "DNS:link.example.org" in told
    assert not stat.S_IMODE((folder / "server.pem").stat().st_mode) & 0o077


def test_an_authority_that_ends_is_renewed_with_its_key(app: Path) -> None:
    """As apps of 0.1 have it, for a year: what it signs is valid for whoever has its old certificate or the new one."""
    folder = app / "certificates"
    subprocess.run([app / "make-certificates.sh"], check=True, capture_output=True)
    short = f"req -x509 -new -key {folder}/ca.key -sha256 -days 30 -out {folder}/ca.crt"
    extra = ["-subj", "/CN=kernfed authority", "-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    subprocess.run(["openssl", *short.split(), *extra], check=True, capture_output=True)
    old = certificate(folder / "ca.crt")
    told = renew_certificates(app)
    new, server = certificate(folder / "ca.crt"), certificate(folder / "server.pem")
    assert "give ca.crt to every site until then" in told
    assert (new.not_valid_after_utc - datetime.datetime.now(datetime.UTC)).days > 3600
    assert new.public_key() == old.public_key()
    server.verify_directly_issued_by(old)
    server.verify_directly_issued_by(new)


def test_only_an_app_with_certificates_can_renew_them(app: Path, tmp_path: Path) -> None:
    for folder in (app, tmp_path / "none"):
        with pytest.raises(ValueError, match="holds no certificates of an app to renew"):
            renew_certificates(folder)
    subprocess.run([app / "make-certificates.sh"], check=True, capture_output=True)
    (app / "certificates" / "ca.key").write_text("no key")
    before = (app / "certificates" / "server.pem").read_bytes()
    with pytest.raises(ValueError, match="cannot be renewed"):
        renew_certificates(app)
    assert (app / "certificates" / "server.pem").read_bytes() == before


UNITS = sorted((Path(__file__).resolve().parents[2] / "deploy").glob("*.*"))


def read_unit(path: Path) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(path.read_text())
    return unit


@pytest.mark.parametrize(
    "name",
    ["kernfed-superlink.service", "kernfed-supernode@.service", "kernfed-hub.service", "kernfed-site@.service"],
)
def test_units_start_their_part_again_whatever_ended_it(name: str) -> None:
    """A node exits with 305 after a reboot, until the SuperLink has noticed that it was gone."""
    unit = read_unit(next(path for path in UNITS if path.name == name))
    assert unit["Service"]["Restart"] == "always"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"  # it is tried for as long as it takes
    assert 1 <= int(unit["Service"]["RestartSec"]) <= 60
    assert unit["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not on this machine")
def test_units_are_understood_by_systemd(tmp_path: Path) -> None:
    units = [path for path in UNITS if path.suffix in (".service", ".timer")]
    for path in units:  # the programs are not installed where they will be
        text = re.sub(r"/opt/kernfed/bin/\S+", "/bin/true", path.read_text())
        (tmp_path / path.name.replace("@.", "@north.")).write_text(text)
    files = sorted(map(str, tmp_path.iterdir()))
    done = subprocess.run(["systemd-analyze", "verify", *files], capture_output=True, text=True, check=False)
    own = [line for line in done.stderr.splitlines() if "kernfed" in line and "Failed to" not in line]
    assert own == []


@pytest.mark.parametrize("address", ["nowhere", "host:", ":1", "host:0", "host:70000", "host:x"])
def test_wrong_addresses(tmp_path: Path, address: str) -> None:
    with pytest.raises(ValueError, match="--address must be HOST:PORT"):
        write_app(tmp_path / "app", address)
    assert not (tmp_path / "app").exists()


def test_an_app_is_not_written_over_something(app: Path) -> None:
    with pytest.raises(ValueError, match="exists and is not empty"):
        write_app(app)


def test_a_completed_run_gives_its_results(app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flower_says(monkeypatch, tmp_path, list=listed("finished:completed"))
    (app / "results" / "17").mkdir(parents=True)
    (app / "results" / "17" / "result.json").write_text(json.dumps({"model": "model.kfd"}))
    told: list[str] = []
    hostile = 'quote " backslash \\ newline \n'
    finished = run_app(app, {"job": "train", "caller": hostile, "seed": 3}, report=told.append)
    assert finished.run == "17"
    assert finished.product() == app / "results" / "17" / "model.kfd"
    assert told == ["kernfed: at work"]
    assert tomllib.loads((tmp_path / "seen.toml").read_text()) == {"job": "train", "caller": hostile, "seed": 3}


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ({"list": listed("finished:failed", "no site 'x'")}, r"run 17 failed \(finished:failed\): no site 'x'"),
        ({"list": listed("finished:stopped")}, r"failed \(finished:stopped\): Flower gives no reason"),
        ({"list": listed("finished:completed")}, "result.json is not here"),
        ({"list": listed("running")}, "run 17 was running after 0.3 s and was stopped"),
        ({"list": {"out": "no", "code": 1}}, "nothing is known of run 17: no"),
        ({"run": {"out": "refused", "code": 1}}, "the run could not be started: refused"),
        ({"run": {"out": json.dumps({"success": False, "error-message": "bad app"})}}, "not be started: bad app"),
        ({"run": {"out": json.dumps({"success": True})}}, "the run could not be started"),
    ],
)
def test_whatever_else_happens_is_a_failure(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: dict[str, dict[str, object]], told: str
) -> None:
    flower_says(monkeypatch, tmp_path, **script)
    with pytest.raises(RunFailed, match=told):
        run_app(app, {"job": "train"}, timeout=0.3, report=lambda _: None)


def test_the_sites_that_took_part_are_counted_without_the_missing(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flower_says(monkeypatch, tmp_path, list=listed("finished:completed"))
    (app / "results" / "17").mkdir(parents=True)
    result = {
        "model": "model.kfd",
        "sites": ["a", "b", "c", "d"],
        "missing": {"c": "no node of site 'c' is connected"},
        "seconds": 1.0,
        "bytes_up": 5,
    }
    (app / "results" / "17" / "result.json").write_text(json.dumps(result))
    flower.flower_run(app, flower.JobKind.TRAIN)
    told = capsys.readouterr().out
    assert "train with 3 of 4 site(s) in" in told
    assert "site c is missing: no node of site 'c' is connected" in told


@pytest.mark.parametrize(("code", "said"), [(0, "run 17 is stopped"), (1, "run 17 may go on")])
def test_an_interrupted_command_stops_its_run_or_says_how(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, said: str
) -> None:
    """Before, it said interrupted while the run went on."""
    flower_says(monkeypatch, tmp_path, list=listed("running"), stop={"out": "no such right", "code": code})
    called, told = list[tuple[str, ...]](), list[str]()
    call = flower_run._flwr

    def interrupted(app: Path, *words: str) -> subprocess.CompletedProcess[str]:
        called.append(words)
        if words[0] == "list":
            raise KeyboardInterrupt
        return call(app, *words)

    monkeypatch.setattr(flower_run, "_flwr", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_app(app, {"job": "train"}, report=told.append)
    assert called[-1] == ("stop", "17")
    assert said in told[-1]
    if code:
        assert f"stop it: FLWR_HOME={app / 'home'} flwr stop 17" in told[-1]


def test_a_superlink_that_is_away_is_waited_for_and_then_named(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = {"out": "Error: Connection to the SuperLink is unavailable. Please check", "code": 1}
    flower_says(monkeypatch, tmp_path, list=away)
    monkeypatch.setattr(flower_run, "_PATIENCE", 0.3)
    told: list[str] = []
    with pytest.raises(RunFailed, match="the SuperLink stopped while run 17 was going on and did not come back"):
        run_app(app, {"job": "train"}, report=told.append)
    assert sum("the SuperLink does not answer" in line for line in told) == 1


@pytest.mark.parametrize("details", ["Task failed with unknown error.", "No heartbeat received from the task"])
def test_a_superlink_that_was_restarted_is_named(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, details: str
) -> None:
    flower_says(monkeypatch, tmp_path, list=listed("finished:failed", details))
    with pytest.raises(RunFailed, match="the SuperLink was stopped or restarted during the run; start the run again"):
        run_app(app, {"job": "train"}, report=lambda _: None)


def test_settings_take_the_type_the_app_gives_them(app: Path) -> None:
    found = parse_settings(app, ["batch-size=7", "k=3", "timeout=5", "sites=a,b", "rows=1=2"])
    assert found == {"batch-size": "7", "k": 3, "timeout": 5.0, "sites": "a,b", "rows": "1=2"}
    for word, told in (("colour=1", "--set must be NAME=VALUE"), ("measure", "--set must be"), ("k=x", "k must be")):
        with pytest.raises(ValueError, match=told):
            parse_settings(app, [word])


def test_a_folder_that_is_no_app(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a Flower app; make one with kernfed flower-app"):
        run_app(tmp_path, {}, report=print)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    with pytest.raises(ValueError, match="has no"):
        run_app(tmp_path, {}, report=print)

"""``kernfed key``: one key per site, printed as others pin it."""

import json
import tomllib

from typer.testing import CliRunner

from kernfed.cli import app
from kernfed.federation.summing.tasks import helper_site, member_of
from kernfed.site.policy import Policy


def run(*arguments):
    done = CliRunner().invoke(app, ["key", *map(str, arguments)])
    return done.exit_code, done.stdout


def test_the_key_is_made_once_and_printed_as_it_is_pinned(tmp_path):
    code, printed = run("--store", tmp_path / "new" / "a", "--name", "ward b")
    assert code == 0
    line = printed.splitlines()[0]
    _, again = run("--store", tmp_path / "new" / "a", "--name", "ward b")
    assert again.splitlines()[0] == line
    pinned = tomllib.loads(f"[roster]\n{line}\n")
    assert list(Policy.from_settings(pinned).roster) == ["ward b"]


def test_in_a_folder_of_stores(tmp_path):
    (tmp_path / "site-a").mkdir()
    code, printed = run("--store", tmp_path, "--name", "a", "--json")
    assert code == 0
    assert (tmp_path / "site-a" / "sum.key").exists()
    assert set(json.loads(printed)) == {"site", "key", "dropped"}


def test_keys_of_runs_are_dropped_after_a_restored_backup(tmp_path):
    site = helper_site("a", tmp_path)
    member_of(site).open(3)
    code, printed = run("--store", tmp_path, "--name", "a", "--drop-runs", "--json")
    assert (code, json.loads(printed)["dropped"]) == (0, 3)

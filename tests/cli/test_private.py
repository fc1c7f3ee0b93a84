"""plan and train under privacy: what is promised before is what is released, once."""

import json
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

import kernfed
from kernfed.cli import app
from kernfed.data import write_table
from kernfed.jobs.tables import row_numbers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("private")
    X, y = load_digits(return_X_y=True)
    X, y = X[:240, 8:24] / 16, y[:240] % 3
    columns = {f"p{i:02}": X[:, i] for i in range(16)}
    write_table(
        place / "rows.parquet",
        {
            **columns,
            "y": y,
            "site": np.array(["n", "s"])[np.arange(240) % 2],
            "patient": np.array([f"P{i}" for i in range(240)]),
        },
    )
    return place


def run(*words, code=0):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output + done.stderr
    return done


def words(folder, command, *more):
    return [
        command,
        "--data",
        folder / "rows.parquet",
        "--features",
        "p00:p15",
        "--label",
        "y",
        "--site",
        "site",
        *(() if command == "audit" else ("--learner", "folding")),
        *more,
    ]


PRIVACY = {
    "element-laplace": ("--epsilon", "2", "--bounds", "0,1"),
    "element-staircase": ("--epsilon", "2", "--bounds", "0,1", "--d", "0.5"),
    "record-gaussian": ("--epsilon", "3", "--delta", "1e-6", "--radius", "2", "--dimension", "8"),
    "record-moments": ("--epsilon", "3", "--radius", "2", "--dimension", "4", "--basis", "dct", "--batch-size", "1000"),
}


@pytest.mark.parametrize("name", PRIVACY)
def test_the_plan_is_what_the_release_says(folder, name, tmp_path):
    options = ("--privacy", name, *PRIVACY[name])
    told = json.loads(run(*words(folder, "plan", *options, "--json")).stdout)["privacy"]
    shown = run(*words(folder, "plan", *options)).stdout
    assert f"Each site would release once, by {name}" in shown
    assert "element: (" in shown
    assert "record: (" in shown
    out = tmp_path / "model.kfd"
    done = run(*words(folder, "train", *options, "--out", out, "--json"))
    found = json.loads(done.stdout)["privacy"]
    for key in ("mechanism", "element", "record", "promises"):
        assert found[key] == told[key]
    assert set(found["spent"]) == {"n", "s"}
    model = kernfed.load(out)
    assert [model.privacy.record.epsilon, model.privacy.record.delta] == told["record"]
    assert "Nothing remembers this release" in done.stderr
    assert "contains the rows" not in done.stderr


def test_with_a_store_the_release_happens_once(folder, tmp_path):
    options = (
        "--privacy",
        "record-gaussian",
        *PRIVACY["record-gaussian"],
        "--id",
        "patient",
        "--store",
        tmp_path / "kept",
    )
    first, second = tmp_path / "1.kfd", tmp_path / "2.kfd"
    shown = run(*words(folder, "train", *options, "--out", first))
    assert "record: (3, 1e-06)-differential privacy" in shown.stdout
    assert shown.stderr == ""
    run(*words(folder, "train", *options, "--out", second))
    assert first.read_bytes() == second.read_bytes()
    ledgers = sorted((tmp_path / "kept").rglob("ledger.jsonl"))
    assert [len(place.read_text().splitlines()) for place in ledgers] == [2, 2]  # the budget, and one release
    run(*words(folder, "train", *options, "--smoothing", "none", "--out", second))
    assert [len(place.read_text().splitlines()) for place in ledgers] == [2, 2]


def test_labels_can_be_randomised(folder, tmp_path):
    private = ("--privacy", "record-gaussian", *PRIVACY["record-gaussian"])
    options = (*private, "--label-epsilon", "1", "--classes", "0,1,2")
    told = json.loads(run(*words(folder, "train", *options, "--out", tmp_path / "m.kfd", "--json")).stdout)["privacy"]
    assert told["record"][0] == pytest.approx(4.0)
    assert "randomised" in told["promises"][2]
    for given, wrong in (
        (("--label-epsilon", "1"), "needs --classes A,B,...: all"),
        (("--classes", "0,1"), "is for --lab"),
    ):
        done = run(*words(folder, "train", *private, *given, "--out", tmp_path / "n.kfd"), code=2)
        assert wrong in done.stderr


def test_rows_are_named_by_themselves_or_by_a_hash():
    np.testing.assert_array_equal(row_numbers(np.array([5, 3])), [5, 3])
    numbers = row_numbers(np.array(["P1", "P2", "P1"]))
    assert numbers.dtype == np.int64
    assert (numbers >= 0).all()
    assert numbers[0] == numbers[2] != numbers[1]


@pytest.mark.parametrize("command", ["plan", "train"])
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ("--privacy", "element-laplace", "--epsilon", "1"),
            "needs --bounds LO,HI: public bounds, known without looking",
        ),
        (("--privacy", "element-staircase", "--epsilon", "1", "--bounds", "1"), "--bounds must be two numbers LO,HI"),
        (("--privacy", "element-laplace", "--epsilon", "1", "--bounds", "1,0"), "--bounds must be LO,HI with LO < HI"),
        (("--privacy", "element-laplace", "--epsilon", "1", "--bounds", "0,1", "--delta", "0.1"), "takes no --delta"),
        (("--privacy", "record-gaussian", "--epsilon", "1"), "needs --radius: a public bound on the L2 norm"),
        (("--privacy", "record-moments", "--epsilon", "1"), "needs --radius"),
        (("--privacy", "record-moments", "--radius", "1"), "needs --epsilon"),
        (("--privacy", "record-moments", "--epsilon", "1", "--radius", "1", "--bounds", "0,1"), "takes no --bounds"),
        (
            ("--privacy", "record-moments", "--epsilon", "1", "--radius", "1", "--dimension", "99"),
            "dimension must be <= 16",
        ),
        (("--privacy", "record-gaussian", "--epsilon", "-1", "--radius", "1"), "epsilon must be > 0"),
        (("--privacy", "magic", "--epsilon", "1"), "--privacy must be one of element-laplace"),
        (("--epsilon", "1"), "--epsilon needs --privacy"),
        (("--label-epsilon", "1"), "--label-epsilon needs --privacy"),
    ],
)
def test_missing_or_senseless_options(folder, tmp_path, command, options, told):
    more = ("--out", tmp_path / "m.kfd") if command == "train" else ()
    done = run(*words(folder, command, *options, *more), code=2)
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_oracle_rule_is_not_offered(folder, tmp_path):
    options = ("--privacy", "record-gaussian", "--epsilon", "1", "--radius", "1", "--smoothing", "oracle")
    assert "looks at the raw rows" in run(*words(folder, "train", *options, "--out", tmp_path / "m"), code=2).stderr


@pytest.mark.parametrize("command", ["plan", "train", "audit"])
def test_help_shows_an_example_with_privacy(command):
    shown = run(command, "--help").stdout
    assert "--privacy" in shown
    assert "--bounds" in shown
    assert "Example: kernfed" in shown


def test_help_is_quick():
    """Options must not load what computes."""
    import subprocess

    code = "import sys; from kernfed.cli import app; print('numpy' in sys.modules, 'kernfed.privacy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]

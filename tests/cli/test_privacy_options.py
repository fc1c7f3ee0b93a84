"""Options of mechanisms: each does something, or is refused; the same in every command."""

import numpy as np
import pytest
from typer.testing import CliRunner

from kernfed.cli import app
from kernfed.data import read_table, write_table
from kernfed.jobs.learning import Learning
from kernfed.site.release.settings import NAMES

#: What each mechanism needs, and for every option a value that it could have.
NEEDED = {
    "element-laplace": {"epsilon": "1", "bounds": "0,1"},
    "element-staircase": {"epsilon": "1", "bounds": "0,1"},
    "record-gaussian": {"epsilon": "1", "radius": "1"},
    "record-moments": {"epsilon": "1", "radius": "1"},
}
VALUES = {
    "epsilon": "2",
    "delta": "1e-6",
    "bounds": "0,2",
    "d": "0.5",
    "radius": "2",
    "dimension": "2",
    "basis": "dct",
    "smoothing": "3",
    "label-epsilon": "1",
}
#: What a mechanism has no use for: noise on elements knows no delta, moments have no noisy rows to smooth.
USELESS = {
    "element-laplace": {"delta", "radius", "dimension", "basis"},
    "element-staircase": {"delta", "radius", "dimension", "basis"},
    "record-gaussian": {"bounds", "d", "basis"},
    "record-moments": {"bounds", "d", "smoothing"},
}
FOLDING = ("--learner", "folding")
COMMANDS = {"plan": FOLDING, "train": (*FOLDING, "--out", "model.kfd"), "audit": ("--trials", "20")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("options")
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    write_table(place / "rows.csv", {**{f"f{i}": rng.random(40) + y for i in range(3)}, "y": y})
    return place


@pytest.fixture(scope="module")
def table(folder):
    return read_table(folder / "rows.csv", label="y")


def given(name, **options):
    """Options of a learner as a command gives them, typed as the command line types them."""
    typed = {key: _typed(key, value) for key, value in options.items()}
    return Learning("folding", typed if name is None else {"privacy": name, **typed})


def _typed(option, value):
    if option in ("bounds", "basis", "smoothing", "classes"):
        return value
    return int(value) if option == "dimension" else float(value)


@pytest.mark.parametrize("option", VALUES)
@pytest.mark.parametrize("name", NAMES)
def test_an_option_changes_the_release_or_is_refused(table, name, option):
    beside = {"classes": "0,1"} if option == "label-epsilon" else {}
    options = given(name, **{**NEEDED[name], option: VALUES[option], **beside})
    if option in USELESS[name]:
        others = " or ".join(one for one in NAMES if option not in USELESS[one])
        with pytest.raises(ValueError, match=f"^--privacy {name} takes no --{option}, which is for {others}; leave"):
            options.make(table)
    else:
        plain = given(name, **NEEDED[name]).make(table).recipe()
        assert options.make(table).recipe().to_values() != plain.to_values()


@pytest.mark.parametrize("option", VALUES)
def test_without_privacy_every_option_is_refused(table, option):
    with pytest.raises(ValueError, match=f"^--{option} needs --privacy (element|record)-.*leave --{option} out$"):
        given(None, **{option: VALUES[option]}).make(table)


@pytest.mark.parametrize(
    ("text", "classes"), [("0,1", (0, 1)), ("-1, 1", (-1, 1)), ("no, yes", ("no", "yes")), ('["0", "1"]', ("0", "1"))]
)
def test_declared_classes_are_public_and_not_of_the_data(table, text, classes):
    private = {**NEEDED["record-gaussian"], "label-epsilon": "1", "classes": text}
    assert given("record-gaussian", **private).make(table).recipe().labels.classes == classes
    del private["classes"]
    with pytest.raises(ValueError, match="--label-epsilon needs --classes"):
        given("record-gaussian", **private).make(table)


def test_steps_of_smoothing(table):
    for text, steps in (("none", 0), ("3", 3), ("coupled_bootstrap", "coupled_bootstrap"), (None, "coupled_bootstrap")):
        options = NEEDED["record-gaussian"] if text is None else {**NEEDED["record-gaussian"], "smoothing": text}
        assert given("record-gaussian", **options).make(table).recipe().smoothing == steps


def test_what_suits_the_mechanism(table):
    assert given(None).make(table).batch_size == "auto"
    assert given("record-gaussian", **NEEDED["record-gaussian"]).make(table).batch_size == "auto"
    moments = given("record-moments", **NEEDED["record-moments"])
    learner = moments.make(table)
    assert learner.batch_size == 1000
    assert learner.recipe().mechanism.dimension == 3
    assert learner.recipe().mechanism.basis == "random"
    assert Learning("folding", {**moments.values, "batch-size": 7}).make(table).batch_size == 7


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"bounds": "1"}, "--bounds must be two numbers LO,HI, got '1'"),
        ({"bounds": "0,1,2"}, "--bounds must be two numbers"),
        ({"bounds": "a,b"}, "--bounds must be two numbers"),
        ({"bounds": "1,0"}, "LO < HI"),
        ({"bounds": "1,1"}, "LO < HI"),
        ({"bounds": "nan,1"}, "LO < HI"),
        ({"bounds": "0,inf"}, "both finite"),
        ({"bounds": "0,1", "smoothing": "1.5"}, "--smoothing must be a number of steps, none or coupled_bootstrap"),
        ({"bounds": "0,1", "smoothing": "\u00b2"}, "--smoothing must be a number of steps"),
        ({"bounds": "0,1", "smoothing": "-1"}, "smoothing must be >= 0"),
        ({"bounds": "0,1", "label-epsilon": "0"}, "--label-epsilon must be > 0"),
        ({"bounds": "0,1", "label-epsilon": "nan"}, "--label-epsilon must be a finite number"),
    ],
)
def test_values_that_make_no_sense(table, options, match):
    with pytest.raises(ValueError, match=match):
        given("element-laplace", epsilon="1", **options).make(table).recipe()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--privacy", "record-gaussian", "--epsilon", "1", "--radius", "1", "--basis", "random"), "takes no --basis"),
        (("--privacy", "element-laplace", "--epsilon", "1", "--bounds", "0,1", "--basis", "dct"), "takes no --basis"),
        (("--privacy", "element-laplace", "--epsilon", "1", "--bounds", "1,0"), "--bounds must be LO,HI with LO < HI"),
        (("--privacy", "magic"), "--privacy must be one of"),
    ],
)
def test_commands_refuse_alike(folder, monkeypatch, command, options, told):
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, [command, "--data", "rows.csv", "--label", "y", *COMMANDS[command], *options])
    assert done.exit_code == 2
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in folder.iterdir()] == ["rows.csv"]


@pytest.mark.parametrize("command", COMMANDS)
def test_one_class_is_not_enough(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    write_table("rows.csv", {"f0": np.arange(40) % 7, "y": np.full(40, 5)})
    options = ("--privacy", "record-gaussian", "--epsilon", "1", "--radius", "1")
    done = CliRunner().invoke(app, [command, "--data", "rows.csv", "--label", "y", *COMMANDS[command], *options])
    assert (done.exit_code, done.stderr) == (2, "kernfed: the label must have at least 2 classes, every row has 5\n")

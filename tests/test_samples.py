"""Files, stores and messages of earlier versions, as they were written then: they load, and answer what they did."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import kernfed as kf
from kernfed.errors import KernfedError
from kernfed.site.protocol.message import decode_question
from samples.freeze import answer, freeze

SAMPLES = Path(__file__).parent / "samples"
VERSIONS = sorted(path.name for path in SAMPLES.glob("v*"))
#: Files that answer only with something else: sites, or the package of the papers.
NOT_ALONE = ("folding-sites", "averaging")
WHOLE = [
    (version, path.stem)
    for version in VERSIONS
    for path in sorted((SAMPLES / version).glob("*.kfd"))
    if path.stem not in NOT_ALONE
]


def check_answers(folder: Path, name: str, file: Path) -> None:
    answers = json.loads((folder / "answers.json").read_text())
    given = answer(name, kf.load(file), np.array(answers["queries"]))
    np.testing.assert_allclose(given, answers[name], rtol=1e-9, atol=1e-12)


def check_stores(folder: Path, copy: Path) -> None:
    """The stores of a version answer for the model of that version."""
    shutil.copytree(folder / "stores", copy)
    answers, rows = json.loads((folder / "answers.json").read_text()), np.load(folder / "rows.npz")
    halves = (("north", slice(24)), ("south", slice(24, 48)))
    sites = {name: (rows["X"][part], rows["y"][part]) for name, part in halves}
    with kf.Federation.local(sites, seed=3, store=copy) as federation:
        model = kf.load(folder / "folding-sites.kfd").connect(federation)
        given = model.predict_proba(np.array(answers["queries"]))
        np.testing.assert_allclose(given, answers["folding-sites"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("version", "name"), WHOLE)
def test_a_file_answers_as_it_did(version: str, name: str) -> None:
    check_answers(SAMPLES / version, name, SAMPLES / version / f"{name}.kfd")


@pytest.mark.parametrize(("version", "name"), WHOLE)
def test_a_file_written_again_answers_as_it_did(version: str, name: str, tmp_path: Path) -> None:
    kf.save(kf.load(SAMPLES / version / f"{name}.kfd"), tmp_path / "again.kfd")
    check_answers(SAMPLES / version, name, tmp_path / "again.kfd")


@pytest.mark.parametrize("version", VERSIONS)
def test_stores_answer_for_the_model_of_their_version(version: str, tmp_path: Path) -> None:
    check_stores(SAMPLES / version, tmp_path / "stores")


@pytest.mark.parametrize(("version", "protocol"), [("0.1", 1), ("0.2", 2)])
def test_messages_of_earlier_protocols_are_refused_by_name(version: str, protocol: int) -> None:
    with pytest.raises(KernfedError, match=rf"protocol {protocol} .*{version}\.0.*, this is protocol 3"):
        decode_question((SAMPLES / f"v{version}" / "question.bin").read_bytes())


def test_this_version_can_be_frozen_and_is_read(tmp_path: Path) -> None:
    freeze(tmp_path / "new")
    for path in sorted((tmp_path / "new").glob("*.kfd")):
        if path.stem not in NOT_ALONE:
            check_answers(tmp_path / "new", path.stem, path)
    check_stores(tmp_path / "new", tmp_path / "stores")
    assert decode_question((tmp_path / "new" / "question.bin").read_bytes()).task == "scores"

"""Files, stores and messages of earlier versions, as they were written then: they load, and answer what they did."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import kernfed as kf

SAMPLES = Path(__file__).parent / "samples" / "v0.1"
ANSWERS = json.loads((SAMPLES / "answers.json").read_text())
QUERIES = np.array(ANSWERS["queries"])
ANSWER = {
    "personal": lambda model: model.for_site("north").predict_proba(QUERIES),
    "ridge-regress": lambda model: model.predict(QUERIES),
    **dict.fromkeys(("kahm", "deepkahm", "widekahm"), lambda model: model.distance(QUERIES)),
}
WHOLE = sorted(path.stem for path in SAMPLES.glob("*.kfd") if path.stem not in ("folding-sites", "averaging"))


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_of_0_1_answers_as_it_did(name: str) -> None:
    model = kf.load(SAMPLES / f"{name}.kfd")
    answer = ANSWER.get(name, lambda model: model.predict_proba(QUERIES))
    np.testing.assert_allclose(answer(model), ANSWERS[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_of_0_1_written_again_answers_as_it_did(name: str, tmp_path: Path) -> None:
    kf.save(kf.load(SAMPLES / f"{name}.kfd"), tmp_path / "again.kfd")
    answer = ANSWER.get(name, lambda model: model.predict_proba(QUERIES))
    np.testing.assert_allclose(answer(kf.load(tmp_path / "again.kfd")), ANSWERS[name], rtol=1e-9, atol=1e-12)


def test_stores_of_0_1_answer_for_the_model_of_0_1(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "stores", tmp_path / "stores")
    rows = np.load(SAMPLES / "rows.npz")
    sites = {
        name: (rows["X"][part], rows["y"][part]) for name, part in (("north", slice(24)), ("south", slice(24, 48)))
    }
    with kf.Federation.local(sites, seed=3, store=tmp_path / "stores") as federation:
        model = kf.load(SAMPLES / "folding-sites.kfd").connect(federation)
        np.testing.assert_allclose(model.predict_proba(QUERIES), ANSWERS["folding-sites"], rtol=1e-9, atol=1e-12)

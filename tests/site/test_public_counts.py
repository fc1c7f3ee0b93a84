"""Where privacy is required the number of rows is public, and changes when the site says so, not when somebody goes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernfed.federation import Payload, Policy, Site, SiteStore
from kernfed.federation.folding.machines import folding_handle
from kernfed.federation.folding.release import Recipe
from kernfed.files import labels_to_values
from kernfed.kahm.model import FoldingParameters
from kernfed.privacy import RecordGaussian, RecordMoments
from kernfed.site.protocol.message import Question, decode_reply, encode_question

X = np.random.default_rng(3).standard_normal((20, 3))
Y = np.arange(20) % 2
GAUSSIAN, MOMENTS = RecordGaussian(0.5, 1e-5, 2.0), RecordMoments(0.5, 1e-5, 2, radius=2.0)


def make(path: Path, X: Any = X, y: Any = Y, ids: Any = None, **policy: Any) -> Site:
    rules = Policy(("*",), **{"max_record_epsilon": 9.0, **policy})
    return Site("a", X, y, ids=np.arange(20) if ids is None else ids, store=SiteStore(path), policy=rules)


def told(site: Site, task: str, values: dict[str, Any]) -> tuple[dict[str, Any], int]:
    question = Question("run", np.random.default_rng().bytes(8).hex(), task, Payload(values=values))
    data = site.answer(encode_question(question))
    reply = decode_reply(data, question, "a")
    assert reply.refusal is None, reply.refusal
    return dict(reply.payload.values), len(data)


def public(site: Site, mechanism: Any) -> dict[str, Any]:
    """All numbers about rows that a coordinator can ask for, and sizes of replies."""
    recipe, parameters = (
        Recipe(mechanism, rows_per_class=10).to_values(),
        # one dimension, or the noise decides how many and with them the size
        FoldingParameters(batch_size=5, measure="rms", partition="order", subspace_dim=1),
    )
    handle = folding_handle(parameters, recipe)
    described = told(site, "describe", {})
    surveyed = told(site, "ridge_survey", {"task": "classify", "median": False, "seed": 0})
    fit = {"handle": handle, "parameters": parameters.to_values(), "privacy": recipe}
    trained, _ = told(site, "folding_fit", fit)
    fetch = {"handle": handle, "generation": {"a": trained["generation"]}}
    _, size = told(site, "released_machines", fetch)
    return {
        "describe": described,
        "survey": surveyed,
        "trained": {name: trained[name] for name in ("classes", "machines", "rows")},
        "size": size if mechanism is GAUSSIAN else None,  # machines of moments are as large as the noise makes them
    }


@pytest.mark.parametrize("mechanism", [GAUSSIAN, MOMENTS], ids=["rows", "moments"])
def test_forgetting_and_adding_change_no_number_until_they_are_published(tmp_path: Path, mechanism: Any) -> None:
    site = make(tmp_path)
    before = public(site, mechanism)
    site.as_owner("forget_rows", Payload({"ids": np.array([3, 4, 7])}))
    assert public(site, mechanism) == before
    more = Payload({"X": np.ones((2, 3))}, {"y": labels_to_values(np.array([0, 1]))})
    site.as_owner("add_rows", more)
    assert public(site, mechanism) == before
    kept = ~np.isin(np.arange(20), [3, 4, 7])
    again = make(tmp_path, X[kept], Y[kept], np.arange(20)[kept])  # the rows are gone from the table as well
    assert public(again, mechanism) == before
    again.data.publish()
    after = public(again, mechanism)
    assert after["trained"]["rows"] == 19
    assert after["describe"][0]["counts"] == [10, 9]


def test_a_blank_row_is_nothing_of_the_row_that_was(tmp_path: Path) -> None:
    site = make(tmp_path)
    public(site, GAUSSIAN)
    site.as_owner("forget_rows", Payload({"ids": np.array([3])}))
    rows = site.rows()
    assert not rows.X[rows.ids == 3].any()
    assert all(number.tobytes() not in place.read_bytes() for number in X[3] for place in tmp_path.rglob("*.*"))


@pytest.mark.parametrize("policy", [{"private_labels": True}, {"labels": "targets"}], ids=["private", "targets"])
def test_a_secret_label_is_not_kept_for_the_blank_row(tmp_path: Path, policy: dict[str, Any]) -> None:
    labels = Y + 40
    site = make(tmp_path, y=labels, **policy)
    site.as_owner("forget_rows", Payload({"ids": np.array([3])}))
    assert site.store.read_state()["blank"] == [[3, None]]
    rows = site.rows()
    assert rows.y[rows.ids == 3].tolist() == [0]


def test_rows_that_waited_and_were_forgotten_leave_nothing(tmp_path: Path) -> None:
    site = make(tmp_path)
    payload = Payload({"X": np.ones((1, 3))}, {"y": labels_to_values(np.array([0]))})
    added = site.as_owner("add_rows", payload).arrays["ids"]
    site.as_owner("forget_rows", Payload({"ids": added}))
    assert site.store.read_state()["blank"] == []
    site.data.publish()
    assert len(site.rows().ids) == 20


def test_a_site_that_does_not_require_privacy_forgets_at_once(tmp_path: Path) -> None:
    site = Site("a", X, Y, store=SiteStore(tmp_path), policy=Policy.open())
    site.as_owner("forget_rows", Payload({"ids": np.array([3])}))
    assert len(site.rows().ids) == 19
    assert "blank" not in site.store.read_state()

"""A folding model that holds its machines: one scoring says everything, whatever is asked."""

import numpy as np
import pytest

from kernfed.kahm.bank import Bank, fit_machines
from kernfed.kahm.members import AGGREGATES
from kernfed.kahm.model import FoldingModel, FoldingParameters, Member

CLASSES = np.array(["a", "b", "c"])
#: Which classes each site holds; "c" only one of them.
HELD = {"north": (0, 1), "south": (0, 1, 2), "west": (1,)}


@pytest.fixture
def model(rng, request):
    parameters = FoldingParameters(
        aggregate=getattr(request, "param", "min"), measure="rms", batch_size=100, partition="order"
    )
    banks, members = {}, {}
    for name, held in HELD.items():
        batches = [rng.standard_normal((12, 4)) + 3 * number for number in held for _ in range(2)]
        groups = [place for place in range(len(held)) for _ in range(2)]
        banks[name] = Bank.assemble(fit_machines(batches), groups, len(held))
        members[name] = Member(held, 1, len(batches), 12 * len(batches), 0.1)
    return FoldingModel(parameters, "handle", CLASSES, 4, members, banks_=banks)


@pytest.fixture
def queries(rng):
    return 3 * rng.standard_normal((60, 4)) + 3


@pytest.mark.parametrize("model", AGGREGATES, indirect=True)
def test_an_answer_is_what_the_other_methods_say(model, queries):
    answer = model.answer(queries)
    np.testing.assert_array_equal(answer.labels, model.predict(queries))
    np.testing.assert_array_equal(answer.probabilities, model.predict_proba(queries))
    np.testing.assert_array_equal(answer.scores, model.scores(queries))
    told = model.explain(queries)
    for name in ("site", "batch", "score"):
        np.testing.assert_array_equal(getattr(answer, name), getattr(told, name))
    assert (answer.sites, answer.missing) == (("north", "south", "west"), {})


def test_an_answer_scores_each_machine_once(model, queries, monkeypatch):
    scored = []
    score = Bank.scores
    monkeypatch.setattr(Bank, "scores", lambda bank, *given: scored.append(bank) or score(bank, *given))
    model.answer(queries)
    assert len(scored) == len(HELD)


@pytest.mark.parametrize("model", AGGREGATES, indirect=True)
def test_who_decided_holds_the_class_and_had_the_smallest_score(model, queries):
    answer, by_site = model.answer(queries), model.scores_by_site(queries)
    for row, (label, site, batch, score) in enumerate(
        zip(answer.labels, answer.site, answer.batch, answer.score, strict=True)
    ):
        number = CLASSES.tolist().index(label)
        own = {name: by_site[place, row, number] for place, name in enumerate(model.sites) if number in HELD[name]}
        assert score == min(own.values())
        assert own[site] == score
        assert model.banks_[site].groups[batch] == HELD[site].index(number)

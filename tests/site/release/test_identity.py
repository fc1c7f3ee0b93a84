"""What is charged follows from the question, the preparation and what the site published, never from the rows."""

from typing import Any

import numpy as np
import pytest

from kernfed.data.columns import raw_table
from kernfed.data.preparation import Preparation
from kernfed.data.preparation_plans import CategoryPlan
from kernfed.federation import Payload, Policy, Site
from kernfed.federation.folding.machines import folding_handle
from kernfed.federation.folding.release import Recipe
from kernfed.kahm.model import FoldingParameters
from kernfed.privacy import RecordGaussian, RecordMoments
from kernfed.site.protocol.message import Question, decode_reply, encode_question
from kernfed.site.release.books import charges

N = 12
PARAMETERS = FoldingParameters(batch_size=6, measure="rms", partition="order", subspace_dim=1)


def asked(site: Site, task: str, values: dict[str, Any], number: int) -> int:
    """Size of the reply to a question, which must be answered."""
    question = Question("run", f"{number:016x}", task, Payload(values=values))
    data = site.answer(encode_question(question))
    assert decode_reply(data, question, "a").refusal is None
    return len(data)


@pytest.mark.parametrize(
    "mechanism", [RecordGaussian(0.1, 1e-5, 2.0), RecordMoments(0.1, 1e-5, 1, radius=2.0)], ids=["rows", "moments"]
)
def test_charges_do_not_tell_whether_a_word_is_in_the_data(mechanism: Any) -> None:
    """Prepare by one word, train, prepare by another, train: one charge each, whichever of them a row holds."""
    recipe = Recipe(mechanism, rows_per_class=6).to_values()
    fit = {"handle": folding_handle(PARAMETERS, recipe), "parameters": PARAMETERS.to_values(), "privacy": recipe}
    told = []
    for held in ("measles", "nothing"):
        table = raw_table({"diagnosis": [held, *["nothing"] * (N - 1)]}, source="a table")
        site = Site("a", table, np.arange(N) % 2, policy=Policy(("*",), max_record_epsilon=9.0))
        seen = []
        for number, word in enumerate(("nobody has it", "measles", "nobody has it", "measles")):
            plan = CategoryPlan("diagnosis", values=(word,), other=False)
            values = {"preparation": Preparation((plan,)).to_values()}
            sizes = [asked(site, "prepare", values, 2 * number), asked(site, "folding_fit", fit, 2 * number + 1)]
            seen.append((sizes, charges(site)))
        told.append(seen)
    assert told[0] == told[1]
    assert [count for _, count in told[0]] == [1, 2, 2, 2]

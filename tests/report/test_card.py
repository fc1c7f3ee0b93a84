"""Model cards: every kind of model has one, with what it is, data, privacy, figures and limits."""

import numpy as np
import pytest

from kernfed.report import gather_evidence, model_card


def headings(card):
    return [line[3:] for line in card.splitlines() if line.startswith("## ")]


def test_every_kind_of_model_has_a_card(small_models):
    for model in small_models[0].values():
        card = model_card(model)
        assert card.startswith("# ")
        assert headings(card)[:2] == ["What it is", "Data"]
        assert headings(card)[-1] == "Limits"
        assert "It was not tested for this card" in card
        assert f"{model.n_features_in_} columns of numbers" in card


def test_a_card_says_how_good_it_is_and_where_rows_are(small_models, small_holdout):
    models, traffic = small_models
    card = model_card(models["machines"], gather_evidence(models["machines"], small_holdout, traffic))
    accuracy = models["machines"].score(*map(np.concatenate, zip(*small_holdout.values(), strict=True)))
    assert f"| Accuracy | {100 * accuracy:.1f} % |" in card
    assert "It was not tested" not in card
    assert "whoever has it has these rows" in card
    assert "| east | 80 | 2 |" in card
    assert "only where its sites are asked" in model_card(models["sites"])


@pytest.mark.parametrize("title", ["<script>x</script>", "a | b"])
def test_titles_stay_in_their_place(small_models, title):
    card = model_card(small_models[0]["ridge"], title=title)
    assert "<script>" not in card
    assert card.count("\n# ") == 0

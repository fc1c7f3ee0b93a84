"""Rows that go or come under privacy: noisy rows go with them, only new ones are charged, moments are released anew."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernfed.errors import StaleModel, TooFewReplies
from kernfed.federation import Federation, FoldingLearner, Payload, Policy
from kernfed.federation.folding.machines import fit_batches, read_machines
from kernfed.federation.folding.release import Recipe
from kernfed.files import labels_to_values
from kernfed.kahm.model import FoldingModel
from kernfed.kahm.model_file import pack_machines
from kernfed.privacy import RandomizedLabels, RecordGaussian, RecordMoments
from kernfed.site.release.kept import FOLDER
from kernfed.site.release.permit import open_ledger
from kernfed.site.rows import Rows
from kernfed.site.site import Site
from oracles.federation import SFM, Data, sites_data

GAUSSIAN, MOMENTS = RecordGaussian(3.0, 1e-5, 3.0), RecordMoments(3.0, 1e-5, 3, radius=4.0)
#: Sites of these tests live as long as the test; that a ledger is not kept is tested in test_private_folding.
pytestmark = pytest.mark.filterwarnings("ignore::kernfed.site.release.kept.LedgerNotKept")


@pytest.fixture
def data(rng: np.random.Generator) -> Data:
    return sites_data(rng, "ab")


@pytest.fixture
def new(rng: np.random.Generator) -> tuple[Any, Any]:
    return rng.standard_normal((7, 5)), np.arange(7) % 3


def fit(federation: Federation, mechanism: Any = GAUSSIAN, **settings: Any) -> FoldingModel:
    return FoldingLearner(**{**SFM, "batch_size": 8, "privacy": mechanism, "rows_per_class": 20, **settings}).fit(
        federation
    )


def site_of(federation: Federation, name: str = "a") -> Site:
    return federation.engine.site(name)  # type: ignore[attr-defined,no-any-return]


def charges(federation: Federation, name: str = "a") -> int:
    return len(open_ledger(site_of(federation, name)).entries())


def noisy_rows(site: Site) -> Rows:
    """The released rows, in the order of the site's."""
    record = next(r for name in site.store.names(FOLDER) if (r := site.store.read(FOLDER, name)) and "rows" in r.arrays)
    place = dict(zip(record.arrays["ids"].tolist(), record.arrays["rows"], strict=True))
    rows = site.rows()
    return Rows(np.stack([place[number] for number in rows.ids.tolist()]), rows.y, rows.ids)


def is_from_scratch(site: Site, model: FoldingModel) -> bool:
    """Whether the site's machines are those of fitting their batches of released rows from scratch."""
    entry = read_machines(site, model.handle)
    assert entry is not None
    expected = pack_machines(
        fit_batches(
            noisy_rows(site), entry.parameters, entry.labels.tolist(), list(entry.batches), shape=Recipe(GAUSSIAN).shape
        ).machines
    )
    assert sorted(entry.ids.tolist()) == sorted(site.rows().ids.tolist())
    return all(array.tobytes() == expected[name].tobytes() for name, array in pack_machines(entry.machines).items())


# Forgetting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hold", ["sites", "machines"])
def test_a_forgotten_row_takes_its_noisy_row_with_it_and_costs_nothing(data: Data, tmp_path: Path, hold: str) -> None:
    with Federation.local(data, store=tmp_path) as federation:
        model = fit(federation, hold="sites")
        site = site_of(federation)
        gone = noisy_rows(site).X[[4, 9]]
        model.forget("a", rows=[4, 9])
        with pytest.raises(StaleModel):
            model.predict(data["b"][0])
        model = fit(federation, hold=hold)
        assert not {4, 9} & set(site.rows().ids.tolist())
        assert charges(federation) == 1
        assert is_from_scratch(site, model)
        for place in tmp_path.rglob("*.safetensors"):
            for row in gone:
                assert row.tobytes() not in place.read_bytes(), place


def test_only_the_machines_that_held_the_row_are_fitted_again(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    with Federation.local(data) as federation:
        model = fit(federation)
        sizes: list[int] = []
        honest = Recipe.shape

        def note(self: Recipe, batches: Any, parameters: Any) -> Any:
            sizes.extend(map(len, batches))
            return honest(self, batches, parameters)

        monkeypatch.setattr(Recipe, "shape", note)
        entry = read_machines(site_of(federation), model.handle)
        assert entry is not None
        held = next(len(batch) for batch in entry.batches if 4 in batch)
        model.forget("a", rows=[4])
        assert sizes == [held - 1]


def test_moments_without_a_row_are_a_new_release(data: Data) -> None:
    with Federation.local(data) as federation:
        model = fit(federation, MOMENTS)
        before = model.scores(data["b"][0])
        newer = model.forget("a", rows=[4])
        assert charges(federation) == 2
        assert (newer.scores(data["b"][0]) != before).any()
        assert newer.members_["a"].rows == 39
        assert newer.privacy is not None
        assert newer.privacy.spent["a"][0] > 4 > newer.privacy.spent["b"][0]
        with pytest.raises(StaleModel):
            model.predict(data["b"][0])
        assert fit(federation, MOMENTS).members_ == newer.members_
        assert charges(federation) == 2


def test_a_row_is_forgotten_also_where_there_is_no_budget_left(data: Data) -> None:
    with Federation.local(data, policies={"a": Policy(("*",), max_record_epsilon=3.0)}) as federation:
        model = fit(federation, MOMENTS)
        with pytest.raises(TooFewReplies, match=r"'a': .*requires privacy, and 'forget_rows' is a command at the site"):
            model.forget("a", rows=[4])
        site = site_of(federation)
        site.as_owner("forget_rows", Payload({"ids": np.array([4])}))
        assert not site.rows().X[site.rows().ids == 4].any()  # a blank row stands in its place
        site.data.publish()
        assert 4 not in site.rows().ids
        assert site.store.names(FOLDER) == []
        assert charges(federation) == 1


def test_rows_kept_aside_are_not_in_the_moments(data: Data) -> None:
    with Federation.local(data, holdout=0.3) as federation:
        model = fit(federation, MOMENTS)
        aside = site_of(federation).held_out().ids[:1].tolist()
        model.forget("a", rows=aside).predict(data["b"][0])
        fit(federation, MOMENTS, batch_size=5)
        assert charges(federation) == 1


def test_forgetting_a_site_or_the_model(data: Data) -> None:
    with Federation.local(data) as federation:
        model = fit(federation)
        rest = model.forget("a")
        assert rest.sites == ("b",)
        fit(federation)
        assert charges(federation) == 1  # its release is still there, and answers


def test_all_rows_of_a_site_can_be_forgotten(data: Data) -> None:
    with Federation.local(data) as federation:
        model = fit(federation).forget("a", rows=list(range(40)))
        assert model.sites == ("b",)
        assert site_of(federation).store.names(FOLDER) == []


# Adding -----------------------------------------------------------------------------------------------------------


def test_only_new_rows_are_charged(data: Data, new: Any) -> None:
    with Federation.local(data) as federation:
        model = fit(federation)
        site = site_of(federation)
        before, answers = noisy_rows(site).X, model.scores(data["b"][0])
        larger = model.add_rows("a", *new)
        assert larger.members_["a"].rows == 47
        np.testing.assert_array_equal(noisy_rows(site).X[:40], before)
        persons = [entry.persons for entry in open_ledger(site).entries()]
        assert persons[1] is not None
        assert set(persons[1].tolist()) == set(open_ledger(site).keys(site.rows().ids[40:]).tolist())
        assert open_ledger(site).spent().epsilon == pytest.approx(3.0, rel=1e-6)
        assert is_from_scratch(site, larger)
        np.testing.assert_array_equal(model.scores(data["b"][0]), answers)  # of what was released for it


def test_rows_are_released_for_the_model_that_asks_and_no_other(data: Data, new: Any) -> None:
    with Federation.local(data) as federation:
        other = fit(federation, RecordGaussian(3.0, 1e-5, 3.5))
        plain = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        model = fit(federation)
        assert charges(federation) == 2
        answers = [older.scores(data["b"][0]) for older in (other, plain)]
        model.add_rows("a", *new).predict(data["b"][0])
        assert charges(federation) == 3
        for older, before in zip((other, plain), answers, strict=True):
            np.testing.assert_array_equal(older.scores(data["b"][0]), before)
        assert fit(federation, RecordGaussian(3.0, 1e-5, 3.5)).members_["a"].rows == 47
        assert charges(federation) == 4


def test_rows_added_without_privacy_are_released_when_somebody_asks(data: Data, new: Any) -> None:
    with Federation.local(data) as federation:
        fit(federation)
        FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation).add_rows("a", *new)
        assert charges(federation) == 1
        assert fit(federation).members_["a"].rows == 47
        assert charges(federation) == 2


def test_moments_with_more_rows_are_a_new_release(data: Data, new: Any) -> None:
    with Federation.local(data) as federation:
        model = fit(federation, MOMENTS).add_rows("a", *new)
        assert model.members_["a"].rows == 47
        assert charges(federation) == 2


@pytest.mark.parametrize("labels", [None, RandomizedLabels(1.0, (0, 1, 2))], ids=["public", "randomised"])
def test_rows_are_added_without_those_who_have_paid_all(data: Data, new: Any, labels: Any) -> None:
    """Moments with more rows are another release: the first 40 cannot pay it, and stand in it as zeros."""
    policy = Policy(("*",), max_record_epsilon=4.0 if labels else 3.0)
    with Federation.local(data, policies={"a": policy}) as federation:
        model = fit(federation, MOMENTS, labels=labels)
        before = charges(federation)
        with pytest.raises(TooFewReplies, match="'add_rows' is a command at the site"):
            model.add_rows("a", *new)
        X, y = new[:2]
        payload = Payload({"X": X}, {"y": labels_to_values(y), "handle": model.handle})
        site = site_of(federation)
        site.as_owner("add_rows", payload)
        assert len(site.rows().ids) == 40  # they wait, for a number that grows tells that somebody came
        site.data.publish()
        assert len(site.rows().ids) == 47
        fit(federation, MOMENTS, labels=labels)
        later, old = open_ledger(site).entries()[before:], open_ledger(site).keys(site.rows().ids[:40])
        assert later
        assert all(entry.persons is not None and not entry.concerns(old).any() for entry in later)
        assert open_ledger(site).spent().epsilon <= policy.max_record_epsilon


def test_another_site_can_join(data: Data, new: Any) -> None:
    with Federation.local(data) as federation:
        for labels in (None, RandomizedLabels(1.0, (0, 1, 2))):
            name = "c" if labels is None else "d"
            model = fit(federation, labels=labels).add_site(name, new)
            assert model.privacy is not None
            assert model.privacy.spent[name][0] == pytest.approx(3.0 if labels is None else 4.0, rel=0.1)
            assert name in str(model.privacy)

"""The books of a site: who has paid, what is remembered of the ledger, and what stops releases."""

import json
import shutil
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernfed.errors import LedgerRewound, Refused
from kernfed.federation import Federation, FoldingLearner, Policy, Site, SiteStore
from kernfed.files import Record
from kernfed.privacy import Ledger, PureEvent, RecordGaussian, RecordMoments, RecordRidge
from kernfed.privacy.accounting import GaussianEvent, epsilon_for
from kernfed.site.release.books import LEDGER, SECRET, charges, open_ledger, spent
from kernfed.site.release.kept import FOLDER
from kernfed.site.release.permit import Permit, statement
from kernfed.site.rows import Rows

GAUSSIAN = RecordGaussian(1.0, 1e-5, 2.0)
SUMS = RecordRidge(1.0, 1e-5, 1.0, 1.0)
N = 8
#: Another mechanism, and with it another release.
OTHER = RecordGaussian(1.0, 1e-5, 2.5)


@pytest.fixture
def rows(rng: np.random.Generator) -> Rows:
    return named(rng.standard_normal((N, 5)), [f"p{i}" for i in range(N)])


def named(X: Any, persons: list[str] | None, first: int = 0) -> Rows:
    ids = np.arange(first, first + len(X), dtype=np.int64)
    return Rows(X, np.arange(len(X)) % 2, ids, None if persons is None else np.array(persons, dtype=np.str_))


def make(rows: Rows, path: Path | None = None, **policy: Any) -> Site:
    store = SiteStore(path) if path is not None else None
    return Site("a", rows.X, rows.y, ids=rows.ids, persons=rows.persons, store=store, policy=Policy(("*",), **policy))


def by_row(site: Site, rows: Rows, mechanism: RecordGaussian = GAUSSIAN) -> Any:
    def compute(part: Rows, ledger: Ledger) -> Any:
        return mechanism.release(part.X, ledger=ledger, ids=part.people).values

    return Permit(site, mechanism).row_by_row(rows, compute)


def sums(site: Site, rows: Rows, key: str = "") -> Record:
    def compute(ledger: Ledger) -> Record:
        return Record({"second": SUMS.release(rows.X, rows.y, ledger=ledger, ids=rows.people).moments.second})

    return Permit(site, SUMS).once(rows, compute, key=key)


# Persons ----------------------------------------------------------------------------------------------------------


def test_a_person_who_comes_back_under_another_id_has_paid_already(rng: np.random.Generator, tmp_path: Path) -> None:
    """Forget the row, add it under a new id, release again: 31 draws of one person for a budget of 3, epsilon 24.4."""
    mechanism, budget = RecordGaussian(1.0, 1e-5, 2.0), 3.0
    secret = np.full(5, 0.5)
    draws = []
    site = make(
        named(rng.standard_normal((N, 5)), [f"other{i}" for i in range(N)]), tmp_path, max_record_epsilon=budget
    )
    for attempt in range(31):
        # Everyone else is new each time, so that nobody but the one person ever lacks budget.
        X = np.vstack([secret, rng.standard_normal((3, 5))])
        again = named(X, ["the one", *(f"new {attempt} {i}" for i in range(3))], first=100 + 10 * attempt)
        released = by_row(site, again, mechanism)
        assert released.shape == (4, 5)
        draws.append(released[0])
    ledger = open_ledger(site, again)
    assert ledger.spent(["the one"]).epsilon <= budget
    paid = [entry for entry in ledger.entries() if entry.concerns(ledger.keys(["the one"])).any()]
    assert epsilon_for([event for entry in paid for event in entry.events], 1e-5) <= budget
    assert 2 <= len(paid) < 31
    # What was drawn later is noise around the public zero row, whatever the person's row is: the mean of the draws that
    # were not paid for is 0 and not 0.5, to within 4 deviations.
    noise, step, _ = mechanism.law(5)
    later = np.array(draws[len(paid) :])
    assert abs(later.mean()) < 4 * step * float(noise.variance) ** 0.5 / later.size**0.5
    assert charges(site) == 31  # nobody sees from the number of charges who was left out


def test_without_persons_each_row_is_one(rng: np.random.Generator) -> None:
    rows = named(rng.standard_normal((N, 5)), None)
    site = make(rows, max_record_epsilon=1.2)
    by_row(site, rows)
    assert open_ledger(site, rows).entries()[0].by == "row"
    with pytest.raises(Refused, match="budget"):
        by_row(site, rows, OTHER)


def test_rows_of_one_person_are_paid_for_one_by_one(rows: Rows) -> None:
    """Three rows with noise of their own compose; in a sum they move it three times as far."""
    people = ["ann", "ann", "ann", "bob", "cid", "cid", "dan", "eve"]
    several = Rows(rows.X, rows.y, rows.ids, np.array(people))
    site = make(several)
    by_row(site, several)
    ledger = open_ledger(site, several)
    (event,) = GAUSSIAN.release(rows.X).events
    assert isinstance(event, GaussianEvent)
    copies = GaussianEvent(event.mu, 3, 3 * event.slack)
    assert ledger.spent(["ann"]).epsilon == pytest.approx(epsilon_for([copies], 1e-5))
    assert ledger.spent(["bob"]).epsilon == pytest.approx(1.0, rel=1e-6)
    assert charges(site) == 1
    other = make(several)
    sums(other, several)
    (event,) = SUMS.release(rows.X, rows.y).events  # type: ignore[assignment]
    further = GaussianEvent(3 * event.mu, 1, 3 * event.slack)
    assert open_ledger(other, several).spent(["ann"]).epsilon == pytest.approx(epsilon_for([further], 1e-5))
    assert ledger.affordable([PureEvent(0.1)], people).all()
    ledger.epsilon = 1.05
    assert ledger.affordable([PureEvent(0.01)], people).tolist() == [p in ("bob", "dan", "eve") for p in people]


def test_charges_by_row_concern_everyone_once_persons_have_names(rows: Rows, tmp_path: Path) -> None:
    """Nobody can tell who of the persons stood behind which row, so all of them have paid."""
    unnamed = Rows(rows.X, rows.y, rows.ids)
    by_row(make(unnamed, tmp_path, max_record_epsilon=1.2), unnamed)
    poor, rich = (make(rows, tmp_path, max_record_epsilon=budget) for budget in (1.2, 2.5))
    ledger = open_ledger(poor, rows)
    events = GAUSSIAN.release(rows.X).events
    assert not ledger.affordable(events, rows.people).any()
    assert open_ledger(rich, rows).affordable(events, rows.people).all()
    assert sums(poor, rows).arrays["second"].shape == (5, 5)  # of nobody, and nobody is told


def test_what_is_told_of_the_ledger_does_not_say_whose_rows_are_whose(rows: Rows, tmp_path: Path) -> None:
    """Not how many rows somebody has, and not whether somebody came back: what one row in every release pays."""
    told = []
    for name, persons in {"each": list("abcdefgh"), "pair": list("aacdefgh"), "pairs": list("aabbccdd")}.items():
        named = Rows(rows.X, rows.y, rows.ids, np.array(persons))
        site = make(named, tmp_path / name, max_record_epsilon=1.2)
        by_row(site, named)
        sums(site, named)  # in the last case nobody can pay it
        told.append((spent(site), charges(site)))
    assert told[0] == told[1] == told[2]


def test_a_ledger_of_an_earlier_version_goes_on(rows: Rows, tmp_path: Path) -> None:
    """Its names have no key, and the state no mark: who paid then has paid."""
    unnamed = Rows(rows.X, rows.y, rows.ids)
    Ledger(tmp_path / LEDGER, 1e9, 1e-5).charge(GAUSSIAN.release(rows.X).events, data="x", ids=rows.ids[:4])
    site = make(unnamed, tmp_path, max_record_epsilon=1.2)
    by_row(site, unnamed)
    ledger = open_ledger(site, unnamed)
    assert charges(site) == 2
    assert ledger.entries()[1].concerns(ledger.keys(rows.ids)).tolist() == [False] * 4 + [True] * 4
    assert site.store.read_state()["ledger"]["count"] == 2
    assert spent(site)[0] == pytest.approx(1.0, rel=1e-6)


def test_names_are_kept_under_a_key_of_the_site(rows: Rows, tmp_path: Path) -> None:
    sites = [make(rows, tmp_path / name) for name in "ab"]
    for site in sites:
        by_row(site, rows)
    one, other = (open_ledger(site, rows).entries()[0].persons for site in sites)
    assert one is not None
    assert other is not None
    assert not np.isin(one, other).any()  # two sites, two keys: nobody compares their persons
    place = tmp_path / "a" / SECRET
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert len(place.read_bytes()) == 32
    key = place.read_bytes()
    for wrong in (None, bytes(32), key[:-1]):
        place.unlink() if wrong is None else place.write_bytes(wrong)
        with pytest.raises(Refused, match=r"key .* is missing or another one") as error:
            by_row(make(rows, tmp_path / "a"), rows, OTHER)
        assert error.value.code == "ledger"
        place.write_bytes(key)
    by_row(make(rows, tmp_path / "a"), rows, OTHER)


def test_a_key_that_was_half_written_is_written_again(rows: Rows, tmp_path: Path) -> None:
    """Killed before the ledger was begun: nobody is in it yet."""
    (tmp_path / SECRET).write_bytes(bytes(7))
    site = make(rows, tmp_path)
    by_row(site, rows)
    assert len((tmp_path / SECRET).read_bytes()) == 32
    assert charges(site) == 1


# The ledger and what is remembered of it ---------------------------------------------------------------------------


def two_charges(rows: Rows, path: Path) -> tuple[Site, bytes]:
    site = make(rows, path)
    by_row(site, rows)
    after_one = (path / LEDGER).read_bytes()
    sums(site, rows)
    return site, after_one


def cut_last_line(place: Path, _: bytes) -> None:
    place.write_bytes(b"\n".join(place.read_bytes().splitlines()[:-1]) + b"\n")


def cut_all_charges(place: Path, _: bytes) -> None:
    place.write_bytes(place.read_bytes().splitlines()[0] + b"\n")


def tear_last_line(place: Path, _: bytes) -> None:
    place.write_bytes(place.read_bytes()[:-10])


def restore_older(place: Path, after_one: bytes) -> None:
    place.write_bytes(after_one)


def begin_anew(place: Path, _: bytes) -> None:
    place.unlink()
    fresh = Ledger(place, 100.0, 1e-5)
    for _ in range(3):
        fresh.charge([PureEvent(0.1)], data="x")


def delete(place: Path, _: bytes) -> None:
    place.unlink()


ATTACKS = [cut_last_line, cut_all_charges, tear_last_line, restore_older, begin_anew, delete]


@pytest.mark.parametrize("forgotten", [False, True])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_ledger_that_is_not_the_one_remembered_stops_releases(
    rows: Rows, tmp_path: Path, attack: Callable[[Path, bytes], None], *, forgotten: bool
) -> None:
    site, after_one = two_charges(rows, tmp_path)
    if forgotten:
        site.forget_rows(rows.ids)
        assert site.store.names(FOLDER) == []  # no release is left that would tell of one
    attack(tmp_path / LEDGER, after_one)
    site = make(rows, tmp_path)
    for release in (lambda: by_row(site, rows, OTHER), lambda: spent(site)):
        with pytest.raises(Refused, match=r"Restore (it|the newest); nothing is released until then") as error:
            release()
        assert error.value.code == "ledger"


@pytest.mark.parametrize("attack", [cut_all_charges, restore_older])
def test_releases_remember_the_ledger_too(rows: Rows, tmp_path: Path, attack: Callable[[Path, bytes], None]) -> None:
    """Ledger and state of an earlier day fit each other, and not what was released since."""
    site = make(rows, tmp_path)
    by_row(site, rows)
    state, after_one = (tmp_path / "state.json").read_bytes(), (tmp_path / LEDGER).read_bytes()
    sums(site, rows)
    (tmp_path / "state.json").write_bytes(state)
    attack(tmp_path / LEDGER, after_one)
    with pytest.raises(Refused, match="nothing is released until then"):
        sums(make(rows, tmp_path), rows, key="another")


def test_a_lost_newline_costs_nobody_a_charge(rows: Rows, tmp_path: Path) -> None:
    two_charges(rows, tmp_path)
    place = tmp_path / LEDGER
    whole = place.read_bytes()
    place.write_bytes(whole[:-1])
    site = make(rows, tmp_path)
    assert charges(site) == 2
    assert place.read_bytes() == whole
    assert spent(site)[0] > 1.3
    sums(site, rows, key="third")
    assert charges(site) == 3


def test_a_charge_before_the_state_was_written_still_counts(rows: Rows, tmp_path: Path) -> None:
    """Killed between the two: the ledger is one ahead of what is remembered, which is a continuation and no harm."""
    site = make(rows, tmp_path)
    by_row(site, rows)
    state = (tmp_path / "state.json").read_bytes()
    sums(site, rows, key="killed before it was kept")
    for name in site.store.names(FOLDER):
        record = site.store.read(FOLDER, name)
        if record is not None and record.values["by"] == "site":
            site.store.delete(FOLDER, name)
    (tmp_path / "state.json").write_bytes(state)
    again = make(rows, tmp_path)
    assert charges(again) == 2
    sums(again, rows)
    assert charges(again) == 3


def test_state_and_releases_hold_count_and_head(rows: Rows, tmp_path: Path) -> None:
    site, _ = two_charges(rows, tmp_path)
    chain = open_ledger(site).chain()
    mark = site.store.read_state()["ledger"]
    assert (mark["count"], mark["head"]) == (2, chain[2])
    records = [site.store.read(FOLDER, name) for name in site.store.names(FOLDER)]
    marks = sorted((record.values["ledger"]["count"], record.values["ledger"]["head"]) for record in records if record)
    assert marks == [(1, chain[1]), (2, chain[2])]
    site.forget_rows(rows.ids)
    assert site.store.read_state()["ledger"] == mark  # forgetting leaves the books as they are
    lines = [json.loads(line) for line in (tmp_path / LEDGER).read_text().splitlines()]
    assert len(lines) == 3


def test_a_site_tells_how_often_it_was_charged(rows: Rows) -> None:
    site = make(rows)
    by_row(site, rows)
    told = statement(site, *GAUSSIAN.guarantees(5))
    assert told["charges"] == [f"{1:016d}"]
    assert len({len(text) for name, pair in told.items() if name != "charges" for text in pair}) == 1


def test_a_store_that_was_set_back_as_a_whole_is_noticed_by_whoever_asks(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    """Nothing inside the store tells; the model remembers how many charges there were."""
    data = {name: (rng.standard_normal((40, 3)), np.arange(40) % 2) for name in "ab"}
    learner = FoldingLearner(
        batch_size=20,
        privacy=RecordMoments(1.0, 1e-5, 2, radius=3.0),
        rows_per_class=20,
        measure="rms",
        partition="order",
        scale=None,
    )
    with Federation.local(data, store=tmp_path / "stores") as federation:
        learner.fit(federation)
        shutil.copytree(tmp_path / "stores", tmp_path / "backup")
        model = learner.fit(federation).forget("a", rows=[3]).forget("a", rows=[4])
        assert model.privacy is not None
        assert model.privacy.charges == {"a": 3, "b": 1}
    model.save(tmp_path / "model.kfd")
    shutil.rmtree(tmp_path / "stores")
    shutil.copytree(tmp_path / "backup", tmp_path / "stores")
    told = {"a": {"spent": ["1.0", "1e-5"], "charges": [f"{1:016d}"]}}
    with pytest.warns(LedgerRewound, match=r"'a', told of 3 charge\(s\) before and of 1 now"):
        model.privacy.with_told(told)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.privacy.with_told({"a": {**told["a"], "charges": [f"{4:016d}"]}})


# Rows that change --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [{}, {"max_record_epsilon": 10.0}], ids=["open", "required"])
def test_rows_changed_in_place_are_released_anew_when_they_are_published(rows: Rows, policy: dict[str, Any]) -> None:
    """Otherwise a change of 1e-12 shows in what is charged, and in which row."""
    site = make(rows, **policy)
    before, total = by_row(site, rows), sums(site, rows).arrays["second"]
    X = rows.X.copy()
    X[3] += 1e-12
    changed = Rows(X, rows.y, rows.ids, rows.persons)
    np.testing.assert_array_equal(by_row(site, changed), before)
    np.testing.assert_array_equal(sums(site, changed).arrays["second"], total)
    assert charges(site) == 2
    site.publish()
    assert (by_row(site, changed) != before).any(axis=1).all()
    assert (sums(site, changed).arrays["second"] != total).any()
    assert charges(site) == 4


def test_small_charges_cannot_fill_the_ledger(rows: Rows, tmp_path: Path) -> None:
    site = make(Rows(rows.X, rows.y, rows.ids), tmp_path, max_record_epsilon=3.0, max_charges=2)
    for number in range(2):
        sums(site, Rows(rows.X, rows.y, rows.ids), key=str(number))
    with pytest.raises(Refused, match="allows 2 releases"):
        sums(site, Rows(rows.X, rows.y, rows.ids), key="third")
    assert charges(site) == 2

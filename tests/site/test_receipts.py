"""Receipts of what was forgotten: forgetting is training without the row, and whatever was changed since is noticed."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernfed as kf
from kernfed.base import threads
from kernfed.federation import Payload, Policy, Site, SiteStore
from kernfed.federation.folding.machines import fit_batches, folding_handle, read_machines
from kernfed.federation.folding.receipts import attack_forgetting
from kernfed.federation.folding.release import Recipe
from kernfed.files import labels_to_values, to_record
from kernfed.kahm.model import FoldingParameters
from kernfed.privacy import RecordGaussian, RecordMoments
from kernfed.report.site_pages import forgetting_report
from kernfed.secure.committee.keys import keep_identity
from kernfed.site.receipts import PendingReceipt, check_receipts, kept_state, read_secret, row_tag, signed_bytes
from kernfed.site.verification import BY_HASH, NOT_COMPARABLE, SAME, Verification, verify

ROWS = 60
WIDTH = 4
PARAMETERS = FoldingParameters(measure="rms", batch_size=6, partition="order")
KMEANS = FoldingParameters(measure="rms", batch_size=6, partition="kmeans")
PRIVATE = Policy(tasks=("*",), max_record_epsilon=50.0)


def some_rows(count: int, seed: int = 0) -> tuple[Any, Any]:
    draws = np.random.default_rng(seed)
    y = draws.integers(0, 3, count)
    return draws.standard_normal((count, WIDTH)) + y[:, None], y


def site_at(path: Path, policy: Policy | None = None) -> Site:
    return Site("a", *some_rows(ROWS), store=SiteStore(path), policy=policy or Policy.open())


def train(site: Site, parameters: FoldingParameters = PARAMETERS, recipe: Any = None) -> str:
    handle = folding_handle(parameters, recipe)
    about = {"handle": handle, "parameters": parameters.to_values(), "privacy": recipe}
    site.as_owner("folding_fit", Payload(values=about))
    return handle


def forget(site: Site, *ids: int) -> None:
    site.as_owner("forget_rows", Payload({"ids": np.array(ids)}))


def add(site: Site, X: Any, y: Any) -> list[int]:
    reply = site.as_owner("add_rows", Payload({"X": X}, {"y": labels_to_values(y)}))
    numbers: list[int] = reply.arrays["ids"].tolist()
    return numbers


def receipts(site: Site) -> list[dict[str, Any]]:
    return check_receipts(site.store.path / "receipts").receipts


def verified(site: Site, **options: Any) -> Verification:
    return verify(SiteStore(site.store.path), site, **options)


@pytest.fixture
def changed(tmp_path: Path) -> Site:
    """A site that has trained, forgotten two rows and got three."""
    site = site_at(tmp_path / "store")
    train(site)
    forget(site, 3, 17)
    add(site, *some_rows(3, seed=9))
    return site


# What a receipt says ----------------------------------------------------------------------------------------------


def test_a_receipt_says_what_was_touched_and_which_choices_had_seen_the_row(changed: Site) -> None:
    first, second = receipts(changed)
    assert [first["event"], second["event"]] == ["forgotten", "added"]
    assert [first["forgotten"], len(first["ids"]), len(second["ids"])] == [2, 2, 3]
    (touched,) = first["touched"]
    assert touched["before"]["digest"] != touched["after"]["digest"]
    assert 1 <= touched["fitted"] <= 2  # machines that held the two rows, and no other
    chosen = {entry["choice"]: entry["anew"] for entry in first["choices"] if entry["of"] == touched["name"]}
    assert chosen == {"division into batches": False, "unit": False}
    assert first["after"]["state"] == second["before"]["state"]
    assert first["environment"] == threads.environment()
    assert second["software"]["kernfed"] == kf.__version__


def test_ids_are_told_to_nobody_without_the_sites_secret(changed: Site, tmp_path: Path) -> None:
    (first, second), secret = receipts(changed), read_secret(changed.store.path)
    assert secret is not None
    assert first["ids"] == sorted(row_tag(secret, "forgotten", number) for number in (3, 17))
    assert second["ids"] == sorted(row_tag(secret, "added", number) for number in (60, 61, 62))
    other = site_at(tmp_path / "other")
    forget(other, 3, 17)
    assert not set(receipts(other)[0]["ids"]) & set(first["ids"])


def test_nothing_can_be_asked_for_that_tells_a_receipt_and_failures_write_none(changed: Site) -> None:
    count = len(receipts(changed))
    with pytest.raises(kf.errors.Refused):
        forget(changed, 999)
    with pytest.raises(kf.errors.Refused):
        add(changed, np.zeros((1, WIDTH + 1)), np.array([1]))
    assert len(receipts(changed)) == count


def test_a_row_that_nothing_is_kept_of_is_forgotten_with_a_receipt(tmp_path: Path) -> None:
    site = site_at(tmp_path)
    forget(site, 1)
    (receipt,) = receipts(site)
    assert receipt["touched"] == []
    assert verified(site).holds


# Forgetting is training from scratch ------------------------------------------------------------------------------


class Membership:
    """The recorded choice, kept by hand: which rows are in which batch of which class."""

    def __init__(self, site: Site, handle: str) -> None:
        machines = read_machines(site, handle)
        assert machines is not None
        self.parts = [
            (int(label), batch.tolist()) for label, batch in zip(machines.labels, machines.batches, strict=True)
        ]

    def forget(self, number: int) -> None:
        """Its batch loses the row, and goes where it was the last."""
        parts = [(label, [other for other in batch if other != number]) for label, batch in self.parts]
        self.parts = [(label, batch) for label, batch in parts if batch]

    def add(self, number: int, label: int) -> None:
        """The last batch of the class takes the row, if it has room."""
        own = [batch for held, batch in self.parts if held == label]
        if own and len(own[-1]) < PARAMETERS.batch_size:
            own[-1].append(number)
        else:
            self.parts.append((label, [number]))


def test_a_stream_of_adds_and_forgets_is_training_with_the_recorded_choices(tmp_path: Path) -> None:
    site = site_at(tmp_path, Policy(tasks=("*",), keep_models=2))
    handle = train(site)
    membership, draws = Membership(site, handle), np.random.default_rng(4)
    X, y = some_rows(60, seed=5)
    held = list(range(ROWS))
    for step in range(60):
        if draws.random() < 0.5:
            number = held.pop(int(draws.integers(len(held))))
            forget(site, number)
            membership.forget(number)
        else:
            (number,) = add(site, X[[step]], y[[step]])
            held.append(number)
            membership.add(number, int(y[step]))
    kept = read_machines(site, handle)
    assert kept is not None
    labels, batches = zip(*membership.parts, strict=True)
    scratch = fit_batches(site.rows(), PARAMETERS, list(labels), [np.array(batch) for batch in batches])
    for one, other in zip(kept.machines, scratch.machines, strict=True):
        for name in ("mean", "directions", "scores"):
            assert getattr(one, name).tobytes() == getattr(other, name).tobytes()
        assert [(a.image.tobytes(), a.regularization) for a in one.layers] == [
            (b.image.tobytes(), b.regularization) for b in other.layers
        ]
    lines = receipts(site)
    assert len(lines) == 60
    assert all(one["after"]["state"] == other["before"]["state"] for one, other in pairwise(lines))
    result = verified(site)
    assert result.problems == []
    assert {entry.verdict for entry in result.remade} == {SAME}


def test_machines_of_clusters_and_of_several_trainings_are_made_again_to_the_same_hash(tmp_path: Path) -> None:
    site = site_at(tmp_path)
    train(site, KMEANS)
    add(site, *some_rows(8, seed=3))
    train(site)
    forget(site, 5, 61)
    result = verified(site)
    assert result.problems == []
    assert [entry.verdict for entry in result.remade] == [SAME] * 3
    train(site, FoldingParameters(measure="rms", batch_size=9, partition="order"))
    assert any("trained after the newest receipt" in told for told in verified(site).notes)


# What is found ----------------------------------------------------------------------------------------------------


def test_another_machine_is_not_comparable_and_never_a_finding(changed: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    place = next((changed.store.path / "folding").glob("*.safetensors"))
    other = {**threads.environment(), "cpu": "another"}
    monkeypatch.setattr(threads, "environment", lambda: other)
    assert {entry.verdict for entry in verified(changed).remade} == {SAME}  # the bits happen to be the same here

    from kernfed.federation.folding import receipts as receipting

    def last_bit(*arguments: Any, **options: Any) -> Any:
        made = fit_batches(*arguments, **options)
        made.machines[0].mean[0] = np.nextafter(made.machines[0].mean[0], np.inf)
        return made

    monkeypatch.setattr(receipting, "fit_batches", last_bit)
    result = verified(changed)
    assert result.holds
    assert {entry.verdict for entry in result.remade} == {NOT_COMPARABLE}
    monkeypatch.undo()
    monkeypatch.setattr(receipting, "fit_batches", last_bit)
    assert not verified(changed).holds  # on the machine that has computed them they are wrong
    assert place.exists()


def test_a_flipped_byte_is_found_wherever_it_is(changed: Site) -> None:
    train(changed, KMEANS)
    store = changed.store.path
    places = [
        place
        for place in sorted(store.rglob("*"))
        if place.is_file() and place.name != "lock" and place.parent.name not in ("journal", "answers")
    ]
    assert {"state.json", "head", "rows.safetensors", "sum.key", "receipts.key"} <= {place.name for place in places}
    assert verify(SiteStore(store)).holds
    draws, missed = np.random.default_rng(11), []
    for place in places:
        content = place.read_bytes()
        for _ in range(8):
            position, bits = int(draws.integers(len(content))), int(draws.integers(1, 256))
            wrong = bytearray(content)
            wrong[position] ^= bits
            place.write_bytes(bytes(wrong))
            if verify(SiteStore(store)).holds:
                missed.append((place.name, position, bits))
        place.write_bytes(content)
    assert missed == []
    assert verify(SiteStore(store)).holds


@pytest.mark.parametrize(("old", "new"), [(b", ", b",\t"), (b"e", b"E"), (b"0", b"1")])
def test_a_byte_that_changes_no_meaning_is_found_too(changed: Site, old: bytes, new: bytes) -> None:
    for place in (changed.store.path / "state.json", changed.store.path / "receipts" / "000000000001.jsonl"):
        content = place.read_bytes()
        place.write_bytes(content.replace(old, new, 1))
        assert not verify(SiteStore(changed.store.path)).holds
        place.write_bytes(content)


def rewritten(site: Site, number: int, **says: Any) -> None:
    """Change what a receipt says, and compute the chain of hashes anew, as somebody without the key can."""
    from kernfed.base.chain import chained

    folder = site.store.path / "receipts"
    place = folder / "000000000001.jsonl"
    lines, chain = [json.loads(line) for line in place.read_text().splitlines()], ""
    lines[number].update(says)
    for line in lines:
        line["chain"] = chain = chained(chain, line)
    place.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "head").write_text(f"{lines[-1]['n']:015d} {chain}\n")


@pytest.mark.parametrize("number", [1, 2])
def test_a_chain_that_is_computed_anew_has_no_signature(changed: Site, number: int) -> None:
    rewritten(changed, number, forgotten=1)
    assert any("signature" in problem for problem in verified(changed).problems)


@pytest.mark.parametrize(
    "says",
    [
        {"ids": 3},
        {"ids": [3]},
        {"after": {}},
        {"after": {"state": "", "kept": [{"name": "folding/x"}]}},
        {"touched": [{"before": None}]},
        {"choices": [3]},
        {"rows": {}},
    ],
)
def test_a_receipt_that_somebody_signed_and_that_is_none_is_a_finding(changed: Site, says: dict[str, Any]) -> None:
    line = {**receipts(changed)[-1], **says}
    identity = keep_identity(changed.store.path / "sum.key")
    rewritten(changed, -1, **says, signature=identity.sign(signed_bytes(line)).hex())
    result = verified(changed)
    assert any("does not say its" in problem for problem in result.problems)
    assert "does not hold" in forgetting_report(result, {}).facts[0].value
    assert result.to_json()["receipts"] == 1


def test_a_damaged_key_keeps_rows_from_being_forgotten_without_a_receipt(changed: Site) -> None:
    (changed.store.path / "sum.key").write_bytes(b"short")
    with pytest.raises(kf.errors.StoreError, match="damaged"):
        forget(changed, 30)
    assert 30 not in changed.store.read_state()["forgotten"]


def test_a_begun_line_that_was_changed_does_not_fit_what_was_signed(changed: Site) -> None:
    rewritten(changed, 0, after="b")
    assert any("signed after another line" in problem for problem in verified(changed).problems)


def test_an_end_that_is_gone_is_found_by_what_the_site_has_forgotten_or_by_a_head(changed: Site) -> None:
    forget(changed, 20)
    head = verified(changed).check.head
    folder = changed.store.path / "receipts"
    lines = (folder / "000000000001.jsonl").read_text().splitlines(keepends=True)
    (folder / "000000000001.jsonl").write_text("".join(lines[:-1]))
    last = json.loads(lines[-2])
    (folder / "head").write_text(f"{last['n']:015d} {last['chain']}\n")
    assert any("without a receipt" in problem for problem in verified(changed).problems)
    assert any("is not here" in problem for problem in verified(changed, head=head).problems)
    with pytest.raises(kf.errors.InputError, match="64 hexadecimal"):
        verified(changed, key="nobody")
    assert any("another key" in problem for problem in verified(changed, key="0" * 64).problems)


def test_receipts_that_are_gone_altogether_are_missed(changed: Site) -> None:
    for place in (changed.store.path / "receipts").iterdir():
        place.unlink()
    assert any("there were some" in problem for problem in verified(changed).problems)


def test_a_state_from_before_a_row_was_forgotten_is_found_when_it_comes_back(tmp_path: Path) -> None:
    site = site_at(tmp_path)
    handle = train(site)
    place = tmp_path / "folding" / f"{handle}.safetensors"
    old = place.read_bytes()
    forget(site, 3)
    place.write_bytes(old)
    problems = " ".join(verify(SiteStore(tmp_path)).problems)
    assert "holds a row that was forgotten" in problems
    assert "and is back" in problems


def test_forgetting_that_a_kill_left_without_a_receipt_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_at(tmp_path)
    train(site)
    forget(site, 1)
    with monkeypatch.context() as patch:
        patch.setattr(PendingReceipt, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            forget(site, 2)
    assert any("1 row(s) were forgotten without a receipt" in problem for problem in verified(site).problems)
    forget(site, 2)
    assert verified(site).problems == []


# Model files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hold", ["sites", "machines"])
def test_a_model_file_descends_from_receipts_or_does_not(tmp_path: Path, hold: str) -> None:
    federation = kf.Federation.local({"a": some_rows(40), "b": some_rows(30, seed=1)}, store=tmp_path / "stores")
    learner = kf.FoldingLearner(batch_size=6, partition="order", scale=None, hold=hold)
    before = learner.fit(federation).connect(federation)
    after = before.forget("a", rows=[3])
    before.save(tmp_path / "before.kfd")
    after.save(tmp_path / "after.kfd")
    store = SiteStore(tmp_path / "stores" / "site-a")
    good = verify(store, model=tmp_path / "after.kfd", name="a")
    assert (good.problems, good.model) == ([], "after.kfd descends from the state in force")
    stale = verify(store, model=tmp_path / "before.kfd", name="a")
    assert stale.model.startswith("before.kfd is from before line 2, by which rows were forgotten")
    assert stale.holds == (hold == "sites")  # a handle answers no more; machines in a file still hold the row
    other = learner.fit(kf.Federation.local({"a": some_rows(40, seed=7)}, store=tmp_path / "elsewhere"))
    other.save(tmp_path / "other.kfd")
    if hold == "machines":
        assert "descends from no state" in verify(store, model=tmp_path / "other.kfd", name="a").model
    content = bytearray((tmp_path / "after.kfd").read_bytes())
    draws = np.random.default_rng(2)
    for position in [*draws.integers(0, len(content), 8), 3, 9]:
        wrong = content.copy()
        wrong[position] ^= int(draws.integers(1, 256))
        (tmp_path / "wrong.kfd").write_bytes(wrong)
        assert not verify(store, model=tmp_path / "wrong.kfd", name="a").holds, position


def test_a_head_from_before_rows_were_forgotten_is_a_finding(tmp_path: Path) -> None:
    federation = kf.Federation.local({"a": some_rows(40), "b": some_rows(30, seed=1)}, store=tmp_path / "stores")
    head = kf.RidgeLearner("exact", n_components=8, regularization=0.1, bandwidth=1.0)
    folding = kf.FoldingLearner(batch_size=10, partition="order", scale=None)
    before = kf.FusionLearner(folding, head, weight=0.5).fit(federation)
    store, place = SiteStore(tmp_path / "stores" / "site-a"), tmp_path / "model.kfd"
    before.save(place)
    after = before.forget("a", rows=[3])
    assert any("still holds a head of then" in told for told in verify(store, model=place, name="a").problems)
    after.save(place)
    assert verify(store, model=place, name="a").problems == []
    head.fit(federation).save(place)
    assert any("does not say of which rows" in told for told in verify(store, model=place, name="a").notes)


# Privacy and other methods ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::kernfed.errors.LedgerNotKept")
def test_where_privacy_is_required_receipts_stay_and_tell_what_the_ledger_says(tmp_path: Path) -> None:
    site = site_at(tmp_path, PRIVATE)
    recipe = Recipe(RecordGaussian(2.0, 1e-6, 5.0)).to_values()
    train(site, recipe=recipe)
    assert [entry.verdict for entry in verified(site).remade] == [SAME]
    forget(site, 4)
    (receipt,) = receipts(site)
    assert receipt["ledger"][0] == 1
    (deleted,) = (entry for entry in receipt["touched"] if entry["name"].startswith("folding/"))
    assert deleted["after"] is None  # made, and charged, when somebody asks
    assert {entry["anew"] for entry in receipt["choices"] if entry["of"] == deleted["name"]} == {None}
    assert verified(site).problems == []


@pytest.mark.filterwarnings("ignore::kernfed.errors.LedgerNotKept")
@pytest.mark.parametrize(
    "mechanism", [RecordGaussian(2.0, 1e-6, 5.0), RecordMoments(2.0, 1e-6, 3, radius=5.0)], ids=["rows", "moments"]
)
def test_machines_of_released_rows_are_made_again_of_what_was_released(tmp_path: Path, mechanism: Any) -> None:
    site = site_at(tmp_path)
    recipe = Recipe(mechanism, rows_per_class=12).to_values()
    train(site, recipe=recipe)
    forget(site, 4)
    train(site, recipe=recipe)
    charges = site.store.read_state()["ledger"]["count"]
    result = verified(site)
    assert result.problems == []
    assert [entry.verdict for entry in result.remade] == [SAME]
    assert site.store.read_state()["ledger"]["count"] == charges
    for name in site.store.names("releases"):
        site.store.delete("releases", name)
    assert [entry.verdict for entry in verified(site).remade] == [BY_HASH]


def test_factors_of_ridge_are_on_the_receipt_as_deleted(tmp_path: Path) -> None:
    federation = kf.Federation.local({"a": some_rows(40), "b": some_rows(30, seed=1)}, store=tmp_path)
    kf.RidgeLearner("newton", n_components=8, regularization=0.1, bandwidth=1.0).fit(federation)
    store = SiteStore(tmp_path / "site-a")
    assert [entry.generation for entry in kept_state(store).values()] == [0]
    Site("a", *some_rows(40), store=store, policy=Policy.open()).as_owner(
        "forget_rows", Payload({"ids": np.array([2])})
    )
    (receipt,) = check_receipts(store.path / "receipts").receipts
    assert [entry["after"] for entry in receipt["touched"]] == [None]
    assert any(entry["choice"].startswith("regularization") for entry in receipt["choices"])
    assert verify(store).holds


@pytest.mark.parametrize(
    "learner",
    [
        kf.RidgeLearner("exact", n_components=8, regularization=0.1, bandwidth=1.0),
        kf.PersonalLearner(n_components=8, bandwidth=1.0),
    ],
    ids=["ridge", "personal"],
)
def test_statistics_after_forgetting_are_those_of_sites_that_never_had_the_row(learner: Any) -> None:
    (X, y), other = some_rows(40), some_rows(30, seed=1)
    stays, numbers = np.arange(40) != 7, np.arange(40)
    federation = kf.Federation.local({"a": (X, y, numbers), "b": other})
    learner.fit(federation)
    federation.ask("forget_rows", Payload({"ids": np.array([7])}), sites=["a"])
    without = kf.Federation.local({"a": (X[stays], y[stays], numbers[stays]), "b": other})
    one, other_one = to_record(learner.fit(federation)), to_record(learner.fit(without))
    assert one.arrays.keys() == other_one.arrays.keys()
    assert len(one.arrays) > 0
    assert all(one.arrays[name].tobytes() == other_one.arrays[name].tobytes() for name in one.arrays)


def test_an_attack_finds_members_and_nothing_of_them_once_they_are_forgotten(tmp_path: Path) -> None:
    draws = np.random.default_rng(8)
    y = draws.integers(0, 2, 400)
    site = Site("a", draws.standard_normal((400, 20)) + y[:, None], y, store=SiteStore(tmp_path), policy=Policy.open())
    record = site.store.read("folding", train(site, FoldingParameters(batch_size=20, partition="order")))
    assert record is not None
    pair = attack_forgetting(site, record, 100, 0)
    assert pair is not None
    before, after = (attack.roc.auc_interval for attack in pair)
    assert before[0] > 0.5
    assert after[0] < 0.5 < after[1]
    assert verified(site).holds  # nothing of the trial has stayed

"""Folding models of released rows: released once, charged once, and nothing later looks at the raw rows."""

import json
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernfed
from contracts.engines import lying
from kernfed.errors import FileFormatError, LedgerNotKept, MissingSites, TooFewReplies
from kernfed.federation import Federation, FoldingLearner, Payload, Policy, RidgeLearner, SiteStore, evaluate
from kernfed.federation.folding import release as private_tasks
from kernfed.federation.folding.machines import divide, fit_batches, folding_handle, read_machines
from kernfed.federation.folding.release import Recipe
from kernfed.federation.personal.learner import PersonalLearner
from kernfed.federation.planning import planned_traffic
from kernfed.kahm.model import FoldingParameters
from kernfed.kahm.model_file import pack_machines
from kernfed.kernels.features import FourierFeatures
from kernfed.privacy import (
    ElementLaplace,
    ElementStaircase,
    RandomizedLabels,
    RecordEmbedding,
    RecordGaussian,
    RecordMoments,
    RecordRidge,
)
from kernfed.site.release.kept import FOLDER
from kernfed.site.release.permit import LEDGER, Permit, open_ledger
from kernfed.site.rows import Rows
from kernfed.site.site import Site
from oracles.federation import SFM, Data, files_with_row, sites_data

#: Sites of these tests live as long as the test; that a ledger is not kept is tested once, below.
pytestmark = pytest.mark.filterwarnings("ignore::kernfed.site.release.kept.LedgerNotKept")
GAUSSIAN = RecordGaussian(3.0, 1e-5, 3.0)
PROJECTED = RecordGaussian(3.0, 1e-5, 3.0, projection=3)
MOMENTS = RecordMoments(3.0, 1e-5, 3, radius=4.0)
LABELS = RandomizedLabels(2.0, (0, 1, 2))
MECHANISMS = {
    "laplace": ElementLaplace(2.0, 1.0, (-4.0, 4.0)),
    "staircase": ElementStaircase(4.0, 8.0, (-4.0, 4.0)),
    "gaussian": GAUSSIAN,
    "projected": PROJECTED,
    "moments": MOMENTS,
}


def learner(mechanism: Any, **settings: Any) -> FoldingLearner:
    return FoldingLearner(**{**SFM, "batch_size": 8, "privacy": mechanism, "rows_per_class": 20, **settings})


@pytest.fixture(params=list(MECHANISMS))
def mechanism(request: pytest.FixtureRequest) -> Any:
    return MECHANISMS[request.param]


@pytest.fixture
def data(rng: np.random.Generator) -> Data:
    return sites_data(rng, "ab")


@pytest.fixture
def queries(rng: np.random.Generator) -> Any:
    return rng.standard_normal((11, 5))


@pytest.fixture
def federation(data: Data, tmp_path: Path) -> Iterator[Federation]:
    with Federation.local(data, store=tmp_path) as federation:
        yield federation


def site_of(federation: Federation, name: str = "a") -> Site:
    return federation.engine.site(name)  # type: ignore[attr-defined,no-any-return]


def charges(federation: Federation, name: str = "a") -> int:
    site = site_of(federation, name)
    return len(open_ledger(site).entries()) if (site.store.path / LEDGER).exists() else 0


# Once -------------------------------------------------------------------------------------------------------------


def test_released_once_for_any_number_of_queries_fits_and_processes(
    mechanism: Any, data: Data, queries: Any, tmp_path: Path
) -> None:
    with Federation.local(data, store=tmp_path) as federation:
        model = learner(mechanism).fit(federation)
        expected = model.scores(queries)
        model.scores(queries[:3])
        model.explain(queries)
        again = learner(mechanism).fit(federation)
        assert again.members_ == model.members_
        learner(mechanism, measure="distance", batch_size=5, smoothing=1).fit(federation).predict(queries)
        assert [charges(federation, name) for name in "ab"] == [1, 1]
    with Federation.local(data, store=tmp_path) as federation:  # another process
        assert learner(mechanism).fit(federation).scores(queries).tobytes() == expected.tobytes()
        assert model.connect(federation).scores(queries).tobytes() == expected.tobytes()
        assert [charges(federation, name) for name in "ab"] == [1, 1]


def test_without_a_store_in_common_the_noise_is_another(data: Data, queries: Any) -> None:
    """Two draws of the noise cost twice, and nobody counts them: that is warned of, where the user called ``fit``."""
    found = []
    for _ in range(2):
        with Federation.local(data) as federation:
            with pytest.warns(LedgerNotKept, match=r"2 site.*such as 'a', .*Federation.local\(..., store=DIR") as told:
                found.append(learner(GAUSSIAN).fit(federation).scores(queries))
            assert [Path(warning.filename).name for warning in told] == [Path(__file__).name]
    assert (found[0] != found[1]).all()


def test_a_kept_ledger_is_not_warned_of(data: Data, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", LedgerNotKept)
        with Federation.local(data, store=tmp_path) as federation:
            learner(GAUSSIAN).fit(federation)
        with Federation.local(data) as federation:  # nothing is released
            learner(None).fit(federation)


@pytest.mark.parametrize("kind", ["ridge", "personal"])
def test_other_learners_warn_too(data: Data, kind: str) -> None:
    ridge = RidgeLearner("exact", features="given", privacy=RecordRidge(1.0, 1e-5, 1.0, 1.0))
    features = FourierFeatures(5, 10, 1.0, kind="paired")
    embedding = RecordEmbedding(9.0, 1e-5, features)
    personal = PersonalLearner((0.0, 0.5), model="none", columns="features", privacy=embedding)
    with Federation.local(data) as federation, pytest.warns(LedgerNotKept):
        {"ridge": ridge, "personal": personal}[kind].fit(federation)


def test_another_mechanism_or_rows_published_anew_are_charged(
    federation: Federation, data: Data, tmp_path: Path
) -> None:
    learner(GAUSSIAN).fit(federation)
    learner(RecordGaussian(3.0, 1e-5, 3.5)).fit(federation)
    assert charges(federation) == 2
    X, y = data["a"]
    with Federation.local({**data, "a": (X + 1e-6, y)}, store=tmp_path) as changed:
        learner(GAUSSIAN).fit(changed)
        assert [charges(changed, name) for name in "ab"] == [2, 2]
        site_of(changed, "a").publish()
        model = learner(GAUSSIAN).fit(changed)
        assert [charges(changed, name) for name in "ab"] == [3, 2]
        assert model.privacy is not None
        assert model.privacy.spent["a"][0] > model.privacy.spent["b"][0] > 4
        assert (model.privacy.record.epsilon, model.privacy.record.delta) == (3.0, 1e-5)


@pytest.mark.parametrize("hold", ["sites", "machines"])
def test_nothing_kept_for_answers_holds_a_raw_number(data: Data, tmp_path: Path, hold: str, mechanism: Any) -> None:
    with Federation.local(data, store=tmp_path) as federation:
        model = learner(mechanism, hold=hold).fit(federation)
    model.save(tmp_path / "model.kfd")
    for row in data["a"][0]:
        assert files_with_row(tmp_path, row) == []


# Post-processing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"partition": "kmeans"},
        {"partition": "random"},
        {"smoothing": 2, "fabricate": True},
        {"smoothing": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("chosen", [GAUSSIAN, PROJECTED, MOMENTS], ids=["gaussian", "projected", "moments"])
def test_given_the_release_every_later_step_is_the_same_whatever_the_raw_rows_were(
    data: Data, queries: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, chosen: Any, settings: Any
) -> None:
    """The noisy matrix is what it is for other rows too; from there on nothing may differ by a bit."""
    width = 5 if chosen is GAUSSIAN else 3
    noisy = {name: rng.standard_normal((len(y), width)) for name, (_, y) in data.items()}
    kept = {name: private_tasks.moments_to_record(MOMENTS.release(X, y).classes) for name, (X, y) in data.items()}
    monkeypatch.setattr(Permit, "row_by_row", lambda permit, rows, _: noisy[permit.site.name][rows.ids])
    monkeypatch.setattr(Permit, "once", lambda permit, *_: kept[permit.site.name])
    told = []
    for raw in (data, {name: (1000 * rng.standard_normal(X.shape), y) for name, (X, y) in data.items()}):
        with Federation.local(raw) as federation:
            model = learner(chosen, hold="machines", **settings).fit(federation)
            assert model.banks_ is not None
            machines = pack_machines([m for site in model.sites for m in model.banks_[site].machines])
            members = {name: replace(member, generation=1) for name, member in model.members_.items()}
            told.append(
                (
                    members,
                    {name: array.tobytes() for name, array in machines.items()},
                    model.predict_proba(queries).tobytes(),
                )
            )
    assert told[0] == told[1]


def test_partition_and_smoothing_happen_after_the_noise(federation: Federation) -> None:
    model = learner(GAUSSIAN, partition="kmeans").fit(federation)
    site = site_of(federation)
    entry = read_machines(site, model.handle)
    assert entry is not None
    record = site.store.read(FOLDER, site.store.names(FOLDER)[0])
    assert record is not None
    order = np.argsort(record.arrays["ids"])
    rows = Rows(record.arrays["rows"][order], site.rows().y, record.arrays["ids"][order])
    labels, batches = divide(rows, model.parameters)
    expected = fit_batches(rows, model.parameters, labels, batches, shape=Recipe(GAUSSIAN).shape)
    for name, array in pack_machines(expected.machines).items():
        assert array.tobytes() == pack_machines(entry.machines)[name].tobytes()


def test_no_bit_depends_on_the_number_of_queries_or_where_the_machines_are(federation: Federation, rng: Any) -> None:
    many = rng.standard_normal((300, 5))
    model = learner(PROJECTED).fit(federation)
    whole = model.scores(many)
    for start, stop in ((0, 1), (5, 135), (299, 300)):
        assert model.scores(many[start:stop]).tobytes() == whole[start:stop].tobytes()
    held = learner(PROJECTED, hold="machines").fit(federation)
    assert held.scores(many).tobytes() == whole.tobytes()
    assert charges(federation) == 1


def test_encrypted_answers_are_those_of_the_released_rows(federation: Federation, queries: Any) -> None:
    model = learner(PROJECTED).fit(federation)
    agree = model.predict(queries, secure="plain", bits=16) == model.predict(queries)
    assert agree.all()


def test_models_are_tested_on_rows_that_were_kept_aside(data: Data) -> None:
    with Federation.local(data, holdout=0.3) as federation:
        found = evaluate(learner(MOMENTS).fit(federation), federation)
        assert found.pooled.rows > 10
        assert charges(federation) == 1


# Statement --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hold", ["sites", "machines"])
def test_the_statement_is_printed_saved_and_loaded(
    mechanism: Any, hold: str, federation: Federation, queries: Any, tmp_path: Path
) -> None:
    model = learner(mechanism, hold=hold).fit(federation)
    assert model.privacy is not None
    element, record = Recipe(mechanism).guarantees(5)
    assert (model.privacy.element, model.privacy.record) == (element, record)
    assert str(record) in str(model.privacy)
    assert str(element) in str(model.privacy)
    assert "public" in str(model.privacy)
    line = str(model).splitlines()[-1]
    assert line.startswith("privacy: record (")
    assert "element (" in line
    model.save(tmp_path / "model.kfd")
    loaded = kernfed.load(tmp_path / "model.kfd")
    assert str(loaded) == str(model)
    assert str(loaded.privacy) == str(model.privacy)
    assert loaded.privacy.request == json.loads(json.dumps(model.privacy.request))
    if hold == "sites":
        loaded = loaded.connect(federation)
    assert loaded.scores(queries).tobytes() == model.scores(queries).tobytes()
    for site in "ab":
        assert model.privacy.spent[site][0] == pytest.approx(record.epsilon, rel=1e-6)
        assert model.privacy.spent[site][1] == 1e-5


def test_a_model_without_privacy_says_so(federation: Federation) -> None:
    model = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
    assert model.privacy is None
    assert str(model).endswith("privacy: none")


@pytest.mark.parametrize(
    "change",
    [
        {"element": ["1.0", "0.0"]},
        {"record": ["2.9", "1e-5"]},
        {"spent": ["-1", "1e-5"]},
        {"spent": ["nan", "1e-5"]},
        {"spent": "x"},
        {"record": []},
    ],
    ids=str,
)
def test_a_site_that_promises_something_else_takes_no_part(data: Data, change: Any) -> None:
    def lie(payload: Payload) -> Payload:
        return Payload(payload.arrays, {**payload.values, "privacy": {**payload.values["privacy"], **change}})

    federation = Federation(lying(Federation.local(data).engine, "b", lie, task="folding_fit"))
    with pytest.warns(MissingSites, match="'b'"):
        assert learner(GAUSSIAN).fit(federation, min_replies=1).sites == ("a",)


@pytest.mark.parametrize(
    "damage",
    [
        {"record": [1.0]},
        {"record": [-1.0, 0.5]},
        {"element": "x"},
        {"spent": []},
        {"request": 5},
        {"mechanism": {}},
        {"protects": "rows and labels"},
    ],
    ids=str,
)
def test_damaged_statements_are_refused(federation: Federation, damage: Any) -> None:
    from kernfed.files import Record, from_record, to_record

    record = to_record(learner(PROJECTED, hold="machines").fit(federation))
    values = dict(record.values["values"])
    wrong = {**values, "privacy": {**values["privacy"], **damage}}
    with pytest.raises(FileFormatError):
        from_record(Record(record.arrays, {**record.values, "values": wrong}))
    with pytest.raises(FileFormatError):
        from_record(Record({**record.arrays, "basis": record.arrays["basis"][:3]}, record.values))


# Plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 7])
def test_planned_is_measured_and_promised(mechanism: Any, data: Data, rng: Any, count: int) -> None:
    chosen = learner(mechanism)
    plan = planned_traffic(chosen, data, queries=count)
    with Federation.local(data) as federation:
        model = chosen.fit(federation)
        if count:
            model.predict(rng.standard_normal((count, 5)))
        for planned, sent in zip(plan.to_json(), federation.traffic.to_json(), strict=True):
            assert {**planned, "bytes_up": 0, "bytes_down": 0} == {**sent, "bytes_up": 0, "bytes_down": 0}
            assert abs(int(planned["bytes_up"]) - int(sent["bytes_up"])) <= 64  # digits of numbers in the headers
            assert abs(int(planned["bytes_down"]) - int(sent["bytes_down"])) <= 64
        recipe = chosen.recipe()
        assert recipe is not None
        assert model.privacy is not None
        assert recipe.terms(5).record == model.privacy.record
        paid = [epsilon for epsilon, _ in model.privacy.spent.values()]
        assert paid == pytest.approx([model.privacy.record.epsilon] * 2, rel=1e-6)


@pytest.mark.parametrize(("chosen", "lost"), [(PROJECTED, 0), (MOMENTS, 200)], ids=["rows", "moments"])
def test_machines_of_released_rows_are_planned(data: Data, chosen: Any, lost: int) -> None:
    """By the noise a released covariance may lack rank: up to two of the three directions in each of three classes."""
    maker = learner(chosen, hold="machines")
    plan = {(e.site, e.task): e for e in planned_traffic(maker, data)}
    with Federation.local(data) as federation:
        maker.fit(federation)
        for entry in federation.traffic:
            planned = plan[entry.site, entry.task]
            assert abs(planned.scalars_up - entry.scalars_up) <= lost
            assert abs(planned.bytes_up - entry.bytes_up) <= 64 + 8 * lost
        assert {entry.task for entry in federation.traffic} == {"describe", "folding_fit", "released_machines"}


# Settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"privacy": 1.0}, "privacy must be an ElementLaplace"),
        ({"privacy": RecordGaussian}, "privacy must be"),
        ({"privacy": None, "labels": LABELS}, "privacy must be"),
        ({"labels": 1.0}, "labels must be None"),
        ({"smoothing": "oracle"}, "looks at the raw rows"),
        ({"smoothing": "best"}, "smoothing must be one of"),
        ({"smoothing": -1}, "smoothing must be >= 0"),
        ({"smoothing": 1e9}, "smoothing must be an integer"),
        ({"fabricate": 5}, "fabricate must be True or False"),
        ({"rows_per_class": 0}, "rows_per_class must be >= 1"),
    ],
)
def test_settings_that_are_none(settings: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        FoldingLearner(**{"privacy": GAUSSIAN, **settings}).recipe()


def test_a_projection_wider_than_the_rows_is_told_before_anything_is_released(federation: Federation) -> None:
    with pytest.raises(ValueError, match="dimension must be <= 5, got 9"):
        learner(RecordMoments(3.0, 1e-5, 9, 1.0)).fit(federation)
    assert charges(federation) == 0


@pytest.mark.parametrize(
    "values",
    [
        {},
        [],
        "record-gaussian",
        5,
        {"mechanism": {}},
        {**Recipe(GAUSSIAN).to_values(), "smoothing": "oracle"},
        {**Recipe(GAUSSIAN).to_values(), "more": 1},
        {**Recipe(GAUSSIAN).to_values(), "rows_per_class": 10**9},
        {**Recipe(GAUSSIAN).to_values(), "smoothing": 10**9},
        {**Recipe(GAUSSIAN).to_values(), "smoothing": None},
        {**Recipe(GAUSSIAN).to_values(), "labels": Recipe(GAUSSIAN).to_values()["mechanism"]},
        {**Recipe(GAUSSIAN).to_values(), "mechanism": Recipe(GAUSSIAN, LABELS).to_values()["labels"]},
        Recipe(RecordMoments(3.0, 1e-5, 50, 1)).to_values(),
        Recipe(RecordGaussian(3.0, 1e-5, 1.0, np.eye(7))).to_values(),
    ],
    ids=lambda values: repr(values)[:50],
)
def test_hostile_recipes_at_a_site(federation: Federation, values: Any) -> None:
    parameters = FoldingParameters(measure="rms", batch_size=100, partition="order")
    handle = folding_handle(parameters, values)
    question = {"handle": handle, "parameters": parameters.to_values(), "privacy": values}
    for task, asked in (("folding_fit", question), ("folding_schema", {"privacy": values})):
        missing = federation.ask(task, Payload(values=asked), sites=["a"], min_replies=0).missing
        if task == "folding_fit" or not isinstance(values, dict) or "mechanism" not in values or "labels" not in values:
            assert missing["a"].code == "bad question", missing
            assert len(missing["a"].reason) < 800
    assert charges(federation) == 0
    assert site_of(federation).store.names(FOLDER) == []


# Policies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ({"mechanisms": ("record-moments", "element-laplace")}, "releases by record-moments, element-laplace, not by"),
        ({"max_record_epsilon": 2.9}, r"at most 2\.9 at delta 1e-05, this release has \(3, 1e-05\)"),
        ({"record_delta": 1e-6, "max_record_epsilon": 9.0}, "at delta 1e-06, this release has"),
        ({"private_labels": True}, "requires randomised labels"),
    ],
)
def test_a_site_refuses_what_is_weaker_than_it_demands(data: Data, policy: Any, told: str) -> None:
    with Federation.local(data, policies={"b": Policy(("*",), **{"max_record_epsilon": 9.0, **policy})}) as federation:
        with pytest.raises(TooFewReplies, match=f"'b': .*{told}"):
            learner(GAUSSIAN).fit(federation)
        assert site_of(federation, "b").store.names(FOLDER) == []
        assert charges(federation, "b") == 0


def test_a_site_that_requires_privacy_takes_part_with_it_and_sends_nothing_without(data: Data, queries: Any) -> None:
    demands = Policy(("*",), max_record_epsilon=3.0, mechanisms=("record-gaussian",))
    assert demands.require_privacy
    with Federation.local(data, policies={"b": demands}, holdout=0.2) as federation:
        with pytest.raises(TooFewReplies, match=r"'b': .*requires privacy, and this learner offers none"):
            FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
        model = learner(GAUSSIAN).fit(federation)
        assert model.predict(queries).shape == (11,)
        assert (
            learner(GAUSSIAN, hold="machines").fit(federation).predict(queries).tobytes()
            == model.predict(queries).tobytes()
        )
        asked = Payload(values={"statistics": {"outcomes": {}}})
        for task in ("held_out_queries", "test_scores", "test_model"):
            refusal = federation.ask(task, asked, sites=["b"], min_replies=0).missing["b"]
            assert refusal.code == "policy"
            assert "requires privacy" in refusal.reason


def test_a_policy_that_became_stricter_holds_for_older_models(data: Data, queries: Any, tmp_path: Path) -> None:
    with Federation.local(data, store=tmp_path) as federation:
        model = learner(GAUSSIAN).fit(federation)
    for policy, told in (
        (Policy(("*",), max_record_epsilon=1.0), "at most 1 at delta"),
        (Policy(("*",), mechanisms=("record-moments",), max_record_epsilon=50.0), "releases by record-moments"),
        (Policy(("*",), min_rows_per_class=30), "wants 30 rows per class, this model has a class of 1"),
    ):
        with Federation.local(data, store=tmp_path, policies={"a": policy}) as federation:
            with pytest.raises(TooFewReplies, match=f"'a': .*{told}"):
                model.connect(federation).predict(queries)
            generation = {"a": model.members_["a"].generation}
            fetch = Payload(values={"handle": model.handle, "generation": generation})
            for task in ("machines", "released_machines"):
                assert federation.ask(task, fetch, sites=["a"], min_replies=0).missing["a"].code == "policy"


def test_rows_as_they_are_do_not_leave_as_released_ones(federation: Federation) -> None:
    model = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
    generation = {"a": model.members_["a"].generation}
    fetch = Payload(values={"handle": model.handle, "generation": generation})
    refusal = federation.ask("released_machines", fetch, sites=["a"], min_replies=0).missing["a"]
    assert "contain rows as they are" in refusal.reason


def test_a_budget_is_for_all_releases_together(data: Data) -> None:
    with Federation.local(data, policies={"a": Policy(("*",), max_record_epsilon=3.5)}) as federation:
        learner(GAUSSIAN).fit(federation)
        with pytest.raises(TooFewReplies, match="'a': the site's privacy budget does not allow this release"):
            learner(RecordGaussian(2.0, 1e-5, 3.0)).fit(federation)
        learner(GAUSSIAN).fit(federation)
        assert charges(federation) == 1


# Labels -----------------------------------------------------------------------------------------------------------


def test_randomised_labels_are_drawn_once_and_told_instead_of_the_true_ones(data: Data, tmp_path: Path) -> None:
    asked = Payload(values={"privacy": Recipe(GAUSSIAN, LABELS).to_values()})
    with Federation.local(
        data, store=tmp_path, policies={"a": Policy(("*",), private_labels=True, max_record_epsilon=50.0)}
    ) as federation:
        with pytest.raises(TooFewReplies, match=r"'a': .*requires randomised labels"):
            federation.describe()
        model = learner(GAUSSIAN, labels=LABELS).fit(federation)
        told = [federation.ask("folding_schema", asked)["a"].values["counts"] for _ in range(3)]
        assert told[0] == told[1] == told[2]
        assert model.privacy is not None
        assert (model.privacy.record.epsilon, model.privacy.record.delta) == (5.0, 1e-5)
        assert 3 < model.privacy.spent["a"][0] <= 5 + 1e-9
        assert [charges(federation, name) for name in "ab"] == [2, 2]
        entry = read_machines(site_of(federation), model.handle)
        assert entry is not None
        held = {
            label: sum(len(b) for b, own in zip(entry.batches, entry.labels, strict=True) if own == label)
            for label in entry.classes.tolist()
        }
        assert list(held.values()) == told[0]
        true = dict(zip(site_of(federation).rows().ids.tolist(), data["a"][1].tolist(), strict=True))
        kept = np.concatenate(
            [[true[int(i)] == own for i in b] for b, own in zip(entry.batches, entry.labels, strict=True)]
        )
        assert 0.4 < kept.mean() < 1.0  # e^2 / (e^2 + 2) = 0.79 are expected
        assert "labels randomised" in str(model)
    with Federation.local(data, store=tmp_path) as federation:
        assert federation.ask("folding_schema", asked)["a"].values["counts"] == told[0]
        assert charges(federation) == 2


def test_labels_that_were_not_declared_count_as_the_first_one(data: Data) -> None:
    """To refuse them would tell of one row with certainty: 2 is drawn as 0 would be, and nobody is told."""
    with Federation.local(data) as federation:
        model = learner(GAUSSIAN, labels=RandomizedLabels(1.0, (0, 1))).fit(federation)
        assert model.classes_.tolist() == [0, 1]
        assert model.members_["a"].rows == len(data["a"][1])
        assert charges(federation) == 2


def test_small_classes_are_judged_by_randomised_labels(data: Data) -> None:
    X, y = data["a"]
    lone = {**data, "a": (X, np.where(np.arange(len(y)) < 1, 2, y % 2))}  # one row of class 2
    policy = Policy(("*",), min_rows_per_class=3)
    with Federation.local(lone, policies={"a": policy}) as federation:
        assert len(federation.describe(["a"])["a"].values["counts"]) == 2
        model = learner(MOMENTS, labels=RandomizedLabels(1.0, (0, 1, 2))).fit(federation)
        assert len(model.members_["a"].classes) == 3  # some of the others say so


def test_charges_do_not_tell_which_label_was_corrected_to_which(data: Data, tmp_path: Path) -> None:
    """Whoever asks with a list for every label would else see exactly the lists of the old and the new one charged."""
    X, y = data["a"]
    policy = Policy(("*",), private_labels=True, max_record_epsilon=50.0)
    lists = [RandomizedLabels(0.01, (label, 9)) for label in (0, 1, 2)]

    def charged(labels: Any) -> list[int]:
        corrected = y.copy()
        corrected[5] = labels
        site = Site("a", X, corrected, store=SiteStore(tmp_path / f"{labels}"), policy=policy)
        counts = []
        for asked in lists:
            site.as_owner("folding_schema", Payload(values={"privacy": Recipe(GAUSSIAN, asked).to_values()}))
            counts.append(len(open_ledger(site).entries()))
        return counts

    before = charged(int(y[5]))
    after = []
    for label in {0, 1, 2} - {int(y[5])}:
        shutil.copytree(tmp_path / f"{int(y[5])}", tmp_path / f"{label}")
        after.append(charged(label))
    assert before == [1, 2, 3]
    assert after == [[3, 3, 3], [3, 3, 3]]  # nothing, until the site publishes

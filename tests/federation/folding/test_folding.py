"""The folding learner: one round, against machines fitted by hand, and replies that are checked before use."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from contracts.engines import lying
from kernfed import KAHM, KAHMClassifier
from kernfed.errors import MissingSites, TooFewReplies
from kernfed.federation import Federation, FoldingLearner, LocalEngine, Payload, Policy
from kernfed.federation.folding import questions as folding_questions
from kernfed.federation.folding.questions import query_chunks
from kernfed.kahm.folding import MEASURES
from kernfed.kahm.model_file import pack_machines
from oracles.federation import Data, scores_by_hand, sites_data


@pytest.fixture
def data(rng: np.random.Generator) -> Data:
    return sites_data(rng, "abc", rows=60)


@pytest.fixture
def queries(rng: np.random.Generator) -> Any:
    return np.concatenate([sites_data(rng, "q", rows=30)["q"][0], 30 * rng.standard_normal((5, 5)), np.zeros((1, 5))])


# One site is the centralised machine; many are the minimum ---------------------------------------------------------


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("labels", [(0, 1, 2), ("x", "longer", "z"), (False, True)])
def test_scores_are_the_minimum_over_machines_fitted_by_hand(
    data: Data, queries: Any, measure: str, labels: Any, rng: np.random.Generator
) -> None:
    data = sites_data(rng, "abc", rows=60, labels=labels)
    X, y = data["b"]
    data["b"] = (X[y != y[0]], y[y != y[0]])  # a class is absent at one site
    model = FoldingLearner(measure, batch_size=8, partition="order", scale=None).fit(Federation.local(data))
    assert model.classes_.tolist() == sorted(labels)
    expected = scores_by_hand(data, queries, measure, 8)
    np.testing.assert_allclose(model.scores(queries), expected, rtol=1e-9, atol=1e-9)
    sure = np.ptp(np.sort(expected, axis=1)[:, :2], axis=1) > 1e-6
    assert (model.predict(queries)[sure] == np.array(sorted(labels))[expected.argmin(axis=1)][sure]).all()


@pytest.mark.parametrize("options", [{}, {"layers": 3}, {"dtype": "float32"}, {"subspace_dim": 2}])
@pytest.mark.parametrize("measure", ["distance", "rms"])
def test_one_site_is_the_centralised_classifier(data: Data, queries: Any, measure: str, options: Any) -> None:
    X, y = data["a"]
    with Federation.local({"a": data["a"]}) as federation:
        model = FoldingLearner(measure, batch_size=7, partition="order", scale=None, **options).fit(federation)
        central = KAHMClassifier(measure, batch_size=7, partition="order", scale=None, **options).fit(X, y)
        np.testing.assert_array_equal(model.scores(queries), central.scores(queries))
        np.testing.assert_array_equal(model.predict(queries), central.predict(queries))


def test_scores_by_site_and_local_and_explain(data: Data, queries: Any) -> None:
    X, y = data["b"]
    data["b"] = (X[y != 0], y[y != 0])
    model = FoldingLearner(batch_size=6, measure="rms", partition="order", scale=None).fit(Federation.local(data))
    by_site = model.scores_by_site(queries)
    assert by_site.shape == (3, len(queries), 3)
    assert (by_site[1, :, 0] == 1.0).all()  # absent
    np.testing.assert_array_equal(by_site.min(axis=0), model.scores(queries))
    for row, site in enumerate(model.sites):
        alone = FoldingLearner(batch_size=6, measure="rms", partition="order", scale=None).fit(
            Federation.local({site: data[site]})
        )
        np.testing.assert_array_equal(model.local(site).scores(queries), by_site[row])
        held = np.searchsorted(model.classes_, alone.classes_)
        np.testing.assert_array_equal(alone.scores(queries), by_site[row][:, held])
    found = model.explain(queries)
    np.testing.assert_array_equal(found.label, model.predict(queries))
    np.testing.assert_array_equal(found.score, model.scores(queries).min(axis=1))
    assert sum(found.shares().values()) == pytest.approx(1.0)
    for query, (label, site, batch, score) in enumerate(
        zip(found.label, found.site, found.batch, found.score, strict=True)
    ):
        row = model.sites.index(site)
        column = model.classes_.tolist().index(label)
        assert by_site[row, query, column] == score
        assert 0 <= batch < model.members_[site].machines
    with pytest.raises(ValueError, match="no site 'zulu' in this model; there are 'a', 'b', 'c'"):
        model.local("zulu")


def test_the_batch_that_won_is_named(data: Data, queries: Any) -> None:
    """The machine that explain names is the nearest of those fitted by hand on the batches the site remembers."""
    federation = Federation.local(data)
    model = FoldingLearner("distance", batch_size=5, partition="order", scale=None).fit(federation)
    told = model.explain(queries)
    for site, (X, _) in data.items():
        kept = federation.engine.site(site).store.read("folding", model.handle)  # type: ignore[attr-defined]
        batches = np.split(kept.arrays["ids"], np.cumsum(kept.arrays["shapes"][:, 0])[:-1])
        distances = np.array(
            [KAHM(scale=None).fit(X[ids]).distance(queries) for ids in batches]
        )  # ids are positions here
        for query in np.flatnonzero(told.site == site):
            assert distances[told.batch[query], query] == pytest.approx(distances[:, query].min())
            assert kept.values["labels"]["labels"][told.batch[query]] == told.label[query]
    assert set(told.site) == {"a", "b", "c"}


def test_probabilities(data: Data, queries: Any) -> None:
    model = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(Federation.local(data))
    found = model.predict_proba(queries)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    np.testing.assert_array_equal(found.argmax(axis=1), model.scores(queries).argmin(axis=1))
    told = sorted((m.temperature, m.rows) for m in model.members_.values())
    assert model.temperature_ == told[1][0]  # the median of three sites of one size
    assert model.local("a").temperature_ == model.members_["a"].temperature
    single = {name: (X[y == number], y[y == number]) for number, (name, (X, y)) in enumerate(data.items())}
    alone = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(Federation.local(single))
    assert alone.temperature_ in [member.temperature for member in alone.members_.values()]


# Life of a question ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("X", "told"),
    [
        (np.zeros((2, 4)), "X must have 5 columns as at training, got 4"),
        (np.zeros(5), "must be a matrix"),
        (np.full((1, 5), np.nan), "must be finite"),
        (np.zeros((0, 5)), "at least 1 row"),
        ([["a"] * 5], "real numbers"),
    ],
)
def test_queries_that_are_refused_here(data: Data, X: Any, told: str) -> None:
    federation = Federation.local(data)
    model = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
    before = federation.traffic.bytes_down
    with pytest.raises(ValueError, match=told):
        model.predict(X)
    assert federation.traffic.bytes_down == before


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.longdouble, np.int8, bool, ">f8"])
def test_queries_of_every_kind_of_number(data: Data, kind: Any) -> None:
    model = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(Federation.local(data))
    X = np.array([[0, 1, 1, 0, 1], [1, 0, 0, 0, 1]])
    np.testing.assert_array_equal(model.scores(X.astype(kind)), model.scores(X.astype(float)))


def test_long_questions_are_cut(data: Data, queries: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation.local(data)
    model = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
    whole, told = model.scores(queries), model.explain(queries)
    for numbers in (1, 15, 36, 5 * len(queries)):
        monkeypatch.setattr(folding_questions, "_NUMBERS_PER_MESSAGE", numbers)
        before = {entry.site: entry.messages for entry in federation.traffic if entry.task == "scores"}
        np.testing.assert_array_equal(model.scores(queries), whole)
        sent = -(-len(queries) // max(1, numbers // 5))
        assert {e.site: e.messages - before[e.site] for e in federation.traffic if e.task == "scores"} == dict.fromkeys(
            "abc", sent
        )
        np.testing.assert_array_equal(model.explain(queries).batch, told.batch)


def test_query_chunks() -> None:
    assert query_chunks(0, 5) == [(0, 0)]
    assert query_chunks(3, 10**9) == [(0, 1), (1, 2), (2, 3)]
    parts = query_chunks(1_000_003, 100)
    assert [start for start, _ in parts] == [0, *(stop for _, stop in parts[:-1])]
    assert parts[-1][1] == 1_000_003


def test_the_second_fit_fits_nothing(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation.local(data)
    first = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
    monkeypatch.setattr("kernfed.federation.folding.machines.fit_machines", None)
    second = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
    assert (second.handle, second.members_) == (first.handle, first.members_)


@pytest.mark.parametrize(
    "settings",
    [
        {"measure": "volume"},
        {"batch_size": 0},
        {"partition": "alphabet"},
        {"layers": 0},
        {"dtype": "float16"},
        {"aggregate": "mean"},
        {"k": 0},
        {"hold": "hands"},
        {"privacy": 1.0},
        {"subspace_dim": 0},
        {"subspace_dim": "some"},
        {"batch_size": 2.5},
    ],
)
def test_settings_that_are_none_are_told_before_anything_is_asked(data: Data, settings: dict[str, Any]) -> None:
    learner = FoldingLearner(**settings)
    with Federation.local(data) as federation:
        with pytest.raises(ValueError, match=f"{next(iter(settings))} must be"):
            learner.fit(federation)
        assert len(federation.traffic) == 0


def test_one_class_is_not_enough(rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match=r"at least 2 classes together, got \[7\]"):
        FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(
            Federation.local(sites_data(rng, "ab", labels=[7]))
        )


# Lies --------------------------------------------------------------------------------------------------------------


def arrays(**changes: Any) -> Callable[[Payload], Payload]:
    """Payload with arrays made of the honest ones."""

    def change(payload: Payload) -> Payload:
        made = {name: edit(payload.arrays) for name, edit in changes.items()}
        return Payload({k: v for k, v in {**payload.arrays, **made}.items() if v is not None}, payload.values)

    return change


def values(**changes: Any) -> Callable[[Payload], Payload]:
    return lambda payload: Payload(payload.arrays, {**payload.values, **changes})


def spoil(payload: Payload, number: float) -> Payload:
    payload.arrays["scores"].flat[0] = number
    return payload


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        (lambda p: spoil(p, np.nan), "scores must be finite"),
        (lambda p: spoil(p, np.inf), "scores must be finite"),
        (lambda p: spoil(p, -1e-9), r"rms scores must be in \[0, 1.0\]"),
        (lambda p: spoil(p, 1.0000001), r"rms scores must be in \[0, 1.0\]"),
        (arrays(scores=lambda a: a["scores"][:-1]), r"scores must be float64 of shape \(36, 3\)"),
        (arrays(scores=lambda a: a["scores"][:, :2]), "scores must be float64 of shape"),
        (arrays(scores=lambda a: a["scores"].T), "scores must be float64 of shape"),
        (arrays(scores=lambda a: a["scores"].astype(np.float32)), "got float32"),
        (arrays(scores=lambda _: None), r"expected arrays \['batches', 'scores'\]"),
        (arrays(more=lambda a: a["scores"]), r"got \['batches', 'more', 'scores'\]"),
        (arrays(batches=lambda a: a["batches"] * 0 - 1), "batches must be numbers of the site's 9 machines"),
        (arrays(batches=lambda a: a["batches"] * 0 + 9), "batches must be numbers"),
        (arrays(batches=lambda a: a["batches"].astype(np.int64)), "batches must be int32"),
        (values(classes={"dtype": "<i8", "labels": [0, 1, 3]}), "classes are not those the model was made with"),
        (values(classes={"dtype": "<i8", "labels": [1, 0, 2]}), "classes are not those"),
        (values(classes={"dtype": "<i8", "labels": [0, 0, 2]}), "must name its classes once each"),
        (values(classes={"dtype": "<U1", "labels": ["0", "1", "2"]}), "classes are not those"),
        (values(classes={"dtype": "<i8", "labels": []}), "must name its classes"),
        (values(classes=None), "TypeError"),
        (lambda p: Payload(p.arrays), "KeyError: 'classes'"),
    ],
)
def test_false_scores_are_refused_by_name_before_anything_is_combined(
    data: Data, queries: Any, lie: Callable[[Payload], Payload], told: str
) -> None:
    engine = LocalEngine.from_data(data)
    model = FoldingLearner(batch_size=7, measure="rms", partition="order", scale=None).fit(Federation(engine))
    wrong = model.connect(Federation(lying(engine, "b", lie)))
    with pytest.raises(TooFewReplies, match=f"'b': the reply of site 'b' was refused: .*{told}"):
        wrong.explain(queries)
    with pytest.warns(MissingSites, match=f"1 site.* missing.*'b'.*{told}"):
        found = wrong.site_scores(queries, explain=True, min_replies=2)
    assert found.sites == ("a", "c")
    assert list(found.missing) == ["b"]
    np.testing.assert_array_equal(found.values, model.scores_by_site(queries)[[0, 2]])


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        (values(classes={"dtype": "<U1", "labels": ["x"]}), "described 60 rows of classes .0, 1, 2., and models"),
        (values(classes={"dtype": "<i8", "labels": [0, 1, 5]}), "described 60 rows"),
        (values(rows=10**18), "described 60 rows of classes .*, and models 1000"),
        (values(rows=0), "rows must be >= 1"),
        (values(machines="9"), "machines must be an integer"),
        (values(generation=None), "generation must be an integer"),
        (values(temperature="nan"), "temperature must be a finite number"),
        (values(temperature=-1.0), "temperature must be > 0"),
        (values(temperature=[1]), "TypeError"),
        (arrays(scores=lambda _: np.zeros((1, 3))), r"expected no arrays, got \['scores'\]"),
        (lambda p: Payload(p.arrays, {}), "KeyError"),
    ],
)
def test_false_preparations_are_refused_by_name(data: Data, lie: Callable[[Payload], Payload], told: str) -> None:
    federation = Federation(lying(LocalEngine.from_data(data), "c", lie, task="folding_fit"))
    with pytest.raises(TooFewReplies, match=f"'c': .*{told}"):
        FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
    with pytest.warns(MissingSites, match=f"1 site.* missing.*'c'.*{told}"):
        model = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(
            federation, min_replies=2
        )
    assert model.sites == ("a", "b")
    assert list(model.missing_) == ["c"]
    assert model.classes_.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        (arrays(groups=lambda a: a["groups"] * 0), "cover the site's classes"),
        (arrays(groups=lambda a: a["groups"] + 5), "cover the site's classes"),
        (arrays(groups=lambda a: a["groups"][:-1]), "expected 9 machines"),
        (arrays(image=lambda a: a["image"] * np.nan), "finite"),
        (arrays(image=lambda a: a["image"][:-1]), "image ends early"),
        (arrays(mean=lambda _: np.zeros((9, 4))), "columns|numbers|needed"),
        (arrays(shapes=lambda a: a["shapes"][:3]), "machines need shapes"),
        (arrays(shapes=lambda a: a["shapes"] * 2**40), "machine|number|ends early"),
        (arrays(regularization=lambda a: a["regularization"][:1]), "refused"),
        (arrays(directions=lambda _: None), "KeyError"),
        (
            arrays(
                **{n: (lambda a, n=n: a[n].astype(np.float32)) for n in ("directions", "scores", "exponent", "image")}
            ),
            "machines must be of float64",
        ),
    ],
)
def test_false_machines_are_refused_by_name(data: Data, lie: Callable[[Payload], Payload], told: str) -> None:
    federation = Federation(lying(LocalEngine.from_data(data), "a", lie, task="machines"))
    with pytest.raises(TooFewReplies, match=f"'a': the reply of site 'a' was refused: .*({told})|'a':.*({told})"):
        FoldingLearner(batch_size=7, hold="machines", measure="rms", partition="order", scale=None).fit(federation)


def test_machines_are_fetched_to_the_bit(data: Data) -> None:
    federation = Federation.local(data)
    model = FoldingLearner(batch_size=7, hold="machines", measure="rms", partition="order", scale=None).fit(federation)
    assert model.banks_ is not None
    for name, bank in model.banks_.items():
        kept = federation.engine.site(name).store.read("folding", model.handle)  # type: ignore[attr-defined]
        for key, array in pack_machines(bank.machines).items():
            np.testing.assert_array_equal(kept.arrays[key], array)


def test_machines_need_every_sites_consent(data: Data) -> None:
    federation = Federation.local(data, policies={"b": Policy()})
    allowed = "describe, folding_choose, folding_fit, scores"
    with pytest.raises(TooFewReplies, match=f"'b': the policy of site 'b' allows {allowed}, not 'machines'"):
        FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
    assert FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation).sites == (
        "a",
        "b",
        "c",
    )


def test_handles_and_parameters_belong_together(data: Data) -> None:
    """Nobody can overwrite the machines of another learner under its handle, or ask for senseless ones."""
    federation = Federation.local(data)
    model = FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)
    question = folding_questions.Training(model.handle, model.parameters).question()
    honest = question.values["parameters"]
    for changes in ({"batch_size": 3}, {"batch_size": 0}, {"measure": "volume"}, {"layers": "many"}, {"more": 1}):
        payload = Payload(question.arrays, {**question.values, "parameters": {**honest, **changes}})
        assert len(federation.ask("folding_fit", payload, min_replies=0).missing) == 3
    for handle in ("other", "../../up", "", None):
        payload = Payload(question.arrays, {**question.values, "handle": handle})
        replies = federation.ask("folding_fit", payload, min_replies=0)
        assert {refusal.code for refusal in replies.missing.values()} == {"bad question"}
    assert (
        FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation).members_
        == model.members_
    )

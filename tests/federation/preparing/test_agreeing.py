"""Sites agree on a preparation: one exchange of statistics, no rows, the same on learners, in files, under privacy."""

import logging
import warnings

import numpy as np
import pandas as pd
import pytest

import kernfed as kf
from hospital import LABEL, SEVERITY, SITE, hospital_table
from kernfed.data import Preparation, RawTable, Rules, raw_table
from kernfed.errors import DataError, InputError, Refused, SchemaMismatch, TooFewReplies, UnitsDiffer
from kernfed.federation import Federation, Payload, Policy, Site, SiteStore
from kernfed.federation.preparing import agree, agree_where_raw, gather, use
from kernfed.jobs.run import Job, run_job
from kernfed.site.settings import site_from_settings

RULES = Rules(ordered={"severity": SEVERITY})


@pytest.fixture(scope="module")
def frame():
    return pd.DataFrame(hospital_table(600))


def by_site(frame):
    return {name: (own.drop(columns=[LABEL, SITE]), own[LABEL]) for name, own in frame.groupby(SITE)}


@pytest.fixture
def federation(frame, tmp_path):
    with Federation.local(by_site(frame), store=tmp_path / "stores") as made:
        yield made


def test_a_raw_table_waits_for_a_preparation(federation):
    with pytest.raises(TooFewReplies, match="has a raw table: the sites must agree on a preparation first"):
        kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)


def test_learners_see_numbers_and_models_take_raw_rows(federation, frame, tmp_path):
    preparation = agree(federation, rules=RULES)
    assert {entry.task: entry.information for entry in federation.traffic} == {
        "column_statistics": "statistics",
        "prepare": "none",
    }
    assert all(entry.messages == 1 for entry in federation.traffic)
    learners = (
        kf.FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None),
        kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None),
        kf.RidgeLearner(n_components=30, regularization=0.01, bandwidth=4.0),
        kf.PersonalLearner(n_components=10, weights="grand_mean", gains=False),
    )
    for learner in learners:
        model = learner.fit(federation)
        assert model.preparation == preparation
        assert tuple(model.feature_names_in_) == preparation.columns
        model.save(tmp_path / "model.kfd")
        again = kf.load(tmp_path / "model.kfd")
        assert again.preparation == preparation
        if isinstance(learner, kf.FoldingLearner) and learner.hold == "sites":
            again = again.connect(federation)
        predictor = again.for_site("north") if again.is_personal else again
        prepared, _ = preparation.apply(frame)
        np.testing.assert_array_equal(predictor.predict(frame[:50]), predictor.predict(prepared[:50]))
        with pytest.raises(DataError, match="column 'bmi' missing"):
            predictor.predict(frame.drop(columns="bmi"))
    tested = kf.evaluate(again, federation, holdout=by_site(frame[:200]))
    assert tested.pooled.rows == 200


def test_what_is_agreed_is_what_one_table_would_give(federation, frame):
    agreed = gather(federation, rules=RULES)
    here = Preparation.fit({name: X for name, (X, _) in by_site(frame).items()}, min_rows_per_value=5, rules=RULES)
    assert agreed.preparation == here
    assert agreed.rows == frame[SITE].value_counts().to_dict()


def test_the_policy_says_from_how_many_rows_on_a_word_is_named(frame):
    site = Site("a", raw_table({"x": ["often"] * 30 + ["seldom"] * 8}), ["y"] * 38, policy=Policy(("*",)))
    assert site.as_owner("column_statistics", Payload()).values["words"] == {"x": {"often": 30, "seldom": 8}}
    policy = Policy(("*",), min_rows_per_value=10)
    site = Site("a", raw_table({"x": ["often"] * 30 + ["seldom"] * 8}), ["y"] * 38, policy=policy)
    assert site.as_owner("column_statistics", Payload()).values["words"] == {"x": {"often": 30}}
    own = frame[frame[SITE] == "north"]
    site = Site("north", own.drop(columns=[LABEL, SITE]), own[LABEL], policy=Policy(("*",)))
    assert "P0" not in str(site.as_owner("column_statistics", Payload()).values)


def test_sites_count_the_words_of_a_column_that_is_declared_a_category():
    hours = {"hr": np.arange(480) % 24, "wind": np.arange(480) * 0.1}
    y = ["yes", "no"] * 240
    rules = Rules(kinds={"hr": "category"})
    with Federation.local({"a": (raw_table(hours), y), "b": (raw_table(hours), y)}) as federation:
        plan = agree(federation, rules=rules).plans[0]
        assert (plan.kind, len(plan.values)) == ("category", 24)
        assert gather(federation).preparation.plans[0].kind == "number"
    scarce = {"a": Policy(("*",), min_rows_per_value=21)}  # each hour has 20 rows
    with Federation.local({"a": (raw_table(hours), y)}, policies=scarce) as federation:
        assert gather(federation, rules=rules).preparation.plans[0].kind == "drop"


@pytest.mark.parametrize("categories", ["hr", [3], ["x"] * 5001, {"hr": 1}])
def test_declared_categories_that_are_no_names_are_refused(categories):
    site = Site("a", raw_table({"hr": np.arange(48) % 24}), ["y"] * 48, policy=Policy(("*",)))
    with pytest.raises(Refused, match="must be at most 5,000 names"):
        site.as_owner("column_statistics", Payload(values={"categories": categories}))


def test_a_remark_is_one_line_of_the_log(caplog):
    site = Site("a", raw_table({"x": [1.0, 2.5] * 10}), ["y"] * 20, policy=Policy(("*",)))
    plans = Preparation.fit({"x": [1.0, 2.5] * 10}).to_values()
    with caplog.at_level(logging.WARNING, "kernfed.site"):
        site.as_owner(
            "prepare", Payload(values={"preparation": plans, "remarks": ["all\nis \x1b[2J well" + "!" * 999]})
        )
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.isprintable()
    assert len(message) < 600


def test_a_default_policy_takes_no_preparation_and_says_what_to_add(frame):
    sites = by_site(frame)
    with Federation.local(sites, policies=dict.fromkeys(sites, Policy())) as federation:
        declared = Preparation.from_values([{"name": "bmi", "kind": "number", "low": 10, "high": 60, "center": 35}])
        told = "allows describe, folding_choose, folding_fit, scores, not 'prepare'; .* adding 'prepare' to tasks"
        with pytest.raises(TooFewReplies, match=told):
            use(federation, declared)
        with pytest.raises(TooFewReplies, match="must name the tasks 'column_statistics' and 'prepare'"):
            federation.schema  # noqa: B018
    allowed = Policy(("describe", "prepare"))
    with Federation.local(sites, policies=dict.fromkeys(sites, allowed)) as federation:
        use(federation, declared)
        assert federation.schema.columns == ("bmi",)


def test_rows_kept_aside_and_forgotten_are_not_counted():
    table = raw_table({"x": [*["often"] * 30, *["gone"] * 8]})
    with Federation.local({"a": (table, ["y", "n"] * 19)}, holdout=0.3) as federation:
        site = federation.engine.site("a")
        site.forget_rows(np.arange(30, 38))
        arrays, values = (lambda told: (told.arrays, told.values))(site.as_owner("column_statistics", Payload()))
        with site.store.locked():
            kept = len(site.data.raw_learning(lambda rows: rows))
        assert values["words"] == {"x": {"often": kept}}
        assert arrays["counts"][0, 0] == kept < 30


def test_a_site_in_another_unit_is_told_and_so_is_the_operator(frame, caplog):
    months = frame.assign(age=frame["age"].where(frame[SITE] != "west", frame["age"] * 12))
    told = "column 'age' of site 'west' looks to be in another unit.*about 12 times"
    with (
        Federation.local(by_site(months)) as federation,
        caplog.at_level(logging.WARNING, "kernfed.site"),
        pytest.warns(UnitsDiffer, match=told),
    ):
        agree(federation)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["site west"]


def test_a_matrix_with_names_takes_part_as_numbers(frame):
    sites = by_site(frame[["bmi", "sodium", "age", LABEL, SITE]])
    for name in ("north", "south", "east"):
        X, y = sites[name]
        sites[name] = (X.fillna(60.0), y)
    with Federation.local(sites) as federation:  # one site has gaps, the others have a matrix
        assert agree(federation).columns[:3] == ("bmi", "sodium", "age")
        assert federation.schema.width == len(federation.preparation.columns)


def test_sites_with_different_preparations_are_named(federation):
    preparation = agree(federation)
    other = Preparation(preparation.plans[:-3])
    told = Payload(values={"preparation": other.to_values()})
    federation.ask("prepare", told, sites=["west"])
    with pytest.raises(SchemaMismatch, match="'west'"):
        kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None).fit(federation)


def test_a_preparation_is_remembered_by_the_store(frame, tmp_path):
    X, y = by_site(frame)["west"]
    first = Site("west", X, y, store=SiteStore(tmp_path / "west"), policy=Policy(("*",)))
    preparation = Preparation.fit(X)
    first.as_owner("prepare", Payload(values={"preparation": preparation.to_values()}))
    second = Site("west", X, y, store=SiteStore(tmp_path / "west"), policy=Policy(("*",)))
    assert second.schema().columns == preparation.columns
    np.testing.assert_array_equal(second.rows().X, preparation.apply(X)[0])
    shorter = Preparation(preparation.plans[:5])
    first.as_owner("prepare", Payload(values={"preparation": shorter.to_values()}))
    assert second.rows().X.shape[1] == len(shorter.columns)


def test_forgotten_rows_leave_the_raw_table(frame):
    X, y = by_site(frame)["west"]
    site = Site("west", X, y, policy=Policy(("*",)))
    site.as_owner("prepare", Payload(values={"preparation": Preparation.fit(X).to_values()}))
    site.forget_rows(np.array([0, 1]))
    assert len(site.rows().X) == len(X) - 2
    assert X["patient"].iloc[0] not in site.data._source.table.columns["patient"].words
    with pytest.raises(InputError, match="rows of a raw table are added to the site's table"):
        site.add_rows(np.zeros((1, 3)), ["no"])


def test_a_new_site_is_prepared_as_the_others(frame):
    sites = by_site(frame)
    west = sites.pop("west")
    with Federation.local(sites) as federation:
        agree(federation, rules=RULES)
        model = (
            kf.FoldingLearner(measure="rms", batch_size=100, partition="order", scale=None)
            .fit(federation)
            .add_site("west", west)
        )
        assert "west" in model.sites
        assert model.predict(frame[:5]).shape == (5,)


def private_policy():
    return Policy(("*",), max_record_epsilon=3.0)


def test_where_privacy_is_required_no_statistics_leave(frame):
    sites = by_site(frame)
    policies = {name: private_policy() for name in sites}
    with Federation.local(sites, policies=policies) as federation:
        with pytest.raises(TooFewReplies, match="requires privacy, and 'column_statistics' tells statistics"):
            agree(federation)
        declared = Preparation.from_values(
            [
                {"name": "bmi", "kind": "number", "low": 10, "high": 60, "center": 35, "spread": 25},
                {"name": "sex", "kind": "category", "values": ["f", "m"], "other": True},
            ]
        )
        use(federation, declared)
        assert federation.schema.columns == ("bmi", "sex=f", "sex=m", "sex=(other)")
        absent = Preparation.from_values([{"name": "height", "kind": "number"}])
        with pytest.raises(TooFewReplies, match="the question cannot be followed"):
            use(federation, absent)


def test_agreeing_only_where_it_is_needed(federation, frame):
    assert agree_where_raw(federation)
    federation.preparation = None  # as in another process later
    assert agree_where_raw(federation)
    assert federation.preparation is not None
    numbers = frame[["bmi", "sodium"]].to_numpy()
    with Federation.local({"a": (numbers, frame[LABEL])}) as plain:
        assert not agree_where_raw(plain)


def test_questions_that_are_no_preparation_are_refused(federation):
    for values in ({"preparation": "none"}, {"preparation": [{"name": 3}]}, {"preparation": []}):
        with pytest.raises(TooFewReplies):
            federation.ask("prepare", Payload(values=values))


def test_sites_may_be_missing(frame):
    sites = by_site(frame)
    policies = {"west": Policy(("describe", "prepare"))}
    with Federation.local(sites, policies=policies) as federation, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        agree(federation, min_replies=3)
        assert any("the preparation is that of the others" in str(warning.message) for warning in said)


def test_a_site_may_read_its_raw_table_when_it_is_needed(frame):
    X, y = by_site(frame)["west"]

    def read():
        table = raw_table(X)
        return RawTable(table.columns, y=y.to_numpy(), source="west.csv")

    site = Site("west", read, policy=Policy(("*",)))
    site.as_owner("prepare", Payload(values={"preparation": Preparation.fit(X).to_values()}))
    assert len(site.rows().X) == len(X)


def test_sites_from_settings_agree_and_a_job_trains_with_them(frame, tmp_path):
    sites = {}
    for name, own in frame.groupby(SITE):
        own.drop(columns=SITE).to_csv(tmp_path / f"{name}.csv", index=False)
        settings = {
            "data": str(tmp_path / f"{name}.csv"),
            "label": LABEL,
            "store": str(tmp_path / name),
            "raw": True,
            "policy": {"tasks": ["*"]},
        }
        sites[name] = site_from_settings(name, settings, "site.toml")
    chosen = {"job": "train", "results": str(tmp_path), "preparation": "auto", "hold": "machines", "measure": "rms"}
    with Federation.local(sites) as federation:
        folder = run_job(federation, Job.from_settings(chosen, "run"))
        again = {"job": "predict", "results": str(tmp_path), "model": str(folder / "model.kfd")}
        queries = {"queries": str(tmp_path / "west.csv")}
        run_job(federation, Job.from_settings({**again, **queries}, "answers"))
    predicted = pd.read_parquet(tmp_path / "answers" / "predictions.parquet")
    assert len(predicted) == (frame[SITE] == "west").sum()
    assert {"probability of no", "probability of yes"} <= set(predicted)
    with pytest.raises(InputError, match=r"raw in site\.toml must be true or false, got 'yes'"):
        site_from_settings("west", {**settings, "raw": "yes"}, "site.toml")


def test_a_store_with_the_short_digest_of_an_earlier_version_is_read_once(frame, tmp_path, monkeypatch):
    """Digests were half as long: such a site keeps its preparation, and the schema that models know."""
    X, y = next(iter(by_site(frame).values()))
    site = Site("a", X, y, store=SiteStore(tmp_path))
    preparation = Preparation.fit(X)
    site.data.prepare(preparation)
    with site.store.locked():
        site.store.write_state({**site.store.read_state(), "preparation": preparation.digest[:16]})
    reads, read = [], Preparation.from_values
    monkeypatch.setattr(Preparation, "from_values", lambda values: reads.append(1) or read(values))
    again = Site("a", X, y, store=SiteStore(tmp_path))
    with again.store.locked():
        schemas = {again.data.schema(again.rows()).scaling for _ in range(3)}
    assert (len(reads), schemas) == (1, {f"preparation {preparation.digest[:16]}"})

"""Reports of models as data: what is shown is what the model and the rows say."""

from dataclasses import replace

import numpy as np
import pytest

import kernfed as kf
from kernfed.guarantees import heldout_bounds
from kernfed.report import ModelParts, gather_evidence, model_card, model_report, render_html
from kernfed.report.content import Bars, Curves, HeatMap
from kernfed.report.evidence import Evidence, check_traffic, count_unbounded, model_labels
from kernfed.report.sections import MOST_DRAWN, MOST_LISTED, labels_map, traffic_section, winners_map
from kernfed.testing.evaluation import evaluate_rows


def figure(report, title):
    return next(found for found in report.figures if found.title == title)


@pytest.fixture(scope="module")
def tested(small_models, small_holdout):
    models, traffic = small_models
    evidence = gather_evidence(models["machines"], small_holdout, traffic)
    return models["machines"], evidence, model_report(models["machines"], evidence)


def test_accuracy_bars_are_sorted_and_are_those_of_the_evaluation(tested, small_holdout):
    model, evidence, report = tested
    bars = figure(report, "Accuracy per site")
    found = evaluate_rows(model, small_holdout)
    assert list(bars.values) == sorted(bars.values, reverse=True)
    assert dict(zip(bars.labels, bars.values, strict=True)) == {s: o.accuracy for s, o in found.sites.items()}
    alone = dict(zip(bars.labels, bars.marks["the site alone"], strict=True))
    X, y = small_holdout["east"]
    assert alone["east"] == np.mean(model.local("east").predict(X) == y)
    counts = {site: (o.rows - o.correct, o.rows) for site, o in found.sites.items()}
    sure = heldout_bounds(counts, 0.95, simultaneous=True)
    assert bars.marks["at least, 95% sure"] == tuple(1 - sure.sites[site].value for site in bars.labels)
    assert report.facts[0].value == f"{100 * found.accuracy:.1f} %"
    assert evidence.evaluation.accuracy == found.accuracy


def test_confusion_rows_are_shares_of_the_true_class(tested):
    _, evidence, report = tested
    heat = figure(report, "Confusion matrix")
    assert heat.rows == heat.columns == ("cat", "dog", "fox")
    np.testing.assert_allclose(np.sum(heat.values, axis=1), 1)
    counts = evidence.evaluation.pooled.confusion[:3]
    np.testing.assert_allclose(heat.values, counts / counts.sum(axis=1, keepdims=True))


def test_unknown_labels_get_a_row_of_their_own(small_models, small_holdout):
    model = small_models[0]["machines"]
    X, y = small_holdout["east"]
    labels = y.astype("<U8")
    labels[0] = "unicorn"
    heat = figure(model_report(model, gather_evidence(model, {"east": (X, labels)})), "Confusion matrix")
    assert heat.rows[-1] == "other"
    assert sum(heat.values[-1]) == 1


def test_who_has_and_who_decides(tested, small_sites, small_holdout):
    model, _, report = tested
    assert model_labels(model)["east"] == {"cat": 40, "dog": 40}
    counts = figure(report, "Who has which class")
    assert counts.values[counts.rows.index("east")] == (40.0, 40.0, 0.0)
    assert "Training rows per site and class, 240 in all; 3 of 9 pairs" in counts.words
    assert figure(model_report(model), "Who has which class") == counts  # rows to test on are no rows to train on
    seen = next(found for found in report.section("Accuracy").figures if found.title == "What was tested where")
    assert seen.values[seen.rows.index("north")] == (9.0, 9.0, 9.0)
    assert seen.words.startswith("Held-out rows per site and class, 63 in all; 0 of 9 pairs")
    decided = figure(report, "Who decides which class")
    found = model.explain(np.concatenate([X for X, _ in small_holdout.values()]))
    cats = found.site[found.label == "cat"]
    column = decided.columns.index("east")
    assert decided.values[decided.rows.index("cat")][column] == np.mean(cats == "east")
    assert set(small_sites) >= set(decided.columns)


def test_where_no_site_decides_none_is_said_to(small_models, small_holdout):
    report = model_report(small_models[0]["ridge"], gather_evidence(small_models[0]["ridge"], small_holdout))
    assert not [section.title for section in report.sections if section.title.startswith("Who")]
    assert figure(report, "What was tested where").rows == ("east", "north", "west")


def test_traffic_is_added_up_per_site(tested, small_models):
    _, _, report = tested
    traffic = small_models[1]
    section = report.section("What left the sites")
    bars = section.figures[0]
    total = {site: sum(e["bytes_up"] for e in traffic if e["site"] == site) for site in ("east", "north", "west")}
    assert dict(zip(bars.labels, bars.values, strict=True)) == total
    assert list(bars.values) == sorted(bars.values, reverse=True)
    fitted = next(row for row in section.tables[0].rows if row[0] == "folding_fit")
    assert fitted[5] == f"{sum(e['bytes_up'] for e in traffic if e['task'] == 'folding_fit'):,}"


def test_guarantees_come_with_assumptions(tested):
    _, _, report = tested
    first, lies, images = report.section("Guarantees").claims
    assert first.reliable
    assert first.statement.startswith("The error on what comes later is at most")
    assert first.statement.endswith("with probability 0.9875.")  # 1 - 0.05 / 4: three sites and all of them
    (words,) = report.section("Guarantees").words
    assert "the 3 bounds for sites and the one for all are true together with 95% confidence if the conditions" in words
    assert "So that all are true at once each has to be surer than that: probability 0.9875." in words
    assert report.section("Guarantees").tables[0].caption.endswith("if the conditions above hold")
    assert [given.holds for given in first.assumptions] == [None, None]
    assert [given.holds for given in lies.assumptions] == [False, False]
    assert [given.holds for given in images.assumptions] == [True]
    assert any("counterexample" in row[2] for row in report.section("Guarantees").tables[-1].rows)


def test_a_robust_model_has_its_assumptions_ticked(small_sites):
    everybody = {
        **small_sites,
        "south": tuple(np.concatenate(parts) for parts in zip(*small_sites.values(), strict=True)),
    }
    with kf.Federation.local(everybody) as federation:
        model = kf.FoldingLearner(batch_size=20, aggregate="kth", measure="rms", partition="order", scale=None).fit(
            federation
        )
    claim = model_report(model).section("Guarantees").claims[0]
    assert claim.reliable
    assert claim.statement == "3 of 3 classes cannot be decided by one wrong site alone."
    assert [given.holds for given in claim.assumptions] == [True, True]


def test_classes_that_are_not_protected_are_told(small_models):
    claim = model_report(small_models[0]["sites"]).section("Guarantees").claims[0]
    assert (claim.reliable, claim.status) == (False, "protected in part")
    told = "0 of 3 classes cannot be decided by one wrong site alone. 3 take part all the same, as trusted classes."
    assert claim.statement == told
    assert [given.holds for given in claim.assumptions] == [True, False]


def test_what_stays_at_the_sites_is_said_and_not_shown(small_models):
    report = model_report(small_models[0]["sites"])
    assert figure(report, "Who has which class").values == ((1.0, 1.0, 0.0), (0.0, 1.0, 1.0), (1.0, 0.0, 1.0))
    assert "Rows stay at their sites" in report.section("Privacy").words[0]
    assert [claim.status for claim in report.section("Privacy").claims] == ["no guarantee", "no guarantee"]
    assert report.sections[0].title == "Who has what"


def test_machines_contain_rows_and_the_report_says_so(small_models):
    assert "contains the rows" in model_report(small_models[0]["machines"]).section("Privacy").words[0]


def test_the_promise_of_a_private_model_is_told_in_both_units(small_sites, tmp_path):
    with kf.Federation.local(small_sites, store=tmp_path) as federation:
        model = kf.FoldingLearner(
            privacy=kf.privacy.RecordGaussian(2.0, 1e-5, 5.0),
            measure="rms",
            batch_size=100,
            partition="order",
            scale=None,
        ).fit(federation)
    report = model_report(model)
    section = report.section("Privacy")
    element, record = section.claims
    assert element.title.startswith("One element")
    assert record.title.startswith("One record")
    assert "epsilon 2 and delta 1e-05 for one row of 4 elements replaced by any other" in record.statement
    assert record.reliable
    assert any("public" in words for words in section.words)
    assert any("A second release" in point for point in section.points)
    assert not [point for point in section.points if "attack" in point.lower()]  # none was tried
    assert [row[0] for row in section.tables[0].rows] == ["east", "north", "west"]
    assert (report.facts[-1].value, report.facts[-1].note) == ("ε 2", "at δ 1e-05")


def test_a_promise_that_protects_nobody_says_so_at_the_top(small_sites, tmp_path):
    with kf.Federation.local(small_sites, store=tmp_path) as federation:
        model = kf.FoldingLearner(
            privacy=kf.privacy.RecordGaussian(40.0, 1e-5, 5.0),
            measure="rms",
            batch_size=100,
            partition="order",
            scale=None,
        ).fit(federation)
    assert model_report(model).facts[-1].note == "at δ 1e-05: no protection"


def test_a_private_ridge_model_says_what_its_sums_promise(small_sites, tmp_path):
    mechanism = kf.privacy.RecordRidge(1.0, 1e-5, radius=1.0, target_radius=1.0)
    learner = kf.RidgeLearner(method="exact", n_components=10, bandwidth=2.0, privacy=mechanism)
    with kf.Federation.local(small_sites, store=tmp_path) as federation:
        report = model_report(learner.fit(federation))
    section = report.section("Privacy")
    assert "noisy sums" in section.words[0]
    assert "one row replaced by any other of its public class" in section.claims[1].statement  # counts leave exactly
    assert [claim.reliable for claim in section.claims] == [True, True]


def test_unbounded_images_are_counted():
    rng = np.random.default_rng(0)
    rows = {"a": (rng.normal(size=(100, 20)), np.repeat([0, 1], 50))}
    with kf.Federation.local(rows) as federation:
        model = kf.FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None).fit(
            federation
        )
    found = sum(bank.scores(rows["a"][0], "rms").fallbacks for bank in model.banks_.values())
    assert count_unbounded(model, rows["a"][0]) == (found, 100)
    report = model_report(model, Evidence(unbounded=3, checked=100))
    claim = report.section("Guarantees").claims[-1]
    assert not claim.reliable
    assert "3 times they do not" in claim.assumptions[0].text
    assert claim.assumptions[0].holds is False


def test_ridge_has_convergence_bytes_and_the_choice_of_lambda(small_models, small_holdout):
    model = small_models[0]["ridge"]
    report = model_report(model, gather_evidence(model, small_holdout))
    titles = [found.title for found in report.section("Training").figures]
    assert "Bytes over the rounds" in titles
    assert "Choice of the regularisation" in titles
    gradient = figure(report, "Norm of the gradient")
    history = [(entry.round, entry.gradient_norm) for entry in model.history_ if entry.gradient_norm is not None]
    assert list(zip(gradient.series[0].x, gradient.series[0].y, strict=True)) == history
    assert gradient.log_y
    sent = figure(report, "Bytes over the rounds").series[0]
    assert sent.y[-1] * 1e6 == pytest.approx(sum(entry.bytes_up for entry in model.history_))


def test_divergence_and_heterogeneity_are_claims(small_models):
    from kernfed.ridge.heterogeneity import Heterogeneity, SiteHeterogeneity

    sites = {"east": SiteHeterogeneity(0.5, 1.0, 2.0, 3.0)}
    model = replace(small_models[0]["ridge"], heterogeneity_=Heterogeneity(2.5, 0.4, 3.0, sites))
    report = model_report(model)
    upsilon, eigenvalue = report.section("Guarantees").claims
    assert "at most 0.4" in upsilon.statement
    assert [given.holds for given in upsilon.assumptions] == [False, True]
    assert eigenvalue.assumptions[0].holds is False
    assert any(table.caption == "How much the sites differ" for table in report.section("How it was made").tables)


def test_regressors_have_errors_not_accuracies(small_models, small_sites):
    model = small_models[0]["regress"]
    rows = {name: (X, X[:, 0]) for name, (X, _) in small_sites.items()}
    report = model_report(model, gather_evidence(model, rows))
    bars = figure(report, "Mean squared error per site")
    X, y = rows["east"]
    expected = np.mean((model.predict(X) - y) ** 2)
    assert dict(zip(bars.labels, bars.values, strict=True))["east"] == pytest.approx(expected)
    assert report.facts[0].name == "R²"
    assert report.sections[0].title == "Errors"


def test_a_model_of_one_table_has_a_report(small_sites, small_holdout):
    single = kf.KAHMClassifier(batch_size=1000, partition="kmeans", scale=None).fit(*small_sites["east"])
    assert "nothing was federated" in model_report(single, gather_evidence(single, small_holdout)).lead


def test_a_model_of_another_package_says_what_is_particular_to_it():
    class Means(kf.federation.Model):
        classes_, n_features_in_ = np.array(["cat", "dog"]), 4

        def predict(self, X):
            return np.repeat(self.classes_[:1], len(X))

    class Reported(Means):
        def report_parts(self):
            return ModelParts("Nearest means", "The nearest mean decides.", settings={"shrink": 0.5}, papers=("SFM",))

    plain, reported = model_report(Means()), model_report(Reported(), title="Mine")
    assert (plain.title, plain.lead) == ("Means", "A Means classifies into 2 classes.")
    assert (reported.title, reported.lead) == ("Mine", "The nearest mean decides.")
    assert settings(reported) == {"shrink": "0.5"}
    assert [section.title for section in reported.sections] == ["Privacy", "Guarantees", "How it was made"]
    assert "4 columns of numbers, which have no names." in model_card(Means())


def test_a_model_of_averaging_has_a_report(small_sites, small_holdout):
    baselines = pytest.importorskip("kernfed_papers.baselines.averaging", reason="the papers are not installed")
    with kf.Federation.local(small_sites) as federation:
        averaged = baselines.AveragingLearner(rounds=3).fit(federation)
    report = model_report(averaged, gather_evidence(averaged, small_holdout))
    assert len(report.section("Training").figures) == 2
    assert "hidden" not in settings(report)  # the model is linear
    assert "<svg" in render_html(report)


@pytest.fixture(scope="module")
def personal():
    """Two pairs of sites that agree, and rows to test on."""
    from kernfed.federation.personal.learner import PersonalLearner

    rng = np.random.default_rng(5)
    sites, held = {}, {}
    for place, name in enumerate("abcd"):
        X = rng.normal(size=(60, 3))
        y = X @ np.array([[3.0, 0.0, 0.0], [0.0, -3.0, 1.0]])[place % 2] + 0.1 * rng.normal(size=60)
        sites[name], held[name] = (X[:40], y[:40]), (X[40:], y[40:])
    with kf.Federation.local(sites) as federation:
        return PersonalLearner().fit(federation), held


def test_collaboration_weights_are_a_heat_map_by_group(personal):
    model, held = personal
    report = model_report(model, gather_evidence(model, held))
    heat = figure(report, "Collaboration weights")
    assert heat.rows == heat.columns
    assert set(heat.rows) == set("abcd")
    groups = [model.groups_[site] for site in heat.rows]
    assert groups == sorted(groups)
    first, second = (model.sites.index(heat.rows[place]) for place in (0, 1))
    assert heat.values[0][1] == model.weights_[first, second]
    gains = figure(report, "Error with the others and alone")
    assert gains.values[0] == model.gains_[gains.labels[0]].together
    assert gains.marks["alone"][0] == model.gains_[gains.labels[0]].alone
    errors = figure(report, "Mean squared error per site")
    X, y = held["a"]
    expected = np.mean((model.for_site("a").predict(X) - y) ** 2)
    assert dict(zip(errors.labels, errors.values, strict=True))["a"] == pytest.approx(expected)


def test_a_personal_model_predicts_for_its_own_sites_only(personal):
    model, held = personal
    with pytest.raises(ValueError, match="no model for site 'elsewhere'"):
        gather_evidence(model, {"elsewhere": held["a"]})


def test_many_sites_are_drawn_by_their_size_and_all_counted():
    labels = {f"s{place}": {"x": place + 1} for place in range(MOST_LISTED + 30)}
    heat = labels_map("title", labels, "rows")
    assert [line[0] for line in heat.values] == list(range(MOST_LISTED + 30, 0, -1))
    assert [heat.values[place][0] for place in heat.drawn_rows] == [*range(150, 140, -1), *range(10, 0, -1)]
    assert "Drawn are the 10 sites with most rows and the 10 with fewest" in heat.words
    decided = winners_map({"x": {site: counts["x"] for site, counts in labels.items()}})
    assert len(decided.columns) == MOST_LISTED
    assert {decided.columns[place] for place in decided.drawn_columns} == {
        f"s{place}" for place in range(150 - MOST_DRAWN, 150)
    }


def test_one_site_and_no_evidence_make_a_report(small_sites):
    with kf.Federation.local({"only": small_sites["east"]}) as federation:
        model = kf.FoldingLearner(hold="machines", measure="rms", batch_size=100, partition="order", scale=None).fit(
            federation
        )
    assert isinstance(figure(model_report(model), "Who has which class"), HeatMap)
    evidence = gather_evidence(model, {"only": small_sites["east"]})
    assert isinstance(figure(model_report(model, evidence), "Accuracy: each site alone, and together"), Bars)


def test_a_history_of_one_round_has_no_curve(small_models):
    model = replace(small_models[0]["ridge"], history_=small_models[0]["ridge"].history_[:1], path_={})
    assert not [found for found in model_report(model).figures if isinstance(found, Curves)]


def settings(report):
    return dict(report.section("How it was made").tables[0].rows)


def test_settings_are_those_in_force(small_models):
    machines, sites = (settings(model_report(small_models[0][kind])) for kind in ("machines", "sites"))
    assert (machines["machines are"], sites["machines are"]) == ("in this file", "at their sites")
    assert (machines["aggregate"], "k" in machines) == ("min", False)
    assert (sites["aggregate"], sites["k"]) == ("kth", "2")
    assert machines["subspace dim"] == "chosen for each machine"


@pytest.mark.parametrize(
    ("stopped", "rounds", "lead", "note"),
    [
        (
            "rounds",
            3,
            "3 rounds after the first exchange; training ended as all rounds asked for were done.",
            "all that were asked for",
        ),
        (
            "tolerance",
            1,
            "1 round after the first exchange; training ended as the gradient was small enough.",
            "until the gradient was small",
        ),
        ("converged", 0, "in one exchange.", "the first exchange was enough"),
        ("diverged", 0, "0 rounds after the first exchange; training ended as it diverged.", "then it diverged"),
        ("whim", 2, "2 rounds after the first exchange; training ended for this reason: whim.", "whim"),
    ],
)
def test_why_training_ended_is_a_sentence(small_models, stopped, rounds, lead, note):
    model = small_models[0]["ridge"]
    report = model_report(replace(model, stopped_=stopped, history_=model.history_[: rounds + 1]))
    assert report.lead.endswith(f": {lead}")
    fact = next(fact for fact in report.facts if fact.name == "Rounds")
    assert (fact.value, fact.note) == (str(rounds), note)


@pytest.mark.parametrize(
    ("bytes_up", "words"),
    [
        ((12_200, 12_200), "Bytes: 12.2 kB at each of 2 sites."),
        ((12_201, 12_200), "Bytes: 12.2 kB at each of 2 sites."),
        ((12_300, 12_200), "Bytes is highest at a (12.3 kB) and lowest at b (12.2 kB), over 2 sites."),
    ],
)
def test_equal_sites_are_not_ranked(bytes_up, words):
    entries = [
        {
            "site": site,
            "task": "t",
            "information": "rows",
            "messages": 1,
            "bytes_down": 1,
            "bytes_up": count,
            "scalars_up": 1,
        }
        for site, count in zip("ab", bytes_up, strict=True)
    ]
    assert traffic_section(entries).figures[0].words == words


def test_what_is_no_model_is_refused(small_holdout):
    with pytest.raises(ValueError, match="a dict cannot be tested, expected a model that predicts"):
        model_report({})
    with pytest.raises(ValueError, match="a object cannot be tested"):
        gather_evidence(object(), small_holdout)


@pytest.mark.parametrize(
    "bad",
    [
        {"site": "a"},
        [1],
        [
            {
                "site": "a",
                "task": "t",
                "information": "rows",
                "messages": 1,
                "bytes_down": 1,
                "bytes_up": -1,
                "scalars_up": 0,
            }
        ],
        "text",
    ],
)
def test_traffic_that_is_none_is_refused(bad):
    with pytest.raises(ValueError, match="traffic"):
        check_traffic(bad)

"""The private experiments of DP-KAHM: Tables 5 to 10, what they share, and the printed numbers beside them."""

import numpy as np
import pytest

from kernfed.data import Dataset
from kernfed.kahm import WideKAHM
from kernfed.privacy.smoothing import fabricate
from kernfed_papers.experiments import dpkahm_rows, dpkahm_scenarios, dpkahm_table_5
from kernfed_papers.experiments.dpkahm_rows import class_bank, class_parts, fabricated_rows, noise_source, noisy_rows
from kernfed_papers.published import published
from kernfed_papers.published.dpkahm import MIS_TABLES, SECONDS, TABLES
from kernfed_papers.runner import run_experiment


def small_data(rng, count=160, width=12, classes=3):
    """Classes around centres in the unit cube, as images are."""
    centres = np.random.default_rng(8).uniform(0.2, 0.8, (classes, width))

    def draw(n):
        y = np.arange(n) % classes
        return np.clip(centres[y] + 0.1 * rng.standard_normal((n, width)), 0, 1).astype(np.float32), y

    (x_train, y_train), (x_test, y_test) = draw(count), draw(count // 2)
    return Dataset("small", x_train, y_train, x_test, y_test, ("a", "b", "c"), "made up")


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ((3, "KAHM Classifier (Definition 7)", "mean"), 87.46),
        ((4, "SVM", "4"), 0.9777),
        ((5, "(1, 20)", "Def. 12"), 0.9453),
        ((5, "(32, 25)", "Def. 15"), 0.9845),
        ((6, "(5, 20)", "Def. 15"), 0.8016),
        ((7, "(32, 15)", "Def. 12"), 0.9451),
        ((8, "1.5", "distributed"), 0.9633),
        ((9, "16", "centralized"), 0.9851),
        ((10, "100", "distributed"), 0.9717),
    ],
)
def test_cells_are_those_in_print(cell, value):
    assert published("DP-KAHM", *cell) == value


@pytest.mark.parametrize(
    ("table", "accuracy", "mis"),
    [
        (5, (0.9772, 0.9771), (0.02715, 0.14160)),
        (6, (0.8568, 0.8702), (0.17772, 0.29917)),
        (7, (0.8820, 0.9439), (0.09131, 0.25177)),
    ],
)
def test_typed_columns_have_the_means_in_print(table, accuracy, mis):
    """The paper prints the mean of each column: a wrong digit anywhere would show."""
    np.testing.assert_allclose(np.mean(list(TABLES[table].rows.values()), axis=0), accuracy, atol=6e-5)
    np.testing.assert_allclose(np.mean(list(MIS_TABLES[table].rows.values()), axis=0), mis, atol=6e-5)


@pytest.mark.parametrize(("table", "means"), [(8, (0.9733, 0.9737)), (9, (0.9693, 0.9737)), (10, (0.9753, 0.9847))])
def test_typed_scenarios_have_the_means_in_print(table, means):
    np.testing.assert_allclose(np.mean(list(TABLES[table].rows.values()), axis=0), means, atol=6e-5)


def test_typed_seconds_grow():
    assert list(SECONDS) == sorted(SECONDS)
    assert list(SECONDS.values()) == sorted(SECONDS.values())


def test_noise_has_the_stated_deviation(rng):
    rows = rng.uniform(size=(200, 50))
    for bounds in ((0.0, 1.0), (-1.0, 1.0)):
        noisy = noisy_rows(rows, 4.0, bounds, noise_source(0, "test"))
        expected = dpkahm_rows.noise_deviation(4.0, bounds)
        assert np.std(noisy - rows) == pytest.approx(expected, rel=0.05)
        assert np.array_equal(noisy, noisy_rows(rows, 4.0, bounds, noise_source(0, "test")))
        assert not np.array_equal(noisy, noisy_rows(rows, 4.0, bounds, noise_source(1, "test")))


def test_parts_are_fabricated_on_their_own(rng):
    data = small_data(rng)
    noisy = noisy_rows(data.x_train, 8.0, (0.0, 1.0), noise_source(0, "test"))
    parts = class_parts(noisy, data.y_train, 30, 0)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(noisy)))
    assert len(parts) == 6
    assert all(len(set(data.y_train[part])) == 1 for part in parts)
    fabricated = fabricated_rows(noisy, parts, 0.2, 5)
    assert len(set(fabricated.steps)) == 1
    first = fabricate(noisy[parts[0]], noise=0.2, subspace_dim=5)
    assert fabricated.steps[0] == first.steps[0]
    for part in parts:
        alone = fabricate(noisy[part], noise=0.2, steps=first.steps[0], subspace_dim=5)
        np.testing.assert_array_equal(fabricated.values[part], alone.values)
    given = fabricated_rows(noisy, parts, 0.2, 5, steps=2)
    assert given.steps == (2,) * 6
    assert "2 smoothing" in given.note
    papers = fabricated_rows(noisy, parts, 0.2, 5, clean=data.x_train.astype(float))
    for part, steps in zip(parts, papers.steps, strict=True):
        alone = fabricate(noisy[part], noise=0.2, steps="oracle", clean=data.x_train[part], subspace_dim=5)
        assert steps == alone.steps[0]


def test_the_classifier_is_the_smallest_distance_to_a_class(rng):
    data = small_data(rng, count=90)
    parts = class_parts(data.x_train, data.y_train, 1000, 0)
    scores = class_bank(data.x_train, data.y_train, parts, 6).scores(data.x_test, "distance").values
    for label in range(3):
        machine = WideKAHM(layers=5, subspace_dim=6, batch_size=1000, partition="kmeans", scale=None).fit(
            data.x_train[data.y_train == label]
        )
        np.testing.assert_allclose(scores[:, label], machine.distance(data.x_test), rtol=1e-3, atol=1e-4)


def test_only_the_papers_rule_sees_the_raw_rows(rng, monkeypatch):
    """Given the noisy rows, the sound ways to learn are the same whatever the raw rows were."""
    data = small_data(rng)
    noisy = data.x_train + 0.3 * rng.standard_normal(data.x_train.shape)
    monkeypatch.setattr(dpkahm_table_5, "noisy_rows", lambda *_: noisy)
    other = Dataset("other", rng.uniform(size=data.x_train.shape), data.y_train, data.x_test, data.y_test, (), "")
    scores = {}
    for given in (data, other):
        banks = dpkahm_table_5.private_banks(dpkahm_table_5.MNIST, "(4, 5)", given, 30, 0)
        scores[given.name] = [learned.bank.scores(data.x_test, "distance").values for learned in banks]
    first, second = scores["small"], scores["other"]
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])
    assert not np.allclose(first[2], second[2])


def test_mis_is_in_the_units_of_the_distances(rng):
    """As the paper has it: a tenfold distance has a tenth of the score, and the standardised score stays."""

    def row(factor):
        class Bank:
            def scores(self, rows, measure):
                assert measure == "distance"
                return type("Scores", (), {"values": factor * np.abs(rows[:, :2]).astype(float)})

        return dpkahm_table_5.membership_row("mis", 0.5, Bank(), data, 0)

    members = 1 + 0.2 * rng.standard_normal((300, 2))
    data = Dataset("x", members, np.zeros(300, int), 1.5 + members[::-1], np.zeros(300, int), (), "")
    one, ten = row(1.0), row(10.0)
    assert one.ours == pytest.approx(10 * ten.ours, rel=1e-9)
    assert one.note == ten.note
    assert "p = 0.05" in one.note
    assert one.published == 0.5


def save(folder, name, data, shift=0.0):
    np.savez(
        folder / f"{name}.npz",
        x_train=data.x_train - shift,
        y_train=data.y_train,
        x_test=data.x_test - shift,
        y_test=data.y_test,
    )


def test_tables_run_on_embeddings_that_a_user_brings(tmp_path, monkeypatch, rng):
    data = small_data(rng, count=240)
    save(tmp_path, "heart_rate_intervals", data)
    monkeypatch.setenv("KERNFED_DATA", str(tmp_path))
    rows = {row.label: row for row in run_experiment("dpkahm-table-7", quick=True, folder=None).rows}
    assert rows["(16, 5) accuracy, Def. 12"].ours > 0.8
    assert rows["(16, 5) accuracy, Def. 12"].published == 0.9484
    assert rows["(16, 5) accuracy, Def. 12"].x == 16.0
    assert rows["(16, 5) mis, Def. 15"].published == 0.06739
    assert "not private" in rows["(16, 5) accuracy, Def. 15, papers' rule"].note
    assert "record epsilon" in rows["(16, 5) accuracy, Def. 15"].note
    absent = run_experiment("dpkahm-table-6", folder=None)
    assert absent.not_run == "needs freiburg_groceries_fc6_1.npz in the folder KERNFED_DATA"
    assert all(row.ours is None for row in dpkahm_table_5.run_table(dpkahm_table_5.FREIBURG, 0, True))


@pytest.mark.slow
def test_all_rows_are_taken_where_nothing_is_reduced(rng, monkeypatch):
    data = small_data(rng, count=301)
    monkeypatch.setattr(dpkahm_table_5, "load_rows", lambda *_: data)
    table = dpkahm_table_5.MNIST
    full, _ = dpkahm_table_5.load_table(table, 0, False)
    assert (len(full.y_train), len(full.y_test)) == (301, 150)
    assert set(table.papers_rule) <= set(table.points)
    rows = [row for row in dpkahm_table_5.run_table(table, 0, False) if "accuracy" in row.label]
    papers = [row.label for row in rows if "papers' rule" in row.label]
    assert papers == [f"{point} accuracy, Def. 15, papers' rule" for point in table.papers_rule]
    assert len(rows) == 2 * len(table.points) + len(papers)
    noisy = {row.label: row for row in rows if "Def. 12" in row.label}
    assert noisy["(1, 20) accuracy, Def. 12"].published == 0.9453
    assert noisy["(16, 20) accuracy, Def. 12"].ours > noisy["(1, 20) accuracy, Def. 12"].ours


def test_halves_share_every_class(rng):
    labels = rng.integers(4, size=101)
    halves = dpkahm_scenarios.halves_by_class(labels, 0)
    assert sorted(np.concatenate(halves).tolist()) == list(range(101))
    assert len(halves) == 8
    for label in range(4):
        sizes = [len(half) for half in halves if labels[half[0]] == label]
        assert len(sizes) == 2
        assert abs(sizes[0] - sizes[1]) <= 1
    assert all(len(set(labels[half])) == 1 for half in halves)


@pytest.fixture
def small_mnist(rng, monkeypatch):
    data = small_data(rng, count=300)
    monkeypatch.setattr(dpkahm_scenarios, "load_rows", lambda *_: data)


@pytest.mark.usefixtures("small_mnist")
def test_a_class_at_one_site_is_as_all_in_one_place():
    """DP-KAHM 6.3, scenario 1: with the same noisy rows nothing changes at all."""
    rows = {row.label: row for row in dpkahm_scenarios.run_by_epsilon(8, 0, True)}
    assert rows["epsilon 4, distributed"].ours == rows["epsilon 4, centralized"].ours
    assert rows["epsilon 4, distributed"].published == 0.9790
    assert {row.unit for row in rows.values()} == {"fraction", "bytes down"}  # up and down share a label
    other = dpkahm_scenarios.run_by_epsilon(9, 0, True)
    assert other[0].published == 0.9758
    assert other[0].ours > 0.5
    assert [row.ours > 0 for row in other if row.unit == "bytes up"] == [True]


@pytest.mark.slow
@pytest.mark.usefixtures("small_mnist")
def test_more_and_more_parties():
    rows = dpkahm_scenarios.run_by_parties(0, True)
    assert [row.label for row in rows] == [
        "2 sites, distributed",
        "2 sites, centralized",
        "5 sites, distributed",
        "5 sites, centralized",
    ]
    assert rows[1].ours == rows[3].ours
    assert rows[0].published == 0.9817
    again, other = dpkahm_scenarios.run_by_parties(0, True), dpkahm_scenarios.run_by_parties(1, True)
    assert again == rows
    assert other != rows  # another seed is another division and other noise

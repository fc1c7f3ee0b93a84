"""Releases of a site: mechanisms as plain values, policy, ledger, and what is kept so that it is released once."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernfed.errors import Refused
from kernfed.federation import Policy, Site, SiteStore
from kernfed.federation.folding.release import noise_deviation
from kernfed.files import Record
from kernfed.kernels.features import FourierFeatures
from kernfed.privacy import (
    ElementLaplace,
    ElementStaircase,
    Ledger,
    NoiseGenerator,
    RandomizedLabels,
    RecordEmbedding,
    RecordGaussian,
    RecordHistogram,
    RecordMoments,
    RecordRidge,
)
from kernfed.privacy.names import MECHANISMS, mechanism_name
from kernfed.privacy.release import Mechanism
from kernfed.privacy.values import describe_mechanism, mechanism_from_values, mechanism_to_values
from kernfed.site.release.kept import FOLDER
from kernfed.site.release.permit import LEDGER, Permit, check_release, open_ledger, spent
from kernfed.site.rows import Rows

GAUSSIAN = RecordGaussian(1.0, 1e-5, 2.0)
BASIS = np.linalg.qr(np.random.default_rng(0).standard_normal((5, 2)))[0]
EVERY: list[Mechanism] = [
    ElementLaplace(0.5, 2.0, (-1.0, 1.0)),
    ElementLaplace(1, 1, (0, 1), delta=1e-3),
    ElementStaircase(3.0, 1.0, (0.0, 1.0)),
    GAUSSIAN,
    RecordGaussian(2.0, 1e-6, 1.0, projection=3, seed=4),
    RecordGaussian(2.0, 1e-6, 1.0, projection=BASIS),
    RecordMoments(3.0, 1e-5, 3, 1.0, basis="random", seed=2, method="joint"),
    RecordMoments(3.0, 1e-5, 2, radius=2.0, spread=0.5, basis=BASIS),
    RecordMoments(3.0, 1e-5, 3, 1.0, basis="dct", shape=(5, 1)),
    RecordRidge(1.0, 1e-5, 2.0, 3.0),
    RecordEmbedding(1.0, 1e-5, FourierFeatures(5, 4, (1.0, 2.0, 1.0, 1.0, 3.0), kind="paired")),
    RecordHistogram(1.0, 1e-5),
    RecordHistogram(2.0, 1e-6, strangers=True),
    RandomizedLabels(2.0, ("a", "b")),
    RandomizedLabels(2.0, (0, 1, 2)),
]


@pytest.fixture
def rows(rng: np.random.Generator) -> Rows:
    return Rows(rng.standard_normal((8, 5)), np.arange(8) % 2, np.arange(8, dtype=np.int64) * 10)


def make(rows: Rows, path: Path | None = None, **policy: Any) -> Site:
    store = SiteStore(path) if path is not None else None
    return Site("a", rows.X, rows.y, ids=rows.ids, store=store, policy=Policy(("*",), **policy))


def charges(site: Site) -> int:
    place = site.store.path / LEDGER
    return len(open_ledger(site).entries()) if place.exists() else 0


# Mechanisms as plain values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", EVERY, ids=mechanism_name)
def test_values_travel_and_come_back(mechanism: Mechanism) -> None:
    values = mechanism_to_values(mechanism)
    travelled = json.loads(json.dumps(values, allow_nan=False))
    found = mechanism_from_values(travelled)
    assert type(found) is type(mechanism)
    assert mechanism_to_values(found) == travelled == values
    assert found.guarantees(5) == mechanism.guarantees(5)
    assert describe_mechanism(values).startswith(mechanism_name(mechanism))
    assert "\n" not in describe_mechanism(values)


def test_whole_numbers_are_the_same_parameters() -> None:
    whole, real = RecordGaussian(3, 1e-5, 1), RecordGaussian(3.0, 1e-5, np.float64(1.0))
    assert json.dumps(mechanism_to_values(whole)) == json.dumps(mechanism_to_values(real))
    one, other = RecordMoments(3, 1e-5, 2, radius=2, spread=1), RecordMoments(3.0, 1e-5, 2, radius=2.0, spread=1.0)
    assert json.dumps(mechanism_to_values(one)) == json.dumps(mechanism_to_values(other))


def test_every_mechanism_is_tried() -> None:
    assert {mechanism_name(mechanism) for mechanism in EVERY} == set(MECHANISMS)


HOSTILE: list[Any] = [
    None,
    3,
    [],
    "record-gaussian",
    {},
    {"kind": "nonsense"},
    {"kind": ["record-gaussian"]},
    {"kind": "record-gaussian"},
    *(
        {**mechanism_to_values(GAUSSIAN), **change}
        for change in (
            {"epsilon": 0},
            {"epsilon": -1.0},
            {"epsilon": "1"},
            {"epsilon": None},
            {"epsilon": True},
            {"epsilon": 1e9},
            {"epsilon": [1.0]},
            {"epsilon": {}},
            {"delta": 0},
            {"delta": 1},
            {"delta": -1e-5},
            {"radius": 0},
            {"radius": []},
            {"projection": 0},
            {"projection": -3},
            {"projection": "all"},
            {"projection": [[1.0], [1.0, 2.0]]},
            {"projection": [["x"]]},
            {"projection": 10**30},
            {"projection": [[[1.0]]]},
            {"seed": -1},
            {"seed": 1.5},
            {"more": 1},
            {"__class__": 1},
            {"kind": "record-moments"},
        )
    ),
    *(
        {**mechanism_to_values(EVERY[0]), **change}
        for change in (
            {"bounds": None},
            {"bounds": [1.0]},
            {"bounds": [1.0, 0.0]},
            {"bounds": [0, "1"]},
            {"bounds": [0.0, 1e300]},
            {"bounds": [[0.0], [1.0]]},
            {"d": 0},
            {"d": 1e-300},
            {"delta": 1.0},
            {"epsilon": 1e-300},
        )
    ),
    *(
        {**mechanism_to_values(EVERY[6]), **change}
        for change in (
            {"dimension": 0},
            {"dimension": 10**18},
            {"dimension": 2.5},
            {"basis": "pca"},
            {"basis": 3},
            {"basis": [[1.0]]},
            {"shape": [0, 5]},
            {"shape": "5"},
            {"method": "other"},
            {"spread": -1.0},
            {"spread": {}},
        )
    ),
    *(
        {**mechanism_to_values(EVERY[10]), **change}
        for change in (
            {"features": None},
            {"features": {}},
            *(
                {"features": {**mechanism_to_values(EVERY[10])["features"], **part}}
                for part in ({"width": 10**9}, {"n_components": 10**12}, {"kind": "phase"})
            ),
        )
    ),
    *(
        {**mechanism_to_values(EVERY[11]), **change}
        for change in (
            {"classes": []},
            {"classes": ["a"]},
            {"classes": ["a", "a"]},
            {"classes": [["a"], ["b"]]},
            {"classes": {"a": 1}},
            {"classes": [None, "b"]},
            {"classes": "ab"},
        )
    ),
]


@pytest.mark.parametrize("values", HOSTILE, ids=lambda values: repr(values)[:60])
def test_hostile_values_are_refused_in_words(values: Any) -> None:
    with pytest.raises(ValueError, match=r"\w") as error:
        mechanism_from_values(values).guarantees(5)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("thing", [None, 1.0, "record-gaussian", NoiseGenerator(1), RecordGaussian])
def test_what_is_no_mechanism_is_told(thing: Any) -> None:
    with pytest.raises(ValueError, match=r"one of kernfed.privacy: ElementLaplace"):
        mechanism_to_values(thing)


# Promises ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", EVERY, ids=mechanism_name)
def test_the_promise_before_is_that_of_the_release(mechanism: Mechanism, rows: Rows) -> None:
    if isinstance(mechanism, RandomizedLabels):
        release: Any = mechanism.release(np.asarray(mechanism.classes)[rows.y])
    elif isinstance(mechanism, RecordMoments | RecordRidge):
        release = mechanism.release(rows.X, rows.y)
    elif isinstance(mechanism, RecordHistogram):
        release = mechanism.release(rows.y, rows.y if mechanism.strangers else None)
    else:
        release = mechanism.release(rows.X)
    element, record = mechanism.guarantees(5)
    assert (element.epsilon, element.delta) == pytest.approx((release.element.epsilon, release.element.delta), rel=1e-9)
    assert record.epsilon >= release.record.epsilon
    assert (record.epsilon, record.delta) == pytest.approx((release.record.epsilon, release.record.delta), rel=1e-9)
    assert record.adjacency == release.record.adjacency


@pytest.mark.parametrize("mechanism", EVERY[3:9], ids=mechanism_name)
def test_queries_go_through_the_projection_of_the_rows(mechanism: Any, rows: Rows) -> None:
    basis = mechanism.public_basis(5)
    if basis is None:
        assert mechanism.released_width(5) == 5
    else:
        assert basis.shape == (5, mechanism.released_width(5))
        np.testing.assert_allclose(rows.X @ basis, mechanism.project(rows.X), atol=1e-14)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("kind", [ElementLaplace, ElementStaircase])
def test_the_noise_has_the_deviation_its_law_says(kind: Any, epsilon: float) -> None:
    mechanism = kind(epsilon, 1.0, (0.0, 1.0))
    k = np.arange(-200_000, 200_001)
    variance = float(np.square(k.astype(float)) @ mechanism.noise.pmf(k))
    assert noise_deviation(mechanism, 3) == pytest.approx(mechanism.step * math.sqrt(variance), rel=1e-6)
    if kind is ElementLaplace:
        assert noise_deviation(mechanism, 3) == pytest.approx(math.sqrt(2) / epsilon, rel=1e-3)


def test_the_noise_of_rows_has_its_calibrated_deviation() -> None:
    assert noise_deviation(RecordGaussian(1.0, 1e-5, 1.0), 5) == pytest.approx(2 * 3.7306, rel=1e-3)
    with_atom = ElementLaplace(1.0, 1.0, (0.0, 1.0), delta=0.19)
    assert noise_deviation(with_atom, 5) == pytest.approx(0.9 * math.sqrt(2), rel=1e-3)


# Policy -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "mechanism", "told"),
    [
        ({"mechanisms": ("record-moments",)}, GAUSSIAN, "releases by record-moments, not by 'record-gaussian'"),
        ({"max_record_epsilon": 0.5}, GAUSSIAN, r"at most 0.5 at delta 1e-05, this release has \(1, 1e-05\)"),
        ({"max_record_epsilon": 5.0, "record_delta": 1e-6}, GAUSSIAN, r"at most 5 at delta 1e-06, this release has"),
        ({"max_record_epsilon": 3.0}, ElementLaplace(1.0, 1.0, (0.0, 1.0)), r"at most 3 at delta 1e-05"),
        ({"private_labels": True}, GAUSSIAN, "requires randomised labels"),
    ],
)
def test_anything_weaker_is_refused_by_name(rows: Rows, policy: Any, mechanism: Any, told: str) -> None:
    site = make(rows, **{"max_record_epsilon": 50.0, **policy})
    with pytest.raises(Refused, match=told) as error:
        check_release(site, mechanism)
    assert error.value.code == "policy"
    assert "site 'a'" in str(error.value)


def test_labels_count_for_the_limit(rows: Rows) -> None:
    site = make(rows, max_record_epsilon=2.0, private_labels=True)
    check_release(site, GAUSSIAN, RandomizedLabels(1.0, (0, 1)))
    with pytest.raises(Refused, match=r"this release has \(2.1, 1e-05\)"):
        check_release(site, GAUSSIAN, RandomizedLabels(1.1, (0, 1)))


def test_an_element_mechanism_is_judged_at_the_delta_of_the_policy(rows: Rows) -> None:
    mechanism = ElementLaplace(0.5, 1.0, (0.0, 1.0))
    at = mechanism.guarantees(5, record_delta=1e-9)[1].epsilon
    assert at > mechanism.guarantees(5)[1].epsilon
    check_release(make(rows, max_record_epsilon=at * 1.001, record_delta=1e-9), mechanism)
    with pytest.raises(Refused, match="at delta 1e-09"):
        check_release(make(rows, max_record_epsilon=at * 0.999, record_delta=1e-9), mechanism)


# Charging and keeping ---------------------------------------------------------------------------------------------


def gaussian(site: Site, rows: Rows, mechanism: RecordGaussian = GAUSSIAN) -> Any:
    def compute(part: Rows, ledger: Ledger) -> Any:
        return mechanism.release(part.X, ledger=ledger, ids=part.ids).values

    return Permit(site, mechanism).row_by_row(rows, compute)


def ridge(site: Site, rows: Rows, key: str = "") -> Record:
    mechanism = RecordRidge(1.0, 1e-5, 1.0, 1.0)

    def compute(ledger: Ledger) -> Record:
        return Record({"second": mechanism.release(rows.X, rows.y, ledger=ledger, ids=rows.ids).moments.second})

    return Permit(site, mechanism).once(rows, compute, key=key)


def test_a_release_of_all_rows_happens_once(rows: Rows, tmp_path: Path) -> None:
    site = make(rows, tmp_path)
    first = ridge(site, rows)
    again = ridge(make(rows, tmp_path), rows)  # another process
    assert first.arrays["second"].tobytes() == again.arrays["second"].tobytes()
    assert charges(site) == 1
    assert spent(site)[0] == pytest.approx(1.0, rel=1e-6)
    assert ridge(site, rows, key="other").arrays["second"].tobytes() != first.arrays["second"].tobytes()
    fewer = rows.take(np.arange(7))
    ridge(site, fewer)
    assert charges(site) == 3
    assert ridge(site, rows).arrays["second"].tobytes() == first.arrays["second"].tobytes()
    assert charges(site) == 3


def test_rows_are_released_one_by_one(rows: Rows, tmp_path: Path) -> None:
    site = make(rows, tmp_path)
    half = gaussian(site, rows.take(np.arange(4)))
    whole = gaussian(make(rows, tmp_path), rows)
    np.testing.assert_array_equal(whole[:4], half)
    persons = [entry.persons for entry in open_ledger(site).entries()]
    assert [set(found.tolist()) for found in persons if found is not None] == [
        set(open_ledger(site).keys(rows.ids[:4]).tolist()),
        set(open_ledger(site).keys(rows.ids[4:]).tolist()),
    ]
    assert spent(site)[0] == pytest.approx(1.0, rel=1e-6)  # nobody paid twice
    order = np.array([6, 1, 3])
    np.testing.assert_array_equal(gaussian(site, rows.take(order)), whole[order])
    assert charges(site) == 2


def test_single_precision_of_the_same_rows_is_no_change(rows: Rows) -> None:
    X = rows.X.astype(np.float32)
    site = make(rows)
    first = gaussian(site, Rows(X, rows.y, rows.ids))
    np.testing.assert_array_equal(gaussian(site, Rows(X.astype(np.float64), rows.y, rows.ids)), first)
    assert charges(site) == 1


def test_another_mechanism_is_a_second_release(rows: Rows) -> None:
    site = make(rows)
    gaussian(site, rows)
    gaussian(site, rows, RecordGaussian(1.0, 1e-5, 2.5))
    assert charges(site) == 2
    assert spent(site)[0] > 1.3


@pytest.mark.parametrize("release", [gaussian, ridge], ids=["rows", "sums"])
def test_over_budget_nothing_is_drawn_or_written(rows: Rows, tmp_path: Path, release: Callable[..., Any]) -> None:
    site = make(rows, tmp_path, max_record_epsilon=1.2)
    release(site, rows)
    site.data.publish()
    before = {place: place.read_bytes() for place in tmp_path.rglob("*") if place.is_file()}
    with pytest.raises(Refused, match=r"over the budget of 1\.2") as error:
        release(site, rows)
    assert error.value.code == "budget"
    assert {place: place.read_bytes() for place in tmp_path.rglob("*") if place.is_file()} == before
    richer = make(rows, tmp_path, max_record_epsilon=2.0)  # the policy is the site's, and may change
    release(richer, rows)
    assert charges(richer) == 2
    richer.data.publish()
    with pytest.raises(Refused, match=r"over the budget of 1\.2"):
        release(make(rows, tmp_path, max_record_epsilon=1.2), rows)


def test_a_site_without_a_limit_takes_part_in_what_has_no_bound(rows: Rows) -> None:
    """The papers' atom: at the ledger's delta no epsilon bounds what a record loses."""
    mechanism = ElementLaplace(1.0, 1.0, (0.0, 1.0), delta=1e-3)
    for policy, allowed in ({}, True), ({"max_record_epsilon": 100.0}, False):
        site = make(rows, **policy)
        release = lambda part, ledger: mechanism.release(part.X, ledger=ledger, ids=part.ids).values  # noqa: E731
        if allowed:
            Permit(site, mechanism).row_by_row(rows, release)
            assert spent(site) == (math.inf, 1e-5)
        else:
            with pytest.raises(Refused, match="does not allow atoms"):
                check_release(site, mechanism)
            with pytest.raises(Refused, match="at delta 1e-05, this release has"):
                check_release(make(rows, atoms=True, **policy), mechanism)
            with pytest.raises(Refused, match="over the budget of 100"):
                Permit(site, mechanism).row_by_row(rows, release)


def test_a_lost_or_damaged_ledger_stops_releases(rows: Rows, tmp_path: Path) -> None:
    site = make(rows, tmp_path)
    kept = gaussian(site, rows)
    place = tmp_path / LEDGER
    content = place.read_bytes()
    for damaged, told in (
        (None, "is missing: what was spent"),
        (content[:40] + b"x" + content[41:], "is damaged at line 1"),
    ):
        place.unlink() if damaged is None else place.write_bytes(damaged)
        with pytest.raises(Refused, match=told) as error:
            gaussian(site, rows, RecordGaussian(1.0, 1e-5, 2.5))
        assert error.value.code == "ledger"
        np.testing.assert_array_equal(gaussian(site, rows), kept)  # what was released needs no ledger
        place.write_bytes(content)
    assert charges(site) == 1


def test_a_damaged_release_is_lost_and_another_one_charged(rows: Rows, tmp_path: Path) -> None:
    site = make(rows, tmp_path)
    first = gaussian(site, rows)
    place = next((tmp_path / FOLDER).iterdir())
    place.write_bytes(place.read_bytes()[:-1])
    second = gaussian(site, rows)
    assert (first != second).all()
    assert charges(site) == 2


def test_forgotten_rows_lose_their_noisy_row_and_sums_go(rows: Rows, tmp_path: Path) -> None:
    site = make(rows, tmp_path)
    before = gaussian(site, rows)
    ridge(site, rows)
    assert len(site.store.names(FOLDER)) == 2
    site.forget_rows(rows.ids[[2, 5]])
    names = site.store.names(FOLDER)
    assert len(names) == 1
    record = site.store.read(FOLDER, names[0])
    assert record is not None
    stay = [0, 1, 3, 4, 6, 7]
    assert record.arrays["ids"].tolist() == rows.ids[stay].tolist()
    np.testing.assert_array_equal(gaussian(site, site.rows()), before[stay])
    assert charges(site) == 2
    site.forget_rows(rows.ids[stay])
    assert site.store.names(FOLDER) == []

"""Coverage from histograms, as the theorems count it: every row, or site, is the new one in turn."""

from dataclasses import replace

import numpy as np
import pytest

from kernfed.abstain import (
    BINS,
    RATIO_BINS,
    Conformal,
    count_scores,
    probability_bins,
    ratio_bins,
    read_coverage,
)
from kernfed.errors import InputError
from kernfed.guarantees import conformal_sets, conformal_threshold

CLASSES = np.array(["a", "b", "c"])


def softmax_rows(rng, n, classes=3, sure=3.0):
    raised = np.exp(sure * rng.normal(size=(n, classes)))
    return raised / raised.sum(axis=1, keepdims=True)


def labels_for(rng, probabilities):
    return np.array([rng.choice(len(row), p=row) for row in probabilities], dtype=np.intp)


def record_of(*sites):
    """A record of sites, each (numbers, probabilities, distances)."""
    counted = [count_scores(*site) for site in sites]
    shares = sum(counts[:-1].sum(axis=0) / counts.sum() for counts, _ in counted)
    by_site = {f"s{place}": np.append(c[:-1].sum(axis=0), c[-1].sum()) for place, (c, _) in enumerate(counted)}
    counts, nearest = (sum(parts) for parts in zip(*counted, strict=True))
    return Conformal(counts, nearest, by_site, shares, len(sites))


def in_set(record, numbers, probabilities, coverage, **options):
    limits = record.thresholds(CLASSES, coverage, **options)
    return (probability_bins(probabilities) <= limits)[np.arange(len(numbers)), numbers]


def test_bins_keep_the_order_of_probabilities(rng):
    likely = np.sort(
        np.concatenate([[0.0, 1.0], 10.0 ** rng.uniform(-30, 0, 500), 1 - 10.0 ** rng.uniform(-16, 0, 500)])
    )
    bins = probability_bins(likely)
    assert (np.diff(bins) <= 0).all()
    assert bins[0] == BINS - 1
    assert bins[-1] < 100
    assert len(np.unique(bins)) > 300  # also where models are sure, which equal bins of 1 - p do not tell apart
    far = np.sort(2.0 ** rng.uniform(-14, 22, 500))
    assert (np.diff(ratio_bins(far)) >= 0).all()
    assert ratio_bins(far).max() == RATIO_BINS - 1


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95, 0.999])
def test_thresholds_are_those_of_split_conformal_on_the_bins(rng, coverage):
    probabilities = softmax_rows(rng, 200)
    numbers = labels_for(rng, probabilities)
    record = record_of((numbers, probabilities, None))
    queries = softmax_rows(rng, 100)
    scores = probability_bins(probabilities).astype(float)
    for condition in (None, "class"):
        limits = record.thresholds(CLASSES, coverage, condition)
        for number in range(3):
            own = np.ones(200, dtype=bool) if condition is None else numbers == number
            threshold = conformal_threshold(scores[own, numbers[own]], coverage)
            literal = conformal_sets(probability_bins(queries[:, [number]]).astype(float), threshold)[:, 0]
            np.testing.assert_array_equal(probability_bins(queries[:, number]) <= limits[number], literal)


@pytest.mark.parametrize("coverage", [0.6, 0.9, 0.95])
@pytest.mark.parametrize("n", [5, 20, 41])
def test_of_exchangeable_rows_each_being_new_in_turn_the_share_is_covered(rng, coverage, n):
    probabilities = np.round(softmax_rows(rng, n), 2)  # ties
    numbers, distances = labels_for(rng, softmax_rows(rng, n)), rng.choice(8, size=n).astype(float)
    covered, strange = 0, 0
    for new in range(n):
        rest = np.arange(n) != new
        record = record_of((numbers[rest], probabilities[rest], distances[rest]))
        covered += int(in_set(record, numbers[[new]], probabilities[[new]], coverage)[0])
        strange += int(record.p_values(distances[[new]])[0] <= 1 - coverage + 1e-12)
    assert covered >= coverage * n - 1e-9
    assert strange <= (1 - coverage) * n + 1e-9


def test_a_new_site_each_in_turn_is_covered_on_average_though_sites_differ(rng):
    sites = []
    for size in (3, 200, 40, 10, 60, 90, 25, 30, 8, 15, 12, 70):
        probabilities = softmax_rows(rng, size, sure=rng.uniform(0.2, 4))
        sites.append((labels_for(rng, softmax_rows(rng, size)), probabilities, None))
    for coverage in (0.5, 0.7, 0.9):
        shares = [
            in_set(record_of(*sites[:new], *sites[new + 1 :]), *sites[new][:2], coverage, conditional="new site").mean()
            for new in range(len(sites))
        ]
        assert np.mean(shares) >= coverage - 1e-9
    few = record_of(*sites[:8])  # eight sites can promise no ninth 90 per cent, so that its sets are full
    assert (few.thresholds(CLASSES, 0.9, "new site") == BINS - 1).all()
    assert (record_of(*sites).thresholds(CLASSES, 0.9, "new site") < BINS - 1).all()


def test_coverage_at_one_site_is_of_its_rows(rng):
    sure, unsure = softmax_rows(rng, 100, sure=4), softmax_rows(rng, 100, sure=1.5)
    record = record_of((sure.argmax(axis=1), sure, None), (labels_for(rng, unsure), unsure, None))
    at = [record.thresholds(CLASSES, 0.9, "site", site)[0] for site in ("s0", "s1")]
    assert at[0] < record.thresholds(CLASSES, 0.9)[0] < at[1]
    with pytest.raises(InputError, match="'s0', 's1'"):
        record.thresholds(CLASSES, 0.9, "site", "elsewhere")
    with pytest.raises(InputError, match="only the sum over sites was seen"):
        replace(record, by_site={}).thresholds(CLASSES, 0.9, "site", "s0")


def test_other_shares_of_classes_weigh_rows_as_if_they_were_drawn_so(rng):
    probabilities = softmax_rows(rng, 120)
    numbers = labels_for(rng, probabilities)
    record = record_of((numbers, probabilities, None))
    prior = {"a": 0.7, "b": 0.1, "c": 0.2}
    own = probability_bins(probabilities)[np.arange(120), numbers]
    weights = np.array([0.7, 0.1, 0.2]) / (np.bincount(numbers) / 120)
    for place, limit in enumerate(record.thresholds(CLASSES, 0.9, prior=prior)):
        needed = 0.9 * (weights[numbers].sum() + weights[place])
        literal = next(b for b in range(BINS) if weights[numbers[own <= b]].sum() >= needed - 1e-9 or b == BINS - 1)
        assert limit == literal
    as_drawn = dict(zip("abc", np.bincount(numbers) / 120, strict=True))
    np.testing.assert_array_equal(
        record.thresholds(CLASSES, 0.9, prior=as_drawn), record.thresholds(CLASSES, 0.9)
    )  # weights of 1 change nothing
    with pytest.raises(InputError, match="'c' was kept aside"):
        record_of((numbers % 2, probabilities, None)).thresholds(CLASSES, 0.9, prior="uniform")


def test_labels_that_the_model_does_not_know_make_sets_larger_and_full_where_they_are_many(rng):
    probabilities = softmax_rows(rng, 200)
    numbers = probabilities.argmax(axis=1)
    known = record_of((numbers, probabilities, None))
    some, many = np.where(np.arange(200) < 10, 3, numbers), np.where(np.arange(200) < 30, 3, numbers)
    some, many = (record_of((each, probabilities, None)) for each in (some, many))
    assert (known.unknown, some.unknown, many.unknown) == (0, 10, 30)
    assert known.rows == some.rows == 200
    assert known.thresholds(CLASSES, 0.9)[0] < some.thresholds(CLASSES, 0.9)[0] < BINS - 1
    assert many.thresholds(CLASSES, 0.9)[0] == BINS - 1


def test_p_values_within_classes_hold_in_the_rarer_class_too(rng):
    numbers = np.repeat([0, 1], [960, 40]).astype(np.intp)
    distances = np.where(numbers == 1, 10.0, 1.0) * rng.uniform(0.5, 1.5, 1000)  # the rare class is farther away
    record = record_of((numbers, softmax_rows(rng, 1000, 2), distances))
    new = 10 * rng.uniform(0.5, 1.5, 4000)
    assert (record.p_values(new) <= 0.05).mean() > 0.9  # most of it looks strange beside all rows
    assert (record.p_values(new, "class") <= 0.05).mean() < 0.12
    assert record.p_values(np.array([1e5]), "class")[0] == pytest.approx(1 / 41)


def test_conditions_that_contradict_are_refused(rng):
    record = record_of((np.zeros(30, dtype=np.intp), softmax_rows(rng, 30), None))
    for options, message in (
        ({"conditional": "row"}, "conditional"),
        ({"conditional": "site"}, "name of a site"),
        ({"site": "s0"}, "name of a site"),
        ({"conditional": "class", "prior": "uniform"}, "leave conditional out"),
    ):
        with pytest.raises(InputError, match=message):
            record.thresholds(CLASSES, 0.9, **options)
    for coverage in (0, 1, -0.5, float("nan"), "0.9"):
        with pytest.raises(InputError, match="coverage"):
            record.thresholds(CLASSES, coverage)
    with pytest.raises(InputError, match="without machines"):
        replace(record, nearest=None).p_values(np.ones(3))


def test_what_a_file_says_is_checked(rng):
    record = record_of((np.zeros(30, dtype=np.intp), softmax_rows(rng, 30), np.ones(30)))
    arrays, values = record.to_parts(CLASSES)
    again = Conformal.from_parts(arrays, values, CLASSES)
    np.testing.assert_array_equal(again.counts, record.counts)
    np.testing.assert_array_equal(again.by_site["s0"], record.by_site["s0"])
    assert read_coverage({}, None, CLASSES) is None
    wrong = [
        ({"conformal.counts": record.counts[1:]}, {}),
        ({"conformal.counts": -record.counts}, {}),
        ({"conformal.counts": record.counts.astype(float)}, {}),
        ({"conformal.nearest": record.nearest[:, 1:]}, {}),
        ({"conformal.shares": record.shares + 1}, {}),
        ({}, {"sites": 0}),
        ({}, {"unit": 0.0}),
        ({}, {"by_site": ["s0", "s1"]}),
        ({}, {"by_site": "s0"}),
        ({}, {"prior": [1.0]}),
    ]
    for arrays_changed, values_changed in wrong:
        with pytest.raises(InputError):
            Conformal.from_parts({**arrays, **arrays_changed}, {**values, **values_changed}, CLASSES)

"""Record-level privacy against utility, and what a guarantee per element means for a record."""

import numpy as np
import pytest

from kernfed.data import Dataset
from kernfed.privacy import NoiseGenerator
from kernfed_papers.experiments import private_units, private_utility


def test_records_pay_what_was_computed_elsewhere():
    rows = private_units.run(0, False)
    with_reference = [row for row in rows if row.published is not None]
    assert len(with_reference) == 12
    for row in with_reference:
        assert row.ours == pytest.approx(row.published, rel=0.02)
    assert all(row.ours > 0 for row in rows)


def test_a_staircase_row_is_protected_less():
    rows = {(row.series, row.x): row.ours for row in private_units.run(0, True)}
    for (series, x), value in rows.items():
        if series.startswith("staircase"):
            assert value > rows[series.replace("staircase", "Laplace"), x]


def test_sites_share_all_rows():
    parts = list(private_utility.site_rows(103, 10, 0))
    assert sorted(np.concatenate(parts).tolist()) == list(range(103))
    assert {len(part) for part in parts} == {10, 11}


def test_sites_pool_to_what_one_site_has(rng, monkeypatch):
    """With hardly any noise the moments do not depend on how many sites the rows are at."""
    X = np.abs(rng.standard_normal((120, 64))).astype(np.float32)
    y = np.arange(120) % 3
    data = Dataset("x", X, y, X[:30], y[:30], (), "")
    monkeypatch.setattr(private_utility, "noise_source", lambda *_: NoiseGenerator(0))
    one, many = (private_utility.release_moments(data, 100.0, 4, sites, 0).classes for sites in (1, 4))
    for first, second in zip(one, many, strict=True):
        assert first.label == second.label
        assert first.moments.n == second.moments.n == 40
        np.testing.assert_allclose(first.moments.mean, second.moments.mean, atol=2.0)
        assert first.noise < second.noise == pytest.approx(2 * first.noise, rel=1e-9)


@pytest.mark.slow
@pytest.mark.shared_data
def test_the_quick_slice_shows_what_privacy_costs(shared_data, monkeypatch):
    monkeypatch.setenv("KERNFED_DATA", str(shared_data))
    rows = {(row.series, row.x): row.ours for row in private_utility.run_utility(0, True)}
    plain = rows["KAHM without noise", 8.0]
    assert plain == rows["KAHM without noise", 1.0] > 0.9
    assert rows["moments and discriminant, 1 site", 8.0] > rows["moments and discriminant, 1 site", 1.0] > 0.5
    assert rows["moments and KAHM, 1 site", 8.0] > rows["noisy rows and KAHM, 1 site", 8.0] + 0.3
    assert rows["private logistic regression, 1 site", 8.0] > 0.7
    assert all(0 < value < plain for (series, _), value in rows.items() if series != "KAHM without noise")

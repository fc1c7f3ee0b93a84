"""The rule behind ``weights="auto"``: its evidence against dense formulas, and what it does on the study of KME 6.1."""

import numpy as np
import pytest

from kernfed.personal import groups as module
from kernfed.personal.evidence import Spectra
from kernfed.personal.groups import find_groups, group_coefficients, group_weights, no_group
from kernfed.personal.prior import ridge_alone
from kernfed.personal.statistics import Coordinates, SiteStatistics
from oracles import personal as oracle


def statistics(rows):
    return [SiteStatistics.from_rows(X, y) for X, y in rows]


def plain(sites):
    return Coordinates.pooled(sites, intercept=False)


def spectra_of(sites, common):
    return Spectra.from_rows([common.compress(site) for site in sites], [site.n for site in sites])


def uneven(rng, q=1, d=5):
    beta = rng.standard_normal((d, q))
    return [(X, X @ beta + rng.standard_normal((len(X), q)))
            for X in (rng.standard_normal((n, d)) for n in (1, 3, 5, 6, 30))]  # fmt: skip


# Evidence -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [1, 3])
def test_the_likelihood_is_that_of_dense_covariances(rng, q):
    rows = uneven(rng, q)
    sites = statistics(rows)
    spectra, mean = spectra_of(sites, plain(sites)), rng.standard_normal((5, q))
    squares = np.square(spectra.residuals(mean)).sum(axis=1)
    for spread, noise in [(0.5, 2.0), (1e-6, 0.3), (40.0, 1e-3)]:
        expected = oracle.marginal_log_likelihood(rows, mean, spread, noise)
        assert spectra.log_likelihood(squares, spread, noise) == pytest.approx(expected, rel=1e-8)


def test_spread_and_noise_are_the_most_likely_ones(rng):
    rows = uneven(rng, 2)
    sites = statistics(rows)
    spectra = spectra_of(sites, plain(sites))
    squares = np.square(spectra.targets).sum(axis=1)
    spread, noise = spectra.fit(squares)
    best = spectra.log_likelihood(squares, spread, noise)
    for a in (0.7, 1.0, 1.4):
        for b in (0.7, 1.0, 1.4):
            assert spectra.log_likelihood(squares, a * spread, b * noise) <= best + 1e-4
    near = spectra.fit(squares, near=spread / noise * 2)
    assert near == pytest.approx((spread, noise), rel=1e-2)


def test_without_groups_sites_are_shrunk_by_the_posterior_mean(rng):
    rows = uneven(rng, 2)
    sites = statistics(rows)
    common = plain(sites)
    alone = no_group(spectra_of(sites, common))
    found = group_coefficients(sites, common, alone)
    for (X, Y), b in zip(rows, found, strict=True):
        expected = oracle.posterior_mean(X, Y, np.zeros((5, 2)), alone.spread * np.eye(5), alone.noise)
        np.testing.assert_allclose(b, expected, atol=1e-8)
    assert group_weights(sites, common, alone).tolist() == np.eye(5).tolist()


def test_one_group_is_generalised_least_squares(rng):
    """Means of the iteration against the posterior from dense covariances of all sites."""
    rows = uneven(rng, 1)
    sites = statistics(rows)
    spectra = spectra_of(sites, plain(sites))
    start = module.replace(no_group(spectra), count=1, spread=0.3, scale=2.0, noise=1.5)
    precisions, covariances, means = module._means(spectra, start)
    left, right = np.eye(5) / 2.0, np.zeros((5, 1))
    for X, Y in rows:
        V = 1.5 * np.eye(len(X)) + 0.3 * X @ X.T
        left += X.T @ np.linalg.solve(V, X)
        right += X.T @ np.linalg.solve(V, Y)
    np.testing.assert_allclose(precisions[0], left, atol=1e-8)
    np.testing.assert_allclose(means[0], np.linalg.solve(left, right), atol=1e-8)
    np.testing.assert_allclose(covariances[0], np.linalg.inv(left), atol=1e-8)


def test_the_evidence_of_one_group_is_exact(rng):
    """With one group nothing is approximated: the bound is the density of all targets together."""
    rows = uneven(rng, 1)
    sites = statistics(rows)
    spectra = spectra_of(sites, plain(sites))
    start = module.replace(no_group(spectra), count=1, spread=0.3, scale=2.0, noise=1.5)
    found = module._improve(spectra, start, free=False)
    X = np.concatenate([x for x, _ in rows])
    Y = np.concatenate([y for _, y in rows])
    V = 1.5 * np.eye(len(X)) + 2.0 * X @ X.T
    place = 0
    for x, _ in rows:
        part = slice(place, place + len(x))
        V[part, part] += 0.3 * x @ x.T
        place += len(x)
    expected = -0.5 * (np.linalg.slogdet(V)[1] + len(X) * np.log(2 * np.pi) + (Y.T @ np.linalg.solve(V, Y)).item())
    assert found.evidence == pytest.approx(expected, rel=1e-8)


def test_evidence_never_falls():
    rows, _, _ = oracle.concept_shift(0.3, 0, B=30)
    sites = statistics(rows)
    spectra = spectra_of(sites, plain(sites))
    groups = module._starts(spectra, no_group(spectra), 2)[0]
    groups = module._improve(spectra, groups, free=False)
    for _ in range(15):
        further = module._improve(spectra, groups, free=False)
        assert further.evidence >= groups.evidence - 1e-6
        groups = further


# The study of KME 6.1 ------------------------------------------------------------------------------------------------


def study(sigma, seed, *, intercept=False):
    rows, beta, labels = oracle.concept_shift(sigma, seed)
    sites = statistics(rows)
    common = Coordinates.pooled(sites, intercept=intercept)
    groups = find_groups(sites, common)
    auto = group_coefficients(sites, common, groups)[:, :20, 0]
    local = np.stack([ridge_alone(X, y[:, None])[:, 0] for X, y in rows])
    oracle_fit = np.empty_like(beta)
    for label in (-1, 1):
        mine = [row for row, g in zip(rows, labels, strict=True) if g == label]
        X, y = (np.concatenate(part) for part in zip(*mine, strict=True))
        oracle_fit[labels == label] = np.linalg.lstsq(X, y, rcond=None)[0]
    return groups, [oracle.concept_risk(beta, fit) for fit in (auto, local, oracle_fit)], (sites, common, labels)


def test_with_identical_coefficients_it_is_as_good_as_the_oracle():
    groups, (auto, local, best), (sites, common, labels) = study(0.0, 1)
    assert groups.count == 2
    assert auto <= 1.1 * best < local
    W = group_weights(sites, common, groups)
    same = labels[:, None] == labels
    np.testing.assert_allclose((W * same).sum(axis=1), 1.0, atol=1e-3)
    others = same & ~np.eye(100, dtype=bool)
    np.testing.assert_allclose(W[others], (1 / same.sum(axis=1)[:, None] * same)[others], atol=0.01)


@pytest.mark.parametrize("sigma", [0.05, 0.2, 0.4])
def test_in_between_it_beats_both(sigma):
    groups, (auto, local, best), (_, _, labels) = study(sigma, 2)
    assert auto < 0.95 * min(local, best)
    agreement = np.mean([a == b for a, b in zip(groups.labels, labels > 0, strict=True)])
    assert max(agreement, 1 - agreement) > 0.9


@pytest.mark.parametrize("sigma", [0.7, 1.0])
@pytest.mark.parametrize("seed", [3, 4])
def test_sites_that_have_little_in_common_are_not_harmed(sigma, seed):
    groups, (auto, local, _), (sites, common, _) = study(sigma, seed)
    assert auto <= 1.05 * local
    if sigma == 1.0:
        assert groups.count == 0
        assert group_weights(sites, common, groups).tolist() == np.eye(100).tolist()


def test_noise_and_spread_are_found():
    groups, _, _ = study(0.3, 5)
    assert groups.noise == pytest.approx(2.0, rel=0.4)
    assert groups.spread == pytest.approx(0.3, rel=0.3)
    assert set(groups.evidences) >= {0, 1, 2, 3}
    assert groups.evidences[2] > groups.evidences[0] + 100


# Other shapes --------------------------------------------------------------------------------------------------------


def test_few_sites_with_many_rows(rng):
    betas = [np.ones(4), np.ones(4), -np.ones(4)]
    rows = []
    for beta in betas:
        X = rng.standard_normal((200, 4))
        rows.append((X, X @ beta + 0.5 * rng.standard_normal(200)))
    sites = statistics(rows)
    common = Coordinates.pooled(sites)
    groups = find_groups(sites, common)
    found = group_coefficients(sites, common, groups)[:, :4, 0]
    np.testing.assert_allclose(found, betas, atol=0.15)


def test_classes_are_targets_side_by_side(rng):
    """Two groups with opposite labels: three indicator columns share the groups."""
    rows, labels = [], []
    for j in range(20):
        X = rng.standard_normal((15, 3))
        scores = X if j % 2 else -X
        rows.append((X, np.eye(3)[scores.argmax(axis=1)]))
        labels.append(j % 2)
    sites = statistics(rows)
    groups = find_groups(sites, Coordinates.pooled(sites))
    assert groups.count == 2
    assert len({(a, b) for a, b in zip(groups.labels, labels, strict=True)}) == 2


def test_many_coefficients_are_searched_in_few_directions(monkeypatch):
    rows, _, labels = oracle.concept_shift(0.1, 0, B=40)
    sites = statistics(rows)
    common = plain(sites)
    whole = find_groups(sites, common)
    monkeypatch.setattr(module, "_SEARCH_WIDTH", 15)
    narrow = find_groups(sites, common)
    assert narrow.means.shape == whole.means.shape
    agreement = np.mean([a == b for a, b in zip(narrow.labels, labels > 0, strict=True)])
    assert max(agreement, 1 - agreement) > 0.9


@pytest.mark.parametrize("sizes", [(1,), (5,), (1, 1), (1, 1, 1), (2, 1, 7)])
@pytest.mark.parametrize("intercept", [False, True])
def test_tiny_federations_give_finite_fits(rng, sizes, intercept):
    sites = statistics([(rng.standard_normal((n, 3)), rng.standard_normal(n)) for n in sizes])
    common = Coordinates.pooled(sites, intercept=intercept)
    groups = find_groups(sites, common)
    assert np.isfinite(group_coefficients(sites, common, groups)).all()
    W = group_weights(sites, common, groups)
    np.testing.assert_allclose(W.sum(axis=1), 1.0)
    assert (W >= 0).all()


@pytest.mark.parametrize("kind", ["identical", "no noise", "constant target", "zero features"])
def test_degenerate_sites_give_finite_fits(rng, kind):
    X = rng.standard_normal((6, 3))
    target = {"identical": X @ np.ones(3) + rng.standard_normal(6), "no noise": X @ np.ones(3),
              "constant target": np.full(6, 2.0), "zero features": rng.standard_normal(6)}[kind]  # fmt: skip
    features = 0 * X if kind == "zero features" else X
    sites = statistics([(features, target)] * 4)
    common = Coordinates.pooled(sites)
    groups = find_groups(sites, common)
    found = group_coefficients(sites, common, groups)
    assert np.isfinite(found).all()
    if kind != "zero features":
        values = common.design(features) @ found[0] + common.target_centre
        assert np.square(values[:, 0] - target).mean() <= np.square(target - target.mean()).mean() + 1e-6


def test_the_order_of_sites_changes_nothing_but_order(rng):
    rows, _, _ = oracle.concept_shift(0.1, 0, B=20)
    sites = statistics(rows)
    order = rng.permutation(20)
    shuffled = [sites[k] for k in order]
    a = group_coefficients(sites, plain(sites), find_groups(sites, plain(sites)))
    b = group_coefficients(shuffled, plain(sites), find_groups(shuffled, plain(sites)))
    np.testing.assert_allclose(b, a[order], atol=1e-4)

"""The rule behind ``weights="auto"``: its evidence against dense formulas, and what it does on the study of KME 6.1."""

from dataclasses import replace

import numpy as np
import pytest

from kernfed.personal import groups as module
from kernfed.personal.groups import find_groups, group_coefficients, group_weights, no_group
from kernfed.personal.prior import ridge_alone
from kernfed.personal.statistics import LEVELS, Coordinates, SiteStatistics, Spectra
from oracles import personal as oracle


def statistics(rows):
    return [SiteStatistics.from_rows(X, y) for X, y in rows]


def plain(sites):
    return Coordinates.pooled(sites, intercept=False)


def spectra_of(sites, common):
    return Spectra.from_rows([common.compress(site) for site in sites], [site.n for site in sites])


def labels_of(groups):
    return groups.members.argmax(axis=1).tolist()


def uneven(rng, q=1, d=5):
    beta = rng.standard_normal((d, q))
    return [
        (X, X @ beta + rng.standard_normal((len(X), q)))
        for X in (rng.standard_normal((n, d)) for n in (1, 3, 5, 6, 30))
    ]


# Evidence -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [1, 3])
def test_the_densities_are_those_of_dense_covariances(rng, q):
    rows = uneven(rng, q)
    sites = statistics(rows)
    spectra, mean = spectra_of(sites, plain(sites)), rng.standard_normal((5, q))
    squares = np.square(spectra.residuals(mean)).sum(axis=1)
    for spread, noise in [(0.5, 2.0), (1e-6, 0.3), (40.0, 1e-3)]:
        found = spectra.log_densities(squares, spread, noise)
        for site, by_level in zip(rows, found, strict=True):
            for level, value in zip(LEVELS, by_level, strict=True):
                expected = oracle.marginal_log_likelihood([site], mean, spread, noise * level)
                assert value == pytest.approx(expected, rel=1e-7, abs=1e-7)


def test_spread_and_noise_are_the_most_likely_ones(rng):
    sites = statistics(uneven(rng, 2))
    spectra = spectra_of(sites, plain(sites))
    usual = np.where(LEVELS == 1.0, 1.0, 0.0) * np.ones((len(spectra.values), 1))
    squares = np.square(spectra.targets).sum(axis=1)

    def likelihood(spread, noise):
        return spectra.log_densities(squares, spread, noise)[:, LEVELS == 1.0].sum()

    ratios, noise = spectra.fit([usual], [squares[:, None] * usual], np.ones(1), 0, wide=True)
    best = likelihood(ratios[0] * noise, noise)
    for a in (0.7, 1.0, 1.4):
        for b in (0.7, 1.0, 1.4):
            assert likelihood(a * ratios[0] * noise, b * noise) <= best + 1e-4
    near = spectra.fit([usual], [squares[:, None] * usual], 2 * ratios, 0)
    assert (near[0][0], near[1]) == pytest.approx((ratios[0], noise), rel=1e-2)


def test_without_groups_sites_are_shrunk_by_the_posterior_mean(rng):
    rows = uneven(rng, 2)
    sites = statistics(rows)
    common = plain(sites)
    alone = no_group(spectra_of(sites, common))
    found = group_coefficients(sites, common, alone)
    for (X, Y), b, levels in zip(rows, found, alone.joint[:, 0], strict=True):
        fits = [
            oracle.posterior_mean(X, Y, np.zeros((5, 2)), alone.own_spread * np.eye(5), alone.noise * level)
            for level in LEVELS
        ]
        np.testing.assert_allclose(b, np.einsum("l,ldq->dq", levels, fits), atol=1e-8)
    assert group_weights(sites, common, alone).tolist() == np.eye(5).tolist()


def one_group(rng):
    """Rows, spectra, and a start with one group that all sites are in at the usual level of noise."""
    rows = uneven(rng, 1)
    sites = statistics(rows)
    spectra = spectra_of(sites, plain(sites))
    joint = np.zeros((5, 2, len(LEVELS)))
    joint[:, 0, LEVELS == 1.0] = 1.0
    start = replace(no_group(spectra), shares=np.array([1.0, 0.0]), joint=joint, spread=0.3, scale=2.0, noise=1.5)
    return rows, spectra, start


def test_one_group_is_generalised_least_squares(rng):
    """Means of the iteration against the posterior from dense covariances of all sites."""
    rows, spectra, start = one_group(rng)
    precisions, covariances, means = module._means(spectra, start)
    left, right = np.eye(5) / 2.0, np.zeros((5, 1))
    for X, Y in rows:
        V = 1.5 * np.eye(len(X)) + 0.3 * X @ X.T
        left += X.T @ np.linalg.solve(V, X)
        right += X.T @ np.linalg.solve(V, Y)
    np.testing.assert_allclose(precisions[0], left, atol=1e-8)
    np.testing.assert_allclose(means[0], np.linalg.solve(left, right), atol=1e-8)
    np.testing.assert_allclose(covariances[0], np.linalg.inv(left), atol=1e-8)


def test_the_evidence_of_one_group_is_exact(rng, monkeypatch):
    """With one group and one level nothing is approximated: the bound is the density of all targets together."""
    monkeypatch.setattr(module, "_USUAL", 1e12)
    rows, spectra, start = one_group(rng)
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
    agreement = np.mean([a == b for a, b in zip(labels_of(groups), labels > 0, strict=True)])
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


def test_sites_of_no_group_stay_alone_beside_groups(rng):
    """Half of the sites have nothing in common with anybody: they are not harmed, and the groups are found."""
    rows, beta, labels = oracle.concept_shift(0.01, 6, B=60)
    beta[30:] = rng.standard_normal((30, 20))
    rows = [(X, X @ b + np.sqrt(2) * rng.standard_normal(10)) for (X, _), b in zip(rows, beta, strict=True)]
    sites = statistics(rows)
    groups = find_groups(sites, plain(sites))
    assert groups.count == 2
    assert groups.members[:30, -1].max() < 0.5 < groups.members[30:, -1].mean()
    auto = group_coefficients(sites, plain(sites), groups)[:, :, 0]
    local = np.stack([ridge_alone(X, y[:, None])[:, 0] for X, y in rows])
    risks = [oracle.concept_risk(beta[30:], fit[30:]) for fit in (auto, local)]
    assert risks[0] <= 1.05 * risks[1]
    assert oracle.concept_risk(beta[:30], auto[:30]) < 3
    assert len(set(labels[:30])) == 2


def test_noisier_sites_are_told_from_different_ones(rng):
    rows, beta, _ = oracle.concept_shift(0.1, 7)
    noise = 10.0 ** rng.uniform(-1, 1, 100)
    rows = [(X, X @ b + s * rng.standard_normal(10)) for (X, _), b, s in zip(rows, beta, noise, strict=True)]
    sites = statistics(rows)
    groups = find_groups(sites, plain(sites))
    assert groups.count == 2
    level = groups.joint.sum(axis=1) @ np.log(LEVELS)
    assert np.corrcoef(level, np.log(noise))[0, 1] > 0.8
    auto = group_coefficients(sites, plain(sites), groups)[:, :, 0]
    local = np.stack([ridge_alone(X, y[:, None])[:, 0] for X, y in rows])
    assert oracle.concept_risk(beta, auto) < 0.5 * oracle.concept_risk(beta, local)


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
    assert len({(a, b) for a, b in zip(labels_of(groups), labels, strict=True)}) == 2


def test_many_coefficients_are_searched_in_few_directions(monkeypatch):
    rows, _, labels = oracle.concept_shift(0.1, 0, B=40)
    sites = statistics(rows)
    common = plain(sites)
    whole = find_groups(sites, common)
    monkeypatch.setattr(module, "_SEARCH_WIDTH", 15)
    narrow = find_groups(sites, common)
    assert narrow.means.shape == whole.means.shape
    agreement = np.mean([a == b for a, b in zip(labels_of(narrow), labels > 0, strict=True)])
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
    target = {
        "identical": X @ np.ones(3) + rng.standard_normal(6),
        "no noise": X @ np.ones(3),
        "constant target": np.full(6, 2.0),
        "zero features": rng.standard_normal(6),
    }[kind]
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

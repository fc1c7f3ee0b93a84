"""Refusals, charges and bounds that follow from rows are found, and a site as it is has none."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernfed.errors import Refused
from kernfed.federation.summing.tasks import TERMS
from kernfed.secure.committee.fixed import Layout
from kernfed.secure.committee.terms import RunTerms
from kernfed.site.data import SiteData
from kernfed.site.policy import Policy
from kernfed.site.protocol.message import Payload
from kernfed.site.release import permit
from kernfed.site.rows import Rows
from kernfed.testing.verify.crafted import crafted
from kernfed.testing.verify.inspection import check_noninterference
from kernfed.testing.verify.oracles import asked_bounds, hostile_preparations, kept_releases
from kernfed.testing.verify.tape import quiet_sites, taped_mechanisms
from kernfed.testing.verify.twins import Target, Verdict
from noninterference.cases import CASES, policy, recording, rows_of

KEYS = dict.fromkeys("abcde", "ab" * 32)
#: Sums leave masked only, as the docs have it.
MASKED = Policy(
    tasks=("describe", "sum_open", "sum_masked"),
    masked=("ridge_sums", "test_model:outcomes"),
    committee={name: KEYS[name] for name in "abc"},
    roster=KEYS,
)


def verdict(attack: Any, rules: Policy | None = None, case: str = "public classes") -> Verdict:
    rules = CASES[case][1] if rules is None else rules
    with taped_mechanisms(), quiet_sites():
        held, told = attack(Target("site", rules, rows_of(case), recording(case)))
    assert told
    return held, told


# Nothing is found -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", [hostile_preparations, kept_releases, asked_bounds])
@pytest.mark.parametrize(
    "case", [name if name == "moments only" else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_a_site_that_requires_privacy_holds(attack: Any, case: str) -> None:
    assert verdict(attack, case=case)[0] is True


def test_a_site_that_answers_masked_sums_holds() -> None:
    held, told = verdict(asked_bounds, MASKED)
    assert held, told
    assert "answered alike" in told


@pytest.mark.parametrize("attack", [hostile_preparations, kept_releases])
@pytest.mark.parametrize("rules", [policy(tasks=("ridge_release",)), Policy.open()], ids=["no prepare", "open"])
def test_preparations_that_the_policy_does_not_allow_do_not_apply(attack: Any, rules: Policy) -> None:
    assert verdict(attack, rules)[0] is None


@pytest.mark.parametrize(
    "rules", [Policy(tasks=("describe",)), Policy.open(), policy(tasks=("describe",))], ids=["none", "open", "private"]
)
def test_masked_sums_that_the_policy_does_not_allow_do_not_apply(rules: Policy) -> None:
    assert verdict(asked_bounds, rules)[0] is None


# Leaks that were planted ------------------------------------------------------------------------------------------


@pytest.fixture
def refused_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases that are refused before they are charged where a prepared value is large."""
    learning = SiteData.learning

    def refusing(data: SiteData) -> Rows:
        rows = learning(data)
        if np.abs(rows.X).max() > 1e6:
            raise Refused("bad question", "values must be smaller")
        return rows

    monkeypatch.setattr(SiteData, "learning", refusing)


@pytest.fixture
def releases_by_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases that are known by what rows hold once they are prepared."""
    monkeypatch.setattr(permit, "public_identity", lambda site, rows, **_: {"site": site.name, "data": rows.digest})


@pytest.fixture
def refused_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a masked sum that are refused beyond the asker's bound."""
    encode = Layout.encode

    def refusing(layout: Layout, arrays: Any) -> Any:
        for name, block in layout.blocks.items():
            if np.abs(arrays[name]).max(initial=0.0) > block.bound:
                raise Refused("bad run", f"entries of {name!r} must be at most {block.bound:g} in size")
        return encode(layout, arrays)

    monkeypatch.setattr(Layout, "encode", refusing)


@pytest.mark.usefixtures("refused_values")
@pytest.mark.parametrize("case", ["public classes", "few rows per class", "private labels", "targets"])
def test_a_refusal_by_the_size_of_a_value_is_found(case: str) -> None:
    held, told = verdict(hostile_preparations, case=case)
    assert held is False
    assert "one site answers, the other refuses" in told


@pytest.mark.usefixtures("releases_by_content")
@pytest.mark.parametrize("case", ["public classes", "few rows per class", "private labels", "targets"])
def test_a_charge_by_what_rows_hold_is_found(case: str) -> None:
    held, told = verdict(kept_releases, case=case)
    assert held is False
    assert "shows in what is charged" in told


@pytest.mark.usefixtures("refused_sums")
def test_a_refusal_by_the_size_of_a_sum_is_found() -> None:
    held, told = verdict(asked_bounds, MASKED)
    assert held is False
    assert "6 digits can be read in 31 questions" in told


@pytest.mark.parametrize("leak", ["refused_values", "releases_by_content"])
def test_pairs_find_both_in_a_few_stories(leak: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(leak)
    rules = policy(tasks=("prepare", "ridge_release"))
    check = check_noninterference(rows_of("public classes"), rules, pairs=40, recording=recording("public classes"))
    assert check.leaks


# Crafted questions ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def preparations() -> list[dict[str, Any]]:
    draws, (honest, *_) = np.random.default_rng(0), recording("public classes")["prepare"]
    made = [crafted("prepare", honest, draws, wild=False) for _ in range(200)]
    return [plan for payload in made for plan in payload.values["preparation"]]


def test_crafted_preparations_reach_the_ends_of_numbers(preparations: list[dict[str, Any]]) -> None:
    kinds = {plan["kind"] for plan in preparations}
    assert kinds == {"number", "category", "ordered", "time"}
    numbers = [plan for plan in preparations if plan["kind"] == "number"]
    assert sum(plan["spread"] == 5e-324 for plan in numbers) >= 20
    assert sum(plan["low"] == plan["center"] for plan in numbers) >= 20
    assert {plan.get("curve", "none") for plan in numbers} == {"none", "log"}


def bounds(payload: Payload) -> Iterator[float]:
    terms = RunTerms.from_bytes(payload.arrays[TERMS].tobytes())
    return (block.bound for block in terms.layout.blocks.values())


def test_crafted_terms_have_other_bounds_and_stay_consistent() -> None:
    draws, (honest, *_) = np.random.default_rng(0), recording("public classes")["ridge_shares"]
    made = [crafted("ridge_shares", honest, draws, wild=False) for _ in range(20)]
    changed = [payload for payload in made if list(bounds(payload)) != list(bounds(honest))]
    assert len(changed) >= 5
    small = replace(CASES["public classes"][1], max_charges=1)
    assert verdict(asked_bounds, small)[0] is True

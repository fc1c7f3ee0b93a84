"""Attacks that once worked do not work on sites that require privacy, and are noticed where somebody lets them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from kernfed.errors import Refused
from kernfed.site import site as site_module
from kernfed.site.authorise import Caller
from kernfed.site.policy import Policy
from kernfed.site.release import books
from kernfed.site.rows import Rows
from kernfed.testing.verify import attacks
from kernfed.testing.verify.attacks import ATTACKS, Target, run_attacks
from kernfed.testing.verify.tape import quiet_sites, taped_mechanisms
from noninterference.cases import CASES, policy, recording, rows_of

HELD = ("public classes", "private labels", "targets")


def target(case: str, rules: Policy | None = None) -> Target:
    return Target("site", CASES[case][1] if rules is None else rules, rows_of(case), recording(case))


@contextmanager
def quietly() -> Iterator[None]:
    with taped_mechanisms(), quiet_sites():
        yield


def outcome(attack: Any, attacked: Target) -> bool | None:
    with quietly():
        held, told = attack(attacked)
    assert told
    return held


@pytest.mark.slow  # in ``make test`` every attack is run by tests/cli/test_verify_site.py on a site that holds
@pytest.mark.parametrize("case", HELD)
def test_no_attack_works_where_privacy_is_required(case: str) -> None:
    advanced = []
    rules = CASES[case][1]
    schemes = Policy(**{**rules.__dict__, "schemes": ("bfv",), "queries_per_day": 12})
    with quietly():
        outcomes = run_attacks(target(case, schemes), lambda: advanced.append(1))
    assert [(o.attack, o.told) for o in outcomes if o.held is False] == []
    assert len(advanced) == len(outcomes) == len(ATTACKS)
    assert sum(o.held is None for o in outcomes) <= 3


@pytest.mark.parametrize(
    "attack", [attacks.tests_on_rows, attacks.no_cap, attacks.membership], ids=lambda a: a.__name__
)
def test_an_open_site_does_not_hold(attack: Any) -> None:
    assert outcome(attack, target("public classes", Policy.open())) is False


def test_values_to_regress_that_are_listed_are_noticed() -> None:
    assert outcome(attacks.listed_labels, target("targets", Policy.open())) is False


def test_refusals_in_words_of_their_own_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def telling(error: Exception) -> Refused:
        return Refused(getattr(error, "code", "error"), str(error))

    monkeypatch.setattr(site_module, "told_refusal", telling)
    assert outcome(attacks.words_of_tables, target("public classes")) is False
    assert outcome(attacks.wrong_classes, target("public classes")) is False


def test_a_ledger_that_may_be_set_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "_check_marks", lambda *_, **__: None)
    assert outcome(attacks.tampered_ledger, target("public classes")) is False


def test_charging_rows_instead_of_persons_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, quietly():
        patch.setattr(Rows, "people", property(lambda rows: np.array([f"row {i}" for i in rows.ids.tolist()])))
        held, told = attacks.another_name(target("public classes"))
    assert held is False, told


def test_a_quota_for_every_name_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Caller, "quota", property(lambda caller: caller.name))
    assert outcome(attacks.many_names, target("public classes", policy(queries_per_day=12))) is False

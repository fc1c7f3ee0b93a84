"""Where privacy is required no reply and no charge depends on rows, but through what mechanisms release."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from kernfed.errors import Refused
from kernfed.privacy import RecordRidge
from kernfed.site.policy import Policy
from kernfed.site.protocol import task as registry
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.task import question_parts
from kernfed.site.release.books import open_ledger
from kernfed.site.site import Site
from kernfed.testing.verify.inspection import Check, check_noninterference
from noninterference.cases import CASES, policy, recording, rows_of

#: Pairs of a case: in ``make test``, and in ``make test-all``.
FEW, MANY = 20, 250


def checked(case: str, pairs: int, seed: int = 0) -> Check:
    seed += 100_000 * list(CASES).index(case)  # other questions for every case
    return check_noninterference(rows_of(case), CASES[case][1], pairs=pairs, seed=seed, recording=recording(case))


@pytest.fixture(scope="module")
def checks() -> dict[str, Check]:
    return {case: checked(case, FEW) for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_every_reply_is_the_same_bytes(checks: dict[str, Check], case: str) -> None:
    assert checks[case].leaks == []
    assert checks[case].pairs == FEW


def test_at_least_half_of_the_questions_reach_the_task(checks: dict[str, Check]) -> None:
    asked, entered, followed = Counter[str](), Counter[str](), Counter[str]()
    for check in checks.values():
        asked, entered, followed = asked + check.asked, entered + check.entered, followed + check.followed
    for name, known in question_parts().items():
        if known.under_privacy == "refused":
            assert entered[name] == 0, f"{name} was run"
            continue
        assert asked[name] >= 20, name
        assert entered[name] >= asked[name] / 2, name
        assert followed[name] >= asked[name] / 2, f"{name}: {followed[name]} of {asked[name]} made sense"


def test_at_least_half_are_answered_where_the_policy_allows_it(checks: dict[str, Check]) -> None:
    allowing = [checks[case] for case in ("public classes", "few rows per class", "a small budget", "persons")]
    asked, answered = (sum((getattr(c, name) for c in allowing), Counter[str]()) for name in ("asked", "answered"))
    for name in ("folding_fit", "folding_schema", "scores", "released_machines", "ridge_release", "personal_release"):
        assert answered[name] >= asked[name] / 2, f"{name}: {answered[name]} of {asked[name]}"


def test_rows_kept_aside_are_counted_too(checks: dict[str, Check]) -> None:
    """Half of the pairs keep none aside, and are refused for it."""
    asked, answered = (
        sum((getattr(c, name) for c in checks.values()), Counter[str]()) for name in ("asked", "answered")
    )
    for name in ("test_model:coverage:noisy", "test_model:coverage:shared"):
        assert answered[name] >= asked[name] / 8, f"{name}: {answered[name]} of {asked[name]}"


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_reply_is_the_same_bytes_over_thousands_of_pairs(case: str) -> None:
    check = checked(case, MANY, seed=1000)
    assert check.leaks == []


# Leaks that were planted ------------------------------------------------------------------------------------------


def _value(site: Site, _: Payload) -> Payload:
    return Payload(values={"largest": float(np.abs(site.rows().X).max() > 1.0)})


def _size(site: Site, _: Payload) -> Payload:
    return Payload({"rows": np.zeros(int((site.rows().X > 0).sum()))})


def _refusal(site: Site, _: Payload) -> Payload:
    if site.rows().X.max() > 1.0:
        raise Refused("stale", "a fixed sentence, and yet")
    return Payload()


def _error(site: Site, _: Payload) -> Payload:
    np.linalg.inv(site.rows().X.T @ site.rows().X)  # of rows that are nearly singular, or huge
    return Payload()


def _sentence(site: Site, _: Payload) -> Payload:
    raise Refused("policy", f"the first value is {site.rows().X[0, 0]}", public=True)


def _later(site: Site, _: Payload) -> Payload:
    """Tells nothing now, and something of rows in the second answer."""
    known = site.cache.get("planted")
    site.cache["planted"] = float(site.rows().X.sum())
    return Payload(values={"before": known})


def _charge(site: Site, _: Payload) -> Payload:
    """Charges where a row is far away, and says nothing."""
    rows = site.rows()
    if np.abs(rows.X).max() > 2.0:
        RecordRidge(1.0, 1e-6, 1.0, 1.0).release(rows.X, np.zeros(len(rows.y)), ledger=open_ledger(site), ids=rows.ids)
    return Payload()


@contextmanager
def planted(run: Any) -> Iterator[None]:
    registry.task("planted", leaves="counts", under_privacy="public", reason="it is not")(run)
    try:
        yield
    finally:
        del registry._tasks["planted"]


@pytest.mark.parametrize("run", [_value, _size, _refusal, _error, _sentence, _later])
def test_a_planted_leak_is_found(run: Any) -> None:
    with planted(run):
        check = check_noninterference(
            rows_of("public classes"), policy(tasks=("planted",)), pairs=12, recording={"planted": (Payload(),)}
        )
    assert any(leak.startswith("planted") for leak in check.leaks), check.leaks


def test_a_charge_that_depends_on_rows_is_found() -> None:
    with planted(_charge):
        check = check_noninterference(
            rows_of("public classes"), policy(tasks=("planted",)), pairs=12, recording={"planted": (Payload(),)}
        )
    assert any(leak.startswith("the ledger") for leak in check.leaks), check.leaks


def test_without_required_privacy_replies_do_depend_on_rows() -> None:
    check = check_noninterference(
        rows_of("public classes"), Policy.open(), pairs=60, recording=recording("public classes")
    )
    assert check.leaks

"""A site's own decisions: read strictly, obeyed always."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kernfed.errors import PolicyError, RenamedTask
from kernfed.privacy.names import MECHANISMS
from kernfed.site.policy import Policy
from kernfed.site.protocol.task import known_parts, renamed_names


def test_defaults_let_only_schema_and_scores_leave() -> None:
    policy = Policy()
    assert policy.tasks == ("describe", "folding_choose", "folding_fit", "scores")
    assert policy.allows("scores")
    assert not policy.allows("machines")
    assert not policy.allows("score")  # names are whole words
    assert policy.welcomes("anybody")
    assert Policy.open().allows("machines")


@pytest.mark.parametrize("guide", ["operator", "serving"])
def test_guides_name_the_default_tasks(guide: str) -> None:
    told = re.findall(r"without it `tasks = (\[[^]]*\])`", Path(f"docs/{guide}.md").read_text(encoding="utf-8"))
    assert [tuple(json.loads(words)) for words in told] == [Policy().tasks]


def test_callers() -> None:
    policy = Policy(callers=("coordinator",))
    assert policy.welcomes("coordinator")
    assert not policy.welcomes("coord")
    assert not policy.welcomes("")
    assert not Policy(callers=()).welcomes("coordinator")


def test_reading_a_file(tmp_path: Path) -> None:
    place = tmp_path / "site.toml"
    place.write_text(
        'tasks = ["describe", "machines"]\ncallers = ["c"]\nqueries_per_day = 5\nmin_rows_per_class = 3\n'
        "require_privacy = true\nmax_record_epsilon = 2.5\n"
    )
    assert Policy.read(place) == Policy(("describe", "machines"), ("c",), 5, 3, True, 2.5)
    place.write_text("")
    assert Policy.read(str(place)) == Policy()
    place.write_text(
        'mechanisms = ["record-moments"]\nrecord_delta = 1e-6\nprivate_labels = true\nmax_record_epsilon = 1\n'
    )
    assert Policy.read(place) == Policy(
        record_delta=1e-6, mechanisms=("record-moments",), private_labels=True, max_record_epsilon=1
    )


@pytest.mark.parametrize(
    "demand", [{"max_record_epsilon": 3.0}, {"mechanisms": ("record-gaussian",)}, {"private_labels": True}]
)
def test_a_demand_on_privacy_requires_it(demand: dict[str, Any]) -> None:
    assert Policy(**{"max_record_epsilon": 9.0, **demand}).require_privacy
    assert not Policy(record_delta=1e-6).require_privacy


def test_policies_know_every_mechanism_that_releases_rows_or_sums() -> None:
    for name in set(MECHANISMS) - {"randomized-labels"}:
        assert Policy(mechanisms=(name,), max_record_epsilon=1.0).mechanisms == (name,)
    with pytest.raises(PolicyError, match="mechanisms must be some of element-laplace"):
        Policy(mechanisms=("randomized-labels",))


@pytest.mark.parametrize("demand", [{"require_privacy": True}, {"private_labels": True}])
def test_required_privacy_needs_a_cap(demand: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match="needs max_record_epsilon, the most that one record may lose"):
        Policy(**demand)


def test_a_task_that_nobody_knows_is_a_mistake_in_the_policy() -> None:
    with pytest.raises(PolicyError, match=r"tasks must be some of .*folding_fit.*; got 'score'"):
        Policy(tasks=("describe", "score"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('task = ["scores"]', "unknown setting 'task'; known are approve, atoms, callers"),
        ('tasks = "scores"', "tasks must be a list of words"),
        ('callers = ["a", 3]', "callers must be a list of words"),
        ("queries_per_day = 0", "queries_per_day must be >= 1, got 0"),
        ("queries_per_day = 2.5", "queries_per_day must be an integer"),
        ("queries_per_day = true", "queries_per_day must be an integer"),
        ("min_rows_per_class = -1", "min_rows_per_class must be >= 1"),
        ('require_privacy = "yes"', "require_privacy must be true or false"),
        ("require_privacy = 1", "require_privacy must be true or false"),
        ("max_record_epsilon = 0", "max_record_epsilon must be > 0"),
        ("max_record_epsilon = inf", "max_record_epsilon must be a finite number"),
        ("record_delta = 0", "record_delta must be > 0"),
        ("record_delta = 1", "record_delta must be < 1"),
        ('mechanisms = ["magic"]', "mechanisms must be some of element-laplace"),
        ('mechanisms = ["randomized-labels"]', "mechanisms must be some of"),
        ("mechanisms = []", "mechanisms must be some of"),
        ('mechanisms = "record-moments"', "mechanisms must be a list of words"),
        ('private_labels = "yes"', "private_labels must be true or false"),
        ("tasks = [", "site.toml: "),
        ("[tasks]\nall = true", "tasks must be a list of words"),
    ],
)
def test_settings_that_cannot_be_followed(tmp_path: Path, text: str, told: str) -> None:
    place = tmp_path / "site.toml"
    place.write_text(text)
    with pytest.raises(PolicyError) as error:
        Policy.read(place)
    assert told in str(error.value)
    assert "site.toml" in str(error.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no policy file at"):
        Policy.read(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PolicyError, match=r"binary\.toml"):
        Policy.read(tmp_path / "binary.toml")


@pytest.mark.parametrize(
    "settings",
    [
        {"tasks": "scores"},
        {"callers": "me"},
        {"tasks": (1,)},
        {"queries_per_day": 0},
        {"require_privacy": "no"},
        {"min_rows_per_class": None},
        {"max_record_epsilon": -1},
    ],
)
def test_a_policy_made_in_python_is_as_strict(settings: dict[str, Any]) -> None:
    """With tasks="scores" a substring would have passed as a task."""
    with pytest.raises(ValueError, match="must be"):
        Policy(**settings)


def test_names_of_tests_in_earlier_versions_are_read_as_the_parts_that_they_became() -> None:
    with pytest.warns(RenamedTask, match="'conform_release', which is 'test_model:coverage:noisy' now"):
        policy = Policy(("describe", "conform_release"), approve=("conform_release",))
    assert policy.tasks == ("describe", "test_model:coverage:noisy")
    assert policy.approve == ("test_model:coverage:noisy",)
    assert policy == Policy(("describe", "test_model:coverage:noisy"), approve=("test_model:coverage:noisy",))
    for other in ("test_model", "test_model:coverage", "test_model:coverage:shared", "test_model:outcomes"):
        assert not policy.allows(other)
    assert set(renamed_names().values()) <= set(known_parts())


def test_a_task_is_allowed_as_a_whole_or_by_part() -> None:
    whole, part = Policy(("test_model",)), Policy(("test_model:outcomes",), approve=("test_model:outcomes",))
    for name in known_parts():
        assert whole.allows(name) is name.startswith("test_model:")
        assert part.allows(name) is part.holds(name) is (name == "test_model:outcomes")
    with pytest.raises(PolicyError, match="tasks must be some of"):
        Policy(("test_model:everything",))
    keys = dict.fromkeys("abc", "ab" * 32)
    masked = Policy(("sum_masked",), masked=("test_model:outcomes",), committee=keys, roster=keys)
    assert masked.masks("test_model:outcomes")
    assert not masked.masks("test_model:coverage")
    assert not masked.allows("test_model:outcomes")

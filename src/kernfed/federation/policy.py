"""A site's own decisions, read from its ``site.toml``: which tasks, for whom, how often, under which privacy."""

import os
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kernfed._validation import check_count, check_number

#: Tasks that a site answers unless its policy says otherwise: only schema and scores leave it.
DEFAULT_TASKS = ("describe", "scores")


class PolicyError(ValueError):
    """A ``site.toml`` that cannot be followed."""


@dataclass(frozen=True)
class Policy:
    """What a site allows.

    tasks : names of tasks it answers, or ("*",). callers : who may ask, or ("*",). queries_per_day : rows scored per
    caller and day, None for no limit. min_rows_per_class : classes with fewer rows are not spoken of.
    require_privacy : whether learners must release data under differential privacy; max_record_epsilon : budget.
    """

    tasks: tuple[str, ...] = DEFAULT_TASKS
    callers: tuple[str, ...] = ("*",)
    queries_per_day: int | None = None
    min_rows_per_class: int = 1
    require_privacy: bool = False
    max_record_epsilon: float | None = None

    @classmethod
    def open(cls) -> "Policy":
        """A site that answers everything: for data the caller holds anyway."""
        return cls(tasks=("*",))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Policy":
        """Policy in a TOML file; unknown or wrongly typed settings are refused, never ignored."""
        place = Path(path)
        if not place.is_file():
            raise PolicyError(f"no policy file at {place}")
        try:
            settings = tomllib.loads(place.read_text(encoding="utf-8"))
            return cls.from_settings(settings)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValueError) as error:
            raise PolicyError(f"{place}: {error}") from None

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> "Policy":
        """Policy from parsed settings."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(settings) - known)
        if unknown:
            raise PolicyError(f"unknown setting {unknown[0]!r}; known are {', '.join(sorted(known))}")
        checked: dict[str, Any] = {}
        for name, value in settings.items():
            if name in ("tasks", "callers"):
                if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
                    raise PolicyError(f"{name} must be a list of words, got {value!r}")
                checked[name] = tuple(value)
            elif name == "require_privacy":
                if not isinstance(value, bool):
                    raise PolicyError(f"{name} must be true or false, got {value!r}")
                checked[name] = value
            elif name == "max_record_epsilon":
                checked[name] = check_number(value, name, above=0)
            else:
                checked[name] = check_count(value, name)
        return cls(**checked)

    def allows(self, task: str) -> bool:
        """Whether the site answers ``task``."""
        return "*" in self.tasks or task in self.tasks

    def welcomes(self, caller: str) -> bool:
        """Whether ``caller`` may ask."""
        return "*" in self.callers or caller in self.callers

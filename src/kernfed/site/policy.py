"""A site's own decisions, read from its ``site.toml``: which tasks, for whom, how often, under which privacy."""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from kernfed.base.fields import check_fields, declared, from_values
from kernfed.base.warn import warn
from kernfed.errors import InputError, PolicyError, RenamedTask
from kernfed.privacy.names import ROW_MECHANISMS
from kernfed.site.protocol.message import digest
from kernfed.site.protocol.task import default_tasks, policy_names, renamed_names

#: Schemes by which scores may be encrypted; "plain" encrypts nothing and is for trying out.
SCHEMES = ("bfv", "tfhe", "plain")


@dataclass(frozen=True)
class Policy:
    """What a site allows.

    tasks : names of tasks it answers, or of parts of them ("test_model:outcomes"), or ("*",). callers : who may ask, or
    ("*",); a name is worth what the engine knows of it, and where it knows nobody, callers give their own.
    queries_per_day : rows scored per caller and day, None for no limit.
    min_rows_per_class : classes with fewer rows are not spoken of.
    min_rows_per_value : words of a column that fewer rows share are not named when sites agree on a preparation.
    require_privacy : whether learners must release data under differential privacy, which the next three imply.
    mechanisms : by which mechanisms (names as in ``kernfed plan --privacy``), or ("*",). max_record_epsilon : the most
    that one record may lose over all releases, at ``record_delta``; required privacy needs it. private_labels : whether
    labels must be randomised. atoms : whether mechanisms may publish a value as it is with a small probability, as the
    papers' does. labels : "classes", which are public with their numbers of rows unless labels are private, or
    "targets" to regress on, of which none is ever told. schemes, keys : by which schemes scores may be encrypted, and
    under which keys (SHA-256 digests of the asker's key, or ("*",)); "plain" encrypts nothing, so it also needs the
    task "scores". keep_models : of how many trainings a site keeps the machines, the newest; older models are then
    stale. max_features, max_steps, max_numbers : the most features of a model, steps of a descent, and numbers held at
    once that a question may ask for. task_seconds : how long a site computes for one question. max_charges : of how
    many releases the ledger may have charges, however small: each makes the next one slower. approve : tasks that wait
    until ``kernfed approve`` lets a caller through, or ("*",). masked : additive tasks that are answered in masked sums
    only, where committee and roster are pinned. committee, roster : long-lived keys of the members of a committee, and
    of the sites that take part in its sums, by name, as ``kernfed key`` prints them. min_sum_sites, corrupt_sites : the
    smallest set of sites whose sum this one takes part in, or answers for as a member, and how many of them must be
    assumed to work with the coordinator.
    """

    tasks: tuple[str, ...] = field(default_factory=default_tasks)
    callers: tuple[str, ...] = ("*",)
    queries_per_day: int | None = declared(None, at_least=1)
    min_rows_per_class: int = declared(1, at_least=1)
    require_privacy: bool = False
    max_record_epsilon: float | None = declared(None, above=0)
    record_delta: float = declared(1e-5, above=0, below=1)
    mechanisms: tuple[str, ...] = ("*",)
    private_labels: bool = False
    atoms: bool = False
    labels: str = declared("classes", choices=("classes", "targets"))
    schemes: tuple[str, ...] = ("bfv", "tfhe", "plain")
    keys: tuple[str, ...] = ("*",)
    keep_models: int = declared(20, at_least=1)
    max_features: int = declared(20_000, at_least=1)
    max_steps: int = declared(100_000, at_least=1)
    max_numbers: int = declared(500_000_000, at_least=1)
    task_seconds: float = declared(3600.0, above=0, unit="seconds")
    max_charges: int = declared(1000, at_least=1)
    approve: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    committee: Mapping[str, str] = field(default_factory=dict)
    roster: Mapping[str, str] = field(default_factory=dict)
    min_sum_sites: int = declared(3, at_least=2)
    corrupt_sites: int = declared(0, at_least=0)
    min_rows_per_value: int = declared(5, at_least=1)

    def __post_init__(self) -> None:
        try:
            check_fields(self)
        except InputError as error:
            raise PolicyError(str(error)) from None
        for name in ("tasks", "approve", "masked"):
            object.__setattr__(self, name, _named_today(name, getattr(self, name)))
        _check_words("tasks", self.tasks, policy_names())
        _check_words("mechanisms", self.mechanisms, ROW_MECHANISMS)
        _check_words("schemes", self.schemes, SCHEMES)
        self._check_approve()
        self._check_sums()
        if not self.mechanisms:
            raise PolicyError(f"mechanisms must be some of {', '.join(ROW_MECHANISMS)}, got none")
        self._require_privacy()

    def _check_approve(self) -> None:
        """Tasks that wait are tasks that the site answers at all."""
        _check_words("approve", self.approve, policy_names())
        useless = [word for word in self.approve if word != "*" and not self.allows(word)]
        if useless:
            raise PolicyError(f"approve holds {useless[0]!r}, which tasks does not allow; name it there, too")

    def _check_sums(self) -> None:
        """Keys by name; and what is answered masked only is never masked for whomever a question names."""
        _check_words("masked", self.masked, policy_names())
        for name, keys in (("committee", self.committee), ("roster", self.roster)):
            if not all(re.fullmatch("[0-9a-f]{64}", key) for key in keys.values()):
                raise PolicyError(f"{name} must name a key of 64 hexadecimal digits for each, got {keys!r:.200}")
        if self.masked and not (self.committee and self.roster):
            raise PolicyError("masked needs committee and roster: whose keys are trusted is the site's decision")
        if self.min_sum_sites < self.corrupt_sites + 2:
            raise PolicyError("min_sum_sites must leave two honest sites: at least corrupt_sites + 2")
        if self.committee and len(self.committee) not in (3, 4):
            raise PolicyError(f"a committee has 3 members, or 4 where one may be corrupt, got {len(self.committee)}")

    def _require_privacy(self) -> None:
        """Any demand on privacy requires it, and required privacy has a cap."""
        if self.max_record_epsilon is not None or "*" not in self.mechanisms or self.private_labels:
            object.__setattr__(self, "require_privacy", True)
        if self.require_privacy and self.max_record_epsilon is None:
            raise PolicyError("required privacy needs max_record_epsilon, the most that one record may lose in all")

    @classmethod
    def open(cls) -> "Policy":
        """A site that answers everything: for data the caller holds anyway."""
        return cls(tasks=("*",))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Policy":
        """Policy in a TOML file; unknown or wrongly typed settings are refused, never ignored.

        The file of a site's service (``kernfed site run``) has them in its table ``policy``.
        """
        place = Path(path)
        if not place.is_file():
            raise PolicyError(f"no policy file at {place}")
        try:
            settings = tomllib.loads(place.read_text(encoding="utf-8"))
            inside = settings.get("policy")
            return cls.from_settings(inside if isinstance(inside, dict) else settings)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValueError) as error:
            raise PolicyError(f"{place}: {error}") from None

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> "Policy":
        """Policy from parsed settings."""
        try:
            return from_values(cls, settings)
        except InputError as error:
            raise PolicyError(str(error)) from None

    @cached_property
    def digest(self) -> str:
        """Fingerprint of all settings: by it a journal names the policy that a question was answered under."""
        return digest(asdict(self))

    def allows(self, name: str) -> bool:
        """Whether the site answers this task, or this part of one, "task:part"."""
        return "*" in self.tasks or _names(self.tasks, name)

    def holds(self, name: str) -> bool:
        """Whether this task, or part of one, waits until the site's operator approves it."""
        return "*" in self.approve or _names(self.approve, name)

    def masks(self, name: str) -> bool:
        """Whether this additive task, or part of one, is answered in masked sums, also where ``allows`` is not."""
        return _names(self.masked, name)

    def welcomes(self, caller: str) -> bool:
        """Whether ``caller`` may ask."""
        return "*" in self.callers or caller in self.callers


def _names(words: tuple[str, ...], name: str) -> bool:
    """Whether ``words`` have a name, by itself or with all parts of its task."""
    return name in words or name.partition(":")[0] in words


def _named_today(setting: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a setting, names of earlier versions replaced by those of today, with a warning for each."""
    renamed = renamed_names()
    for word in words:
        if word in renamed:
            reason = f"{setting} of the site's policy has {word!r}, which is {renamed[word]!r} now: write that instead"
            warn(reason, RenamedTask)
    return tuple(renamed.get(word, word) for word in words)


def _check_words(name: str, words: tuple[str, ...], known: Sequence[str]) -> None:
    strange = [word for word in words if word not in (*known, "*")]
    if strange:
        raise PolicyError(f'{name} must be some of {", ".join(known)}, or "*"; got {strange[0]!r}')

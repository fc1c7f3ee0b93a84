"""How a question is declared: its name, what leaves the site, and what it does where privacy is required.

A way of learning declares itself once, as a ``Method`` in its folder: which modules hold its tasks, its models, what it
forgets, its learner. Everything else is found from that when it is needed: a site may be a new process for every
question, and pays for what it imports each time. The core names no method.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import kernfed
from kernfed.base.checks import check_choice
from kernfed.errors import InputError, Refused
from kernfed.files import formats_from
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.traffic import INFORMATION

#: What a task does where a site's policy requires privacy.
#:   refused   it is not run
#:   released  it is run, and gets rows only inside ``Site.releasing``, under a mechanism that the policy allows
#:   public    it is run: what it tells is public, for the reason that it gives
UNDER_PRIVACY = ("refused", "released", "public")
#: Tasks of the core.
CORE_TASKS = ("describe",)
#: Entry points by which other packages declare methods.
ENTRY_POINTS = "kernfed.methods"


@dataclass(frozen=True)
class Part:
    """What a policy judges of a question: a whole task, or one of the statistics it can ask for ("task:statistic").

    leaves, under_privacy, additive, reason : as in ``Task``.
    """

    name: str
    leaves: str
    under_privacy: str = "refused"
    additive: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Task:
    """A question that sites can answer.

    leaves : what kind of information the answer carries, one of ``INFORMATION``. under_privacy : one of
    ``UNDER_PRIVACY``, and ``reason`` says why the answer is "public". changes : whether it alters the store, so that a
    repetition must not. queries : whether the rows ``X`` of the question count as queries of the day. locked : whether
    the whole answer is computed with the site's store locked, without which there are no rows. additive : whether the
    arrays of the answer are sums over rows, so that those of all sites may be added, also where only the sum is told.
    parts : of a task whose questions name what they want, the names of the ``Method.parts`` that a question asks for;
    these have their own ``leaves``, ``under_privacy`` and ``additive``, and the task the most that any of them has.
    """

    name: str
    run: Callable[[Any, Payload], Payload]
    leaves: str
    under_privacy: str = "refused"
    reason: str = ""
    changes: bool = False
    queries: bool = False
    locked: bool = True
    additive: bool = False
    parts: Callable[[Payload], Sequence[str]] | None = None

    def asked(self, payload: Payload) -> tuple[Part, ...]:
        """The parts that a question asks for; the task itself where it has none."""
        if self.parts is None:
            return (Part(self.name, self.leaves, self.under_privacy, self.additive, self.reason),)
        known, names = known_parts(), self.parts(payload)
        if not names or not set(names) <= set(known):
            raise Refused(
                "bad question", f"{self.name!r} has no parts {', '.join(map(repr, names)) or 'in the question'}"
            )
        return tuple(known[name] for name in names)

    def __post_init__(self) -> None:
        check_choice(self.leaves, "leaves", INFORMATION)
        check_choice(self.under_privacy, "under_privacy", UNDER_PRIVACY)
        if (self.under_privacy == "public") != bool(self.reason):
            raise InputError(f"task {self.name!r} must give a reason if, and only if, its answer is public")


@dataclass(frozen=True)
class Method:
    """What a way of learning brings, by names, so that nothing is imported before it is needed.

    tasks : names of the tasks that each module declares. parts : of those that have parts, what policies judge. renamed
    : names in policies of earlier versions, and the name of today for each. default_tasks : those that a site answers
    unless its policy says otherwise. formats : the module of each file format. connects : by the name of a model, the
    function (federation, model) -> model that lets sites answer for it. forgets : functions (site, ids) that delete
    whatever the site's store holds of rows. keeps : the function (store) that lists what is kept for models. receipts :
    what receipts say of it, a ``federation.site.receipts.ReceiptBook``. learner : the class, and ``jobs`` its settings
    by name, a ``federation.settings.LearnerSettings``. sums : the function (federation, task, payload, ...) that
    gathers a sum which nobody sees in parts. Functions, classes and these are named as "module:name".
    """

    name: str
    tasks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    default_tasks: tuple[str, ...] = ()
    formats: Mapping[str, str] = field(default_factory=dict)
    connects: Mapping[str, str] = field(default_factory=dict)
    forgets: tuple[str, ...] = ()
    keeps: str = ""
    receipts: str = ""
    learner: str = ""
    jobs: str = ""
    sums: str = ""


_tasks: dict[str, Task] = {}


@cache
def methods() -> tuple[Method, ...]:
    """All methods: of this package first, then of others."""
    own = [import_module(module).METHOD for module in kernfed.METHODS]
    others = sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name)
    return (*own, *(entry.load() for entry in others))


def task(
    name: str,
    *,
    leaves: str,
    under_privacy: str = "refused",
    reason: str = "",
    changes: bool = False,
    queries: bool = False,
    locked: bool = True,
    additive: bool = False,
    parts: Callable[[Payload], Sequence[str]] | None = None,
) -> Callable[[Any], Any]:
    """Declare a function (site, payload) -> payload as the answer to ``name``; see ``Task``."""

    def add(run: Callable[[Any, Payload], Payload]) -> Callable[[Any, Payload], Payload]:
        _tasks[name] = Task(name, run, leaves, under_privacy, reason, changes, queries, locked, additive, parts)
        return run

    return add


def find_task(name: str) -> Task | None:
    """The task of this name, or None."""
    if name not in _tasks:
        for method in methods():
            for module, names in method.tasks.items():
                if name in names:
                    import_module(module)
    return _tasks.get(name)


def shown_name(name: str, payload: Payload) -> str:
    """What a question asks for, for people: its parts, or its task where it has none or they cannot be read."""
    known = find_task(name)
    try:
        return name if known is None else ", ".join(part.name for part in known.asked(payload))
    except Refused:
        return name


def task_names() -> tuple[str, ...]:
    """Names of all tasks, sorted."""
    own = {name for method in methods() for names in method.tasks.values() for name in names}
    return tuple(sorted({*CORE_TASKS, *own, *_tasks}))


def policy_names() -> tuple[str, ...]:
    """Names that a policy may allow, sorted: all tasks, and the parts of those that have some."""
    return tuple(sorted({*task_names(), *known_parts()}))


@cache
def known_parts() -> dict[str, Part]:
    """Parts of all tasks that have some, by name."""
    return {part.name: part for method in methods() for part in method.parts}


def question_parts() -> dict[str, Part]:
    """Everything that can be asked for, by name: tasks without parts, and the parts of the others."""
    known = {name: found for name in task_names() if (found := find_task(name)) is not None and found.parts is None}
    return {**{name: found.asked(Payload())[0] for name, found in known.items()}, **known_parts()}


def renamed_names() -> dict[str, str]:
    """Names that policies of earlier versions may have, with the name of today for each."""
    return {old: new for method in methods() for old, new in method.renamed.items()}


def default_tasks() -> tuple[str, ...]:
    """Tasks that a site answers unless its policy says otherwise: only schema and scores leave it."""
    return (*CORE_TASKS, *(name for method in methods() for name in method.default_tasks))


def resolve(name: str) -> Any:
    """What "module:name" stands for."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def forgetters() -> list[Callable[[Any, frozenset[int]], None]]:
    """All that must go when rows are forgotten, of every method."""
    return [resolve(name) for method in methods() for name in method.forgets]


def connector(model: Any) -> Callable[[Any, Any], Any] | None:
    """The function that lets sites answer for a model, or None where it does not need them."""
    name = type(model).__name__
    return next((resolve(method.connects[name]) for method in methods() if name in method.connects), None)


def summer() -> Callable[..., Any]:
    """What gathers a sum that nobody sees in parts."""
    named = [method.sums for method in methods() if method.sums]
    if not named:
        raise InputError("no method of this installation gathers masked sums")
    gather: Callable[..., Any] = resolve(named[0])
    return gather


def format_modules() -> dict[str, str]:
    """The module of every file format that a method brings."""
    return {name: module for method in methods() for name, module in method.formats.items()}


formats_from(format_modules)

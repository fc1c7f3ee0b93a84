"""How a question is declared: its name, what leaves the site, and what it does where privacy is required.

A way of learning declares itself once, as a ``Method`` in its folder: which modules hold its tasks, its models, what it
forgets, its learner. Everything else is found from that when it is needed: a site may be a new process for every
question, and pays for what it imports each time. The core names no method.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import kernfed
from kernfed.base.checks import check_choice
from kernfed.errors import InputError
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
class Task:
    """A question that sites can answer.

    leaves : what kind of information the answer carries, one of ``INFORMATION``. under_privacy : one of
    ``UNDER_PRIVACY``, and ``reason`` says why the answer is "public". changes : whether it alters the store, so that a
    repetition must not. queries : whether the rows ``X`` of the question count as queries of the day. locked : whether
    the whole answer is computed with the site's store locked, without which there are no rows. additive : whether the
    arrays of the answer are sums over rows, so that those of all sites may be added, also where only the sum is told.
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

    def __post_init__(self) -> None:
        check_choice(self.leaves, "leaves", INFORMATION)
        check_choice(self.under_privacy, "under_privacy", UNDER_PRIVACY)
        if (self.under_privacy == "public") != bool(self.reason):
            raise InputError(f"task {self.name!r} must give a reason if, and only if, its answer is public")


@dataclass(frozen=True)
class Method:
    """What a way of learning brings, by names, so that nothing is imported before it is needed.

    tasks : names of the tasks that each module declares. default_tasks : those that a site answers unless its policy
    says otherwise. formats : the module of each file format. connects : by the name of a model, the function
    (federation, model) -> model that lets sites answer for it. forgets : functions (site, ids) that delete whatever the
    site's store holds of rows. keeps : the function (store) that lists what is kept for models. receipts : what
    receipts say of it, a ``federation.site.receipts.ReceiptBook``. learner : the class, and ``jobs`` its settings by
    name, a ``federation.settings.LearnerSettings``. sums : the function (federation, task, payload, ...) that gathers a
    sum which nobody sees in parts. Functions, classes and these are named as "module:name".
    """

    name: str
    tasks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
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
) -> Callable[[Any], Any]:
    """Declare a function (site, payload) -> payload as the answer to ``name``; see ``Task``."""

    def add(run: Callable[[Any, Payload], Payload]) -> Callable[[Any, Payload], Payload]:
        _tasks[name] = Task(name, run, leaves, under_privacy, reason, changes, queries, locked, additive)
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


def task_names() -> tuple[str, ...]:
    """Names of all tasks, sorted: what a policy may allow."""
    own = {name for method in methods() for names in method.tasks.values() for name in names}
    return tuple(sorted({*CORE_TASKS, *own, *_tasks}))


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

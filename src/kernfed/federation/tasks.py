"""Questions that sites can answer, and what goes when rows are forgotten: learners register both beside themselves."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kernfed.federation.message import Payload

if TYPE_CHECKING:
    from kernfed.federation.site import Site


@dataclass(frozen=True)
class Task:
    """A question that sites can answer. ``changes``: whether it alters the store, so that a repetition must not.

    ``private``: whether the task itself sees to what the site's policy demands of privacy.
    """

    name: str
    run: Callable[["Site", Payload], Payload]
    information: str
    changes: bool
    private: bool = False


_tasks: dict[str, Task] = {}
#: Modules that register their tasks when one whose name begins so is asked for. A site may be a new process for every
#: question, and pays for what it imports each time.
_later = {
    "scores": "folding_tasks", "machines": "folding_tasks", "released_machines": "folding_tasks",
    "forget_": "folding_changes", "add_rows": "folding_changes", "secure_": "secure", "ridge_": "ridge_tasks",
    "averaging_": "averaging_tasks", "personal_": "personal_tasks", "evaluate": "evaluation",
    "held_out_": "evaluation", "calibrate_": "calibrating",
}  # fmt: skip
_forgetters: list[Callable[["Site"], None]] = []


def when_forgetting(function: Callable[["Site"], None]) -> Callable[["Site"], None]:
    """Register what else of a site's store is made of rows, and must go when some (``site.leaving``) are forgotten."""
    _forgetters.append(function)
    return function


def forgetters() -> list[Callable[["Site"], None]]:
    """All that must go when rows are forgotten, also of learners that this process has not met yet."""
    for module in sorted(set(_later.values())):
        import_module(f"kernfed.federation.{module}")
    return list(_forgetters)


def task(name: str, information: str, *, changes: bool = False, private: bool = False) -> Callable[[Any], Any]:
    """Register a function (site, payload) -> payload as the answer to ``name``; ``information`` is what leaves."""

    def add(function: Callable[["Site", Payload], Payload]) -> Callable[["Site", Payload], Payload]:
        _tasks[name] = Task(name, function, information, changes, private)
        return function

    return add


def find_task(name: str) -> Task | None:
    """The task of this name, or None."""
    if name not in _tasks:
        for prefix, module in _later.items():
            if name.startswith(prefix):
                import_module(f"kernfed.federation.{module}")
    return _tasks.get(name)

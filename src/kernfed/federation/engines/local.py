"""What an engine is, and the default one: all sites in this process, a thread each.

An engine only carries bytes. The local one can be broken on purpose.
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import quote

from kernfed.base.checks import check_choice, check_number
from kernfed.errors import InputError
from kernfed.site.policy import Policy
from kernfed.site.protocol.message import Refusal
from kernfed.site.site import Site
from kernfed.site.store import SiteStore

#: One question for all sites, or one for each; what comes back from a site.
Questions = bytes | Mapping[str, bytes]
Answer = bytes | Refusal
FAULTS = ("slow", "dead", "garbage")


class Engine(Protocol):
    """Carries bytes to sites and back."""

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites that can be asked, sorted."""

    def carry(self, data: Questions, sites: Sequence[str], timeout: float) -> Mapping[str, Answer]:
        """Put the question ``data``, or one for each site, to ``sites`` and return within ``timeout`` seconds.

        A site that cannot be reached or is too late is absent, or present with a refusal that says why.
        """

    def close(self) -> None:
        """Release what the engine holds."""


@runtime_checkable
class DeliveringEngine(Engine, Protocol):
    """An engine that can also hand over answers one by one, as they come; large ones are then never held together."""

    def deliver(
        self, data: Questions, sites: Sequence[str], timeout: float, take: Callable[[str, Answer], None]
    ) -> None:
        """As ``carry``, but call ``take(site, answer)`` for each answer, in this thread, before many others wait."""

    def carry(self, data: Questions, sites: Sequence[str], timeout: float) -> Mapping[str, Answer]:
        """Answers by site, in the order of ``sites``; those that have not come in time are absent."""
        answers: dict[str, Answer] = {}
        self.deliver(data, sites, timeout, answers.__setitem__)
        return {site: answers[site] for site in sites if site in answers}


def question_for(data: Questions, site: str) -> bytes:
    """The question to one site."""
    return data if isinstance(data, bytes) else data[site]


@dataclass(frozen=True)
class Fault:
    """What goes wrong at a site: it answers late ("slow", by ``seconds``), never ("dead"), or noise ("garbage")."""

    kind: str
    seconds: float = 0.0

    def __post_init__(self) -> None:
        check_choice(self.kind, "fault", FAULTS)
        check_number(self.seconds, "seconds", at_least=0)


class LocalEngine(DeliveringEngine):
    """Sites in this process. At most as many compute at once as there are cores."""

    def __init__(self, sites: Mapping[str, Site], faults: Mapping[str, Fault] | None = None) -> None:
        self._sites: dict[str, Site] = {}
        self._temporary: set[str] = set()
        self.faults: dict[str, Fault] = dict(faults or {})
        self._cores = threading.Semaphore(os.cpu_count() or 1)
        self._defaults: dict[str, Any] = {"seed": 0, "store": None, "holdout": 0.0, "columns": ()}
        for name, site in sites.items():
            self._take(name, site)

    @classmethod
    def from_data(
        cls,
        data: Mapping[str, Any],
        *,
        seed: int = 0,
        store: str | os.PathLike[str] | None = None,
        holdout: float = 0.0,
        columns: Sequence[str] = (),
        policies: Mapping[str, Policy] | None = None,
        faults: Mapping[str, Fault] | None = None,
    ) -> "LocalEngine":
        """Engine over ``{site: (X, y[, ids])}`` or ``{site: Site}``.

        Names of columns are ``columns``, or those of X where it is a table (pandas, polars, Arrow).
        """
        if not isinstance(data, Mapping) or not data:
            raise InputError("data must map site names to (X, y), got " + (repr(data)[:60] if data else "nothing"))
        given = {} if policies is None else policies
        if not isinstance(given, Mapping) or not all(isinstance(policy, Policy) for policy in given.values()):
            raise InputError(f"policies must map names of sites to a Policy, got {given!r:.80}")
        if strangers := sorted(set(given) - set(data)):
            raise InputError(f"policies has site {strangers[0]!r}, which is none of {', '.join(map(repr, data))}"[:300])
        engine = cls({}, faults)
        engine._defaults = {"seed": seed, "store": store, "holdout": holdout, "columns": columns}
        for name, rows in data.items():
            engine.add_site(name, rows, policy=given.get(name))
        return engine

    def add_site(self, name: str, rows: Any, *, policy: Policy | None = None, **options: Any) -> None:
        """Let another site take part, with rows (X, y[, ids]), or as it is.

        ``options`` (seed, store, holdout, columns) are those that ``from_data`` was given unless named here.
        """
        if not isinstance(name, str) or not name:
            raise InputError(f"a site's name must be text, got {name!r}")
        if name in self._sites:
            raise InputError(f"there is a site {name!r} already")
        if isinstance(rows, Site):
            if rows.name != name:
                raise InputError(f"site {rows.name!r} cannot take part under the name {name!r}")
            self._take(name, rows)
            return
        if not isinstance(rows, Sequence) or len(rows) not in (2, 3):
            raise InputError(f"data of site {name!r} must be (X, y) or (X, y, ids), got {type(rows).__name__}")
        X, y, *ids = rows
        settings = {**self._defaults, **options}
        folder, settings["columns"] = settings.pop("store"), tuple(settings["columns"])
        # Quoted, a name with slashes or dots stays one folder inside the store.
        store = SiteStore(Path(folder) / f"site-{quote(name, safe='')}") if folder is not None else None
        rules = policy or Policy.open()
        self._take(name, Site(name, X, y, ids=ids[0] if ids else None, store=store, policy=rules, **settings))

    def _take(self, name: str, site: Site) -> None:
        self._sites[name] = site
        (self._temporary.add if site.temporary else self._temporary.discard)(name)

    def remove_site(self, name: str) -> None:
        """Let a site take part no longer; its store stays."""
        self._sites.pop(name, None)

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites, sorted."""
        return tuple(sorted(self._sites))

    @property
    def temporary_sites(self) -> tuple[str, ...]:
        """Names of the sites, also of those that have left, that remember nothing after this process; sorted."""
        return tuple(sorted(self._temporary))

    def site(self, name: str) -> Site:
        """The site itself, for whoever set it up."""
        return self._sites[name]

    def deliver(
        self, data: Questions, sites: Sequence[str], timeout: float, take: Callable[[str, Answer], None]
    ) -> None:
        """Ask every site in its own thread; a site computes once there is room for its answer."""
        arrived: queue.SimpleQueue[tuple[str, Answer | None]] = queue.SimpleQueue()
        room, over = threading.Semaphore(1 + (os.cpu_count() or 1)), threading.Event()
        taken = {name: threading.Event() for name in sites}

        def ask(name: str) -> None:
            fault = self.faults.get(name)
            if fault is not None and fault.kind == "slow":  # before it takes any room
                time.sleep(fault.seconds)
            with room:
                if not over.is_set():
                    arrived.put((name, self._answer(name, question_for(data, name), fault)))
                    taken[name].wait()

        deadline = time.monotonic() + timeout
        for name in sites:
            threading.Thread(target=ask, args=(name,), daemon=True).start()
        try:
            for _ in sites:
                name, answer = arrived.get(timeout=max(0.0, deadline - time.monotonic()))
                if answer is not None:
                    take(name, answer)
                del answer
                taken[name].set()
        except queue.Empty:
            return
        finally:
            over.set()
            for event in taken.values():
                event.set()

    def _answer(self, name: str, data: bytes, fault: Fault | None) -> Answer | None:
        """What a site answers; None where the engine was closed while the question was on its way."""
        kind = "" if fault is None else fault.kind
        if kind == "dead":
            return Refusal("unreachable", f"site {name!r} cannot be reached")
        site = self._sites.get(name)
        if site is None:
            return None
        with self._cores:
            reply = site.answer(data)
        return os.urandom(len(reply)) if kind == "garbage" else reply

    def close(self) -> None:
        """Forget the sites; temporary stores vanish with them."""
        self._sites.clear()

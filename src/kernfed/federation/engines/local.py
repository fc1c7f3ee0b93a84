"""What an engine is, and the default one: all sites in this process, a thread each.

An engine only carries bytes. The local one can be broken on purpose.
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import quote

import numpy.typing as npt

from kernfed.base.checks import check_choice, check_number
from kernfed.errors import InputError
from kernfed.site.policy import Policy
from kernfed.site.protocol.message import Refusal
from kernfed.site.site import Site
from kernfed.site.store import SiteStore


class Engine(Protocol):
    """Carries bytes to sites and back."""

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites that can be asked, sorted."""

    def carry(
        self, data: bytes | Mapping[str, bytes], sites: Sequence[str], timeout: float
    ) -> Mapping[str, bytes | Refusal]:
        """Put the question ``data``, or one for each site, to ``sites`` and return within ``timeout`` seconds.

        A site that cannot be reached or is too late is absent, or present with a refusal that says why.
        """

    def close(self) -> None:
        """Release what the engine holds."""


@runtime_checkable
class DeliveringEngine(Protocol):
    """An engine that can also hand over answers one by one, as they come; large ones are then never held together."""

    def deliver(
        self,
        data: bytes | Mapping[str, bytes],
        sites: Sequence[str],
        timeout: float,
        take: Callable[[str, bytes | Refusal], None],
    ) -> None:
        """As ``carry``, but call ``take(site, answer)`` for each answer, in this thread, before many others wait."""


FAULTS = ("slow", "dead", "garbage")


@dataclass(frozen=True)
class Fault:
    """What goes wrong at a site: it answers late ("slow", by ``seconds``), never ("dead"), or noise ("garbage")."""

    kind: str
    seconds: float = 0.0

    def __post_init__(self) -> None:
        check_choice(self.kind, "fault", FAULTS)
        check_number(self.seconds, "seconds", at_least=0)


class LocalEngine:
    """Sites in this process. At most as many compute at once as there are cores."""

    def __init__(self, sites: Mapping[str, Site], faults: Mapping[str, Fault] | None = None) -> None:
        self._sites = dict(sites)
        self._temporary = {name for name, site in self._sites.items() if site.temporary}
        self.faults: dict[str, Fault] = dict(faults or {})
        self._cores = threading.Semaphore(os.cpu_count() or 1)
        self._defaults: dict[str, Any] = {}

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
        engine = cls({}, faults)
        engine._defaults = {"seed": seed, "store": store, "holdout": holdout, "columns": columns}
        for name, rows in data.items():
            engine.add_site(name, rows, policy=(policies or {}).get(name))
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
            self._take(rows)
            return
        if not isinstance(rows, Sequence) or len(rows) not in (2, 3):
            raise InputError(f"data of site {name!r} must be (X, y) or (X, y, ids), got {type(rows).__name__}")
        X, y, *ids = rows
        given: npt.ArrayLike | None = ids[0] if ids else None
        settings = {"seed": 0, "holdout": 0.0, "columns": (), **self._defaults, **options}
        store = settings.pop("store", None)
        # Quoted, a name with slashes or dots stays one folder inside the store.
        memory = SiteStore(Path(store) / f"site-{quote(name, safe='')}") if store is not None else None
        self._take(
            Site(
                name,
                X,
                y,
                ids=given,
                store=memory,
                policy=policy or Policy.open(),
                **{**settings, "columns": tuple(settings["columns"])},
            )
        )

    def _take(self, site: Site) -> None:
        self._sites[site.name] = site
        (self._temporary.add if site.temporary else self._temporary.discard)(site.name)

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

    def carry(
        self, data: bytes | Mapping[str, bytes], sites: Sequence[str], timeout: float
    ) -> Mapping[str, bytes | Refusal]:
        """Ask every site in its own thread and return when all have answered or time is up."""
        answers: dict[str, bytes | Refusal] = {}
        own = dict.fromkeys(sites, data) if isinstance(data, bytes) else data
        threads = [threading.Thread(target=self._ask, args=(name, own[name], answers), daemon=True) for name in sites]
        deadline = time.monotonic() + timeout
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return {name: answers[name] for name in sites if name in answers}

    def deliver(
        self,
        data: bytes | Mapping[str, bytes],
        sites: Sequence[str],
        timeout: float,
        take: Callable[[str, bytes | Refusal], None],
    ) -> None:
        """Hand over answers one by one; a site computes once there is room for its answer."""
        own = dict.fromkeys(sites, data) if isinstance(data, bytes) else data
        arrived: queue.SimpleQueue[tuple[str, bytes | Refusal | None]] = queue.SimpleQueue()
        room, over = threading.Semaphore(1 + (os.cpu_count() or 1)), threading.Event()

        def ask(name: str) -> None:
            answers: dict[str, bytes | Refusal] = {}
            with self._room(name, room):
                if not over.is_set():
                    self._ask(name, own[name], answers, waited=True)
                    arrived.put((name, answers.get(name)))
                    del answers
                    taken[name].wait()

        taken = {name: threading.Event() for name in sites}
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

    @contextmanager
    def _room(self, name: str, room: threading.Semaphore) -> Iterator[None]:
        """Room for the answer of a site; one that is slow on purpose waits before it takes any."""
        fault = self.faults.get(name)
        if fault is not None and fault.kind == "slow":
            time.sleep(fault.seconds)
        with room:
            yield

    def _ask(self, name: str, data: bytes, answers: dict[str, bytes | Refusal], *, waited: bool = False) -> None:
        fault = self.faults.get(name)
        if fault is not None and fault.kind == "dead":
            answers[name] = Refusal("unreachable", f"site {name!r} cannot be reached")
            return
        if fault is not None and fault.kind == "slow" and not waited:
            time.sleep(fault.seconds)
        site = self._sites.get(name)
        if site is None:  # the engine was closed while the question was on its way
            return
        with self._cores:
            reply = site.answer(data)
        answers[name] = os.urandom(len(reply)) if fault is not None and fault.kind == "garbage" else reply

    def close(self) -> None:
        """Forget the sites; temporary stores vanish with them."""
        self._sites.clear()

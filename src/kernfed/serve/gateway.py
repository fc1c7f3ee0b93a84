"""A model that answers many callers: whole, or by the sites of a hub."""

import asyncio
import math
import time
import warnings
from collections.abc import Sequence
from typing import Any

from kernfed._version import __version__
from kernfed.base.answer import Answer
from kernfed.base.checks import FloatArray, check_number
from kernfed.errors import InputError, MissingSites, NotConnected
from kernfed.federation.asking import Federation
from kernfed.serve.batching import Batcher
from kernfed.serve.columns import Columns
from kernfed.serve.covered import CoveredAnswer, abstained
from kernfed.serve.metrics import Metrics
from kernfed.serve.requests import Limits
from kernfed.serve.rows import read_rows

#: Seconds for which what is known of the sites is not asked again, and that one may take to say that it is there.
_FRESH, _SOON = 5.0, 2.0


class Gateway:
    """Answers rows with ``model``; scores are the sites' of ``federation``, where the model's machines are there.

    min_replies : sites that must answer; the others are named as missing. timeout : seconds that they have. abstain :
    the share of wrong labels that is allowed, of a model that states a coverage: rows of which it does not know the
    label get none. It costs a second scoring.
    """

    def __init__(
        self,
        model: Any,
        federation: Federation | None = None,
        *,
        limits: Limits | None = None,
        min_replies: int = 1,
        timeout: float = 10.0,
        abstain: float | None = None,
    ) -> None:
        self._asks = getattr(model, "hold", "machines") == "sites"
        if self._asks and federation is None:
            raise NotConnected("the machines of this model are at its sites: give the credentials of their hub")
        self.model = model if federation is None or not self._asks else model.connect(federation)
        self.federation = federation if self._asks else None
        self._abstain = None if abstain is None else check_number(abstain, "abstain", above=0, below=1)
        if abstain is not None and getattr(model, "conformal_", None) is None:
            raise InputError("this model states no coverage, so that it cannot abstain: use kernfed conform first")
        self.limits = limits or Limits()
        self.columns = Columns.of(model)
        self.metrics = Metrics()
        self.min_replies, self.timeout = min_replies, timeout
        self._options = {"min_replies": min_replies, "timeout": timeout} if self._asks else {}
        self._batcher = Batcher(
            self._score, most_rows=self.limits.rows, most_waiting=self.limits.waiting, heard=self.metrics.scored
        )
        self._reading, self._looking = asyncio.Lock(), asyncio.Lock()
        self._sites: tuple[float, dict[str, float | None]] = (-math.inf, {})

    async def read(self, body: bytes, kind: str) -> FloatArray:
        """Rows (n, p) of a body; one body is read at a time, for it takes more memory meanwhile."""
        async with self._reading:
            return await asyncio.to_thread(read_rows, body, kind, self.columns, self.limits.rows)

    async def answer(self, rows: FloatArray, caller: str) -> Answer:
        """What the model says of rows (n, p), asked by ``caller``."""
        return await self._batcher.ask(rows, caller)

    def _score(self, rows: FloatArray, callers: str) -> Answer:
        """Score rows of these callers, whom the sites hear of as said by this gateway."""
        model = self.model
        if self.federation is not None:
            model = model.connect(self.federation.on_behalf_of(callers))
        with warnings.catch_warnings():  # one thread scores, so that this changes nothing of others
            warnings.simplefilter("ignore", MissingSites)  # the answer names them
            answer: Answer = model.answer(rows, **self._options)
            return answer if self._abstain is None else abstained(model, answer, rows, self._abstain, self._options)

    async def sites(self) -> dict[str, float | None]:
        """Seconds until each site says that it is there, None of one that does not; asked every few seconds at most."""
        async with self._looking:
            seen, latencies = self._sites
            present = getattr(getattr(self.federation, "engine", None), "present", None)
            if present is not None and time.monotonic() - seen > _FRESH:
                latencies = await asyncio.to_thread(present, _SOON)
                latencies = {site: seconds for site, seconds in latencies.items() if site in self.model.sites}
                self.metrics.seen(latencies)
                self._sites = (time.monotonic(), latencies)
            return latencies

    async def about(self) -> dict[str, Any]:
        """The model and its federation at a glance, in plain values."""
        latencies = await self.sites()
        model, terms = self.model, getattr(self.model, "privacy", None)
        members = getattr(model, "members_", {})
        spent = {} if terms is None else terms.spent
        sites = [
            {
                "name": site,
                "up": None if site not in latencies else latencies[site] is not None,
                "seconds": latencies.get(site),
                "rows": getattr(members.get(site), "rows", None),
                "spent": list(spent[site]) if site in spent else None,
            }
            for site in getattr(model, "sites", ())
        ]
        return {
            "model": type(model).__name__,
            "version": __version__,
            "columns": list(self.columns.names),
            "width": self.columns.width,
            "classes": plain_labels(getattr(model, "classes_", ())),
            "distance_unit": getattr(model, "distance_unit", None),
            "asks_sites": self.federation is not None,
            "sites": sites,
            "missing_in_training": dict(getattr(model, "missing_", {})),
            "privacy": None if terms is None else terms.line(),
            "questions_last_hour": self.metrics.last_hour,
            "most_rows": self.limits.rows,
        }

    def close(self) -> None:
        """Let go of the thread and of the hub."""
        self._batcher.close()
        if self.federation is not None:
            self.federation.close()


def answer_values(answer: Answer, classes: Sequence[Any]) -> dict[str, Any]:
    """An answer in plain values: one object per row, and which sites spoke."""
    columns: dict[str, list[Any]] = {"label": answer.labels.tolist()}
    if answer.probabilities is not None:
        names = [str(name) for name in classes]
        columns["probabilities"] = [dict(zip(names, own, strict=True)) for own in answer.probabilities.tolist()]
    if isinstance(answer, CoveredAnswer):
        columns["label"] = [
            None if unsure else label for unsure, label in zip(answer.abstained, columns["label"], strict=True)
        ]
        columns["abstained"] = answer.abstained.tolist()
        columns["set"] = [[label for label, inside in zip(classes, own, strict=True) if inside] for own in answer.sets]
    for name in ("site", "batch", "part", "score", "distance", "p_value"):
        values = getattr(answer, name, None)
        if values is not None:
            columns[name] = [_plain(value) for value in values.tolist()]
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return {"answers": rows, "sites": list(answer.sites), "missing": dict(answer.missing)}


def plain_labels(classes: Any) -> list[Any]:
    """Labels as plain values."""
    return list(classes.tolist()) if hasattr(classes, "tolist") else list(classes)


def _plain(value: Any) -> Any:
    """A value that JSON has: null in place of what is no finite number, of no site, and of no batch."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return None if value in ("", -1) and not isinstance(value, float) else value

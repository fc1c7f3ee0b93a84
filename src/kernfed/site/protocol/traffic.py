"""How messages are counted, and what comes back from several sites."""

import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt

from kernfed.files import atomic_path
from kernfed.site.protocol.message import Payload, Refusal

#: Kinds of information a reply may carry, from least to most telling.
INFORMATION = ("none", "encrypted", "masked", "schema", "counts", "released", "scores", "statistics", "rows")


@dataclass(frozen=True)
class Entry:
    """Sum over the messages of one task with one site. Up is from the site, down is to it."""

    site: str
    task: str
    information: str = "none"
    messages: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    scalars_up: int = 0

    def plus(self, information: str, down: int, up: int, scalars: int) -> "Entry":
        """Entry with one more exchange."""
        telling = max(self.information, information, key=INFORMATION.index)
        return Entry(
            self.site,
            self.task,
            telling,
            self.messages + 1,
            self.bytes_down + down,
            self.bytes_up + up,
            self.scalars_up + scalars,
        )


class Traffic:
    """Running record of every exchange; prints as a table, saves as JSON."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}
        #: How often sites were asked: one exchange carries any number of questions.
        self.exchanges = 0
        self._lock = threading.Lock()

    def add(self, site: str, task: str, information: str, *, down: int, up: int, scalars: int) -> None:
        """Note one exchange: bytes to the site, bytes from it, numbers among these."""
        known = information if information in INFORMATION else "rows"  # what is not declared is taken as the worst
        with self._lock:
            entry = self._entries.get((site, task), Entry(site, task))
            self._entries[site, task] = entry.plus(known, down, up, scalars)

    def __iter__(self) -> Iterator[Entry]:
        return iter([self._entries[key] for key in sorted(self._entries)])

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes_up(self) -> int:
        """Bytes that left all sites."""
        return sum(entry.bytes_up for entry in self)

    @property
    def bytes_down(self) -> int:
        """Bytes sent to all sites."""
        return sum(entry.bytes_down for entry in self)

    def to_json(self) -> list[dict[str, object]]:
        """One mapping per site and task."""
        return [asdict(entry) for entry in self]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the record as JSON."""
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(self.to_json(), indent=1) + "\n")

    def __str__(self) -> str:
        return traffic_table(list(self))


def traffic_table(entries: list[Entry]) -> str:
    """Aligned text table of entries, with totals."""
    head = ("site", "task", "information", "messages", "bytes down", "bytes up", "numbers up")
    rows = [
        (e.site, e.task, e.information, f"{e.messages:,}", f"{e.bytes_down:,}", f"{e.bytes_up:,}", f"{e.scalars_up:,}")
        for e in entries
    ]
    total = (
        "total",
        "",
        "",
        f"{sum(e.messages for e in entries):,}",
        f"{sum(e.bytes_down for e in entries):,}",
        f"{sum(e.bytes_up for e in entries):,}",
        f"{sum(e.scalars_up for e in entries):,}",
    )
    table = [head, *rows, total]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    lines = []
    for row in table:
        cells = [row[i].ljust(widths[i]) if i < 3 else row[i].rjust(widths[i]) for i in range(len(head))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


@dataclass(frozen=True)
class Replies:
    """Payloads by site, in order of site names, and who is missing with the reason; bytes are those of all sites."""

    payloads: Mapping[str, Payload]
    missing: Mapping[str, Refusal]
    seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0

    def __iter__(self) -> Iterator[tuple[str, Payload]]:
        return iter(self.payloads.items())

    def __len__(self) -> int:
        return len(self.payloads)

    def __getitem__(self, site: str) -> Payload:
        return self.payloads[site]

    def without(self, reasons: Mapping[str, str]) -> "Replies":
        """The same without the sites in ``reasons``, which are missing for what these say."""
        kept = {site: payload for site, payload in self.payloads.items() if site not in reasons}
        refused = {site: Refusal("bad reply", reason) for site, reason in reasons.items()}
        return replace(self, payloads=kept, missing={**self.missing, **refused})


@dataclass(frozen=True)
class Total:
    """A sum over ``sites``: arrays by name, the integers that they are in steps of 2^-exponent, and who is missing.

    ``masked`` says whether only the sum was told, ``run`` is the id of what it was then told for, ``exchanges`` how
    many there were: keys for several runs at once are one more, now and then.
    """

    arrays: Mapping[str, npt.NDArray[np.float64]]
    integers: Mapping[str, npt.NDArray[np.int64]]
    sites: tuple[str, ...]
    missing: Mapping[str, Refusal]
    masked: bool
    run: str = ""
    exchanges: int = 1

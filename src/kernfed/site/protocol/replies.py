"""What comes back from several sites: their replies with those that are missing, or a sum over them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kernfed.site.protocol.message import Payload, Refusal


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

"""The contract between learners and whatever carries their questions to sites: an engine only moves bytes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from kernfed.site.protocol.message import Refusal


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

"""What a request may be: its limits, and the error that says in one sentence why it is not answered."""

import time
from dataclasses import dataclass

from kernfed.errors import KernfedError


class RequestError(KernfedError):
    """A request that is not answered: a status of HTTP, one sentence, and where it helps, seconds to wait."""

    def __init__(self, status: int, sentence: str, *, wait: float | None = None) -> None:
        super().__init__(sentence)
        self.status, self.wait = status, wait


@dataclass(frozen=True)
class Limits:
    """What a caller may ask for.

    rows, bytes : of one request. rate : requests of one caller in a second, 0 for any number. waiting : numbers in rows
    that wait for their turn, over all callers. bodies : bytes of all requests that are being read. seconds : for a body
    to arrive.
    """

    rows: int = 10_000
    bytes: int = 16_000_000
    rate: float = 200.0
    waiting: int = 20_000_000
    bodies: int = 64_000_000
    seconds: float = 30.0


class Rate:
    """Requests of every caller in a second, at most ``rate``; a second's worth may come at once. 0 is no limit."""

    def __init__(self, rate: float) -> None:
        self._rate, self._most = rate, max(1.0, rate)
        #: What each caller may still ask now, and when that was so.
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, caller: str) -> None:
        """Count a request of ``caller``; refuse it where it is one too many."""
        if not self._rate:
            return
        now = time.monotonic()
        left, then = self._left.get(caller, (self._most, now))
        left = min(self._most, left + (now - then) * self._rate)
        if left < 1.0:
            self._left[caller] = (left, now)
            told = f"at most {self._rate:g} requests in a second are answered; send several rows in one request"
            raise RequestError(429, told, wait=(1.0 - left) / self._rate)
        self._left[caller] = (left - 1.0, now)

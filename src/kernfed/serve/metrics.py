"""What the gateway counts, for Prometheus and for its page."""

import time
from collections import deque

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
except ImportError:
    raise ImportError("a gateway needs prometheus-client: pip install -e '.[serve]' in a clone of kernfed") from None

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 1024, 10_000)
#: Who asks without a token that is known.
UNKNOWN = "unknown"
_MINUTES = 60


class Metrics:
    """Counters of one gateway, in a registry that no other gateway shares."""

    def __init__(self) -> None:
        into = self.registry = CollectorRegistry()
        self._requests = Counter(
            "kernfed_requests", "Requests by caller and status of HTTP.", ["caller", "status"], registry=into
        )
        self._rows = Counter("kernfed_rows", "Rows that were answered, by caller.", ["caller"], registry=into)
        self._seconds = Histogram(
            "kernfed_request_seconds", "Seconds of a request that was answered.", buckets=_SECONDS, registry=into
        )
        self._batch = Histogram("kernfed_scoring_requests", "Requests scored together.", buckets=_ROWS, registry=into)
        self._scored_rows = Histogram("kernfed_scoring_rows", "Rows scored together.", buckets=_ROWS, registry=into)
        self._missing = Counter("kernfed_missing", "Answers in which a site was missing.", ["site"], registry=into)
        self._up = Gauge("kernfed_site_up", "Whether a site is connected.", ["site"], registry=into)
        self._latency = Gauge(
            "kernfed_site_seconds", "Seconds until a site says that it is there.", ["site"], registry=into
        )
        self._minutes: deque[tuple[int, int]] = deque(maxlen=_MINUTES)

    def answered(self, caller: str, rows: int, seconds: float, missing: tuple[str, ...]) -> None:
        """Count an answer, its rows, its seconds and the sites it lacks."""
        self.ended(caller, 200)
        self._rows.labels(caller).inc(rows)
        self._seconds.observe(seconds)
        for site in missing:
            self._missing.labels(site).inc()
        minute = int(time.monotonic() // 60)
        count = self._minutes.pop()[1] if self._minutes and self._minutes[-1][0] == minute else 0
        self._minutes.append((minute, count + 1))

    def ended(self, caller: str, status: int) -> None:
        """Count a request by its caller and its status of HTTP."""
        self._requests.labels(caller, str(status)).inc()

    def scored(self, requests: int, rows: int) -> None:
        """Count a scoring of so many requests."""
        self._batch.observe(requests)
        self._scored_rows.observe(rows)

    def seen(self, latencies: dict[str, float | None]) -> None:
        """Note which sites are connected, and how soon they say so."""
        for site, seconds in latencies.items():
            self._up.labels(site).set(seconds is not None)
            self._latency.labels(site).set(float("nan") if seconds is None else seconds)

    @property
    def last_hour(self) -> int:
        """Questions that were answered within the last hour."""
        since = int(time.monotonic() // 60) - _MINUTES
        return sum(count for minute, count in self._minutes if minute > since)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return bytes(generate_latest(self.registry))

"""Metrics: counts of the work of a program. METRICS has the names; docs/reference/metrics.md explains them.

A `Metrics` belongs to one broker, or to one worker and its broker. Counting costs an addition; the store is read only
when metrics are collected. `collector` and `serve_metrics` export them to Prometheus and need `redrive[metrics]`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec

from redrive.errors import InvalidInput
from redrive.telemetry import events

if TYPE_CHECKING:
    from redrive.telemetry.prometheus import MetricsCollector, MetricsServer

_log = events.logger("redrive.metrics")

Labels: TypeAlias = tuple[str, ...]
"""Values of the labels, in the order that the metric names them."""


class Metric(msgspec.Struct, frozen=True, eq=False):
    """The definition of a counter, gauge or histogram."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    bounds: tuple[float, ...] = ()
    """Upper bounds of the buckets of a histogram, except the last, which has none."""


def _counter(name: str, labels: tuple[str, ...], help: str) -> Metric:
    return Metric(f"redrive_{name}_total", "counter", labels, help)


def _gauge(name: str, labels: tuple[str, ...], help: str) -> Metric:
    return Metric(f"redrive_{name}", "gauge", labels, help)


_COMMIT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_HANDLER_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_CALLS = tuple(float(1 << power) for power in range(13))

PUT = _counter("items_put", ("queue",), "Items put; duplicates by key or source are not.")
LEASED = _counter("items_leased", ("queue",), "Deliveries: leases given.")
COMPLETED = _counter("items_completed", ("queue",), "Items completed, by workers or manually.")
FAILED = _counter("items_failed", ("queue", "error_class"), "Failures reported.")
RETRIED = _counter("items_retried", ("queue",), "Failures after which the item is retried.")
RELEASED = _counter(
    "items_released", ("queue", "counted"), "Items released after they ran, or returned because they never ran."
)
LOST = _counter("leases_lost", ("queue",), "Deliveries whose worker was lost or whose lease expired.")
REFUSED = _counter("late_outcomes", (), "Outcomes that came too late: the worker no longer had the item.")
DEAD = _counter("items_dead_lettered", ("queue", "reason"), "Items that died, by the queue they died in.")
POISONED = _counter("items_poisoned", ("queue",), "Items that died because they took their workers with them.")
REDRIVEN = _counter("items_redriven", ("queue",), "Dead letters redriven, by the queue they went to.")
DISCARDED = _counter("items_discarded", ("queue", "by"), "Items removed without completion: by a rule or manually.")

REPLIES_REFUSED = _counter(
    "replies_refused", ("queue",), "Replies that could not be put, by the queue of the item that they answer."
)

COMMIT_CALLS = Metric(
    "redrive_commit_batch_size", "histogram", (), "Calls that were committed in one transaction.", _CALLS
)
COMMIT_SECONDS = Metric("redrive_commit_duration_seconds", "histogram", (), "Time of one transaction.", _COMMIT_SECONDS)
COMMITS_FAILED = _counter("commits_failed", (), "Transactions that the store could not execute.")
WAITING_CALLS = _gauge("commit_pending_calls", (), "Calls that wait for their transaction now.")
WAKEUPS = _counter("wakeups", (), "Times that a waiting caller was woken.")

HANDLER_SECONDS = Metric(
    "redrive_handler_duration_seconds",
    "histogram",
    ("queue", "task", "outcome"),
    "Time of one handler call.",
    _HANDLER_SECONDS,
)
RUNNING = _gauge("worker_running", (), "Handlers that run now.")
BUFFERED = _gauge("worker_prefetched", (), "Items that this worker has leased and not started.")
SLOTS = _gauge("worker_concurrency", (), "Handlers that may run concurrently.")

_AGE_SECONDS = (60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0, 2_592_000.0)
LETTERS_HANDLED = _counter(
    "dead_letters_handled", ("mailbox", "action"), "Dead letters that a consumer handled, by what its handler decided."
)
LETTER_AGE_SECONDS = Metric(
    "redrive_dead_letter_age_seconds",
    "histogram",
    ("mailbox",),
    "Time from the death of a message until a consumer handled it.",
    _AGE_SECONDS,
)
LETTER_HANDLER_SECONDS = Metric(
    "redrive_dead_letter_handler_duration_seconds",
    "histogram",
    ("mailbox",),
    "Time of one call of a dead-letter handler.",
    _HANDLER_SECONDS,
)

CAPTURE_EVENTS = _counter("capture_events", ("queue", "event"), "What this program did to tasks of a capture queue.")
CAPTURE_ALERTS = _counter("capture_alerts", ("queue", "alert"), "Alerts of a capture queue that fired in this program.")
CAPTURE_UTILIZATION = _gauge("capture_utilization", ("queue",), "The share of max_size that a capture queue holds.")

QUEUE_ITEMS = _gauge("queue_items", ("queue", "status"), "Items in each status, in the whole store.")
QUEUE_DEAD_LETTERS = _gauge("queue_dead_letters", ("queue",), "Dead letters in the queue, in the whole store.")
QUEUE_OLDEST = _gauge("queue_oldest_ready_seconds", ("queue",), "How long the oldest ready item has waited.")
QUEUE_EVENTS = _counter("queue_events", ("queue", "event"), "What happened in the queue, in the whole store.")

BREAKERS = _gauge("breakers", ("queue", "breaker"), "Circuit breakers that are not closed, in the whole store.")
BREAKER_CHANGES = _counter(
    "breaker_changes", ("queue", "breaker", "change"), "Circuit breakers that this program opened or closed."
)

STORE_WIDE = frozenset({QUEUE_ITEMS, QUEUE_DEAD_LETTERS, QUEUE_OLDEST, BREAKERS, CAPTURE_UTILIZATION})
"""Metrics that every broker reads from its store: the values of several brokers are equal, and not added up."""

HTTP_REQUESTS = _counter("http_requests", ("call", "status"), "Requests that a server answered, by call and status.")
HTTP_SECONDS = Metric(
    "redrive_http_request_duration_seconds",
    "histogram",
    ("call",),
    "Time of one request, without its way there.",
    _HANDLER_SECONDS,
)
TOKENS_REFUSED = _counter("auth_failures", (), "Requests with a token that is wrong, expired or revoked.")
HTTP_WAITING = _gauge("http_long_polls", (), "Leases and watches that wait at a server now.")

METRICS: tuple[Metric, ...] = (
    PUT,
    LEASED,
    COMPLETED,
    FAILED,
    RETRIED,
    RELEASED,
    LOST,
    REFUSED,
    DEAD,
    POISONED,
    REDRIVEN,
    DISCARDED,
    REPLIES_REFUSED,
    COMMIT_CALLS,
    COMMIT_SECONDS,
    COMMITS_FAILED,
    WAITING_CALLS,
    WAKEUPS,
    HANDLER_SECONDS,
    RUNNING,
    BUFFERED,
    SLOTS,
    HTTP_REQUESTS,
    HTTP_SECONDS,
    HTTP_WAITING,
    TOKENS_REFUSED,
    QUEUE_ITEMS,
    QUEUE_DEAD_LETTERS,
    QUEUE_OLDEST,
    QUEUE_EVENTS,
    BREAKERS,
    BREAKER_CHANGES,
    LETTERS_HANDLED,
    LETTER_AGE_SECONDS,
    LETTER_HANDLER_SECONDS,
    CAPTURE_EVENTS,
    CAPTURE_ALERTS,
    CAPTURE_UTILIZATION,
)
"""All metrics."""


class Sample(NamedTuple):
    """A value of a metric, read on collection."""

    metric: Metric
    labels: Labels
    value: float


class Histogram:
    """The observations of one histogram under one set of labels."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Observations in each bucket; the last one has no upper bound."""
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def copy(self) -> Histogram:
        """Return a copy of the current state."""
        same = Histogram(self.bounds)
        same.counts, same.sum = self.counts.copy(), self.sum
        return same

    def plus(self, other: Histogram) -> Histogram:
        """Return what both have observed."""
        both = Histogram(self.bounds)
        both.counts = [one + two for one, two in zip(self.counts, other.counts, strict=True)]
        both.sum = self.sum + other.sum
        return both


Source = Callable[[], Iterable[Sample]]
"""A function that returns values on collection. An exception is logged, and the other sources are still read."""


class Metrics:
    """Counters of one broker and its worker. `add` and `observe` are for any thread."""

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        self.labels = dict(labels or {})
        """Labels of every value: namespace and store."""
        self.sources: list[Source] = []
        self.reset()

    def reset(self) -> None:
        """Set all counts to 0, as a forked child does."""
        self.lock = threading.Lock()
        self._counts: dict[Metric, defaultdict[Labels, float]] = {m: defaultdict(int) for m in METRICS}
        self._distributions: dict[Metric, dict[Labels, Histogram]] = {m: {} for m in METRICS}

    def add(self, metric: Metric, labels: Labels = (), count: float = 1) -> None:
        """Add to a count."""
        with self.lock:
            self._counts[metric][labels] += count

    def set(self, metric: Metric, labels: Labels, value: float) -> None:
        """Set a gauge that no source reports."""
        with self.lock:
            self._counts[metric][labels] = value

    def observe(self, metric: Metric, labels: Labels, value: float) -> None:
        """Add a value to a histogram."""
        with self.lock:
            self.distribution(metric, labels).observe(value)

    def watch(self, source: Source) -> None:
        """Add a source of values. Values of several sources under the same labels are added up."""
        self.sources.append(source)

    def unwatch(self, source: Source) -> None:
        """Remove a source of values."""
        self.sources.remove(source)

    def counts(self, metric: Metric) -> defaultdict[Labels, float]:
        """Return the counts of one metric, for a caller that holds the lock to add to."""
        return self._counts[metric]

    def distribution(self, metric: Metric, labels: Labels = ()) -> Histogram:
        """Return a histogram, for a caller that holds the lock to add to."""
        found = self._distributions[metric].get(labels)
        return found or self._distributions[metric].setdefault(labels, Histogram(metric.bounds))

    def read(self) -> Iterator[Sample | tuple[Metric, Labels, Histogram]]:
        """Yield all current values, those of the sources last."""
        with self.lock:
            counted = [Sample(m, labels, n) for m, counts in self._counts.items() for labels, n in counts.items()]
            observed = [
                (m, labels, d.copy()) for m, found in self._distributions.items() for labels, d in found.items()
            ]
        yield from counted
        yield from observed
        told: dict[tuple[Metric, Labels], float] = defaultdict(int)
        for source in tuple(self.sources):
            try:
                for metric, labels, value in tuple(source()):
                    told[metric, labels] += value
            except Exception:  # the other values are useful even if the store does not answer
                _log.exception("metrics_read_failed")
        yield from (Sample(metric, labels, value) for (metric, labels), value in told.items())


LOOPBACK = "127.0.0.1"


def collector(*metrics: Metrics) -> MetricsCollector:
    """Return a collector for a registry of prometheus_client: `REGISTRY.register(collector(broker.metrics))`."""
    try:
        from redrive.telemetry.prometheus import MetricsCollector
    except ImportError as error:
        raise _missing(error) from error
    return MetricsCollector(metrics)


def serve_metrics(metrics: Metrics | Sequence[Metrics], port: int, host: str = LOOPBACK) -> MetricsServer:
    """Serve the metrics of one broker or of several, and those of the process, to Prometheus over HTTP until `close`.
    Port 0 selects a free one.

    Only programs on this machine can connect, unless `host` is changed: there is no password.
    """
    try:
        from redrive.telemetry.prometheus import MetricsServer
    except ImportError as error:
        raise _missing(error) from error
    server = MetricsServer((metrics,) if isinstance(metrics, Metrics) else metrics, port, host)
    _log.info("metrics_served", host=server.host, port=server.port)
    return server


def exposition(*metrics: Metrics) -> tuple[bytes, str]:
    """Return these metrics and those of the process in the format of Prometheus, and its content type."""
    try:
        from redrive.telemetry import prometheus
    except ImportError as error:
        raise _missing(error) from error
    return prometheus.exposition(metrics)


def _missing(error: ImportError) -> InvalidInput:
    return InvalidInput(f"metrics need prometheus-client: pip install 'redrive[metrics]' ({error})")

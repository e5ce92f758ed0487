"""The metrics of a broker, from the calls that it commits with their results, and from the outcomes of deliveries.

They are counted only after the metrics were first requested. A batch takes one lock, and each call one check of its
class.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from redrive.clock import Instant
from redrive.contract import Call
from redrive.contract.admin_calls import ManualChange, Register, Registration
from redrive.contract.base import DROP_ACTOR
from redrive.contract.item_calls import (
    Complete,
    LeaseByIds,
    Leased,
    LeaseItems,
    Put,
    ReturnLease,
    Settle,
    leases_of,
)
from redrive.contract.queries import ListQueues, ListStats
from redrive.errors import LeaseLost, RedriveError
from redrive.model.breaker import Breaker, rule_key
from redrive.model.death import DeadReason
from redrive.model.duration import SECOND
from redrive.model.failure import Failure
from redrive.model.item import Settled, Status
from redrive.model.judge import Dead, OutcomeKind
from redrive.model.operation import Operation
from redrive.model.queue import Queue, QueueStats
from redrive.model.state_machine import REVIVING_VERBS, Verb
from redrive.store import Commit, Store
from redrive.telemetry import events
from redrive.telemetry import metrics as names
from redrive.telemetry.metrics import Metrics, Sample

if TYPE_CHECKING:
    from redrive.broker.core import Core

_log = events.logger("redrive.metrics")

MAX_QUEUES = 200
"""Maximum number of queues, by name, whose statistics are read. Others have only the counts of this program."""
READ_EVERY = 5 * SECOND
"""Minimum time between two reads of the statistics, regardless of how often metrics are scraped."""

_GONE = frozenset({Verb.DROP, Verb.PURGE})
_STATUSES = tuple(status.value for status in Status)
_TOTALS = {name.removesuffix("_total"): name for name in QueueStats.__struct_fields__ if name.endswith("_total")}


class BrokerMetrics:
    """The counters of one broker."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._bind()

    def _bind(self) -> None:
        self._calls = self.metrics.distribution(names.COMMIT_CALLS)
        self._seconds = self.metrics.distribution(names.COMMIT_SECONDS)
        self._put = self.metrics.counts(names.PUT)
        self._completed = self.metrics.counts(names.COMPLETED)

    def reset(self) -> None:
        """Start again at 0, as a forked child does."""
        self.metrics.reset()
        self._bind()

    def commit(self, store: Store, calls: Sequence[Call]) -> Commit:
        """Commit calls, and count their results."""
        began_at = perf_counter()
        try:
            commit = store.commit(calls)
        except BaseException:
            self.metrics.add(names.COMMITS_FAILED)
            raise
        try:
            self.committed(calls, commit.results, perf_counter() - began_at)
        except Exception:  # a durable commit is not reported as failed because it could not be counted
            _log.exception("metrics_update_failed")
        return commit

    def committed(self, calls: Sequence[Call], results: Sequence[Any], seconds: float) -> None:
        """Count the calls of a durable transaction."""
        put, completed = self._put, self._completed
        with self.metrics.lock:
            self._calls.observe(len(calls))
            self._seconds.observe(seconds)
            for call, result in zip(calls, results, strict=True):
                # The most frequent calls take the shortest path.
                if call.__class__ is Complete and result.__class__ is Settled and not call.puts:
                    completed[(result.queue,)] += 1
                elif (
                    call.__class__ is Put and result.__class__ is tuple and len(result) == 1 and call.items[0].is_plain
                ):
                    put[(call.queue,)] += 1
                else:
                    self._count(call, result)

    def _count(self, call: Call, result: Any) -> None:
        if isinstance(result, RedriveError):
            if isinstance(result, LeaseLost) and _is_outcome(call):
                self.metrics.counts(names.REFUSED)[()] += 1
        elif (count := _COUNTS.get(call.__class__)) is not None:
            count(self.metrics, call, result)

    def settled(
        self,
        queue: str,
        outcome_kind: OutcomeKind,
        result: Any,
        failure: Failure | None = None,
        *,
        was_dead: bool = False,
    ) -> None:
        """Count a delivery from that queue with an outcome other than completion, or an expired item of it.

        The death of an item that `was_dead` when it was leased is already counted.
        """
        if not isinstance(result, Settled):
            return
        try:
            with self.metrics.lock:
                _count_ending(self.metrics, queue, outcome_kind, result, failure, was_dead=was_dead)
        except Exception:
            _log.exception("metrics_update_failed")

    def breaker_changed(self, queue: str, breaker: Breaker, *, opened: bool) -> None:
        """Count a breaker that opened or closed. All fingerprints share one label: their number has no bound."""
        self.metrics.add(names.BREAKER_CHANGES, (queue, rule_key(breaker.kind), "opened" if opened else "closed"))

    def operated(self, before: Operation, after: Operation) -> None:
        """Count a step of an operation, unless another process made it concurrently."""
        changed = after.changed - before.changed
        if changed <= 0 or after.steps != before.steps + 1:
            return
        queue = after.to or after.where.queue or ""
        if after.verb in REVIVING_VERBS:
            self.metrics.add(names.REDRIVEN, (queue,), changed)
        elif after.verb in _GONE:
            self.metrics.add(names.DISCARDED, (queue, after.verb.value), changed)


def _is_outcome(call: Call) -> bool:
    """Return whether the call is the outcome of a delivery from its worker. A sweep that comes too late is normal."""
    return isinstance(call, Complete | ReturnLease) or (
        isinstance(call, Settle) and call.outcome_kind is not OutcomeKind.LOST
    )


def _count_ending(
    metrics: Metrics,
    queue: str,
    outcome_kind: OutcomeKind,
    result: Settled,
    failure: Failure | None,
    *,
    was_dead: bool = False,
) -> None:
    if outcome_kind.is_failure:
        error_class = "" if failure is None else str(failure.error_class)
        metrics.counts(names.FAILED)[queue, error_class] += 1
        if result.dead_reason is None:
            metrics.counts(names.RETRIED)[(queue,)] += 1
    elif outcome_kind is OutcomeKind.LOST:
        metrics.counts(names.LOST)[(queue,)] += 1
    elif outcome_kind is OutcomeKind.RELEASED:
        metrics.counts(names.RELEASED)[queue, "yes"] += 1
    elif outcome_kind is OutcomeKind.RETURNED:
        metrics.counts(names.RELEASED)[queue, "no"] += 1
    if result.dead_reason is not None and not was_dead:
        _count_death(metrics, queue, result.dead_reason, dropped=result.status is None)
    if result.reply_refused is not None:
        metrics.counts(names.REPLIES_REFUSED)[(queue,)] += 1


def _count_death(metrics: Metrics, queue: str, reason: DeadReason, *, dropped: bool) -> None:
    metrics.counts(names.DEAD)[queue, reason.value] += 1
    if reason is DeadReason.WORKER_LOST:
        metrics.counts(names.POISONED)[(queue,)] += 1
    if dropped:
        metrics.counts(names.DISCARDED)[queue, DROP_ACTOR] += 1


def _count_put(metrics: Metrics, call: Put, result: Any) -> None:
    if result.__class__ is not tuple:  # Stale
        return
    metrics.counts(names.PUT)[(call.queue,)] += len(result) - sum([receipt.duplicate for receipt in result])
    for item, receipt in zip(call.items, result, strict=True):
        if item.failure is not None:
            metrics.counts(names.FAILED)[call.queue, str(item.failure.error_class)] += 1
            if isinstance(item.verdict, Dead) and not receipt.duplicate:  # an existing item keeps its status
                _count_death(metrics, call.queue, item.verdict.reason, dropped=item.verdict.drops)


def _count_leases(metrics: Metrics, call: LeaseItems, result: Leased) -> None:
    if result.leases:
        metrics.counts(names.LEASED)[(call.queue,)] += len(result.leases)


def _count_leases_by_id(metrics: Metrics, call: LeaseByIds, result: Sequence[Any]) -> None:
    for lease in leases_of(result):
        metrics.counts(names.LEASED)[(lease.queue,)] += 1


def _count_complete(metrics: Metrics, call: Complete, result: Settled) -> None:
    metrics.counts(names.COMPLETED)[(result.queue,)] += 1
    _count_puts(metrics, call.puts)
    if result.reply_refused is not None:
        metrics.counts(names.REPLIES_REFUSED)[(result.queue,)] += 1


def _count_registration(metrics: Metrics, call: Register, result: Any) -> None:
    if isinstance(result, Registration):  # not VersionConflict
        _count_puts(metrics, call.puts)


def _count_puts(metrics: Metrics, puts: Iterable[Put]) -> None:
    """Count puts that are part of another call, duplicates too: the result of that call does not report them."""
    for put in puts:
        metrics.counts(names.PUT)[(put.queue,)] += len(put.items)


def _count_return(metrics: Metrics, call: ReturnLease, result: Settled) -> None:
    metrics.counts(names.RELEASED)[result.queue, "no"] += 1


def _count_change(metrics: Metrics, call: ManualChange, result: Sequence[Any]) -> None:
    """Count manual changes, each for the queue that the item is in afterwards."""
    for settled, target in zip(result, call.targets, strict=True):
        if not isinstance(settled, Settled):
            continue
        queue, verb = settled.queue, call.verb
        if verb in REVIVING_VERBS:
            metrics.counts(names.REDRIVEN)[(queue,)] += 1
        elif verb in _GONE:
            metrics.counts(names.DISCARDED)[queue, verb.value] += 1
        elif verb is Verb.DONE:
            metrics.counts(names.COMPLETED)[(queue,)] += 1
        elif verb is Verb.FAIL:
            _count_ending(metrics, queue, OutcomeKind.FAILED, settled, target.failure)
        elif verb is Verb.BURY:
            _count_ending(metrics, queue, OutcomeKind.BURIED, settled, None)


_COUNTS: dict[type[Any], Callable[[Metrics, Any, Any], None]] = {
    Put: _count_put,
    LeaseItems: _count_leases,
    LeaseByIds: _count_leases_by_id,
    Complete: _count_complete,
    ReturnLease: _count_return,
    ManualChange: _count_change,
    Register: _count_registration,
}
"""The counting function of each kind of call that was not refused. Settles are counted by their caller, which knows the
queue."""


class QueueStatsReader:
    """The reader of the statistics of queues, at most once per READ_EVERY."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._samples: tuple[Sample, ...] = ()
        self._read_at: Instant | None = None

    def read(self) -> Iterable[Sample]:
        """Return depth, age and breakers of every queue."""
        with self._lock:
            now = self._core.clock.now()
            if self._read_at is None or not 0 <= now - self._read_at < READ_EVERY:
                self._samples = tuple(self._read())
                self._read_at = now
            return self._samples

    def _read(self) -> Iterable[Sample]:
        queues: Sequence[Queue] = self._core.read(ListQueues())[:MAX_QUEUES]
        stats: tuple[QueueStats, ...] = self._core.read(ListStats(tuple(queue.name for queue in queues)))
        for each in stats:
            yield from _samples(each)
        for queue in queues:
            yield from _breaker_samples(queue)


def _samples(stats: QueueStats) -> Iterable[Sample]:
    for status in _STATUSES:
        yield Sample(names.QUEUE_ITEMS, (stats.queue, status), getattr(stats, status))
    yield Sample(names.QUEUE_DEAD_LETTERS, (stats.queue,), stats.dead_letters)
    yield Sample(names.QUEUE_OLDEST, (stats.queue,), stats.oldest_age / SECOND)
    for event, total in _TOTALS.items():
        yield Sample(names.QUEUE_EVENTS, (stats.queue, event), getattr(stats, total))


def _breaker_samples(queue: Queue) -> Iterable[Sample]:
    """Return the number of breakers of each rule that are not closed: 0 for a rule whose breaker is closed."""
    counts = Counter(dict.fromkeys(queue.settings.breakers, 0))
    counts.update(rule_key(breaker.kind) for breaker in queue.breakers)
    for key, count in counts.items():
        yield Sample(names.BREAKERS, (queue.name, key), count)


def collect_metrics(core: Core) -> BrokerMetrics:
    """Return the counters of a broker, with the statistics that can be read of it."""
    metrics = Metrics({"namespace": core.store.namespace, "store": core.store.name})
    metrics.watch(QueueStatsReader(core).read)
    metrics.watch(
        lambda: (
            Sample(names.WAITING_CALLS, (), core.committer.waiting_calls),
            Sample(names.WAKEUPS, (), core.notify.wakeups),
        )
    )
    return BrokerMetrics(metrics)

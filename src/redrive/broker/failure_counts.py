"""Failures of each queue within the last hour, as one process has read them in the feed, and ended deliveries.

Breakers are judged by these. They are not stored: the next process reads them again from the feed.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from redrive.clock import Instant
from redrive.contract import Call
from redrive.contract.item_calls import Settle
from redrive.model.breaker import (
    FINGERPRINT,
    LONGEST_WINDOW,
    MAX_COUNTED_FAILURES,
    MAX_FINGERPRINT_BREAKERS,
    QUEUE,
    BreakerRule,
    entry_kinds,
    failure_kinds,
    rule_key,
)
from redrive.model.death import DeadReason
from redrive.model.feed import FeedEntry, FeedKind
from redrive.model.item import Settled
from redrive.model.queue import Queue, QueueStats

COUNTED_KINDS = (FeedKind.FAILED, FeedKind.DEAD)
"""Kinds of feed entries that may be failures."""
_DIED_OF_FAILURE = (DeadReason.FINAL_ERROR, DeadReason.RETRIES_EXHAUSTED, DeadReason.MAX_ATTEMPTS)


class FailureCounts:
    """The counts of one process."""

    def __init__(self) -> None:
        self.position: int | None = None
        """The number of the last feed entry that was read; None before the first read."""
        self._failures: defaultdict[str, deque[tuple[Instant, str, str]]] = defaultdict(
            lambda: deque(maxlen=MAX_COUNTED_FAILURES)
        )
        self._completed: defaultdict[str, deque[tuple[Instant, int]]] = defaultdict(deque)
        self._counts_from: dict[tuple[str, str], Instant] = {}
        """The instant after which failures of a queue and a kind count: earlier ones are of a breaker that closed."""
        self.left: dict[str, dict[str, int]] = {}
        """The failures that are left until a breaker may open, by queue and kind; by its key for a kind without any."""

    def add(self, entry: FeedEntry) -> None:
        """Count an entry of the feed."""
        if entry.kind is FeedKind.BREAKER_CLOSED and entry.breaker is not None:
            self.restart(entry.queue, entry.breaker, entry.at)
        elif entry.error_class is None or entry.kind not in COUNTED_KINDS:
            return
        elif entry.kind is FeedKind.FAILED or entry.reason in _DIED_OF_FAILURE:
            self._failures[entry.queue].append((entry.at, *entry_kinds(entry)))

    def add_stats(self, stats: QueueStats) -> None:
        """Record how many items a queue has completed until now."""
        samples = self._completed[stats.queue]
        samples.append((stats.at, stats.completed_total))
        while samples[0][0] < stats.at - LONGEST_WINDOW:
            samples.popleft()

    def forget(self, queues: Collection[str], now: Instant) -> None:
        """Keep only data of these queues, and no start that is older than the longest window."""
        for by_queue in (self._failures, self._completed):
            for queue in by_queue.keys() - queues:
                del by_queue[queue]
        self.left = {queue: left for queue, left in self.left.items() if queue in queues}
        self._counts_from = {
            (queue, kind): at
            for (queue, kind), at in self._counts_from.items()
            if queue in queues and at > now - LONGEST_WINDOW
        }

    def restart(self, queue: str, kind: str, at: Instant) -> None:
        """Count only failures of a kind after this instant: until then its breaker was not closed."""
        self._counts_from[queue, kind] = max(at, self._counts_from.get((queue, kind), at))

    def openings(self, queue: Queue, now: Instant) -> Iterator[tuple[str, str]]:
        """Yield the kinds of breakers of a queue that open now, with the reason of each."""
        present = {breaker.kind for breaker in queue.breakers}
        for kind in present:
            self.restart(queue.name, kind, now)
        left = self.left[queue.name] = {}
        room = MAX_FINGERPRINT_BREAKERS - sum(rule_key(kind) == FINGERPRINT for kind in present)
        for key, rule in queue.settings.breakers.items():
            counts, ended = self._count(queue.name, key, rule, now)
            limit = left[key] = rule.failures_to_open(ended)
            left.update((kind, limit - failures) for kind, failures in counts.items())
            for kind, failures in counts.most_common(room if key == FINGERPRINT else None):
                reason = rule.opening_reason(failures, ended)
                if reason is not None and kind not in present:
                    yield kind, reason

    def has_tripped(self, calls: Sequence[Call], results: Sequence[Any]) -> bool:
        """Count the failures among deliveries that have just been settled; return whether a breaker may open now."""
        tripped = False
        for call, result in zip(calls, results, strict=True):
            if call.__class__ is Settle and call.failure is not None and result.__class__ is Settled:
                kinds = (QUEUE, *failure_kinds(call.failure))
                for queue in (result.queue,) if result.source_id is None else tuple(self.left):  # it may have moved
                    left = self.left.get(queue, {})
                    for kind in kinds:
                        if (most := left.get(kind, left.get(rule_key(kind)))) is not None:
                            left[kind] = most - 1
                            tripped = tripped or most <= 1
        return tripped

    def _count(self, queue: str, key: str, rule: BreakerRule, now: Instant) -> tuple[Counter[str], int]:
        """Return the failures within the window by the kinds of a rule, and the number of ended deliveries."""
        since = Instant(now - rule.window)
        counts: Counter[str] = Counter()
        failed = 0
        for at, error_class, fingerprint in reversed(self._failures[queue]):
            if at <= since:
                break
            failed += 1
            kind = {QUEUE: QUEUE, FINGERPRINT: fingerprint}.get(key, error_class)
            if key in (QUEUE, FINGERPRINT, error_class) and at > self._counts_from.get((queue, kind), since):
                counts[kind] += 1
        return counts, failed + self._completed_since(queue, since)

    def _completed_since(self, queue: str, since: Instant) -> int:
        samples = self._completed[queue]
        before = next((total for at, total in samples if at >= since), 0)
        return samples[-1][1] - before if samples else 0

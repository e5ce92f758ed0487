"""A queue, its settings in the form of the store, each with its default, and its counts."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, Literal

import msgspec

from redrive.clock import Instant
from redrive.model.breaker import Breaker, BreakerRule
from redrive.model.classify import ErrorRule
from redrive.model.duration import DAY, MINUTE, SECOND, Duration, format_duration
from redrive.model.failure import Failure
from redrive.model.feed import DEFAULT_FEED_KINDS, FeedKind
from redrive.model.gate import Gates
from redrive.model.limits import MAX_PAYLOAD_BYTES
from redrive.model.redact_rules import NO_RULES, RedactRules
from redrive.model.retry_policy import RetryPolicy
from redrive.model.text import format_counts

DEFAULT_ATTEMPTS = 5
WITH_ITEM: Final = "item"
"""The idempotency_timeout of keys that expire with their items."""
_DEFAULT_ROUTE = "default"


class OnDead(StrEnum):
    """The action for an item that dies and has no dead queue."""

    KEEP = "keep"
    """The item stays, with status dead."""
    DROP = "drop"
    """The item is removed, with a warning in the log and an audit row."""


class RetryAfter(StrEnum):
    """The reaction to a failure with a time to wait (`Failure.retry_after`)."""

    IGNORE = "ignore"
    """The time is ignored."""
    DELAY = "delay"
    """The item waits at least for this time before its next attempt."""
    GATE = "gate"
    """The whole queue waits for this time."""


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The settings of a queue in stored form: durations are microseconds. `QueueOptions` describes each one."""

    lease_timeout: Duration = MINUTE
    max_attempts: int | None = None
    max_losses: int = DEFAULT_ATTEMPTS
    retry: RetryPolicy = RetryPolicy()
    retry_after: RetryAfter | None = None
    final_errors: tuple[str, ...] = ()
    error_rules: tuple[ErrorRule, ...] = ()
    dead_queue: str | dict[str, str] | None = None
    on_dead: OnDead = OnDead.KEEP
    expire_timeout: Duration | None = None
    idempotency_timeout: Duration | Literal["item"] = DAY
    max_size: int | None = None
    max_payload_size: int = MAX_PAYLOAD_BYTES
    keep_completed: Duration = 0
    keep_dead: Duration | None = None
    archive_after: Duration | None = None
    keep_archived: Duration | None = None
    keep_dropped: Duration = 7 * DAY
    search: bool = True
    feed: tuple[FeedKind, ...] = DEFAULT_FEED_KINDS
    breakers: dict[str, BreakerRule] = {}
    redact: RedactRules = NO_RULES

    @property
    def attempts_limit(self) -> int:
        """`max_attempts` with its default; 0 = unlimited."""
        return max(DEFAULT_ATTEMPTS, self.retry.attempts) if self.max_attempts is None else self.max_attempts

    @property
    def retry_after_mode(self) -> RetryAfter:
        """`retry_after` with its default."""
        if self.retry_after is not None:
            return self.retry_after
        return RetryAfter.DELAY if self.retry.depends_on_error else RetryAfter.IGNORE

    def dead_queues(self) -> Iterator[str]:
        """Yield every queue that dead items of this one may move to."""
        if isinstance(self.dead_queue, str):
            yield self.dead_queue
        elif self.dead_queue:
            yield from dict.fromkeys(self.dead_queue.values())

    def dead_queue_for(self, failure: Failure | None) -> str | None:
        """Return the dead queue for an item that dies of this failure: by type, then by class, then the default."""
        if not isinstance(self.dead_queue, dict):
            return self.dead_queue
        keys = (*failure.type_names, failure.error_class) if failure else ()
        return next(
            (self.dead_queue[key] for key in keys if key in self.dead_queue), self.dead_queue.get(_DEFAULT_ROUTE)
        )


class Queue(msgspec.Struct, frozen=True):
    """The current state of a queue."""

    name: str
    settings: QueueSettings
    version: int
    """A number that grows with each change of settings or breakers; never reused, even by a new queue of that name."""
    paused: bool
    created_at: Instant
    is_dead_queue: bool
    """True if it is, or once was, the dead queue of another."""
    source_queues: tuple[str, ...] = ()
    """Queues of other stores that name it as their dead queue, as `name@store`."""
    gates: Gates = ()
    """The limits on its leases, each from an instant on. Independent of `paused`."""
    breakers: tuple[Breaker, ...] = ()
    """Its circuit breakers that are not closed."""


class QueueStats(msgspec.Struct, frozen=True):
    """The number of items of a queue in each status, and its totals."""

    queue: str
    pending: int
    failed: int
    active: int
    completed: int
    dead: int
    archived: int
    dead_letters: int
    """Dead items, and items in this queue that died in another."""
    oldest_ready_at: Instant | None
    """The instant since which the longest-waiting ready item has been ready."""
    put_total: int
    completed_total: int
    failed_total: int
    dead_total: int
    at: Instant
    """The instant of reading. The totals of two readings give rates."""
    moving: int = 0
    """Items that are moving to a queue in another store. Those that died are dead letters here until they arrive."""
    redriven_total: int = 0
    """Retries and redrives by an operator, counted in the queue of the item at that time. An undo subtracts nothing."""
    archived_total: int = 0
    """The number of times that an item was archived, by an operator or by `archive_after`."""
    exhausted_total: int = 0
    """Deaths with the reason retries_exhausted or max_attempts: a part of dead_total."""
    captured_total: int = 0
    """Failures that were put (`put_failed`), as a new item or under a known key: a part of failed_total."""

    def __str__(self) -> str:
        moving = ["moving"] if self.moving else []
        names = ["pending", "failed", "active", "dead_letters", *moving, "archived", "completed_total"]
        counts = {name: getattr(self, name) for name in names}
        age = format_duration(self.oldest_age // SECOND * SECOND)
        waits = "" if self.oldest_ready_at is None else f"; the oldest has waited for {age}"
        return f"{self.queue}: {format_counts(counts)}{waits}"

    @property
    def oldest_age(self) -> Duration:
        """The waiting time of the oldest ready item, in microseconds; 0 if no item is ready."""
        return 0 if self.oldest_ready_at is None else max(0, self.at - self.oldest_ready_at)

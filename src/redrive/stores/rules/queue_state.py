"""The queue of the rules: its settings, indexes and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import MutableMapping
from typing import NamedTuple

import msgspec

from redrive.clock import Instant
from redrive.errors import QueueFull
from redrive.model.ids import ItemId
from redrive.model.item import OPEN_STATUSES, Status
from redrive.model.queue import Queue, QueueStats
from redrive.stores.rules.indexes import Index


class IdempotencyEntry(NamedTuple):
    """The entry of an idempotency key."""

    id: ItemId
    digest: bytes
    until: Instant
    """0: it ends with its item."""

    @property
    def ends_with_item(self) -> bool:
        """True if it is known while its item exists and is not completed, rather than until an instant."""
        return self.until == 0


class SourceEntry(NamedTuple):
    """The item that came with a source_id. Known while that item is in the queue, and until this instant."""

    id: ItemId
    until: Instant = Instant(0)


class QueueState:
    """One queue."""

    def __init__(self, value: Queue) -> None:
        self.value = value
        self.counts: Counter[Status] = Counter()
        self.dead_letters = 0
        self.put_total = 0
        self.completed_total = 0
        self.failed_total = 0
        self.dead_total = 0
        self.redriven_total = 0
        self.archived_total = 0
        self.exhausted_total = 0
        self.captured_total = 0
        self.ready: Index[ItemId] = Index()
        """Pending, not held, due: by priority, then ready_at, then seq."""
        self.waiting: Index[ItemId] = Index()
        """Pending or failed, not held, not yet promoted: by ready_at."""
        self.expiring: Index[ItemId] = Index()
        """Pending or failed: by expire_deadline."""
        self.leases: Index[ItemId] = Index()
        """Active: by the deadline of the lease."""
        self.completed: Index[ItemId] = Index()
        """Completed: by time of completion."""
        self.dead: Index[ItemId] = Index()
        """Dead letters that are not leased: by the last death."""
        self.archived: Index[ItemId] = Index()
        """Archived and not dropped: by the last death or the completion, else by the archiving."""
        self.dropped: Index[ItemId] = Index()
        """Dropped: by time of the drop."""
        self.keys: MutableMapping[str, IdempotencyEntry] = {}
        self.keys_until: Index[str] = Index()
        self.sources: MutableMapping[ItemId, SourceEntry] = {}
        self.sources_until: Index[ItemId] = Index()

    def indexes_of(self, status: Status) -> tuple[Index[ItemId], ...]:
        """Return the indexes that may have an item of that status."""
        match status:
            case Status.PENDING | Status.FAILED:
                return (self.ready, self.waiting, self.expiring, self.dead)
            case Status.ACTIVE:
                return (self.leases,)
            case Status.COMPLETED:
                return (self.completed,)
            case Status.DEAD | Status.MOVING:
                return (self.dead,)
            case Status.ARCHIVED:
                return (self.archived, self.dropped)

    @property
    def name(self) -> str:
        """The name."""
        return self.value.name

    @property
    def size(self) -> int:
        """The number of items that max_size limits."""
        return sum(self.counts[status] for status in OPEN_STATUSES)

    def check_room(self) -> None:
        """Raise if there is no room for one more."""
        max_size = self.value.settings.max_size
        if max_size is not None and self.size >= max_size:
            raise QueueFull(self.name, self.size, max_size)

    @property
    def next_at(self) -> Instant | None:
        """The next instant at which an item may become leasable: one is due, or a lease expires."""
        instants = (self.waiting.first_at(), self.leases.first_at())
        return min((at for at in instants if at is not None), default=None)

    def count_ready(self) -> int:
        """Return the number of ready items."""
        return len(self.ready)

    def mark_dead_queue(self) -> None:
        """Mark the queue as one that receives dead items of others. The mark is permanent."""
        if not self.value.is_dead_queue:
            self.value = msgspec.structs.replace(self.value, is_dead_queue=True)

    def overdue(self, now: Instant) -> bool:
        """Return whether leases or items have expired."""
        return any(at is not None and at <= now for at in (self.leases.first_at(), self.expiring.first_at()))

    def leasable(self, now: Instant) -> bool:
        """Return whether an item is ready or due."""
        due = self.waiting.first_at()
        return len(self.ready) > 0 or (due is not None and due <= now)

    def oldest_ready_at(self, at: Instant) -> Instant | None:
        """Return the earliest ready_at of the ready items. Examines all of them."""
        due = self.waiting.first_at()
        ready = [Instant(key[1]) for key in self.ready.all_keys()]
        return min([*ready, due] if due is not None and due <= at else ready, default=None)

    def stats(self, at: Instant) -> QueueStats:
        """Return the counts, and the ready time of the oldest ready item."""
        return self.stats_with(self.oldest_ready_at(at), at)

    def stats_with(self, oldest_ready_at: Instant | None, at: Instant) -> QueueStats:
        """Return the same for a known ready time."""
        return QueueStats(
            queue=self.name,
            pending=self.counts[Status.PENDING],
            failed=self.counts[Status.FAILED],
            active=self.counts[Status.ACTIVE],
            completed=self.counts[Status.COMPLETED],
            dead=self.counts[Status.DEAD],
            archived=self.counts[Status.ARCHIVED],
            dead_letters=self.dead_letters,
            oldest_ready_at=oldest_ready_at,
            put_total=self.put_total,
            completed_total=self.completed_total,
            failed_total=self.failed_total,
            dead_total=self.dead_total,
            at=at,
            moving=self.counts[Status.MOVING],
            redriven_total=self.redriven_total,
            archived_total=self.archived_total,
            exhausted_total=self.exhausted_total,
            captured_total=self.captured_total,
        )

"""A queue as the rules see it: its settings, its indexes and its counts."""

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
    """What an idempotency key stands for."""

    id: ItemId
    digest: bytes
    until: Instant
    """0: it ends with its item."""

    @property
    def ends_with_item(self) -> bool:
        """Whether it is known while its item exists and is not completed, and not until an instant."""
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
        """Pending or failed, not held, not yet brought in: by ready_at."""
        self.expiring: Index[ItemId] = Index()
        """Pending or failed: by expire_deadline."""
        self.leases: Index[ItemId] = Index()
        """Active: by the deadline of the lease."""
        self.completed: Index[ItemId] = Index()
        """Completed: by when."""
        self.dead: Index[ItemId] = Index()
        """Dead letters that nobody works on: by the last death."""
        self.archived: Index[ItemId] = Index()
        """Archived and not dropped: by the last death or the completion, else by the archiving."""
        self.dropped: Index[ItemId] = Index()
        """Dropped: by when."""
        self.keys: MutableMapping[str, IdempotencyEntry] = {}
        self.keys_until: Index[str] = Index()
        self.sources: MutableMapping[ItemId, SourceEntry] = {}
        self.sources_until: Index[ItemId] = Index()

    def indexes_of(self, status: Status) -> tuple[Index[ItemId], ...]:
        """Where an item of that status may be."""
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
        """Its name."""
        return self.value.name

    @property
    def size(self) -> int:
        """What max_size counts."""
        return sum(self.counts[status] for status in OPEN_STATUSES)

    def check_room(self) -> None:
        """Raise where there is no room for one more."""
        max_size = self.value.settings.max_size
        if max_size is not None and self.size >= max_size:
            raise QueueFull(self.name, self.size, max_size)

    @property
    def next_at(self) -> Instant | None:
        """When an item may next become leasable: one falls due, or a lease runs out."""
        instants = (self.waiting.first_at(), self.leases.first_at())
        return min((at for at in instants if at is not None), default=None)

    def count_ready(self) -> int:
        """How many items are ready."""
        return len(self.ready)

    def mark_dead_queue(self) -> None:
        """It receives the dead of another queue: now, and for ever."""
        if not self.value.is_dead_queue:
            self.value = msgspec.structs.replace(self.value, is_dead_queue=True)

    def overdue(self, now: Instant) -> bool:
        """Whether leases ran out or items expired."""
        return any(at is not None and at <= now for at in (self.leases.first_at(), self.expiring.first_at()))

    def leasable(self, now: Instant) -> bool:
        """Whether something is ready, or has fallen due."""
        due = self.waiting.first_at()
        return len(self.ready) > 0 or (due is not None and due <= now)

    def oldest_ready_at(self, at: Instant) -> Instant | None:
        """Since when the longest-waiting ready item is ready. It is looked for among all that are."""
        due = self.waiting.first_at()
        ready = [Instant(key[1]) for key in self.ready.all_keys()]
        return min([*ready, due] if due is not None and due <= at else ready, default=None)

    def stats(self, at: Instant) -> QueueStats:
        """The counts, and since when the oldest ready item waits."""
        return self.stats_with(self.oldest_ready_at(at), at)

    def stats_with(self, oldest_ready_at: Instant | None, at: Instant) -> QueueStats:
        """The same, where that is known."""
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

"""The feed: the events of a store, in order."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from redrive.clock import Instant
from redrive.model.classify import ErrorClass
from redrive.model.death import DeadReason
from redrive.model.ids import ItemId
from redrive.model.item import Status
from redrive.model.text import format_instant


class FeedKind(StrEnum):
    """The kind of an entry of the feed. The setting `feed` of a queue selects the kinds that are kept."""

    PUT = "put"
    LEASED = "leased"
    COMPLETED = "completed"
    FAILED = "failed"
    """An attempt failed and is retried; or the item was leased although it is dead, and stays dead."""
    LOST = "lost"
    """A lease expired."""
    RELEASED = "released"
    """A worker released it; the attempt counts."""
    RETURNED = "returned"
    """A worker returned it with an error text; the attempt does not count."""
    DEAD = "dead"
    """It died: it stays, is in a dead queue under a new id, or was removed."""
    REDRIVEN = "redriven"
    """An operator redrove or retried it."""
    UNDONE = "undone"
    """An operator undid a redrive."""
    MOVED = "moved"
    """An operator moved it to another queue."""
    ARCHIVED = "archived"
    RESTORED = "restored"
    DONE = "done"
    """An operator marked it as completed; or a dead letter was leased and completed."""
    DROPPED = "dropped"
    """An operator dropped it: it is in the archive, and can be restored."""
    REMOVED = "removed"
    """An operator or a rule removed it permanently."""
    IMPORTED = "imported"
    ARRIVED = "arrived"
    """It was moved from another store, whose feed has the reason."""
    BREAKER_OPENED = "breaker_opened"
    """A breaker of the queue opened. The entry has no item."""
    BREAKER_CLOSED = "breaker_closed"
    """A breaker of the queue closed. The entry has no item."""


SUCCESS_KINDS = frozenset({FeedKind.PUT, FeedKind.LEASED, FeedKind.COMPLETED})
"""The kinds of success, which are kept only in queues that enable them."""
DEFAULT_FEED_KINDS = tuple(kind for kind in FeedKind if kind not in SUCCESS_KINDS)


class FeedEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event of an item or of a queue."""

    number: int
    """A number that grows with every entry of the store, with gaps in one feed. Continue from the last one read."""
    at: Instant
    kind: FeedKind
    queue: str
    """The queue of the event. For a death and a move, the queue that the item left."""
    id: ItemId | None = None
    """The item's id after the event. None: the event concerns the queue, and no item."""
    source_id: ItemId | None = None
    """The id before the event, if the item moved."""
    title: str | None = None
    """The error in one line, the cause of death, or the reason why a breaker opened or closed."""
    reason: DeadReason | None = None
    """The reason of the death."""
    actor: str | None = None
    """The operator, or the rule, that caused the event."""
    operation: str | None = None
    """The operation that the event was part of."""
    from_status: Status | None = None
    """The status before the event, if the item was dropped or removed."""
    error_class: ErrorClass | None = None
    """The class of the failure that the entry reports; None if it reports none."""
    fingerprint: str | None = None
    """The fingerprint of that failure."""
    breaker: str | None = None
    """The kind of the breaker that opened or closed: `queue`, an error class, or `fingerprint:` and a fingerprint."""

    def __str__(self) -> str:
        which = "" if self.breaker is None else f" for {self.breaker}"
        who = "" if self.actor is None else f" by {self.actor}"
        item = "" if self.id is None else f", item {self.id}"
        title = "" if self.title is None else f": {self.title}"
        return f"{format_instant(self.at)} {self.kind} in {self.queue}{which}{who}{item}{title}"

"""The feed: what happened, in order."""

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
    """What an entry of the feed tells. A queue's setting `feed` says which are kept."""

    PUT = "put"
    LEASED = "leased"
    COMPLETED = "completed"
    FAILED = "failed"
    """An attempt failed, and another one is to come; or the item was leased although it is dead, and stays dead."""
    LOST = "lost"
    """A lease ran out."""
    RELEASED = "released"
    """A worker gave it back, counted."""
    RETURNED = "returned"
    """A worker gave it back, not counted, with an error text."""
    DEAD = "dead"
    """It died: it stays, lies in a dead queue under a new id, or was dropped."""
    REDRIVEN = "redriven"
    """A person brought it back to work."""
    UNDONE = "undone"
    """A redrive was taken back."""
    MOVED = "moved"
    """A person moved it to another queue."""
    ARCHIVED = "archived"
    RESTORED = "restored"
    DONE = "done"
    """A person took it as completed; or a dead letter was leased and completed."""
    DROPPED = "dropped"
    """A person dropped it: it is in the archive, and can be restored."""
    REMOVED = "removed"
    """A person or a rule removed it for good."""
    IMPORTED = "imported"
    ARRIVED = "arrived"
    """It came from another store, which told why."""
    BREAKER_OPENED = "breaker_opened"
    """A breaker of the queue opened. The entry is of no item."""
    BREAKER_CLOSED = "breaker_closed"
    """A breaker of the queue closed. The entry is of no item."""


SUCCESS_KINDS = frozenset({FeedKind.PUT, FeedKind.LEASED, FeedKind.COMPLETED})
"""What goes well: kept only where a queue asks for it."""
DEFAULT_FEED_KINDS = tuple(kind for kind in FeedKind if kind not in SUCCESS_KINDS)


class FeedEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened to one item, or to a queue."""

    number: int
    """Grows with every entry of the store; numbers of a feed have gaps. Go on from the last one you saw."""
    at: Instant
    kind: FeedKind
    queue: str
    """Where it happened. For a death and a move, the queue that the item left."""
    id: ItemId | None = None
    """The item's id after it happened. None: it concerns the queue, and no item."""
    source_id: ItemId | None = None
    """The id before, where the item moved."""
    title: str | None = None
    """The error in one line, what it died of, or why a breaker opened or closed."""
    reason: DeadReason | None = None
    """Why it died."""
    actor: str | None = None
    """The person, or the rule, that did it."""
    operation: str | None = None
    """The operation it was part of."""
    from_status: Status | None = None
    """What it was, where it was dropped or removed."""
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

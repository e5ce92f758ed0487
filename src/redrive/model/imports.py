"""How an item that lived elsewhere stands where it is imported."""

from __future__ import annotations

import msgspec

from redrive.clock import Instant
from redrive.errors import InvalidInput
from redrive.model.by_hand import is_ending_of
from redrive.model.item import WORK, Event, HistoryEntry, Item, Status
from redrive.model.limits import HISTORY_FIRST, HISTORY_LAST
from redrive.model.queue import Queue


class Landing(msgspec.Struct, frozen=True):
    """What an imported item is here."""

    status: Status
    is_dead_letter: bool
    ready_at: Instant
    """Kept where it waits; else the instant of the import."""
    first: tuple[HistoryEntry, ...]
    last: tuple[HistoryEntry, ...]
    """What is kept of its history, oldest first."""
    omitted: int
    """How many entries between those are only counted."""
    expire_deadline: Instant | None
    held_by: str | None
    needs_room: bool
    """Whether it is refused where max_size is reached."""
    expire_timeout: int | None = None
    """The one it was put with; None takes that of whatever queue it is in."""
    home: str | None = None
    """The store that it came from as a dead letter, and that a redrive takes it back to."""


def land(item: Item, queue: Queue, now: Instant) -> Landing:
    """What an item becomes in a queue. What was archived was dead. Raises InvalidInput for a death without a record."""
    if not item.deaths and any(entry.from_dead_letter for entry in item.history):
        raise InvalidInput(f"item {item.id} was a dead letter and has no record of its death; import its deaths too")
    status = _status(item)
    if status in (Status.DEAD, Status.ARCHIVED):
        if not item.deaths:
            raise InvalidInput(f"item {item.id} is {item.status} and has no record of its death; import it as pending")
        is_dead_letter = status is Status.DEAD
    else:
        waits = bool(item.deaths) and item.status is not Status.COMPLETED and not _was_brought_back(item)
        is_dead_letter = waits and queue.is_dead_queue
    ready_at = item.ready_at if item.status in WORK else None
    first, rest = item.history[:HISTORY_FIRST], item.history[HISTORY_FIRST:]
    last = rest[-HISTORY_LAST:]
    omitted = item.history_omitted + len(rest) - len(last)
    return Landing(
        status=status,
        is_dead_letter=is_dead_letter,
        ready_at=now if ready_at is None else ready_at,
        first=first,
        last=last,
        omitted=omitted,
        expire_deadline=item.expire_deadline,
        held_by=None if status is Status.DEAD else item.held_by,
        needs_room=status in WORK,
    )


def _status(item: Item) -> Status:
    """What it is without a lease. One that was on its way to a dead queue elsewhere is dead."""
    if item.status is Status.MOVING:
        return Status.DEAD if item.deaths and not _was_brought_back(item) else Status.PENDING
    return item.status if item.status in (Status.FAILED, Status.DEAD, Status.ARCHIVED) else Status.PENDING


def _was_brought_back(item: Item) -> bool:
    """Whether a person brought it back to work after its last death."""
    brought_back = False
    for entry in item.history:
        if entry.event is Event.REDRIVEN:
            brought_back = brought_back or entry.from_dead_letter
        elif entry.event is Event.UNDONE or is_ending_of(item.deaths[-1], entry):
            brought_back = False
    return brought_back

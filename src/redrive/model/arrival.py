"""The state of an item that is imported or moved from another store.

Two stores share no transaction, so a move takes four: the item becomes *moving* in its store; the other store receives
it and records its source; the first store removes it; the other store closes its record. Each one is idempotent.
"""

from __future__ import annotations

import msgspec

from redrive.clock import Instant
from redrive.errors import InvalidInput
from redrive.model.feed import FeedKind
from redrive.model.holder import Holders, make_holders
from redrive.model.ids import ItemId
from redrive.model.item import WAITING_STATUSES, HistoryEntry, HistoryEvent, Item, Status
from redrive.model.limits import HISTORY_FIRST, HISTORY_LAST
from redrive.model.manual_change import ItemSnapshot, is_outcome_of_death, stays_dead_letter
from redrive.model.queue import Queue
from redrive.model.state_machine import Verb


class ArrivalState(msgspec.Struct, frozen=True):
    """The state of an item in the store that receives it."""

    status: Status
    is_dead_letter: bool
    ready_at: Instant
    """Unchanged for a pending or failed item; else the instant of the import."""
    first: tuple[HistoryEntry, ...]
    last: tuple[HistoryEntry, ...]
    """The newest entries of its history that are kept, oldest first."""
    omitted: int
    """The number of entries between `first` and `last`, which are only counted."""
    expire_deadline: Instant | None
    holders: Holders
    needs_room: bool
    """True if the item is refused when max_size is reached."""
    expire_timeout: int | None = None
    """The timeout that it was put with; None: that of the queue it is in."""
    home_store: str | None = None
    """The store that it came from as a dead letter, and to which a redrive returns it."""
    archived_from: Status | None = None
    """Its status after a restore (archived)."""
    is_dropped: bool = False
    """True if it was dropped, according to its history."""


def import_state(item: Item, queue: Queue, now: Instant) -> ArrivalState:
    """Return the state of an imported item in a queue. Raise InvalidInput for a death without a record."""
    if not item.deaths and any(entry.from_dead_letter for entry in item.history):
        raise InvalidInput(f"item {item.id} was a dead letter and has no record of its death; import its deaths too")
    status = _status(item)
    archived_from = _archived_from(item) if status is Status.ARCHIVED else None
    if Status.DEAD in (status, archived_from) and not item.deaths:
        raise InvalidInput(f"item {item.id} is {item.status} and has no record of its death; import it as pending")
    if status in (Status.DEAD, Status.ARCHIVED):
        is_dead_letter = status is Status.DEAD
    else:
        waits = bool(item.deaths) and item.status is not Status.COMPLETED and not _was_brought_back(item)
        is_dead_letter = waits and queue.is_dead_queue
    ready_at = item.ready_at if item.status in WAITING_STATUSES else None
    first, rest = item.history[:HISTORY_FIRST], item.history[HISTORY_FIRST:]
    last = rest[-HISTORY_LAST:]
    omitted = item.history_omitted + len(rest) - len(last)
    return ArrivalState(
        status=status,
        is_dead_letter=is_dead_letter,
        ready_at=now if ready_at is None else ready_at,
        first=first,
        last=last,
        omitted=omitted,
        expire_deadline=item.expire_deadline,
        holders=() if status is Status.DEAD else _passing_holders(item),
        needs_room=status in WAITING_STATUSES,
        archived_from=archived_from,
        is_dropped=item.dropped is not None,
    )


def _status(item: Item) -> Status:
    """Return its status without a lease. An item that was moving to a dead queue in another store is dead."""
    if item.status is Status.MOVING:
        return Status.DEAD if item.deaths and not _was_brought_back(item) else Status.PENDING
    if item.status is Status.ACTIVE and item.dead_reason is not None:  # leased although it is dead
        return Status.DEAD
    return item.status if item.status in (Status.FAILED, Status.DEAD, Status.ARCHIVED) else Status.PENDING


def _passing_holders(item: Item) -> Holders:
    """Return the holders that it keeps: those that are not lasting. A lasting one is valid in one store only."""
    return make_holders(name for name in item.held_by if name not in item.lasting_holders)


def _archived_from(item: Item) -> Status:
    """Return the status after a restore: dead for a dead letter, else failed or pending, even if it was completed.

    Only items that were dropped, or were no dead letters, have an archiving entry. Later entries may be added failures.
    """
    entries = [entry for entry in item.history if not _is_added_failure(item, entry)]
    last = entries[-1] if entries else None
    if last is None or last.event not in (HistoryEvent.ARCHIVED, HistoryEvent.DROPPED):
        is_work = not item.deaths and item.history_omitted > 0  # the entry of its archiving is only counted
        return Status.PENDING if is_work else Status.DEAD
    was_letter = bool(item.deaths) and last.from_status is not Status.COMPLETED and not _was_brought_back(item)
    if last.from_status is Status.DEAD or (last.event is HistoryEvent.DROPPED and was_letter):
        return Status.DEAD
    return Status.FAILED if last.from_status is Status.FAILED else Status.PENDING


def _is_added_failure(item: Item, entry: HistoryEntry) -> bool:
    """Return whether an entry is a failure that changed nothing, such as one put again under a known key."""
    return entry.event is HistoryEvent.FAILED and not (item.deaths and is_outcome_of_death(item.deaths[-1], entry))


def _was_brought_back(item: Item) -> bool:
    """Return whether it was redriven after its last death, and the redrive was not undone."""
    brought_back = False
    for entry in item.history:
        if entry.event is HistoryEvent.REDRIVEN:
            brought_back = brought_back or entry.from_dead_letter
        elif entry.event is HistoryEvent.UNDONE or is_outcome_of_death(item.deaths[-1], entry):
            brought_back = False
    return brought_back


class MoveRoute(msgspec.Struct, frozen=True):
    """The additional state of an item that is moving."""

    to: str
    """The target queue: `name@store`."""
    since: Instant
    kind: FeedKind
    """The reason of the move: DEAD, REDRIVEN or MOVED."""
    status: Status
    """Its status on arrival."""


class Move(msgspec.Struct, frozen=True):
    """An item in transit, with all the data that the other store needs."""

    item: Item
    route: MoveRoute
    is_dead_letter: bool
    ready_at: Instant
    """The instant from which it could be leased without the move."""
    expire_timeout: int | None = None
    """The timeout that it was put with."""


_ARRIVES_AS = {
    FeedKind.DEAD: (Status.PENDING,),
    FeedKind.REDRIVEN: (Status.PENDING,),
    FeedKind.MOVED: (Status.DEAD, *WAITING_STATUSES),
}


def check_move(move: Move) -> None:
    """Raise InvalidInput unless a store can produce this move; for moves that another process reports."""
    item, route = move.item, move.route
    if item.status is not Status.MOVING:
        raise InvalidInput(f"item {item.id} is {item.status} and not moving")
    if route.status not in _ARRIVES_AS.get(route.kind, ()):
        raise InvalidInput(f"nothing that is {route.kind} arrives in another store as {route.status}")
    was_dead = move.is_dead_letter or route.kind is FeedKind.DEAD or route.status is Status.DEAD
    if not item.deaths and (was_dead or any(entry.from_dead_letter for entry in item.history)):
        raise InvalidInput(f"item {item.id} was a dead letter and has no record of its death")


def check_unedited(id: ItemId, to: str, *, edited: bool) -> None:
    """Raise InvalidInput if an item that moves to another store is to be edited."""
    if edited:
        raise InvalidInput(
            f"item {id} goes to {to}, and nothing is edited on the way to another store; redrive it with to= a queue "
            f"of this store, or edit it there after its next death"
        )


def ledger_key(source_id: ItemId) -> ItemId:
    """Return the key under which a queue records that it received an item. No import uses such a key."""
    return ItemId(f"@{source_id}")


def is_ledger_key(key: str) -> bool:
    """Return whether a key records a received item, and not an import."""
    return key.startswith("@")


def move_arrival_state(move: Move, queue: Queue, came_from: str, here: str, now: Instant) -> ArrivalState:
    """Return the state of an item that moves from one store to a queue of another one."""
    item, kind, status = move.item, move.route.kind, move.route.status
    standing = ItemSnapshot(item.id, status, move.is_dead_letter)
    match kind:
        case FeedKind.DEAD:
            is_dead_letter, expire_deadline = True, None
        case FeedKind.REDRIVEN:
            timeout = queue.settings.expire_timeout if move.expire_timeout is None else move.expire_timeout
            is_dead_letter, expire_deadline = False, None if timeout is None else Instant(now + timeout)
        case FeedKind.MOVED:
            is_dead_letter = stays_dead_letter(Verb.MOVE, standing, to_dead_queue=queue.is_dead_queue)
            expire_deadline = item.expire_deadline
        case _:
            raise InvalidInput(f"nothing that is {kind} moves to another store")
    home = None
    if is_dead_letter:
        home = came_from if kind is FeedKind.DEAD else item.home_store or came_from
    return ArrivalState(
        status=status,
        is_dead_letter=is_dead_letter,
        ready_at=max(now, move.ready_at) if kind is FeedKind.MOVED else now,
        first=item.history[:HISTORY_FIRST],
        last=item.history[HISTORY_FIRST:],
        omitted=item.history_omitted,
        expire_deadline=expire_deadline,
        expire_timeout=move.expire_timeout,
        holders=_passing_holders(item),
        home_store=None if home == here else home,
        needs_room=kind is not FeedKind.DEAD and status is not Status.DEAD,
    )

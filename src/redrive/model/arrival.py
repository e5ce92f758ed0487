"""The state of an item where it arrives: imported, or moved from another store.

Two stores share no transaction, so a move takes four: the item becomes *moving* in its store; the other store receives
it and records where it came from; the first store removes it; the other store closes its record. Each can be repeated.
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
    holders: Holders
    needs_room: bool
    """Whether it is refused where max_size is reached."""
    expire_timeout: int | None = None
    """The one it was put with; None takes that of whatever queue it is in."""
    home_store: str | None = None
    """The store that it came from as a dead letter, and that a redrive takes it back to."""
    archived_from: Status | None = None
    """What it is when it is restored (archived)."""
    is_dropped: bool = False
    """It was dropped, as its history says."""


def import_state(item: Item, queue: Queue, now: Instant) -> ArrivalState:
    """What an item becomes in a queue. Raises InvalidInput for a death without a record."""
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
    """What it is without a lease. One that was on its way to a dead queue elsewhere is dead."""
    if item.status is Status.MOVING:
        return Status.DEAD if item.deaths and not _was_brought_back(item) else Status.PENDING
    if item.status is Status.ACTIVE and item.dead_reason is not None:  # leased although it is dead
        return Status.DEAD
    return item.status if item.status in (Status.FAILED, Status.DEAD, Status.ARCHIVED) else Status.PENDING


def _passing_holders(item: Item) -> Holders:
    """The holders that it brings along. What lasts in one store means nothing in another one."""
    return make_holders(name for name in item.held_by if name not in item.lasting_holders)


def _archived_from(item: Item) -> Status:
    """What an archived item is when it is restored: dead if it was a dead letter, else work, even if it was completed.

    Only what was dropped, or was no dead letter, has its archiving in its history. Failures may have been added since.
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
    """Whether an entry is a failure that changed nothing, like one reported again under the key of an archived item."""
    return entry.event is HistoryEvent.FAILED and not (item.deaths and is_outcome_of_death(item.deaths[-1], entry))


def _was_brought_back(item: Item) -> bool:
    """Whether a person brought it back to work after its last death."""
    brought_back = False
    for entry in item.history:
        if entry.event is HistoryEvent.REDRIVEN:
            brought_back = brought_back or entry.from_dead_letter
        elif entry.event is HistoryEvent.UNDONE or is_outcome_of_death(item.deaths[-1], entry):
            brought_back = False
    return brought_back


class MoveRoute(msgspec.Struct, frozen=True):
    """What an item that is moving has beside everything else."""

    to: str
    """The queue that it goes to: `name@store`."""
    since: Instant
    kind: FeedKind
    """Why: DEAD, REDRIVEN or MOVED."""
    status: Status
    """As what it arrives."""


class Move(msgspec.Struct, frozen=True):
    """An item on its way, with all that the other store needs."""

    item: Item
    route: MoveRoute
    is_dead_letter: bool
    ready_at: Instant
    """From when it could be leased, if it had stayed."""
    expire_timeout: int | None = None
    """The one it was put with."""


_ARRIVES_AS = {
    FeedKind.DEAD: (Status.PENDING,),
    FeedKind.REDRIVEN: (Status.PENDING,),
    FeedKind.MOVED: (Status.DEAD, *WAITING_STATUSES),
}


def check_move(move: Move) -> None:
    """Raise unless a store could have let the item go like this: for moves that somebody else tells of."""
    item, route = move.item, move.route
    if item.status is not Status.MOVING:
        raise InvalidInput(f"item {item.id} is {item.status} and not moving")
    if route.status not in _ARRIVES_AS.get(route.kind, ()):
        raise InvalidInput(f"nothing that is {route.kind} arrives in another store as {route.status}")
    was_dead = move.is_dead_letter or route.kind is FeedKind.DEAD or route.status is Status.DEAD
    if not item.deaths and (was_dead or any(entry.from_dead_letter for entry in item.history)):
        raise InvalidInput(f"item {item.id} was a dead letter and has no record of its death")


def check_unedited(id: ItemId, to: str, *, edited: bool) -> None:
    """Raise where an item that goes to another store is to be edited on the way."""
    if edited:
        raise InvalidInput(
            f"item {id} goes to {to}, and nothing is edited on the way to another store; redrive it with to= a queue "
            f"of this store, or edit it there after its next death"
        )


def ledger_key(source_id: ItemId) -> ItemId:
    """Under what a queue knows that it received an item. No item was ever imported under it."""
    return ItemId(f"@{source_id}")


def is_ledger_key(key: str) -> bool:
    """Whether a queue received an item under it, and did not import it."""
    return key.startswith("@")


def move_arrival_state(move: Move, queue: Queue, came_from: str, here: str, now: Instant) -> ArrivalState:
    """How an item stands that comes from one store to a queue of another one."""
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

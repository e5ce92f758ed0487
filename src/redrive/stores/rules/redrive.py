"""Retry, redrive, undo and move of items."""

from __future__ import annotations

from redrive.clock import Instant
from redrive.contract.admin_calls import ManualTarget
from redrive.errors import IdempotencyConflict, PayloadTooLarge
from redrive.model.arrival import check_unedited
from redrive.model.feed import FeedKind
from redrive.model.holder import lasting_holders
from redrive.model.item import OPEN_STATUSES, Counters, HistoryEvent, Settled, Status
from redrive.model.limits import is_remote
from redrive.model.manual_change import (
    ItemSnapshot,
    ManualAction,
    counters_after_undo,
    counts_for_max_size,
    move_queue,
    redrive_queue,
    stays_dead_letter,
    undo_target,
)
from redrive.stores.rules.archive import archive, restore
from redrive.stores.rules.moves import start_move
from redrive.stores.rules.queue_state import QueueState
from redrive.stores.rules.record import Record
from redrive.stores.rules.state import State
from redrive.stores.rules.verdicts import action_entry, append_action_event, mark_dead


def retry(state: State, action: ManualAction, item: Record, before: ItemSnapshot) -> Settled:
    """Make an item pending again in its queue."""
    return _again(state, action, item, before, state.queues[item.queue])


def redrive(state: State, action: ManualAction, target: ManualTarget, item: Record, before: ItemSnapshot) -> Settled:
    """Redrive a dead item in its queue, another dead letter into the queue where it died last, or either into
    `action.to`."""
    died_in = item.deaths[-1].queue
    to = redrive_queue(before, died_in, action.to, home=item.home_store, store=state.store)
    if is_remote(to):
        check_unedited(item.id, to, edited=target.payload is not None or target.headers is not None)
        return start_move(state, action, item, FeedKind.REDRIVEN, to)
    queue = state.queue(to)
    if target.payload is None and target.headers is None:
        return _again(state, action, item, before, queue)
    return _edited(state, action, target, item, before, queue)


def _again(state: State, action: ManualAction, item: Record, before: ItemSnapshot, queue: QueueState) -> Settled:
    """Make an item pending with fresh counters and lasting holders only: in place, or in another queue under a new
    id."""
    _check_target(state, item, before, queue)
    left, counters, entry = item.queue, item.counters, action_entry(state, action, HistoryEvent.REDRIVEN, item)
    moved = queue.name != left
    with state.change(item, action.verb, Status.PENDING, forced=action.force):
        item.counters = Counters(deliveries=counters.deliveries, redrives=counters.redrives + 1)
        item.history.add(entry)
        item.holders = lasting_holders(item.holders)
        item.is_in_dead_queue = stays_dead_letter(action.verb, before)
        if moved:
            state.move(item, queue.name)
            item.ready_at = state.now
        else:
            state.to_tail(item)
        item.expire_deadline = _expire_deadline(state, item, queue)
    queue.redriven_total += 1
    append_action_event(state, action, FeedKind.REDRIVEN, left, item, item.source_id if moved else None)
    return item.to_settled(moved=moved)


def _edited(
    state: State, action: ManualAction, target: ManualTarget, item: Record, before: ItemSnapshot, queue: QueueState
) -> Settled:
    """Archive the item unchanged and put a new, edited one to work."""
    _check_target(state, item, before, queue)
    largest = queue.value.settings.max_payload_size
    if target.payload is not None and len(target.payload.payload) > largest:
        raise PayloadTooLarge("payload", len(target.payload.payload), largest, "max_payload_size")
    entry = action_entry(state, action, HistoryEvent.REDRIVEN, item)
    archive(state, action, item)
    number = state.draw_number()
    new = Record(
        ids=[state.allocate_id(number)],
        queue=queue.name,
        status=Status.PENDING,
        payload=item.payload if target.payload is None else target.payload.payload,
        content_type=item.content_type if target.payload is None else target.payload.content_type,
        headers=dict(item.headers if target.headers is None else target.headers),
        priority=item.priority,
        put_at=item.put_at,
        seq=number,
        ready_at=state.now,
        expire_timeout=item.expire_timeout,
        expire_deadline=None,
        holders=lasting_holders(item.holders),
        idempotency_key=item.idempotency_key,
        overrides=item.overrides,
        source_id=item.id,
        origin_id=item.origin_id or item.id,
        origin_queue=item.origin_queue or item.queue,
        counters=Counters(deliveries=item.counters.deliveries, redrives=item.counters.redrives + 1),
        first_leased_at=item.first_leased_at,
        history=item.history.copy(),
        deaths=list(item.deaths),
    )
    new.history.add(entry)
    new.expire_deadline = _expire_deadline(state, new, queue)
    state.add(new)
    queue.redriven_total += 1
    append_action_event(state, action, FeedKind.REDRIVEN, item.queue, new, item.id)
    return new.to_settled(moved=True)


def undo(state: State, action: ManualAction, item: Record) -> Settled:
    """Undo a redrive: restore the former queue and status. Or undo a drop."""
    if item.status is Status.ARCHIVED:
        return restore(state, action, item)
    last = item.history.last()
    assert last is not None
    to, status = undo_target(last)
    queue = state.queue(to)
    left, moved, entry = item.queue, to != item.queue, action_entry(state, action, HistoryEvent.UNDONE, item)
    state.wake_awaiting(item)
    with state.change(item, action.verb, status):
        item.counters = counters_after_undo(item.counters, status, item.deaths[-1])
        item.history.add(entry)
        item.holders = lasting_holders(item.holders)
        if moved:
            state.move(item, queue.name)
            item.ready_at = state.now
        item.is_in_dead_queue = status is Status.PENDING
        if item.is_in_dead_queue:
            item.expire_deadline = None
        mark_dead(state, item)
    append_action_event(state, action, FeedKind.UNDONE, left, item, item.source_id if moved else None)
    return item.to_settled(moved=moved, reason=item.deaths[-1].reason if status is Status.DEAD else None)


def move(state: State, action: ManualAction, item: Record, before: ItemSnapshot) -> Settled:
    """Move an item unchanged to the tail of another queue. An item that is not due keeps its due time."""
    to = move_queue(before, action.to)
    if is_remote(to):
        return start_move(state, action, item, FeedKind.MOVED, to)
    queue = state.queue(to)
    left, status, entry = item.queue, item.status_without_lease, action_entry(state, action, HistoryEvent.MOVED, item)
    if status is not Status.DEAD:
        _check_target(state, item, before, queue)
    stays_letter = stays_dead_letter(action.verb, before, to_dead_queue=queue.value.is_dead_queue)
    with state.change(item, action.verb, status, forced=action.force):
        item.history.add(entry)
        item.is_in_dead_queue = stays_letter and status is not Status.DEAD
        state.move(item, queue.name)
        item.ready_at = state.now if status is Status.DEAD else max(item.ready_at, state.now)
    append_action_event(state, action, FeedKind.MOVED, left, item, item.source_id)
    return item.to_settled(moved=True, reason=item.deaths[-1].reason if status is Status.DEAD else None)


def _check_target(state: State, item: Record, before: ItemSnapshot, queue: QueueState) -> None:
    """Raise if an item that adds to the size of a queue finds it full, or its key used by another item."""
    if not counts_for_max_size(before, queue.name):
        return
    queue.check_room()
    check_idempotency_owner(state, item, queue)


def check_idempotency_owner(state: State, item: Record, queue: QueueState) -> None:
    """Raise if another open item of the queue holds the key of this one."""
    if item.idempotency_key is not None:
        other = idempotency_owner(state, queue, item.idempotency_key, state.now)
        if other is not None and other is not item:
            raise IdempotencyConflict(queue.name, item.idempotency_key, other.id)


def idempotency_owner(state: State, queue: QueueState, key: str, now: Instant) -> Record | None:
    """Return the open item that holds an idempotency key in a queue, if there is one."""
    known = queue.keys.get(key)
    is_known = known is not None and (known.ends_with_item or known.until > now)
    item = state.items.get(known.id) if known is not None and is_known else None
    if item is None or item.queue != queue.name:
        return None
    return item if item.status in OPEN_STATUSES else None


def _expire_deadline(state: State, item: Record, queue: QueueState) -> Instant | None:
    """Return the new expire deadline. An item that stays a dead letter of a dead queue does not expire."""
    general = queue.value.settings.expire_timeout
    timeout = general if item.expire_timeout is None else item.expire_timeout
    return None if timeout is None or item.is_in_dead_queue else Instant(state.now + timeout)

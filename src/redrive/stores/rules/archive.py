"""The archive: archive, drop, restore."""

from __future__ import annotations

from redrive.clock import Instant
from redrive.contract.base import ENDED_KEY_RETENTION
from redrive.errors import IdempotencyConflict
from redrive.model.feed import FeedKind
from redrive.model.item import WAITING_STATUSES, HistoryEvent, Settled, Status
from redrive.model.manual_change import ManualAction
from redrive.model.state_machine import Verb
from redrive.stores.rules.puts import living_item
from redrive.stores.rules.queue_state import IdempotencyEntry, QueueState
from redrive.stores.rules.record import Record
from redrive.stores.rules.state import State
from redrive.stores.rules.verdicts import action_entry, append_action_event


def archive(state: State, action: ManualAction, item: Record) -> Settled:
    """Archive an item. A dead letter keeps its position; for other items, the history records actor and time."""
    before, is_dead_letter = item.status_without_lease, item.is_dead_letter
    if before is Status.COMPLETED:
        _keep_free(state, item)
    entry = None if is_dead_letter else action_entry(state, action, HistoryEvent.ARCHIVED, item)
    with state.change(item, Verb.ARCHIVE, Status.ARCHIVED, forced=action.force):
        item.archived_from = before
        if entry is not None:
            item.history.add(entry)
            _draw_place(state, item)
    state.queues[item.queue].archived_total += 1
    append_action_event(state, action, FeedKind.ARCHIVED, item.queue, item)
    return item.to_settled(reason=None if item.death is None else item.death.reason)


def drop(state: State, action: ManualAction, item: Record) -> Settled:
    """Archive an item for `keep_dropped`, and free its key unless it was completed. If that time is 0 or the item is
    moving, remove it."""
    keep = state.queues[item.queue].value.settings.keep_dropped
    back = item.archived_from if item.status is Status.ARCHIVED else item.status_without_lease
    assert back is not None
    held = None if back is Status.COMPLETED else _key_of(state, item)
    if back is Status.COMPLETED:
        _keep_free(state, item)
    if not keep or item.status is Status.MOVING:
        if held is not None:
            held.free()
        state.remove(item, Verb.DROP, forced=action.force)
        append_action_event(state, action, FeedKind.REMOVED, item.queue, item)
        return item.to_settled(removed=True)
    if held is not None:
        held.set_aside()
    has_place = item.death is not None or (item.status is Status.ARCHIVED and back is Status.COMPLETED)
    entry = action.history_entry(state.now, HistoryEvent.DROPPED, item.queue, item.counters.deliveries, back)
    with state.change(item, Verb.DROP, Status.ARCHIVED, forced=action.force):
        item.archived_from = back
        item.history.add(entry)
        if not has_place:
            _draw_place(state, item)
    append_action_event(state, action, FeedKind.DROPPED, item.queue, item)
    reason = None if item.death is None else item.death.reason
    return item.to_settled(reason=reason, undo_until=Instant(state.now + keep))


def restore(state: State, action: ManualAction, item: Record) -> Settled:
    """Restore status, times and holders of an item. Only a status that max_size counts needs room, and only a dropped
    item needs its key."""
    back = item.archived_from
    assert back is not None
    if back in WAITING_STATUSES:
        state.queues[item.queue].check_room()
    entry = None
    if item.is_dropped or item.death is None:
        entry = action_entry(state, action, HistoryEvent.RESTORED, item)
    if item.is_dropped and back is not Status.COMPLETED:
        _take_key_back(state, item)
    with state.change(item, action.verb, back):
        item.archived_from = None
        if entry is not None:
            item.history.add(entry)
    append_action_event(state, action, FeedKind.RESTORED, item.queue, item)
    return item.to_settled(reason=item.deaths[-1].reason if back is Status.DEAD else None)


def _draw_place(state: State, item: Record) -> None:
    """Give the item the last position in the archive, without search terms. Call it within a change."""
    item.death_number = state.draw_number()
    item.words = frozenset()


class _HeldKey:
    """The idempotency key of an item, in the queue of its put."""

    def __init__(self, state: State, queue: QueueState, item: Record, key: str) -> None:
        self._state, self._queue, self._key = state, queue, key
        self._aside = state.aside_key(item)

    @property
    def is_of_item(self) -> bool:
        """True if the key is known while its item exists, rather than until an instant."""
        return self._queue.keys[self._key].ends_with_item

    def free(self) -> None:
        """Forget the key."""
        del self._queue.keys[self._key]
        self._queue.keys_until.discard(self._key)

    def set_aside(self) -> None:
        """Free the key, and remember its entry."""
        self._rename(self._key, self._aside)

    def take_back(self) -> None:
        """Restore the key, if it was set aside and has not expired."""
        known = self._queue.keys.get(self._aside)
        if known is not None and _is_known(self._state, known):
            self._rename(self._aside, self._key)

    def _rename(self, old: str, new: str) -> None:
        queue = self._queue
        known = queue.keys[new] = queue.keys[old]
        until = self._state.now + ENDED_KEY_RETENTION if known.ends_with_item else known.until
        queue.keys_until.add(new, (until,))
        del queue.keys[old]
        queue.keys_until.discard(old)


def _key_of(state: State, item: Record) -> _HeldKey | None:
    """Return the key of this item, if its entry belongs to it."""
    key, queue = item.idempotency_key, state.queues.get(item.origin_queue or item.queue)
    known = None if key is None or queue is None else queue.keys.get(key)
    if key is None or queue is None or known is None or known.id not in item.ids:
        return None
    return _HeldKey(state, queue, item, key)


def _keep_free(state: State, item: Record) -> None:
    """Free a key that ends with its item. It ends with the completion, and stays free when the item is archived."""
    held = _key_of(state, item)
    if held is not None and held.is_of_item:
        held.free()


def _take_key_back(state: State, item: Record) -> None:
    """Restore the key. Raise if it belongs to another item that is not archived."""
    key, queue = item.idempotency_key, state.queues.get(item.origin_queue or item.queue)
    if key is None or queue is None:
        return
    state.lock_keys(queue, (key,))
    known = queue.keys.get(key)
    if known is None or not _is_known(state, known):
        _HeldKey(state, queue, item, key).take_back()
        return
    other = state.items.get(known.id)
    if other is None or other.status is not Status.ARCHIVED:
        raise IdempotencyConflict(queue.name, key, known.id)


def _is_known(state: State, known: IdempotencyEntry) -> bool:
    return living_item(state, known) is not None if known.ends_with_item else known.until > state.now

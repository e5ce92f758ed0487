"""Maintenance: promotion of due items, expiry, retention."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.contract.base import ENDED_KEY_RETENTION, FEED_RETENTION, OPERATION_RETENTION, RETENTION_ACTOR
from redrive.contract.item_calls import StaleSettings
from redrive.contract.maintenance_calls import ApplyRetention, Expire, Promote
from redrive.errors import WrongStatus
from redrive.model.arrival import is_ledger_key
from redrive.model.feed import FeedKind
from redrive.model.ids import ItemId
from redrive.model.item import WAITING_STATUSES, Settled
from redrive.model.judge import OutcomeKind
from redrive.model.manual_change import ManualAction
from redrive.model.state_machine import Verb
from redrive.stores.rules.archive import archive
from redrive.stores.rules.damage import check_damage
from redrive.stores.rules.feed import append_event
from redrive.stores.rules.indexes import Index
from redrive.stores.rules.leases import promote_due
from redrive.stores.rules.puts import living_item
from redrive.stores.rules.queue_state import QueueState, SourceEntry
from redrive.stores.rules.record import Record
from redrive.stores.rules.replies import apply_verdict
from redrive.stores.rules.state import State
from redrive.stores.rules.verdicts import check_verdict


def promote(state: State, call: Promote) -> int:
    """Promote due items queue by queue, up to the limit; the next step promotes the rest."""
    count = 0
    for queue in state.queues.values():
        count += promote_due(state, queue, call.limit - count)
    return count


def expire(state: State, call: Expire) -> Settled | StaleSettings:
    """Settle an item whose expire deadline has passed, unless its status has changed since."""
    item = state.item(call.id)
    check_damage(state.store, item)
    if item.status not in WAITING_STATUSES or not item.expired(state.now):
        raise WrongStatus(Verb.EXPIRE, item.id, item.status, ("past their expire deadline",))
    queue = state.queues[item.queue].value
    if call.version != queue.version:
        return StaleSettings(queue)
    check_verdict(state, item.queue, OutcomeKind.EXPIRED, call.verdict)
    return apply_verdict(state, item, OutcomeKind.EXPIRED, call.verdict)


def apply_retention(state: State, call: ApplyRetention) -> int:
    """Remove or archive at most `limit` rows in all, queue by queue."""
    left = call.limit
    for queue in state.queues.values():
        for step in _STEPS:
            left -= step(state, queue, left)
    left -= state.registrations.forget(state.now, left)
    left -= state.results.forget(state.now, left)
    left -= state.feed.forget(state.now - FEED_RETENTION, left)
    left -= state.operations.forget(state.now - OPERATION_RETENTION, left)
    left -= state.sweep_removed(left)
    return call.limit - left


def _archive(state: State, queue: QueueState, limit: int) -> int:
    """Archive dead letters that are not leased, if the queue has `archive_after`."""
    archive_after = queue.value.settings.archive_after
    if archive_after is None:
        return 0
    return archive_items(state, queue, _past(state, queue.dead, archive_after, limit))


def archive_items(state: State, queue: QueueState, items: Sequence[Record]) -> int:
    """Archive dead letters of a queue, with one row in the audit. Returns how many."""
    items = _undamaged(items)
    for item in items:
        archive(state, ManualAction(Verb.ARCHIVE, RETENTION_ACTOR), item)
    _audit(state, Verb.ARCHIVE, queue, items)
    return len(items)


def _clean_completed(state: State, queue: QueueState, limit: int) -> int:
    ids = queue.completed.until(state.now - queue.value.settings.keep_completed, limit)
    items = _undamaged([state.items[id] for id in ids])
    for item in items:
        state.remove(item, Verb.DROP)
    return len(items)


def _clean_dead(state: State, queue: QueueState, limit: int) -> int:
    """Remove old dead letters that are not leased: dead items, and items of a dead queue."""
    return _purge(state, queue, queue.dead, queue.value.settings.keep_dead, limit)


def _clean_archived(state: State, queue: QueueState, limit: int) -> int:
    return _purge(state, queue, queue.archived, queue.value.settings.keep_archived, limit)


def _clean_dropped(state: State, queue: QueueState, limit: int) -> int:
    return _purge(state, queue, queue.dropped, queue.value.settings.keep_dropped, limit)


def _undamaged(items: Sequence[Record]) -> list[Record]:
    return [item for item in items if item.damage is None]


def _purge(state: State, queue: QueueState, index: Index[ItemId], keep: int | None, limit: int) -> int:
    """Remove items that died or were dropped at least `keep` ago."""
    return 0 if keep is None else purge_items(state, queue, _past(state, index, keep, limit))


def purge_items(state: State, queue: QueueState, items: Sequence[Record]) -> int:
    """Remove items of a queue, with one row in the audit and an entry in the feed for each. Returns how many."""
    items = _undamaged(items)
    for item in items:
        state.remove(item, Verb.DROP)
        append_event(state, FeedKind.REMOVED, queue.name, item, actor=RETENTION_ACTOR)
    _audit(state, Verb.PURGE, queue, items)
    return len(items)


def _past(state: State, index: Index[ItemId], time: int, limit: int) -> list[Record]:
    """Return items that died or were dropped at least `time` ago, by death number."""
    items = [state.items[id] for id in index.until(state.now - time, limit)]
    return sorted(items, key=lambda item: item.death_number)


def _audit(state: State, verb: Verb, queue: QueueState, items: Sequence[Record]) -> None:
    if items:
        ids = tuple(item.id for item in items)
        state.write_audit(RETENTION_ACTOR, str(verb), queue.name, ids, len(ids))


def _clean_keys(state: State, queue: QueueState, limit: int) -> int:
    """Forget expired keys. Keys that end with an existing item are examined again later."""
    keys = queue.keys_until.until(state.now, limit)
    state.load_keys(queue, keys)
    for key in keys:
        known = queue.keys[key]
        if known.ends_with_item and living_item(state, known) is not None:
            queue.keys_until.add(key, (state.now + ENDED_KEY_RETENTION,))
        else:
            queue.keys_until.discard(key)
            del queue.keys[key]
    return len(keys)


def _clean_sources(state: State, queue: QueueState, limit: int) -> int:
    """Forget expired source ids, except that of an item that is still in the queue."""
    source_ids = queue.sources_until.until(state.now, limit)
    for source_id in source_ids:
        queue.sources_until.discard(source_id)
        source = queue.sources.pop(source_id, None)
        if is_ledger_key(source_id):  # not read any more; the item is known by its own source_id
            continue
        item = None if source is None else state.items.get(source.id)
        if source is not None and item is not None and item.id == source.id and item.queue == queue.name:
            queue.sources[source_id] = SourceEntry(source.id)
    return len(source_ids)


_STEPS = (_archive, _clean_completed, _clean_dead, _clean_archived, _clean_dropped, _clean_keys, _clean_sources)
"""Retention of a queue. An item that several settings apply to is archived first and removed last."""

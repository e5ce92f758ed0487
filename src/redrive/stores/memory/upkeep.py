"""What runs by itself: bringing in, expiring, retention."""

from __future__ import annotations

from redrive.errors import WrongStatus
from redrive.model.item import Settled
from redrive.model.judge import Ending
from redrive.model.transitions import Verb
from redrive.store import Clean, Expire, Promote, Stale
from redrive.stores.memory.leases import bring_in
from redrive.stores.memory.queue_state import QueueState, Source
from redrive.stores.memory.record import WORK
from redrive.stores.memory.state import State
from redrive.stores.memory.verdicts import carry_out, check_verdict

RETENTION_ACTOR = "retention"
PURGE = "purge"


def promote(state: State, call: Promote) -> int:
    """Queue by queue; what is left over falls to the next step."""
    count = 0
    for queue in state.queues.values():
        count += bring_in(state, queue, call.limit - count)
    return count


def expire(state: State, call: Expire) -> Settled | Stale:
    """Settle an item whose time is over, unless somebody came first."""
    item = state.item(call.id)
    if item.status not in WORK or not item.expired(state.now):
        raise WrongStatus(Verb.EXPIRE, item.id, item.status, ("past their expire deadline",))
    queue = state.queues[item.queue].value
    if call.version != queue.version:
        return Stale(queue)
    check_verdict(state, item.queue, Ending.EXPIRED, call.verdict)
    return carry_out(state, item, Ending.EXPIRED, call.verdict)


def clean(state: State, call: Clean) -> int:
    """Removes at most `limit` rows in all."""
    left = call.limit
    for queue in state.queues.values():
        for step in (_clean_completed, _clean_dead, _clean_keys, _clean_sources):
            left -= step(state, queue, left)
    return call.limit - left


def _clean_completed(state: State, queue: QueueState, limit: int) -> int:
    ids = queue.completed.until(state.now - queue.value.settings.keep_completed, limit)
    for id in ids:
        state.remove(state.items[id], Verb.DROP)
    return len(ids)


def _clean_dead(state: State, queue: QueueState, limit: int) -> int:
    """Dead items, and those that came here by death and that nobody works on."""
    keep_dead = queue.value.settings.keep_dead
    if keep_dead is None:
        return 0
    ids = queue.dead.until(state.now - keep_dead, limit)
    for id in ids:
        state.remove(state.items[id], Verb.DROP)
    if ids:
        state.write_audit(RETENTION_ACTOR, PURGE, queue.name, tuple(ids), len(ids))
    return len(ids)


def _clean_keys(state: State, queue: QueueState, limit: int) -> int:
    keys = queue.keys_until.until(state.now, limit)
    for key in keys:
        queue.keys_until.discard(key)
        del queue.keys[key]
    return len(keys)


def _clean_sources(state: State, queue: QueueState, limit: int) -> int:
    """A source_id whose item is still in the queue stays known for as long as that is so."""
    source_ids = queue.sources_until.until(state.now, limit)
    for source_id in source_ids:
        queue.sources_until.discard(source_id)
        source = queue.sources.pop(source_id, None)
        item = None if source is None else state.items.get(source.id)
        if source is not None and item is not None and item.id == source.id and item.queue == queue.name:
            queue.sources[source_id] = Source(source.id)
    return len(source_ids)

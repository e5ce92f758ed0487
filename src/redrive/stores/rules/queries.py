"""Queries: what `read` answers."""

from __future__ import annotations

from itertools import islice

from redrive.clock import Instant
from redrive.model.group import Group
from redrive.model.ids import ItemId
from redrive.model.item import Lease
from redrive.model.limits import MAX_INSTANT
from redrive.store import (
    AuditEntry,
    FeedPage,
    GetHeld,
    GetKeyHolders,
    GetOverdue,
    ListAudit,
    ListGroups,
    Overdue,
    ReadFeed,
)
from redrive.stores.rules.record import Record
from redrive.stores.rules.redrives import holder_of
from redrive.stores.rules.state import State


def get_overdue(state: State, query: GetOverdue, now: Instant) -> tuple[Overdue, ...]:
    """Leases by their deadline, other items by their expire deadline; the oldest first."""
    queues = state.queues.values() if query.queue is None else (state.queue(query.queue),)
    found = [
        state.items[id]
        for queue in queues
        for index in (queue.leases, queue.expiring)
        for id in index.until(now, query.limit)
    ]
    found.sort(key=_overdue_since)
    return tuple(item.to_overdue(now) for item in found[: query.limit])


def _overdue_since(item: Record) -> tuple[int, int]:
    since = item.expire_deadline if item.grant is None else item.grant.deadline
    assert since is not None
    return since, item.seq


def get_held(state: State, query: GetHeld) -> tuple[Lease, ...]:
    """Every lease of every queue is looked at."""
    ids = (id for queue in state.queues.values() for id in queue.leases.until(MAX_INSTANT, len(queue.leases)))
    held = [item.to_lease() for id in ids if (item := state.items[id]).worker == query.worker]
    held.sort(key=lambda lease: (lease.leased_at, state.items[lease.id].seq))
    return tuple(held[: query.limit])


def list_audit(state: State, query: ListAudit) -> tuple[AuditEntry, ...]:
    """Entries are numbered from 1 in the order in which they were written."""
    end = len(state.audit) if query.before is None else min(query.before - 1, len(state.audit))
    return tuple(islice(reversed(state.audit[: max(0, end)]), query.limit))


def key_holders(state: State, query: GetKeyHolders, now: Instant) -> dict[str, ItemId]:
    """Keys of completed and dead items stay known, but stand against nothing that is brought back."""
    queue = state.queue(query.queue)
    holders = {key: holder_of(state, queue, key, now) for key in query.keys}
    return {key: holder.id for key, holder in holders.items() if holder is not None}


def next_due(state: State) -> Instant | None:
    """The earliest entry of every index that upkeep looks into, or step of an operation. It may lie in the past."""
    instants = (
        index.first_at() for queue in state.queues.values() for index in (queue.waiting, queue.expiring, queue.leases)
    )
    return min((at for at in (*instants, state.operations.next_at()) if at is not None), default=None)


def list_groups(state: State, query: ListGroups) -> tuple[Group, ...]:
    """Of one queue, or of all."""
    queues = tuple(state.queues) if query.queue is None else (state.queue(query.queue).name,)
    return state.groups.of(queues, query.limit)


def read_feed(state: State, query: ReadFeed) -> FeedPage:
    """Of one item under every id it had, for as long as it is there."""
    ids: set[ItemId] | None = None
    if query.id is not None:
        item = state.find(query.id)
        ids = {query.id} if item is None else set(item.ids)
    return state.feed.read(query, ids)

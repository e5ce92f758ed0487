"""Queries: the answers of `Store.read`. A search scans the index that fits it and filters item by item."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import msgspec

from redrive.clock import Instant
from redrive.contract.queries import (
    AuditEntry,
    Counted,
    CountItems,
    FeedPage,
    FindItems,
    FindPlanSubjects,
    GetIdempotencyOwners,
    GetItems,
    GetItemsByKey,
    GetLeases,
    GetOverdue,
    ListAudit,
    ListGroups,
    ListStats,
    ListWorkerLeases,
    Overdue,
    Page,
    PlanPage,
    ReadFeed,
)
from redrive.errors import LeaseLost
from redrive.model.filter import MAX_EXAMINED, Order, make_cursor, parse_cursor
from redrive.model.group import Group
from redrive.model.ids import ItemId
from redrive.model.item import Item, Lease
from redrive.model.limits import MAX_INSTANT
from redrive.model.operation_plan import PlanSubject
from redrive.model.queue import QueueStats
from redrive.model.worker_info import TASK_HEADER
from redrive.stores.rules.puts import living_item
from redrive.stores.rules.queue_state import QueueState
from redrive.stores.rules.record import Record
from redrive.stores.rules.redrive import idempotency_owner
from redrive.stores.rules.state import State


def get_overdue(state: State, query: GetOverdue) -> tuple[Overdue, ...]:
    """Return expired leases and expired items, ordered by lease deadline or expire deadline; the oldest first."""
    queues = state.queues.values() if query.queue is None else (state.queue(query.queue),)
    found = [
        state.items[id]
        for queue in queues
        for index in (queue.leases, queue.expiring)
        for id in index.until(state.now, query.limit)
    ]
    found = [item for item in found if item.grant is not None or item.expire_deadline is not None]  # else damaged
    found.sort(key=_overdue_since)
    return tuple(item.to_overdue(state.now) for item in found[: query.limit])


def _overdue_since(item: Record) -> tuple[int, int]:
    since = item.expire_deadline if item.grant is None else item.grant.deadline
    assert since is not None
    return since, item.seq


def worker_leases(state: State, query: ListWorkerLeases) -> tuple[Lease, ...]:
    """Return the leases of a worker. Examines every lease of every queue."""
    ids = (id for queue in state.queues.values() for id in queue.leases.until(MAX_INSTANT, len(queue.leases)))
    held = [item.to_lease() for id in ids if (item := state.items[id]).worker == query.worker]
    held.sort(key=lambda lease: (lease.leased_at, state.items[lease.id].seq))
    return tuple(held[: query.limit])


def list_audit(state: State, query: ListAudit) -> tuple[AuditEntry, ...]:
    """Return audit entries, newest first. They are numbered from 1 in the order of writing."""
    end = len(state.audit) if query.before is None else min(query.before - 1, len(state.audit))
    return tuple(islice(reversed(state.audit[: max(0, end)]), query.limit))


def key_holders(state: State, query: GetIdempotencyOwners) -> dict[str, ItemId]:
    """Return the open item of each key. Keys of completed and dead items stay known, but conflict with no redrive."""
    queue = state.queue(query.queue)
    holders = {key: idempotency_owner(state, queue, key, state.now) for key in query.keys}
    return {key: holder.id for key, holder in holders.items() if holder is not None}


def items_by_key(state: State, query: GetItemsByKey) -> tuple[Item | None, ...]:
    """Return the items that a put with these keys would find."""
    queue = state.queue(query.queue)
    return _whole_items(_by_key(state, queue, key) for key in query.keys)


def get_items(state: State, query: GetItems) -> tuple[Item | None, ...]:
    """Return the items of these ids, None for an unknown one."""
    return _whole_items(state.find(id) for id in query.ids)


def get_leases(state: State, query: GetLeases) -> tuple[Lease | None, ...]:
    """Return the leases of these tokens, None for a lost one."""
    leases: list[Lease | None] = []
    for token in query.tokens:
        try:
            leases.append(state.leased(token).to_lease())
        except LeaseLost:
            leases.append(None)
    return tuple(leases)


def _whole_items(found: Iterable[Record | None]) -> tuple[Item | None, ...]:
    return tuple([None if item is None else item.to_item() for item in found])


def _by_key(state: State, queue: QueueState, key: str) -> Record | None:
    known = queue.keys.get(key)
    if known is None:
        return None
    if known.ends_with_item:
        return living_item(state, known)
    return state.items.get(known.id) if known.until > state.now else None


def next_due(state: State) -> Instant | None:
    """Return the earliest instant in any index of maintenance, or of the next operation step. It may be in the past."""
    instants = (
        index.first_at() for queue in state.queues.values() for index in (queue.waiting, queue.expiring, queue.leases)
    )
    return min((at for at in (*instants, state.operations.next_at()) if at is not None), default=None)


def list_stats(state: State, query: ListStats) -> tuple[QueueStats, ...]:
    """Return the statistics of all queues, or of those that are named."""
    names = state.queues if query.names is None else {name for name in query.names if name in state.queues}
    return tuple(state.queues[name].stats(state.now) for name in sorted(names))


def list_groups(state: State, query: ListGroups) -> tuple[Group, ...]:
    """Return the groups of one queue, or of all."""
    queues = tuple(state.queues) if query.queue is None else (state.queue(query.queue).name,)
    return state.groups.of(queues, query.limit)


def read_feed(state: State, query: ReadFeed) -> FeedPage:
    """Return a page of the feed. A reading for one item includes all its ids while the item exists."""
    ids: set[ItemId] | None = None
    if query.id is not None:
        item = state.find(query.id)
        ids = {query.id} if item is None else set(item.ids)
    return state.feed.read(query, ids)


def find_items(state: State, query: FindItems) -> Page:
    """Return one page of items."""
    after = parse_cursor(query.where, query.order, query.cursor)
    selected = state.select(query.where, query.order, query.limit, after)
    items = tuple(item.to_item() for _, item in selected.found)
    if selected.exhausted or selected.position is None:
        return Page(items, None)
    return Page(items, make_cursor(query.where, query.order, selected.position))


def find_plan_subjects(state: State, query: FindPlanSubjects) -> PlanPage:
    """Return one page of items for a plan."""
    where = query.where
    selected = state.select(where, Order.OLDEST, query.limit, parse_cursor(where, Order.OLDEST, query.cursor))
    items = tuple(_plan_subject(item, query.with_last) for _, item in selected.found)
    if selected.exhausted or selected.position is None:
        return PlanPage(items, None)
    return PlanPage(items, make_cursor(where, Order.OLDEST, selected.position))


def _plan_subject(item: Record, with_last: bool) -> PlanSubject:
    last = item.history.last() if with_last else None
    death = item.deaths[-1] if item.deaths else None
    return PlanSubject(
        item.id,
        item.status,
        item.is_dead_letter,
        item.worker,
        None if last is None else msgspec.structs.replace(last, failure=None, note=None),
        item.queue,
        item.counters.deliveries,
        item.was_dead,
        item.is_dropped,
        None if death is None else death.queue,
        None if death is None else death.cause,
        item.home_store if item.lies_in_dead_queue else None,
        item.idempotency_key,
        item.headers.get(TASK_HEADER),
    )


def count_items(state: State, query: CountItems) -> Counted:
    """Count matching items. With only queue and cause as conditions, the stored counts give the complete answer."""
    where = query.where
    after = parse_cursor(where, Order.NEWEST, query.cursor)
    if where.has_stored_count and after is None:
        queues = tuple(state.queues) if where.queue is None else (state.queue(where.queue).name,)
        return Counted(state.groups.count(queues, where.fingerprint), None)
    selected = state.select(where, Order.NEWEST, MAX_EXAMINED, after)
    if selected.exhausted or selected.position is None:
        return Counted(len(selected.found), None)
    return Counted(len(selected.found), make_cursor(where, Order.NEWEST, selected.position))

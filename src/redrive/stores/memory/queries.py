"""Queries: what `read` answers."""

from __future__ import annotations

from itertools import islice

from redrive.clock import Instant
from redrive.store import AuditEntry, GetOverdue, ListAudit, Overdue
from redrive.stores.memory.record import Record
from redrive.stores.memory.state import State


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


def list_audit(state: State, query: ListAudit) -> tuple[AuditEntry, ...]:
    """Entries are numbered from 1 in the order in which they were written."""
    end = len(state.audit) if query.before is None else min(query.before - 1, len(state.audit))
    return tuple(islice(reversed(state.audit[: max(0, end)]), query.limit))


def next_due(state: State) -> Instant | None:
    """The earliest entry of every index that upkeep looks into. It may lie in the past."""
    instants = (
        index.first_at() for queue in state.queues.values() for index in (queue.waiting, queue.expiring, queue.leases)
    )
    return min((at for at in instants if at is not None), default=None)

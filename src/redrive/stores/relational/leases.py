"""Leases: the head of a queue, after due items were promoted; and the leases of one worker.

No index exists for the worker of a lease: leases change all the time, and few callers ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from redrive.clock import Instant
from redrive.contract.base import MAINTENANCE_BATCH
from redrive.contract.item_calls import Leased, LeaseItems
from redrive.contract.queries import ListWorkerLeases
from redrive.errors import QueueNotFound
from redrive.model.death import DeadReason
from redrive.model.feed import FeedKind
from redrive.model.gate import count_leases, counts_leases, lease_limit, opens_at, shut_gate
from redrive.model.ids import make_id, make_token
from redrive.model.item import Lease, Overrides
from redrive.model.limits import MAX_PRIORITY
from redrive.model.payload import JSON
from redrive.stores.relational import feed
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.item_rows import STATE_COLUMNS, insert_ready_row
from redrive.stores.relational.low_water_marks import above, leases
from redrive.stores.relational.queue_rows import QueueRow, decode_gates
from redrive.stores.relational.records import decode_headers, overrides_of
from redrive.stores.relational.session import Executor, OverdueCheck
from redrive.stores.rules.damage import UNREADABLE, read_value

LEASE_COLUMNS = """
    r.rank, r.ready_at, r.seq, r.item_no, i.id_suffix, i.payload, i.content_type, i.headers, i.put_at, r.deliveries + 1,
    r.attempts + 1, r.failures, r.losses, r.redrives, r.first_leased_at, r.expire_deadline, i.overrides"""
"""Columns of a lease, from redrive_ready AS r and redrive_item AS i."""

DUE_CHECK_SQL = f"""
    SELECT EXISTS (SELECT 1 FROM redrive_scheduled WHERE queue = ?1 AND held_by IS NULL AND ready_at <= ?2
            {above("ready_at", "scheduled")}) AS due,
        EXISTS ({leases("1", "deadline <= ?2")})
        OR EXISTS (SELECT 1 FROM redrive_ready WHERE queue = ?1 AND expire_deadline <= ?2
            {above("expire_deadline", "ready_expiry")})
        OR EXISTS (SELECT 1 FROM redrive_scheduled WHERE queue = ?1 AND expire_deadline <= ?2
            {above("expire_deadline", "scheduled_expiry")}) AS overdue"""
"""Columns of a check: `due` if an item of a queue waits for promotion, `overdue` if a lease or an item has expired."""
_DUE = f"""
    SELECT item_no, status, {STATE_COLUMNS} FROM redrive_scheduled
    WHERE queue = ?1 AND held_by IS NULL AND ready_at <= ?2 {above("ready_at", "scheduled")}
    ORDER BY ready_at LIMIT ?3 /*+ FOR UPDATE SKIP LOCKED */"""
_NEXT = f"""
    SELECT min(at) FROM (
        {leases("min(deadline) AS at")}
        UNION ALL SELECT min(ready_at) FROM redrive_scheduled
        WHERE queue = ?1 AND held_by IS NULL {above("ready_at", "scheduled")}) AS next"""

_LOCK_GATES = """
    SELECT key, gates FROM redrive_queue WHERE key IN carray(?) /*+ ORDER BY key FOR NO KEY UPDATE */"""


def lease_all(batch: Batch, calls: Sequence[LeaseItems]) -> list[Any]:
    """Execute lease calls. Those that differ only in their limit share one query."""
    results: list[Any] = [None] * len(calls)
    groups: dict[tuple[str, str | None, int | None, bool], list[int]] = {}
    for index, call in enumerate(calls):
        groups.setdefault((call.queue, call.worker, call.timeout, call.ignore_overdue), []).append(index)
    _lock_gates(batch, {call.queue for call in calls})
    for (name, worker, timeout, ignore_overdue), members in groups.items():
        row = batch.by_name.get(name)
        if row is None:
            for index in members:
                results[index] = QueueNotFound(name, batch.namespace)
            continue
        limit = sum(calls[index].limit for index in members)
        leased = _lease(batch, row, limit, worker, timeout, ignore_overdue)
        leases = leased.leases
        if len(members) == 1:
            results[members[0]] = leased
            continue
        start = 0
        for index in members:
            end = start + calls[index].limit
            results[index] = Leased(leases[start:end], leased.overdue, leased.next_at)
            start = end
    return results


def _lock_gates(batch: Batch, names: Iterable[str]) -> None:
    """Lock the rows of queues whose gates count leases, and read these gates: other transactions may lease too.

    All rows that this transaction changes are locked here, in order, so that concurrent ones do not deadlock. A gate
    that is shut stays shut, regardless of what others lease.
    """
    gated = [row for name in names if (row := batch.by_name.get(name)) is not None and row.queue.gates]
    counting = [row for row in gated if counts_leases(row.queue.gates)]
    keys = {row.key for row in counting if shut_gate(row.queue.gates, batch.now) is None}
    if keys:
        locked = batch.execute(_LOCK_GATES, (batch.table(sorted(keys | batch.replying)),)).fetchall()
        for key, gates in locked:
            if key in keys:
                batch.see_gates(batch.by_key[key], decode_gates(gates))


def promote(batch: Batch, row: QueueRow, limit: int) -> int:
    """Move due items of a queue to redrive_ready. Returns how many."""
    due = batch.session.scan(batch, _DUE, (row.key, batch.now, limit)).fetchall()
    if due:
        for item_no, _, *state in due:
            insert_ready_row(batch, row.key, item_no, *state)
        batch.execute(
            "DELETE FROM redrive_scheduled WHERE item_no IN carray(?)", (batch.table([entry[0] for entry in due]),)
        )
        failed = sum(1 for entry in due if entry[1] == "failed")
        batch.count_delta(row.key, "failed", -failed)
        batch.count_delta(row.key, "pending", failed)
        batch.arrivals[row.queue.name] += len(due)
    return len(due)


def _lease(
    batch: Batch, row: QueueRow, limit: int, worker: str | None, timeout: int | None, ignore_overdue: bool
) -> Leased:
    now = batch.now
    if row.queue.paused:
        return Leased(())
    if gates := row.queue.gates:
        limit = lease_limit(gates, now, limit)
        if not limit:
            return Leased((), next_at=opens_at(gates, now))
    deadline = Instant(now + (row.settings.lease_timeout if timeout is None else timeout))
    found, head, keys = batch.session.lease_head(
        batch, row, limit, deadline, worker, OverdueCheck(True, not ignore_overdue)
    )
    if found.due:
        promote(batch, row, MAINTENANCE_BATCH)
    if found.overdue:
        return Leased((), overdue=True)
    if found.due:
        _, head, keys = batch.session.lease_head(batch, row, limit, deadline, worker, OverdueCheck(False, False))
    if not head:
        return Leased((), next_at=batch.session.scan(batch, _NEXT, (row.key,)).get)
    batch.count_delta(row.key, "pending", -len(head))
    batch.count_delta(row.key, "active", len(head))
    if row.queue.name in batch.arrivals:
        batch.arrivals[row.queue.name] = max(0, batch.arrivals[row.queue.name] - len(head))
    leases: list[Lease] = []
    queue = row.queue.name
    for (
        rank, _, _, item_no, id_suffix, payload, content_type, headers, put_at, deliveries, attempts, failures, losses,
        redrives, first_leased_at, expire_deadline, overrides,
    ) in head:  # fmt: skip
        contents = _contents(headers, overrides)
        if contents is None:
            continue
        lease = Lease(
            make_id(item_no, id_suffix),
            make_token(item_no, id_suffix, keys[item_no]),
            queue,
            payload,
            content_type or JSON,
            contents[0],
            MAX_PRIORITY - rank,
            put_at,
            deliveries,
            attempts,
            failures,
            losses,
            redrives,
            now,
            deadline,
            now if first_leased_at is None else first_leased_at,
            expire_deadline,
            contents[1],
            worker,
        )
        leases.append(lease)
        if row.records_success:
            feed.append_event(batch, FeedKind.LEASED, queue, item_no, id_suffix)
    if gates and counts_leases(gates):
        batch.set_gates(row, count_leases(gates, [lease.id for lease in leases]))
    return Leased(leases)


def _contents(headers: str | None, overrides: str | None) -> tuple[Mapping[str, str], Overrides] | None:
    """Return headers and overrides of a leased item. None if they cannot be read: it is not given to the worker, and is
    lost when its lease expires, until it is dead."""
    try:
        return {} if headers is None else decode_headers(headers), overrides_of(overrides)
    except UNREADABLE:
        return None


_HELD = f"""
    SELECT l.leased_at, l.seq, l.item_no, i.id_suffix, l.token, i.payload, i.content_type, i.headers, l.rank, i.put_at,
        l.deliveries, l.attempts, l.failures, l.losses, l.redrives, l.deadline, l.first_leased_at, l.expire_deadline,
        i.overrides, l.dead_reason
    FROM ({leases("*", "worker = ?2", "ORDER BY leased_at, seq LIMIT ?3")}) AS l
    CROSS JOIN redrive_item AS i ON i.item_no = l.item_no ORDER BY l.leased_at, l.seq LIMIT ?3"""


def worker_leases(executor: Executor, names: Mapping[int, str], query: ListWorkerLeases) -> tuple[Lease, ...]:
    """Return the leases of a worker in these queues, oldest first."""
    # All are sent before the first answer is awaited.
    sent = [(name, executor.execute(_HELD, (key, query.worker, query.limit))) for key, name in names.items()]
    found = [(name, row) for name, rows in sent for row in rows.fetchall()]
    found.sort(key=lambda each: each[1][:2])
    leases = (_worker_lease(name, query.worker, row) for name, row in found[: query.limit])
    return tuple(lease for lease in leases if lease is not None)


def _worker_lease(queue: str, worker: str, row: tuple[Any, ...]) -> Lease | None:
    (
        leased_at, _, item_no, id_suffix, token, payload, content_type, headers, rank, put_at, deliveries, attempts,
        failures, losses, redrives, deadline, first_leased_at, expire_deadline, overrides, dead_reason,
    ) = row  # fmt: skip
    contents = _contents(headers, overrides)
    if contents is None:
        return None
    return Lease(
        make_id(item_no, id_suffix),
        make_token(item_no, id_suffix, token),
        queue,
        payload,
        content_type or JSON,
        contents[0],
        MAX_PRIORITY - rank,
        put_at,
        deliveries,
        attempts,
        failures,
        losses,
        redrives,
        leased_at,
        deadline,
        first_leased_at,
        expire_deadline,
        contents[1],
        worker,
        None if dead_reason is None else read_value(DeadReason, dead_reason, DeadReason.UNDECODABLE, tuple),
    )

"""What a worker holds. There is no index of it: leases come and go all the time, and few ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from redrive.model.ids import make_id, make_token
from redrive.model.item import NO_OVERRIDES, Lease, Overrides
from redrive.model.limits import MAX_PRIORITY
from redrive.model.payload import JSON
from redrive.store import GetHeld
from redrive.stores.relational.marks import leases
from redrive.stores.relational.session import Executor

_HELD = f"""
    SELECT l.leased_at, l.seq, l.n, i.tail, l.token, i.payload, i.content_type, i.headers, l.rank, i.put_at,
        l.deliveries, l.attempts, l.failures, l.losses, l.redrives, l.deadline, l.first_leased_at, l.expire_deadline,
        i.overrides
    FROM ({leases("*", "worker = ?2", "ORDER BY leased_at, seq LIMIT ?3")}) AS l
    CROSS JOIN redrive_item AS i ON i.n = l.n ORDER BY l.leased_at, l.seq LIMIT ?3"""


def leases_of(executor: Executor, names: Mapping[int, str], query: GetHeld) -> tuple[Lease, ...]:
    """The leases of a worker in these queues, oldest first."""
    # All are sent before the first is waited for.
    sent = [(name, executor.execute(_HELD, (key, query.worker, query.limit))) for key, name in names.items()]
    found = [(name, row) for name, rows in sent for row in rows.fetchall()]
    found.sort(key=lambda each: each[1][:2])
    return tuple(_worker_lease(name, query.worker, *row) for name, row in found[: query.limit])


def _worker_lease(
    queue: str,
    worker: str,
    leased_at: Any,
    seq: int,
    n: int,
    tail: int,
    token: int,
    payload: bytes,
    content_type: str | None,
    headers: str | None,
    rank: int,
    put_at: Any,
    deliveries: int,
    attempts: int,
    failures: int,
    losses: int,
    redrives: int,
    deadline: Any,
    first_leased_at: Any,
    expire_deadline: Any,
    overrides: str | None,
) -> Lease:
    return Lease(
        make_id(n, tail),
        make_token(n, tail, token),
        queue,
        payload,
        content_type or JSON,
        {} if headers is None else msgspec.json.decode(headers),
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
        NO_OVERRIDES if overrides is None else msgspec.json.decode(overrides, type=Overrides),
        worker,
    )

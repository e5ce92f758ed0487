"""Leases of the items that are named, one by one: each may be in any state table."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

import msgspec

from redrive.clock import Instant
from redrive.contract.item_calls import LeaseByIds, check_lease_by_id
from redrive.errors import ItemNotFound, RedriveError
from redrive.model.feed import FeedKind
from redrive.model.gate import count_leases, counts_leases
from redrive.model.ids import KEY_BITS, ItemId, make_token
from redrive.model.item import Lease, Status
from redrive.model.limits import MAX_PRIORITY
from redrive.model.payload import JSON
from redrive.stores.relational import feed
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.full_items import overrides_of
from redrive.stores.relational.item_rows import ItemRow, ReadAhead, delete_row, insert_row
from redrive.stores.relational.redrive import check_idempotency_owner
from redrive.stores.relational.session import Executor

_CONTENTS = """
    SELECT item_no, payload, content_type, headers, put_at, overrides FROM redrive_item WHERE item_no IN carray(?)"""


def lease_by_ids(batch: Batch, call: LeaseByIds) -> tuple[Lease | RedriveError, ...]:
    """Lease each item that can be, and read the contents of all of them together."""
    ahead = ReadAhead(batch, call.ids)
    leased: list[ItemRow] = []
    refusals: dict[int, RedriveError] = {}
    for position, id in enumerate(call.ids):
        try:
            leased.append(_lease(batch, call, id, ahead.take(id)))
        except RedriveError as refusal:
            refusals[position] = refusal
    names = {key: row.queue.name for key, row in batch.by_key.items()}
    leases = iter(read_leases(batch, leased, names))
    return tuple([refusals[position] if position in refusals else next(leases) for position in range(len(call.ids))])


def _lease(batch: Batch, call: LeaseByIds, id: ItemId, item_row: ItemRow | None) -> ItemRow:
    if item_row is None or item_row.queue not in batch.by_key:
        raise ItemNotFound(id)
    row, now = batch.by_key[item_row.queue], batch.now
    expired = item_row.expire_deadline is not None and item_row.expire_deadline <= now
    check_lease_by_id(call, row.queue, item_row.id, item_row.status, item_row.worker, item_row.holders, expired, now)
    dead_reason = item_row.dead_reason
    if item_row.status is Status.DEAD:
        check_idempotency_owner(batch, item_row, row)
    delete_row(batch, item_row)
    item_row.status, item_row.dead_reason, item_row.was_dead = Status.ACTIVE, dead_reason, dead_reason is not None
    item_row.token, item_row.worker, item_row.leased_at = secrets.randbits(KEY_BITS), call.worker, now
    item_row.deadline = Instant(now + (row.settings.lease_timeout if call.timeout is None else call.timeout))
    item_row.deliveries += 1
    item_row.attempts += 1
    if item_row.first_leased_at is None:
        item_row.first_leased_at = now
    insert_row(batch, item_row)
    if counts_leases(row.queue.gates):
        batch.set_gates(row, count_leases(row.queue.gates, (item_row.id,)))
    feed.append_event(batch, FeedKind.LEASED, row.queue.name, item_row.item_no, item_row.id_suffix)
    return item_row


def read_leases(executor: Executor, item_rows: Sequence[ItemRow], names: Mapping[int, str]) -> list[Lease]:
    """Return the leases on these active items, in order. `names` has the names of queues by key."""
    numbers = executor.table([item_row.item_no for item_row in item_rows])
    contents = {item_no: row for item_no, *row in executor.execute(_CONTENTS, (numbers,)).fetchall()}
    return [_lease_of(item_row, names[item_row.queue], *contents[item_row.item_no]) for item_row in item_rows]


def _lease_of(
    item_row: ItemRow,
    queue: str,
    payload: bytes,
    content_type: str | None,
    headers: str | None,
    put_at: Instant,
    overrides: str | None,
) -> Lease:
    assert item_row.token is not None
    assert item_row.leased_at is not None
    assert item_row.deadline is not None
    assert item_row.first_leased_at is not None
    return Lease(
        id=item_row.id,
        token=make_token(item_row.item_no, item_row.id_suffix, item_row.token),
        queue=queue,
        payload=payload,
        content_type=content_type or JSON,
        headers={} if headers is None else msgspec.json.decode(headers),
        priority=MAX_PRIORITY - item_row.rank,
        put_at=put_at,
        deliveries=item_row.deliveries,
        attempts=item_row.attempts,
        failures=item_row.failures,
        losses=item_row.losses,
        redrives=item_row.redrives,
        leased_at=item_row.leased_at,
        deadline=item_row.deadline,
        first_leased_at=item_row.first_leased_at,
        expire_deadline=item_row.expire_deadline,
        overrides=overrides_of(overrides),
        worker=item_row.worker,
        dead_reason=item_row.dead_reason,
    )

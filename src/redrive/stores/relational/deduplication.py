"""Search for items of a put that exist already, by idempotency key."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from redrive.clock import Instant
from redrive.contract.base import ENDED_KEY_RETENTION, SAME_CALL
from redrive.contract.item_calls import NewItem, Put
from redrive.errors import IdempotencyConflict
from redrive.model.ids import ItemId, make_id
from redrive.model.item import OPEN_STATUSES
from redrive.model.queue import WITH_ITEM
from redrive.stores.relational.batch import Batch, KnownKey
from redrive.stores.relational.item_rows import find_by_ids, resolve
from redrive.stores.relational.queue_rows import QueueRow
from redrive.stores.relational.session import Executor

KEY_LIVES = """EXISTS (
        SELECT 1 FROM redrive_item AS i
        WHERE i.item_no = coalesce((
            SELECT f.item_no FROM redrive_former_id AS f
            WHERE f.old_item_no = k.item_no AND f.old_id_suffix = k.id_suffix), k.item_no)
            AND (i.item_no <> k.item_no OR i.id_suffix = k.id_suffix)
            AND NOT EXISTS (
                SELECT 1 FROM redrive_finished AS e WHERE e.item_no = i.item_no AND e.status = 'completed'))"""
"""The condition that the item of redrive_idempotency AS k exists, under any id, and is not completed."""
KEY_IS_KNOWN = f"(k.expires_at > ?3 OR k.expires_at < 0 AND {KEY_LIVES})"
"""The condition that a key is known at this instant. A negative expires_at: it ends with its item."""
_KEY = f"""
    SELECT item_no, id_suffix, digest, k.expires_at < 0 FROM redrive_idempotency AS k
    WHERE queue = ?1 AND key = ?2 AND {KEY_IS_KNOWN}"""
_OWNER = """
    SELECT item_no, id_suffix FROM redrive_idempotency
    WHERE queue = ? AND key = ? AND (expires_at > ? OR expires_at < 0)"""
REMEMBER_KEY = """
    INSERT INTO redrive_idempotency (queue, key, item_no, id_suffix, digest, expires_at) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (queue, key) DO UPDATE
    SET item_no = excluded.item_no, id_suffix = excluded.id_suffix, digest = excluded.digest,
        expires_at = excluded.expires_at"""


def remember_key(batch: Batch, row: QueueRow, item: NewItem, number: int, id_suffix: int) -> None:
    """Record the idempotency key of a new item."""
    key, digest = item.idempotency_key, digest_of(item)
    assert key is not None
    timeout = row.settings.idempotency_timeout
    if timeout == WITH_ITEM:
        batch.known_keys.pop((row.key, key), None)  # the next put reads it: this item may be dropped immediately
        expires_at = -(batch.now + ENDED_KEY_RETENTION)
    else:
        expires_at = batch.now + timeout
    batch.write(REMEMBER_KEY, (row.key, key, number, id_suffix, digest, expires_at))
    if (row.key, key) in batch.known_keys:
        batch.known_keys[row.key, key] = KnownKey(number, id_suffix, digest, False)


def find_known(
    batch: Batch, row: QueueRow, items: Sequence[NewItem], completes: int | None = None
) -> dict[int, ItemId | None]:
    """Return the items that exist already, by position; None: an earlier one of the same call. `completes` is the item
    that the same call completes."""
    known: dict[int, ItemId | None] = {}
    keys = [item.idempotency_key for item in items if item.idempotency_key is not None]
    if keys and not all((row.key, key) in batch.known_keys for key in keys):
        batch.session.lock_idempotency_keys(batch, row.key, keys)
    firsts: dict[str, NewItem] = {}
    for position, item in enumerate(items):
        key = item.idempotency_key
        if key is None:
            continue
        if (first := firsts.get(key)) is not None:
            if digest_of(first) != digest_of(item):
                raise IdempotencyConflict(row.queue.name, key, SAME_CALL)
            known[position] = None
        elif (id := _find_owner(batch, row, key, item, completes)) is not None:
            known[position] = id
        else:
            firsts[key] = item
    return known


def _find_owner(batch: Batch, row: QueueRow, key: str, item: NewItem, completes: int | None) -> ItemId | None:
    """Return the item that a key belongs to. None if the key is new or free."""
    found = _read_key(batch, row.key, key)
    if found is None:
        return None
    id = make_id(found.item_no, found.id_suffix)
    if found.ends_with_item and completes is not None and resolve(batch, id) == completes:
        return None
    if found.digest != digest_of(item):
        raise IdempotencyConflict(row.queue.name, key, id)
    return id


def read_keys(batch: Batch, calls: Sequence[Put]) -> None:
    """Read the idempotency keys of all calls before the first is written: a read has to wait for pending writes, which
    are cheaper together."""
    asked: dict[int, list[str]] = {}
    for call in calls:
        if not call.items or call.items[0].is_plain or (row := batch.by_name.get(call.queue)) is None:
            continue
        if keys := [item.idempotency_key for item in call.items if item.idempotency_key is not None]:
            asked.setdefault(row.key, []).extend(keys)
    for queue, keys in sorted(asked.items()):
        found = batch.session.find_idempotency_keys(batch, queue, keys)
        for key in keys:
            if found is None:
                batch.known_keys[queue, key] = _read_key(batch, queue, key)
            else:
                batch.known_keys[queue, key] = KnownKey(*found[key]) if key in found else None


def _read_key(batch: Batch, queue: int, key: str) -> KnownKey | None:
    """Return a key that is known."""
    if (queue, key) in batch.known_keys:
        return batch.known_keys[queue, key]
    found = batch.execute(_KEY, (queue, key, batch.now)).fetchone()
    return None if found is None else KnownKey(*found)


def find_by_keys(executor: Executor, queue: int, keys: Sequence[str], now: Instant) -> dict[str, ItemId]:
    """Return the id under which the item of each key was put, for those that are known."""
    # All are sent before the first answer is awaited.
    sent = {key: executor.execute(_KEY, (queue, key, now)) for key in keys}
    found = {key: rows.fetchone() for key, rows in sent.items()}
    return {key: make_id(row[0], row[1]) for key, row in found.items() if row is not None}


def find_owners(executor: Executor, queue: int, keys: Sequence[str], now: Instant) -> dict[str, ItemId]:
    """Return the unfinished items of a queue that have these idempotency keys."""
    sent = {key: executor.execute(_OWNER, (queue, key, now)) for key in keys}
    put = {key: make_id(*row) for key, rows in sent.items() if (row := rows.fetchone()) is not None}
    item_rows = find_by_ids(executor, list(put.values()))
    owners = {key: item_rows[id] for key, id in put.items() if id in item_rows}
    return {key: row.id for key, row in owners.items() if row.queue == queue and row.status in OPEN_STATUSES}


def digest_of(item: NewItem) -> bytes:
    """Return what distinguishes two items with one key."""
    return hashlib.blake2b(item.content_type.encode() + b"\0" + item.payload, digest_size=16).digest()

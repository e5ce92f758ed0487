"""Which items of a put exist already: by idempotency key, or by the id they had elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from redrive.clock import Instant
from redrive.contract.base import ENDED_KEY_RETENTION, SAME_CALL
from redrive.contract.item_calls import NewItem, Put, takes_failure
from redrive.errors import IdempotencyConflict
from redrive.model.arrival import ledger_key
from redrive.model.ids import ItemId, make_id
from redrive.model.judge import Dead
from redrive.model.queue import WITH_ITEM
from redrive.stores.relational.batch import Batch, KnownKey
from redrive.stores.relational.item_rows import find_by_id, resolve
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
_REMEMBER_KEY = """
    INSERT INTO redrive_idempotency (queue, key, item_no, id_suffix, digest, expires_at) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (queue, key) DO UPDATE
    SET item_no = excluded.item_no, id_suffix = excluded.id_suffix, digest = excluded.digest,
        expires_at = excluded.expires_at"""
_SOURCE = """
    SELECT item_no, id_suffix FROM redrive_ledger WHERE queue = ?1 AND source_id IN (?2, ?3)
    UNION ALL SELECT item_no, id_suffix FROM redrive_item WHERE queue = ?1 AND source_id = ?2 LIMIT 1"""
_REMEMBER_SOURCE = """
    INSERT INTO redrive_ledger (queue, source_id, item_no, id_suffix, closed_at) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT DO NOTHING"""


class KnownItem(NamedTuple):
    """An item that exists already."""

    id: ItemId | None
    """None if it is put by the same call."""
    ignored: bool = False
    """Known by its source_id: not even a failure is added."""


def known_source(batch: Batch, row: QueueRow, source_id: ItemId) -> ItemId | None:
    """Return the item that came to a queue under this id, if it exists or came within the retention of the ledger."""
    there = batch.execute(_SOURCE, (row.key, source_id, ledger_key(source_id))).fetchone()
    return None if there is None else make_id(*there)


def remember_source(batch: Batch, row: QueueRow, source_id: ItemId, number: int, id_suffix: int) -> None:
    """Record the id under which an item came to a queue."""
    batch.execute(_REMEMBER_SOURCE, (row.key, source_id, number, id_suffix, batch.now))


def remember_key(batch: Batch, row: QueueRow, item: NewItem, number: int, id_suffix: int) -> None:
    """Record the idempotency key of a new item."""
    key, digest = item.idempotency_key, _digest(item)
    assert key is not None
    timeout = row.settings.idempotency_timeout
    if timeout == WITH_ITEM:
        batch.known_keys.pop((row.key, key), None)  # the next put reads it: this item may be dropped immediately
        expires_at = -(batch.now + ENDED_KEY_RETENTION)
    else:
        expires_at = batch.now + timeout
    batch.write(_REMEMBER_KEY, (row.key, key, number, id_suffix, digest, expires_at))
    if (row.key, key) in batch.known_keys:
        batch.known_keys[row.key, key] = KnownKey(number, id_suffix, digest, False)


def find_known(
    batch: Batch, row: QueueRow, items: Sequence[NewItem], completes: int | None = None
) -> dict[int, KnownItem]:
    """Return the items that exist already, by position. `completes`: the item that the same call completes."""
    known: dict[int, KnownItem] = {}
    keys = [item.idempotency_key for item in items if item.idempotency_key is not None]
    if keys and not all((row.key, key) in batch.known_keys for key in keys):
        batch.session.lock_idempotency_keys(batch, row.key, keys)
    sources: set[str] = set()
    firsts: dict[str, NewItem] = {}
    for position, item in enumerate(items):
        there = _find_by_source(batch, row, item, sources) or _find_by_key(batch, row, item, firsts, completes)
        if there is not None:
            known[position] = there
        elif item.idempotency_key is not None:
            firsts[item.idempotency_key] = item
        if item.source_id is not None:
            sources.add(item.source_id)
    return known


def _find_by_source(batch: Batch, row: QueueRow, item: NewItem, sources: Collection[str]) -> KnownItem | None:
    if item.source_id is None:
        return None
    there = known_source(batch, row, item.source_id)
    return KnownItem(there, ignored=True) if there is not None or item.source_id in sources else None


def _find_by_key(
    batch: Batch, row: QueueRow, item: NewItem, firsts: Mapping[str, NewItem], completes: int | None
) -> KnownItem | None:
    """Return the item that a key belongs to. None if the key is new or free, or belongs to a deleted item and this put
    brings a failure: then it is a new item.

    `firsts` are the new items of this call by key.
    """
    key = item.idempotency_key
    if key is None:
        return None
    first = firsts.get(key)
    if first is not None:
        if _digest(first) != _digest(item):
            raise IdempotencyConflict(row.queue.name, key, SAME_CALL)
        dropped = isinstance(first.verdict, Dead) and first.verdict.drops
        is_free = dropped and (item.failure is not None or row.settings.idempotency_timeout == WITH_ITEM)
        return None if is_free else KnownItem(None)
    found = _read_key(batch, row.key, key)
    if found is None:
        return None
    id = make_id(found.item_no, found.id_suffix)
    if found.ends_with_item and completes is not None and resolve(batch, id) == completes:
        return None
    if found.digest != _digest(item):
        raise IdempotencyConflict(row.queue.name, key, id)
    return KnownItem(id) if item.failure is None or _gets_failure(batch, id) else None


def _gets_failure(batch: Batch, id: ItemId) -> bool:
    item_row = find_by_id(batch, id)
    if item_row is None:
        return False
    return takes_failure(item_row.id, item_row.status, None if item_row.route is None else item_row.route.to)


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
    # All are sent before the first is waited for.
    sent = {key: executor.execute(_KEY, (queue, key, now)) for key in keys}
    found = {key: rows.fetchone() for key, rows in sent.items()}
    return {key: make_id(row[0], row[1]) for key, row in found.items() if row is not None}


def _digest(item: NewItem) -> bytes:
    return hashlib.blake2b(item.content_type.encode() + b"\0" + item.payload, digest_size=16).digest()

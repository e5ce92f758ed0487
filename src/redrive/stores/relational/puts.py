"""Puts: many plain items in one statement, everything else row by row."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from redrive.clock import Instant
from redrive.contract.base import SAME_CALL
from redrive.contract.item_calls import NewItem, Put, StaleSettings, check_failure, has_stale_verdict, takes_failure
from redrive.errors import IdempotencyConflict, PayloadTooLarge, QueueFull, RedriveError
from redrive.model.arrival import ledger_key
from redrive.model.feed import FeedKind
from redrive.model.ids import PARTITION_BITS, ItemId, make_id
from redrive.model.item import NO_OVERRIDES, HistoryEntry, HistoryEvent, Receipt, Status
from redrive.model.judge import Dead, OutcomeKind
from redrive.model.limits import MAX_PRIORITY
from redrive.model.payload import JSON
from redrive.stores.relational import feed, verdicts
from redrive.stores.relational.batch import SALT_MASK, SALT_STEP, Batch, QueueRow, draw_salt
from redrive.stores.relational.item_rows import ItemRow, delete_row, find_by_id, insert_row
from redrive.stores.relational.low_water_marks import above

_PLAIN_ITEMS = f"""
    INSERT INTO redrive_item (n, tail, queue, put_at, priority, content_type, expire_timeout, payload)
    SELECT ?1 + rowid, (?2 + rowid * {SALT_STEP} & {SALT_MASK}) << {PARTITION_BITS}, ?3, ?4, ?5, ?6, ?7, value
    FROM carray(?8)"""
_PLAIN_ITEM = """
    INSERT INTO redrive_item (n, tail, queue, put_at, priority, content_type, expire_timeout, payload)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
_PLAIN_READY = """
    INSERT INTO redrive_ready (queue, n, rank, ready_at, seq, expire_deadline,
        deliveries, attempts, failures, losses, redrives, first_leased_at, entries, deaths, letter)
    VALUES (?1, ?2, ?3, ?4, ?2, ?5, 0, 0, 0, 0, 0, NULL, 0, 0, NULL)"""
_PLAIN_READIES = """
    INSERT INTO redrive_ready (queue, n, rank, ready_at, seq, expire_deadline,
        deliveries, attempts, failures, losses, redrives, first_leased_at, entries, deaths, letter)
    SELECT ?1, value, ?2, ?3, value, ?4, 0, 0, 0, 0, 0, NULL, 0, 0, NULL FROM carray(?5)"""
_ITEM = """
    INSERT INTO redrive_item (n, tail, queue, put_at, priority, enqueue_at, content_type, headers, expire_timeout,
        idempotency_key, overrides, source_id, payload)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_SIZE = f"""
    SELECT (SELECT coalesce(sum(pending + failed + active), 0) FROM redrive_count WHERE queue = ?1)
         + (SELECT coalesce(sum(pending + failed + active), 0) FROM redrive_tally
            WHERE queue = ?1 {above("key", "tally", "0")})"""
_KEY = "SELECT n, tail, digest FROM redrive_idempotency WHERE queue = ? AND key = ? AND until > ?"
_REMEMBER_KEY = """
    INSERT INTO redrive_idempotency (queue, key, n, tail, digest, until) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (queue, key) DO UPDATE
    SET n = excluded.n, tail = excluded.tail, digest = excluded.digest, until = excluded.until"""
_SOURCE = """
    SELECT n, tail FROM redrive_ledger WHERE queue = ?1 AND source_id IN (?2, ?3)
    UNION ALL SELECT n, tail FROM redrive_item WHERE queue = ?1 AND source_id = ?2 LIMIT 1"""
_REMEMBER_SOURCE = """
    INSERT INTO redrive_ledger (queue, source_id, n, tail, closed_at) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"""

_Group = tuple[int, str, int, int | None]
"""What plain items that go in together share: queue, content type, priority, expire_timeout."""
_Groups = dict[_Group, tuple[list[bytes], list[tuple[list[Receipt], int]]]]
"""The payloads of each group, and where their receipts go."""


class _Known(NamedTuple):
    """An item that is there already."""

    id: ItemId | None
    """None: put earlier in this very call."""
    ignored: bool = False
    """Known by its source_id: not even a failure is added."""


class _CheckedPut(msgspec.Struct):
    """A put call that nothing stands against: nothing has been written yet."""

    row: QueueRow
    items: tuple[NewItem, ...]
    group: _Group | None
    """Where all of them differ only in their payload: what they share, so that they can go in together with others."""
    known: dict[int, _Known]
    """Items that are there already, by their positions."""


def put_all(batch: Batch, calls: Sequence[Put]) -> list[Any]:
    """Carry out put calls, each for itself. Plain items of a queue go in together."""
    results: list[Any] = []
    groups: _Groups = {}
    by_name = batch.by_name
    if len(calls) > 1 or len(calls[0].items) > 1:
        _find_keys(batch, calls)
    for call in calls:
        row = by_name.get(call.queue)
        item = call.items[0] if len(call.items) == 1 else None
        if row is not None and item is not None and item.is_plain and len(item.payload) <= row.plain_put_max_bytes:
            # By far the most puts: one plain item, nothing to check but its size.
            receipts: list[Any] = [None]
            group = (row.key, item.content_type, item.priority, item.expire_timeout)
            if group not in groups:
                groups[group] = ([], [])
            payloads, owners = groups[group]
            payloads.append(item.payload)
            owners.append((receipts, 0))
            results.append(receipts)
            continue
        try:
            if row is not None and has_stale_verdict(call, row.queue):
                results.append(StaleSettings(row.queue))
            else:
                results.append(_write(batch, _check(batch, call), groups))
        except RedriveError as refusal:
            results.append(refusal)
    _write_groups(batch, groups)
    return [tuple(result) if result.__class__ is list else result for result in results]


def put_batch(batch: Batch, calls: Sequence[Put], leaving: int | None = None) -> list[tuple[Receipt, ...]]:
    """Carry out all of these calls, which bring no failures, or none. Raises the first refusal, before anything is
    written.

    An item that leaves its queue in the same transaction makes room there.
    """
    merged: dict[str, tuple[NewItem, ...]] = {}
    for call in calls:
        merged[call.queue] = merged.get(call.queue, ()) + call.items
    checked = [_check(batch, Put(queue, items), alone=False, leaving=leaving) for queue, items in merged.items()]
    groups: _Groups = {}
    receipts = [_write(batch, each, groups) for each in checked]
    _write_groups(batch, groups)
    return [tuple(each) for each in receipts]


def check_size(batch: Batch, row: QueueRow, adding: int, leaving: int = 0) -> None:
    """Raise QueueFull where `adding` more items would exceed max_size, once `leaving` have gone."""
    max_size = row.settings.max_size
    if max_size is None or adding == 0:
        return
    if row.key not in batch.sizes:
        batch.sizes[row.key] = batch.execute(_SIZE, (row.key,)).get
    size = batch.sizes[row.key] - leaving
    size += sum(batch.tallied(row.key, name) for name in ("pending", "failed", "active"))
    if size + adding > max_size:
        raise QueueFull(row.queue.name, size, max_size, adding)


def known_source(batch: Batch, row: QueueRow, source_id: ItemId) -> ItemId | None:
    """The item of a queue that came there under this id, if it is there or came not long ago."""
    there = batch.execute(_SOURCE, (row.key, source_id, ledger_key(source_id))).fetchone()
    return None if there is None else make_id(*there)


def remember_source(batch: Batch, row: QueueRow, source_id: ItemId, number: int, tail: int) -> None:
    """Know the id that an item came to a queue under."""
    batch.execute(_REMEMBER_SOURCE, (row.key, source_id, number, tail, batch.now))


def _check(batch: Batch, call: Put, *, alone: bool = True, leaving: int | None = None) -> _CheckedPut:
    """Raise whatever stands against a put call. Only one that is `alone`, and no part of another, brings failures."""
    row = batch.queue(call.queue)
    largest = row.settings.max_payload_size
    groups: set[_Group | None] = set()
    born_dead: list[int] = []
    for position, item in enumerate(call.items):
        if len(item.payload) > largest:
            raise PayloadTooLarge("payload", len(item.payload), largest, "max_payload_size")
        if not item.is_plain:
            check_failure(item, alone=alone)
        if item.verdict is not None:
            verdicts.check(batch, row, OutcomeKind.FAILED, item.verdict)
            if isinstance(item.verdict, Dead):
                born_dead.append(position)
        groups.add((row.key, item.content_type, item.priority, item.expire_timeout) if item.is_plain else None)
    group = groups.pop() if len(groups) == 1 else None
    known = _known(batch, row, call.items) if group is None else {}
    adding = len(call.items) - len(known) - sum(position not in known for position in born_dead)
    check_size(batch, row, adding, leaving=int(leaving == row.key))
    return _CheckedPut(row, call.items, group, known)


def _write(batch: Batch, put: _CheckedPut, groups: _Groups) -> list[Receipt]:
    """Put every item, in order, or let them join their group."""
    row, items = put.row, put.items
    receipts: list[Receipt] = [None] * len(items)  # type: ignore[list-item]  # filled below, or with the group
    if put.group is not None:
        bounded = row.settings.max_size is not None
        if bounded:
            groups = {}  # written at once, so that the next call of the batch is checked against it
        payloads, owners = groups.setdefault(put.group, ([], []))
        payloads += [item.payload for item in items]
        owners += [(receipts, position) for position in range(len(items))]
        if bounded:
            _write_groups(batch, groups)
        return receipts
    written: dict[str, ItemId] = {}
    for position, item in enumerate(items):
        if (known := put.known.get(position)) is not None:
            id = known.id or written.get(item.source_id or "") or written[item.idempotency_key or ""]
            receipts[position] = Receipt(id, duplicate=True)
            if item.failure is not None and not known.ignored:
                _add_failure(batch, row, id, item)
        else:
            id = _write_with_options(batch, row, item)
            receipts[position] = Receipt(id)
            written.update({key: id for key in (item.source_id, item.idempotency_key) if key is not None})
    return receipts


def _known(batch: Batch, row: QueueRow, items: Sequence[NewItem]) -> dict[int, _Known]:
    """Those that are there already, by their positions."""
    known: dict[int, _Known] = {}
    keys = [item.idempotency_key for item in items if item.idempotency_key is not None]
    if keys and not all((row.key, key) in batch.known_keys for key in keys):
        batch.session.lock_idempotency_keys(batch, row.key, keys)
    sources: set[str] = set()
    firsts: dict[str, NewItem] = {}
    for position, item in enumerate(items):
        there = _known_by_source(batch, row, item, sources) or _known_by_key(batch, row, item, firsts)
        if there is not None:
            known[position] = there
        elif item.idempotency_key is not None:
            firsts[item.idempotency_key] = item
        if item.source_id is not None:
            sources.add(item.source_id)
    return known


def _known_by_source(batch: Batch, row: QueueRow, item: NewItem, sources: Collection[str]) -> _Known | None:
    if item.source_id is None:
        return None
    there = known_source(batch, row, item.source_id)
    return _Known(there, ignored=True) if there is not None or item.source_id in sources else None


def _known_by_key(batch: Batch, row: QueueRow, item: NewItem, firsts: Mapping[str, NewItem]) -> _Known | None:
    """What a known key stands for; None where a failure finds that gone, and is a new item.

    `firsts` are the items of this call that are new, by their keys: they take them over.
    """
    key = item.idempotency_key
    if key is None:
        return None
    first = firsts.get(key)
    if first is not None:
        if _digest(first) != _digest(item):
            raise IdempotencyConflict(row.queue.name, key, SAME_CALL)
        dropped = isinstance(first.verdict, Dead) and first.verdict.drops
        return None if dropped and item.failure is not None else _Known(None)
    found = _find_key(batch, row.key, key)
    if found is None:
        return None
    id = make_id(found[0], found[1])
    if found[2] != _digest(item):
        raise IdempotencyConflict(row.queue.name, key, id)
    return _Known(id) if item.failure is None or _gets_failure(batch, id) else None


def _gets_failure(batch: Batch, id: ItemId) -> bool:
    place = find_by_id(batch, id)
    if place is None:
        return False
    return takes_failure(place.id, place.status, None if place.passage is None else place.passage.to)


def _find_keys(batch: Batch, calls: Sequence[Put]) -> None:
    """Look at the idempotency keys of all calls at once, where that is cheaper."""
    asked: dict[int, list[str]] = {}
    for call in calls:
        if not call.items or call.items[0].is_plain or (row := batch.by_name.get(call.queue)) is None:
            continue
        if keys := [item.idempotency_key for item in call.items if item.idempotency_key is not None]:
            asked.setdefault(row.key, []).extend(keys)
    for queue, keys in sorted(asked.items()):
        found = batch.session.find_idempotency_keys(batch, queue, keys)
        if found is not None:
            batch.known_keys.update({(queue, key): found.get(key) for key in keys})


def _find_key(batch: Batch, queue: int, key: str) -> tuple[int, int, bytes] | None:
    """What a key stands for: number, tail and digest of the first item."""
    if (queue, key) in batch.known_keys:
        return batch.known_keys[queue, key]
    found: tuple[int, int, bytes] | None = batch.execute(_KEY, (queue, key, batch.now)).fetchone()
    return found


def _digest(item: NewItem) -> bytes:
    return hashlib.blake2b(item.content_type.encode() + b"\0" + item.payload, digest_size=16).digest()


def _write_groups(batch: Batch, groups: _Groups) -> None:
    for (queue, content_type, priority, expire_timeout), (payloads, owners) in groups.items():
        _write_plain(batch, batch.by_key[queue], content_type, priority, expire_timeout, payloads, owners)


def _write_plain(
    batch: Batch,
    row: QueueRow,
    content_type: str,
    priority: int,
    expire_timeout: int | None,
    payloads: list[bytes],
    owners: list[tuple[list[Receipt], int]],
) -> None:
    """All items that differ only in their payload, with two statements."""
    count, now = len(payloads), batch.now
    first, salt = batch.draw(count), draw_salt()
    stored_type = None if content_type == JSON else content_type
    expire_deadline = _expire_deadline(batch, row, expire_timeout)
    rank = MAX_PRIORITY - priority
    if count == 1:
        tail = ((salt + SALT_STEP) & SALT_MASK) << PARTITION_BITS
        batch.execute(_PLAIN_ITEM, (first, tail, row.key, now, priority, stored_type, expire_timeout, payloads[0]))
        batch.execute(_PLAIN_READY, (row.key, first, rank, now, expire_deadline))
    else:
        values = batch.session.blobs(payloads)
        shared = (first - 1, salt, row.key, now, priority, stored_type, expire_timeout)
        batch.execute(_PLAIN_ITEMS, (*shared, values))
        numbers = batch.table(range(first, first + count))
        batch.execute(_PLAIN_READIES, (row.key, rank, now, expire_deadline, numbers))
    batch.count_delta(row.key, "pending", count)
    batch.count_delta(row.key, "put_total", count)
    batch.arrivals[row.queue.name] += count
    for index, (receipts, position) in enumerate(owners):
        salt = (salt + SALT_STEP) & SALT_MASK
        receipts[position] = Receipt(ItemId(f"{salt << PARTITION_BITS:016x}{first + index:016x}"))
        if row.records_success:
            feed.append_event(batch, FeedKind.PUT, row.queue.name, first + index, salt << PARTITION_BITS)


def _write_with_options(batch: Batch, row: QueueRow, item: NewItem) -> ItemId:
    """An item with options of its own."""
    now = batch.now
    number, tail, id = batch.allocate_id()
    ready_at = now + item.delay if item.enqueue_at is None else max(now, item.enqueue_at)
    enqueue_at = None if ready_at == now else ready_at
    content_type = None if item.content_type == JSON else item.content_type
    headers = None if item.headers is None else msgspec.json.encode(item.headers).decode()
    keys = (number, tail, row.key, now, item.priority, enqueue_at, content_type, headers, item.expire_timeout)
    batch.write(_ITEM, (*keys, item.idempotency_key, _overrides(item), item.source_id, item.payload))
    if item.idempotency_key is not None:
        until, digest = now + row.settings.idempotency_timeout, _digest(item)
        batch.write(_REMEMBER_KEY, (row.key, item.idempotency_key, number, tail, digest, until))
        if (row.key, item.idempotency_key) in batch.known_keys:
            batch.known_keys[row.key, item.idempotency_key] = (number, tail, digest)
    if item.source_id is not None:
        remember_source(batch, row, item.source_id, number, tail)
    place = ItemRow(
        number, tail, row.key, Status.PENDING, MAX_PRIORITY - item.priority, Instant(ready_at), number,
        _expire_deadline(batch, row, item.expire_timeout), held_by=item.held_by,
    )  # fmt: skip
    batch.count_delta(row.key, "put_total")
    feed.append_event(batch, FeedKind.PUT, row.queue.name, number, tail)
    if item.failure is None:
        insert_row(batch, place)
        return id
    assert item.verdict is not None
    place.failures = 1
    entry = _entry(batch, row, place, item)
    verdicts.record(batch, place, entry)
    batch.count_delta(row.key, "failed_total")
    verdicts.apply_verdict(batch, place, item.verdict, entry)
    return id


def _add_failure(batch: Batch, row: QueueRow, id: ItemId, item: NewItem) -> None:
    """One more failure of work that is known by its key: it is written down; where the item stands stays as it is."""
    place = find_by_id(batch, id)
    assert place is not None, "it was there when the call was checked"
    batch.count_delta(row.key, "failed_total")
    entry = _entry(batch, row, place, item)
    verdicts.tell(batch, FeedKind.FAILED, place, entry, title=verdicts.title(entry))
    if place.status is Status.ACTIVE:  # its lease froze the counters
        verdicts.record(batch, place, entry)
        batch.execute("UPDATE redrive_lease SET entries = ? WHERE n = ?", (place.entries, place.n))
        return
    changed = msgspec.structs.replace(place, failures=place.failures + 1, ready=False)
    delete_row(batch, place)
    verdicts.record(batch, changed, entry)
    insert_row(batch, changed)


def _entry(batch: Batch, row: QueueRow, place: ItemRow, item: NewItem) -> HistoryEntry:
    """What the history says of the failure that an item is put with."""
    assert item.failure is not None
    return HistoryEntry(
        at=batch.now,
        event=HistoryEvent.FAILED,
        queue=row.queue.name,
        delivery=place.deliveries,
        failure=item.failure,
        worker=item.failure.worker,
        note=item.note,
    )


def _overrides(item: NewItem) -> str | None:
    return None if item.overrides == NO_OVERRIDES else msgspec.json.encode(item.overrides).decode()


def _expire_deadline(batch: Batch, row: QueueRow, timeout: int | None) -> Instant | None:
    chosen = row.settings.expire_timeout if timeout is None else timeout
    return None if chosen is None else Instant(batch.now + chosen)

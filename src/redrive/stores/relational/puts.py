"""Puts: many plain items in one statement, everything else row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from redrive.clock import Instant
from redrive.contract.item_calls import NewItem, Put, StaleSettings, check_failure, has_stale_verdict
from redrive.contract.replies import REPLY_TO
from redrive.errors import PayloadTooLarge, RedriveError
from redrive.model.feed import FeedKind
from redrive.model.holder import ItemHolder
from redrive.model.ids import PARTITION_BITS, ItemId, make_id
from redrive.model.item import NO_OVERRIDES, HistoryEntry, HistoryEvent, Receipt, Status
from redrive.model.judge import Dead, OutcomeKind, RetryVerdict
from redrive.model.limits import MAX_PRIORITY
from redrive.model.payload import JSON
from redrive.stores.relational import feed, verdicts
from redrive.stores.relational.batch import SALT_MASK, SALT_STEP, Batch, KnownKey, random_salt
from redrive.stores.relational.deduplication import KnownItem, find_known, read_keys, remember_key, remember_source
from redrive.stores.relational.item_rows import ItemRow, delete_row, find_by_id, insert_retried, insert_row
from redrive.stores.relational.queue_rows import QueueRow
from redrive.stores.relational.queues import check_max_size

_PLAIN_ITEMS = f"""
    INSERT INTO redrive_item (item_no, id_suffix, queue, put_at, priority, content_type, expire_timeout, payload)
    SELECT ?1 + rowid, (?2 + rowid * {SALT_STEP} & {SALT_MASK}) << {PARTITION_BITS}, ?3, ?4, ?5, ?6, ?7, value
    FROM carray(?8)"""
_PLAIN_ITEM = """
    INSERT INTO redrive_item (item_no, id_suffix, queue, put_at, priority, content_type, expire_timeout, payload)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
_PLAIN_READY = """
    INSERT INTO redrive_ready (queue, item_no, rank, ready_at, seq, expire_deadline,
        deliveries, attempts, failures, losses, redrives, first_leased_at, entries, deaths, death_no)
    VALUES (?1, ?2, ?3, ?4, ?2, ?5, 0, 0, 0, 0, 0, NULL, 0, 0, NULL)"""
_PLAIN_READIES = """
    INSERT INTO redrive_ready (queue, item_no, rank, ready_at, seq, expire_deadline,
        deliveries, attempts, failures, losses, redrives, first_leased_at, entries, deaths, death_no)
    SELECT ?1, value, ?2, ?3, value, ?4, 0, 0, 0, 0, 0, NULL, 0, 0, NULL FROM carray(?5)"""
_ITEM = """
    INSERT INTO redrive_item (item_no, id_suffix, queue, put_at, priority, enqueue_at, content_type, headers,
        expire_timeout, idempotency_key, overrides, source_id, payload)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

_InsertBatch = tuple[int, str, int, int | None]
"""What plain items that are inserted together share: queue, content type, priority, expire_timeout."""
_InsertBatches = dict[_InsertBatch, tuple[list[bytes], list[tuple[list[Receipt], int]]]]
"""The payloads of each group, and the positions of their receipts."""


_NOT_READ = KnownKey(0, 0, b"", False)


class _CheckedPut(msgspec.Struct):
    """A put call that passed all checks and is not written yet."""

    row: QueueRow
    items: tuple[NewItem, ...]
    group: _InsertBatch | None
    """What all items share, if they differ only in their payload; then they are inserted with others."""
    known: dict[int, KnownItem]
    """Items that exist already, by position."""


def put_all(batch: Batch, calls: Sequence[Put]) -> list[Any]:
    """Execute put calls separately. Plain items of a queue are inserted together."""
    results: list[Any] = []
    groups: _InsertBatches = {}
    by_name = batch.by_name
    read_keys(batch, calls)
    for call in calls:
        row = by_name.get(call.queue)
        item = call.items[0] if len(call.items) == 1 else None
        if row is not None and item is not None and item.is_plain and len(item.payload) <= row.plain_put_max_bytes:
            # The most frequent put: one plain item, and only its size to check.
            receipts: list[Any] = [None]
            group = (row.key, item.content_type, item.priority, item.expire_timeout)
            if group not in groups:
                groups[group] = ([], [])
            payloads, owners = groups[group]
            payloads.append(item.payload)
            owners.append((receipts, 0))
            results.append(receipts)
            continue
        if row is not None and item is not None and (receipt := _put_retried(batch, row, item)) is not None:
            results.append((receipt,))
            continue
        try:
            if row is not None and has_stale_verdict(call, row.queue):
                results.append(StaleSettings(row.queue))
            else:
                results.append(_write(batch, _check(batch, call), groups))
        except RedriveError as refusal:
            results.append(refusal)
    _write_insert_batches(batch, groups)
    batch.known_keys.clear()  # the calls that follow may end the items of some
    return [tuple(result) if result.__class__ is list else result for result in results]


def put_batch(
    batch: Batch,
    calls: Sequence[Put],
    leaving: int | None = None,
    completes: int | None = None,
    *,
    passing: bool = False,
) -> list[tuple[Receipt, ...]]:
    """Execute all of these calls, which bring no failures, or none. Raises the first refusal before writing.

    `leaving` is the key of the queue that an item leaves in the same transaction, which makes room there; `completes`
    the number of the item if it is completed, which frees its idempotency key. What is `passing` leaves its queue in
    the same transaction, so that the limits of the queue do not apply.
    """
    merged: dict[str, tuple[NewItem, ...]] = {}
    for call in calls:
        merged[call.queue] = merged.get(call.queue, ()) + call.items
    checked = [
        _check(batch, Put(queue, items), False, leaving, completes, passing=passing) for queue, items in merged.items()
    ]
    groups: _InsertBatches = {}
    receipts = [_write(batch, each, groups) for each in checked]
    _write_insert_batches(batch, groups)
    return [tuple(each) for each in receipts]


def _check(
    batch: Batch,
    call: Put,
    alone: bool = True,
    leaving: int | None = None,
    completes: int | None = None,
    *,
    passing: bool = False,
) -> _CheckedPut:
    """Check a put call; raises its refusal. Only a put `alone`, not part of another call, brings failures."""
    row = batch.queue(call.queue)
    largest = row.settings.max_payload_size
    groups: set[_InsertBatch | None] = set()
    born_dead: list[int] = []
    for position, item in enumerate(call.items):
        if len(item.payload) > largest and not passing:
            raise PayloadTooLarge("payload", len(item.payload), largest, "max_payload_size")
        if not item.is_plain:
            check_failure(item, alone=alone)
        if item.verdict is not None:
            verdicts.check(batch, row, OutcomeKind.FAILED, item.verdict)
            if isinstance(item.verdict, Dead):
                born_dead.append(position)
        groups.add((row.key, item.content_type, item.priority, item.expire_timeout) if item.is_plain else None)
    group = groups.pop() if len(groups) == 1 else None
    known = find_known(batch, row, call.items, completes) if group is None else {}
    adding = len(call.items) - len(known) - sum(position not in known for position in born_dead)
    if not passing:
        check_max_size(batch, row, adding, leaving=int(leaving == row.key))
    return _CheckedPut(row, call.items, group, known)


def _write(batch: Batch, put: _CheckedPut, groups: _InsertBatches) -> list[Receipt]:
    """Insert all items in order, or add them to their group."""
    row, items = put.row, put.items
    receipts: list[Receipt] = [None] * len(items)  # type: ignore[list-item]  # filled below, or with the group
    if put.group is not None:
        bounded = row.settings.max_size is not None
        if bounded:
            groups = {}  # written immediately, so that the next call of the batch is checked against it
        payloads, owners = groups.setdefault(put.group, ([], []))
        payloads += [item.payload for item in items]
        owners += [(receipts, position) for position in range(len(items))]
        if bounded:
            _write_insert_batches(batch, groups)
        return receipts
    written: dict[str, ItemId] = {}
    # Before a failure of one of them moves an item to a dead queue, which takes a number too.
    new_ids = {position: batch.allocate_id() for position in range(len(items)) if position not in put.known}
    for position, item in enumerate(items):
        if (known := put.known.get(position)) is not None:
            id = known.id or written.get(item.source_id or "") or written[item.idempotency_key or ""]
            receipts[position] = Receipt(id, duplicate=True)
            if item.failure is not None and not known.ignored:
                _add_failure(batch, row, id, item)
        else:
            id = _write_with_options(batch, row, item, *new_ids[position])
            receipts[position] = Receipt(id)
            written.update({key: id for key in (item.source_id, item.idempotency_key) if key is not None})
    return receipts


def _write_insert_batches(batch: Batch, groups: _InsertBatches) -> None:
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
    first, salt = batch.allocate(count), random_salt()
    stored_type = None if content_type == JSON else content_type
    expire_deadline = _expire_deadline(batch, row, expire_timeout)
    rank = MAX_PRIORITY - priority
    if count == 1:
        id_suffix = ((salt + SALT_STEP) & SALT_MASK) << PARTITION_BITS
        batch.execute(_PLAIN_ITEM, (first, id_suffix, row.key, now, priority, stored_type, expire_timeout, payloads[0]))
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


def _put_retried(batch: Batch, row: QueueRow, item: NewItem) -> Receipt | None:
    """Insert a new item that has failed once and is retried, as most captured ones are, with the rows and numbers that
    `_write_with_options` gives it. None: it is another one, or there is more to check."""
    failure, verdict = item.failure, item.verdict
    if (
        failure is None
        or verdict.__class__ is not RetryVerdict
        or verdict.status is not Status.FAILED
        or verdict.held_by
        or item.version != row.queue.version
        or len(item.payload) > row.plain_put_max_bytes
        or batch.known_keys.get((row.key, item.idempotency_key or ""), _NOT_READ) is not None
        or item.enqueue_at is not None
        or item.held_by is not None
        or item.source_id is not None
        or item.delay
        or FeedKind.PUT in row.feed_kinds
    ):
        return None
    now, queue = batch.now, row.queue.name
    number, id_suffix = batch.allocate(3), random_salt() << PARTITION_BITS
    _write_content(batch, row, item, number, id_suffix, None)
    entry = HistoryEntry(now, HistoryEvent.FAILED, queue, 0, failure, failure.worker, note=item.note)
    batch.write(verdicts.INSERT_HISTORY, (number + 1, number, 1, msgspec.json.encode(entry)))
    insert_retried(
        batch,
        row.key,
        number,
        MAX_PRIORITY - item.priority,
        Instant(now + verdict.delay),
        number + 2,
        _expire_deadline(batch, row, item.expire_timeout),
    )
    batch.arrivals[queue] += not verdict.delay
    batch.count_delta(row.key, "put_total")
    _count_failure(batch, row)
    feed.append_event(batch, FeedKind.FAILED, queue, number, id_suffix, title=failure.title, failure=failure)
    return Receipt(make_id(number, id_suffix))


def _write_content(
    batch: Batch, row: QueueRow, item: NewItem, number: int, id_suffix: int, enqueue_at: int | None
) -> None:
    """Write what does not change of a new item, and its key."""
    content_type = None if item.content_type == JSON else item.content_type
    headers = None if item.headers is None else msgspec.json.encode(item.headers).decode()
    keys = (number, id_suffix, row.key, batch.now, item.priority, enqueue_at, content_type, headers)
    more = (item.expire_timeout, item.idempotency_key, _overrides(item), item.source_id, item.payload)
    batch.write(_ITEM, (*keys, *more))
    if item.headers is not None and REPLY_TO in item.headers:
        batch.mark_replies(row)
    if item.idempotency_key is not None:
        remember_key(batch, row, item, number, id_suffix)


def _write_with_options(batch: Batch, row: QueueRow, item: NewItem, number: int, id_suffix: int, id: ItemId) -> ItemId:
    """Insert an item with options under an id that was allocated for it."""
    now = batch.now
    ready_at = now + item.delay if item.enqueue_at is None else max(now, item.enqueue_at)
    _write_content(batch, row, item, number, id_suffix, None if ready_at == now else ready_at)
    if item.source_id is not None:
        remember_source(batch, row, item.source_id, number, id_suffix)
    holders = () if item.held_by is None else (ItemHolder(item.held_by, item.hold_is_lasting),)
    item_row = ItemRow(
        number, id_suffix, row.key, Status.PENDING, MAX_PRIORITY - item.priority, Instant(ready_at), number,
        _expire_deadline(batch, row, item.expire_timeout), holders=holders,
    )  # fmt: skip
    batch.count_delta(row.key, "put_total")
    feed.append_event(batch, FeedKind.PUT, row.queue.name, number, id_suffix)
    if item.failure is None:
        insert_row(batch, item_row)
        return id
    assert item.verdict is not None
    item_row.failures = 1
    entry = _entry(batch, row, item_row, item)
    verdicts.record(batch, item_row, entry)
    _count_failure(batch, row)
    if isinstance(item.verdict, Dead) and item.verdict.to is not None:
        batch.flush()  # the move changes the row of the content, which must be there by then
    verdicts.apply_verdict(batch, item_row, item.verdict, entry)
    return id


def _add_failure(batch: Batch, row: QueueRow, id: ItemId, item: NewItem) -> None:
    """Add a failure to the item that a key belongs to; its status does not change."""
    item_row = find_by_id(batch, id)
    assert item_row is not None, "it was there when the call was checked"
    _count_failure(batch, row)
    entry = _entry(batch, row, item_row, item)
    verdicts.append_event(batch, FeedKind.FAILED, item_row, entry, title=verdicts.title(entry))
    if item_row.status is Status.ACTIVE:  # its lease froze the counters
        verdicts.record(batch, item_row, entry)
        batch.execute("UPDATE redrive_lease SET entries = ? WHERE item_no = ?", (item_row.entries, item_row.item_no))
        return
    changed = msgspec.structs.replace(item_row, failures=item_row.failures + 1, ready=False)
    delete_row(batch, item_row)
    verdicts.record(batch, changed, entry)
    insert_row(batch, changed)


def _count_failure(batch: Batch, row: QueueRow) -> None:
    batch.count_delta(row.key, "failed_total")
    batch.count_delta(row.key, "captured_total")


def _entry(batch: Batch, row: QueueRow, item_row: ItemRow, item: NewItem) -> HistoryEntry:
    """Return the history entry of the failure that an item is put with."""
    assert item.failure is not None
    return HistoryEntry(
        at=batch.now,
        event=HistoryEvent.FAILED,
        queue=row.queue.name,
        delivery=item_row.deliveries,
        failure=item.failure,
        worker=item.failure.worker,
        note=item.note,
    )


def _overrides(item: NewItem) -> str | None:
    return None if item.overrides == NO_OVERRIDES else msgspec.json.encode(item.overrides).decode()


def _expire_deadline(batch: Batch, row: QueueRow, timeout: int | None) -> Instant | None:
    chosen = row.settings.expire_timeout if timeout is None else timeout
    return None if chosen is None else Instant(batch.now + chosen)

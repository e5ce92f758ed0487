"""Puts: many plain items in one statement, items with options row by row, and the rest by the rules."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

from redrive.clock import Instant
from redrive.contract.item_calls import NewItem, Put, check_failure, ready_instant
from redrive.contract.replies import REPLY_TO
from redrive.errors import PayloadTooLarge, RedriveError
from redrive.model.feed import FeedKind
from redrive.model.holder import ItemHolder
from redrive.model.ids import PARTITION_BITS, ItemId, make_id
from redrive.model.item import NO_OVERRIDES, HistoryEntry, HistoryEvent, Receipt, Status
from redrive.model.judge import RetryVerdict
from redrive.model.limits import MAX_PRIORITY
from redrive.model.payload import JSON
from redrive.stores.relational import feed, verdicts
from redrive.stores.relational.batch import SALT_MASK, SALT_STEP, Batch, KnownKey, random_salt
from redrive.stores.relational.deduplication import find_known, read_keys, remember_key
from redrive.stores.relational.item_rows import INSERT_SCHEDULED, ItemRow, insert_row
from redrive.stores.relational.queue_rows import QueueRow
from redrive.stores.relational.queues import check_max_size
from redrive.stores.relational.rule_execution import execute_by_rules, put_by_rules

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
"""Common values of plain items that are inserted together: queue, content type, priority, expire_timeout."""
_Owner = int | tuple[list[Receipt], int]
"""Destination of an item's receipt: the index of the call that puts only this one, or a position among others."""
_InsertBatches = dict[_InsertBatch, tuple[list[bytes], list[_Owner]]]
"""The payloads of each group, and the owners of their receipts."""


_NOT_READ = KnownKey(0, 0, b"", False)


class _CheckedPut(msgspec.Struct):
    """A put call that passed all checks and is not written yet."""

    row: QueueRow
    items: tuple[NewItem, ...]
    group: _InsertBatch | None
    """Common values of all items, if they differ only in their payload; then they are inserted with others."""
    known: dict[int, ItemId | None]
    """Items that exist already, by position; None: one of the same call."""


def put_all(batch: Batch, calls: Sequence[Put]) -> list[Any]:
    """Execute put calls separately. Plain items of a queue are inserted together, odd ones follow the rules."""
    results: list[Any] = [None] * len(calls)
    odd: list[int] = []
    groups: _InsertBatches = {}
    read_keys(batch, calls)
    queue, row = "", None
    for index, call in enumerate(calls):
        if call.queue != queue:
            queue = call.queue
            row = batch.by_name.get(queue)
        item = call.items[0] if len(call.items) == 1 else None
        if row is not None and item is not None and item.is_plain and len(item.payload) <= row.plain_put_max_bytes:
            # The most frequent put: one plain item, and only its size to check.
            group = (row.key, item.content_type, item.priority, item.expire_timeout)
            if group not in groups:
                groups[group] = ([], [])
            payloads, owners = groups[group]
            payloads.append(item.payload)
            owners.append(index)
            continue
        retried = row is not None and item is not None and _is_retried(batch, row, item)
        if odd and (retried or not is_odd_put(call)):  # the keys of those before it may be its own
            _put_odd(batch, calls, odd, results)
            retried = retried and _is_retried(batch, row, item)  # type: ignore[arg-type]  # neither is None
        if retried:
            results[index] = (_put_retried(batch, row, item),)  # type: ignore[arg-type]
        elif is_odd_put(call):
            odd.append(index)
        else:
            results[index] = _put_or_refuse(batch, call, groups)
    _put_odd(batch, calls, odd, results)
    _write_insert_batches(batch, groups, results)
    batch.known_keys.clear()  # the calls that follow may end the items of some
    return [tuple(result) if result.__class__ is list else result for result in results]


def is_odd_put(call: Put) -> bool:
    """Return whether it brings failures, or items that came from elsewhere."""
    return any(item.failure is not None or item.source_id is not None for item in call.items)


def _put_odd(batch: Batch, calls: Sequence[Put], odd: list[int], results: list[Any]) -> None:
    """Execute calls by the rules."""
    if odd:
        for index, result in zip(odd, execute_by_rules(batch, [calls[index] for index in odd]), strict=True):
            results[index] = result
        odd.clear()


def _put_or_refuse(batch: Batch, call: Put, groups: _InsertBatches) -> list[Receipt] | RedriveError:
    try:
        return _write(batch, _check(batch, call), groups)
    except RedriveError as refusal:
        return refusal


def put_batch(
    batch: Batch, calls: Sequence[Put], leaving: int | None = None, completes: int | None = None
) -> tuple[Receipt, ...]:
    """Execute all of these calls, which are part of another one, or none. Raises the first refusal before writing.

    `leaving` is the key of the queue that an item leaves in the same transaction, which makes room there; `completes`
    the number of the item if it is completed, which frees its idempotency key.
    """
    if any(map(is_odd_put, calls)):
        return put_by_rules(batch, calls)
    merged: dict[str, tuple[NewItem, ...]] = {}
    for call in calls:
        merged[call.queue] = merged.get(call.queue, ()) + call.items
    checked = [_check(batch, Put(queue, items), False, leaving, completes) for queue, items in merged.items()]
    groups: _InsertBatches = {}
    receipts = [_write(batch, each, groups) for each in checked]
    _write_insert_batches(batch, groups, [])
    return tuple(itertools.chain.from_iterable(receipts))


def _check(
    batch: Batch, call: Put, alone: bool = True, leaving: int | None = None, completes: int | None = None
) -> _CheckedPut:
    """Check a put call; raises its refusal. Only a put `alone`, not part of another call, brings failures."""
    row = batch.queue(call.queue)
    largest = row.settings.max_payload_size
    groups: set[_InsertBatch | None] = set()
    for item in call.items:
        if len(item.payload) > largest:
            raise PayloadTooLarge("payload", len(item.payload), largest, "max_payload_size")
        if not item.is_plain:
            check_failure(item, alone=alone)
        groups.add((row.key, item.content_type, item.priority, item.expire_timeout) if item.is_plain else None)
    group = groups.pop() if len(groups) == 1 else None
    known = find_known(batch, row, call.items, completes) if group is None else {}
    check_max_size(batch, row, len(call.items) - len(known), leaving=int(leaving == row.key))
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
            _write_insert_batches(batch, groups, [])
        return receipts
    written: dict[str, ItemId] = {}
    new_ids = {position: batch.allocate_id() for position in range(len(items)) if position not in put.known}
    for position, item in enumerate(items):
        if position in put.known:
            id = put.known[position] or written[item.idempotency_key or ""]
            receipts[position] = Receipt(id, duplicate=True)
        else:
            id = _write_with_options(batch, row, item, *new_ids[position])
            receipts[position] = Receipt(id)
            if item.idempotency_key is not None:
                written[item.idempotency_key] = id
    return receipts


def _write_insert_batches(batch: Batch, groups: _InsertBatches, results: list[Any]) -> None:
    """Insert all groups. `results` are those of the calls, of which some put only one item."""
    for group, (payloads, owners) in groups.items():
        for owner, receipt in zip(owners, _write_plain(batch, group, payloads), strict=True):
            if isinstance(owner, int):
                results[owner] = (receipt,)
            else:
                owner[0][owner[1]] = receipt


def _write_plain(batch: Batch, group: _InsertBatch, payloads: list[bytes]) -> list[Receipt]:
    """Insert all items that differ only in their payload, with two statements."""
    queue, content_type, priority, expire_timeout = group
    row, count, now = batch.by_key[queue], len(payloads), batch.now
    first, salt = batch.allocate(count), random_salt()
    stored_type = None if content_type == JSON else content_type
    timeout = row.settings.expire_timeout if expire_timeout is None else expire_timeout
    expire_deadline = None if timeout is None else now + timeout
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
    receipts: list[Receipt] = []
    for number in range(first, first + count):
        salt = (salt + SALT_STEP) & SALT_MASK
        receipts.append(Receipt(make_id(number, salt << PARTITION_BITS)))
        if row.records_success:
            feed.append_event(batch, FeedKind.PUT, row.queue.name, number, salt << PARTITION_BITS)
    return receipts


def _is_retried(batch: Batch, row: QueueRow, item: NewItem) -> bool:
    """Return whether a new item has failed once and is retried, as most captured ones are, and nothing is to check."""
    verdict = item.verdict
    return not (
        item.failure is None
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
    )


def _put_retried(batch: Batch, row: QueueRow, item: NewItem) -> Receipt:
    """Insert such an item, with the rows that the rules give it."""
    failure, verdict = item.failure, item.verdict
    assert failure is not None
    assert isinstance(verdict, RetryVerdict)
    now, queue = batch.now, row.queue.name
    number, id_suffix = batch.allocate(3), random_salt() << PARTITION_BITS
    _write_content(batch, row, item, number, id_suffix, None)
    entry = HistoryEntry(now, HistoryEvent.FAILED, queue, 0, failure, failure.worker, note=item.note)
    batch.write(verdicts.INSERT_HISTORY, (number + 1, number, 1, msgspec.json.encode(entry)))
    _insert_retried(
        batch,
        row.key,
        number,
        MAX_PRIORITY - item.priority,
        Instant(now + verdict.delay),
        number + 2,
        item.expire_deadline(now, row.settings.expire_timeout),
    )
    batch.arrivals[queue] += not verdict.delay
    for name in ("put_total", "failed_total", "captured_total"):
        batch.count_delta(row.key, name)
    feed.append_event(batch, FeedKind.FAILED, queue, number, id_suffix, title=failure.title, failure=failure)
    return Receipt(make_id(number, id_suffix))


def _write_content(
    batch: Batch, row: QueueRow, item: NewItem, number: int, id_suffix: int, enqueue_at: int | None
) -> None:
    """Write the immutable part of a new item, and its key."""
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
    ready_at = ready_instant(now, item.delay, item.enqueue_at)
    _write_content(batch, row, item, number, id_suffix, None if ready_at == now else ready_at)
    holders = () if item.held_by is None else (ItemHolder(item.held_by, item.hold_is_lasting),)
    item_row = ItemRow(
        number, id_suffix, row.key, Status.PENDING, MAX_PRIORITY - item.priority, ready_at, number,
        item.expire_deadline(now, row.settings.expire_timeout), holders=holders,
    )  # fmt: skip
    batch.count_delta(row.key, "put_total")
    feed.append_event(batch, FeedKind.PUT, row.queue.name, number, id_suffix)
    insert_row(batch, item_row)
    return id


def _overrides(item: NewItem) -> str | None:
    return None if item.overrides == NO_OVERRIDES else msgspec.json.encode(item.overrides).decode()


def _insert_retried(
    batch: Batch, queue: int, item_no: int, rank: int, ready_at: Instant, seq: int, expire_deadline: Instant | None
) -> None:
    """Insert the state row of a new item that has failed once, before any delivery, and waits for its next attempt."""
    batch.count_status(queue, Status.FAILED, 1)
    if expire_deadline is not None:
        batch.lower_mark(queue, "scheduled_expiry", expire_deadline)
    state = rank, ready_at, seq, expire_deadline, 0, 0, 1, 0, 0, None, 1, 0, None
    batch.write(INSERT_SCHEDULED, (item_no, queue, "failed", None, *state))

"""The feed: a record of events, written in the transaction of the change, if the queue keeps that kind.

An entry without an item has the number and the suffix 0, which no item has.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from redrive.contract.queries import FeedPage, ReadFeed, matches_feed_query
from redrive.model.classify import ErrorClass
from redrive.model.death import DeadReason
from redrive.model.failure import Failure
from redrive.model.feed import FeedEntry, FeedKind
from redrive.model.filter import MAX_EXAMINED
from redrive.model.ids import MAX_NUMBER, ItemId, make_id, parse_id
from redrive.model.item import Status
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.item_rows import ID_SUFFIX, earlier_ids, resolve
from redrive.stores.relational.session import Executor
from redrive.stores.rules.damage import UNREADABLE_TITLE, read_value

_ENTRY = """
    INSERT INTO redrive_feed (number, namespace, at, kind, queue, item_no, id_suffix, detail)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
_ENTRIES = """
    INSERT INTO redrive_feed (number, namespace, at, kind, queue, item_no, id_suffix, detail)
    SELECT ?1 + c.rowid, ?2, ?3, ?4, ?5, i.item_no, i.id_suffix, ?6
    FROM carray(?7) AS c CROSS JOIN redrive_item AS i ON i.item_no = c.value"""
_ROWS = "SELECT number, namespace, at, kind, queue, item_no, id_suffix, detail FROM redrive_feed"
_AFTER = f"{_ROWS} WHERE number > ? AND number < ? ORDER BY number LIMIT ?"
_BEFORE = f"{_ROWS} WHERE number > ? AND number < ? ORDER BY number DESC LIMIT ?"


class _Detail(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Fields that most entries do not have, in the order of `FeedEntry`."""

    source_id: ItemId | None = None
    title: str | None = None
    reason: DeadReason | None = None
    actor: str | None = None
    operation: str | None = None
    from_status: Status | None = None
    error_class: ErrorClass | None = None
    fingerprint: str | None = None
    breaker: str | None = None


_NO_DETAIL = _Detail()
_UNREADABLE = _Detail(title=UNREADABLE_TITLE)
_NO_ITEM = 0, 0
_KINDS = frozenset(FeedKind)
_decode_detail = msgspec.json.Decoder(_Detail).decode


def append_event(
    batch: Batch,
    kind: FeedKind,
    queue: str,
    item_no: int,
    id_suffix: int,
    *,
    source_id: ItemId | None = None,
    title: str | None = None,
    reason: DeadReason | None = None,
    actor: str | None = None,
    operation: str | None = None,
    from_status: Status | None = None,
    failure: Failure | None = None,
) -> None:
    """Record an event of the item that now has this number, if the queue keeps this kind."""
    if _keeps(batch, queue, kind):
        error = (None, None) if failure is None else (failure.error_class, failure.fingerprint)
        detail = _Detail(source_id, title, reason, actor, operation, from_status, *error)
        _write(batch, batch.allocate(), kind, queue, item_no, id_suffix, detail)


FailureEntry = tuple[int, int, int]
"""The number of an entry, and the number and the suffix of its item."""


def append_failures(
    batch: Batch, kind: FeedKind, queue: str, failure: Failure, reason: DeadReason | None, entries: list[FailureEntry]
) -> None:
    """Record uniform failures in a queue that keeps them, with the reason if items died of them."""
    detail = _Detail(
        title=failure.title, reason=reason, error_class=failure.error_class, fingerprint=failure.fingerprint
    )
    alike, encoded = (batch.namespace_key, batch.now, kind.value, queue), msgspec.json.encode(detail)
    rows = [(number, *alike, item_no, id_suffix, encoded) for number, item_no, id_suffix in entries]
    batch.write_last(_ENTRY, *rows)


def _keeps(batch: Batch, queue: str, kind: FeedKind) -> bool:
    row = batch.by_name.get(queue)
    return row is not None and kind in row.feed_kinds


def _write(
    batch: Batch, number: int, kind: FeedKind, queue: str, item_no: int, id_suffix: int, detail: _Detail
) -> None:
    encoded = None if detail == _NO_DETAIL else msgspec.json.encode(detail)
    batch.write_last(_ENTRY, (number, batch.namespace_key, batch.now, kind.value, queue, item_no, id_suffix, encoded))


def append_entry(batch: Batch, entry: FeedEntry) -> None:
    """Write an entry with its number, of a kind that its queue keeps."""
    number, _, kind, queue, id, *detail = msgspec.structs.astuple(entry)
    _write(batch, number, kind, queue, *(_NO_ITEM if id is None else parse_id(id)), _Detail(*detail))


def append_events(
    batch: Batch,
    kind: FeedKind,
    queue: str,
    numbers: Any,
    count: int,
    actor: str,
    operation: str | None,
    from_status: Status | None = None,
) -> None:
    """Record an event of many items that stay in their queue; `numbers` is a list that a statement can read."""
    if not _keeps(batch, queue, kind):
        return
    detail = msgspec.json.encode(_Detail(actor=actor, operation=operation, from_status=from_status))
    told = (batch.allocate(count) - 1, batch.namespace_key, batch.now, kind.value, queue, detail, numbers)
    batch.execute(_ENTRIES, told)


def read(executor: Executor, namespace_key: int | None, query: ReadFeed) -> FeedPage:
    """Return a page of the feed."""
    backwards = query.before is not None and query.after is None
    low = 0 if query.after is None else query.after
    high = MAX_NUMBER if query.before is None else query.before
    ids = None if query.id is None else _known_ids(executor, query.id)
    entries: list[FeedEntry] = []
    last, more = low, False
    with contextlib.closing(executor.stream(_BEFORE if backwards else _AFTER, (low, high, MAX_EXAMINED + 1))) as rows:
        for looked, (number, namespace, *row) in enumerate(rows):
            if looked == MAX_EXAMINED or len(entries) == query.limit:
                more = True
                break
            last = max(last, number)
            if namespace != namespace_key or row[1] not in _KINDS:  # such a kind is damaged
                continue
            if matches_feed_query(query, ids, entry := _entry(number, *row)):
                entries.append(entry)
    return FeedPage(tuple(reversed(entries)) if backwards else tuple(entries), last, more)


def _known_ids(executor: Executor, id: ItemId) -> frozenset[ItemId]:
    """Return all ids of the item that has or had this one; only this one if the item no longer exists."""
    item_no = resolve(executor, id)
    if item_no is None:
        return frozenset({id})
    return frozenset({make_id(item_no, executor.execute(ID_SUFFIX, (item_no,)).get), *earlier_ids(executor, item_no)})


def _entry(number: int, at: Any, kind: str, queue: str, item_no: int, id_suffix: int, detail: Any) -> FeedEntry:
    id = None if (item_no, id_suffix) == _NO_ITEM else make_id(item_no, id_suffix)
    more = _NO_DETAIL if detail is None else read_value(_decode_detail, detail, _UNREADABLE, tuple)
    return FeedEntry(number, at, FeedKind(kind), queue, id, *msgspec.structs.astuple(more))

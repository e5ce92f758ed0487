"""Whether an item that lived elsewhere is one that every store can keep: nothing of it was made here."""

from __future__ import annotations

import msgspec

from redrive.broker.checks import whole
from redrive.broker.items import check_overrides
from redrive.errors import InvalidInput
from redrive.model.address import check_address
from redrive.model.cause import Cause
from redrive.model.failure import MAX_TITLE_CHARS, cleaned
from redrive.model.ids import parse_id
from redrive.model.item import Counters, Death, HistoryEntry, Item, Result
from redrive.model.limits import MAX_STORABLE_BYTES, check_instant, check_label, check_name, check_priority
from redrive.model.payload import check_headers
from redrive.model.text import MAX_TEXT_BYTES, MAX_TYPE_BYTES, clean_text

MAX_COUNT = 2**31 - 1
"""The largest counter that an item may bring."""
MAX_ENTRIES = 10_000
"""Most deaths, earlier ids and entries of the history that an item may bring; of the history, 50 are kept."""

_INSTANTS = (
    "put_at",
    "ready_at",
    "expire_deadline",
    "lease_deadline",
    "first_leased_at",
    "ended_at",
    "moving_since",
)
_LABELS = ("held_by", "worker", "idempotency_key", "content_type")
_replace = msgspec.structs.replace


def checked_item(item: Item) -> Item:
    """The item, if every store can keep it."""
    for what in ("earlier_ids", "history", "deaths"):
        whole(f"the number of {what}", len(getattr(item, what)), 0, MAX_ENTRIES)
    for id in (item.id, item.source_id, item.origin_id, *item.earlier_ids):
        if id is not None:
            parse_id(id)
    check_name("queue", item.queue)
    if item.origin_queue is not None:
        check_name("queue", item.origin_queue)
    if item.home is not None:
        check_name("store", item.home)
    if item.moving_to is not None:
        check_address("queue", item.moving_to)
    check_priority(item.priority)
    for name in _INSTANTS:
        if getattr(item, name) is not None:
            check_instant(name, getattr(item, name))
    for name in _LABELS:
        if getattr(item, name) is not None:
            check_label(name, getattr(item, name))
    _check_counters(item.counters)
    check_overrides(item.overrides)
    whole("history_omitted", item.history_omitted, 0, MAX_COUNT)
    _check_bytes(item)
    if item.result is not None:
        _check_bytes(item.result)
        check_label("content_type", item.result.content_type)
    return _replace(
        item,
        headers=check_headers(item.headers),
        history=tuple(map(_checked_entry, item.history)),
        deaths=tuple(map(_checked_death, item.deaths)),
    )


def _check_bytes(value: Item | Result) -> None:
    if len(value.payload) > MAX_STORABLE_BYTES:
        raise InvalidInput(f"its payload has {len(value.payload):,} bytes and the limit is {MAX_STORABLE_BYTES:,}")


def _checked_entry(entry: HistoryEntry) -> HistoryEntry:
    check_instant("history.at", entry.at)
    whole("history.delivery", entry.delivery, 0, MAX_COUNT)
    check_name("queue", entry.queue)
    for name in ("worker", "actor", "operation"):
        if getattr(entry, name) is not None:
            check_label(name, getattr(entry, name))
    if entry.to is not None:
        check_address("queue", entry.to)
    failure = None if entry.failure is None else cleaned(entry.failure)
    note = None if entry.note is None else clean_text(entry.note, MAX_TEXT_BYTES)
    return _replace(entry, failure=failure, note=note)


def _checked_death(death: Death) -> Death:
    check_instant("deaths.at", death.at)
    if death.first_leased_at is not None:
        check_instant("deaths.first_leased_at", death.first_leased_at)
    parse_id(death.id)
    check_name("queue", death.queue)
    check_name("namespace", death.namespace)
    check_name("store", death.store)
    _check_counters(death.counters)
    return _replace(death, cause=_checked_cause(death.cause))


def _checked_cause(cause: Cause) -> Cause:
    return _replace(
        cause,
        fingerprint=clean_text(cause.fingerprint, MAX_TYPE_BYTES),
        title=clean_text(cause.title, 4 * MAX_TITLE_CHARS),
        error_type=clean_text(cause.error_type, MAX_TYPE_BYTES),
    )


def _check_counters(counters: Counters) -> None:
    for name in counters.__struct_fields__:
        whole(name, getattr(counters, name), 0, MAX_COUNT)

"""Whole items, with everything that is known of them: one look at each table for all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from redrive.model.ids import ItemId, make_id
from redrive.model.item import NO_OVERRIDES, WAITING_STATUSES, Death, HistoryEntry, Item, Overrides, Status
from redrive.model.limits import MAX_PRIORITY
from redrive.model.payload import JSON
from redrive.stores.relational.item_rows import ItemRow
from redrive.stores.relational.session import Executor

_CONTENTS = """
    SELECT n, payload, content_type, headers, put_at, idempotency_key, overrides, source_id, origin_id, origin_queue,
        home
    FROM redrive_item WHERE n IN carray(?)"""
_HISTORIES = """
    SELECT h.n, h.data FROM carray(?) AS c CROSS JOIN redrive_history AS h ON h.n = c.value ORDER BY h.n, h.entry"""
_DEATHS = """
    SELECT d.n, d.data FROM carray(?) AS c CROSS JOIN redrive_death AS d ON d.n = c.value ORDER BY d.n, d.key"""
_EARLIER = """
    SELECT l.n, l.old, l.tail FROM carray(?) AS c CROSS JOIN redrive_lineage AS l ON l.n = c.value
    ORDER BY l.n, l.old"""
_decode_entry = msgspec.json.Decoder(HistoryEntry).decode
_decode_death = msgspec.json.Decoder(Death).decode


def full_items(executor: Executor, places: Collection[ItemRow], names: Mapping[int, str]) -> list[Item]:
    """The items that stand there, in this order; the names of their queues by key."""
    numbers = (executor.table([place.n for place in places]),)
    # All are sent before the first is waited for.
    contents, histories, deaths, lineage = (
        executor.execute(statement, numbers) for statement in (_CONTENTS, _HISTORIES, _DEATHS, _EARLIER)
    )
    content = {n: row for n, *row in contents.fetchall()}
    entries: dict[int, list[HistoryEntry]] = {}
    for n, data in histories.fetchall():
        entries.setdefault(n, []).append(_decode_entry(data))
    died: dict[int, list[Death]] = {}
    for n, data in deaths.fetchall():
        died.setdefault(n, []).append(_decode_death(data))
    earlier: dict[int, list[ItemId]] = {}
    for n, old, tail in lineage.fetchall():
        earlier.setdefault(n, []).append(make_id(old, tail))
    return [
        _full_item(
            place,
            names[place.queue],
            tuple(entries.get(place.n, ())),
            tuple(died.get(place.n, ())),
            tuple(earlier.get(place.n, ())),
            *content[place.n],
        )
        for place in places
    ]


def overrides_of(stored: str | None) -> Overrides:
    """What an item was put with, as it is stored."""
    return NO_OVERRIDES if stored is None else msgspec.json.decode(stored, type=Overrides)


def _full_item(
    place: ItemRow,
    queue: str,
    history: tuple[HistoryEntry, ...],
    deaths: tuple[Death, ...],
    earlier_ids: tuple[ItemId, ...],
    payload: bytes,
    content_type: str | None,
    headers: str | None,
    put_at: Any,
    idempotency_key: str | None,
    overrides: str | None,
    source_id: ItemId | None,
    origin_id: ItemId | None,
    origin_queue: str | None,
    home: str | None,
) -> Item:
    working, moving = place.status in WAITING_STATUSES, place.passage
    in_dead_queue = place.letter is not None and place.status not in (Status.DEAD, Status.ARCHIVED)
    return Item(
        id=place.id,
        queue=queue,
        status=place.status,
        payload=payload,
        content_type=content_type or JSON,
        headers={} if headers is None else msgspec.json.decode(headers),
        priority=MAX_PRIORITY - place.rank,
        put_at=put_at,
        counters=place.counters,
        ready_at=place.ready_at if working else None,
        expire_deadline=place.expire_deadline,
        held_by=place.held_by,
        worker=place.worker,
        lease_deadline=place.deadline,
        first_leased_at=place.first_leased_at,
        dead_reason=place.dead_reason,
        ended_at=place.ended_at if moving is None else None,
        result=place.result,
        idempotency_key=idempotency_key,
        overrides=overrides_of(overrides),
        source_id=source_id,
        origin_id=origin_id,
        origin_queue=origin_queue,
        earlier_ids=earlier_ids,
        history=history,
        history_omitted=place.entries - len(history),
        deaths=deaths,
        moving_to=None if moving is None else moving.to,
        moving_since=None if moving is None else moving.since,
        home_store=home if in_dead_queue else None,
    )

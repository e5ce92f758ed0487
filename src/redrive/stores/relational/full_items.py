"""Full items, with content, history and deaths: one query per table for all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from redrive.clock import Instant
from redrive.model.holder import holder_names, lasting_holders
from redrive.model.ids import ItemId, make_id
from redrive.model.item import NO_OVERRIDES, WAITING_STATUSES, Death, HistoryEntry, Item, Overrides, Status
from redrive.model.limits import MAX_PRIORITY
from redrive.model.payload import JSON
from redrive.stores.relational.item_rows import ItemRow
from redrive.stores.relational.session import Executor

_CONTENTS = """
    SELECT item_no, payload, content_type, headers, put_at, idempotency_key, overrides, source_id, origin_id,
        origin_queue,
        home_store
    FROM redrive_item WHERE item_no IN carray(?)"""
_HISTORIES = """
    SELECT h.item_no, h.data FROM carray(?) AS c CROSS JOIN redrive_history AS h ON h.item_no = c.value
    ORDER BY h.item_no, h.entry"""
_DEATHS = """
    SELECT d.item_no, d.data FROM carray(?) AS c CROSS JOIN redrive_death AS d ON d.item_no = c.value
    ORDER BY d.item_no, d.key"""
_EARLIER = """
    SELECT l.item_no, l.old_item_no, l.old_id_suffix FROM carray(?) AS c
    CROSS JOIN redrive_former_id AS l ON l.item_no = c.value
    ORDER BY l.item_no, l.old_item_no"""
_ARCHIVED = "SELECT item_no, died_at FROM redrive_dead_letter WHERE death_no IN carray(?)"
_decode_entry = msgspec.json.Decoder(HistoryEntry).decode
_decode_death = msgspec.json.Decoder(Death).decode


def full_items(executor: Executor, item_rows: Collection[ItemRow], names: Mapping[int, str]) -> list[Item]:
    """Return the full items of these rows, in order. `names` has the names of queues by key."""
    numbers = (executor.table([item_row.item_no for item_row in item_rows]),)
    # All are sent before the first is waited for.
    contents, histories, deaths, lineage = (
        executor.execute(statement, numbers) for statement in (_CONTENTS, _HISTORIES, _DEATHS, _EARLIER)
    )
    content = {item_no: row for item_no, *row in contents.fetchall()}
    entries: dict[int, list[HistoryEntry]] = {}
    for item_no, data in histories.fetchall():
        entries.setdefault(item_no, []).append(_decode_entry(data))
    died: dict[int, list[Death]] = {}
    for item_no, data in deaths.fetchall():
        died.setdefault(item_no, []).append(_decode_death(data))
    earlier: dict[int, list[ItemId]] = {}
    for item_no, old, id_suffix in lineage.fetchall():
        earlier.setdefault(item_no, []).append(make_id(old, id_suffix))
    completed = _dropped_completions(executor, item_rows)
    return [
        _full_item(
            item_row,
            names[item_row.queue],
            tuple(entries.get(item_row.item_no, ())),
            tuple(died.get(item_row.item_no, ())),
            tuple(earlier.get(item_row.item_no, ())),
            _ended_at(item_row, died.get(item_row.item_no, ()), completed),
            *content[item_row.item_no],
        )
        for item_row in item_rows
    ]


def _dropped_completions(executor: Executor, item_rows: Collection[ItemRow]) -> dict[int, Instant]:
    """When dropped items were completed, by number: retention of the archive would count from it."""
    rows = [row for row in item_rows if row.dropped_at is not None and row.archived_from is Status.COMPLETED]
    if not rows:
        return {}
    found = executor.execute(_ARCHIVED, (executor.table([row.death_no for row in rows if row.death_no is not None]),))
    return dict(found.fetchall())


def _ended_at(item_row: ItemRow, deaths: Sequence[Death], completed: Mapping[int, Instant]) -> Instant | None:
    """Return when an item died or was completed; None if it has not ended."""
    if item_row.status is Status.ARCHIVED and item_row.dead_reason is not None:
        return deaths[-1].at
    waits = item_row.status is Status.ARCHIVED and item_row.archived_from in WAITING_STATUSES
    if waits or item_row.status is Status.MOVING:
        return None
    return item_row.ended_at if item_row.dropped_at is None else completed.get(item_row.item_no)


def overrides_of(stored: str | None) -> Overrides:
    """Return the item from its row and content."""
    return NO_OVERRIDES if stored is None else msgspec.json.decode(stored, type=Overrides)


def _full_item(
    item_row: ItemRow,
    queue: str,
    history: tuple[HistoryEntry, ...],
    deaths: tuple[Death, ...],
    earlier_ids: tuple[ItemId, ...],
    ended_at: Instant | None,
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
    working, moving = item_row.status in WAITING_STATUSES, item_row.route
    is_dead = item_row.was_dead or item_row.status in (Status.DEAD, Status.ARCHIVED)
    in_dead_queue = item_row.death_no is not None and not is_dead
    return Item(
        id=item_row.id,
        queue=queue,
        status=item_row.status,
        payload=payload,
        content_type=content_type or JSON,
        headers={} if headers is None else msgspec.json.decode(headers),
        priority=MAX_PRIORITY - item_row.rank,
        put_at=put_at,
        counters=item_row.counters,
        ready_at=item_row.ready_at if working else None,
        expire_deadline=item_row.expire_deadline,
        held_by=item_row.held_by,
        lasting_holders=holder_names(lasting_holders(item_row.holders)),
        worker=item_row.worker,
        lease_deadline=item_row.deadline,
        first_leased_at=item_row.first_leased_at,
        dead_reason=item_row.dead_reason,
        ended_at=ended_at,
        result=item_row.result,
        idempotency_key=idempotency_key,
        overrides=overrides_of(overrides),
        source_id=source_id,
        origin_id=origin_id,
        origin_queue=origin_queue,
        earlier_ids=earlier_ids,
        history=history,
        history_omitted=item_row.entries - len(history),
        deaths=deaths,
        moving_to=None if moving is None else moving.to,
        moving_since=None if moving is None else moving.since,
        home_store=home if in_dead_queue else None,
    )

"""Import: items that lived elsewhere, with everything that happened to them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from redrive.model.by_hand import text_of_death
from redrive.model.feed import FeedKind
from redrive.model.ids import ItemId
from redrive.model.imports import Landing, land
from redrive.model.item import NO_OVERRIDES, Item, Receipt, Status
from redrive.model.limits import MAX_PRIORITY
from redrive.model.payload import JSON
from redrive.store import Import
from redrive.stores.relational import feed, letters, verdicts
from redrive.stores.relational.batch import Batch, QueueRow
from redrive.stores.relational.places import Place, find_by_id, lay
from redrive.stores.relational.puts import check_size, known_source, remember_source

_ITEM = """
    INSERT INTO redrive_item (n, tail, queue, put_at, priority, enqueue_at, content_type, headers, expire_timeout,
        overrides, source_id, origin_id, origin_queue, payload, home)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""


def import_items(batch: Batch, call: Import) -> tuple[Receipt, ...]:
    """All of them, or none; those that are known are left as they are."""
    row = batch.queue(call.queue)
    known = {item.id: known_source(batch, row, item.id) or _present(batch, row, item) for item in call.items}
    # Of several with one id the first is taken; the others are known by then.
    new = {item.id: item for item in reversed(call.items) if known[item.id] is None}
    landings = {id: land(item, row.queue, batch.now) for id, item in new.items()}
    check_size(batch, row, sum(landing.needs_room for landing in landings.values()))
    receipts: list[Receipt] = []
    written: list[ItemId] = []
    for item in call.items:
        there = known[item.id]
        if there is None:
            place = write(batch, row, item, landings[item.id])
            remember_source(batch, row, item.id, place.n, place.tail)
            feed.tell(
                batch, FeedKind.IMPORTED, row.queue.name, place.n, place.tail, source_id=item.id, actor=call.actor
            )
            there = known[item.id] = place.id
            written.append(there)
            receipts.append(Receipt(there))
        else:
            receipts.append(Receipt(there, duplicate=True))
    if written:
        verdicts.audit(batch, call.actor, "import", row.queue.name, written, len(written))
    return tuple(receipts)


def _present(batch: Batch, row: QueueRow, item: Item) -> ItemId | None:
    """The id of the very item, where it lives in this namespace and would come to the queue that it is in or was in."""
    place = find_by_id(batch, item.id)
    if place is None or place.queue not in batch.by_key:
        return None
    return place.id if row.key == place.queue or row.queue.name == item.queue else None


def write(batch: Batch, row: QueueRow, item: Item, landing: Landing) -> Place:
    """Make an item of one that lived elsewhere, under a new id."""
    number, tail, _ = batch.draw_id()
    enqueue_at = None if landing.ready_at == item.put_at else landing.ready_at
    content_type = None if item.content_type == JSON else item.content_type
    overrides = None if item.overrides == NO_OVERRIDES else msgspec.json.encode(item.overrides).decode()
    stored = (number, tail, row.key, item.put_at, item.priority, enqueue_at, content_type, _headers(item.headers))
    origin = (item.id, item.origin_id or item.id, item.origin_queue or item.queue)
    batch.execute(_ITEM, (*stored, landing.expire_timeout, overrides, *origin, item.payload, landing.home))
    counters = item.counters
    place = Place(
        number,
        tail,
        row.key,
        landing.status,
        MAX_PRIORITY - item.priority,
        landing.ready_at,
        number,
        landing.expire_deadline,
        counters.deliveries,
        counters.attempts,
        counters.failures,
        counters.losses,
        counters.redrives,
        item.first_leased_at,
        held_by=landing.held_by,
    )
    _write_records(batch, place, item, landing)
    lay(batch, place)
    return place


def _write_records(batch: Batch, place: Place, item: Item, landing: Landing) -> None:
    """History, deaths, and the letter of one that is dead or archived."""
    for entry in landing.first:
        verdicts.record(batch, place, entry)
    place.entries += landing.omitted
    for entry in landing.last:
        verdicts.record(batch, place, entry)
    for death in item.deaths:
        verdicts.record_death(batch, place, death)
    archived = landing.status is Status.ARCHIVED
    if not landing.is_dead_letter and not archived:
        return
    death = item.deaths[-1]
    letters.mark(batch, place, death, text_of_death(death, item.history), archived=archived)
    if landing.status is Status.DEAD or archived:
        place.ended_at, place.dead_reason = death.at, death.reason
    if archived:
        place.archived_from = Status.DEAD


def _headers(headers: Mapping[str, str]) -> str | None:
    return msgspec.json.encode(headers).decode() if headers else None

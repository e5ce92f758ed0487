"""Import: items that lived elsewhere, with everything that happened to them."""

from __future__ import annotations

from redrive.errors import QueueFull
from redrive.model.feed import FeedKind
from redrive.model.ids import ItemId
from redrive.model.imports import Landing, land
from redrive.model.item import Item, Receipt, Status
from redrive.store import Import
from redrive.stores.rules.puts import known_source, remember_source
from redrive.stores.rules.queue_state import QueueState
from redrive.stores.rules.record import History, Record
from redrive.stores.rules.state import State
from redrive.stores.rules.verdicts import mark_dead


def import_items(state: State, call: Import) -> tuple[Receipt, ...]:
    """Checked in full before the first one is written. Those that are known are left as they are."""
    queue = state.queue(call.queue)
    known = {item.id: id for item in call.items if (id := _known(state, queue, item)) is not None}
    # Of several with one id the first is taken; the others are known by then.
    landings = {item.id: land(item, queue.value, state.now) for item in reversed(call.items) if item.id not in known}
    adding, max_size = sum(landing.needs_room for landing in landings.values()), queue.value.settings.max_size
    if adding and max_size is not None and queue.size + adding > max_size:
        raise QueueFull(queue.name, queue.size, max_size, adding)
    receipts: list[Receipt] = []
    for item in call.items:
        there = known.get(item.id)
        if there is None:
            record = write(state, queue, item, landings[item.id])
            remember_source(state, queue, item.id, record.id)
            state.tell(FeedKind.IMPORTED, queue.name, record, source_id=item.id, actor=call.actor)
            known[item.id] = record.id
        receipts.append(Receipt(known[item.id], duplicate=there is not None))
    written = tuple(receipt.id for receipt in receipts if not receipt.duplicate)
    if written:
        state.write_audit(call.actor, "import", queue.name, written, len(written))
    return tuple(receipts)


def _known(state: State, queue: QueueState, item: Item) -> ItemId | None:
    """The id of an item that came from the same one; or of the very item, where it would come to the queue that it is
    in or was in."""
    source = known_source(state, queue, item.id)
    present = state.find(item.id)
    if source is None and present is not None and queue.name in (present.queue, item.queue):
        return present.id
    return source


def write(state: State, queue: QueueState, item: Item, landing: Landing) -> Record:
    """Make an item of one that lived elsewhere, under a new id."""
    number = state.draw_number()
    record = Record(
        ids=[state.draw_id(number)],
        queue=queue.name,
        status=landing.status,
        payload=item.payload,
        content_type=item.content_type,
        headers=dict(item.headers),
        priority=item.priority,
        put_at=item.put_at,
        seq=number,
        ready_at=landing.ready_at,
        expire_timeout=landing.expire_timeout,
        expire_deadline=landing.expire_deadline,
        held_by=landing.held_by,
        overrides=item.overrides,
        source_id=item.id,
        origin_id=item.origin_id or item.id,
        origin_queue=item.origin_queue or item.queue,
        counters=item.counters,
        first_leased_at=item.first_leased_at,
        archived_from=Status.DEAD if landing.status is Status.ARCHIVED else None,
        history=History((*landing.first, *landing.last), landing.omitted),
        deaths=list(item.deaths),
        came_by_death=landing.is_dead_letter and landing.status is not Status.DEAD,
        home=landing.home,
    )
    if record.is_dead_letter or record.status is Status.ARCHIVED:
        mark_dead(state, record)
    state.add(record)
    return record

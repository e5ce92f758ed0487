"""Items from elsewhere: import with full history, and moves between stores (leave, receive, remove, close)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

import msgspec

from redrive.clock import Instant
from redrive.contract.base import LEDGER_RETENTION, MOVE_BATCH_BYTES
from redrive.contract.maintenance_calls import CloseMove, FinishMove, Import, Receive
from redrive.contract.queries import ListMoves, ListOpenMoves, MoveTarget, OpenMove
from redrive.contract.replies import headers_on_arrival
from redrive.errors import QueueFull
from redrive.model.arrival import ArrivalState, Move, MoveRoute, import_state, ledger_key, move_arrival_state
from redrive.model.feed import FeedKind
from redrive.model.holder import passing_holders
from redrive.model.ids import ItemId
from redrive.model.item import Counters, HistoryEvent, Item, Receipt, Settled, Status
from redrive.model.limits import MAX_INSTANT
from redrive.model.manual_change import ManualAction
from redrive.model.state_machine import Verb
from redrive.stores.rules.feed import append_event
from redrive.stores.rules.puts import known_source, remember_source
from redrive.stores.rules.queue_state import QueueState, SourceEntry
from redrive.stores.rules.record import History, Record
from redrive.stores.rules.state import State
from redrive.stores.rules.verdicts import action_entry, append_action_event, mark_dead


def import_items(state: State, call: Import) -> tuple[Receipt, ...]:
    """Import items, checked in full before the first write. Known items are left unchanged."""
    queue = state.queue(call.queue)
    known = {item.id: id for item in call.items if (id := _known(state, queue, item)) is not None}
    # Of several items with one id the first is taken; the others are known by then.
    landings = {
        item.id: import_state(item, queue.value, state.now) for item in reversed(call.items) if item.id not in known
    }
    adding, max_size = sum(arrival.needs_room for arrival in landings.values()), queue.value.settings.max_size
    if adding and max_size is not None and queue.size + adding > max_size:
        raise QueueFull(queue.name, queue.size, max_size, adding)
    receipts: list[Receipt] = []
    for item in call.items:
        there = known.get(item.id)
        if there is None:
            record = write(state, queue, item, landings[item.id])
            remember_source(state, queue, item.id, record.id)
            append_event(state, FeedKind.IMPORTED, queue.name, record, source_id=item.id, actor=call.actor)
            known[item.id] = record.id
        receipts.append(Receipt(known[item.id], duplicate=there is not None))
    written = tuple(receipt.id for receipt in receipts if not receipt.duplicate)
    if written:
        state.write_audit(call.actor, "import", queue.name, written, len(written))
    return tuple(receipts)


def _known(state: State, queue: QueueState, item: Item) -> ItemId | None:
    """Return the id of an item that was imported from the same one, or of the item itself if it is or was in the target
    queue."""
    source = known_source(state, queue, item.id)
    present = state.find(item.id)
    if source is None and present is not None and queue.name in (present.queue, item.queue):
        return present.id
    return source


def write(state: State, queue: QueueState, item: Item, arrival: ArrivalState) -> Record:
    """Create an item from one of another store, under a new id."""
    number = state.draw_number()
    record = Record(
        ids=[state.allocate_id(number)],
        queue=queue.name,
        status=arrival.status,
        payload=item.payload,
        content_type=item.content_type,
        headers=dict(item.headers),
        priority=item.priority,
        put_at=item.put_at,
        seq=number,
        ready_at=arrival.ready_at,
        expire_timeout=arrival.expire_timeout,
        expire_deadline=arrival.expire_deadline,
        holders=arrival.holders,
        overrides=item.overrides,
        source_id=item.id,
        origin_id=item.origin_id or item.id,
        origin_queue=item.origin_queue or item.queue,
        counters=item.counters,
        first_leased_at=item.first_leased_at,
        archived_from=arrival.archived_from,
        history=History((*arrival.first, *arrival.last), arrival.omitted),
        deaths=list(item.deaths),
        is_in_dead_queue=arrival.is_dead_letter and arrival.status is not Status.DEAD,
        home_store=arrival.home_store,
    )
    if record.death is not None:
        mark_dead(state, record)
    elif record.status is Status.ARCHIVED:
        record.death_number = state.draw_number()
    state.add(record)
    return record


def start_move(state: State, action: ManualAction, item: Record, kind: FeedKind, to: str) -> Settled:
    """Start the manual move of an item to another store: it is moving, and still here."""
    redriven = kind is FeedKind.REDRIVEN
    status, before, is_dead_letter = item.status_without_lease, item.counters, item.is_dead_letter
    entry = action_entry(state, action, HistoryEvent.REDRIVEN if redriven else HistoryEvent.MOVED, item, to=to)
    with state.change(item, action.verb, Status.MOVING, forced=action.force):
        item.history.add(entry)
        item.route = MoveRoute(to, state.now, kind, Status.PENDING if redriven else status)
        item.is_in_dead_queue = is_dead_letter and not redriven
        item.holders = passing_holders(item.holders)
        if redriven:
            item.counters = Counters(deliveries=before.deliveries, redrives=before.redrives + 1)
            item.holders, item.expire_deadline = (), None
    append_action_event(state, action, kind, item.queue, item)
    return item.to_settled()


def receive(state: State, call: Receive) -> Receipt:
    """Receive an item. One that was received before is a duplicate, regardless of its later changes here."""
    queue = state.queue(call.queue)
    headers = headers_on_arrival(call.move.item.headers, call.store, state.store)
    item = msgspec.structs.replace(call.move.item, headers=headers)
    key = ledger_key(item.id)
    known = queue.sources.get(key)
    if known is not None and known.until > state.now:
        return Receipt(known.id, duplicate=True)
    arrival = move_arrival_state(call.move, queue.value, call.store, state.store, state.now)
    if arrival.needs_room:
        queue.check_room()
    if call.move.route.kind is FeedKind.DEAD:
        queue.mark_dead_queue()
    record = write(state, queue, item, arrival)
    queue.sources[key] = SourceEntry(record.id, Instant(MAX_INSTANT))
    state.open_move(queue.name, call.store, item.id)
    queue.redriven_total += call.move.route.kind is FeedKind.REDRIVEN
    append_event(state, FeedKind.ARRIVED, queue.name, record, source_id=item.id)
    return Receipt(record.id)


def finish_move(state: State, call: FinishMove) -> int:
    """Remove items that the other store has received. Returns how many."""
    count = 0
    for id in call.ids:
        item = state.find(id)
        if item is not None and item.status is Status.MOVING:
            state.remove(item, Verb.FINISH_MOVE)
            count += 1
    return count


def close_move(state: State, call: CloseMove) -> int:
    """Close moves that the other store has finished. The ledger keeps their ids for LEDGER_RETENTION, for late
    retries."""
    queue = state.queue(call.queue)
    until = Instant(state.now + LEDGER_RETENTION)
    count = 0
    for source_id in call.source_ids:
        state.close_move(call.queue, call.store, source_id)
        key = ledger_key(source_id)
        known = queue.sources.get(key)
        if known is not None and known.until == MAX_INSTANT:
            queue.sources[key] = SourceEntry(known.id, until)
            queue.sources_until.add(key, (until,))
            count += 1
    return count


def destinations(state: State) -> tuple[MoveTarget, ...]:
    """Return the queues of other stores to which items are moving."""
    found = ((to, state.moving_ids(to, 1)) for to in state.destinations())
    return tuple(MoveTarget(to, _since(state.items[ids[0]])) for to, ids in found)


def list_moves(state: State, query: ListMoves) -> tuple[Move, ...]:
    """Return items that are moving, oldest move first."""
    towards = state.destinations() if query.to is None else [query.to]
    leaving = [[state.items[id] for id in state.moving_ids(to, query.limit)] for to in towards]
    return tuple(_bounded(heapq.merge(*leaving, key=_since), query.limit))


def list_open_moves(state: State, query: ListOpenMoves) -> tuple[OpenMove, ...]:
    """Return open moves, ordered by the ids in the other store."""
    found = [
        (id, name)
        for name in sorted(state.queues)
        for id in state.open_move_ids(name, query.store, query.after or "", query.limit)
    ]
    return tuple(OpenMove(name, id) for id, name in sorted(found)[: query.limit])


def _bounded(items: Iterable[Record], limit: int) -> Iterator[Move]:
    size = 0
    for count, item in enumerate(item for item in items if item.damage is None):
        size += len(item.payload)
        if count == limit or (count and size > MOVE_BATCH_BYTES):
            return
        yield item.to_move()


def _since(item: Record) -> Instant:
    assert item.route is not None
    return item.route.since

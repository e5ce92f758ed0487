"""Validation of calls on queues, registrations, moves and maintenance."""

from __future__ import annotations

import msgspec

from redrive.broker.flows.export_import import checked_item
from redrive.broker.validation import check_integer, check_note
from redrive.contract.admin_calls import (
    AuditNote,
    CreateQueue,
    DeleteQueue,
    Register,
    SetPaused,
    SetSourceQueue,
    Unregister,
    UpdateQueue,
)
from redrive.contract.base import MAINTENANCE_BATCH
from redrive.contract.maintenance_calls import ApplyRetention, CloseMove, Expire, FinishMove, Import, Promote, Receive
from redrive.errors import InvalidInput
from redrive.model.arrival import Move, check_move
from redrive.model.ids import MAX_NUMBER
from redrive.model.limits import (
    MAX_REGISTRATION_BYTES,
    check_address,
    check_instant,
    check_label,
    check_name,
    is_remote,
)
from redrive.model.queue_options import validate_settings
from redrive.server.validation import deliveries, values

_replace = msgspec.structs.replace


def create(call: CreateQueue) -> CreateQueue:
    """Validate the creation of a queue, with its settings."""
    values.queue(call.name)
    return _replace(call, settings=validate_settings(call.settings))


def update(call: UpdateQueue) -> UpdateQueue:
    """Validate new settings of a queue."""
    values.queue(call.name)
    values.version(call.version)
    check_label("actor", call.actor)
    return _replace(call, settings=validate_settings(call.settings))


def set_paused(call: SetPaused) -> SetPaused:
    """Validate pausing or resuming a queue."""
    values.queue(call.name)
    check_label("actor", call.actor)
    return call


def set_source_queue(call: SetSourceQueue) -> SetSourceQueue:
    """Validate the address of a queue in another store that uses this queue."""
    values.queue(call.name)
    if not is_remote(check_address("user", call.user)):
        raise InvalidInput(f"'{call.user}' is no queue of another store; write name@store")
    return call


def delete(call: DeleteQueue) -> DeleteQueue:
    """Validate the deletion of a queue."""
    values.queue(call.name)
    check_label("actor", call.actor)
    if call.confirm is not None:
        check_integer("confirm", call.confirm, 0, MAX_NUMBER)
    return call


def register(call: Register) -> Register:
    """Validate a registration, with its puts and its audit note."""
    check_name("kind", call.kind)
    check_label("name", call.name)
    if len(call.value) > MAX_REGISTRATION_BYTES:
        size = len(call.value)
        raise InvalidInput(f"what is registered has {size:,} bytes and the limit is {MAX_REGISTRATION_BYTES:,}")
    values.span("timeout", call.timeout, 1)
    if call.version is not None:
        values.version(call.version)
    checked = deliveries.puts(call.puts)
    if checked is call.puts and call.audit is None:
        return call
    return _replace(call, puts=checked, audit=_noted(call.audit))


def unregister(call: Unregister) -> Unregister:
    """Validate the removal of a registration."""
    check_name("kind", call.kind)
    check_label("name", call.name)
    return call if call.audit is None else _replace(call, audit=_noted(call.audit))


def _noted(noted: AuditNote | None) -> AuditNote | None:
    if noted is None:
        return None
    check_label("actor", noted.actor)
    check_name("verb", noted.verb)
    return _replace(noted, note=check_note("note", noted.note))


def import_(call: Import) -> Import:
    """Validate items from another system."""
    values.queue(call.queue)
    check_label("actor", call.actor)
    values.many("items", len(call.items))
    return _replace(call, items=tuple(map(checked_item, call.items)))


def receive(call: Receive) -> Receive:
    """Validate an item that arrives from another store."""
    values.queue(call.queue)
    check_name("store", call.store)
    return _replace(call, move=_move(call.move))


def _move(move: Move) -> Move:
    check_move(move)
    check_address("queue", move.route.to)
    check_instant("since", move.route.since)
    check_instant("ready_at", move.ready_at)
    values.span("expire_timeout", move.expire_timeout, 1)
    return _replace(move, item=checked_item(move.item))


def finish_move(call: FinishMove) -> FinishMove:
    """Validate the ids of items that have arrived in another store."""
    values.ids(call.ids)
    return call


def close_move(call: CloseMove) -> CloseMove:
    """Validate the source ids of moves that will not be repeated."""
    values.queue(call.queue)
    check_name("store", call.store)
    values.ids(call.source_ids)
    return call


def promote(call: Promote) -> Promote:
    """Validate the limit of a promotion of due items."""
    values.limit(call.limit, MAINTENANCE_BATCH)
    return call


def expire(call: Expire) -> Expire:
    """Validate the expiry of an item."""
    values.id(call.id)
    values.version(call.version)
    return _replace(call, verdict=values.verdict(call.verdict))


def apply_retention(call: ApplyRetention) -> ApplyRetention:
    """Validate the limit of a retention run."""
    values.limit(call.limit, MAINTENANCE_BATCH)
    return call

"""Items that come from elsewhere, and those that go there."""

from __future__ import annotations

import msgspec

from redrive.broker.item_checks import checked_item
from redrive.model.address import check_address
from redrive.model.limits import check_instant, check_label, check_name
from redrive.model.moves import Move, check_move
from redrive.server.access.checks import values
from redrive.store import CloseMove, FinishMove, Import, Receive

_replace = msgspec.structs.replace


def import_(call: Import) -> Import:
    """Items that lived elsewhere."""
    values.queue(call.queue)
    check_label("actor", call.actor)
    values.many("items", len(call.items))
    return _replace(call, items=tuple(map(checked_item, call.items)))


def receive(call: Receive) -> Receive:
    """An item arrives from another store."""
    values.queue(call.queue)
    check_name("store", call.store)
    return _replace(call, move=_move(call.move))


def _move(move: Move) -> Move:
    check_move(move)
    check_address("queue", move.passage.to)
    check_instant("since", move.passage.since)
    check_instant("ready_at", move.ready_at)
    values.span("expire_timeout", move.expire_timeout, 1)
    return _replace(move, item=checked_item(move.item))


def finish_move(call: FinishMove) -> FinishMove:
    """Items have arrived elsewhere."""
    values.ids(call.ids)
    return call


def close_move(call: CloseMove) -> CloseMove:
    """Nobody brings them again."""
    values.queue(call.queue)
    check_name("store", call.store)
    values.ids(call.source_ids)
    return call

"""Whether a call off the wire is one that a broker could have made.

A broker checks what it is given before it calls a store, and stores rely on it. Whoever speaks to a server need not be
a broker. So all of that is checked here again, by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redrive.clock import Instant
from redrive.server.access.checks import by_hand, items, moves, queries, queues, registrations, upkeep
from redrive.store import (
    Call,
    Change,
    Clean,
    CloseMove,
    Complete,
    CreateQueue,
    DeleteQueue,
    Expire,
    Extend,
    FinishMove,
    Hold,
    Import,
    LeaseItems,
    Promote,
    Put,
    Query,
    Receive,
    Register,
    Return,
    SetOperation,
    SetPaused,
    Settle,
    SetUsedBy,
    StartOperation,
    StepOperation,
    Unhold,
    Unregister,
    UpdateQueue,
)

CHECKS: dict[type[Any], Callable[[Any], Any]] = {
    CreateQueue: queues.create,
    UpdateQueue: queues.update,
    SetPaused: queues.set_paused,
    SetUsedBy: queues.set_used_by,
    DeleteQueue: queues.delete,
    Put: items.put,
    Register: registrations.register,
    Unregister: registrations.unregister,
    Import: moves.import_,
    Receive: moves.receive,
    Hold: by_hand.hold,
    Unhold: by_hand.unhold,
    Complete: items.complete,
    Settle: items.settle,
    Return: items.return_,
    Extend: items.extend,
    Change: by_hand.change,
    StepOperation: by_hand.step,
    SetOperation: by_hand.set_,
    Promote: upkeep.promote,
    Expire: upkeep.expire,
    Clean: upkeep.clean,
    FinishMove: moves.finish_move,
    CloseMove: moves.close_move,
    LeaseItems: items.lease,
}
"""What is checked of each call. StartOperation and queries are checked by what time it is, too."""


def checked_call(call: Call | Query, now: Instant) -> Any:
    """The call, as a broker would have made it. Raises `InvalidInput` where none would."""
    check = CHECKS.get(call.__class__)
    if check is not None:
        return check(call)
    if isinstance(call, StartOperation):
        return by_hand.start(call, now)
    return queries.query(call, now)  # type: ignore[arg-type]  # calls are all in the table; a test sees to it

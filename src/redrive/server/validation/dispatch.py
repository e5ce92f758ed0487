"""Whether a call off the wire is one that a broker could have made.

A broker checks what it is given before it calls a store, and stores rely on it. Whoever speaks to a server need not be
a broker. So all of that is checked here again, by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redrive.clock import Instant
from redrive.contract import Call, Query
from redrive.contract.admin_calls import (
    ApplyRetention,
    CloseMove,
    CreateQueue,
    DeleteQueue,
    Expire,
    FinishMove,
    Hold,
    Import,
    ManualChange,
    Promote,
    Receive,
    Register,
    SetBreakers,
    SetOperation,
    SetPaused,
    SetSourceQueue,
    StartOperation,
    StepOperation,
    Unhold,
    Unregister,
    UpdateQueue,
)
from redrive.contract.item_calls import Complete, Extend, LeaseByIds, LeaseItems, Put, Reply, ReturnLease, Settle
from redrive.server.validation import admin, breakers, deliveries, manual_changes, queries

VALIDATORS: dict[type[Any], Callable[[Any], Any]] = {
    CreateQueue: admin.create,
    UpdateQueue: admin.update,
    SetPaused: admin.set_paused,
    SetBreakers: breakers.set_breakers,
    SetSourceQueue: admin.set_source_queue,
    DeleteQueue: admin.delete,
    Put: deliveries.put,
    Register: admin.register,
    Unregister: admin.unregister,
    Import: admin.import_,
    Receive: admin.receive,
    Hold: manual_changes.hold,
    Unhold: manual_changes.unhold,
    Complete: deliveries.complete,
    Settle: deliveries.settle,
    ReturnLease: deliveries.return_,
    Extend: deliveries.extend,
    Reply: deliveries.reply,
    ManualChange: manual_changes.change,
    StepOperation: manual_changes.step,
    SetOperation: manual_changes.set_,
    Promote: admin.promote,
    Expire: admin.expire,
    ApplyRetention: admin.apply_retention,
    FinishMove: admin.finish_move,
    CloseMove: admin.close_move,
    LeaseByIds: deliveries.lease_by_ids,
    LeaseItems: deliveries.lease,
}
"""What is checked of each call. StartOperation and queries are checked by what time it is, too."""


def validate_call(call: Call | Query, now: Instant) -> Any:
    """The call, as a broker would have made it. Raises `InvalidInput` where none would."""
    check = VALIDATORS.get(call.__class__)
    if check is not None:
        return check(call)
    if isinstance(call, StartOperation):
        return manual_changes.start(call, now)
    return queries.query(call, now)  # type: ignore[arg-type]  # calls are all in the table; a test sees to it

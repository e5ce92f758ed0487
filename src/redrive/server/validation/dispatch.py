"""Validation of calls received from clients, by call type.

A broker validates its input before it calls a store, and stores rely on that. A client of a server need not be a
broker, so the same functions validate its calls here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redrive.clock import Instant
from redrive.contract import Call, Query, admin_calls, item_calls, maintenance_calls
from redrive.server.validation import admin, breakers, deliveries, manual_changes, queries

VALIDATORS: dict[type[Any], Callable[[Any], Any]] = {
    admin_calls.CreateQueue: admin.create,
    admin_calls.UpdateQueue: admin.update,
    admin_calls.SetPaused: admin.set_paused,
    admin_calls.SetBreakers: breakers.set_breakers,
    admin_calls.SetSourceQueue: admin.set_source_queue,
    admin_calls.DeleteQueue: admin.delete,
    item_calls.Put: deliveries.put,
    admin_calls.Register: admin.register,
    admin_calls.Unregister: admin.unregister,
    maintenance_calls.Import: admin.import_,
    maintenance_calls.Receive: admin.receive,
    admin_calls.Hold: manual_changes.hold,
    admin_calls.Unhold: manual_changes.unhold,
    item_calls.Complete: deliveries.complete,
    item_calls.Settle: deliveries.settle,
    item_calls.ReturnLease: deliveries.return_,
    item_calls.Extend: deliveries.extend,
    item_calls.Reply: deliveries.reply,
    admin_calls.ManualChange: manual_changes.change,
    admin_calls.StepOperation: manual_changes.step,
    admin_calls.SetOperation: manual_changes.set_,
    maintenance_calls.Promote: admin.promote,
    maintenance_calls.Expire: admin.expire,
    maintenance_calls.ApplyRetention: admin.apply_retention,
    maintenance_calls.FinishMove: admin.finish_move,
    maintenance_calls.CloseMove: admin.close_move,
    item_calls.LeaseByIds: deliveries.lease_by_ids,
    item_calls.LeaseItems: deliveries.lease,
}
"""Validators by call type. StartOperation and queries have their own, since their validation needs the current time."""


def validate_call(call: Call | Query, now: Instant) -> Any:
    """Return the call as a broker would have made it. Raises `InvalidInput` if no broker could."""
    check = VALIDATORS.get(call.__class__)
    if check is not None:
        return check(call)
    if isinstance(call, admin_calls.StartOperation):
        return manual_changes.start(call, now)
    return queries.query(call, now)  # type: ignore[arg-type]  # the table has all calls; a test checks that

"""The rule of every call and every query of the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redrive.clock import Instant
from redrive.contract import Call, Query, admin_calls, item_calls, maintenance_calls
from redrive.contract import queries as asked
from redrive.errors import OutcomeUnknown, RedriveError
from redrive.stores.rules import (
    leases,
    maintenance,
    manual_changes,
    moves,
    operations,
    puts,
    queries,
    queues,
    registrations,
    replies,
    settle,
)
from redrive.stores.rules.state import State

Rule = Callable[[State, Any], Any]

CALL_RULES: dict[type[Any], Rule] = {
    admin_calls.CreateQueue: queues.create_queue,
    admin_calls.UpdateQueue: queues.update_queue,
    admin_calls.SetPaused: queues.set_paused,
    admin_calls.SetBreakers: queues.set_breakers,
    admin_calls.SetSourceQueue: queues.set_source_queue,
    admin_calls.DeleteQueue: queues.delete_queue,
    admin_calls.Register: registrations.register,
    admin_calls.Unregister: registrations.unregister,
    admin_calls.ManualChange: manual_changes.change,
    admin_calls.Hold: manual_changes.hold,
    admin_calls.Unhold: manual_changes.unhold,
    admin_calls.StartOperation: operations.start_operation,
    admin_calls.StepOperation: operations.step_operation,
    admin_calls.SetOperation: operations.set_operation,
    item_calls.Put: puts.put,
    item_calls.LeaseItems: leases.lease_items,
    item_calls.LeaseByIds: leases.lease_by_ids,
    item_calls.Complete: settle.complete,
    item_calls.Settle: settle.settle,
    item_calls.ReturnLease: settle.return_lease,
    item_calls.Extend: settle.extend,
    item_calls.Reply: replies.reply,
    maintenance_calls.Import: moves.import_items,
    maintenance_calls.Receive: moves.receive,
    maintenance_calls.FinishMove: moves.finish_move,
    maintenance_calls.CloseMove: moves.close_move,
    maintenance_calls.Promote: maintenance.promote,
    maintenance_calls.Expire: maintenance.expire,
    maintenance_calls.ApplyRetention: maintenance.apply_retention,
}
QUERY_RULES: dict[type[Any], Rule] = {
    asked.GetQueue: lambda state, query: state.queue(query.name).value,
    asked.ListQueues: lambda state, _: tuple(state.queues[name].value for name in sorted(state.queues)),
    asked.GetStats: lambda state, query: state.queue(query.name).stats(state.now),
    asked.ListStats: queries.list_stats,
    asked.GetItem: lambda state, query: state.item(query.id).to_item(),
    asked.GetItems: queries.get_items,
    asked.FindItems: queries.find_items,
    asked.FindPlanSubjects: queries.find_plan_subjects,
    asked.CountItems: queries.count_items,
    asked.ListGroups: queries.list_groups,
    asked.ReadFeed: queries.read_feed,
    asked.GetIdempotencyOwners: queries.key_holders,
    asked.GetItemsByKey: queries.items_by_key,
    asked.GetOperation: lambda state, query: operations.get_operation(state, query.id),
    asked.ListOperations: operations.list_operations,
    asked.GetOverdue: queries.get_overdue,
    asked.GetLease: lambda state, query: state.leased(query.token).to_lease(),
    asked.GetLeases: queries.get_leases,
    asked.GetLeasedItem: lambda state, query: state.leased(query.token).to_item(),
    asked.ListWorkerLeases: queries.worker_leases,
    asked.GetResult: lambda state, query: state.results.get(query.id, state.now),
    asked.ListRegistrations: registrations.list_registrations,
    asked.ListAudit: queries.list_audit,
    asked.ListMoveTargets: lambda state, _: moves.destinations(state),
    asked.ListMoves: moves.list_moves,
    asked.ListOpenMoves: moves.list_open_moves,
    asked.GetNextDue: lambda state, _: queries.next_due(state),
}


def execute_or_refuse(state: State, call: Call) -> Any:
    """Execute a call and return its result. A refusal, and an unexpected exception of its rule, is the result of this
    call alone. After such an exception part of the call may have been applied: there is no rollback here."""
    try:
        return execute_calls(state, call)
    except RedriveError as refusal:
        return refusal
    except Exception as error:
        unknown = OutcomeUnknown(state.store, f"{type(call).__name__}: {error!r}")
        unknown.__cause__ = error
        return unknown


def execute_calls(state: State, call: Call) -> Any:
    """Execute a call and return its result. Raises refusals; a refused call changed nothing."""
    return CALL_RULES[call.__class__](state, call)


def answer_query(state: State, query: Query, now: Instant) -> Any:
    """Answer a query at this instant. Raises the errors that its docstring names."""
    state.now = now
    return QUERY_RULES[query.__class__](state, query)

"""Every call and every query of the contract, and the rule that it follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from redrive.clock import Instant
from redrive.contract import COMMIT_ORDER, Call, Query, admin_calls, item_calls, queries
from redrive.errors import OutcomeUnknown, RedriveError
from redrive.stores.rules.leases import lease_by_ids, lease_items
from redrive.stores.rules.maintenance import apply_retention, expire, promote
from redrive.stores.rules.manual_changes import change, hold, unhold
from redrive.stores.rules.moves import (
    close_move,
    destinations,
    finish_move,
    import_items,
    list_moves,
    list_open_moves,
    receive,
)
from redrive.stores.rules.operations import (
    get_operation,
    list_operations,
    set_operation,
    start_operation,
    step_operation,
)
from redrive.stores.rules.puts import put
from redrive.stores.rules.queries import (
    count_items,
    find_items,
    get_overdue,
    items_by_key,
    key_holders,
    list_audit,
    list_groups,
    list_stats,
    next_due,
    read_feed,
    worker_leases,
)
from redrive.stores.rules.queues import (
    create_queue,
    delete_queue,
    set_breakers,
    set_paused,
    set_source_queue,
    update_queue,
)
from redrive.stores.rules.registrations import list_registrations, register, unregister
from redrive.stores.rules.replies import reply
from redrive.stores.rules.settle import complete, extend, return_lease, settle
from redrive.stores.rules.state import State

_RANKS = {kind: rank for rank, kinds in enumerate(COMMIT_ORDER) for kind in kinds}


def in_commit_order(calls: Sequence[Call]) -> list[int]:
    """The places of the calls of a batch, in the order in which they take effect."""
    return sorted(range(len(calls)), key=lambda place: _RANKS[type(calls[place])])


def execute_or_refuse(state: State, call: Call) -> Any:
    """The result of a call. A refusal is the result of this call alone, and so is a mistake in its rule, which may
    have changed something before it was met: there is no way back here."""
    try:
        return execute_calls(state, call)
    except RedriveError as refusal:
        return refusal
    except Exception as error:
        unknown = OutcomeUnknown(state.store, f"{type(call).__name__}: {error!r}")
        unknown.__cause__ = error
        return unknown


def execute_calls(state: State, call: Call) -> Any:
    """The result of a call. Raises what refuses it, and then changed nothing."""
    match call:
        case item_calls.Put():
            return put(state, call)
        case item_calls.LeaseItems():
            return lease_items(state, call)
        case item_calls.LeaseByIds():
            return lease_by_ids(state, call)
        case item_calls.Complete():
            return complete(state, call)
        case item_calls.Settle():
            return settle(state, call)
        case item_calls.Reply():
            return reply(state, call)
        case item_calls.ReturnLease():
            return return_lease(state, call)
        case item_calls.Extend():
            return extend(state, call)
        case admin_calls.ManualChange():
            return change(state, call)
        case admin_calls.Hold():
            return hold(state, call)
        case admin_calls.Unhold():
            return unhold(state, call)
        case admin_calls.Register():
            return register(state, call)
        case admin_calls.Unregister():
            return unregister(state, call)
        case admin_calls.Promote():
            return promote(state, call)
        case admin_calls.Expire():
            return expire(state, call)
        case admin_calls.ApplyRetention():
            return apply_retention(state, call)
        case admin_calls.StartOperation():
            return start_operation(state, call)
        case admin_calls.StepOperation():
            return step_operation(state, call)
        case admin_calls.SetOperation():
            return set_operation(state, call)
        case admin_calls.Import():
            return import_items(state, call)
        case admin_calls.Receive():
            return receive(state, call)
        case admin_calls.FinishMove():
            return finish_move(state, call)
        case admin_calls.CloseMove():
            return close_move(state, call)
        case admin_calls.CreateQueue():
            return create_queue(state, call)
        case admin_calls.UpdateQueue():
            return update_queue(state, call)
        case admin_calls.SetPaused():
            return set_paused(state, call)
        case admin_calls.SetBreakers():
            return set_breakers(state, call)
        case admin_calls.SetSourceQueue():
            return set_source_queue(state, call)
        case admin_calls.DeleteQueue():
            return delete_queue(state, call)
        case _:
            assert_never(call)


def answer_query(state: State, query: Query, now: Instant) -> Any:
    """The answer to a query. Raises the errors that its docstring names."""
    match query:
        case queries.GetQueue():
            return state.queue(query.name).value
        case queries.ListQueues():
            return tuple(state.queues[name].value for name in sorted(state.queues))
        case queries.GetStats():
            return state.queue(query.name).stats(now)
        case queries.ListStats():
            return list_stats(state, query, now)
        case queries.GetItem():
            return state.item(query.id).to_item()
        case queries.GetItems():
            found = (state.find(id) for id in query.ids)
            return tuple([None if item is None else item.to_item() for item in found])
        case queries.FindItems():
            return find_items(state, query)
        case queries.CountItems():
            return count_items(state, query)
        case queries.ListGroups():
            return list_groups(state, query)
        case queries.ReadFeed():
            return read_feed(state, query)
        case queries.GetIdempotencyOwners():
            return key_holders(state, query, now)
        case queries.GetItemsByKey():
            return items_by_key(state, query, now)
        case queries.GetOperation():
            return get_operation(state, query.id)
        case queries.ListOperations():
            return list_operations(state, query)
        case queries.GetOverdue():
            return get_overdue(state, query, now)
        case queries.GetLease():
            return state.leased(query.token).to_lease()
        case queries.GetLeasedItem():
            return state.leased(query.token).to_item()
        case queries.ListWorkerLeases():
            return worker_leases(state, query)
        case queries.GetResult():
            return state.results.get(query.id, now)
        case queries.ListRegistrations():
            return list_registrations(state, query, now)
        case queries.ListAudit():
            return list_audit(state, query)
        case queries.GetNextDue():
            return next_due(state)
        case queries.ListMoveTargets():
            return destinations(state)
        case queries.ListMoves():
            return list_moves(state, query)
        case queries.ListOpenMoves():
            return list_open_moves(state, query)
        case _:
            assert_never(query)

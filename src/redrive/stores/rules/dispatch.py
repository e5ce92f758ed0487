"""Every call and every query of the contract, and the rule that it follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from redrive import store as contract
from redrive.clock import Instant
from redrive.errors import OutcomeUnknown, RedriveError
from redrive.store import COMMIT_ORDER, Call, Query
from redrive.stores.rules.leases import lease_items
from redrive.stores.rules.maintenance import clean, expire, promote
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
    get_held,
    get_overdue,
    key_holders,
    list_audit,
    list_groups,
    next_due,
    read_feed,
)
from redrive.stores.rules.queues import create_queue, delete_queue, set_paused, set_used_by, update_queue
from redrive.stores.rules.registrations import list_registrations, register, unregister
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
        case contract.Put():
            return put(state, call)
        case contract.LeaseItems():
            return lease_items(state, call)
        case contract.Complete():
            return complete(state, call)
        case contract.Settle():
            return settle(state, call)
        case contract.ReturnLease():
            return return_lease(state, call)
        case contract.Extend():
            return extend(state, call)
        case contract.ManualChange():
            return change(state, call)
        case contract.Hold():
            return hold(state, call)
        case contract.Unhold():
            return unhold(state, call)
        case contract.Register():
            return register(state, call)
        case contract.Unregister():
            return unregister(state, call)
        case contract.Promote():
            return promote(state, call)
        case contract.Expire():
            return expire(state, call)
        case contract.ApplyRetention():
            return clean(state, call)
        case contract.StartOperation():
            return start_operation(state, call)
        case contract.StepOperation():
            return step_operation(state, call)
        case contract.SetOperation():
            return set_operation(state, call)
        case contract.Import():
            return import_items(state, call)
        case contract.Receive():
            return receive(state, call)
        case contract.FinishMove():
            return finish_move(state, call)
        case contract.CloseMove():
            return close_move(state, call)
        case contract.CreateQueue():
            return create_queue(state, call)
        case contract.UpdateQueue():
            return update_queue(state, call)
        case contract.SetPaused():
            return set_paused(state, call)
        case contract.SetSourceQueue():
            return set_used_by(state, call)
        case contract.DeleteQueue():
            return delete_queue(state, call)
        case _:
            assert_never(call)


def answer_query(state: State, query: Query, now: Instant) -> Any:
    """The answer to a query. Raises the errors that its docstring names."""
    match query:
        case contract.GetQueue():
            return state.queue(query.name).value
        case contract.ListQueues():
            return tuple(state.queues[name].value for name in sorted(state.queues))
        case contract.GetStats():
            return state.queue(query.name).stats(now)
        case contract.GetItem():
            return state.item(query.id).to_item()
        case contract.FindItems():
            return find_items(state, query)
        case contract.CountItems():
            return count_items(state, query)
        case contract.ListGroups():
            return list_groups(state, query)
        case contract.ReadFeed():
            return read_feed(state, query)
        case contract.GetIdempotencyOwners():
            return key_holders(state, query, now)
        case contract.GetOperation():
            return get_operation(state, query.id)
        case contract.ListOperations():
            return list_operations(state, query)
        case contract.GetOverdue():
            return get_overdue(state, query, now)
        case contract.GetLease():
            return state.leased(query.token).to_lease()
        case contract.ListWorkerLeases():
            return get_held(state, query)
        case contract.GetResult():
            return state.results.get(query.id, now)
        case contract.ListRegistrations():
            return list_registrations(state, query, now)
        case contract.ListAudit():
            return list_audit(state, query)
        case contract.GetNextDue():
            return next_due(state)
        case contract.ListMoveTargets():
            return destinations(state)
        case contract.ListMoves():
            return list_moves(state, query)
        case contract.ListOpenMoves():
            return list_open_moves(state, query)
        case _:
            assert_never(query)

"""The guard: a flow that wraps a flow and runs its commits and queries with the permissions of the caller.

It signs each call with the caller's name and authorizes it, with its own queries where it has to read something. It
filters the results. It raises a refusal in the inner flow, like a refusal by the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from redrive.auth.caller import Caller
from redrive.auth.permissions import MANAGE, permissions_for
from redrive.auth.requirements import RequiredPermission
from redrive.auth.result_filter import RESULT_FILTERS, filter_results, withheld_tokens
from redrive.auth.store_call_authorization import authorize_calls, may_freely, sign_call
from redrive.broker.flow import (
    CommitCalls,
    Effect,
    Flow,
    OnStore,
    ReadQuery,
    TimedCommit,
    commit_calls,
    raise_if_refused,
)
from redrive.contract import Call, Query
from redrive.contract.item_calls import LeaseItems, ReturnLease
from redrive.errors import Forbidden, RedriveError
from redrive.store import Commit

_T = TypeVar("_T")
_replace = msgspec.structs.replace


def signed_freely(caller: Caller, call: Call) -> Call | None:
    """Return the signed call if neither its authorization nor its result needs a flow; otherwise None.

    The user of the result passes it through `filter_result`.
    """
    kind = call.__class__
    if kind in RESULT_FILTERS and kind is not LeaseItems:
        return None
    signed: Call = sign_call(caller, call)
    return signed if may_freely(caller, signed) else None


def guarded(caller: Caller, flow: Flow[_T]) -> Flow[_T]:
    """Wrap a flow so that it runs with the permissions of the caller."""
    try:
        effect = next(flow)
        while True:
            try:
                answer = yield from _guarded_effect(caller, effect)
            except RedriveError as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(answer)
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        flow.close()


def _guarded_effect(caller: Caller, effect: Effect) -> Flow[Any]:
    match effect:
        case CommitCalls(calls):
            return (yield from _guarded_commit(caller, calls))
        case TimedCommit(call):
            (authorized,) = yield from authorize_calls(caller, (call,))
            commit: Commit = yield TimedCommit(raise_if_refused(authorized))
            return Commit((yield from _filtered(caller, (authorized,), commit.results)), commit.arrivals, commit.now)
        case ReadQuery(query, is_internal=False):
            (authorized,) = yield from authorize_calls(caller, (query,))
            answer = yield ReadQuery(raise_if_refused(authorized))
            return (yield from filter_results(caller, (authorized,), (answer,)))[0]
        case OnStore(store, inner):
            return (yield OnStore(store, _checked_elsewhere(caller, inner)))
        case _:
            return (yield effect)


def _guarded_commit(caller: Caller, calls: Sequence[Call]) -> Flow[list[Any]]:
    """Commit the authorized calls and return a result for each call; for a refused call, its refusal."""
    authorized = yield from authorize_calls(caller, calls)
    let_in = [call for call in authorized if not isinstance(call, RedriveError)]
    results = iter((yield from _filtered(caller, let_in, (yield CommitCalls(let_in)))) if let_in else ())
    return [call if isinstance(call, RedriveError) else next(results) for call in authorized]


def _filtered(caller: Caller, calls: Sequence[Call], results: Sequence[Any]) -> Flow[list[Any]]:
    """Return the results as the caller may see them, and release leases that it may not have."""
    if withheld := withheld_tokens(caller, calls, results):
        yield from commit_calls([ReturnLease(token) for token in withheld])
    return (yield from filter_results(caller, calls, results))


def _checked_elsewhere(caller: Caller, effect: CommitCalls | ReadQuery) -> CommitCalls | ReadQuery:
    """Authorize an effect on another store: it needs the rights in every queue, since patterns are for local queues."""
    calls: Sequence[Call | Query] = effect.calls if isinstance(effect, CommitCalls) else (effect.query,)
    for call in calls:
        for need in permissions_for(call):
            rights = need.rights if isinstance(need, RequiredPermission) else (MANAGE,)
            if not caller.may_everywhere(rights):
                raise Forbidden(rights[0], caller.namespace, None)
    if isinstance(effect, ReadQuery):
        return effect
    return CommitCalls([sign_call(caller, call) for call in effect.calls])

"""Execute the calls of one transaction, kind by kind."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from redrive.contract import Call
from redrive.contract.admin_calls import DeleteQueue, Register, Unregister
from redrive.contract.base import Rank
from redrive.contract.item_calls import Complete, LeaseItems, Put
from redrive.contract.maintenance_calls import ApplyRetention, Promote
from redrive.errors import RedriveError
from redrive.stores.relational import dead_letters
from redrive.stores.relational.batch import LEFT, Batch
from redrive.stores.relational.leases import lease_all
from redrive.stores.relational.maintenance import apply_retention, promote_all
from redrive.stores.relational.puts import put_all
from redrive.stores.relational.queues import delete_queue
from redrive.stores.relational.registrations import register, unregister
from redrive.stores.relational.rule_execution import execute_by_rules
from redrive.stores.relational.settle import settle_all

Handler = Callable[[Batch, Sequence[Any]], list[Any]]


def execute_calls(batch: Batch, calls: Sequence[Call]) -> list[Any]:
    """Execute all calls, by kind in the order of the contract. Returns the result of each; refusals are results."""
    kinds = {call.__class__ for call in calls}
    if len(kinds) == 1 and (only := kinds.pop()) in _UNIFORM:
        results = _HANDLERS[only.rank](batch, calls)
    else:
        results = _by_kind(batch, calls)
    write_pending(batch)
    return results


def write_pending(batch: Batch) -> None:
    """Write the pending changes of the transaction."""
    if batch.unindexed:
        dead_letters.write_search_terms(batch)
    if batch.groups:
        dead_letters.write_groups(batch)
    batch.write_marks()
    batch.write_count_deltas()


def _by_kind(batch: Batch, calls: Sequence[Call]) -> list[Any]:
    results: list[Any] = [None] * len(calls)
    kinds: dict[int, list[int]] = {}
    for index, call in enumerate(calls):
        kinds.setdefault(call.rank, []).append(index)
    for kind in sorted(kinds):
        members = kinds[kind]
        handle: Handler = _leave if batch.has_left else _HANDLERS.get(kind, _in_order)
        for index, result in zip(members, handle(batch, [calls[i] for i in members]), strict=True):
            results[index] = result
    return results


def _leave(batch: Batch, calls: Sequence[Any]) -> list[Any]:
    return [LEFT] * len(calls)


_STATEMENTS: dict[type[Any], Callable[[Batch, Any], Any]] = {
    DeleteQueue: delete_queue,
    Register: register,
    Unregister: unregister,
    Promote: promote_all,
    ApplyRetention: apply_retention,
}
"""Calls that do not follow the rules, and are executed one by one."""


def _in_order(batch: Batch, calls: Sequence[Call]) -> list[Any]:
    """Execute calls in their order; consecutive calls that follow the rules are executed together."""
    results: list[Any] = []
    for has_statements, members in itertools.groupby(calls, key=lambda call: call.__class__ in _STATEMENTS):
        if has_statements:
            results += [_execute_or_refuse(batch, call) for call in members]
        else:
            results += execute_by_rules(batch, tuple(members))
    return results


def _execute_or_refuse(batch: Batch, call: Call) -> Any:
    try:
        return _STATEMENTS[call.__class__](batch, call)
    except RedriveError as refusal:
        return refusal


def _with_lane(lane: Handler) -> Handler:
    """Return the handler of calls that follow the rules too."""
    return lambda batch, calls: (lane if batch.has_lanes else execute_by_rules)(batch, calls)


_HANDLERS: dict[int, Handler] = {
    Rank.PUTS: _with_lane(put_all),
    Rank.SETTLES: _with_lane(settle_all),
    Rank.LEASES: lease_all,
}
"""The function for each rank whose calls are frequent."""
_UNIFORM = frozenset({Put, Complete, LeaseItems})
"""Calls of which batches often consist: they need no sorting by kind."""

"""Execute the calls of one transaction, kind by kind."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, get_args

from redrive.contract import Call
from redrive.contract.admin_calls import QueueCall, Register, Unregister
from redrive.contract.base import Rank
from redrive.contract.item_calls import Complete, LeaseItems, Put
from redrive.contract.maintenance_calls import ApplyRetention, Promote
from redrive.errors import RedriveError
from redrive.stores.relational import dead_letters
from redrive.stores.relational.batch import LEFT, Batch
from redrive.stores.relational.leases import lease_all
from redrive.stores.relational.maintenance import apply_retention, promote_all
from redrive.stores.relational.puts import put_all
from redrive.stores.relational.queues import change_queue
from redrive.stores.relational.registrations import register, unregister
from redrive.stores.relational.rule_execution import execute_by_rules
from redrive.stores.relational.settle import settle_all

Handler = Callable[[Batch, Sequence[Any]], list[Any]]


def execute_calls(batch: Batch, calls: Sequence[Call]) -> list[Any]:
    """All calls, by kind in the order of the contract. Gives the result of each; refusals are results."""
    kinds = {call.__class__ for call in calls}
    if len(kinds) == 1 and (only := kinds.pop()) in _UNIFORM:
        results = _HANDLERS[only.rank](batch, calls)
    else:
        results = _by_kind(batch, calls)
    write_pending(batch)
    return results


def write_pending(batch: Batch) -> None:
    """Write what the transaction has collected."""
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
        members, handle = kinds[kind], _leave if batch.has_left else _HANDLERS.get(kind, _BY_RULES)
        for index, result in zip(members, handle(batch, [calls[i] for i in members]), strict=True):
            results[index] = result
    return results


def _leave(batch: Batch, calls: Sequence[Any]) -> list[Any]:
    return [LEFT] * len(calls)


def _one_by_one(handlers: dict[type[Any], Callable[[Batch, Any], Any]]) -> Handler:
    def handle(batch: Batch, call: Any) -> Any:
        try:
            return handlers[call.__class__](batch, call)
        except RedriveError as refusal:
            return refusal

    return lambda batch, calls: [handle(batch, call) for call in calls]


_by_statements = _one_by_one({Promote: promote_all, ApplyRetention: apply_retention})


def _maintain(batch: Batch, calls: Sequence[Any]) -> list[Any]:
    """In their order; those that follow the rules one after the other go together."""
    results: list[Any] = []
    for statements, members in itertools.groupby(calls, key=lambda call: isinstance(call, Promote | ApplyRetention)):
        results += (_by_statements if statements else execute_by_rules)(batch, tuple(members))
    return results


def _with_lane(lane: Handler) -> Handler:
    """Return the handler of calls that follow the rules too."""
    return lambda batch, calls: (lane if batch.has_lanes else execute_by_rules)(batch, calls)


_HANDLERS: dict[int, Handler] = {
    Rank.QUEUES: _one_by_one(dict.fromkeys(get_args(QueueCall), change_queue)),
    Rank.PUTS: _with_lane(put_all),
    Rank.REGISTRATIONS: _one_by_one({Register: register, Unregister: unregister}),
    Rank.SETTLES: _with_lane(settle_all),
    Rank.MAINTENANCE: _maintain,
    Rank.LEASES: lease_all,
}
"""The function for each rank whose calls do not all follow the rules."""
_BY_RULES: Handler = execute_by_rules
_UNIFORM = frozenset({Put, Complete, LeaseItems})
"""What batches often consist of: they need no sorting by kind."""

"""Execute the calls of one transaction, kind by kind."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, get_args

from redrive.contract import Call
from redrive.contract.admin_calls import (
    Hold,
    ManualChange,
    QueueCall,
    Register,
    SetOperation,
    StartOperation,
    StepOperation,
    Unhold,
    Unregister,
)
from redrive.contract.item_calls import Complete, LeaseByIds, LeaseItems, Put
from redrive.contract.maintenance_calls import ApplyRetention, CloseMove, Expire, FinishMove, Import, Promote, Receive
from redrive.errors import RedriveError
from redrive.stores.relational import dead_letters
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.lease_by_id import lease_by_ids
from redrive.stores.relational.leases import lease_all
from redrive.stores.relational.maintenance import apply_retention, expire_all, promote_all
from redrive.stores.relational.manual_changes import change, hold, unhold
from redrive.stores.relational.moves import close_move, finish_move, import_items, receive
from redrive.stores.relational.operations import set_operation, start, step
from redrive.stores.relational.puts import put_all
from redrive.stores.relational.queues import change_queue
from redrive.stores.relational.registrations import register, unregister
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
        members = kinds[kind]
        for index, result in zip(members, _HANDLERS[kind](batch, [calls[i] for i in members]), strict=True):
            results[index] = result
    return results


def _one_by_one(handlers: dict[type[Any], Callable[[Batch, Any], Any]]) -> Handler:
    def handle(batch: Batch, call: Any) -> Any:
        try:
            return handlers[call.__class__](batch, call)
        except RedriveError as refusal:
            return refusal

    return lambda batch, calls: [handle(batch, call) for call in calls]


_others = _one_by_one(
    {Promote: promote_all, ApplyRetention: apply_retention, FinishMove: finish_move, CloseMove: close_move}
)


def _upkeep(batch: Batch, calls: Sequence[Any]) -> list[Any]:
    """In their order; items that expired one after the other go together."""
    results: list[Any] = []
    for expired, members in itertools.groupby(calls, key=lambda call: isinstance(call, Expire)):
        results += (expire_all if expired else _others)(batch, tuple(members))
    return results


_HANDLERS: tuple[Handler, ...] = (
    _one_by_one(dict.fromkeys(get_args(QueueCall), change_queue)),
    put_all,
    _one_by_one({Register: register, Unregister: unregister}),
    _one_by_one({Import: import_items, Receive: receive}),
    _one_by_one({Hold: hold, Unhold: unhold}),
    settle_all,
    _one_by_one({ManualChange: change}),
    _one_by_one({StartOperation: start, StepOperation: step, SetOperation: set_operation}),
    _upkeep,
    _one_by_one({LeaseByIds: lease_by_ids}),
    lease_all,
)
"""The function for each `Rank`."""
_UNIFORM = frozenset({Put, Complete, LeaseItems})
"""What batches often consist of: they need no sorting by kind."""

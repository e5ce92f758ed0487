"""Execution of calls by the rules of `redrive.stores.rules`: read the named items, let the rules change them, write
them.

Infrequent calls are executed this way. Frequent and plain ones have a lane: separate statements, which leave other
calls to the rules. There are lanes for puts, settles, and changes of many uniform dead letters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from redrive.contract import Call
from redrive.contract.admin_calls import ManualChange, StepOperation, Unhold
from redrive.contract.base import Rank
from redrive.contract.item_calls import Put
from redrive.errors import RedriveError, StoreFailed
from redrive.model.item import Receipt
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.bulk_changes import BULK_THRESHOLD, change_uniform, step_over_uniform
from redrive.stores.relational.item_rows import ItemRow
from redrive.stores.relational.state import SqlState
from redrive.stores.rules import dispatch as rules
from redrive.stores.rules.puts import PutPlan
from redrive.stores.rules.read_ahead import ids_of, names_of


def execute_by_rules(batch: Batch, calls: Sequence[Call], item_rows: Collection[ItemRow] = ()) -> list[Any]:
    """Execute calls in their order. Returns the result of each; refusals are results.

    `item_rows` are state rows that were read already. A rule refuses before its first change, so that a refused call
    changes nothing.
    """
    results: list[Any] = []
    for part in _parts(calls):
        state = SqlState(batch)
        if batch.has_lanes and len(part) == 1 and (result := _execute_in_bulk(state, part[0])) is not None:
            results.append(result)
            continue
        state.items.adopt(item_rows)
        _read_ahead(state, part)
        results += [_execute_or_refuse(state, call) for call in part]
        state.flush()
    return results


def put_by_rules(batch: Batch, puts: Sequence[Put]) -> tuple[Receipt, ...]:
    """Execute puts that are part of another call: all of them, or none. Raises the first refusal before writing."""
    state = SqlState(batch)
    _read_ahead(state, puts)
    plan = PutPlan(state)
    for put in puts:
        plan.add(put)
    receipts = plan.apply()
    state.flush()
    return receipts


def _parts(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """Yield calls that are executed together. A call is alone if it reads by a statement data that another one may
    change: statements do not see pending writes."""
    together: list[Call] = []
    for call in calls:
        if _is_alone(call):
            if together:
                yield together
                together = []
            yield [call]
        else:
            together.append(call)
    if together:
        yield together


def _is_alone(call: Call) -> bool:
    match call:
        case ManualChange(targets=targets):
            return len(targets) > BULK_THRESHOLD
        case StepOperation() | Unhold(ids=None):
            return True
        case _:
            return call.rank is Rank.QUEUES


def _execute_in_bulk(state: SqlState, call: Call) -> Any:
    """Return the result of a call over uniform dead letters; None if it is another one, and nothing changed."""
    match call:
        case ManualChange():
            return change_uniform(state, call)
        case StepOperation():
            return step_over_uniform(state, call)
        case _:
            return None


def _read_ahead(state: SqlState, calls: Sequence[Call]) -> None:
    state.load(ids_of(calls))
    for names in names_of(calls):
        state.prefetch(*names)


def _execute_or_refuse(state: SqlState, call: Call) -> Any:
    """Return the result of a call. A refusal after the first change is a mistake in the rule: the whole transaction is
    rolled back, and then each call runs alone."""
    before = state.batch.changes
    try:
        return rules.execute_calls(state, call)
    except RedriveError as refusal:
        if state.batch.changes == before:
            return refusal
        problem = f"{type(call).__name__} was refused after its first change: {refusal}"
        raise StoreFailed(state.store, problem) from refusal

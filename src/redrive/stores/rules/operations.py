"""Operations: changes of many items in bounded steps."""

from __future__ import annotations

from itertools import islice

from redrive.contract.admin_calls import ManualTarget, SetOperation, StartOperation, StepOperation, new_operation
from redrive.contract.item_calls import StaleSettings
from redrive.contract.queries import ListOperations
from redrive.errors import OperationNotFound, RedriveError
from redrive.model.filter import Order
from redrive.model.ids import ItemId
from redrive.model.item import Settled
from redrive.model.limits import is_remote
from redrive.model.manual_change import ManualAction
from redrive.model.operation import (
    TRACKED_VERBS,
    AuditRow,
    Operation,
    OperationStatus,
    SkippedItem,
    after_step,
    audit_change,
    audit_finish,
    audit_start,
    check_bulk,
    is_outdated,
    with_status,
)
from redrive.model.state_machine import Verb
from redrive.stores.rules.find import FoundItems
from redrive.stores.rules.manual_changes import change_one
from redrive.stores.rules.record import Record
from redrive.stores.rules.state import State


def start_operation(state: State, call: StartOperation) -> Operation:
    """Record an operation. Its steps are separate calls."""
    check_bulk(call.verb, call.to)
    for queue in (call.to, call.where.queue):
        if queue is not None and not is_remote(queue):
            state.queue(queue)
    number = state.draw_number()
    operation = new_operation(call, state.allocate_id(number), number, state.now)
    state.operations.save(operation)
    _audit(state, operation, operation.actor, audit_start(operation))
    return operation


def step_operation(state: State, call: StepOperation) -> Operation | StaleSettings:
    """Check all verdicts of a step first, since a missing or stale one refuses the whole step; then change the
    items."""
    operation = get_operation(state, call.id)
    if not operation.may_step(call.steps):
        return operation
    selected = _select(state, operation, call.limit)
    targets = {}
    for _, item in selected.found:
        target = _target(state, operation, call, item)
        if isinstance(target, StaleSettings):
            return target
        targets[item.id] = target
    return save_step(state, _step(state, operation, selected, targets))


def save_step(state: State, after: Operation) -> Operation:
    """Save an operation after a step."""
    state.operations.save(after)
    if after.status is OperationStatus.FINISHED:
        _audit(state, after, after.actor, audit_finish(after))
    return after


def set_operation(state: State, call: SetOperation) -> Operation:
    """Pause, resume, cancel or stop an operation, or set another rate."""
    operation = get_operation(state, call.id)
    if call.steps is not None and is_outdated(operation, call.steps, call.status):
        return operation
    after = with_status(operation, state.now, call.status, call.problem, call.rate)
    state.operations.save(after)
    _audit(state, after, call.actor, audit_change(after, call.status))
    return after


def get_operation(state: State, id: str) -> Operation:
    """Return the operation of that id."""
    operation = state.operations.get(id)
    if operation is None:
        raise OperationNotFound(id)
    return operation


def list_operations(state: State, query: ListOperations) -> tuple[Operation, ...]:
    """Return operations, newest first."""
    among = state.operations.at_work() if query.active_only else state.operations.newest()
    return tuple(islice((each for each in among if not (query.unfinished and each.ended)), query.limit))


def _select(state: State, operation: Operation, limit: int) -> FoundItems:
    """Return the next items of an operation. None remain if its queue was deleted, since its items were deleted too."""
    if operation.where.queue is not None and operation.where.queue not in state.queues:
        return FoundItems([], operation.position, exhausted=True)
    return state.select(operation.where, Order.OLDEST, limit, operation.position, up_to=operation.mark)


def _target(state: State, operation: Operation, call: StepOperation, item: Record) -> ManualTarget | StaleSettings:
    """Return the change of an item. BURY needs the verdict of its queue."""
    if operation.verb is not Verb.BURY:
        return ManualTarget(item.id)
    queue = state.queues[item.queue].value
    verdict, version = call.verdicts.get(queue.name, (None, 0))
    if verdict is None or version != queue.version:
        return StaleSettings(queue)
    return ManualTarget(item.id, verdict, version)


def _step(state: State, operation: Operation, selected: FoundItems, targets: dict[ItemId, ManualTarget]) -> Operation:
    action = ManualAction.of(operation)
    changed: list[ItemId] = []
    skipped: list[SkippedItem] = []
    for position, item in selected.found:
        id = item.id
        try:
            result = change_one(state, action, targets[id], item)
        except RedriveError as refusal:
            skipped.append(SkippedItem(id, refusal.code))
            continue
        assert isinstance(result, Settled)
        changed.append(result.id)
        if operation.verb in TRACKED_VERBS:
            state.operations.remember(operation.id, id)
        if len(changed) == operation.changes_left:
            return after_step(operation, state.now, changed, skipped, position, exhausted=False)
    return after_step(operation, state.now, changed, skipped, selected.position, selected.exhausted)


def _audit(state: State, operation: Operation, actor: str, audited: AuditRow) -> None:
    state.write_audit(actor, audited.verb, operation.where.queue, (), audited.count, audited.note)

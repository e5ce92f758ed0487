"""Operations: changes of many items, a bounded step at a time. What a step did and how far it got are one commit."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import islice

import msgspec

from redrive.clock import Instant
from redrive.contract.admin_calls import ManualTarget, SetOperation, StartOperation, StepOperation, new_operation
from redrive.contract.item_calls import StaleSettings
from redrive.contract.queries import GetOperation, ListOperations
from redrive.errors import OperationNotFound, QueueNotFound, RedriveError
from redrive.model.ids import ItemId, make_id
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
from redrive.stores.relational import verdicts
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.bulk_changes import bulk_step
from redrive.stores.relational.find import FoundItems, select
from redrive.stores.relational.manual_changes import change_all
from redrive.stores.relational.search_scope import scope_of
from redrive.stores.relational.session import Executor

_INSERT = "INSERT INTO redrive_operation (number, namespace, id, ended_at, next_at, data) VALUES (?, ?, ?, ?, ?, ?)"
_UPDATE = "UPDATE redrive_operation SET ended_at = ?, next_at = ?, data = ? WHERE number = ?"
_ONE = "SELECT data FROM redrive_operation WHERE namespace = ? AND id = ?"
_NEWEST = "SELECT data FROM redrive_operation WHERE namespace = ? ORDER BY number DESC"
_UNFINISHED = "SELECT data FROM redrive_operation WHERE namespace = ? AND ended_at IS NULL ORDER BY number DESC"
_NEXT_STEP = "SELECT min(next_at) FROM redrive_operation WHERE namespace = ? AND ended_at IS NULL"
_ITEMS = "SELECT item_no, id_suffix, queue FROM redrive_item WHERE item_no IN carray(?)"
_CHANGED = """
    INSERT INTO redrive_operation_item (operation, item_no) SELECT ?, value FROM carray(?) WHERE true
    ON CONFLICT DO NOTHING"""
_decode = msgspec.json.Decoder(Operation).decode


def start(batch: Batch, call: StartOperation) -> Operation:
    """Store an operation. Its steps are separate calls."""
    check_bulk(call.verb, call.to)
    for name in (call.to, call.where.queue):
        if name is not None and not is_remote(name):
            batch.queue(name)
    number, _, id = batch.allocate_id()
    operation = new_operation(call, id, number, batch.now)
    batch.execute(_INSERT, (number, batch.namespace_key, id, *_columns(operation)))
    _audit(batch, operation, operation.actor, audit_start(operation))
    return operation


def step(batch: Batch, call: StepOperation) -> Operation | StaleSettings:
    """Change the next few items."""
    operation = _get(batch, batch.namespace_key, call.id)
    if operation.status is not OperationStatus.RUNNING or call.steps != operation.steps:
        return operation
    after = _sweep(batch, operation, call.limit) or _step(batch, operation, call)
    if isinstance(after, StaleSettings):
        return after
    _write(batch, after)
    if after.status is OperationStatus.FINISHED:
        _audit(batch, after, after.actor, audit_finish(after))
    return after


def _sweep(batch: Batch, operation: Operation, limit: int) -> Operation | None:
    """Execute a step over uniform items; None if some are not. Canaries are changed one by one."""
    if operation.canaries_left:
        return None
    step = bulk_step(batch, ManualAction.of(operation), operation.where, operation.position, operation.mark, limit)
    if step is None:
        return None
    _remember(batch, operation, step.numbers)
    return after_step(operation, batch.now, (), (), step.position, step.exhausted, unnamed=len(step.numbers))


def _step(batch: Batch, operation: Operation, call: StepOperation) -> Operation | StaleSettings:
    """A step over items of any kind."""
    changed: list[ItemId] = []
    skipped: list[SkippedItem] = []
    position, exhausted = operation.position, False
    most = min(call.limit, operation.canaries_left or call.limit)
    while not exhausted and len(changed) < most and len(changed) + len(skipped) < call.limit:
        asked = min(most - len(changed), call.limit - len(changed) - len(skipped))
        found = _select(batch, operation, position, asked)
        targets = _targets(batch, operation, call, found.numbers)
        if isinstance(targets, StaleSettings):
            if changed or skipped:  # canaries of an earlier round: the next step asks again
                break
            return targets
        _change(batch, operation, found.numbers, targets, changed, skipped)
        position, exhausted = found.position, found.exhausted
        # Only canaries take another round: skipped items are not canaries.
        if not operation.canaries_left or len(found.numbers) < asked:
            break
    return after_step(operation, batch.now, changed, skipped, position, exhausted)


def set_operation(batch: Batch, call: SetOperation) -> Operation:
    """Pause, resume, cancel, stop, or set another rate."""
    operation = _get(batch, batch.namespace_key, call.id)
    if call.steps is not None and is_outdated(operation, call.steps, call.status):
        return operation
    after = with_status(operation, batch.now, call.status, call.problem, call.rate)
    _write(batch, after)
    _audit(batch, after, call.actor, audit_change(after, call.status))
    return after


def get(executor: Executor, namespace_key: int | None, query: GetOperation) -> Operation:
    """One operation. Raises OperationNotFound."""
    return _get(executor, namespace_key, query.id)


def newest(executor: Executor, namespace_key: int | None, query: ListOperations) -> tuple[Operation, ...]:
    """Operations, newest first."""
    statement = _UNFINISHED if query.unfinished or query.active_only else _NEWEST
    with contextlib.closing(executor.stream(statement, (namespace_key,))) as rows:
        found = (_decode(data) for (data,) in rows)
        return tuple(islice((each for each in found if each.is_active or not query.active_only), query.limit))


def next_step(executor: Executor, namespace_key: int | None) -> Instant | None:
    """When the next step of one that is running may run."""
    at: Instant | None = executor.execute(_NEXT_STEP, (namespace_key,)).get
    return at


def _get(executor: Executor, namespace_key: int | None, id: str) -> Operation:
    data = executor.execute(_ONE, (namespace_key, id)).get
    if data is None:
        raise OperationNotFound(id)
    return _decode(data)


def _select(batch: Batch, operation: Operation, position: int | None, limit: int) -> FoundItems:
    try:
        return select(batch, scope_of(batch), operation.where, limit=limit, after=position, up_to=operation.mark)
    except QueueNotFound:  # it was deleted since, with every item that was meant
        return FoundItems([], position, exhausted=True)


def _targets(
    batch: Batch, operation: Operation, call: StepOperation, numbers: Sequence[int]
) -> list[ManualTarget] | StaleSettings:
    """The items by their ids; StaleSettings if they are to be judged and a verdict is missing or out of date."""
    if not numbers:
        return []
    rows = {item_no: (id_suffix, queue) for item_no, id_suffix, queue in batch.execute(_ITEMS, (batch.table(numbers),))}
    targets = []
    for item_no in numbers:
        id_suffix, queue = rows[item_no]
        if operation.verb is not Verb.BURY:
            targets.append(ManualTarget(make_id(item_no, id_suffix)))
            continue
        row = batch.by_key[queue]
        verdict, version = call.verdicts.get(row.queue.name, (None, 0))
        if verdict is None or version != row.queue.version:
            return StaleSettings(row.queue)
        targets.append(ManualTarget(make_id(item_no, id_suffix), verdict, version))
    return targets


def _change(
    batch: Batch,
    operation: Operation,
    numbers: Sequence[int],
    targets: Sequence[ManualTarget],
    changed: list[ItemId],
    skipped: list[SkippedItem],
) -> None:
    """Change items that may differ in any way."""
    remembered = []
    for item_no, target, result in zip(
        numbers, targets, change_all(batch, ManualAction.of(operation), targets)[0], strict=True
    ):
        if isinstance(result, RedriveError):
            skipped.append(SkippedItem(target.id, result.code))
        else:
            changed.append(result.id)
            remembered.append(item_no)
    _remember(batch, operation, remembered)


def _remember(batch: Batch, operation: Operation, numbers: Sequence[int]) -> None:
    """Which items were changed. An old number finds what moved."""
    if operation.verb in TRACKED_VERBS and numbers:
        batch.execute(_CHANGED, (operation.mark, batch.table(numbers)))


def _write(batch: Batch, operation: Operation) -> None:
    batch.execute(_UPDATE, (*_columns(operation), operation.mark))


def _columns(operation: Operation) -> tuple[Instant | None, Instant | None, bytes]:
    ended_at = operation.updated_at if operation.ended else None
    next_at = operation.next_at if operation.status is OperationStatus.RUNNING else None
    return ended_at, next_at, msgspec.json.encode(operation)


def _audit(batch: Batch, operation: Operation, actor: str, audited: AuditRow) -> None:
    verdicts.audit(batch, actor, audited.verb, operation.where.queue, [], audited.count, audited.note)

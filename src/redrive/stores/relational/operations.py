"""The rows of operations: each with its definition and progress."""

from __future__ import annotations

import contextlib
from itertools import islice

import msgspec

from redrive.clock import Instant
from redrive.contract.queries import GetOperation, ListOperations
from redrive.errors import OperationNotFound
from redrive.model.operation import Operation, OperationStatus
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.session import Executor
from redrive.stores.rules.damage import read_value

_WRITE = """
    INSERT INTO redrive_operation (number, namespace, id, ended_at, next_at, data) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (number) DO UPDATE SET ended_at = excluded.ended_at, next_at = excluded.next_at, data = excluded.data"""
_ONE = "SELECT data FROM redrive_operation WHERE namespace = ? AND id = ?"
_NEWEST = "SELECT data FROM redrive_operation WHERE namespace = ? ORDER BY number DESC"
_UNFINISHED = "SELECT data FROM redrive_operation WHERE namespace = ? AND ended_at IS NULL ORDER BY number DESC"
_NEXT_STEP = "SELECT min(next_at) FROM redrive_operation WHERE namespace = ? AND ended_at IS NULL"
_decode = msgspec.json.Decoder(Operation).decode


def get(executor: Executor, namespace_key: int | None, query: GetOperation) -> Operation:
    """Return one operation. Raises OperationNotFound."""
    operation = find(executor, namespace_key, query.id)
    if operation is None:
        raise OperationNotFound(query.id)
    return operation


def newest(executor: Executor, namespace_key: int | None, query: ListOperations) -> tuple[Operation, ...]:
    """Return operations, newest first."""
    statement = _UNFINISHED if query.unfinished or query.active_only else _NEWEST
    with contextlib.closing(executor.stream(statement, (namespace_key,))) as rows:
        found = (read_value(_decode, data, None, tuple) for (data,) in rows)
        readable = (each for each in found if each is not None)
        return tuple(islice((each for each in readable if each.is_active or not query.active_only), query.limit))


def next_step(executor: Executor, namespace_key: int | None) -> Instant | None:
    """Return the earliest instant at which a step of a running operation may run."""
    at: Instant | None = executor.execute(_NEXT_STEP, (namespace_key,)).get
    return at


def find(executor: Executor, namespace_key: int | None, id: str) -> Operation | None:
    """Return the operation of that id, or None."""
    data = executor.execute(_ONE, (namespace_key, id)).get
    return None if data is None else _decode(data)


def write(batch: Batch, operation: Operation) -> None:
    """Write the current state of an operation."""
    ended_at = operation.updated_at if operation.ended else None
    next_at = operation.next_at if operation.status is OperationStatus.RUNNING else None
    key = (operation.mark, batch.namespace_key, operation.id)
    batch.execute(_WRITE, (*key, ended_at, next_at, msgspec.json.encode(operation)))

"""Validation of queries."""

from __future__ import annotations

import msgspec

from redrive.broker.validation import check_integer
from redrive.broker.worker_session import MAX_WORKER_LEASES
from redrive.clock import Instant
from redrive.contract import Query
from redrive.contract.base import MAINTENANCE_BATCH
from redrive.contract.queries import (
    CountItems,
    FindItems,
    FindPlanSubjects,
    GetIdempotencyOwners,
    GetItem,
    GetItems,
    GetItemsByKey,
    GetLease,
    GetLeasedItem,
    GetLeases,
    GetOperation,
    GetOverdue,
    GetQueue,
    GetResult,
    GetStats,
    ListAudit,
    ListGroups,
    ListMoves,
    ListOpenMoves,
    ListOperations,
    ListRegistrations,
    ListStats,
    ListWorkerLeases,
    ReadFeed,
)
from redrive.errors import InvalidInput
from redrive.model.ids import MAX_NUMBER
from redrive.model.limits import MAX_BATCH, MAX_LABEL_CHARS, check_address, check_label, check_name
from redrive.server.validation import values
from redrive.server.validation.manual_changes import filter_

_replace = msgspec.structs.replace


def query(asked: Query, now: Instant) -> Query:
    """Return a validated query."""
    match asked:
        case GetQueue(name) | GetStats(name):
            values.queue(name)
        case ListStats(names):
            values.many("names", len(names or ()), MAX_BATCH)
            for name in names or ():
                values.queue(name)
        case GetItem(id) | GetResult(id):
            values.id(id)
        case GetItems(ids):
            values.many("ids", len(ids), MAX_BATCH)
            for id in ids:
                values.id(id)
        case GetLeases(tokens):
            values.many("tokens", len(tokens), MAX_BATCH)
            for token in tokens:
                values.token(token)
        case GetLease(token) | GetLeasedItem(token):
            values.token(token)
        case FindItems(where, _, limit, cursor) | FindPlanSubjects(where, _, limit, cursor):
            values.limit(limit)
            _cursor(cursor)
            return _replace(asked, where=filter_(where, now))
        case CountItems(where, cursor):
            _cursor(cursor)
            return _replace(asked, where=filter_(where, now))
        case ListGroups(queue, limit) | GetOverdue(queue, limit):
            values.limit(limit, MAINTENANCE_BATCH)
            _queue(queue)
        case ReadFeed():
            _feed(asked)
        case GetIdempotencyOwners(queue, keys) | GetItemsByKey(queue, keys):
            values.queue(queue)
            values.many("keys", len(keys))
            for key in keys:
                check_label("idempotency key", key)
        case GetOperation(id):
            check_label("operation id", id)
        case ListOperations(limit=limit):
            values.limit(limit)
        case ListWorkerLeases(worker, limit):
            values.label("worker", worker or None)  # an empty name is no worker's, and finds nothing
            values.limit(limit, MAX_WORKER_LEASES)
        case ListRegistrations(kind, name):
            check_name("kind", kind)
            values.label("name", name)
        case ListAudit(limit, before):
            values.limit(limit)
            _number("before", before)
        case ListMoves(to, limit):
            values.limit(limit)
            if to is not None:
                check_address("queue", to)
        case ListOpenMoves(store, limit, after):
            check_name("store", store)
            values.limit(limit)
            if after is not None:
                values.id(after)
    return asked


def _feed(asked: ReadFeed) -> None:
    values.limit(asked.limit)
    _queue(asked.queue)
    _number("after", asked.after)
    _number("before", asked.before)
    if asked.id is not None:
        values.id(asked.id)
    values.label("operation", asked.operation)


def _queue(name: str | None) -> None:
    if name is not None:
        values.queue(name)


def _number(what: str, number: int | None) -> None:
    if number is not None:
        check_integer(what, number, 0, MAX_NUMBER)


def _cursor(cursor: str | None) -> None:
    if cursor is not None and (len(cursor) > MAX_LABEL_CHARS or not cursor.isascii()):
        raise InvalidInput("that is no cursor; pass on the one that the page before carried")

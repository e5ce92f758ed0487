"""Requirements of every call, for all interfaces: which rights it needs, and in which queues. Pure:
`store_call_authorization` reads what is not in the call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from redrive.auth.principal import Permission
from redrive.auth.requirements import (
    DeadQueueRef,
    EarlyLossCheck,
    ItemRef,
    LeaseRef,
    OperationRef,
    OverdueAccess,
    PermissionScope,
    QueueRef,
    QueueScope,
    RequiredPermission,
    Requirement,
    SourceQueueRef,
    VerdictCheck,
)
from redrive.auth.token_store import TOKEN_KIND as TOKEN
from redrive.broker.flows.external_polls import POLL, PUT_AGAIN, REQUEST
from redrive.broker.flows.queues import MANAGED_KIND as MANAGED
from redrive.broker.flows.registrations import (
    ALL_QUEUES,
    CAPTURE_KIND,
    CLAIMED,
    DISCLOSURE_KIND,
    EXPORTED,
    MANUAL_RETRIES,
    SHOWN,
    SUSPECTS_KIND,
)
from redrive.broker.flows.registrations import WORKER_KIND as WORKER
from redrive.contract import Call, Query
from redrive.contract.admin_calls import (
    CreateQueue,
    DeleteQueue,
    Hold,
    ManualChange,
    Register,
    SetBreakers,
    SetOperation,
    SetPaused,
    SetSourceQueue,
    StartOperation,
    StepOperation,
    Unhold,
    Unregister,
    UpdateQueue,
)
from redrive.contract.item_calls import Complete, Extend, LeaseByIds, LeaseItems, Put, Reply, ReturnLease, Settle
from redrive.contract.maintenance_calls import ApplyRetention, CloseMove, Expire, FinishMove, Import, Promote, Receive
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
    GetNextDue,
    GetOperation,
    GetOverdue,
    GetQueue,
    GetResult,
    GetStats,
    ListAudit,
    ListGroups,
    ListMoves,
    ListMoveTargets,
    ListOpenMoves,
    ListOperations,
    ListQueues,
    ListRegistrations,
    ListStats,
    ListWorkerLeases,
    ReadFeed,
)
from redrive.contract.replies import REPLY_TO
from redrive.model.breaker import queue_of_holder
from redrive.model.filter import Filter
from redrive.model.operation import OperationStatus
from redrive.model.state_machine import Verb
from redrive.worker.scheduler import SCHEDULE_KIND as SCHEDULE

PUT, CAPTURE, CONSUME, READ = Permission.PUT, Permission.CAPTURE, Permission.CONSUME, Permission.READ
READ_RESULTS, READ_PAYLOADS = Permission.READ_RESULTS, Permission.READ_PAYLOADS
OPERATE, MANAGE, MANAGE_TOKENS = Permission.OPERATE, Permission.MANAGE, Permission.MANAGE_TOKENS

DELETING_VERBS = frozenset({Verb.DROP, Verb.PURGE})
"""Verbs that remove items; a drop removes them after `keep_dropped`."""
_HALTING = frozenset({OperationStatus.PAUSED, OperationStatus.CANCELLED, OperationStatus.STOPPED})
SEES_QUEUES = (READ, PUT, CAPTURE, CONSUME)
"""Rights of which each lets a caller read a queue: producers and workers need it too."""
WATCHES_QUEUES = (CONSUME, READ)
"""Rights of which each lets a caller wait for arrivals in a queue."""
SEES_UNREDACTED = (MANAGE,)
"""Rights of which each lets a caller read items without redaction."""

_Requirements = Iterable[Requirement]


def permissions_for(call: Call | Query) -> _Requirements:
    """Return all requirements of a call."""
    return CALL_PERMISSIONS[call.__class__](call)


def permission_for_verb(verb: Verb) -> Permission:
    """Return the permission that a manual change needs."""
    return MANAGE if verb in DELETING_VERBS else OPERATE


def needs_of_filter(where: Filter, right: Permission = READ) -> Iterator[RequiredPermission]:
    """Yield the requirements of a search. Searching words or headers needs `read_payloads`: matches reveal content."""
    place = _place(where.queue)
    yield RequiredPermission((right,), place)
    if where.words is not None or where.headers is not None:
        yield RequiredPermission((READ_PAYLOADS,), place)


def _place(queue: str | None) -> PermissionScope:
    return QueueScope.ALL if queue is None else QueueRef(queue)


def _in_queue(right: Permission, field: str = "queue") -> Callable[[Any], _Requirements]:
    return lambda call: (RequiredPermission((right,), QueueRef(getattr(call, field))),)


def _fixed(place: PermissionScope, *rights: Permission) -> Callable[[Any], _Requirements]:
    always = (RequiredPermission(rights, place),)
    return lambda call: always


def _create(call: CreateQueue) -> _Requirements:
    """Require `manage` also in the dead queues of the new queue, since its dead letters fill them."""
    return [RequiredPermission((MANAGE,), QueueRef(name)) for name in (call.name, *call.settings.dead_queues())]


def _update(call: UpdateQueue) -> _Requirements:
    yield RequiredPermission((MANAGE,), QueueRef(call.name))
    for to in call.settings.dead_queues():
        yield RequiredPermission((MANAGE,), DeadQueueRef(call.name, to))


def _overdue(query: GetOverdue) -> _Requirements:
    return (RequiredPermission((CONSUME, MANAGE), _place(query.queue)), OverdueAccess(query.queue))


def _put(call: Put) -> _Requirements:
    place = QueueRef(call.queue)
    for right in sorted({PUT if item.failure is None else CAPTURE for item in call.items} or {PUT}):
        yield RequiredPermission((right,), place)
    for item in call.items:
        if item.is_plain:
            continue
        if item.source_id is not None:  # the item that really has that id would then be ignored
            yield RequiredPermission((MANAGE,), place)
        if item.verdict is not None:
            yield VerdictCheck(place, item.verdict, item.version)
        yield from _reply_to(item.headers)


def _reply_to(headers: Mapping[str, str] | None) -> _Requirements:
    """Require `put` in the queue that an item names for its replies, since they fill it."""
    if headers is not None and REPLY_TO in headers:
        yield RequiredPermission((PUT,), QueueRef(headers[REPLY_TO]))


def _puts(puts: Iterable[Put]) -> _Requirements:
    for put in puts:
        yield from _put(put)


def _registration(call: Register | Unregister) -> RequiredPermission:
    if call.kind == WORKER and (isinstance(call, Unregister) or call.timeout is not None):
        return RequiredPermission((CONSUME,), QueueScope.ANY)  # with a timeout, so that workers cannot fill the store
    if call.kind in (POLL, REQUEST) and (isinstance(call, Unregister) or call.timeout is not None):
        return RequiredPermission((CONSUME,) if call.kind == POLL else (PUT, CONSUME), QueueRef(call.name))
    if call.kind in (
        SCHEDULE,
        CLAIMED,
        PUT_AGAIN,
        MANUAL_RETRIES,
        SUSPECTS_KIND,
    ):  # named QUEUE, QUEUE/TASK or QUEUE/DIGEST
        return RequiredPermission((CONSUME,), QueueRef(call.name.partition("/")[0]))
    if call.kind == TOKEN:
        return RequiredPermission((MANAGE_TOKENS,), QueueScope.ALL)
    if call.kind == DISCLOSURE_KIND and call.name != ALL_QUEUES:
        return RequiredPermission(SEES_UNREDACTED, QueueRef(call.name))
    return RequiredPermission((MANAGE,), QueueScope.ALL)


def _register(call: Register) -> _Requirements:
    yield from _unregister(call)
    yield from _puts(call.puts)


def _unregister(call: Register | Unregister) -> _Requirements:
    yield _registration(call)
    verbs = (SHOWN, EXPORTED) if call.kind == DISCLOSURE_KIND else ()
    if call.audit is not None and call.kind != TOKEN and call.audit.verb not in verbs:  # only a manager may
        yield RequiredPermission((MANAGE,), QueueScope.ALL)


def _registrations(call: ListRegistrations) -> _Requirements:
    if call.kind in (WORKER, SCHEDULE, CLAIMED, POLL, REQUEST, PUT_AGAIN):
        return (RequiredPermission((READ, CONSUME), QueueScope.ANY),)
    if call.kind == TOKEN:
        return (RequiredPermission((MANAGE_TOKENS,), QueueScope.ALL),)
    if call.kind in (CAPTURE_KIND, MANUAL_RETRIES) and call.name is not None:
        return (RequiredPermission((READ, CAPTURE, MANAGE), QueueRef(call.name)),)
    if call.kind == MANAGED and call.name is not None:
        return (RequiredPermission((READ, MANAGE), QueueRef(call.name)),)
    return (RequiredPermission((READ,), QueueScope.ALL),)


def _of_lease(call: Extend | Reply | ReturnLease | GetLease | GetLeasedItem) -> _Requirements:
    return (RequiredPermission((CONSUME,), LeaseRef(call.token)),)


def _complete(call: Complete) -> _Requirements:
    yield RequiredPermission((CONSUME,), LeaseRef(call.token))
    yield from _puts(call.puts)


def _settle(call: Settle) -> _Requirements:
    yield RequiredPermission((CONSUME,), place := LeaseRef(call.token))
    yield VerdictCheck(place, call.verdict, call.version, closes_gate=call.close_until is not None)
    if call.worker_is_gone:
        yield EarlyLossCheck(call.token)


def _change(call: ManualChange) -> _Requirements:
    right = permission_for_verb(call.verb)
    if call.to is not None:
        yield RequiredPermission((right,), QueueRef(call.to))
    for target in call.targets:
        place = ItemRef(target.id, call.verb if call.to is None else None)
        yield RequiredPermission((right,), place)
        if target.verdict is not None:
            yield VerdictCheck(place, target.verdict, target.version)
        yield from _reply_to(target.headers)


def _import(call: Import) -> _Requirements:
    yield RequiredPermission((MANAGE,), QueueRef(call.queue))
    for item in call.items:
        yield from _reply_to(item.headers)


def _receive(call: Receive) -> _Requirements:
    yield RequiredPermission((MANAGE,), QueueRef(call.queue))
    yield from _reply_to(call.move.item.headers)


def _holds(call: Hold | Unhold) -> _Requirements:
    if call.ids is None:
        yield RequiredPermission((OPERATE,), _place(queue_of_holder(call.held_by)))
    for id in call.ids or ():
        yield RequiredPermission((OPERATE,), ItemRef(id))
    if isinstance(call, Hold) and call.queue_version is not None:
        yield RequiredPermission((OPERATE,), QueueRef(call.queue_version[0]))


def _start(call: StartOperation) -> _Requirements:
    right = permission_for_verb(call.verb)
    yield from needs_of_filter(call.where, right)
    if call.to is not None:
        yield RequiredPermission((right,), QueueRef(call.to))
    elif call.verb is Verb.UNDO:  # each item returns to its former queue, which can be any
        yield RequiredPermission((right,), QueueScope.ALL)
    elif call.verb is Verb.REDRIVE and call.where.queue is not None:
        yield RequiredPermission((right,), SourceQueueRef(call.where.queue))


def _step(call: StepOperation) -> _Requirements:
    yield RequiredPermission((OPERATE,), OperationRef(call.id, drives=True))
    for queue, (verdict, version) in call.verdicts.items():
        yield VerdictCheck(QueueRef(queue), verdict, version)


def _set_operation(call: SetOperation) -> _Requirements:
    halts = call.status in _HALTING and call.rate is None
    return (RequiredPermission((OPERATE,), OperationRef(call.id, drives=not halts)),)


def _expire(call: Expire) -> _Requirements:
    return (RequiredPermission((MANAGE,), ItemRef(call.id)), VerdictCheck(ItemRef(call.id), call.verdict, call.version))


def _of_item(*rights: Permission) -> Callable[[Any], _Requirements]:
    return lambda call: (RequiredPermission(rights, ItemRef(call.id)),)


def _feed(call: ReadFeed) -> _Requirements:
    return (RequiredPermission((READ,), QueueScope.ANY if call.queue is None else QueueRef(call.queue)),)


CALL_PERMISSIONS: dict[type[Any], Callable[[Any], _Requirements]] = {
    CreateQueue: _create,
    UpdateQueue: _update,
    SetPaused: _in_queue(OPERATE, "name"),
    SetBreakers: _in_queue(OPERATE, "name"),
    SetSourceQueue: _in_queue(MANAGE, "name"),
    DeleteQueue: _in_queue(MANAGE, "name"),
    Put: _put,
    Register: _register,
    Unregister: _unregister,
    Import: _import,
    Receive: _receive,
    Hold: _holds,
    Unhold: _holds,
    Complete: _complete,
    Settle: _settle,
    ReturnLease: _of_lease,
    Extend: _of_lease,
    Reply: _of_lease,
    ManualChange: _change,
    StartOperation: _start,
    StepOperation: _step,
    SetOperation: _set_operation,
    Promote: _fixed(QueueScope.ALL, MANAGE),
    Expire: _expire,
    ApplyRetention: _fixed(QueueScope.ALL, MANAGE),
    FinishMove: _fixed(QueueScope.ALL, MANAGE),
    CloseMove: _in_queue(MANAGE),
    LeaseByIds: lambda call: [
        RequiredPermission((right,), ItemRef(id))
        for right in ((CONSUME, OPERATE) if call.include_dead else (CONSUME,))
        for id in call.ids
    ],
    LeaseItems: _in_queue(CONSUME),
    GetQueue: lambda query: (RequiredPermission(SEES_QUEUES, QueueRef(query.name)),),
    ListQueues: _fixed(QueueScope.ANY, *SEES_QUEUES),
    GetStats: lambda query: (RequiredPermission((READ, CAPTURE), QueueRef(query.name)),),
    ListStats: _fixed(QueueScope.ANY, READ),
    GetItem: _of_item(READ, READ_RESULTS),
    GetItems: _fixed(QueueScope.ANY, READ, READ_RESULTS),
    FindItems: lambda query: needs_of_filter(query.where),
    FindPlanSubjects: lambda query: needs_of_filter(query.where),
    CountItems: lambda query: needs_of_filter(query.where),
    ListGroups: lambda query: (RequiredPermission((READ,), _place(query.queue)),),
    ReadFeed: _feed,
    GetIdempotencyOwners: _in_queue(READ_PAYLOADS),
    GetItemsByKey: _in_queue(READ_PAYLOADS),
    GetOperation: lambda query: (RequiredPermission((READ,), OperationRef(query.id)),),
    ListOperations: _fixed(QueueScope.ANY, READ),
    GetOverdue: _overdue,
    GetLease: _of_lease,
    GetLeases: _fixed(QueueScope.ANY, CONSUME),
    GetLeasedItem: _of_lease,
    ListWorkerLeases: _fixed(QueueScope.ANY, CONSUME),
    GetResult: _fixed(QueueScope.ANY, READ_RESULTS),
    ListRegistrations: _registrations,
    ListAudit: _fixed(QueueScope.ALL, READ),
    ListMoveTargets: _fixed(QueueScope.ALL, READ),
    ListMoves: _fixed(QueueScope.ALL, READ),
    ListOpenMoves: _fixed(QueueScope.ALL, READ),
    GetNextDue: _fixed(QueueScope.ANY, READ, CONSUME),
}
"""The requirements of every call and every query. A test checks that none is missing."""

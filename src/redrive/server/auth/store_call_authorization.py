"""The guard in front of the store: every call of a remote client passes it, on its way in and on its way out.

In: the call is one that a broker could have made; the caller may make it; and its actor is who the caller is.
Out: what the caller may not see is taken out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import msgspec

from redrive.auth.permissions import (
    MANAGE,
    OPERATE,
    PUT,
    EarlyLossCheck,
    ItemRef,
    LeaseRef,
    OperationRef,
    PermissionScope,
    QueueRef,
    QueueScope,
    RequiredPermission,
    SourceQueueRef,
    VerdictCheck,
    permissions_for,
)
from redrive.auth.principal import TOKENS_NAMESPACE, Permission, Role
from redrive.auth.token_store import ANONYMOUS, with_audit_note
from redrive.auth.token_store import TOKEN_KIND as TOKEN
from redrive.broker.flows.registrations import WORKER_KIND as WORKER
from redrive.broker.maintenance import settle_overdue
from redrive.contract import Call, Query
from redrive.contract.admin_calls import (
    DeleteQueue,
    Import,
    ManualChange,
    Register,
    SetBreakers,
    SetOperation,
    SetPaused,
    StartOperation,
    Unregister,
    UpdateQueue,
)
from redrive.contract.item_calls import LeaseByIds, LeaseItems, leases_of
from redrive.contract.queries import GetLease, GetOverdue, ListWorkerLeases
from redrive.errors import Forbidden, InvalidInput, RedriveError
from redrive.model.ids import Token
from redrive.model.item import Lease
from redrive.model.judge import Dead, RetryVerdict, Verdict
from redrive.model.limits import is_remote, split_address
from redrive.model.queue import OnDead, Queue, QueueSettings, RetryAfter
from redrive.model.state_machine import Verb
from redrive.server.auth import resource_authorization
from redrive.server.auth.result_filter import RESULT_FILTERS
from redrive.server.request import Request
from redrive.server.validation.dispatch import validate_call

YIELD_SECONDS = 0.01
"""After so long others have their turn, where the calls of one request take longer to check."""
_replace = msgspec.structs.replace
_WITH_ACTOR = frozenset({UpdateQueue, SetPaused, DeleteQueue, ManualChange, StartOperation, SetOperation, Import})
_WITH_WORKER = frozenset({LeaseByIds, LeaseItems, ListWorkerLeases})
_REGISTRATIONS = frozenset({Register, Unregister})


async def authorize_calls(request: Request, calls: Sequence[Call | Query]) -> list[Any]:
    """Each call as it may be carried out, or the error that it is refused with."""
    now = request.broker.core.clock.now()
    principal = request.principal
    # Whoever may do everything everywhere needs no look at where.
    master = Role.ADMIN in principal.roles and principal.in_all_queues and principal.may_enter(request.namespace)
    answers: list[Any] = []
    began = perf_counter()
    for call in calls:
        if perf_counter() - began > YIELD_SECONDS:
            await asyncio.sleep(0)
            began = perf_counter()
        try:
            checked = validate_call(_with_principal(request, call), now)
            if not master:
                await _check(request, checked)
            answers.append(checked)
        except RedriveError as refusal:
            answers.append(refusal)
    return answers


def filter_result(request: Request, call: Call | Query, result: Any) -> Any:
    """The result of a call, without what the caller may not see."""
    show = RESULT_FILTERS.get(call.__class__)
    return result if show is None or isinstance(result, RedriveError) else show(request, call, result)


def withheld_tokens(request: Request, calls: Sequence[Call], results: Sequence[Any]) -> list[Token]:
    """The tokens of leases by id that the caller may not have, as `filter_result` shows: they are to be returned."""
    if request.principal.in_all_queues:
        return []
    leases = [
        lease
        for call, result in zip(calls, results, strict=True)
        if call.__class__ is LeaseByIds
        for lease in leases_of(result)
    ]
    return [lease.token for lease in leases if not resource_authorization.may_hold(request, lease)]


def _with_principal(request: Request, call: Any) -> Any:
    """The call, with the name of the caller where it names who makes it."""
    kind = call.__class__
    if kind in _REGISTRATIONS and call.kind == TOKEN:
        if request.namespace != TOKENS_NAMESPACE:
            raise InvalidInput(f"tokens are kept in the namespace {TOKENS_NAMESPACE}")
        # What the audit says of a token is what was done to it, whatever a client says.
        named = ANONYMOUS if call.audit is None else call.audit.actor
        return with_audit_note(call, request.principal.name or named)
    if request.principal.name is None:
        return call
    if kind in _WITH_ACTOR:
        return _replace(call, actor=request.principal.name)
    if kind is SetBreakers:
        return _opened_by(call, request.principal.name)
    if kind in _WITH_WORKER:
        return _replace(call, worker=request.principal.worker(call.worker))
    if kind in _REGISTRATIONS and call.kind == WORKER:
        call = _replace(call, name=request.principal.worker(call.name))
    if kind in _REGISTRATIONS and call.audit is not None:
        call = _replace(call, audit=_replace(call.audit, actor=request.principal.name))
    return call


def _opened_by(call: SetBreakers, name: str) -> SetBreakers:
    """The call with the caller's name as actor, also in the breakers that its actor opens."""
    breakers = tuple(_replace(each, opened_by=name) if each.opened_by == call.actor else each for each in call.breakers)
    return _replace(call, actor=name, breakers=breakers)


async def _check(request: Request, call: Any) -> None:
    """Raise unless the caller may make the call."""
    items: dict[tuple[tuple[Permission, ...], Verb | None], list[str]] = {}
    for need in permissions_for(call):
        match need:
            case RequiredPermission(rights, ItemRef(id, verb)):
                items.setdefault((rights, verb), []).append(id)
            case RequiredPermission(rights, place):
                await _check_need(request, rights, place)
            case VerdictCheck(place, verdict, version):
                await _check_verdict(request, place, verdict, version)
                await _check_waiting(request, need)
            case EarlyLossCheck(token):
                await _check_at_once(request, token)
    for (rights, verb), ids in items.items():
        await resource_authorization.check_items(request, rights, ids, verb=verb)
    if isinstance(call, GetOverdue) and not resource_authorization.may(request, (MANAGE,), call.queue):
        # Whoever leases is told that something is overdue, and settles it. What others held is not his to judge, nor
        # are their tokens his to know: it is done for him, and then he finds nothing.
        await request.broker.run_flow(settle_overdue(request.broker.core, call.queue))


async def _check_need(request: Request, rights: tuple[Permission, ...], place: PermissionScope) -> None:
    match place:
        case QueueRef(name) if is_remote(name):
            _check_elsewhere(request, rights, name)
        case QueueRef(name):
            if not resource_authorization.may(request, rights, name):
                raise Forbidden(rights[0], request.namespace, name)
        case SourceQueueRef(queue):
            await resource_authorization.check_redrive_targets(request, rights, queue)
        case LeaseRef(token):
            await resource_authorization.check_lease(request, rights, token)
        case OperationRef(id, drives):
            await resource_authorization.check_operation(request, rights[0], id, drives=drives)
        case QueueScope.ANY:
            resource_authorization.check_somewhere(request, rights)
        case QueueScope.ALL:
            if not resource_authorization.may_everywhere(request, rights):
                raise Forbidden(rights[0], request.namespace, None)


def _check_elsewhere(request: Request, rights: tuple[Permission, ...], address: str) -> None:
    """A queue of another store. One that this server does not know keeps what goes there on its way for ever."""
    is_known = request.broker.core.stores.is_known(split_address(address)[1] or "")
    if not resource_authorization.may_everywhere(request, rights if is_known else (MANAGE,)):
        raise Forbidden(rights[0], request.namespace, address)


async def _check_verdict(request: Request, place: PermissionScope, verdict: Verdict, version: int) -> None:
    """Raise where an item would be lost, or brought somewhere, that neither its queue's settings nor the caller's
    rights say."""
    if not isinstance(verdict, Dead) or (verdict.to is None and not verdict.drop):
        return
    if not verdict.drop and verdict.to is not None and _may_bring(request, verdict.to):
        return
    queue = await _queue_at(request, place)
    if queue is None or resource_authorization.may(request, (MANAGE,), queue):
        return
    judged_by = await _queue_judged_by(request, queue, version)
    if judged_by is None:
        return
    settings = judged_by.settings
    if verdict.to is not None and verdict.to not in settings.dead_queues():
        raise Forbidden(PUT, request.namespace, verdict.to)
    if verdict.drop and not _drops(settings):
        raise Forbidden(MANAGE, request.namespace, queue)


async def _check_waiting(request: Request, check: VerdictCheck) -> None:
    """Raise where an item would be held, or a queue closed, and neither breakers nor settings of the queue say so."""
    held_by = check.verdict.held_by if isinstance(check.verdict, RetryVerdict) else ()
    if not held_by and not check.closes_gate:
        return
    name = await _queue_at(request, check.place)
    if name is None or resource_authorization.may(request, (OPERATE,), name):
        return
    queue = await _queue_judged_by(request, name, check.version)
    if queue is None:
        return
    closes = check.closes_gate and queue.settings.retry_after_mode is not RetryAfter.GATE
    if closes or not {breaker.holder(name) for breaker in queue.breakers}.issuperset(held_by):
        raise Forbidden(OPERATE, request.namespace, name)


def _may_bring(request: Request, to: str) -> bool:
    return not is_remote(to) and resource_authorization.may(request, (PUT, OPERATE), to)


def _drops(settings: QueueSettings) -> bool:
    """Whether there are items that die in the queue and are removed."""
    routed = isinstance(settings.dead_queue, str) or (
        isinstance(settings.dead_queue, dict) and "default" in settings.dead_queue
    )
    return settings.on_dead is OnDead.DROP and not routed


async def _queue_at(request: Request, place: PermissionScope) -> str | None:
    match place:
        case QueueRef(name):
            return name
        case ItemRef(id):
            found = (await resource_authorization.locate_items(request, (id,))).get(id)
            return None if found is None else found.queue
        case LeaseRef(token):
            return await resource_authorization.queue_of_lease(request, token)
    raise AssertionError(place)


async def _queue_judged_by(request: Request, name: str, version: int) -> Queue | None:
    """The queue that a verdict was judged by. None where it has changed: the store refuses the verdict as stale."""
    core = request.broker.core
    queue = await request.broker.run_flow(core.queue(name))
    if version > queue.version:
        queue = await request.broker.get_queue(name)
    if version > queue.version:
        raise InvalidInput(f"queue '{name}' never had settings of version {version}")
    return queue if version == queue.version else None


async def _check_at_once(request: Request, token: Token) -> None:
    if resource_authorization.may_everywhere(request, (OPERATE,)):
        return
    core = request.broker.core
    lease: Lease = await asyncio.get_running_loop().run_in_executor(None, core.read, GetLease(token))
    if not (lease.worker or "").startswith(f"{request.principal.name}/"):
        raise Forbidden(OPERATE, request.namespace, lease.queue)

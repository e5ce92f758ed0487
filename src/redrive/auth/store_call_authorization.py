"""The guard's decisions: the actor that a call names, and whether the caller may make the call.

It decides without a query if the call and the caller are sufficient. It reads the rest together, for all calls of a
request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any, get_args

import msgspec

from redrive.auth.caller import Caller
from redrive.auth.permissions import MANAGE, OPERATE, PUT, permissions_for
from redrive.auth.principal import TOKENS_NAMESPACE, Permission
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
from redrive.auth.resource_authorization import (
    Locations,
    check_item,
    check_lease,
    check_new_dead_queue,
    check_operation,
    check_redrive_targets,
    locate_items,
    queue_of_lease,
)
from redrive.auth.token_store import ANONYMOUS, with_audit_note
from redrive.auth.token_store import TOKEN_KIND as TOKEN
from redrive.broker.flow import Flow, GiveTurn, run_query
from redrive.broker.flows.registrations import WORKER_KIND as WORKER
from redrive.broker.maintenance import settle_overdue
from redrive.contract import Call, Query
from redrive.contract.admin_calls import (
    Register,
    SetBreakers,
    Unregister,
)
from redrive.contract.queries import GetLease, GetQueue
from redrive.errors import Forbidden, InvalidInput, RedriveError
from redrive.model.ids import Token, item_id_of
from redrive.model.item import Lease
from redrive.model.judge import Dead, RetryVerdict
from redrive.model.limits import check_label, is_remote, split_address
from redrive.model.queue import OnDead, Queue, QueueSettings, RetryAfter

TURN_SECONDS = 0.01
"""Seconds of checking the calls of one request after which other tasks get a turn."""
_replace = msgspec.structs.replace
_KINDS = (*get_args(Call), *get_args(Query))
_WITH_ACTOR = frozenset(kind for kind in _KINDS if "actor" in kind.__struct_fields__)
_WITH_WORKER = frozenset(kind for kind in _KINDS if "worker" in kind.__struct_fields__)
_REGISTRATIONS = frozenset({Register, Unregister})


def authorize_calls(
    caller: Caller, calls: Sequence[Call | Query], validate: Callable[[Any], Any] | None = None
) -> Flow[list[Any]]:
    """Return each call, signed, if the caller may make it; otherwise the error that refuses it.

    validate: checks the values of calls that do not come from a broker of this process.
    """
    answers: list[Any] = []
    unproven: dict[int, list[Requirement]] = {}
    started_at = perf_counter()
    for index, call in enumerate(calls):
        started_at = yield from _take_turns(started_at)
        try:
            signed = sign_call(caller, call)
            answers.append(signed if validate is None else validate(signed))
        except RedriveError as refusal:
            answers.append(refusal)
        else:
            if open := _unproven_needs(caller, answers[index]):
                unproven[index] = open
    if unproven:
        located = yield from locate_items(_ids_to_locate(caller, unproven.values()))
        for index, needs in unproven.items():
            started_at = yield from _take_turns(started_at)
            try:
                for need in needs:
                    yield from _check(caller, need, located)
            except RedriveError as refusal:
                answers[index] = refusal
    return answers


def may_freely(caller: Caller, call: Call | Query) -> bool:
    """Return whether a call is allowed without a query, as most frequent calls are."""
    return not _unproven_needs(caller, call)


def _take_turns(started_at: float) -> Flow[float]:
    """Yield to other tasks if this turn has lasted more than `TURN_SECONDS`. Returns the start of the current turn."""
    if perf_counter() - started_at <= TURN_SECONDS:
        return started_at
    yield GiveTurn()
    return perf_counter()


def sign_call(caller: Caller, call: Any) -> Any:
    """Return the call with the caller's name in its field for the actor or the worker, if it has one."""
    kind, principal = call.__class__, caller.principal
    if kind in _REGISTRATIONS and call.kind == TOKEN:
        if caller.namespace != TOKENS_NAMESPACE:
            raise InvalidInput(f"tokens are kept in the namespace {TOKENS_NAMESPACE}")
        # The audit records what was done to a token, regardless of the note that a client sends.
        named = ANONYMOUS if call.audit is None else call.audit.actor
        return with_audit_note(call, principal.name or named)
    if principal.name is None:
        return call
    if kind is SetBreakers:
        return _opened_by(call, principal.name)
    if kind in _WITH_ACTOR:
        return _replace(call, actor=principal.name)
    if kind in _WITH_WORKER:
        return call if call.worker is None else _replace(call, worker=_worker(caller, call.worker))
    if kind in _REGISTRATIONS and call.kind == WORKER:
        call = _replace(call, name=_worker(caller, call.name))
    if kind in _REGISTRATIONS and call.audit is not None:
        call = _replace(call, audit=_replace(call.audit, actor=principal.name))
    return call


def _worker(caller: Caller, given: str) -> str:
    return check_label("worker", caller.principal.worker(given))


def _opened_by(call: SetBreakers, name: str) -> SetBreakers:
    """Return the call with the caller's name as actor, also in breakers opened by the actor of the call."""
    breakers = tuple(_replace(each, opened_by=name) if each.opened_by == call.actor else each for each in call.breakers)
    return _replace(call, actor=name, breakers=breakers)


def _unproven_needs(caller: Caller, call: Call | Query) -> list[Requirement]:
    """Return the requirements of a call that the call and the caller alone do not prove."""
    if caller.may_do_everything:
        return []
    return [need for need in permissions_for(call) if not _is_met(caller, need)]


def _is_met(caller: Caller, need: Requirement) -> bool:
    """Return whether the caller meets a requirement regardless of where its items, leases and operations are."""
    if not isinstance(need, RequiredPermission):
        return _is_check_met(caller, need)
    place, rights = need.place, need.rights
    if isinstance(place, QueueRef):
        return not is_remote(place.name) and caller.may(rights, place.name)
    if isinstance(place, LeaseRef):
        return caller.may(rights, caller.leases.queue_of(caller.namespace, place.token))
    if isinstance(place, DeadQueueRef):
        return caller.may(rights, place.to)
    if isinstance(place, OperationRef) and place.drives:
        return caller.may_everywhere(rights) and caller.may_everywhere((MANAGE,))
    return caller.may_somewhere(rights) if place is QueueScope.ANY else caller.may_everywhere(rights)


def _is_check_met(caller: Caller, need: VerdictCheck | EarlyLossCheck | OverdueAccess) -> bool:
    match need:
        case VerdictCheck():
            return not (_may_lose(caller, need) or _waits(need))
        case EarlyLossCheck():
            return caller.may_everywhere((OPERATE,))
        case OverdueAccess(queue):
            return caller.may((MANAGE,), queue)


def _ids_to_locate(caller: Caller, unproven: Iterable[Sequence[Requirement]]) -> Iterator[str]:
    """Yield the items whose queues decide. A caller with none of the rights anywhere is refused without a query."""
    for needs in unproven:
        for need in needs:
            if isinstance(need, RequiredPermission) and not caller.may_somewhere(need.rights):
                continue
            match need:
                case RequiredPermission(place=ItemRef(id)) | VerdictCheck(place=ItemRef(id)):
                    yield id
                case RequiredPermission(place=LeaseRef(token)) | VerdictCheck(place=LeaseRef(token)):
                    if caller.leases.queue_of(caller.namespace, token) is None:
                        yield item_id_of(token)


def _check(caller: Caller, need: Requirement, located: Locations) -> Flow[None]:
    """Raise unless the caller meets a requirement."""
    match need:
        case RequiredPermission(rights, place):
            yield from _check_permission(caller, rights, place, located)
        case VerdictCheck():
            yield from _check_verdict(caller, need, located)
            yield from _check_waiting(caller, need, located)
        case EarlyLossCheck(token):
            yield from _check_early_loss(caller, token)
        case OverdueAccess(queue):
            # A broker that leases also queries and settles overdue leases. Without `manage`, the caller may not judge
            # the leases of others or see their tokens: the server settles them here, and the query then finds none.
            yield from settle_overdue(caller.core, queue)


def _check_permission(
    caller: Caller, rights: tuple[Permission, ...], place: PermissionScope, located: Locations
) -> Flow[None]:
    match place:
        case QueueRef(name) if is_remote(name):
            _check_elsewhere(caller, rights, name)
        case QueueRef(name):
            raise Forbidden(rights[0], caller.namespace, name)
        case ItemRef():
            check_item(caller, rights, place, located)
        case LeaseRef(token):
            check_lease(caller, rights, token, located)
        case SourceQueueRef(queue):
            yield from check_redrive_targets(caller, rights, queue)
        case DeadQueueRef(queue, to):
            yield from check_new_dead_queue(caller, rights, queue, to)
        case OperationRef(id, drives):
            yield from check_operation(caller, rights[0], id, drives=drives)
        case QueueScope():
            raise Forbidden(rights[0], caller.namespace, None)


def _check_elsewhere(caller: Caller, rights: tuple[Permission, ...], address: str) -> None:
    """Check a queue of another store. An unknown store needs `manage`: items for it stay in transit without a limit."""
    is_known = caller.core.stores.is_known(split_address(address)[1] or "")
    if not caller.may_everywhere(rights if is_known else (MANAGE,)):
        raise Forbidden(rights[0], caller.namespace, address)


def _may_lose(caller: Caller, check: VerdictCheck) -> bool:
    """Return whether a verdict drops an item, or moves it to a queue that the caller may not put to."""
    verdict = check.verdict
    if not isinstance(verdict, Dead) or (verdict.to is None and not verdict.drop):
        return False
    return verdict.drop or verdict.to is None or not _may_bring(caller, verdict.to)


def _waits(check: VerdictCheck) -> bool:
    return check.closes_gate or (isinstance(check.verdict, RetryVerdict) and bool(check.verdict.held_by))


def _check_verdict(caller: Caller, check: VerdictCheck, located: Locations) -> Flow[None]:
    """Raise `Forbidden` if a verdict would drop or move an item and neither the settings of its queue nor the rights of
    the caller allow it."""
    verdict = check.verdict
    if not isinstance(verdict, Dead) or not _may_lose(caller, check):
        return
    queue = _queue_at(caller, check.place, located)
    if queue is None or caller.may((MANAGE,), queue):
        return
    judged_by = yield from _queue_judged_by(caller, queue, check.version)
    if judged_by is None:
        return
    settings = judged_by.settings
    if verdict.to is not None and verdict.to not in settings.dead_queues():
        raise Forbidden(PUT, caller.namespace, verdict.to)
    if verdict.drop and not _drops(settings):
        raise Forbidden(MANAGE, caller.namespace, queue)


def _check_waiting(caller: Caller, check: VerdictCheck, located: Locations) -> Flow[None]:
    """Raise `Forbidden` if a call without `operate` holds an item or closes a gate, and no breaker or setting does."""
    if not _waits(check):
        return
    name = _queue_at(caller, check.place, located)
    if name is None or caller.may((OPERATE,), name):
        return
    queue = yield from _queue_judged_by(caller, name, check.version)
    if queue is None:
        return
    held_by = check.verdict.held_by if isinstance(check.verdict, RetryVerdict) else ()
    closes = check.closes_gate and queue.settings.retry_after_mode is not RetryAfter.GATE
    if closes or not {breaker.holder(name) for breaker in queue.breakers}.issuperset(held_by):
        raise Forbidden(OPERATE, caller.namespace, name)


def _may_bring(caller: Caller, to: str) -> bool:
    return not is_remote(to) and caller.may((PUT, OPERATE), to)


def _drops(settings: QueueSettings) -> bool:
    """Return whether the settings drop items that die in the queue."""
    routed = isinstance(settings.dead_queue, str) or (
        isinstance(settings.dead_queue, dict) and "default" in settings.dead_queue
    )
    return settings.on_dead is OnDead.DROP and not routed


def _queue_at(caller: Caller, place: PermissionScope, located: Locations) -> str | None:
    match place:
        case QueueRef(name):
            return name
        case ItemRef(id):
            found = located.get(id)
            return None if found is None else found.queue
        case LeaseRef(token):
            return queue_of_lease(caller, token, located)
    raise AssertionError(place)


def _queue_judged_by(caller: Caller, name: str, version: int) -> Flow[Queue | None]:
    """Return the queue that a verdict is based on; None if it has changed: the store refuses the verdict as stale."""
    queue = yield from caller.core.queue(name)
    if version > queue.version:
        queue = caller.core.cache_queue((yield from run_query(GetQueue(name))))
    if version > queue.version:
        raise InvalidInput(f"queue '{name}' never had settings of version {version}")
    return queue if version == queue.version else None


def _check_early_loss(caller: Caller, token: Token) -> Flow[None]:
    lease: Lease = yield from run_query(GetLease(token))
    if not (lease.worker or "").startswith(f"{caller.principal.name}/"):
        raise Forbidden(OPERATE, caller.namespace, lease.queue)

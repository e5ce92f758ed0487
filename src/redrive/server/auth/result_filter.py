"""What is taken out of answers to a remote client, because of who reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from redrive.auth.permissions import CAPTURE, CONSUME, MANAGE, READ, SEES_QUEUES
from redrive.broker.flows.registrations import CAPTURE_KIND
from redrive.broker.flows.registrations import WORKER_KIND as WORKER
from redrive.broker.redaction import Redaction, queues_of, redaction_for
from redrive.contract.admin_calls import Registration, SetOperation, StartOperation, StepOperation
from redrive.contract.item_calls import LeaseByIds, Leased, LeaseItems
from redrive.contract.queries import (
    AuditEntry,
    FeedPage,
    FindItems,
    GetItem,
    GetItems,
    GetItemsByKey,
    GetOperation,
    GetOverdue,
    GetResult,
    ListAudit,
    ListGroups,
    ListMoves,
    ListOperations,
    ListQueues,
    ListRegistrations,
    ListStats,
    ListWorkerLeases,
    Page,
    ReadFeed,
)
from redrive.errors import ItemNotFound, RedriveError
from redrive.model.arrival import Move
from redrive.model.feed import FeedEntry
from redrive.model.group import Group
from redrive.model.item import Item, KeptResult, Lease
from redrive.model.masked_item import mask_for_requester, mask_item
from redrive.model.operation import Operation
from redrive.model.queue import Queue, QueueStats
from redrive.model.worker_info import WorkerInfo
from redrive.server.auth import resource_authorization
from redrive.server.request import Request

_replace = msgspec.structs.replace
_decode_worker = msgspec.json.Decoder(WorkerInfo).decode


def visible_item(request: Request, item: Item) -> Item:
    """An item as the caller may see it: without what is in it, and without secrets in its errors."""
    if request.sees_payloads(item.queue):
        return item
    return _redaction(request).item(mask_item(item))


def _item(request: Request, item: Item) -> Item:
    """One who awaits it sees its result, and where he may not look around, nothing but how it stands."""
    if request.sees_payloads(item.queue):
        return item
    looks = resource_authorization.may(request, (READ,), item.queue)
    shown = _redaction(request).item(mask_item(item) if looks else mask_for_requester(item))
    if not resource_authorization.may_read_result(request, item.queue, item.origin_queue):
        return shown
    return _replace(shown, result=item.result)


def _items(request: Request, query: Any, items: tuple[Item | None, ...]) -> tuple[Item | None, ...]:
    """An item of a queue that the caller may not read is not found, as with GetItem."""
    return tuple([None if item is None else _item_if_seen(request, item) for item in items])


def _item_if_seen(request: Request, item: Item) -> Item | None:
    seen = resource_authorization.may(request, (READ,), item.queue)
    if seen or resource_authorization.may_read_result(request, item.queue, item.origin_queue):
        return _item(request, item)
    return None


def visible_result(request: Request, kept: KeptResult | None) -> KeptResult | None:
    """A result that the caller may not read does not exist. One that it may read names no queue of others."""
    own = () if kept is None else resource_authorization.readable_queues(request, kept.queue, kept.put_to)
    if kept is None or not own:
        return None
    return _replace(kept, queue=own[0], put_to=own[1] if len(own) > 1 else None)


def _overdue(request: Request, query: GetOverdue, answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """Tokens of others are in it. The guard has seen to what is overdue before."""
    return answer if resource_authorization.may(request, (MANAGE,), query.queue) else ()


def _page(request: Request, query: FindItems, page: Page) -> Page:
    return _replace(page, items=tuple([visible_item(request, item) for item in page.items]))


def _moves(request: Request, query: ListMoves, moves: tuple[Move, ...]) -> tuple[Move, ...]:
    return tuple([_replace(move, item=visible_item(request, move.item)) for move in moves])


def _queues(request: Request, query: ListQueues, queues: tuple[Queue, ...]) -> tuple[Queue, ...]:
    return tuple([queue for queue in queues if resource_authorization.may(request, SEES_QUEUES, queue.name)])


def _stats(request: Request, query: ListStats, found: tuple[QueueStats, ...]) -> tuple[QueueStats, ...]:
    return tuple([each for each in found if resource_authorization.may(request, (READ,), each.queue)])


def _leased(request: Request, call: LeaseItems, leased: Leased) -> Leased:
    resource_authorization.remember(request, leased.leases)
    return leased


def _leased_by_ids(
    request: Request, call: LeaseByIds, results: tuple[Lease | RedriveError, ...]
) -> tuple[Lease | RedriveError, ...]:
    """A lease that the caller may not have was returned: its item is not found."""
    shown = [
        ItemNotFound(id) if isinstance(each, Lease) and not resource_authorization.may_hold(request, each) else each
        for id, each in zip(call.ids, results, strict=False)
    ]
    resource_authorization.remember(request, [each for each in shown if isinstance(each, Lease)])
    return tuple(shown)


def _held(request: Request, query: ListWorkerLeases, leases: tuple[Lease, ...]) -> tuple[Lease, ...]:
    return tuple([lease for lease in leases if resource_authorization.may(request, (CONSUME,), lease.queue)])


def _feed(request: Request, query: ReadFeed, page: FeedPage) -> FeedPage:
    seen = [entry for entry in page.entries if resource_authorization.may(request, (READ,), entry.queue)]
    if not _sees_all(request):
        seen = [_redaction(request).feed_entry(entry) for entry in seen]
    return _replace(page, entries=tuple(seen))


def _operation(request: Request, call: Any, operation: Any) -> Any:
    if not isinstance(operation, Operation) or _sees_all(request):
        return operation
    return _redaction(request).operation(operation)


def _operations(request: Request, query: ListOperations, found: tuple[Operation, ...]) -> tuple[Operation, ...]:
    seen = [each for each in found if resource_authorization.may(request, (READ,), each.where.queue)]
    return tuple([_operation(request, query, each) for each in seen])


def _groups(request: Request, query: ListGroups, groups: tuple[Any, ...]) -> tuple[Any, ...]:
    return groups if _sees_all(request) else tuple(map(_redaction(request).group, groups))


def _audit(request: Request, query: ListAudit, entries: tuple[AuditEntry, ...]) -> tuple[AuditEntry, ...]:
    return entries if _sees_all(request) else tuple(map(_redaction(request).audit_entry, entries))


def _registrations(
    request: Request, query: ListRegistrations, found: tuple[Registration, ...]
) -> tuple[Registration, ...]:
    return tuple([each for each in found if request.principal.in_all_queues or _concerns(request, each)])


def _concerns(request: Request, registration: Registration) -> bool:
    """Whether a worker, a periodic task or the settings of a queue are about a queue of the caller's."""
    if registration.kind == CAPTURE_KIND:
        return resource_authorization.may(request, (READ, CAPTURE, MANAGE), registration.name)
    if registration.kind != WORKER:
        return resource_authorization.may(request, (READ, CONSUME, MANAGE), registration.name.partition("/")[0])
    try:
        queues = _decode_worker(registration.value).queues
    except ValueError:  # anybody who works may have written it, also what is not UTF-8
        return False
    return any(resource_authorization.may(request, (READ, CONSUME), queue) for queue in queues)


def _sees_all(request: Request) -> bool:
    return request.sees_payloads(None)


def _redaction(request: Request) -> Redaction:
    return request.redaction or request.broker.core.redaction


async def with_redaction_rules(request: Request, results: Iterable[Any]) -> Request:
    """The request with the rules of all queues that the results tell of, where something may have to be hidden."""
    if _sees_all(request):
        return request
    told: set[str | None] | None = {queue for result in results for queue in _queues_told(result)}
    if not told:
        return request
    if _EVERY in told:
        told = None
    return _replace(request, redaction=await request.broker.run_flow(redaction_for(request.broker.core, told)))


_EVERY = "*"
"""Stands for all queues; none is called so."""


def _queues_told(result: Any) -> Iterator[str | None]:
    match result:
        case Item():
            yield from queues_of(result)
        case Move():
            yield from queues_of(result.item)
        case Group():
            yield _EVERY
        case Operation():
            yield result.where.queue
        case FeedEntry() | AuditEntry():
            yield result.queue
        case Page(items=members) | FeedPage(entries=members) | tuple(members):
            for member in members:
                yield from _queues_told(member)


RESULT_FILTERS: dict[type[Any], Callable[[Request, Any, Any], Any]] = {
    GetItem: lambda request, query, item: _item(request, item),
    GetItems: _items,
    GetItemsByKey: _items,
    FindItems: _page,
    ListMoves: _moves,
    ListQueues: _queues,
    LeaseByIds: _leased_by_ids,
    ListStats: _stats,
    LeaseItems: _leased,
    ListWorkerLeases: _held,
    GetResult: lambda request, query, kept: visible_result(request, kept),
    GetOverdue: _overdue,
    ReadFeed: _feed,
    GetOperation: _operation,
    StartOperation: _operation,
    SetOperation: _operation,
    StepOperation: _operation,
    ListOperations: _operations,
    ListGroups: _groups,
    ListAudit: _audit,
    ListRegistrations: _registrations,
}
"""Answers that are not for everybody's eyes, and how each is shown."""

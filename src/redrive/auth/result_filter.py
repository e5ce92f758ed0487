"""Filters that remove from results what the caller may not see."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from redrive.auth.caller import Caller
from redrive.auth.permissions import CAPTURE, CONSUME, MANAGE, READ, READ_PAYLOADS, SEES_QUEUES
from redrive.auth.resource_authorization import may_hold, may_read_result, readable_queues
from redrive.broker.flow import Flow
from redrive.broker.flows.registrations import CAPTURE_KIND
from redrive.broker.flows.registrations import WORKER_KIND as WORKER
from redrive.broker.redaction import Redaction, queues_of, redaction_for
from redrive.contract import Call, Query
from redrive.contract.admin_calls import Registration, SetOperation, StartOperation, StepOperation
from redrive.contract.item_calls import LeaseByIds, Leased, LeaseItems, leases_of
from redrive.contract.queries import (
    AuditEntry,
    FeedPage,
    FindItems,
    FindPlanSubjects,
    GetItem,
    GetItems,
    GetItemsByKey,
    GetLeases,
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
    PlanPage,
    ReadFeed,
)
from redrive.errors import ItemNotFound, RedriveError
from redrive.model.arrival import Move
from redrive.model.feed import FeedEntry
from redrive.model.group import Group
from redrive.model.ids import RESULTS, Token
from redrive.model.item import Item, KeptResult, Lease
from redrive.model.masked_item import mask_for_requester, mask_item
from redrive.model.operation import Operation
from redrive.model.operation_plan import PlanSubject
from redrive.model.queue import Queue, QueueStats
from redrive.model.worker_info import WorkerInfo

_replace = msgspec.structs.replace
_decode_worker = msgspec.json.Decoder(WorkerInfo).decode


def visible_item(caller: Caller, item: Item) -> Item:
    """Return an item as the caller may see it: without `read_payloads`, masked and with redacted errors."""
    if caller.may((READ_PAYLOADS,), item.queue):
        return item
    return _redaction(caller).item(mask_item(item))


def _item(caller: Caller, item: Item) -> Item:
    """Return an item as the caller may see it: with its result for `read_results`, its status only without `read`."""
    if caller.may((READ_PAYLOADS,), item.queue):
        return item
    may_read = caller.may((READ,), item.queue)
    shown = _redaction(caller).item(mask_item(item) if may_read else mask_for_requester(item))
    if not may_read_result(caller, item.queue, item.origin_queue):
        return shown
    return _replace(shown, result=item.result)


def _items(caller: Caller, query: Any, items: tuple[Item | None, ...]) -> tuple[Item | None, ...]:
    """Return the items, with None for those that the caller may not read: `GetItem` does not find them either."""
    return tuple([None if item is None else _item_if_seen(caller, item) for item in items])


def _item_if_seen(caller: Caller, item: Item) -> Item | None:
    seen = caller.may((READ,), item.queue)
    if seen or may_read_result(caller, item.queue, item.origin_queue):
        return _item(caller, item)
    return None


def visible_result(caller: Caller, kept: KeptResult | None) -> KeptResult | None:
    """Return a result with only those queues whose results the caller may read; None if there are none."""
    own = () if kept is None else readable_queues(caller, kept.queue, kept.put_to)
    if kept is None or not own:
        return None
    return _replace(kept, queue=own[0], put_to=own[1] if len(own) > 1 else None)


def _overdue(caller: Caller, query: GetOverdue, answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return nothing without `manage`: the leases have tokens of other callers, and the guard has settled them."""
    return answer if caller.may((MANAGE,), query.queue) else ()


def _page(caller: Caller, query: FindItems, page: Page) -> Page:
    return _replace(page, items=tuple([visible_item(caller, item) for item in page.items]))


def _plan_page(caller: Caller, query: FindPlanSubjects, page: PlanPage) -> PlanPage:
    return _replace(page, items=tuple([_plan_subject(caller, item) for item in page.items]))


def _plan_subject(caller: Caller, item: PlanSubject) -> PlanSubject:
    """Return a subject as the caller may see its item: without `read_payloads`, no key or task, and redacted errors."""
    if caller.may((READ_PAYLOADS,), item.queue):
        return item
    return _redaction(caller).plan_subject(_replace(item, idempotency_key=None, task=None))


def _moves(caller: Caller, query: ListMoves, moves: tuple[Move, ...]) -> tuple[Move, ...]:
    return tuple([_replace(move, item=visible_item(caller, move.item)) for move in moves])


def _queues(caller: Caller, query: ListQueues, queues: tuple[Queue, ...]) -> tuple[Queue, ...]:
    return tuple([queue for queue in queues if caller.may(SEES_QUEUES, queue.name)])


def _stats(caller: Caller, query: ListStats, found: tuple[QueueStats, ...]) -> tuple[QueueStats, ...]:
    return tuple([each for each in found if caller.may((READ,), each.queue)])


def _leased(caller: Caller, call: LeaseItems, leased: Leased) -> Leased:
    caller.remember(leased.leases)
    return leased


def _leased_by_ids(
    caller: Caller, call: LeaseByIds, results: tuple[Lease | RedriveError, ...]
) -> tuple[Lease | RedriveError, ...]:
    """Replace leases that the caller may not have, and that were released, with `ItemNotFound`."""
    shown = [
        ItemNotFound(id) if isinstance(each, Lease) and not may_hold(caller, each) else each
        for id, each in zip(call.ids, results, strict=False)
    ]
    caller.remember([each for each in shown if isinstance(each, Lease)])
    return tuple(shown)


def _held(caller: Caller, query: ListWorkerLeases, leases: tuple[Lease, ...]) -> tuple[Lease, ...]:
    return tuple([lease for lease in leases if caller.may((CONSUME,), lease.queue)])


def _held_by_tokens(caller: Caller, query: GetLeases, leases: tuple[Lease | None, ...]) -> tuple[Lease | None, ...]:
    """Replace leases that the caller may not have with None, since `GetLease` reports them as lost."""
    shown = [lease if lease is not None and may_hold(caller, lease) else None for lease in leases]
    caller.remember([lease for lease in shown if lease is not None])
    return tuple(shown)


def _feed(caller: Caller, query: ReadFeed, page: FeedPage) -> FeedPage:
    seen = [entry for entry in page.entries if caller.may((READ,), entry.queue)]
    if not caller.sees_all_payloads:
        seen = [_redaction(caller).feed_entry(entry) for entry in seen]
    return _replace(page, entries=tuple(seen))


def _operation(caller: Caller, call: Any, operation: Any) -> Any:
    if not isinstance(operation, Operation) or caller.sees_all_payloads:
        return operation
    return _redaction(caller).operation(operation)


def _operations(caller: Caller, query: ListOperations, found: tuple[Operation, ...]) -> tuple[Operation, ...]:
    seen = [each for each in found if caller.may((READ,), each.where.queue)]
    return tuple([_operation(caller, query, each) for each in seen])


def _groups(caller: Caller, query: ListGroups, groups: tuple[Any, ...]) -> tuple[Any, ...]:
    return groups if caller.sees_all_payloads else tuple(map(_redaction(caller).group, groups))


def _audit(caller: Caller, query: ListAudit, entries: tuple[AuditEntry, ...]) -> tuple[AuditEntry, ...]:
    return entries if caller.sees_all_payloads else tuple(map(_redaction(caller).audit_entry, entries))


def _registrations(
    caller: Caller, query: ListRegistrations, found: tuple[Registration, ...]
) -> tuple[Registration, ...]:
    return tuple([each for each in found if caller.principal.in_all_queues or _concerns(caller, each)])


def _concerns(caller: Caller, registration: Registration) -> bool:
    """Return whether a worker, a periodic task or the settings of a queue concern a queue of the caller."""
    if registration.kind == CAPTURE_KIND:
        return caller.may((READ, CAPTURE, MANAGE), registration.name)
    if registration.kind != WORKER:
        return caller.may((READ, CONSUME, MANAGE), registration.name.partition("/")[0])
    try:
        queues = _decode_worker(registration.value).queues
    except ValueError:  # any worker may have written it, also text that is not UTF-8
        return False
    return any(caller.may((READ, CONSUME), queue) for queue in queues)


def _redaction(caller: Caller) -> Redaction:
    return caller.redaction or caller.core.redaction


def filter_results(caller: Caller, calls: Sequence[Call | Query], results: Sequence[Any]) -> Flow[list[Any]]:
    """Return the results of calls without what the caller may not see."""
    if caller.may_do_everything:
        return list(results)
    viewer = yield from with_redaction_rules(caller, calls, results)
    return [filter_result(viewer, *each) for each in zip(calls, results, strict=True)]


def filter_result(caller: Caller, call: Call | Query, result: Any) -> Any:
    """Return the result of a call without what the caller may not see."""
    show = RESULT_FILTERS.get(call.__class__)
    return result if show is None or isinstance(result, RedriveError) else show(caller, call, result)


def withheld_tokens(caller: Caller, calls: Sequence[Call], results: Sequence[Any]) -> list[Token]:
    """Return the tokens of leases by id that the caller may not have; `filter_result` hides them. Release them."""
    if caller.principal.in_all_queues:
        return []
    leases = [
        lease
        for call, result in zip(calls, results, strict=True)
        if call.__class__ is LeaseByIds
        for lease in leases_of(result)
    ]
    return [lease.token for lease in leases if not may_hold(caller, lease)]


def visible_arrivals(caller: Caller, arrivals: Mapping[str, int]) -> Mapping[str, int]:
    """Return arrivals in queues that the caller may know: the same transaction contains calls of other callers."""
    if caller.principal.in_all_queues:
        return arrivals
    return {name: n for name, n in arrivals.items() if name.startswith(RESULTS) or caller.may(SEES_QUEUES, name)}


def with_redaction_rules(caller: Caller, calls: Sequence[Call | Query], results: Sequence[Any]) -> Flow[Caller]:
    """Return the caller with the redaction rules of all queues in the results, if something may have to be hidden."""
    if caller.sees_all_payloads:
        return caller
    both = zip(calls, results, strict=True)
    shown = [result for call, result in both if call.__class__ in RESULT_FILTERS]
    queues: set[str | None] | None = {queue for result in shown for queue in _queues_shown(result)}
    if not queues:
        return caller
    if _EVERY in queues:
        queues = None
    return _replace(caller, redaction=(yield from redaction_for(caller.core, queues)))


_EVERY = "*"
"""Represents all queues; no queue can have this name."""


def _queues_shown(result: Any) -> Iterator[str | None]:
    match result:
        case Item():
            yield from queues_of(result)
        case Move():
            yield from queues_of(result.item)
        case Group() | PlanSubject():
            yield _EVERY
        case Operation():
            yield result.where.queue
        case FeedEntry() | AuditEntry():
            yield result.queue
        case Page(items=members) | PlanPage(items=members) | FeedPage(entries=members) | tuple(members):
            for member in members:
                yield from _queues_shown(member)


RESULT_FILTERS: dict[type[Any], Callable[[Caller, Any, Any], Any]] = {
    GetItem: lambda caller, query, item: _item(caller, item),
    GetItems: _items,
    GetItemsByKey: _items,
    FindItems: _page,
    FindPlanSubjects: _plan_page,
    ListMoves: _moves,
    ListQueues: _queues,
    LeaseByIds: _leased_by_ids,
    ListStats: _stats,
    LeaseItems: _leased,
    ListWorkerLeases: _held,
    GetLeases: _held_by_tokens,
    GetResult: lambda caller, query, kept: visible_result(caller, kept),
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
"""Filters by call, for results that not every caller may see in full."""

"""`queue.lease`: lease items, waiting for the first one. `items.lease`: lease exactly these items now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from redrive.broker.flow import commit_calls, raise_if_refused
from redrive.broker.flows.deliveries import queue_name
from redrive.broker.validation import check_positive
from redrive.contract.item_calls import Leased, LeaseItems, ReturnLease
from redrive.errors import RedriveError, RequestTooLarge
from redrive.model.death import DeadReason
from redrive.model.duration import SECOND, parse_duration
from redrive.model.item import Lease
from redrive.model.limits import MAX_BATCH, check_label
from redrive.model.text import to_rfc3339
from redrive.server.field_types import DurationInput, ItemIdText, Label, QueueName, check_batch, instant_text_or_none
from redrive.server.long_poll import ClientDisconnected
from redrive.server.request import Request, Response
from redrive.server.responses import ItemError, some_failed
from redrive.server.route import DirectCall
from redrive.wire.error_codec import error_body
from redrive.wire.json_views import KIND_HEADER, REFERENCE_HEADER, Encoding, InstantText, encode_payload


class LeaseCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Lease items in the order of the queue. Waits for the first one if requested."""

    queue: QueueName
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_BATCH, description="Most items that are given.")] = 1
    wait: Annotated[DurationInput, msgspec.Meta(description="How long to wait for the first item.")] = 0.0
    worker: Annotated[Label | None, msgspec.Meta(description="Who works on them.")] = None
    lease_timeout: Annotated[DurationInput | None, msgspec.Meta(description="Instead of the queue's.")] = None


class LeasedItem(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An item leased until the deadline. Complete it, release it, or extend the lease, by its token."""

    id: str
    token: str
    deadline: InstantText
    payload: Any
    encoding: Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(Encoding)})]
    content_type: str
    headers: dict[str, str]
    priority: int
    put_at: InstantText
    deliveries: int
    attempts: int
    failures: int
    losses: int
    redrives: int
    kind: str | None = None
    reference: str | None = None
    expire_deadline: InstantText | None = None
    dead_reason: Annotated[
        DeadReason | None, msgspec.Meta(description="It was leased although it is dead: completed, or dead again.")
    ] = None


class LeasedItems(msgspec.Struct, frozen=True, gc=False):
    """The leased items; empty if nothing can be leased now."""

    items: list[LeasedItem]


async def lease(request: Request, call: LeaseCall) -> LeasedItems:
    """Lease items to work on, and wait for the first one. Leases of a disconnected client are released."""
    check_batch(request, call.limit)
    wait = _wait_of(call)
    if request.waiting is not None and request.waiting.stopping:
        return LeasedItems([])
    broker, first = request.broker, _lease_items(call)
    leased: Leased = await broker.submit(first)
    leases: Sequence[Lease] = leased.leases
    if leased.overdue:  # the broker settles overdue leases first; otherwise a lease is one store call
        leases = await broker.lease(call.queue, call.limit, lease_timeout=call.lease_timeout, worker=first.worker)
    if not leases and wait:
        leases = await _waited(request, call, min(wait, request.limits.wait_seconds))
    if leases and request.has_left():  # the store may have taken long
        await give_back(request, leases)
        raise ClientDisconnected
    answer: list[LeasedItem] = []
    size = 0
    for index, each in enumerate(leases):
        size += len(each.payload)
        if size > request.limits.max_response_bytes and index:
            await give_back(request, leases[index:])
            break
        answer.append(_leased(each))
    return LeasedItems(answer)


def _wait_of(call: LeaseCall) -> float:
    return 0.0 if call.wait == 0 else parse_duration(call.wait, "wait") / SECOND


def _lease_items(call: LeaseCall) -> LeaseItems:
    worker = None if call.worker is None else check_label("worker", call.worker)
    timeout = None if call.lease_timeout is None else check_positive("lease_timeout", call.lease_timeout)
    return LeaseItems(queue_name(call.queue), call.limit, worker, timeout)


def _lease_of_one(call: LeaseCall) -> LeaseItems | None:
    _wait_of(call)
    return _lease_items(call) if call.limit == 1 else None


def _leased_one(call: LeaseCall, result: Any) -> LeasedItems | None:
    leased: Leased = raise_if_refused(result)
    if leased.overdue or (not leased.leases and _wait_of(call)):
        return None
    return LeasedItems([_leased(each) for each in leased.leases])


async def _waited(request: Request, call: LeaseCall, wait: float) -> Sequence[Lease]:
    work = request.broker.lease(call.queue, call.limit, wait=wait, lease_timeout=call.lease_timeout, worker=call.worker)
    try:
        leases = await request.wait_for(work) or []
    except ClientDisconnected as gone:
        await give_back(request, gone.result or [])
        raise
    if leases:
        try:
            await request.check_admitted()
        except RedriveError:
            await give_back(request, leases)
            raise
    return leases


async def give_back(request: Request, leases: Sequence[Lease]) -> None:
    """Release leases of items that have not run: they keep their old position, and no attempt is counted."""
    await request.broker.run_flow(commit_calls([ReturnLease(each.token) for each in leases]))


def _leased(lease: Lease) -> LeasedItem:
    encoding, payload = encode_payload(lease.payload, lease.content_type)
    put_at, deadline, headers = to_rfc3339(lease.put_at), to_rfc3339(lease.deadline), lease.headers
    if not headers and lease.expire_deadline is None and lease.dead_reason is None:  # as most are
        return LeasedItem(
            lease.id,
            lease.token,
            deadline,
            payload,
            encoding,
            lease.content_type,
            {},
            lease.priority,
            put_at,
            lease.deliveries,
            lease.attempts,
            lease.failures,
            lease.losses,
            lease.redrives,
        )
    return LeasedItem(
        lease.id,
        lease.token,
        deadline,
        payload,
        encoding,
        lease.content_type,
        dict(headers),
        lease.priority,
        put_at,
        lease.deliveries,
        lease.attempts,
        lease.failures,
        lease.losses,
        lease.redrives,
        headers.get(KIND_HEADER),
        headers.get(REFERENCE_HEADER),
        instant_text_or_none(lease.expire_deadline),
        lease.dead_reason,
    )


class LeaseByIdCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Lease these items now: pending ones, even if not yet due, and failed ones. Each has a result."""

    ids: Annotated[list[ItemIdText], msgspec.Meta(min_length=1)]
    include_dead: Annotated[
        bool, msgspec.Meta(description="Dead ones too, which needs the right operate: completed, or dead again.")
    ] = False
    worker: Annotated[Label | None, msgspec.Meta(description="Who works on them.")] = None
    lease_timeout: Annotated[DurationInput | None, msgspec.Meta(description="Instead of that of their queues.")] = None


async def lease_by_id(request: Request, call: LeaseByIdCall) -> LeasedItems | Response:
    """Lease exactly these items, now. Leases that do not fit into the response are released."""
    check_batch(request, len(call.ids))
    results = await request.broker.lease_by_id(
        call.ids, include_dead=call.include_dead, lease_timeout=call.lease_timeout, worker=call.worker
    )
    if request.has_left():
        await give_back(request, [each for each in results if isinstance(each, Lease)])
        raise ClientDisconnected
    answer = _fitting(request, results)
    both = zip(results, answer, strict=True)
    await give_back(request, [each for each, shown in both if isinstance(each, Lease) and shown is not each])
    error = next((each for each in answer if isinstance(each, RedriveError)), None)
    if error is None:
        return LeasedItems([_leased(each) for each in answer if isinstance(each, Lease)])
    return some_failed(
        error, [_leased(each) if isinstance(each, Lease) else ItemError(error_body(each)) for each in answer]
    )


def _fitting(request: Request, results: Sequence[Lease | RedriveError]) -> list[Lease | RedriveError]:
    """Return the results, with a refusal for each lease that does not fit into the response."""
    size, most = 0, request.limits.max_response_bytes
    answer: list[Lease | RedriveError] = []
    for each in results:
        if isinstance(each, RedriveError):
            answer.append(each)
        elif size and size + len(each.payload) > most:
            answer.append(RequestTooLarge("the size of all payloads", most))
        else:
            size += len(each.payload)
            answer.append(each)
    return answer


LEASE_OF_ONE = DirectCall(_lease_of_one, _leased_one)

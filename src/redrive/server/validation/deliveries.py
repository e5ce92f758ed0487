"""Validation of calls on single items: puts, leases, settles."""

from __future__ import annotations

import msgspec

from redrive.broker.flows.deliveries import check_overrides
from redrive.broker.validation import check_note
from redrive.contract.item_calls import (
    Complete,
    Extend,
    LeaseByIds,
    LeaseItems,
    NewItem,
    Put,
    Reply,
    ReturnLease,
    Settle,
    check_failure,
    check_times,
)
from redrive.contract.replies import REPLY_TO, RESERVED_PREFIX, SENDER_HEADERS, check_reply_address
from redrive.errors import InvalidInput, InvalidName
from redrive.model.judge import OutcomeKind
from redrive.model.limits import MAX_BATCH, MAX_PUT, check_instant, check_priority
from redrive.model.payload import check_headers
from redrive.server.validation import values

_replace = msgspec.structs.replace
_SETTLED_BY = frozenset(OutcomeKind) - {OutcomeKind.EXPIRED}


def put(call: Put) -> Put:
    """Validate a put of items."""
    values.queue(call.queue)
    values.many("items", len(call.items), MAX_PUT)
    items = tuple([new_item(item) for item in call.items])
    # Almost always the items are identical, and comparing them is cheaper than copying the call.
    return call if all(map(_is, items, call.items)) else _replace(call, items=items)


def puts(calls: tuple[Put, ...]) -> tuple[Put, ...]:
    """Validate the puts of another call, which may contain no failures."""
    if not calls:
        return calls
    values.many("items", sum(len(call.items) for call in calls), MAX_PUT)
    values.many("puts", len(calls), MAX_BATCH)
    for call in calls:
        for item in call.items:
            check_failure(item, alone=False)
    return tuple(map(put, calls))


def new_item(item: NewItem) -> NewItem:
    """Validate a new item. `is_plain` is computed here, regardless of the value that the client sent."""
    values.payload(item.payload)
    values.content_type(item.content_type)
    check_priority(item.priority)
    values.span("expire_timeout", item.expire_timeout, 1)
    plain = _is_plain(item)
    if not plain:
        item = _with_options(item)
    return item if item.is_plain is plain else _replace(item, is_plain=plain)


def lease(call: LeaseItems) -> LeaseItems:
    """Validate a lease from a queue."""
    values.queue(call.queue)
    values.limit(call.limit)
    values.label("worker", call.worker)
    values.span("lease_timeout", call.timeout, 1)
    return call


def lease_by_ids(call: LeaseByIds) -> LeaseByIds:
    """Validate a lease of items by their ids."""
    values.ids(call.ids)
    values.label("worker", call.worker)
    values.span("lease_timeout", call.timeout, 1)
    return call


def extend(call: Extend) -> Extend:
    """Validate the extension of a lease."""
    values.token(call.token)
    values.queue_if_named(call.queue)
    values.span("timeout", call.timeout, 1)
    return call


def complete(call: Complete) -> Complete:
    """Validate a completion with its puts."""
    values.token(call.token)
    values.queue_if_named(call.queue)
    values.result(call.result)
    values.span("keep_result", call.keep_result, 1)
    values.result(call.reply)
    checked = puts(call.puts)
    return call if checked is call.puts else _replace(call, puts=checked)


def reply(call: Reply) -> Reply:
    """Validate a reply to a leased item."""
    values.token(call.token)
    values.queue_if_named(call.queue)
    values.result(call.body)
    return call


def settle(call: Settle) -> Settle:
    """Validate a settle other than a completion."""
    values.token(call.token)
    values.version(call.version)
    if call.outcome_kind not in _SETTLED_BY:
        raise InvalidInput(f"no delivery ends {call.outcome_kind}; there are {', '.join(sorted(_SETTLED_BY))}")
    if call.close_until is not None:
        check_instant("close_until", call.close_until)
    return _replace(
        call,
        verdict=values.verdict(call.verdict),
        failure=values.failure(call.failure),
        note=check_note("note", call.note),
    )


def return_(call: ReturnLease) -> ReturnLease:
    """Validate a release without a counted attempt."""
    values.token(call.token)
    values.queue_if_named(call.queue)
    return _replace(call, note=check_note("note", call.note))


def _is(one: object, other: object) -> bool:
    return one is other


def _is_plain(item: NewItem) -> bool:
    return item == NewItem(
        item.payload,
        item.content_type,
        priority=item.priority,
        expire_timeout=item.expire_timeout,
        is_plain=item.is_plain,
    )


def _with_options(item: NewItem) -> NewItem:
    check_times(item)
    values.span("delay", item.delay)
    values.version(item.version)
    values.label("idempotency key", item.idempotency_key)
    values.label("held_by", item.held_by)
    check_overrides(item.overrides)
    if item.source_id is not None:
        values.id(item.source_id)
    check_failure(item, alone=True)
    check_reply_address(item.headers)
    if item.failure is not None and REPLY_TO in (item.headers or ()):
        raise InvalidInput("an item that has failed already names no queue for replies")
    for name in item.headers or ():
        if name.startswith(RESERVED_PREFIX) and name not in SENDER_HEADERS:
            raise InvalidName("header", name, f"is set by stores only; names with {RESERVED_PREFIX} are reserved")
    return _replace(
        item,
        headers=check_headers(item.headers) if item.headers else None,
        failure=values.failure(item.failure),
        verdict=None if item.verdict is None else values.verdict(item.verdict),
        note=check_note("note", item.note),
    )

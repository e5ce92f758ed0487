"""Flows and calls of deliveries: put, lease, extend, complete, get."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from redrive.broker.flow import CommitCalls, Flow, WaitForQueue, commit_call, raise_if_refused, read_items, run_query
from redrive.broker.maintenance import settle_overdue
from redrive.broker.redaction import queues_of, redaction_for
from redrive.broker.validation import check_integer, check_positive, check_texts, to_instant
from redrive.clock import Instant
from redrive.contract.item_calls import Complete, Extend, LeaseByIds, LeaseItems, NewItem, Put, check_times
from redrive.contract.queries import GetItem, GetItemsByKey, GetResult
from redrive.contract.replies import RESERVED_PREFIX
from redrive.errors import InvalidInput, InvalidName, InvalidSetting, RedriveError, short_repr
from redrive.model.caller_input import checking_input, exact_str, flag, listed
from redrive.model.duration import SECOND, DurationInput, parse_duration
from redrive.model.ids import Token, check_id, ids_of, parse_token
from redrive.model.item import NO_OVERRIDES, Item, KeptResult, Lease, Overrides, Result
from redrive.model.limits import (
    DEFAULT_PRIORITY,
    MAX_BATCH,
    MAX_ITEM_RETRY_BYTES,
    MAX_PUT,
    MAX_STORABLE_BYTES,
    check_label,
    check_name,
    check_priority,
)
from redrive.model.options import ItemOptions
from redrive.model.payload import check_headers, encode_payload
from redrive.model.queue_options import parse_settings
from redrive.model.retry_policy import RetryInput, RetryPolicy, check_attempts_limit, check_retry_policy

if TYPE_CHECKING:
    from redrive.broker.core import Core

MAX_SWEEPS = 10
"""Maximum number of sweeps that a lease makes before it ignores overdue items."""
OVERDUE_PAUSE = SECOND
"""Minimum time before a lease that waits checks again what it ignored, such as a damaged item."""


def new_item(
    value: Any,
    *,
    delay: DurationInput = 0,
    enqueue_at: datetime | None = None,
    priority: int = DEFAULT_PRIORITY,
    expire_timeout: DurationInput | None = None,
    expire_at: datetime | None = None,
    headers: Mapping[str, str] | None = None,
    idempotency_key: str | None = None,
    content_type: str | None = None,
    held_by: str | None = None,
    max_attempts: int | None = None,
    max_losses: int | None = None,
    retry: RetryInput | None = None,
) -> NewItem:
    """Return an item to be put, with its own options.

    delay: from now until it may be leased; or enqueue_at: an instant (a datetime with a time zone).
    priority: 0…9, larger first. expire_timeout: from now until it expires; or expire_at: an instant; one that has
    passed makes it a dead letter.
    idempotency_key: the same key again puts nothing, for the queue's idempotency_timeout.
    held_by: hold it under this name until `unhold`. max_attempts, max_losses, retry: instead of the queue's; `retry`
    is written as in `create_queue` and replaces the queue's as a whole.
    """
    if content_type is not None:
        content_type = check_label("content_type", content_type)
    payload, content_type = encode_payload(value, content_type, MAX_STORABLE_BYTES)
    priority = check_priority(priority)
    timeout = None if expire_timeout is None else check_positive("expire_timeout", expire_timeout)
    no_delay = type(delay) is int and delay == 0
    no_more = idempotency_key is held_by is headers is enqueue_at is expire_at is None  # type: ignore[comparison-overlap]
    if no_delay and no_more and max_attempts is max_losses is None and retry is None:
        return NewItem(payload, content_type, None, priority, 0, None, timeout, is_plain=True)
    item = NewItem(
        payload,
        content_type,
        _check_own_headers(headers) or None if headers is not None else None,
        priority,
        0 if no_delay else parse_duration(delay, "delay"),
        None if enqueue_at is None else to_instant("enqueue_at", enqueue_at),
        timeout,
        None if idempotency_key is None else check_label("idempotency key", idempotency_key),
        None if held_by is None else check_label("held_by", held_by),
        _overrides(max_attempts, max_losses, retry),
        expire_at=None if expire_at is None else to_instant("expire_at", expire_at),
    )
    return check_times(item)


def put_one(queue: str, value: Any, options: ItemOptions) -> Put:
    """Return the call that puts one value. Without options, the common case, only the value is checked."""
    if options:
        item = new_item(value, **options)
    else:
        item = NewItem(*encode_payload(value, None, MAX_STORABLE_BYTES), is_plain=True)
    return Put(queue_name(queue), (item,))


def _check_own_headers(headers: Mapping[str, str]) -> dict[str, str]:
    checked = check_headers(headers)
    for name in checked:
        if name.startswith(RESERVED_PREFIX):
            raise InvalidName("header", name, f"is not yours to set; names with {RESERVED_PREFIX} are reserved")
    return checked


def put_call(queue: str, values: Iterable[Any]) -> Put:
    """Return the call that puts values and new items."""
    with checking_input("values"):
        is_one, is_list = isinstance(values, str | bytes | bytearray | Mapping), isinstance(values, Iterable)
    if is_one:
        raise InvalidInput(f"put_many takes a list of values, not one {type(values).__name__}; put() takes one value")
    if not is_list:
        raise InvalidInput(f"put_many takes a list of values, not {short_repr(values, 60)}; put() takes one value")
    given = listed("values", values, MAX_PUT)
    if len(given) > MAX_PUT:
        raise InvalidInput(f"put_many takes at most {MAX_PUT:,} items, since all are put or none; make several calls")
    return Put(queue_name(queue), tuple([each if type(each) is NewItem else new_item(each) for each in given]))


def queue_name(name: str) -> str:
    """Return the name, checked; the checks of recent names are cached."""
    return _checked_queue_name(name) if type(name) is str else check_name("queue", name)


@lru_cache(maxsize=4096)
def _checked_queue_name(name: str) -> str:
    return check_name("queue", name)


def lease(
    core: Core,
    queue: str,
    limit: int,
    wait: DurationInput,
    lease_timeout: DurationInput | None,
    worker: str | None,
) -> Flow[list[Lease]]:
    """Check the arguments and lease; wait for the first item if nothing is leasable."""
    queue = queue_name(queue)
    check_integer("limit", limit, 1, MAX_BATCH)
    timeout = None if lease_timeout is None else check_positive("lease_timeout", lease_timeout)
    worker = None if worker is None else check_label("worker", worker)
    return lease_checked(core, queue, limit, parse_duration(wait, "wait"), timeout, worker)


def lease_checked(
    core: Core,
    queue: str,
    limit: int,
    wait: int,
    timeout: int | None,
    worker: str | None,
    is_ended: Callable[[], bool] = lambda: False,
) -> Flow[list[Lease]]:
    """Lease as `lease` does, with checked arguments and durations in microseconds. A wait ends without leases if it
    is woken and `is_ended`."""
    until = core.clock.now() + wait if wait else None
    ignore_overdue = waited = woken = False
    sweeps = 0
    try:
        while True:
            ticket = core.notify.sequence(queue) if until is not None else 0
            results = yield CommitCalls((LeaseItems(queue, limit, worker, timeout, ignore_overdue),))
            leased = raise_if_refused(results[0])
            if leased.overdue and not ignore_overdue:
                yield from settle_overdue(core, queue)
                sweeps += 1
                ignore_overdue = sweeps == MAX_SWEEPS
                continue
            if leased.leases or until is None or core.clock.now() >= until or is_ended():
                break
            waited, due = True, leased.next_at
            if ignore_overdue and due is not None:
                due = max(due, Instant(core.clock.now() + OVERDUE_PAUSE))
            woken = yield WaitForQueue(queue, ticket, Instant(until), due)
            ignore_overdue, sweeps = False, 0
            if is_ended():
                break
    except BaseException:  # also GeneratorExit: the caller was cancelled or interrupted, perhaps after its wake-up
        if waited:
            core.notify.notify_next(queue)
        raise
    if woken:  # there may be more items than this one leased, or a later time to wait for
        core.notify.notify_next(queue)
    return list(leased.leases)


def lease_by_id(
    ids: str | Sequence[str], include_dead: bool, lease_timeout: DurationInput | None, worker: str | None
) -> Flow[Any]:
    """Lease these items in one transaction, or in several if a server answers only for a part of the ids.

    One id returns its lease, or raises the refusal; several return a list with a lease or a refusal for each.
    """
    listed_ids = ids_of(ids, MAX_BATCH, "one id or a list of ids", "call")
    timeout = None if lease_timeout is None else check_positive("lease_timeout", lease_timeout)
    worker = None if worker is None else check_label("worker", worker)
    with_dead = flag("include_dead", include_dead)
    results: list[Lease | RedriveError] = []
    while rest := listed_ids[len(results) :]:
        try:
            results += yield from commit_call(LeaseByIds(rest, worker, timeout, with_dead))
        except RedriveError as problem:
            if not results:
                raise
            results += [problem] * len(rest)  # earlier transactions gave leases, which an error would lose
    return raise_if_refused(results[0]) if isinstance(ids, str) else results


def extend_call(lease: Lease | Token, timeout: DurationInput | None, queue: str | None = None) -> Extend:
    """Return the call that extends a lease; with `queue`, only of an item in that queue."""
    return Extend(token_of(lease), None if timeout is None else check_positive("timeout", timeout), queue)


def complete_call(
    lease: Lease | Token,
    result: Any,
    puts: Iterable[tuple[str, Any]],
    keep_result: DurationInput | None = None,
    queue: str | None = None,
) -> Complete:
    """Return the call that completes an item, with a result and follow-up items. A kept result may be None.

    With `queue`, only an item in that queue.
    """
    token = lease.token if type(lease) is Lease else token_of(lease)
    if result is None and keep_result is None and type(puts) is tuple and not puts:
        return Complete(token, queue=queue)
    keep = None if keep_result is None else check_positive("keep_result", keep_result)
    given = result is not None or keep is not None
    encoded = Result(*encode_payload(result, None, MAX_STORABLE_BYTES)) if given else None
    return Complete(token, encoded, tuple(put_call(to, (value,)) for to, value in _pairs(puts)), keep, queue)


def get(core: Core, id: str, redacted: bool) -> Flow[Item]:
    """Read an item with its history."""
    hides = flag("redacted", redacted)
    item: Item = yield from run_query(GetItem(check_id(id)))
    if not hides:
        return item
    view = yield from redaction_for(core, queues_of(item))
    return view.item(item)


def get_many(core: Core, ids: Iterable[str], redacted: bool) -> Flow[list[Item | None]]:
    """Read many items with their histories; None for an id without an item."""
    hides = flag("redacted", redacted)
    found = yield from read_items(ids_of(ids, MAX_BATCH, "a list of ids", "call"))
    return (yield from _shown(core, found)) if hides else found


def find_by_key(core: Core, queue: str, keys: Iterable[str], redacted: bool) -> Flow[list[Item | None]]:
    """Read the items of idempotency keys with as few queries as their size allows."""
    queue, hides = queue_name(queue), flag("redacted", redacted)
    asked = check_texts("keys", keys, "idempotency keys", lambda key: check_label("idempotency key", key))
    found: list[Item | None] = []
    while len(found) < len(asked):
        found += yield from run_query(GetItemsByKey(queue, asked[len(found) :]))
    return (yield from _shown(core, found)) if hides else found


def _shown(core: Core, items: list[Item | None]) -> Flow[list[Item | None]]:
    """Return the items, redacted."""
    view = yield from redaction_for(core, (queue for item in items if item for queue in queues_of(item)))
    return [None if item is None else view.item(item) for item in items]


def result(id: str) -> Flow[KeptResult | None]:
    """Read the result that a completion kept."""
    kept: KeptResult | None = yield from run_query(GetResult(check_id(id)))
    return kept


def token_of(lease: Lease | Token) -> Token:
    """Return the token of a lease, or check a token that is given as text."""
    if type(lease) is Lease:
        return lease.token
    if type(lease) is str:
        parse_token(lease)
        return Token(lease)
    with checking_input("lease"):
        token = exact_str(lease) if isinstance(lease, str) else None
    if token is None:
        raise InvalidName(
            "lease", lease, "is not a Lease or its token; lease() gives a list: pass its members one by one"
        )
    parse_token(token)
    return Token(token)


def _pairs(puts: Iterable[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    with checking_input("puts"):
        if not isinstance(puts, str | bytes | bytearray | Mapping) and isinstance(puts, Iterable):
            pairs = listed("puts", puts, MAX_PUT)
            if len(pairs) > MAX_PUT:
                raise InvalidInput(f"puts takes at most {MAX_PUT:,} items, since all are put or none")
            if all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
                return pairs
    raise InvalidInput("puts takes a list of pairs, each a queue and a value, as in puts=[('invoices', {'order': 17})]")


def _overrides(max_attempts: int | None, max_losses: int | None, retry: RetryInput | None) -> Overrides:
    if max_attempts is max_losses is None and retry is None:
        return NO_OVERRIDES
    own_retry = None if retry is None else parse_settings({"retry": retry}).retry
    return check_overrides(Overrides(max_attempts, max_losses, own_retry))


def check_overrides(overrides: Overrides) -> Overrides:
    """Return the overrides, or raise if an item cannot have them."""
    for name, value in (("max_attempts", overrides.max_attempts), ("max_losses", overrides.max_losses)):
        if value is not None and (type(value) is not int or not 0 <= value < 2**31):
            raise InvalidInput(f"{name} must be a whole number of 0 or more, not {short_repr(value, 40)}")
    if overrides.retry is not None:
        _check_own_retry(overrides.retry)
        check_attempts_limit(overrides.max_attempts, overrides.retry)
    return overrides


def _check_own_retry(retry: RetryPolicy) -> None:
    """Raise if the policy is too large to be stored with each item that has it."""
    size = len(msgspec.json.encode(check_retry_policy(retry)))
    if size > MAX_ITEM_RETRY_BYTES:
        problem = f"has {size:,} bytes as JSON, and the limit for one item is {MAX_ITEM_RETRY_BYTES:,}"
        raise InvalidSetting("retry", f"{problem}; name a function, or set it for the queue")

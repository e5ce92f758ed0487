"""The operations of mailboxes as flows: send, receive, acknowledge, nack, reply, request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from redrive.broker.flow import Flow, commit_call, run_query
from redrive.broker.flows import clearance, deliveries, manual_changes, settle
from redrive.broker.flows.export_import import checked_item
from redrive.clock import Instant
from redrive.contract.admin_calls import ManualChange
from redrive.contract.item_calls import Complete, Extend, NewItem, Put, Reply
from redrive.contract.maintenance_calls import Import
from redrive.contract.queries import GetLeasedItem, GetStats
from redrive.contract.replies import KEEP_RESULT, REPLY_ERROR, REPLY_FOR, REPLY_TO, REQUEST_ID, RESERVED_PREFIX
from redrive.errors import InvalidPayload, LeaseLost, PayloadTooLarge
from redrive.mailbox.body_types import BodyType
from redrive.mailbox.dead_letter import DeadLetter, dead_letter_of, item_of_letter
from redrive.mailbox.mailbox_errors import (
    InvalidParameterError,
    ReplyNotAvailableError,
    RequestFailedError,
    SerializationError,
)
from redrive.model.classify import ErrorClass
from redrive.model.death import DeadReason
from redrive.model.duration import DAY, MINUTE, SECOND, DurationInput, parse_duration
from redrive.model.ids import ItemId
from redrive.model.item import Item, Lease, Overrides, Receipt, Result, Settled, Status
from redrive.model.judge import Dead, Verdict
from redrive.model.limits import DEFAULT_PRIORITY, is_remote
from redrive.model.options import MessageOptions
from redrive.model.payload import decode_payload
from redrive.model.queue import QueueStats
from redrive.model.queue_options import QueueOptions
from redrive.model.state_machine import Verb
from redrive.task.result_handle import await_result
from redrive.task.task_options import check_options
from redrive.telemetry import events

if TYPE_CHECKING:
    from redrive.broker.core import Core

MAX_MESSAGES = 10
MAX_VISIBILITY_SECONDS = 43_200
MAX_WAIT_SECONDS = 20
DEFAULT_VISIBILITY_SECONDS = 30
RESULT_GRACE = MINUTE
"""The time for which a result is kept after the timeout of its request."""
_LONGEST_RESULT = 30 * DAY
DEAD_LETTER_SETTINGS: QueueOptions = {"max_attempts": 0, "max_losses": 5}
"""The settings of a dead-letter mailbox: a letter dies there only if it kills its consumers."""
during_wait: ContextVar[Callable[[], AbstractContextManager[None]]] = ContextVar("during_wait", default=nullcontext)
"""What the handler of a loop does while it waits for a message: others may run then."""
_SHORTEST = 1
"""The shortest lease, in microseconds: it expires immediately."""

T = TypeVar("T")
_log = events.logger("redrive.mailbox")


class Delivered(NamedTuple):
    """A lease, and the body that was decoded from it."""

    lease: Lease
    body: Any


def seconds(name: str, value: object, most: int) -> int:
    """Return a number of seconds as a duration. Raises InvalidParameterError if it is not in 0…most."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise InvalidParameterError(name, value, f"a number of seconds from 0 to {most:,}")
    return round(value * SECOND)


def check_address(core: Core, address: str) -> Flow[str]:
    """Return the address of a mailbox for replies. Raises if the queue, or the other store, does not exist."""
    known = core.address("reply_to", address)
    if not is_remote(known):
        yield from core.queue(known)
    return known


def new_message(
    body: Result, options: MessageOptions, *, reply_to: str | None, request_id: str | None, keep_result: int | None
) -> NewItem:
    """Return the item of a message. Raise InvalidInput for an option that messages do not have."""
    check_options("a message", options, MessageOptions)
    item = deliveries.new_item(body.payload, content_type=body.content_type, **options)
    reserved = {REPLY_TO: reply_to, REQUEST_ID: request_id, KEEP_RESULT: keep_result and str(keep_result)}
    own = {name: value for name, value in reserved.items() if value is not None}
    if not own:
        return item
    return msgspec.structs.replace(item, headers={**(item.headers or {}), **own}, is_plain=False)


def send(queue: str, item: NewItem) -> Flow[ItemId]:
    """Put a message, and return its id."""
    receipts = yield from commit_call(Put(queue, (item,)))
    assert isinstance(receipts, tuple)  # a put without a verdict always returns receipts
    return receipts[0].id


def import_letter(core: Core, queue: str, body: BodyType[Any], letter: object, **options: object) -> Flow[ItemId]:
    """Import a dead letter that a program made. This requires the right to import; a second import is ignored."""
    for name, value in options.items():
        if value not in (None, 0, DEFAULT_PRIORITY):
            raise InvalidParameterError(name, value, "not for dead letters, which bring everything with them")
    body.encode(letter)
    if not isinstance(letter, DeadLetter):
        raise SerializationError("$", f"is {type(letter).__name__}, not a DeadLetter")
    inner: BodyType[Any] = BodyType("body", body.argument)
    store = core.store
    item = item_of_letter(letter, inner.encode(letter.body), queue, store.namespace, store.name)
    receipts: tuple[Receipt, ...] = yield from commit_call(Import(queue, (checked_item(item),), core.actor(None)))
    return receipts[0].id


def receive(
    core: Core,
    queue: str,
    body: BodyType[Any],
    limit: int,
    visibility: int,
    wait: int,
    worker: str,
    is_closed: Callable[[], bool],
) -> Flow[list[Delivered]]:
    """Lease up to `limit` messages. One that cannot be decoded is dead, and others are received instead.

    With visibility 0 they are released immediately as counted deliveries: their handles have expired.
    """
    end = core.clock.now() + wait
    timeout = visibility or DEFAULT_VISIBILITY_SECONDS * SECOND
    while True:
        with during_wait.get()() if wait else nullcontext():
            leases = yield from deliveries.lease_checked(core, queue, limit, wait, timeout, worker, is_closed)
        delivered: list[Delivered] = []
        for lease in leases:
            try:
                delivered.append(Delivered(lease, (yield from _decode(body, lease))))
            except InvalidPayload as error:
                if REPLY_ERROR in lease.headers:  # the store replied to a death, without knowing the type
                    delivered.append(Delivered(lease, None))
                    continue
                _log.warning("message_undecodable", mailbox=queue, message_id=lease.id, error=str(error))
                failure = settle.failure_of(error, (), worker, core.clock.now())
                failure = msgspec.structs.replace(failure, error_class=ErrorClass.POISON)
                with suppress(LeaseLost):
                    yield from settle.fail(core, lease, failure, False, Dead(DeadReason.UNDECODABLE))
            except LeaseLost:
                continue
        if not visibility:
            for each in delivered:
                yield from settle.release(core, each.lease, 0, True, None)
        if delivered or not leases:
            return delivered
        wait = max(0, end - core.clock.now())


def _decode(body: BodyType[Any], lease: Lease) -> Flow[Any]:
    """Return the decoded body; in a dead-letter mailbox, the view of the dead item with the decoded body inside."""
    if not body.is_a(DeadLetter):
        return body.decode(lease.payload, lease.content_type)
    item: Item = yield from run_query(GetLeasedItem(lease.token))
    return dead_letter_of(item, BodyType("body", body.argument))


def acknowledge(core: Core, lease: Lease, reply: Result | None) -> Flow[Settled]:
    """Complete a message, with its reply in the same transaction."""
    keep = _keep_result(lease)
    address = lease.headers.get(REPLY_TO)
    if reply is None:
        call = Complete(lease.token)
    elif keep is None and address is None:
        raise ReplyNotAvailableError(lease.id)
    else:
        result = None if keep is None else reply
        call = Complete(lease.token, result, keep_result=keep, reply=None if address is None else reply)
    settled: Settled = yield from commit_call(call)
    if address is not None and is_remote(address):
        core.wake_movers()
    return settled


def reply(core: Core, lease: Lease, body: Result) -> Flow[ItemId | None]:
    """Send a reply to a message that this consumer still holds, and return its id; more may follow.

    One to a sender that awaits the result is only checked here, and returns None: it is sent when the message ends.
    """
    address = lease.headers.get(REPLY_TO)
    if is_awaited(lease):
        queue = yield from core.queue(lease.queue)
        if len(body.payload) > (limit := queue.settings.max_payload_size):
            raise PayloadTooLarge("reply", len(body.payload), limit, "max_payload_size")
    elif address is None:
        raise ReplyNotAvailableError(lease.id)
    if address is None:
        return None
    receipt: Receipt = yield from commit_call(Reply(lease.token, body))
    if is_remote(address):
        core.wake_movers()
    return receipt.id


def extend(lease: Lease, visibility: int) -> Flow[Instant]:
    """Extend the lease of a message to this time from now. With 0 it becomes visible immediately."""
    deadline: Instant = yield from commit_call(Extend(lease.token, visibility or _SHORTEST))
    return deadline


def nack(core: Core, lease: Lease, delay: int, is_letter: bool) -> Flow[None]:
    """Release a message as a counted delivery; it is visible again after the delay. A dead letter never dies of it."""
    yield from settle.release(core, lease, timedelta(microseconds=delay), True, None, never_dies=is_letter)


def fail(core: Core, lease: Lease, error: BaseException, verdict: Verdict | None) -> Flow[None]:
    """Record a failure with this verdict, or with the one by the settings of the queue."""
    yield from settle.fail(core, lease, error, False, verdict)


def return_(core: Core, lease: Lease) -> Flow[None]:
    """Release a message that was not handled: it is delivered again, and this delivery does not count."""
    yield from settle.release(core, lease, 0, False, None)


def replay_or_discard(core: Core, lease: Lease, is_replay: bool) -> Flow[None]:
    """Redrive or drop a dead letter that this consumer holds, as a manual change with a row in the audit."""
    yield from run_query(GetLeasedItem(lease.token))  # raises if this consumer has lost the lease
    verb = Verb.REDRIVE if is_replay else Verb.DROP
    yield from manual_changes.change(core, verb, lease.id, None, force=True)


def check_replay(core: Core, queue: str) -> Flow[None]:
    """Raise AccessError if this caller may not redrive items of a queue. It changes nothing: it names none."""
    yield from commit_call(ManualChange(Verb.REDRIVE, (), core.actor(None), to=queue))


def request(core: Core, queue: str, reply: BodyType[T], item: NewItem, timeout: DurationInput | None) -> Flow[T]:
    """Send a message, wait for its result, and return that decoded."""
    count = core.notify.result_count
    id = yield from send(queue, item)
    is_new = item.idempotency_key is None  # otherwise the item may have been put, and have ended, before this call
    with during_wait.get()():
        result = yield from await_result(core, queue, id, timeout, count if is_new else None)
    return reply.decode(result.payload, result.content_type)


def result_timeout(timeout: DurationInput | None) -> int:
    """Return the time for which the result of a request is kept, if the sender waits up to `timeout`."""
    wait = DAY if timeout is None else parse_duration(timeout, "timeout")
    return min(wait + RESULT_GRACE, _LONGEST_RESULT)


def _keep_result(lease: Lease) -> int | None:
    """Return the time for which the sender wants the result to be kept; None if the sender does not await it."""
    text = lease.headers.get(KEEP_RESULT, "")
    return min(int(text), _LONGEST_RESULT) if text.isascii() and text.isdigit() and int(text) > 0 else None


def error_of(mailbox: str, lease: Lease) -> RequestFailedError | None:
    """Return the error in a reply that reports a death; None for any other reply."""
    reason = lease.headers.get(REPLY_ERROR)
    if reason is None:
        return None
    said = decode_payload(lease.payload, lease.content_type)
    title = str(said["error"]) if isinstance(said, dict) and "error" in said else reason
    return RequestFailedError(mailbox, lease.headers.get(REPLY_FOR, ""), reason, title)


def sender_headers(lease: Lease) -> dict[str, str]:
    """Return the headers of a message without the reserved ones."""
    return {name: value for name, value in lease.headers.items() if not name.startswith(RESERVED_PREFIX)}


def delivered_once(item: NewItem) -> NewItem:
    """Return the item of a message that is dead after its first failure, release or loss."""
    return msgspec.structs.replace(item, overrides=Overrides(max_attempts=1), is_plain=False)


def request_id_of(body: object) -> str | None:
    """Return the request_id of a body that has one, as text."""
    found = body.get("request_id") if isinstance(body, Mapping) else getattr(body, "request_id", None)
    return str(found) if isinstance(found, str | UUID) else None


def is_awaited(lease: Lease) -> bool:
    """Return whether the sender awaits the result of the message."""
    return _keep_result(lease) is not None


def _statuses(body: BodyType[Any]) -> tuple[Status, ...]:
    """Return the statuses of messages that no consumer holds. In a dead-letter mailbox they may be dead: there a letter
    that kills its consumers dies again."""
    waiting = (Status.PENDING, Status.FAILED)
    return (*waiting, Status.DEAD) if body.is_a(DeadLetter) else waiting


def count(queue: str, body: BodyType[Any]) -> Flow[int]:
    """Return the number of messages: visible, scheduled and held by consumers."""
    stats: QueueStats = yield from run_query(GetStats(queue))
    return stats.active + sum(int(getattr(stats, status.value)) for status in _statuses(body))


def purge(core: Core, queue: str, body: BodyType[Any], confirm: int) -> Flow[int]:
    """Delete all messages that no consumer holds, and return their number. Raises if `confirm` is another number."""
    flow = clearance.clear_queue(core, queue, _statuses(body), final=True, confirm=confirm, named="mailbox")
    return (yield from flow).cleared

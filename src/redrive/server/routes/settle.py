"""The end of a delivery: `queue.complete` and `queue.retry`; and `queue.extend`, which prolongs it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any, TypeAlias

import msgspec

from redrive.broker.flow import commit_calls, read_leases
from redrive.broker.flows import settle
from redrive.broker.flows.deliveries import complete_call, extend_call, token_of
from redrive.clock import Instant
from redrive.contract.item_calls import Complete
from redrive.errors import InvalidDuration, InvalidInput, RedriveError
from redrive.model.classify import ErrorClass, ErrorRule
from redrive.model.duration import SECOND, Duration, parse_duration
from redrive.model.failure import Failure, failure_from_fields
from redrive.model.ids import Token
from redrive.model.item import Lease, Settled
from redrive.model.retry_after import parse_retry_after
from redrive.server.field_types import (
    DurationInput,
    InstantInput,
    Label,
    QueueName,
    Text,
    TokenText,
    check_batch,
    each,
    read_instant,
)
from redrive.server.request import Request, Response
from redrive.server.responses import ExtendedItems, SettledItems, extended_answer, settled_answer
from redrive.server.route import DirectCall
from redrive.server.routes.produce import ProducedItem, new_item_of

LeasedFrom: TypeAlias = Annotated[
    QueueName, msgspec.Meta(description="The queue that all items were leased from; one of another is refused.")
]


class FollowUp(ProducedItem, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """An item to be put together with the completion."""

    queue: QueueName


class CompletedItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A completed item."""

    token: TokenText
    result: Annotated[Any, msgspec.Meta(description="The result: any JSON value except null.")] = None
    keep_result: Annotated[DurationInput | None, msgspec.Meta(description="How long it can be read.")] = None
    puts: Annotated[
        list[FollowUp] | None, msgspec.Meta(description="Put in the same transaction: all of it happens, or nothing.")
    ] = None


class CompleteCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Complete these items. Each succeeds or fails separately."""

    queue: LeasedFrom
    items: Annotated[list[CompletedItem], msgspec.Meta(min_length=1)]


async def complete(request: Request, call: CompleteCall) -> SettledItems | Response:
    """Complete leased items."""
    check_batch(request, len(call.items))
    calls = each(call.items, lambda item: _completion(item, call.queue))
    return settled_answer(await request.broker.run_flow(commit_calls(calls)))


def _completion_of_one(call: CompleteCall) -> Complete | None:
    return _completion(call.items[0], call.queue) if len(call.items) == 1 else None


def _completion(item: CompletedItem, queue: str) -> Complete:
    puts = () if item.puts is None else [(put.queue, new_item_of(put)) for put in item.puts]
    return complete_call(Token(item.token), item.result, puts, item.keep_result, queue)


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reported error."""

    text: Text
    type: Annotated[Text, msgspec.Meta(description="The class of the error, as in `ConnectionError`.")] = "Error"
    traceback: Text | None = None
    bases: Annotated[list[Label], msgspec.Meta(max_length=100, description="Classes it derives from.")] = []
    status_code: Annotated[int | None, msgspec.Meta(description="Of HTTP, where it has one.")] = None
    error_class: ErrorClass | None = None
    host: Label | None = None
    retry_after: Annotated[
        Text | float | None,
        msgspec.Meta(description="How long the other side asks to wait: seconds, `30s`, or Retry-After as it came."),
    ] = None


class RetriedItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An item that was not completed."""

    token: TokenText
    dead: Annotated[bool, msgspec.Meta(description="Bury it: it is not retried automatically.")] = False
    error: Annotated[
        Text | ErrorReport | None,
        msgspec.Meta(description="It failed: retried or dead, as the settings of the queue say."),
    ] = None
    final: Annotated[bool, msgspec.Meta(description="With an error: another try is useless.")] = False
    retry_at: Annotated[InstantInput | None, msgspec.Meta(description="Without an error: not before.")] = None
    delay: Annotated[DurationInput | None, msgspec.Meta(description="Without an error: not before so long.")] = None
    counted: Annotated[bool, msgspec.Meta(description="false: it never ran, and takes its old place.")] = True
    note: Annotated[Text | None, msgspec.Meta(description="For the history.")] = None


class RetryCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fail, release or bury items that were not completed. Each succeeds or fails separately."""

    queue: LeasedFrom
    items: Annotated[list[RetriedItem], msgspec.Meta(min_length=1)]


async def retry(request: Request, call: RetryCall) -> SettledItems | Response:
    """Fail, release or bury leased items that were not completed."""
    check_batch(request, len(call.items))
    each(call.items, _check_together)
    broker = request.broker
    rules: tuple[ErrorRule, ...] = ()
    if any(item.error is not None for item in call.items):
        rules = (await broker.run_flow(broker.core.queue(call.queue))).settings.error_rules
    tokens = [Token(item.token) for item in call.items if item.counted]
    found = await broker.run_flow_in_thread(read_leases(tokens))
    leases = {token: lease for token, lease in zip(tokens, found, strict=True) if lease is not None}
    ends = [_ended(request, item, leases.get(Token(item.token)), rules, call.queue) for item in call.items]
    results = await asyncio.gather(*ends, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, RedriveError):
            raise result
    return settled_answer(results)


def _check_together(item: RetriedItem) -> None:
    token_of(Token(item.token))
    later = item.retry_at is not None or item.delay is not None
    if item.retry_at is not None:
        read_instant("retry_at", item.retry_at)
    if item.delay is not None:
        parse_duration(item.delay, "delay")
    if item.retry_at is not None and item.delay is not None:
        raise InvalidInput("an item has a retry_at or a delay, not both")
    if later and (item.dead or item.error is not None):
        raise InvalidInput(
            "with an error the settings of the queue say when the item is retried, and a dead one is not; "
            "leave retry_at and delay out, or give the item back without an error"
        )
    if not item.counted and (item.dead or item.error is not None):
        raise InvalidInput("what never ran cannot have failed: counted=false goes with no error and not with dead")
    if item.final and item.error is None:
        raise InvalidInput("final is said of an error; give the error too, or dead=true")


async def _ended(
    request: Request, item: RetriedItem, lease: Lease | None, rules: tuple[ErrorRule, ...], queue: str
) -> Settled:
    core, held = request.broker.core, lease or Token(item.token)
    error = None
    if item.error is not None:
        error = failure_of_report(item.error, rules, final=item.final, now=core.clock.now())
    if item.dead:
        flow = settle.bury(core, held, item.note, error, queue)
    elif error is not None:
        flow = settle.fail(core, held, error, item.final, None, queue)
    else:
        flow = settle.release(core, held, _delay(request, item), item.counted, item.note, queue)
    return await request.broker.run_flow(flow)


def failure_of_report(error: str | ErrorReport, rules: tuple[ErrorRule, ...], *, final: bool, now: Instant) -> Failure:
    """Return the failure that a caller has reported."""
    report = ErrorReport(text=error) if isinstance(error, str) else error
    failure = failure_from_fields(
        report.type,
        report.text,
        report.traceback,
        bases=report.bases,
        status_code=report.status_code,
        error_class=report.error_class,
        final=final,
        rules=rules,
        retry_after=_reported_wait(report.retry_after, now),
    )
    return failure if report.host is None else msgspec.structs.replace(failure, host=report.host)


def _reported_wait(value: str | float | None, now: Instant) -> Duration | None:
    """Return the wait that the other side requested; None if its text is invalid, which must not refuse the failure."""
    wait = parse_retry_after(value, now)
    if wait is None and isinstance(value, str):
        with contextlib.suppress(InvalidDuration):
            return parse_duration(value)
    return wait


def _delay(request: Request, item: RetriedItem) -> float | str:
    if item.retry_at is None:
        return 0 if item.delay is None else item.delay
    now = request.broker.core.clock.now()
    return max(0, read_instant("retry_at", item.retry_at) - now) / SECOND


class ExtendedLease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A lease to extend."""

    token: TokenText


class ExtendCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Extend leases, from now. Each succeeds or fails separately."""

    queue: LeasedFrom
    items: Annotated[list[ExtendedLease], msgspec.Meta(min_length=1)]
    lease_timeout: Annotated[DurationInput | None, msgspec.Meta(description="Instead of the queue's.")] = None


async def extend(request: Request, call: ExtendCall) -> ExtendedItems | Response:
    """Extend the leases of items."""
    check_batch(request, len(call.items))
    calls = each(call.items, lambda item: extend_call(Token(item.token), call.lease_timeout, call.queue))
    return extended_answer(await request.broker.run_flow(commit_calls(calls)))


COMPLETION_OF_ONE = DirectCall(_completion_of_one, lambda call, result: settled_answer((result,)))

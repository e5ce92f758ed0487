"""Effects of open breakers and of a Retry-After on a failure: it is not counted, or the item waits for its breaker."""

from __future__ import annotations

import msgspec

from redrive.clock import Instant
from redrive.contract.item_calls import Settle
from redrive.model.breaker import Breaker
from redrive.model.duration import format_duration
from redrive.model.failure import Failure
from redrive.model.item import Lease
from redrive.model.judge import OutcomeKind, RetryVerdict, Verdict
from redrive.model.queue import Queue, RetryAfter


def held_verdict(queue: Queue, verdict: Verdict, failure: Failure | None) -> Verdict:
    """Return the verdict, with a hold for each open breaker of the kind of the failure."""
    if not queue.breakers or not isinstance(verdict, RetryVerdict) or failure is None:
        return verdict
    return msgspec.structs.replace(verdict, held_by=_holders(queue, failure))


def uncounted_return(queue: Queue, lease: Lease, failure: Failure, now: Instant) -> Settle | None:
    """Return the call for an uncounted failure of the peer: it sent a Retry-After, or a probe of a breaker failed.

    None: the failure is counted for the item. A dead item that was leased is dead again in any case.
    """
    if lease.dead_reason is not None or failure.final:
        return None
    if failure.retry_after and queue.settings.retry_after_mode is RetryAfter.GATE:
        note = f"asked to wait {format_duration(failure.retry_after)}: not counted"
        return _return(queue, lease, failure, note, Instant(now + failure.retry_after))
    probed = next((each for each in queue.breakers if each.is_probe(lease) and each.matches(failure)), None)
    return None if probed is None else _return(queue, lease, failure, f"probe of breaker {probed.kind}: not counted")


def _return(queue: Queue, lease: Lease, failure: Failure, note: str, close_until: Instant | None = None) -> Settle:
    verdict = RetryVerdict(held_by=_holders(queue, failure))
    return Settle(lease.token, OutcomeKind.RETURNED, verdict, queue.version, failure, note, close_until=close_until)


def _holders(queue: Queue, failure: Failure) -> tuple[str, ...]:
    return tuple(each.holder(queue.name) for each in queue.breakers if _waits(each, failure))


def _waits(breaker: Breaker, failure: Failure) -> bool:
    return breaker.holds and not breaker.is_closing and breaker.matches(failure)

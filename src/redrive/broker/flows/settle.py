"""Outcomes of a delivery other than completion: fail, release, bury, lost. Each is read, judged and settled."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from redrive.broker.flow import Flow, TimedCommit, commit_call, raise_if_refused, run_query
from redrive.broker.flows.breaker_verdicts import uncounted_return
from redrive.broker.flows.deliveries import queue_name as check_queue
from redrive.broker.flows.deliveries import token_of
from redrive.broker.flows.stale_settings import judge_until_current
from redrive.broker.validation import check_note
from redrive.clock import Instant
from redrive.contract.item_calls import NewItem, Put, ReturnLease, Settle, StaleSettings
from redrive.contract.queries import GetLease
from redrive.errors import InvalidInput, WrongQueue, short_repr
from redrive.model.caller_input import checking_input, exact_str, flag
from redrive.model.classify import ErrorClass, ErrorRule
from redrive.model.duration import DurationInput, parse_duration
from redrive.model.failure import (
    Failure,
    failure_from_exception,
    failure_from_fields,
    normalize_failure,
)
from redrive.model.ids import Token
from redrive.model.item import Counters, Lease, Overrides, Receipt, Settled
from redrive.model.judge import Dead, OutcomeKind, RetryVerdict, Verdict
from redrive.model.limits import is_remote
from redrive.model.queue import Queue
from redrive.model.text import MAX_TYPE_BYTES, clean_text
from redrive.store import Commit
from redrive.telemetry import tracing

if TYPE_CHECKING:
    from redrive.broker.core import Core


def fail(
    core: Core,
    lease: Lease | Token,
    error: BaseException | Failure | str,
    final: bool,
    verdict: Verdict | None,
    of: str | None = None,
    outcome_kind: OutcomeKind = OutcomeKind.FAILED,
) -> Flow[Settled]:
    """Settle a delivery as failed. Here as below, `of` is the queue that the item must be in."""
    is_final = flag("final", final)
    held = yield from _held(lease, of)
    queue = yield from core.queue(held.queue)
    failure = failure_of(error, queue.settings.error_rules, held.worker, core.clock.now())
    if is_final:
        failure = msgspec.structs.replace(failure, final=True)
    return (yield from _settle(core, held, outcome_kind, failure=failure, verdict=verdict))


def release(
    core: Core,
    lease: Lease | Token,
    delay: DurationInput,
    counted: bool,
    error: str | None,
    of: str | None = None,
    *,
    never_dies: bool = False,
) -> Flow[Settled]:
    """Settle a delivery as released by its worker; with `never_dies`, regardless of the settings of the queue."""
    note = check_note("error", error)
    pause = parse_duration(delay, "delay")
    if not flag("counted", counted):
        if pause:
            raise InvalidInput(
                "an item that never ran takes its old place immediately: a delay needs that it is counted"
            )
        settled: Settled = yield from commit_call(ReturnLease(token_of(lease), note, of))
        return settled
    held = yield from _held(lease, of)
    verdict = RetryVerdict(pause) if never_dies else None
    return (yield from _settle(core, held, OutcomeKind.RELEASED, verdict=verdict, delay=pause, note=note))


def bury(
    core: Core,
    lease: Lease | Token,
    note: str | None,
    error: BaseException | Failure | None,
    of: str | None = None,
) -> Flow[Settled]:
    """Settle a delivery so that the item is dead."""
    text = check_note("note", note)
    held = yield from _held(lease, of)
    queue = yield from core.queue(held.queue)
    rules, now = queue.settings.error_rules, core.clock.now()
    failure = None if error is None else failure_of(error, rules, held.worker, now)
    return (yield from _settle(core, held, OutcomeKind.BURIED, failure=failure, note=text))


def report_lost(core: Core, lease: Lease | Token, error: Failure | str) -> Flow[Settled]:
    """Settle a delivery as lost before its lease expires, since its worker is gone."""
    held = yield from _held(lease)
    failure = loss_of(error, held.worker)
    return (yield from _settle(core, held, OutcomeKind.LOST, failure=failure, at_once=True))


def put_failed(
    core: Core, queue_name: str, item: NewItem, error: BaseException | Failure | str, verdict: Verdict | None
) -> Flow[Receipt]:
    """Put an item that has already failed once, judged like the first failure of a delivery.

    The verdict is for a new item. Only the store decides whether it is new: in one transaction it puts the item, or
    adds the failure to the item that holds the key.
    """
    queue = yield from core.queue(check_queue(queue_name))
    with checking_input("verdict"):
        note = check_note("note", verdict.note) if isinstance(verdict, Dead) else None

    def judge(queue: Queue) -> Judged:
        failure = failure_of(error, queue.settings.error_rules, None, core.clock.now())
        brought = core.route_verdict(queue, verdict, failure)
        return Judged(failure, brought or judge_first_failure(core, queue, failure, item.overrides))

    return (yield from put_judged(core, queue.name, item, judge, note)).receipt


class Judged(msgspec.Struct, frozen=True, gc=False):
    """A failure with its verdict."""

    failure: Failure
    verdict: Verdict


class PutFailure(msgspec.Struct, frozen=True, gc=False):
    """A failure that was put: the receipt of its item, the verdict for a new item, and the instant."""

    receipt: Receipt
    verdict: Verdict
    at: Instant


def judge_first_failure(core: Core, queue: Queue, failure: Failure, overrides: Overrides) -> Verdict:
    """Judge the failure with which an item is put."""
    return core.judge(queue, OutcomeKind.FAILED, Counters(), failure=failure, overrides=overrides)


def put_judged(
    core: Core, queue_name: str, item: NewItem, judge: Callable[[Queue], Judged], note: str | None = None
) -> Flow[PutFailure]:
    """Put an item that has failed. `judge` is called with the cached queue, and again with newer settings."""

    def put() -> Flow[PutFailure | StaleSettings]:
        queue = yield from core.queue(queue_name)
        judged = judge(queue)
        verdict = judged.verdict
        born = msgspec.structs.replace(
            item, failure=judged.failure, verdict=verdict, version=queue.version, note=note, is_plain=False
        )
        commit: Commit = yield TimedCommit(Put(queue.name, (born,)))
        result = raise_if_refused(commit.results[0])
        return result if isinstance(result, StaleSettings) else PutFailure(result[0], verdict, commit.now)

    done: PutFailure = yield from judge_until_current(core, put)
    if isinstance(done.verdict, Dead) and done.verdict.to is not None and is_remote(done.verdict.to):
        core.wake_movers()
    return done


def failure_of(
    error: BaseException | Failure | str | None, rules: tuple[ErrorRule, ...], worker: str | None, now: Instant
) -> Failure:
    """Return the failure of an exception, a text or a Failure."""
    with checking_input("error"):
        if isinstance(error, Failure):
            return normalize_failure(error)
        if isinstance(error, BaseException):
            return failure_from_exception(
                error, worker=worker, rules=rules, host=_host(), trace_id=tracing.trace_id(), now=now
            )
        text = exact_str(error) if isinstance(error, str) else None
    if text is None:
        raise InvalidInput(f"an error is an exception, a text or a Failure, not {short_repr(error, 60)}")
    failure = failure_from_fields("Error", text, worker=worker, rules=rules)
    return msgspec.structs.replace(failure, host=_host(), trace_id=tracing.trace_id())


@cache
def _host() -> str:
    return clean_text(socket.gethostname(), MAX_TYPE_BYTES)


def loss_of(error: Failure | str, worker: str | None) -> Failure:
    """Return the failure of a lost worker. From a text it has the class POISON: the item may have killed the worker."""
    with checking_input("error"):
        if isinstance(error, Failure):
            return normalize_failure(error)
        text = exact_str(error) if isinstance(error, str) else None
    if text is None:
        raise InvalidInput(f"what is known of a loss, the error, is a text or a Failure, not {short_repr(error, 60)}")
    return failure_from_fields("WorkerLost", text, error_class=ErrorClass.POISON, worker=worker)


def _held(lease: Lease | Token, of: str | None = None) -> Flow[Lease]:
    """Return the lease, read from the store if only its token is given. An item does not leave its queue while it is
    leased."""
    held: Lease = lease if type(lease) is Lease else (yield from run_query(GetLease(token_of(lease))))
    if of is not None and held.queue != of:
        raise WrongQueue(held.id, held.queue, of)
    return held


def _settle(
    core: Core,
    lease: Lease,
    outcome_kind: OutcomeKind,
    *,
    failure: Failure | None = None,
    verdict: Verdict | None = None,
    delay: int = 0,
    note: str | None = None,
    at_once: bool = False,
) -> Flow[Settled]:
    """Judge by the cached settings and settle; judge again if they have changed."""
    if note is None and type(verdict) is Dead:
        note = check_note("note", verdict.note)
    if lease.dead_reason is not None:
        verdict = None  # a verdict of the program cannot revive a dead item

    def settle() -> Flow[Settled | StaleSettings]:
        queue = yield from core.queue(lease.queue)
        call = None
        if outcome_kind is OutcomeKind.FAILED and failure is not None and verdict is None:
            call = uncounted_return(queue, lease, failure, core.clock.now())
        if call is None:
            judged = core.route_verdict(queue, verdict, failure) or core.judge_delivery(
                queue, outcome_kind, lease, failure=failure, delay=delay
            )
            call = Settle(lease.token, outcome_kind, judged, queue.version, failure, note, at_once)
        result: Settled | StaleSettings = yield from commit_call(call)
        if core.meter is not None and isinstance(result, Settled):
            was_dead = lease.dead_reason is not None
            core.meter.settled(lease.queue, call.outcome_kind, result, failure, was_dead=was_dead)
        return result

    settled: Settled = yield from judge_until_current(core, settle)
    core.start_moves((settled,))
    return settled

"""The exchange of a worker with the store: it settles ended deliveries and leases the next items in ONE transaction.

A worker that settles item by item needs a transaction for each. One that submits all outcomes since its last step, and
leases as many items as it has room for (prefetch), needs one for all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from redrive.broker.flow import CommitCalls, Flow, commit_call, run
from redrive.broker.flows.breaker_verdicts import held_verdict, uncounted_return
from redrive.broker.flows.stale_settings import judge_stale
from redrive.broker.maintenance import settle_overdue
from redrive.clock import Instant
from redrive.contract import Call
from redrive.contract.item_calls import Complete, Extend, LeaseByIds, Leased, LeaseItems, Put, ReturnLease, Settle
from redrive.contract.queries import GetLeasedItem, ListWorkerLeases
from redrive.errors import Closed, OutcomeUnknown, Overloaded, RedriveError, StoreError
from redrive.model.death import DeadReason
from redrive.model.failure import Failure
from redrive.model.ids import ItemId
from redrive.model.item import Item, Lease, Result, Settled, Status
from redrive.model.judge import Dead, OutcomeKind, RetryVerdict, Verdict, has_attempts_left
from redrive.model.queue import Queue

if TYPE_CHECKING:
    from redrive.broker.api.base import BrokerBase
    from redrive.broker.async_api.base import AsyncBrokerBase
    from redrive.broker.core import Core
    from redrive.broker.instrumentation import BrokerMetrics


RETRYABLE_STORE_ERRORS = (StoreError, OutcomeUnknown, Overloaded)
"""Errors of a store that cannot serve a call now: the call should be retried."""
MAX_WORKER_LEASES = 100_000
"""Maximum number of leases of one worker that are read."""


class Completed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The outcome of finished work. `puts` are put in the same transaction. The result is kept for `keep` from now."""

    result: Result | None = None
    puts: tuple[Put, ...] = ()
    keep: int | None = None


class Failed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The outcome of failed work. With `after`, requested by the handler, it is retried after that time, if it has
    attempts left."""

    failure: Failure
    after: int | None = None


class Released(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The outcome of an item that its handler released: counted, and at the end of the queue."""

    delay: int = 0
    note: str | None = None


class Returned(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The outcome of an item that never ran, or was interrupted from outside: not counted, at its old position.

    With a delay, at the end of its queue after that time.
    """

    note: str | None = None
    delay: int = 0


class Buried(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The outcome of an item that becomes dead, regardless of its counters."""

    reason: DeadReason = DeadReason.BURIED
    note: str | None = None
    failure: Failure | None = None
    to: str | None = None
    """The queue that it moves to, instead of the dead queue of its queue."""


class Lost(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The outcome of an item whose worker is gone, perhaps killed by it: one loss, before the lease expires."""

    failure: Failure | None = None


Outcome = Completed | Failed | Released | Returned | Buried | Lost
"""The outcome of a delivery."""


def outcome_name(end: Outcome) -> str:
    """Return the name of an outcome: that of an `OutcomeKind`, or "completed"."""
    return type(end).__name__.lower()


class SettledAndLeased(msgspec.Struct, frozen=True):
    """The result of one exchange."""

    settled: list[Any]
    """For each outcome, in order: Settled, or the `RedriveError` that refused it (`LeaseLost`: it was too late)."""
    leases: list[Lease]
    later: Mapping[str, Instant | None]
    """Queues that gave fewer leases than requested, with the instant at which an item may become leasable."""
    refused: Mapping[str, RedriveError]
    """Queues that gave no leases, with the error of the queue or the store. `OutcomeUnknown`: items may have been
    leased."""


def settle_and_lease(
    core: Core, ends: Sequence[tuple[Lease, Outcome]], wants: Mapping[str, int], worker: str | None
) -> Flow[SettledAndLeased]:
    """Settle all outcomes, and lease up to the wanted number of items of each queue, in one transaction.

    An error of the store is raised as long as nothing was committed. After that it is part of the result.
    """
    made = yield from _calls(core, ends)
    calls = [call for call in made if not isinstance(call, RedriveError)]
    count_of_settles = len(calls)
    calls += [LeaseItems(queue, limit, worker) for queue, limit in wants.items()]
    results = (yield CommitCalls(calls)) if calls else []
    settled = yield from _judge_again(core, ends, made, _in_place(made, results))
    core.start_moves(settled)
    for call, result, (lease, _) in zip(made, settled, ends, strict=True):
        if isinstance(call, Settle) and call.close_until is not None and isinstance(result, Settled):
            core.close_gate(lease.queue, call.close_until)
    if core.meter is not None:
        _count(core.meter, ends, made, settled)
    leases: list[Lease] = []
    later: dict[str, Instant | None] = {}
    refused: dict[str, RedriveError] = {}
    for (queue, limit), result in zip(wants.items(), results[count_of_settles:], strict=True):
        leased: Leased | RedriveError = result
        if isinstance(leased, Leased) and leased.overdue:
            leased = yield from _lease_swept(core, LeaseItems(queue, limit, worker, ignore_overdue=True))
        if isinstance(leased, RedriveError):
            refused[queue] = leased
            continue
        leases += leased.leases
        if len(leased.leases) < limit:
            later[queue] = leased.next_at
    return SettledAndLeased(settled, leases, later, refused)


def _count(
    meter: BrokerMetrics, ends: Sequence[tuple[Lease, Outcome]], made: Sequence[Any], settled: Sequence[Any]
) -> None:
    """Count all outcomes except completions and returns, which are counted at their commit."""
    for (lease, _), call, result in zip(ends, made, settled, strict=True):
        if isinstance(call, Settle):
            was_reported = call.failure is not None and call.outcome_kind is OutcomeKind.BURIED
            kind = OutcomeKind.FAILED if was_reported else call.outcome_kind
            meter.settled(lease.queue, kind, result, call.failure, was_dead=lease.dead_reason is not None)


def _lease_swept(core: Core, call: LeaseItems) -> Flow[Leased | RedriveError]:
    """Settle one batch of overdue items, then lease regardless of others: the next exchange settles more of them."""
    try:
        yield from settle_overdue(core, call.queue)
        results = yield CommitCalls((call,))
    except Closed:
        raise
    except RedriveError as problem:
        return problem
    leased: Leased | RedriveError = results[0]
    return leased


def _judge_again(
    core: Core, ends: Sequence[tuple[Lease, Outcome]], made: list[Call | RedriveError], settled: Sequence[Any]
) -> Flow[list[Any]]:
    """Judge again those outcomes whose settings were stale, by the newest settings. Returns all results."""

    def judge(places: Sequence[int]) -> Flow[dict[int, Any]]:
        try:
            again = yield from _calls(core, [ends[place] for place in places])
            calls = [call for call in again if not isinstance(call, RedriveError)]
            results = _in_place(again, (yield CommitCalls(calls)) if calls else [])
        except RETRYABLE_STORE_ERRORS as problem:
            return dict.fromkeys(places, problem)
        for place, call in zip(places, again, strict=True):
            made[place] = call
        return dict(zip(places, results, strict=True))

    results = dict(enumerate(settled))
    yield from judge_stale(core, results, judge)
    return [results[place] for place in range(len(ends))]


def _calls(core: Core, ends: Sequence[tuple[Lease, Outcome]]) -> Flow[list[Call | RedriveError]]:
    """Return the call for each outcome, or the refusal if none can be made, which does not affect the others."""
    made: list[Call | RedriveError] = []
    queues: dict[str, Queue] = {}
    now = core.clock.now()
    for lease, end in ends:
        if end.__class__ is Completed:  # the common case, with nothing to judge
            made.append(Complete(lease.token, end.result, end.puts, end.keep))
            continue
        if isinstance(end, Returned) and not end.delay:
            made.append(ReturnLease(lease.token, end.note))
            continue
        try:
            if (queue := queues.get(lease.queue)) is None:
                queue = queues[lease.queue] = yield from core.queue(lease.queue)
            made.append(_judged(core, queue, lease, end, now))
        except (*RETRYABLE_STORE_ERRORS, Closed):
            raise
        except RedriveError as refusal:  # its queue was deleted, or it names an invalid one
            made.append(refusal)
    return made


def _in_place(made: Sequence[Call | RedriveError], results: Sequence[Any]) -> list[Any]:
    """Return the results of the calls, with the refusals at their positions among them."""
    committed = iter(results)
    return [each if isinstance(each, RedriveError) else next(committed) for each in made]


def _judged(core: Core, queue: Queue, lease: Lease, end: Outcome, now: Instant) -> Call:
    match end:
        case Failed(failure, after):
            if after is None and (returned := uncounted_return(queue, lease, failure, now)):
                return returned
            verdict = None if after is None else _asked_retry(queue, lease, failure, after)
            verdict = verdict or core.judge_delivery(queue, OutcomeKind.FAILED, lease, failure=failure)
            return Settle(lease.token, OutcomeKind.FAILED, verdict, queue.version, failure)
        case Returned(note, delay):
            return Settle(lease.token, OutcomeKind.RETURNED, RetryVerdict(delay), queue.version, None, note)
        case Released(delay, note):
            verdict = core.judge_delivery(queue, OutcomeKind.RELEASED, lease, delay=delay)
            return Settle(lease.token, OutcomeKind.RELEASED, verdict, queue.version, None, note)
        case Buried(reason, note, failure, to):
            brought = core.route_verdict(queue, Dead(reason, to), failure)
            assert brought is not None
            outcome_kind = OutcomeKind.BURIED if reason is DeadReason.BURIED else OutcomeKind.FAILED
            return Settle(lease.token, outcome_kind, brought, queue.version, failure, note)
        case Lost(failure):
            verdict = core.judge_delivery(queue, OutcomeKind.LOST, lease, failure=failure)
            return Settle(lease.token, OutcomeKind.LOST, verdict, queue.version, failure, worker_is_gone=True)
    raise AssertionError(end)


def _asked_retry(queue: Queue, lease: Lease, failure: Failure, after: int) -> Verdict | None:
    """Return the retry that the handler requested; None if no attempt is left, or a dead item was leased."""
    if lease.dead_reason is not None or not has_attempts_left(queue.settings, lease.counters, lease.overrides):
        return None
    return held_verdict(queue, RetryVerdict(after, Status.FAILED), failure)


class WorkerSession:
    """The session of one worker: it settles outcomes and leases the next items. For one thread, except for `wake`."""

    def __init__(self, core: Core, worker: str | None) -> None:
        self._core = core
        self._worker = worker
        self._bell = threading.Event()
        self._tickets: dict[str, int] = {}
        self._later: dict[str, Instant | None] = {}
        self._woken: set[str] = set()

    @property
    def now(self) -> Instant:
        """The store's time, as this process knows it."""
        return self._core.clock.now()

    def step(self, ends: Sequence[tuple[Lease, Outcome]], wants: Mapping[str, int]) -> SettledAndLeased:
        """Settle and lease in one transaction."""
        notify = self._core.notify
        tickets = {queue: notify.sequence(queue) for queue in wants}
        exchanged = run(self._core, settle_and_lease(self._core, ends, wants, self._worker))
        for queue in wants:
            self._tickets[queue] = tickets[queue]
            self._later[queue] = exchanged.later.get(queue)
            if queue in self._woken:  # there may be more items than this one leased
                self._woken.discard(queue)
                notify.notify_next(queue)
        return exchanged

    def has_news(self, queue: str) -> bool:
        """Return whether something may have arrived in a queue since the last step, as far as this process knows."""
        return self._core.notify.sequence(queue) != self._tickets.get(queue, -1)

    def is_gated(self, queue: str) -> bool:
        """Return whether a gate of a queue is closed now, as far as this process knows."""
        return self._core.is_gated(queue)

    def wait(self, queues: Sequence[str], until: Instant) -> None:
        """Wait until something may be leasable in one of these queues, `wake` is called, or that instant has come.

        The queues must be some that gave fewer leases than requested in their last step.
        """
        notify = self._core.notify
        asked = {queue: (self._tickets.get(queue, -1), self._later.get(queue)) for queue in queues}
        watch = notify.watch(asked, until, self._bell.set)
        try:
            watch.begin()
            self._core.clock.wait(self._bell, until)
        finally:
            self._bell.clear()
            self._woken |= watch.end()

    def extend(self, leases: Sequence[Lease]) -> list[Instant | RedriveError]:
        """Extend these leases to the lease_timeout of their queues from now. Returns new deadlines, or refusals."""
        return self._core.committer.commit([Extend(lease.token) for lease in leases])

    def lease_by_id(self, id: ItemId) -> list[Lease]:
        """Lease one item, if it waits in its queue, due or not. Returns its lease, or nothing."""
        answers = run(self._core, commit_call(LeaseByIds((id,), self._worker)))
        return [each for each in answers if isinstance(each, Lease)]

    def leased_item(self, lease: Lease) -> Item:
        """Read an item of this worker, with its history. Raises LeaseLost."""
        item: Item = self._core.read(GetLeasedItem(lease.token))
        return item

    def list_leases(self) -> tuple[Lease, ...]:
        """Read the leases of this worker from the store: also those whose answer it never received."""
        leases: tuple[Lease, ...] = (
            () if self._worker is None else self._core.read(ListWorkerLeases(self._worker, MAX_WORKER_LEASES))
        )
        return leases

    def pause(self, duration: int) -> None:
        """Wait for that long, or until `wake` is called."""
        self._core.clock.wait(self._bell, Instant(self.now + duration))
        self._bell.clear()

    def wake(self) -> None:
        """End the wait: there are outcomes to submit, or the worker stops."""
        self._bell.set()

    def hand_over_waits(self) -> None:
        """Pass its wake-ups on to the next waiters, since it makes no more steps."""
        for queue in self._woken:
            self._core.notify.notify_next(queue)
        self._woken.clear()


def open_worker_session(broker: BrokerBase | AsyncBrokerBase, worker: str | None) -> WorkerSession:
    """Open a session of a broker for one worker."""
    return WorkerSession(broker.core, worker)

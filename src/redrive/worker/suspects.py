"""The suspects of a worker whose jobs share a process. They run apart from all other jobs, and together as far as safe.

A suspect waits until nothing else runs in the worker. If that takes long, the worker asks for the turn of the queue,
which one process has at a time: it starts nothing else until its suspects have run, and all others continue. If its
other jobs take long, it gives up the turn, leaves the suspects to others, and tries again later and for longer.

Suspects start together, so that innocent ones cost no more than a usual delivery. The more often one was lost, or
returned because it was not alone when its worker was lost, the fewer start with it, in the end none. An item that would
be dead after the next loss does not wait here, but in its queue, and is leased by its id when the worker holds nothing:
it does not die of what another item did.
"""

from __future__ import annotations

import contextlib

from redrive.broker.broker import Broker
from redrive.broker.flow import run
from redrive.broker.flows.registrations import SUSPECTS_KIND, register, unregister
from redrive.broker.worker_session import RETRYABLE_STORE_ERRORS, Outcome, Returned, WorkerSession
from redrive.clock import Instant
from redrive.contract.admin_calls import Registration
from redrive.errors import Forbidden, RedriveError
from redrive.model.duration import MILLISECOND, SECOND
from redrive.model.ids import ItemId
from redrive.model.item import HistoryEvent, Lease
from redrive.model.judge import Dead, OutcomeKind, count_outcome, judge
from redrive.model.limits import HISTORY_LAST
from redrive.model.queue import QueueSettings
from redrive.telemetry import events
from redrive.worker.runner import Job

GATHER_TIME = 500 * MILLISECOND
"""Time that suspects wait for others, and for a moment in which nothing else runs. Then the turn is asked for."""
TURN_TIMEOUT = 10 * SECOND
"""Time after which the turn of a worker that is gone ends. One that is alive renews it."""
ASIDE_TIME = 2 * SECOND
"""Time that one waits in its queue that has to be alone, unless a worker that holds nothing asks for it."""
MAX_ASIDE_TIME = 30 * SECOND
"""The same, at most, for those that a worker with long jobs leaves to others."""
DRAIN_TIME = 2 * SECOND
"""Time that a worker with the turn waits for its other jobs to end; doubled after each time in which they did not."""
MAX_DRAIN_TIME = 3600 * SECOND
REST_FACTOR = 3
"""Times DRAIN_TIME that it then works as if there were no suspects."""
LAST_SHARED_SUSPICION = 3
"""The suspicion up to which items run with others, in a worker with enough slots."""
AMBIGUOUS = "its worker was lost while it ran beside other suspects"
"""The note of a return, by which the history of an item has the crashes that are not charged to it."""
_log = events.logger("redrive.worker")


def suspicion_of(lease: Lease, session: WorkerSession) -> int:
    """Return the number of losses of an item, and of its returns as AMBIGUOUS since the first of them.

    Other returns, and all that was before a redrive, do not count. Only an item that has a loss, and had one of these,
    costs a read. Where the read is refused or the history is too short, all of them count: such an item runs alone.
    Raises RETRYABLE_STORE_ERRORS.
    """
    at_most = lease.losses + lease.deliveries - lease.attempts
    if not lease.is_suspect or at_most == lease.losses:
        return lease.losses
    try:
        history = session.leased_item(lease).history[-HISTORY_LAST:]
    except RETRYABLE_STORE_ERRORS:
        raise
    except RedriveError:  # as LeaseLost
        return at_most
    losses = returns = 0
    for entry in reversed(history):
        losses += entry.event is HistoryEvent.LOST
        returns += entry.event is HistoryEvent.RETURNED and entry.note == AMBIGUOUS
        if losses == lease.losses:
            return losses + returns
    return at_most


def most_together(suspicion: int, slots: int) -> int:
    """Return how many suspects may run in one process if this is one of them: an eighth of those of the time before."""
    if suspicion > LAST_SHARED_SUSPICION:
        return 1
    return max(1, slots >> 3 * (suspicion - 1))


def would_die_of_loss(settings: QueueSettings, lease: Lease) -> bool:
    """Return whether the item is dead if its worker is lost now."""
    counters = count_outcome(lease.counters, OutcomeKind.LOST)
    return isinstance(judge(settings, OutcomeKind.LOST, counters, overrides=lease.overrides), Dead)


class Turn:
    """The right of one worker at a time, for each queue, to start nothing but suspects while other jobs run."""

    def __init__(self, broker: Broker, worker: str) -> None:
        self._core = broker.core
        self._worker = worker
        self._queue = ""
        self._version = 0
        self._until = self._ask_at = Instant(0)
        self.is_held = False

    def take(self, queue: str) -> None:
        """Take the turn of a queue, unless another worker has it."""
        if self._core.clock.now() >= self._ask_at:
            self._queue, self._version = queue, 0
            self._register()

    def renew(self) -> None:
        """Keep the turn."""
        now = self._core.clock.now()
        if now >= self._until:  # this process was suspended for long, and another one may have it
            self._version = 0
        if now >= self._ask_at:
            self._register()

    def release(self) -> None:
        """Give the turn to other workers."""
        if self.is_held:
            self.is_held = False
            if self._core.clock.now() >= self._until:
                return
            try:
                run(self._core, unregister(SUSPECTS_KIND, self._queue))
            except RedriveError as error:  # then it expires
                _log.warning("suspects_turn_not_released", queue=self._queue, error=str(error))

    def _register(self) -> None:
        pause = GATHER_TIME
        try:
            call = register(
                SUSPECTS_KIND, self._queue, self._worker.encode(), timeout=TURN_TIMEOUT / SECOND, version=self._version
            )
            registered = run(self._core, call)
            self.is_held = isinstance(registered, Registration)
            if isinstance(registered, Registration):
                self._version, pause = registered.version, TURN_TIMEOUT // 3
                self._until = Instant(registered.at + TURN_TIMEOUT)
        except Forbidden:  # by an older server: without the turn, several workers may drain together
            self.is_held, pause = True, TURN_TIMEOUT // 3
        except RedriveError as error:
            _log.warning("suspects_turn_not_taken", queue=self._queue, error=str(error))
        self._ask_at = Instant(self._core.clock.now() + pause)


class Suspects:
    """The suspects that a worker has found: those that wait, and those that run. For one thread."""

    def __init__(self, slots: int, turn: Turn, session: WorkerSession) -> None:
        self._slots = max(1, slots)  # a runner of commands has none until those before it end, and no suspects
        self._session = session
        self._turn = turn
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self._aside: dict[ItemId, str] = {}
        """Those to lease again when the worker holds nothing, and their queues."""
        self._since = Instant(0)
        """Time at which the first of those that wait came."""
        self._drain_time = DRAIN_TIME
        self._drains_since = self._rest_from = Instant(0)
        self._rest = 0
        """Time after `_rest_from` in which suspects are left to other workers."""

    @property
    def keep_others_out(self) -> bool:
        """True if nothing else may be leased now."""
        return bool(self.running) or self._turn.is_held or len(self.waiting) >= self._slots

    @property
    def wait_for_others(self) -> bool:
        """True if some wait for a moment in which nothing else runs, which may be far."""
        return bool(self.waiting) and not self._turn.is_held

    def admit(self, job: Job, settings: QueueSettings, held: int, now: Instant) -> Outcome | None:
        """Let one wait here, behind those that are less suspect. If it has to be alone, return its outcome instead.

        held: number of leases of the worker, with this one.
        """
        if not self.waiting and not self._aside:
            self._since = now
        self.end(job)
        if self._rests(now) and held > 1:
            return self._leave()
        if would_die_of_loss(settings, job.lease) and held > 1:
            self._aside[job.lease.id] = job.lease.queue
            return Returned(delay=ASIDE_TIME)
        with contextlib.suppress(*RETRYABLE_STORE_ERRORS):  # then the most that it can be counts
            job.suspicion = suspicion_of(job.lease, self._session)
        self.waiting = sorted([*self.waiting, job], key=self._most_together, reverse=True)
        return None

    def take_back(self) -> list[Job]:
        """Remove and return those that wait."""
        waiting, self.waiting = self.waiting, []
        return waiting

    def choose(self, others: int, now: Instant) -> list[Job]:
        """Return those that start now. others: number of other jobs that run, or may start at any moment."""
        queues = [job.lease.queue for job in self.waiting] or list(self._aside.values())
        if not others:
            self._drain_time, self._rest = DRAIN_TIME, 0
        if not self._turn.is_held:
            gathers = self._since <= now < self._since + GATHER_TIME
            if queues and others and not gathers and not self._rests(now):
                self._turn.take(queues[0])
                self._drains_since = now
        elif not queues and not self.running:
            self._turn.release()
        elif others and not self._drains_since <= now < self._drains_since + self._drain_time:
            self._turn.release()
            self._rest_from, self._rest = now, REST_FACTOR * self._drain_time
            self._drain_time = min(2 * self._drain_time, MAX_DRAIN_TIME)
        else:
            self._turn.renew()
        started: list[Job] = []
        while self.waiting and not others:
            if len(self.running) >= min(map(self._most_together, (*self.running, self.waiting[0]))):
                break
            started.append(self.waiting.pop(0))
            self.running.append(started[-1])
        return started

    def leave_to_others(self, now: Instant) -> list[tuple[Job, Outcome]]:
        """Remove those that wait, if the worker has given up the turn, and return them with their outcomes."""
        return [(job, self._leave()) for job in self.take_back()] if self._rests(now) else []

    def next_alone(self) -> ItemId | None:
        """Remove and return the id of one that is to be leased now: the worker holds nothing."""
        for id in self._aside:
            del self._aside[id]
            return id
        return None

    def end(self, job: Job) -> None:
        """Record that a job does not run any more."""
        if job in self.running:
            self.running.remove(job)

    def close(self) -> list[Job]:
        """Start none any more, and return those that wait."""
        self._turn.release()
        self._aside.clear()
        return self.take_back()

    def _rests(self, now: Instant) -> bool:
        return self._rest_from <= now < self._rest_from + self._rest

    def _leave(self) -> Returned:
        return Returned(delay=min(self._drain_time, MAX_ASIDE_TIME))

    def _most_together(self, job: Job) -> int:
        return most_together(job.suspicion, self._slots)

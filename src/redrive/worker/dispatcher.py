"""The dispatcher: one thread that settles outcomes and leases the next items, in one transaction, in a loop.

It is the only one that calls the store about deliveries. Handlers append their outcome to a list and continue.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from redrive.broker.broker import Broker
from redrive.broker.worker_session import (
    RETRYABLE_STORE_ERRORS,
    Outcome,
    Returned,
    SettledAndLeased,
    open_worker_session,
)
from redrive.clock import Instant
from redrive.errors import OutcomeUnknown, RedriveError
from redrive.model.duration import MILLISECOND, SECOND
from redrive.model.ids import ItemId
from redrive.model.item import Lease, Settled
from redrive.model.worker_info import TASK_HEADER
from redrive.task.app import App
from redrive.telemetry import events
from redrive.worker.outcome_report import instead_of_refused
from redrive.worker.prefetch import PrefetchController
from redrive.worker.runner import Job, Runner
from redrive.worker.settings_cache import SettingsCache
from redrive.worker.suspects import Suspects, Turn

LOOK_EVERY = SECOND
"""Longest time between two polls of its queues by an idle worker."""
EMPTY_QUEUE_SECONDS = 0.05
"""Seconds after which a worker that is busy with other queues polls an empty one again."""
STALE_PREFETCH_SECONDS = 1.0
"""Seconds without an ended job after which prefetched items are returned: they will not start soon."""
RETRY_BACKOFF = 100 * MILLISECOND
"""Back-off after a failure of the store; doubled each time, up to 5 × LOOK_EVERY."""
_log = events.logger("redrive.worker")

Ended: TypeAlias = tuple[Job, Outcome, Settled | RedriveError]
"""A job, its outcome, and the answer of the store."""
OnSettled = Callable[[Sequence[Ended]], None]
"""A callback for all jobs that were settled in one transaction."""


class Dispatcher:
    """The loop that leases from some queues of a broker, and passes the jobs to a runner."""

    def __init__(
        self, app: App, broker: Broker, queues: Sequence[str], runner: Runner, worker: str, on_settled: OnSettled
    ) -> None:
        self._tasks = app.tasks
        self._queues = tuple(queues)
        self._runner = runner
        self._on_settled = on_settled
        self.session = open_worker_session(broker, worker)
        self._jobs: dict[str, Job] = {}
        self._ends: deque[tuple[Job, Outcome]] = deque()
        self._suspects = Suspects(runner.slots, Turn(broker, worker), self.session)
        self._latest: dict[ItemId, Job] = {}
        """The latest job of each item that is leased and not settled."""
        self._parked: list[tuple[Job, Job]] = []
        """Jobs that wait, each for the end of an earlier run of its item that has lost its lease."""
        self._empty: dict[str, float] = {}
        """Queues that had nothing more, or refused a lease, and the time of that answer."""
        self._found_empty: set[str] = set()
        """Queues that were polled and had nothing, since a job was last settled or leased."""
        self.refused: dict[str, RedriveError] = {}
        """Queues that do not exist, or that this worker may not lease from, and their last refusal."""
        self._gated: set[str] = set()
        """Queues whose gates are closed, as far as this process knows."""
        self._may_hold_unknown_leases = False
        """True if the store may have leased items to this worker without its knowing."""
        self._pace = PrefetchController()
        self._ended_at = time.monotonic()
        """Time at which a job last ended, or was leased when there was none."""
        self._waits = False
        self._next = 0
        self._pause = RETRY_BACKOFF
        self._stopping = False
        self.settings = SettingsCache(broker, self._queues)
        runner.start(self.on_outcome)

    def jobs(self) -> Collection[Job]:
        """Return the jobs that are leased and not settled, started or not. From any thread."""
        return tuple(self._jobs.copy().values())

    def on_outcome(self, job: Job, end: Outcome) -> None:
        """Record the outcome of a job, and wake the dispatcher. Called by the runner, from any thread."""
        job.has_ended = True
        self._ends.append((job, end))
        if self._waits:
            self.session.wake()

    def stop(self) -> None:
        """Lease nothing more. From any thread, or a signal handler."""
        self._stopping = True
        self.session.wake()

    def ring(self) -> None:
        """Wake the dispatcher to poll its queues."""
        self.session.wake()

    def run(self, *, until_idle: bool = False) -> None:
        """Work until `stop`; with `until_idle`, until nothing is leasable and all jobs are settled."""
        while not self._stopping:
            if self.step() or self._has_not_asked_all():
                continue
            if not until_idle or self._jobs or self._ends:
                self._wait()
            elif len(self._found_empty) == len(self._queues):
                return
            else:  # queues that were empty may have items since
                self._empty.clear()

    def finish(self, until: Instant) -> bool:
        """Return unstarted jobs to their queues, settle the rest as it ends. True if nothing is left. After `stop`."""
        for job in (*self._runner.cancel_queued(), *self._suspects.close(), *(job for job, _ in self._parked)):
            self._ends.append((job, Returned()))
        self._parked.clear()
        self._return_unknown()
        while (self._jobs or self._may_hold_unknown_leases) and self.session.now < until:
            self._return_unknown()
            if not self._settle_outcomes({}):
                self._wait_for_ends(until)
        self._settle_outcomes({})
        return not self._jobs and not self._may_hold_unknown_leases

    def return_running(self, note: str) -> bool:
        """Return running jobs to their queues, uncounted. False if the store did not accept that. After `finish`."""
        for job in self.jobs():
            self._ends.append((job, Returned(note)))
        self._settle_outcomes({})
        self.session.hand_over_waits()
        return not self._jobs and not self._may_hold_unknown_leases

    def step(self) -> bool:
        """Settle outcomes and lease items in one call, if there is anything to do. Returns whether it did."""
        if self._may_hold_unknown_leases:
            self._begin(self._look_for_unknown())
        self._return_stale_prefetch()
        self._return_gated()
        self._submit_parked()
        self._submit_suspects()
        return self._settle_outcomes(self._wants())

    def _wants(self) -> Mapping[str, int]:
        """Return how many items to lease from each queue: the free room, shared by those that may have items."""
        if self._suspects.keep_others_out:
            return {}
        latest = time.monotonic() - EMPTY_QUEUE_SECONDS
        open_queues = [
            queue for queue in self._queues if self._empty.get(queue, latest) <= latest or self.session.has_news(queue)
        ]
        if not open_queues:
            return {}
        room = self._room()
        if room <= 0:
            return {}
        self._next += 1
        first = self._next % len(open_queues)
        turn = open_queues[first:] + open_queues[:first]
        if room < len(turn):  # first those that were not polled yet
            turn.sort(key=self._empty.__contains__)
        share, rest = divmod(room, len(turn))
        wants = {queue: share + (place < rest) for place, queue in enumerate(turn)}
        free = max(0, self._runner.slots - self._count_given())
        wants = {
            queue: limit if self.settings.may_prefetch(queue) else min(limit, free) for queue, limit in wants.items()
        }
        return {queue: min(limit, 1000) for queue, limit in wants.items() if limit}

    def _room(self) -> int:
        """Return how many more jobs it may have."""
        if self._suspects.keep_others_out:
            return 0
        free = self._runner.slots - self._count_given()
        return free if self._is_stale() else free + self._pace.prefetch_count(self.settings.shortest_lease)

    def _count_given(self) -> int:
        """Return how many jobs the runner has, or may get at any moment."""
        return len(self._jobs) - len(self._ends) - len(self._parked) - len(self._suspects.waiting)

    def _has_not_asked_all(self) -> bool:
        """Return whether a queue is not polled yet: there was not enough room to poll all of them together."""
        return any(queue not in self._empty for queue in self._queues) and self._room() > 0

    def _settle_outcomes(self, wants: Mapping[str, int]) -> bool:
        ends = [self._ends.popleft() for _ in range(len(self._ends))]  # others append to it
        if not ends and not wants:
            return False
        try:
            stepped = self.session.step([(job.lease, end) for job, end in ends], wants)
        except OutcomeUnknown as unknown:
            self._outcome_unknown(ends, unknown)
            return True
        except RETRYABLE_STORE_ERRORS as problem:
            self._ends.extendleft(reversed(ends))
            self._trouble(problem)
            return True
        self._settle(ends, stepped)
        self._take(stepped, wants)
        trouble = [
            each for each in (*stepped.settled, *stepped.refused.values()) if isinstance(each, RETRYABLE_STORE_ERRORS)
        ]
        if trouble:
            self._trouble(trouble[0])
            return True
        if self._pause != RETRY_BACKOFF:
            _log.info("store_available")
        self._pause = RETRY_BACKOFF
        if ends or stepped.leases:
            self._found_empty.clear()
            return True
        self._found_empty.update(wants)
        return False

    def _settle(self, ends: Sequence[tuple[Job, Outcome]], stepped: SettledAndLeased) -> None:
        if ran := sum(job.has_ended for job, _ in ends):
            self._ended_at = time.monotonic()
        self._pace.ended(ran)
        again: list[tuple[Job, Outcome]] = []
        ended: list[Ended] = []
        for (job, end), settled in zip(ends, stepped.settled, strict=True):
            if isinstance(settled, RETRYABLE_STORE_ERRORS):
                job.outcome_unknown |= isinstance(settled, OutcomeUnknown)
                again.append((job, end))
                continue
            if not isinstance(end, Returned) and (instead := instead_of_refused(end, settled)) is not None:
                again.append((job, instead))
                continue
            self._jobs.pop(job.lease.token, None)
            if self._latest.get(job.lease.id) is job:
                del self._latest[job.lease.id]
            self._suspects.end(job)
            ended.append((job, end, settled))
        self._ends.extendleft(reversed(again))
        self._on_settled(ended)

    def _take(self, stepped: SettledAndLeased, wants: Mapping[str, int]) -> None:
        now = time.monotonic()
        for queue in wants:
            self._empty.pop(queue, None)
            self.refused.pop(queue, None)
        self._empty.update(dict.fromkeys((*stepped.later, *stepped.refused), now))
        for queue, refusal in stepped.refused.items():
            _log.warning("queue_refused", queue=queue, error=str(refusal))
            self._may_hold_unknown_leases |= isinstance(refusal, OutcomeUnknown)
            if not isinstance(refusal, RETRYABLE_STORE_ERRORS):
                self.refused[queue] = refusal
        self._begin(stepped.leases)

    def _begin(self, leases: Sequence[Lease]) -> None:
        if not self._jobs:
            self._ended_at = time.monotonic()
        jobs = [self._job(lease) for lease in leases]
        for job in jobs:
            self._jobs[job.lease.token] = job
        self._submit([job for job in jobs if not self._park(job)])

    def _submit(self, jobs: Sequence[Job]) -> None:
        if self._runner.isolated:
            self._runner.submit(jobs)
            return
        ordinary = [job for job in jobs if not job.is_suspect]
        for job in (job for job in jobs if job.is_suspect):
            settings = self.settings.settings_of(job.lease.queue)
            if (end := self._suspects.admit(job, settings, len(self._jobs), self.session.now)) is not None:
                self._ends.append((job, end))
        if self._suspects.running:  # these were found or parked, and nothing may run beside suspects
            self._ends.extend((job, Returned()) for job in ordinary)
        elif ordinary:
            self._runner.submit(ordinary)

    def _park(self, job: Job) -> bool:
        """Keep a job back if an earlier run of its item, which has lost its lease, is active. Return whether so."""
        before, self._latest[job.lease.id] = self._latest.get(job.lease.id), job
        if before is None or not self._is_going_on(before):
            return False
        if not before.lease_lost:
            before.lease_lost = True
            self._runner.revoke(before)
        self._parked.append((job, before))
        return True

    def _submit_parked(self) -> None:
        """Submit the jobs whose earlier run has ended."""
        if self._parked:
            # Checked once per job: a run can end at any moment, and each job goes into exactly one of the two lists.
            asked = [(job, before, self._is_going_on(before)) for job, before in self._parked]
            self._submit([job for job, _, goes_on in asked if not goes_on])
            self._parked = [(job, before) for job, before, goes_on in asked if goes_on]

    def _is_going_on(self, job: Job) -> bool:
        return not job.has_ended and job.lease.token in self._jobs

    def _return_stale_prefetch(self) -> None:
        """Return jobs that wait if none has ended for a while: other workers may have room for them."""
        if not self._is_stale():
            return
        given, suspects = self._count_given(), self._suspects
        lying = self._runner.cancel_queued() if given > self._runner.slots else []
        if suspects.running or (given >= self._runner.slots and suspects.wait_for_others):
            lying += suspects.take_back()
        self._ends.extend((job, Returned()) for job in lying)

    def _is_stale(self) -> bool:
        """Return whether no job has ended for a while: prefetched items are returned, and none are prefetched."""
        return time.monotonic() - self._ended_at >= STALE_PREFETCH_SECONDS

    def _return_gated(self) -> None:
        """Return prefetched items of a queue whose gate has closed: they would only fail."""
        closed = {queue for queue in self._queues if self.session.is_gated(queue)}
        if closed - self._gated:
            lying = self._runner.cancel_queued()
            self._ends.extend((job, Returned()) for job in lying if job.lease.queue in closed)
            self._submit([job for job in lying if job.lease.queue not in closed])
        self._gated = closed

    def _submit_suspects(self) -> None:
        """Start suspects if nothing else runs. Until they have ended, nothing else starts."""
        while not self._jobs and (alone := self._suspects.next_alone()) is not None:
            self._begin(self._lease_alone(alone))
        others = self._count_given() - sum(not job.has_ended for job in self._suspects.running)
        if started := self._suspects.choose(others, self.session.now):
            self._runner.submit(started)
        self._ends.extend(self._suspects.leave_to_others(self.session.now))

    def _lease_alone(self, id: ItemId) -> Sequence[Lease]:
        try:
            return self.session.lease_by_id(id)
        except RETRYABLE_STORE_ERRORS as problem:
            self._may_hold_unknown_leases = True
            self._trouble(problem)
        except RedriveError as refusal:  # as ItemNotFound: it is in a queue that this worker may not lease from
            _log.info("suspect_not_leased", item=id, error=str(refusal))
        return ()

    def _job(self, lease: Lease) -> Job:
        name = lease.headers.get(TASK_HEADER)
        task = None if name is None else self._tasks.get(name)
        return Job(lease, task, self.settings.handling_of(lease.queue))

    def _wait(self) -> None:
        """Wait until a job ends, or until there may be an item to lease and room for it; at most LOOK_EVERY."""
        self._waits = True
        try:
            if self._ends or self._stopping:
                return
            queues = [queue for queue in self._queues if queue in self._empty] if self._room() > 0 else []
            self.session.wait(queues, Instant(self.session.now + LOOK_EVERY))
        finally:
            self._waits = False
            self._empty.clear()

    def _wait_for_ends(self, until: Instant) -> None:
        self._waits = True
        try:
            if not self._ends:
                self.session.wait((), min(until, Instant(self.session.now + LOOK_EVERY)))
        finally:
            self._waits = False

    def _outcome_unknown(self, ends: Sequence[tuple[Job, Outcome]], unknown: OutcomeUnknown) -> None:
        """Settle again after the connection broke in the commit. A settled fencing token is refused the second time."""
        if ends:
            _log.warning("outcome_unknown", outcomes=len(ends), error=str(unknown))
        for job, end in reversed(ends):
            job.outcome_unknown = True
            self._ends.appendleft((job, end))
        self._may_hold_unknown_leases = True
        self._trouble(unknown)

    def _look_for_unknown(self) -> Sequence[Lease]:
        """Return the items that were leased to this worker while the connection broke."""
        if not self._may_hold_unknown_leases:
            return ()
        try:
            held = self.session.list_leases()
        except RETRYABLE_STORE_ERRORS as problem:
            self._trouble(problem)
            return ()
        self._may_hold_unknown_leases = False
        return [lease for lease in held if lease.token not in self._jobs]

    def _return_unknown(self) -> None:
        """Return to their queues the items that were leased while the connection broke, because the worker stops."""
        for lease in self._look_for_unknown():
            job = self._jobs[lease.token] = self._job(lease)
            self._ends.append((job, Returned()))

    def _trouble(self, problem: RedriveError) -> None:
        _log.warning("store_unavailable", error=str(problem))
        self.session.pause(self._pause)
        self._pause = min(self._pause * 2, 5 * LOOK_EVERY)

"""The lease extender: it extends leases, and ends jobs whose lease is lost or whose time limit has expired.

It has a separate thread, which waits for no handler, and not for the dispatcher.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Sequence

import msgspec

from redrive.broker.background_thread import BackgroundThread
from redrive.broker.worker_session import WorkerSession
from redrive.clock import Instant
from redrive.errors import Closed, LeaseLost, NotFound, RedriveError
from redrive.model.duration import SECOND
from redrive.model.failure import Failure, failure_from_exception
from redrive.telemetry import events, tracing
from redrive.worker.execution import TimeLimitExceeded
from redrive.worker.runner import Job, Runner

POLL_SECONDS = 0.5
"""Seconds between two checks, at most."""
CHECKS_PER_LEASE = 4
"""Checks in the time of the shortest lease, at least."""
SHORTEST_PAUSE_SECONDS = 0.01
EXTEND_WHEN_REMAINING = 0.5
"""A lease is extended when less than this share of its time is left."""
CONFIRM_SECONDS = 2.0
"""Seconds without confirmation by the store after which a lease is extended early, to notice that it is lost."""
CONFIRMED_PER_SECOND = 100
"""Leases confirmed per second at most: a worker with more than this times CONFIRM_SECONDS confirms each less often."""
_log = events.logger("redrive.worker")


class LeaseExtender(BackgroundThread):
    """The thread that keeps the leases of jobs, started or not. Before `close`, the jobs must have been settled."""

    def __init__(
        self,
        session: WorkerSession,
        runner: Runner,
        in_hand: Callable[[], Collection[Job]],
        shortest_lease: Callable[[], int],
    ) -> None:
        super().__init__("keeper")
        self._exchange = session
        self._runner = runner
        self._in_hand = in_hand
        self._shortest_lease = shortest_lease

    def step(self) -> None:
        """Check all jobs once: interrupt those over their time limit, and extend the leases that are due."""
        jobs = tuple(self._in_hand())
        self._stop_late(jobs)
        now, confirmed_after = self._exchange.now, time.monotonic() - _confirmation_seconds(len(jobs))
        due = [job for job in jobs if not job.lease_lost and (_is_due(job, now) or _is_old(job, confirmed_after))]
        if due:
            self._extend(due)

    def _run(self) -> None:
        while not self._end.wait(self._pause()):
            try:
                self.step()
            except Closed:
                return
            except RedriveError as error:
                _log.warning("leases_not_extended", error=str(error))
            except Exception:
                _log.exception("lease_extender_failed")

    def _pause(self) -> float:
        often = self._shortest_lease() / SECOND / CHECKS_PER_LEASE
        return max(SHORTEST_PAUSE_SECONDS, min(POLL_SECONDS, often))

    def _stop_late(self, jobs: Collection[Job]) -> None:
        now = time.monotonic()
        for job in jobs:
            began_at, limit = job.began_at, job.time_limit
            if began_at is not None and limit is not None and (now - began_at) * SECOND >= limit:
                self._runner.interrupt(job, _too_long(job, now - began_at))

    def _extend(self, jobs: Sequence[Job]) -> None:
        asked_at = time.monotonic()
        answers = self._exchange.extend([job.lease for job in jobs])
        for job, answer in zip(jobs, answers, strict=True):
            if isinstance(answer, LeaseLost | NotFound):
                job.lease_lost = True
                if job.has_ended:  # it was settled concurrently
                    continue
                begun = job.began_at is not None
                _log.warning("lease_lost", item=job.lease.id, queue=job.lease.queue, started=begun, error=str(answer))
                self._runner.revoke(job)
            elif not isinstance(answer, RedriveError):
                job.deadline, job.confirmed_at = answer, asked_at


def _is_due(job: Job, now: Instant) -> bool:
    whole = job.lease.deadline - job.lease.leased_at
    return job.deadline - now < whole * EXTEND_WHEN_REMAINING


def _is_old(job: Job, confirmed_after: float) -> bool:
    return job.confirmed_at < confirmed_after and not job.has_ended


def _confirmation_seconds(jobs: int) -> float:
    return max(CONFIRM_SECONDS, jobs / CONFIRMED_PER_SECOND)


def _too_long(job: Job, seconds: float) -> Failure:
    """Return the failure of a job over its time limit, as its handler would have raised it."""
    failure = failure_from_exception(
        TimeLimitExceeded(job.time_limit),
        worker=job.lease.worker,
        rules=job.handling.rules,
        final_types=() if job.task is None else job.task.final_errors,
        host=socket.gethostname(),
        trace_id=tracing.trace_id(job.lease.headers),
    )
    return msgspec.structs.replace(failure, duration=int(seconds * SECOND))

"""The interface of runners. The dispatcher submits jobs and receives outcomes; a runner decides how the jobs run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from redrive.broker.worker_session import Outcome
from redrive.model.failure import Failure
from redrive.model.item import Lease
from redrive.task.task import Task
from redrive.worker.execution import HandlerSettings


class Job:
    """One delivery in this worker: leased, then started, then ended."""

    __slots__ = (
        "began_at",
        "confirmed_at",
        "deadline",
        "duration",
        "false_starts",
        "handling",
        "has_ended",
        "lease",
        "lease_lost",
        "outcome_unknown",
        "slot",
        "suspicion",
        "task",
        "time_limit",
    )

    def __init__(self, lease: Lease, task: Task[..., Any] | None, handling: HandlerSettings) -> None:
        self.lease = lease
        self.suspicion = lease.losses and lease.losses + lease.deliveries - lease.attempts
        """How suspect it is at most, until `suspects.suspicion_of` is known."""
        self.task = task
        """None if this program has no task of the name in the item."""
        self.handling = handling
        self.time_limit: int | None = None if task is None else task.time_limit
        self.deadline = lease.deadline
        """End of the lease; the lease extender moves it."""
        self.began_at: float | None = None
        """Start of the run, by the clock of `time.monotonic`."""
        self.confirmed_at = time.monotonic()
        """Time at which the store last confirmed the lease, by the same clock."""
        self.duration = 0.0
        """Seconds that it ran."""
        self.has_ended = False
        """True if its handler has ended; the store may not know that yet."""
        self.false_starts = 0
        """Processes that took it and died before they started it."""
        self.slot = -1
        self.lease_lost = False
        """True if another worker may have the item: the outcome of this one will be refused."""
        self.outcome_unknown = False
        """True if its outcome was submitted once, and may have been accepted: then it is refused the second time."""

    @property
    def is_suspect(self) -> bool:
        """True if a worker was lost with its item before: it runs apart, so that it affects no other job."""
        return self.lease.is_suspect


Ended = Callable[[Job, Outcome], None]
"""A callback for the outcome of a job, from any thread; exactly once for each job submitted and not cancelled."""


class Runner(Protocol):
    """A runner of jobs, up to `slots` concurrently."""

    @property
    def slots(self) -> int:
        """Number of jobs that can run concurrently."""
        ...

    isolated: bool
    """True if a job that ends its process affects no other job."""

    def start(self, ended: Ended) -> None:
        """Prepare to run jobs. `ended` must not be called before, and not after `close` has returned."""
        ...

    def submit(self, jobs: Sequence[Job]) -> None:
        """Run these, in order, as soon as there is room."""
        ...

    def running(self) -> Collection[Job]:
        """Return the jobs that run now."""
        ...

    def cancel_queued(self) -> list[Job]:
        """Remove and return the jobs that have not started."""
        ...

    def interrupt(self, job: Job, failure: Failure) -> None:
        """End a job that has run for too long, as soon as this kind of runner can."""
        ...

    def revoke(self, job: Job) -> None:
        """End a job whose lease is lost, as soon as this kind of runner can. Its outcome does not matter."""
        ...

    def close(self, jobs_too: bool) -> list[Job]:
        """Stop, and return the jobs that end without an outcome: those that were killed, or cannot be stopped.

        With `jobs_too`, running jobs are not waited for.
        """
        ...

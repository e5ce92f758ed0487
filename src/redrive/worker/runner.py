"""What runs handlers. The dispatcher hands it jobs and hears how they ended; how they run is the runner's business."""

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
    """One delivery in this worker: leased, then begun, then ended."""

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
        "task",
        "time_limit",
    )

    def __init__(self, lease: Lease, task: Task[..., Any] | None, handling: HandlerSettings) -> None:
        self.lease = lease
        self.task = task
        """None where no task has the name that the item asks for."""
        self.handling = handling
        self.time_limit: int | None = None if task is None else task.time_limit
        self.deadline = lease.deadline
        """Until when the lease holds; the keeper moves it."""
        self.began_at: float | None = None
        """By the clock of `time.monotonic`."""
        self.confirmed_at = time.monotonic()
        """When the store last said that the lease holds, by the same clock."""
        self.duration = 0.0
        """Seconds that it ran."""
        self.has_ended = False
        """Its handler has ended; the store need not have heard of that yet."""
        self.false_starts = 0
        """Processes that took it and died before they started it."""
        self.slot = -1
        self.lease_lost = False
        """Somebody else may have the item: what this worker says of it will be refused."""
        self.outcome_unknown = False
        """Its end was handed in once, and may have been accepted: then it is refused the second time."""

    @property
    def is_suspect(self) -> bool:
        """Whether a worker was lost with it before: it runs alone, so that it takes nobody else with it."""
        return self.lease.losses > 0


Ended = Callable[[Job, Outcome], None]
"""Told how a job ended, from any thread; exactly once for each job that was submitted and not taken back."""


class Runner(Protocol):
    """Runs jobs, so many at once."""

    @property
    def slots(self) -> int:
        """How many can run at once."""
        ...

    isolated: bool
    """Whether a job that takes its process with it takes no other job along."""

    def start(self, ended: Ended) -> None:
        """Be ready to run. `ended` must not be called before, and not after `close` has returned."""
        ...

    def submit(self, jobs: Sequence[Job]) -> None:
        """Run these, in order, as soon as there is room."""
        ...

    def running(self) -> Collection[Job]:
        """Jobs that run at this moment."""
        ...

    def cancel_queued(self) -> list[Job]:
        """Jobs that have not begun, and now never will."""
        ...

    def interrupt(self, job: Job, failure: Failure) -> None:
        """It has run for too long: end it, as soon as this kind of runner can."""
        ...

    def revoke(self, job: Job) -> None:
        """Its lease is lost: end it, as soon as this kind of runner can. How it ends then is of no matter."""
        ...

    def close(self, jobs_too: bool) -> list[Job]:
        """Stop. Nothing runs any more, unless jobs are running that cannot be stopped: those are given back.

        With `jobs_too`, what is running is not waited for.
        """
        ...

"""A slot for one child at a time: the jobs that it was given, what it has started, and how it ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from itertools import takewhile

import msgspec

from redrive.broker.worker_session import Failed, Lost
from redrive.model.failure import Failure
from redrive.model.ids import Token
from redrive.telemetry import events, tracing
from redrive.worker.child_queue import ChildQueue
from redrive.worker.in_flight import InFlightLog
from redrive.worker.ipc import Channel, Delivery, FromChild, Stop
from redrive.worker.process_exit import Exit, loss
from redrive.worker.runner import Job
from redrive.worker.zygote_process import ZygoteProcess

IDLE_DEATH_PAUSES = (0.0, 0.05, 0.2, 1.0)
"""Seconds before a child that died idle is replaced, by the number of such deaths in a row."""
MOST_FALSE_STARTS = 3
"""Number of children that may die with an item before they start it. Then it is charged: it may be too large."""
SILENCE_SECONDS = 1.0
"""Seconds without a report after which a child that has started none of its jobs is replaced."""
LARGE_SILENCE_SECONDS = 30.0
"""The same for a job that was sent through its channel, which takes long to read if it is large."""
STOPPED = "the worker was stopped"
"""Reason for killing a child whose job is returned, and not charged."""
REVOKED = "its lease was lost"
"""Reason for killing a child whose item has lost its lease."""
SILENT = "it did not receive what it was given"
"""Reason for killing a child whose jobs are given to another one."""
_log = events.logger("redrive.worker")


class Slot:
    """A slot for one child at a time."""

    def __init__(self, number: int, in_flight_log: InFlightLog) -> None:
        self.number = number
        self._in_flight_log = in_flight_log
        self.zygote: ZygoteProcess | None = None
        """The zygote that forked its child."""
        self.fork = 0
        """The number of that fork; 0: none."""
        self.pid = 0
        """0 until the zygote has reported the fork."""
        self.channel: Channel[FromChild] | None = None
        self.queue: ChildQueue | None = None
        self.jobs: dict[Token, Job] = {}
        """Jobs that the child was given and has not reported, oldest first. It runs the first, or is about to."""
        self._is_alone = False
        """True if the last job went through the channel: the child would take one from the queue first."""
        self._given_at = 0.0
        """Time of the last job given."""
        self._is_reclaimed = True
        """True if nothing was queued for the child since its queue was last emptied."""
        self.heard_at = 0.0
        """Time of the last report, or of the first job given to an idle child."""
        self.because: str | Failure | None = None
        """Reason for which the child was killed; the failure of its job if that ran for too long."""
        self.left = 0
        """Items that it may be given before it is replaced."""
        self.told_to_stop = False
        self.is_dead = False
        """True if the zygote has reported its exit; the channel may still have reports."""
        self.start_at = 0.0
        """Earliest time for another child."""
        self.idle_deaths = 0
        """Deaths of idle children since a job last ended."""

    def attach(
        self, zygote: ZygoteProcess, fork: int, channel: Channel[FromChild], queue: ChildQueue, most_items: int
    ) -> None:
        """Assign a child that is being forked."""
        self.zygote, self.fork, self.channel, self.queue, self.left = zygote, fork, channel, queue, most_items
        self.because, self.told_to_stop, self.is_dead = None, False, False

    @property
    def takes_more(self) -> bool:
        """True if the child may be given a job, as far as is known."""
        return self.pid > 0 and self.left > 0 and not (self.because or self.told_to_stop or self.is_dead)

    def has_room(self, depth: int) -> bool:
        """Return whether the child has fewer jobs than `depth`, and none that came through its channel."""
        return len(self.jobs) < depth and not (self.jobs and self._is_alone)

    @property
    def may_reclaim(self) -> bool:
        """True if there may be jobs that the child has not taken, behind the one that it runs."""
        return len(self.jobs) > 1 and not self._is_reclaimed

    def may_have_missed(self, now: float) -> bool:
        """Return whether the child has been silent for long, and has not started all that it was given."""
        seconds = LARGE_SILENCE_SECONDS if self._is_alone else SILENCE_SECONDS
        if not self.jobs or now < max(self.heard_at, self._given_at) + seconds:
            return False
        return len(self.jobs) > 1 or self._in_flight_log.token_in(self.number) not in self.jobs

    def give(self, job: Job) -> bool:
        """Give a job to the child, and return whether there was room for it."""
        assert self.channel is not None
        assert self.queue is not None
        delivery = Delivery(job.lease, job.handling)
        is_queued = self.queue.put(delivery)
        if not is_queued:
            if self.jobs:
                return False
            try:
                self.channel.send(delivery)
            except OSError:  # the child is gone, and the worker will notice
                return False
        self._is_alone = not is_queued
        job.slot = self.number
        self._given_at = time.monotonic()
        if not self.jobs:
            job.began_at = self.heard_at = self._given_at
        self._is_reclaimed = False
        self.jobs[job.lease.token] = job
        self.left = 0 if job.is_suspect else self.left - 1
        return True

    def reclaim(self) -> list[Job]:
        """Reclaim and return the jobs that the child has not taken."""
        if self.queue is None or not self.jobs:
            return []
        self._is_reclaimed = True
        return self._take_back(self.queue.reclaim())

    def take_older(self, token: Token) -> list[Job]:
        """Remove and return jobs older than one that has ended: the child works in order, and has not received them."""
        if token == next(iter(self.jobs)):
            return []
        return self.take_missed(list(takewhile(token.__ne__, self.jobs)))

    def take_missed(self, tokens: Sequence[Token]) -> list[Job]:
        """Remove and return jobs that the child has not received, though its queue is empty: a handler has read it."""
        _log.warning("items_not_received", pid=self.pid, items=len(tokens))
        return self._take_back(tokens)

    def _take_back(self, tokens: Sequence[Token]) -> list[Job]:
        jobs = [self.jobs.pop(token) for token in tokens if token in self.jobs]
        for job in jobs:
            job.began_at = None
        self.left += len(jobs)
        if not self.jobs:
            self._in_flight_log.clear(self.number)
        return jobs

    def tell_to_stop(self) -> None:
        """Ask the child to end after what it runs."""
        assert self.channel is not None
        self.told_to_stop = True
        with contextlib.suppress(OSError):
            self.channel.send(Stop())

    def take_started(self) -> Job | None:
        """Remove and return what the child had started when it died."""
        if self.channel is None or not self.jobs or self.because is SILENT:
            return None
        oldest, started = next(iter(self.jobs.values())), self._in_flight_log.running_in(self.number)
        if started is not None and started.token in self.jobs:
            # After an invalid frame its reports are unknown: the oldest job is the one that wrote it.
            return self.jobs.pop(oldest.lease.token if self.channel.is_garbled else started.token)
        oldest.false_starts += 1
        return self.jobs.pop(oldest.lease.token) if oldest.false_starts >= MOST_FALSE_STARTS else None

    def pause_after_idle_death(self) -> float:
        """Count the death of an idle child, and return the seconds before its replacement."""
        pause = IDLE_DEATH_PAUSES[min(self.idle_deaths, len(IDLE_DEATH_PAUSES) - 1)]
        self.idle_deaths += 1
        return pause


class ExitingChild(msgspec.Struct, eq=False):
    """A job whose child has died, until the exit of the child is known."""

    job: Job
    pid: int
    because: str | Failure | None
    since: float
    suspected: bool = False
    """True if it was killed to make sure that it ends."""

    def end(self, exit: Exit | None) -> Lost | Failed:
        """Return the outcome of the job: lost, with what is known of the exit; failed if it ran for too long."""
        job = self.job
        if isinstance(self.because, Failure):
            memory = None if exit is None else exit.peak_memory
            return Failed(msgspec.structs.replace(self.because, peak_memory=memory))
        return Lost(
            loss(
                exit,
                seconds=job.duration,
                task=None if job.task is None else job.task.name,
                worker=job.lease.worker,
                because=self.because,
                trace_id=tracing.trace_id(job.lease.headers),
            )
        )

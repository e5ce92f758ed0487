"""The place of one child after another: what it was given, what it has started, and how it ended."""

from __future__ import annotations

import time

import msgspec

from redrive.broker.worker_session import Lost
from redrive.model.ids import Token
from redrive.telemetry import tracing
from redrive.worker.child_queue import ChildQueue
from redrive.worker.in_flight import InFlightLog
from redrive.worker.ipc import Channel, Delivery, FromChild
from redrive.worker.process_exit import Exit, loss
from redrive.worker.runner import Job
from redrive.worker.zygote_process import ZygoteProcess

IDLE_DEATH_PAUSES = (0.0, 0.05, 0.2, 1.0)
"""How long before a child is replaced that did nothing before it died, by how often that happened in a row."""
MOST_FALSE_STARTS = 3
"""So many children may die with an item that they took and did not start. Then it is charged: it may be too large."""
STOPPED = "the worker was stopped"
"""Why a child was killed whose job is given back, and not charged."""
REVOKED = "its lease was lost"
"""Why a child was killed whose item was taken away."""


class Slot:
    """The place of one child after another."""

    def __init__(self, number: int, in_flight_log: InFlightLog) -> None:
        self.number = number
        self._in_flight_log = in_flight_log
        self.zygote: ZygoteProcess | None = None
        """Where its child is from."""
        self.fork = 0
        """Which fork of that one it is; 0: none."""
        self.pid = 0
        """0 while the fork is not heard of."""
        self.channel: Channel[FromChild] | None = None
        self.queue: ChildQueue | None = None
        self.jobs: dict[Token, Job] = {}
        """What the child was given, oldest first, and has not reported. It runs the first, or is about to."""
        self._is_alone = False
        """What it was given last went through its channel: what came behind it in the queue would be first."""
        self.heard_at = 0.0
        """When it last reported, or was given something after it had nothing."""
        self.because: str | None = None
        """Why the child was killed."""
        self.left = 0
        """Items that it may be given before it is replaced."""
        self.told_to_stop = False
        self.is_dead = False
        """The zygote said so, while the channel may still have its last word."""
        self.start_at = 0.0
        """When it may have another child."""
        self.idle_deaths = 0
        """Children in a row that died without having ended anything."""

    def attach(
        self, zygote: ZygoteProcess, fork: int, channel: Channel[FromChild], queue: ChildQueue, most_items: int
    ) -> None:
        """A child is coming."""
        self.zygote, self.fork, self.channel, self.queue, self.left = zygote, fork, channel, queue, most_items
        self.because, self.told_to_stop, self.is_dead = None, False, False

    @property
    def takes_more(self) -> bool:
        """Whether the child may be given something, as far as is known."""
        return self.pid > 0 and self.left > 0 and not (self.because or self.told_to_stop or self.is_dead)

    def has_room(self, depth: int) -> bool:
        """Whether the child has fewer items than this, and none that came through its channel."""
        return len(self.jobs) < depth and not (self.jobs and self._is_alone)

    def give(self, job: Job) -> bool:
        """Whether the child has room for it, as far as is known."""
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
        if not self.jobs:
            job.began_at = self.heard_at = time.monotonic()
        self.jobs[job.lease.token] = job
        self.left = 0 if job.is_suspect else self.left - 1
        return True

    def reclaim(self) -> list[Job]:
        """Take from the child what it has not taken."""
        if self.queue is None or not self.jobs:
            return []
        taken = [self.jobs.pop(token) for token in self.queue.reclaim()]
        for job in taken:
            job.began_at = None
        self.left += len(taken)
        if not self.jobs:
            self._in_flight_log.clear(self.number)
        return taken

    def take_started(self) -> Job | None:
        """Remove and return what the child had started when it died."""
        if self.channel is None or not self.jobs:
            return None
        oldest, started = next(iter(self.jobs.values())), self._in_flight_log.running_in(self.number)
        if started is not None and started.token in self.jobs:
            # Where it wrote what is no frame, its reports after that are unknown, and the oldest one did it.
            return self.jobs.pop(oldest.lease.token if self.channel.is_garbled else started.token)
        oldest.false_starts += 1
        return self.jobs.pop(oldest.lease.token) if oldest.false_starts >= MOST_FALSE_STARTS else None

    def pause_after_idle_death(self) -> float:
        """Its child died without a job: how long before it has another."""
        pause = IDLE_DEATH_PAUSES[min(self.idle_deaths, len(IDLE_DEATH_PAUSES) - 1)]
        self.idle_deaths += 1
        return pause


class ExitingChild(msgspec.Struct, eq=False):
    """A job whose child is gone, until it is known how."""

    job: Job
    pid: int
    because: str | None
    since: float
    suspected: bool = False
    """It was killed, to make sure."""

    def end(self, exit: Exit | None) -> Lost:
        """What became of it."""
        job = self.job
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

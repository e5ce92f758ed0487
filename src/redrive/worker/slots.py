"""The places of children in a worker, and what is left of a child that is gone."""

from __future__ import annotations

import msgspec

from redrive.broker.exchange import Lost
from redrive.telemetry import tracing
from redrive.worker.exits import Exit, loss
from redrive.worker.forking import ZygoteProcess
from redrive.worker.frames import Channel, FromChild
from redrive.worker.runner import Job

STOPPED = "the worker was stopped"
"""Why a child was killed whose job is given back, and not charged."""
REVOKED = "its lease was lost"
"""Why a child was killed whose item was taken away."""


class Slot:
    """The place of one child after another."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.zygote: ZygoteProcess | None = None
        """Where its child is from."""
        self.fork = 0
        """Which fork of that one it is; 0: none."""
        self.pid = 0
        """0 while the fork is not heard of."""
        self.channel: Channel[FromChild] | None = None
        self.job: Job | None = None
        self.because: str | None = None
        """Why the child was killed."""
        self.done = 0
        """Items that this child has ended."""
        self.told_to_stop = False
        self.is_dead = False
        """The zygote said so, while the channel may still have its last word."""
        self.start_at = 0.0
        """When it may have another child."""
        self.idle_deaths = 0
        """Children in a row that died without having ended anything."""

    def settle_in(self, zygote: ZygoteProcess, fork: int, channel: Channel[FromChild]) -> None:
        """A child is coming."""
        self.zygote, self.fork, self.channel = zygote, fork, channel
        self.done, self.because, self.told_to_stop, self.is_dead = 0, None, False, False

    @property
    def job_never_began(self) -> bool:
        """Whether the child is gone without having read its job. The word to stop, maybe unread too, came later."""
        return self.channel is not None and self.channel.was_unread and not self.told_to_stop


class Dying(msgspec.Struct, eq=False):
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

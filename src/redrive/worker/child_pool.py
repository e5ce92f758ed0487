"""Children of a worker and the zygote that forks them: slots, exits, and what a child leaves behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time

import msgspec

from redrive.broker.worker_session import Lost
from redrive.telemetry import tracing
from redrive.worker.ipc import (
    Channel,
    ChildExited,
    Fork,
    Forked,
    FromChild,
    FromZygote,
    Kill,
    StartupFailed,
    ZygoteReady,
    ZygoteSetup,
)
from redrive.worker.process_exit import Exit, loss
from redrive.worker.runner import Job

ENDING_SECONDS = 5.0
"""How long a zygote is given to end by itself."""


class ZygoteProcess:
    """A zygote that was started. It forks once it `is_ready`. For one thread at a time."""

    def __init__(self, setup: ZygoteSetup) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "redrive.worker.zygote", setup.app, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        self._channel: Channel[FromZygote] = Channel(ours, FromZygote)
        self._numbers = itertools.count(1)
        self.started_at = time.monotonic()
        self.is_ready = False
        self.problem: str | None = None
        """Why it cannot fork."""
        with contextlib.suppress(OSError):  # it is gone; `receive` says so
            self._channel.send(setup, wait=True)

    def fileno(self) -> int:
        """For a selector."""
        return self._channel.fileno()

    @property
    def has_ended(self) -> bool:
        """Whether it is gone."""
        return self._channel.has_ended

    def fork(self) -> tuple[int, socket.socket]:
        """Ask for a child. Gives the number that `Forked` will name, and our end of the child's socket.

        Raises OSError where the zygote is gone.
        """
        ours, theirs = socket.socketpair()
        number = next(self._numbers)
        try:
            with theirs:
                self._channel.send_with(Fork(number), theirs)
        except OSError:
            ours.close()
            raise
        return number, ours

    def kill(self, pid: int) -> None:
        """End a child now. The zygote does it, because it alone knows that the id is still that child's."""
        try:
            self._channel.send(Kill(pid), wait=True)
        except OSError:  # where it died its children do too; but not on every system
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def receive(self) -> list[Forked | ChildExited]:
        """What it has to say of its children."""
        told: list[Forked | ChildExited] = []
        for frame in self._channel.receive():
            match frame:
                case ZygoteReady():
                    self.is_ready = True
                case StartupFailed(problem):
                    self.problem = problem
                case Forked() | ChildExited():
                    told.append(frame)
        return told

    def close(self) -> None:
        """Let it end, with its children, and wait for that."""
        self._channel.close()
        try:
            self._process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


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

    def attach(self, zygote: ZygoteProcess, fork: int, channel: Channel[FromChild]) -> None:
        """A child is coming."""
        self.zygote, self.fork, self.channel = zygote, fork, channel
        self.done, self.because, self.told_to_stop, self.is_dead = 0, None, False, False

    @property
    def job_never_began(self) -> bool:
        """Whether the child is gone without having read its job. The word to stop, maybe unread too, came later."""
        return self.channel is not None and self.channel.was_unread and not self.told_to_stop


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

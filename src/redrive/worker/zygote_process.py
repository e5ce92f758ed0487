"""The worker's side of a zygote that it started."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time

from redrive.worker.child_queue import ChildQueue
from redrive.worker.ipc import (
    Channel,
    ChildExited,
    Fork,
    Forked,
    FromZygote,
    Kill,
    StartupFailed,
    ZygoteReady,
    ZygoteSetup,
)

ENDING_SECONDS = 5.0
"""Seconds for a zygote to end before it is killed."""


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
        """Reason for which it cannot fork."""
        with contextlib.suppress(OSError):  # it is gone; `receive` reports that
            self._channel.send(setup, wait=True)

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._channel.fileno()

    @property
    def has_ended(self) -> bool:
        """True if it has ended."""
        return self._channel.has_ended

    @property
    def was_killed(self) -> bool:
        """True if a signal ended it, and not what it did. After `close`."""
        return self.problem is None and (self._process.returncode or 0) < 0

    def fork(self, slot: int, queue: ChildQueue) -> tuple[int, socket.socket]:
        """Ask for a child that takes from the queue. Returns the number that `Forked` will name, and our end of its
        socket.

        Raises OSError if the zygote is gone.
        """
        ours, theirs = socket.socketpair()
        number = next(self._numbers)
        try:
            with theirs:
                self._channel.send_with(Fork(number, slot), theirs, queue.reads)
        except OSError:
            ours.close()
            raise
        return number, ours

    def kill(self, pid: int) -> None:
        """Kill a child. The zygote does it, because only the zygote knows that the id is still that child's."""
        try:
            self._channel.send(Kill(pid), wait=True)
        except OSError:  # where it died its children do too; but not on every system
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def receive(self) -> list[Forked | ChildExited]:
        """Return what it reports of its children."""
        frames: list[Forked | ChildExited] = []
        for frame in self._channel.receive():
            match frame:
                case ZygoteReady():
                    self.is_ready = True
                case StartupFailed(problem):
                    self.problem = problem
                case Forked() | ChildExited():
                    frames.append(frame)
        return frames

    def close(self) -> None:
        """Close the connection, which ends it and its children, and wait for that, ENDING_SECONDS at most."""
        self._channel.close()
        try:
            self._process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

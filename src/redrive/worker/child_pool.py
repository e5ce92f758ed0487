"""Children of a worker and the zygote that forks them: slots, exits, and what a child leaves behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time

import msgspec

from redrive.broker.worker_session import Lost
from redrive.model.ids import Token
from redrive.telemetry import events, tracing
from redrive.worker.child_queue import ChildQueue
from redrive.worker.in_flight import InFlightLog
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
SUSPICION_SECONDS = 0.1
"""A child whose socket is closed has died. If nothing was heard of that after this long, it is killed to make sure."""
REPORT_SECONDS = 2.0
"""How long the end of a child is waited for before its item is settled without knowing more."""
STALL_SECONDS = 0.01
"""A child that has not answered for this long runs something that takes longer: what it has not taken is taken back."""
IDLE_DEATH_PAUSES = (0.0, 0.05, 0.2, 1.0)
"""How long before a child is replaced that did nothing before it died, by how often that happened in a row."""
ZYGOTE_PAUSES = (0.0, 0.2, 1.0, 5.0)
"""The same for a zygote that died without having forked."""
_log = events.logger("redrive.worker")


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

    def fork(self, slot: int, queue: ChildQueue) -> tuple[int, socket.socket]:
        """Ask for a child that takes from the queue. Gives the number that `Forked` will name, and our end of its
        socket.

        Raises OSError where the zygote is gone.
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
        self.queue: ChildQueue | None = None
        self.jobs: dict[Token, Job] = {}
        """What the child was given, oldest first, and has not answered for. It runs one, or is about to."""
        self.heard_at = 0.0
        """When it last answered, or was given something after it had nothing."""
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


class ChildPool:
    """The children of one worker, one in each slot, and the zygote that forks them. For one thread at a time."""

    def __init__(self, setup: ZygoteSetup, processes: int, in_flight_log: InFlightLog, most_items: int) -> None:
        self._setup = setup
        self._in_flight_log = in_flight_log
        self._most_items = most_items
        self.slots = [Slot(number) for number in range(processes)]
        self.dying: dict[int, ExitingChild] = {}
        """By process id."""
        self.selector = selectors.DefaultSelector()
        self.zygote: ZygoteProcess | None = None
        self.zygote_at = 0.0
        """When the next one may be started."""
        self._zygote_deaths = 0
        self.ready = threading.Event()
        """The app is imported; or it cannot be, and `problem` says why."""
        self.problem: str | None = None
        self.is_closing = False
        """Whether nothing that dies is replaced."""

    def can_fork(self) -> bool:
        """Whether a slot may have a child now."""
        return not self.is_closing and self.zygote is not None and self.zygote.is_ready

    def timeout(self, longest: float) -> float:
        """Seconds until something is due."""
        now = time.monotonic()
        due = [slot.start_at for slot in self.slots if slot.channel is None and self.can_fork()]
        due += [each.since + (REPORT_SECONDS if each.suspected else SUSPICION_SECONDS) for each in self.dying.values()]
        due += [slot.heard_at + STALL_SECONDS for slot in self.slots if len(slot.jobs) > 1]
        if self.zygote is None and not self.is_closing:
            due.append(self.zygote_at)
        return max(0.0, min([at - now for at in due] + [longest]))

    def kill(self, slot: Slot, because: str) -> None:
        """End the child of a slot now, unless it was killed before."""
        if slot.because is None and self.zygote is not None:
            slot.because = because
            self.zygote.kill(slot.pid)

    def fork(self, slot: Slot) -> None:
        """Ask for a child."""
        assert self.zygote is not None
        queue = ChildQueue()
        try:
            number, connection = self.zygote.fork(slot.number, queue)
        except OSError as error:
            queue.close()
            slot.start_at = time.monotonic() + IDLE_DEATH_PAUSES[-1]
            _log.warning("fork_failed", error=str(error))
            return
        channel: Channel[FromChild] = Channel(connection, FromChild)
        slot.attach(self.zygote, number, channel, queue, self._most_items)
        self.selector.register(channel, selectors.EVENT_READ, slot)

    def watch(self, slot: Slot) -> None:
        """Be woken when there is room for what could not be sent."""
        if slot.channel is None:
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if slot.channel.is_full else 0)
        if self.selector.get_key(slot.channel).events != wanted:
            self.selector.modify(slot.channel, wanted, slot)

    def detach(self, slot: Slot) -> None:
        """Let the child of a slot go: it ends when it reads that nobody is there."""
        if slot.channel is None or slot.queue is None:
            return
        self.selector.unregister(slot.channel)
        slot.channel.close()
        slot.queue.close()
        slot.channel = slot.queue = None
        slot.fork = slot.pid = 0
        self._in_flight_log.clear(slot.number)
        self._in_flight_log.assign_process(slot.number, 0)

    def start_zygote(self) -> None:
        """Start one; where that cannot be, it is tried again later."""
        try:
            self.zygote = ZygoteProcess(self._setup)
        except OSError as error:
            _log.error("zygote_not_started", error=str(error), retry_in_seconds=ZYGOTE_PAUSES[-1])
            self.zygote_at = time.monotonic() + ZYGOTE_PAUSES[-1]
            if not self.ready.is_set():
                self.problem = f"no process can be started to import {self._setup.app}: {error}"
                self.ready.set()
            return
        self.selector.register(self.zygote, selectors.EVENT_READ, self.zygote)

    def forked(self, number: int, pid: int, problem: str | None) -> None:
        """The zygote forked a child, which has nothing to do now, or could not."""
        slot = next((slot for slot in self.slots if slot.fork == number), None)
        if slot is None:
            return
        if problem is not None:
            _log.warning("fork_failed", error=problem)
            self.detach(slot)
            slot.start_at = time.monotonic() + IDLE_DEATH_PAUSES[-1]
            return
        slot.pid = pid
        self._zygote_deaths = 0
        self._in_flight_log.assign_process(slot.number, pid)

    def lose_zygote(self, zygote: ZygoteProcess) -> None:
        """Its children die with it. What they ran was running when they did."""
        self.selector.unregister(zygote)
        zygote.close()
        self.zygote = None
        if not self.ready.is_set():
            self.problem = zygote.problem or f"the process that imports {self._setup.app} ended before it had done so"
            self.ready.set()
            return
        pause = ZYGOTE_PAUSES[min(self._zygote_deaths, len(ZYGOTE_PAUSES) - 1)]
        self._zygote_deaths += 1
        self.zygote_at = time.monotonic() + pause
        _log.error("zygote_died", problem=zygote.problem, retry_in_seconds=pause)
        for slot in self.slots:
            if slot.pid:
                zygote.kill(slot.pid)  # where the system does not do it
            if not slot.jobs:
                self.detach(slot)

    def close(self) -> None:
        """Let the zygote end, and all children with it."""
        for slot in self.slots:
            for end in (slot.channel, slot.queue):
                if end is not None:
                    end.close()
            self._in_flight_log.assign_process(slot.number, 0)  # its id may soon be that of another process
        if self.zygote is not None:
            self.zygote.close()

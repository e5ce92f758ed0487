"""Handlers in processes of their own, one item at a time in each. What a handler does to its process, it does to no
other item.

One thread hands out items, hears how they went, and notices deaths. A child that dies is replaced at once: what the
zygote has to tell of its end is waited for only by the item that it ran.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence

from redrive.broker.worker_session import Outcome, Returned
from redrive.errors import InvalidInput
from redrive.model.failure import Failure
from redrive.telemetry import events
from redrive.worker.child_pool import (
    REPORT_SECONDS,
    REVOKED,
    STOPPED,
    SUSPICION_SECONDS,
    ChildPool,
    ExitingChild,
    Slot,
    ZygoteProcess,
)
from redrive.worker.in_flight import InFlightLog
from redrive.worker.ipc import ChildExited, Delivery, Forked, FrameInvalid, Stop, ZygoteSetup
from redrive.worker.process_exit import Exit
from redrive.worker.runner import Ended, Job

POLL_SECONDS = 0.5
"""How often the thread looks, whatever happens."""
KILLING_SECONDS = 5.0
"""How long `close` waits for children that it killed."""
_log = events.logger("redrive.worker")


class ProcessRunner:
    """Runs each job in a child process.

    app: `module:attribute`, by which a process that has nothing of this one finds the app. url: the store for what
    handlers put, instead of the one that the app names. memory_limit: bytes of memory that a child can have; a handler
    that asks for more gets MemoryError. max_items_per_child: a child that has ended so many is replaced.
    """

    isolated = True

    def __init__(
        self,
        app: str,
        processes: int,
        stopping: Callable[[], bool] = lambda: False,
        in_flight_log: InFlightLog | None = None,
        *,
        url: str | None = None,
        memory_limit: int | None = None,
        max_items_per_child: int | None = None,
    ) -> None:
        if not hasattr(os, "fork"):
            raise InvalidInput("processes= needs a system that can fork, and this one cannot; use concurrency= instead")
        self.slots = processes
        self._pool = ChildPool(ZygoteSetup(app, tuple(map(str, sys.path)), url, memory_limit), processes, in_flight_log)
        self._stopping = stopping
        self._in_flight_log = in_flight_log
        self._most_items = max_items_per_child
        self._ended: Ended
        self._lock = threading.Lock()
        self._waiting: deque[Job] = deque()
        self._slots, self._idle, self._dying = self._pool.slots, self._pool.idle, self._pool.dying
        self._reports: list[tuple[Job, Outcome]] = []
        self._killed: list[Job] = []
        self._wakes, self._wake = socket.socketpair()
        self._killing = self._over = False
        self._quiet = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._run, name="redrive-processes", daemon=True)

    # What the dispatcher calls, from its thread or any other.

    def start(self, ended: Ended) -> None:
        """Begin, and wait until the app is imported. Raises InvalidInput where that cannot be."""
        self._ended = ended
        self._thread.start()
        self._pool.ready.wait()
        if self._pool.problem is not None:
            self._end()
            raise InvalidInput(self._pool.problem)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Run these, in order, as children have room."""
        with self._lock:
            self._waiting.extend(jobs)
            self._hand_out()

    def running(self) -> Collection[Job]:
        """Jobs that children have been given, and whose end is not told yet."""
        with self._lock:
            return [slot.job for slot in self._slots if slot.job] + [dying.job for dying in self._dying.values()]

    def cancel_queued(self) -> list[Job]:
        """Jobs that no child has been given."""
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
        return taken

    def interrupt(self, job: Job, failure: Failure) -> None:
        """Kill its process. It ends as lost, with this failure and what is known of the process."""
        self._kill(job, failure.text)

    def revoke(self, job: Job) -> None:
        """Kill its process. Another one takes its slot."""
        self._kill(job, REVOKED)

    def close(self, jobs_too: bool) -> list[Job]:
        """Stop. With `jobs_too`, what runs is killed, and given back: it is to blame for nothing."""
        with self._lock:
            self._pool.is_closing = True
            self._killing = jobs_too
            self._ring()
            patience = KILLING_SECONDS if jobs_too else None
            self._quiet.wait_for(lambda: self._is_quiet() or not self._thread.is_alive(), patience)
        self._end()
        left = [slot.job for slot in self._slots if slot.job is not None]
        return self._killed + left

    def _kill(self, job: Job, because: str) -> None:
        with self._lock:
            for slot in self._slots:
                if slot.job is job:
                    self._pool.kill(slot, because)

    # The thread.

    def _run(self) -> None:
        self._pool.selector.register(self._wakes, selectors.EVENT_READ)
        self._pool.start_zygote()
        while not self._over:
            try:
                self._turn()
            except Exception:
                _log.exception("process_runner_failed")
                time.sleep(POLL_SECONDS)
        self._pool.selector.close()

    def _turn(self) -> None:
        ready = self._pool.selector.select(self._pool.timeout(POLL_SECONDS))
        with self._lock:
            for key, _ in ready:
                if isinstance(key.data, Slot):
                    self._hear(key.data)
                elif key.data is not None:
                    self._hear_zygote(key.data)
                else:
                    self._wakes.recv(4096)
            self._tend(time.monotonic())
            reports, self._reports = self._reports, []
            if self._is_quiet():
                self._quiet.notify_all()
        for job, end in reports:
            self._ended(job, end)

    def _tend(self, now: float) -> None:
        """What is due."""
        pool = self._pool
        if pool.zygote is None and now >= pool.zygote_at and not pool.is_closing:
            pool.start_zygote()
        for slot in self._slots:
            if slot.channel is None and now >= slot.start_at and pool.can_fork():
                pool.fork(slot)
            if self._killing and slot.job is not None and slot.because is None and pool.zygote is not None:
                pool.kill(slot, STOPPED)
            elif slot.job is None and pool.is_closing:
                self._retire(slot)
            elif slot.job is not None and not slot.told_to_stop and (pool.is_closing or self._stopping()):
                self._tell_to_stop(slot)
            pool.watch(slot)
        for dying in list(self._dying.values()):
            if now >= dying.since + REPORT_SECONDS:
                self._settle(dying, None)
            elif now >= dying.since + SUSPICION_SECONDS and not dying.suspected and pool.zygote is not None:
                dying.suspected = True
                pool.zygote.kill(dying.pid)

    # Children.

    def _hear(self, slot: Slot) -> None:
        """The child of a slot has something to say, or is gone."""
        channel = slot.channel
        if channel is None:
            return
        try:
            ends = channel.receive()
            if channel.is_full and not channel.has_ended:
                channel.flush()
        except (FrameInvalid, OSError) as error:
            slot.because = slot.because or f"it wrote into the socket of its worker ({error})"
            self._gone(slot, None)
            return
        for end in ends:
            self._answered(slot, end)
        if slot.channel is channel and channel.has_ended:
            self._gone(slot, None)

    def _answered(self, slot: Slot, end: Outcome) -> None:
        job = slot.job
        if job is None:
            return
        self._leave(slot, job)
        self._reports.append((job, end))
        slot.done += 1
        slot.idle_deaths = 0
        # What a suspect may have left behind in its process is nobody else's.
        is_used_up = slot.done == self._most_items or job.is_suspect
        if is_used_up or slot.told_to_stop or slot.because is not None or slot.is_dead:
            self._retire(slot)
        else:
            self._idle.append(slot)
            self._hand_out()

    def _leave(self, slot: Slot, job: Job) -> None:
        """The job has ended, one way or another."""
        job.duration = time.monotonic() - (job.began_at or time.monotonic())
        slot.job = None
        if self._in_flight_log is not None:
            self._in_flight_log.end(slot.number)

    def _hand_out(self) -> None:
        while self._waiting and self._idle:
            job = self._waiting.popleft()
            if job.lease_lost:  # somebody else may have it
                self._reports.append((job, Returned()))
                self._ring()
                continue
            self._begin(self._idle.popleft(), job)

    def _begin(self, slot: Slot, job: Job) -> None:
        assert slot.channel is not None
        job.slot = slot.number
        job.began_at = time.monotonic()
        if self._in_flight_log is not None:
            self._in_flight_log.begin(slot.number, job.lease.token, "" if job.task is None else job.task.name)
        slot.job = job
        try:
            slot.channel.send(Delivery(job.lease, job.handling))
        except OSError:  # the child is gone, and the thread will notice
            self._take_from(slot, job)
            return
        if slot.channel.is_full:
            self._ring()

    def _retire(self, slot: Slot) -> None:
        """Let the child of a slot end, and replace it."""
        self._pool.detach(slot)
        slot.start_at = 0.0

    def _gone(self, slot: Slot, exit: Exit | None) -> None:
        """The child of a slot is gone: with its job, or idle."""
        job, pid, because, now = slot.job, slot.pid, slot.because, time.monotonic()
        never_began = slot.job_never_began
        self._pool.detach(slot)
        if job is not None and never_began:
            self._take_from(slot, job)
            job = None
        if job is None:
            pause = slot.pause_after_idle_death()
            slot.start_at = now + pause
            _log.warning("idle_child_exited", pid=pid, retry_in_seconds=pause)
        else:
            self._leave(slot, job)
            slot.start_at = 0.0
            dying = ExitingChild(job, pid, because, now)
            self._dying[pid] = dying
            if exit is not None or slot.zygote is not self._pool.zygote:  # nobody is left who would tell
                self._settle(dying, exit)
        if self._pool.can_fork() and now >= slot.start_at:
            self._pool.fork(slot)

    def _take_from(self, slot: Slot, job: Job) -> None:
        """A child is gone that was given this job, and never began it: it waits for the next."""
        self._leave(slot, job)
        job.began_at = None
        if self._pool.is_closing:
            self._killed.append(job)
        else:
            self._waiting.appendleft(job)
            self._hand_out()

    def _settle(self, dying: ExitingChild, exit: Exit | None) -> None:
        """It is known how the child of a job ended, or never will be."""
        del self._dying[dying.pid]
        job = dying.job
        if dying.because is STOPPED:
            self._killed.append(job)
            return
        self._reports.append((job, Returned() if dying.because is REVOKED else dying.end(exit)))

    def _tell_to_stop(self, slot: Slot) -> None:
        assert slot.channel is not None
        slot.told_to_stop = True
        with contextlib.suppress(OSError):
            slot.channel.send(Stop())

    # The zygote.

    def _hear_zygote(self, zygote: ZygoteProcess) -> None:
        if zygote is not self._pool.zygote:
            return
        for told in zygote.receive():
            match told:
                case Forked(number, pid, problem):
                    self._pool.forked(number, pid, problem)
                    self._hand_out()
                case ChildExited(pid, exit):
                    self._died(pid, exit)
        if zygote.is_ready:
            self._pool.ready.set()
        if zygote.has_ended:
            self._pool.lose_zygote(zygote)
            for dying in list(self._dying.values()):
                self._settle(dying, None)

    def _died(self, pid: int, exit: Exit) -> None:
        if pid in self._dying:
            self._settle(self._dying[pid], exit)
            return
        slot = next((slot for slot in self._slots if slot.pid == pid), None)
        if slot is None:
            return  # it was let go
        # Its last word may not have been read yet. Its socket may be held open by something that it started.
        channel = slot.channel
        slot.is_dead = True
        self._hear(slot)
        if slot.channel is channel and slot.pid == pid:
            self._gone(slot, exit)
        elif pid in self._dying:
            self._settle(self._dying[pid], exit)

    # The end.

    def _is_quiet(self) -> bool:
        """Whether nothing runs, and everything was said."""
        return not self._dying and not self._reports and all(slot.job is None for slot in self._slots)

    def _ring(self) -> None:
        """Wake the thread."""
        with contextlib.suppress(OSError):
            self._wake.send(b"\0", socket.MSG_DONTWAIT)

    def _end(self) -> None:
        self._over = True
        self._ring()
        if self._thread.ident is not None:
            self._thread.join()
        self._pool.close()
        self._wake.close()
        self._wakes.close()

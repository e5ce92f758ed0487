"""Handlers in child processes, one at a time in each. A handler that ends its process affects no other item.

One thread hands out items, receives outcomes, and notices deaths. A child is given as many items as it ends in
AHEAD_SECONDS, so that it need not wait for the worker between short ones. It takes one at a time, and records in the
in-flight log which one it starts: when it dies, that one is charged, and the others go to another child. A child that
dies is replaced immediately: only the item that it ran waits for the exit report of the zygote.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from redrive.broker.worker_session import Outcome, Returned
from redrive.errors import InvalidInput
from redrive.model.failure import Failure
from redrive.telemetry import events
from redrive.worker.child_pool import REPORT_SECONDS, STALL_SECONDS, SUSPICION_SECONDS, ChildPool
from redrive.worker.child_slot import REVOKED, SILENT, STOPPED, ExitingChild, Slot
from redrive.worker.in_flight import InFlightLog
from redrive.worker.ipc import ChildExited, Forked, FrameInvalid, JobReport, ZygoteSetup
from redrive.worker.process_exit import Exit
from redrive.worker.runner import Ended, Job
from redrive.worker.zygote_process import ZygoteProcess

AHEAD_SECONDS = 0.005
"""Time in which a child ends the items that it is given: at least one, and at most MOST_GIVEN."""
MOST_GIVEN = 64
MEAN_OF = 8
"""Divisor of the moving average of handler times: the last one counts 1/MEAN_OF."""
POLL_SECONDS = 0.5
"""Seconds between two checks by the thread, at most."""
KILLING_SECONDS = 5.0
"""Seconds that `close` waits for children that it killed."""
_log = events.logger("redrive.worker")


class ProcessRunner:
    """A runner of each job in a child process.

    app: `module:attribute`, by which the other process imports the app. url: the store for what handlers put, instead
    of the one that the app names. memory_limit: bytes of memory that a child can have; a handler that asks for more
    gets MemoryError. max_items_per_child: number of items after which a child is replaced.
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
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if in_flight_log is None:  # no supervisor reads one
            self._folder = tempfile.TemporaryDirectory(prefix="redrive-")
            in_flight_log = InFlightLog.create(Path(self._folder.name) / "in_flight", "processes", processes)
        self._in_flight_log = in_flight_log
        setup = ZygoteSetup(app, tuple(map(str, sys.path)), url, memory_limit, str(in_flight_log.path))
        self._pool = ChildPool(setup, processes, in_flight_log, max_items_per_child or sys.maxsize)
        self._stopping = stopping
        self._ended: Ended
        self._lock = threading.Lock()
        self._waiting: deque[Job] = deque()
        self._mean_seconds = AHEAD_SECONDS
        """Moving average of the run times of handlers."""
        self._slots, self._dying = self._pool.slots, self._pool.dying
        self._reports: list[tuple[Job, Outcome]] = []
        self._killed: list[Job] = []
        self._wakes, self._wake = socket.socketpair()
        self._killing = self._over = False
        self._quiet = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._run, name="redrive-processes", daemon=True)

    # What the dispatcher calls, from its thread or any other.

    def start(self, ended: Ended) -> None:
        """Start, and wait until the app is imported. Raises InvalidInput if that fails."""
        self._ended = ended
        self._thread.start()
        self._pool.ready.wait()
        if self._pool.problem is not None:
            self._end()
            raise InvalidInput(self._pool.problem)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Run these, in order, as children have room."""
        with self._lock:
            queued = self._count_queued()
            self._waiting.extend(jobs)
            self._hand_out()
            if self._count_queued() > queued:  # the thread may sleep, and has to notice if they stall
                self._ring()

    def running(self) -> Collection[Job]:
        """Return the oldest job of each child, and those of dead children whose exit is not reported yet."""
        with self._lock:
            oldest = [next(iter(slot.jobs.values())) for slot in self._slots if slot.jobs]
            return oldest + [dying.job for dying in self._dying.values()]

    def cancel_queued(self) -> list[Job]:
        """Remove and return the jobs that no child has taken."""
        with self._lock:
            taken = [job for slot in self._slots for job in slot.reclaim()] + list(self._waiting)
            self._waiting.clear()
        return taken

    def interrupt(self, job: Job, failure: Failure) -> None:
        """Kill its process. The job fails with this failure."""
        self._kill(job, failure)

    def revoke(self, job: Job) -> None:
        """Kill its process. Another one takes its slot."""
        self._kill(job, REVOKED)

    def close(self, jobs_too: bool) -> list[Job]:
        """Stop, after what runs. With `jobs_too`, kill that instead, and return its jobs: they are not charged."""
        with self._lock:
            self._pool.is_closing = True
            self._killing = jobs_too
            self._ring()
            patience = KILLING_SECONDS if jobs_too else None
            self._quiet.wait_for(lambda: self._is_quiet() or not self._thread.is_alive(), patience)
        self._end()
        return self._killed + [job for slot in self._slots for job in slot.jobs.values()]

    def _kill(self, job: Job, because: str | Failure) -> None:
        """Kill the child that runs this job, if one does, after the jobs behind it are reclaimed."""
        with self._lock:
            slot = next((slot for slot in self._slots if job.lease.token in slot.jobs), None)
            if slot is None:
                return
            self._put_back(slot.reclaim())
            self._hear(slot)
            if job.lease.token in slot.jobs:
                self._pool.kill(slot, because)
            self._hand_out()
            self._ring()

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
            self._hand_out()
            reports, self._reports = self._reports, []
            if self._is_quiet():
                self._quiet.notify_all()
        for job, end in reports:
            self._ended(job, end)

    def _tend(self, now: float) -> None:
        """Do what is due: start and end processes, reclaim jobs, and settle those of dead children."""
        pool = self._pool
        if pool.zygote is None and now >= pool.zygote_at and not pool.is_closing:
            pool.start_zygote()
        for slot in self._slots:
            if slot.channel is None and now >= slot.start_at and pool.can_fork():
                pool.fork(slot)
            if self._killing and slot.jobs and slot.because is None and pool.zygote is not None:
                self._put_back(slot.reclaim())
                pool.kill(slot, STOPPED)
            elif not slot.jobs and pool.is_closing:
                self._pool.retire(slot)
            elif slot.jobs and not slot.told_to_stop and (pool.is_closing or self._stopping()):
                slot.tell_to_stop()
            elif slot.may_reclaim and now >= slot.heard_at + STALL_SECONDS:
                self._mean_seconds = max(self._mean_seconds, STALL_SECONDS)
                self._put_back(slot.reclaim())
            elif slot.may_have_missed(now):
                self._recover(slot, now)
            pool.watch(slot)
        for dying in list(self._dying.values()):
            if now >= dying.since + REPORT_SECONDS:
                self._settle(dying, None)
            elif now >= dying.since + SUSPICION_SECONDS and not dying.suspected and pool.zygote is not None:
                dying.suspected = True
                pool.zygote.kill(dying.pid)

    # Children.

    def _hand_out(self) -> None:
        """Give the waiting jobs to the children with the fewest."""
        if not self._waiting:
            return
        depth = max(1, min(MOST_GIVEN, int(AHEAD_SECONDS / self._mean_seconds)))
        ready = [slot for slot in self._slots if slot.takes_more and slot.has_room(depth)]
        takers = deque(sorted(ready, key=lambda slot: len(slot.jobs)))
        while self._waiting and takers:
            job = self._waiting[0]
            if job.lease_lost:  # another worker may have it
                self._reports.append((self._waiting.popleft(), Returned()))
                self._ring()
                continue
            slot = takers.popleft()
            if job.is_suspect and slot.jobs:  # it runs in a child that has nothing else, and is given nothing else
                return
            if slot.give(job):
                self._waiting.popleft()
                if slot.channel is not None and slot.channel.is_full:
                    self._ring()
                if slot.left and slot.has_room(depth):
                    takers.append(slot)

    def _count_queued(self) -> int:
        """Return the number of children that have more jobs than the one that they run."""
        return sum(len(slot.jobs) > 1 for slot in self._slots)

    def _put_back(self, jobs: Sequence[Job]) -> None:
        """Queue jobs that did not start for another child, or when closing, for `close` to return."""
        if self._pool.is_closing:
            self._killed.extend(jobs)
        else:
            self._waiting.extendleft(reversed(jobs))

    def _hear(self, slot: Slot) -> None:
        """Process the reports of the child of a slot, or its end."""
        channel = slot.channel
        if channel is None:
            return
        reports: list[JobReport] = []
        try:
            reports = channel.receive()
            if channel.is_full and not channel.has_ended:
                channel.flush()
        except FrameInvalid as error:  # what it had started is known when it is dead
            reports = error.before
            self._put_back(slot.reclaim())
            self._pool.kill(slot, f"it wrote into the socket of its worker ({error})")
        except OSError:  # it is gone, and the next time there is nothing more to receive
            pass
        for report in reports:
            self._end_job(slot, report)
        if reports:
            self._continue(slot)
        if slot.channel is channel and channel.has_ended:
            self._gone(slot, None)

    def _recover(self, slot: Slot, now: float) -> None:
        """Put back jobs that did not reach the child of a slot, and replace it if that may be all of them."""
        self._put_back(slot.reclaim())
        self._hear(slot)  # what it reported before it took the last one
        if slot.channel is None or slot.channel.is_full or not slot.may_have_missed(now):
            return
        started = self._in_flight_log.token_in(slot.number)
        if started in slot.jobs:
            self._put_back(slot.take_missed([token for token in slot.jobs if token != started]))
        else:
            self._pool.kill(slot, SILENT)

    def _end_job(self, slot: Slot, report: JobReport) -> None:
        if report.token not in slot.jobs:
            return
        self._put_back(slot.take_older(report.token))
        job = slot.jobs.pop(report.token)
        job.duration = report.seconds
        job.began_at = job.began_at or time.monotonic() - report.seconds
        self._mean_seconds += (max(report.seconds, 1e-6) - self._mean_seconds) / MEAN_OF
        self._in_flight_log.count(slot.number)
        self._reports.append((job, report.outcome))
        slot.idle_deaths = 0

    def _continue(self, slot: Slot) -> None:
        """Continue after a report: the child starts its next job, has none, or is replaced."""
        slot.heard_at = time.monotonic()
        if slot.told_to_stop or slot.because is not None or slot.is_dead:
            self._put_back(slot.reclaim())
        if slot.jobs:
            next(iter(slot.jobs.values())).began_at = slot.heard_at
            return
        self._in_flight_log.clear(slot.number)
        if not slot.takes_more:
            self._pool.retire(slot)

    def _gone(self, slot: Slot, exit: Exit | None) -> None:
        """Handle the death of the child of a slot. Only the job that it had started and not reported is charged."""
        pid, because, now = slot.pid, slot.because, time.monotonic()
        untaken = slot.reclaim()
        job = slot.take_started()
        for each in slot.jobs.values():
            each.began_at = None
        self._put_back([*slot.jobs.values(), *untaken])
        slot.jobs.clear()
        self._pool.detach(slot)
        slot.start_at = 0.0
        if job is None and not slot.told_to_stop:
            pause = slot.pause_after_idle_death()
            slot.start_at = now + pause
            _log.warning("idle_child_exited", pid=pid, retry_in_seconds=pause)
        elif job is not None:
            self._in_flight_log.count(slot.number)
            job.duration = now - (job.began_at or now)
            dying = ExitingChild(job, pid, because, now)
            self._dying[pid] = dying
            if exit is not None or slot.zygote is not self._pool.zygote:  # no zygote is left to report it
                self._settle(dying, exit)
        if self._pool.can_fork() and now >= slot.start_at:
            self._pool.fork(slot)

    def _settle(self, dying: ExitingChild, exit: Exit | None) -> None:
        """Settle the job of a dead child, by its exit, or None if that will never be known."""
        del self._dying[dying.pid]
        job = dying.job
        if dying.because is STOPPED:
            self._killed.append(job)
            return
        self._reports.append((job, Returned() if dying.because is REVOKED else dying.end(exit)))

    # The zygote.

    def _hear_zygote(self, zygote: ZygoteProcess) -> None:
        if zygote is not self._pool.zygote:
            return
        for told in zygote.receive():
            match told:
                case Forked(number, pid, problem):
                    self._pool.forked(number, pid, problem)
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
            return  # it was detached
        # Its last report may be unread. Its socket may be held open by a process that it started.
        channel = slot.channel
        slot.is_dead = True
        self._hear(slot)
        if slot.channel is channel and slot.pid == pid:
            self._gone(slot, exit)
        elif pid in self._dying:
            self._settle(self._dying[pid], exit)

    # The end.

    def _is_quiet(self) -> bool:
        """Return whether nothing runs, and all outcomes are reported."""
        return not self._dying and not self._reports and not any(slot.jobs for slot in self._slots)

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
        if self._folder is not None:
            self._folder.cleanup()

"""Handlers in this process: functions in threads, coroutine functions on one event loop.

Up to `slots` of either kind run concurrently. A handler that ends the process affects all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

from redrive.broker.worker_session import Failed, Outcome, Returned
from redrive.clock import Clock, SystemClock
from redrive.model.failure import Failure
from redrive.task.app import App
from redrive.worker.execution import Execution, TimeLimitExceeded
from redrive.worker.in_flight import InFlightLog
from redrive.worker.process_exit import leave_copy
from redrive.worker.runner import Ended, Job

STOPPING_SECONDS = 5.0
"""Seconds for a handler to end after it was interrupted for its time limit. Then it is abandoned."""


class ThreadRunner:
    """A runner of jobs in threads and on an event loop of this process."""

    isolated = False

    def __init__(
        self,
        app: App,
        slots: int,
        stopping: Callable[[], bool],
        in_flight_log: InFlightLog | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.slots = slots
        self._clock = clock or SystemClock()
        self._app = app
        self._stopping = stopping
        self._in_flight_log = in_flight_log
        self._ready: deque[Job] = deque()
        self._mutex = threading.Lock()
        self._idle: list[threading.Lock] = []
        self._threads: dict[int, _Thread] = {}
        self._loop: _Loop | None = None
        self._hung: list[_Loop] = []
        """Earlier event loops, which are blocked by handlers."""
        self._ended: Ended
        self._closed = False
        self._pid = os.getpid()

    def start(self, ended: Ended) -> None:
        self._ended = ended

    def submit(self, jobs: Sequence[Job]) -> None:
        here = [job for job in jobs if job.task is None or not job.task.is_async]
        if len(here) < len(jobs):
            with self._mutex:
                self._loop = self._loop or _Loop(self)
                self._loop.submit([job for job in jobs if job.task is not None and job.task.is_async])
        if not here:
            return
        with self._mutex:
            self._ready.extend(here)
            while len(self._threads) < min(self.slots, len(self._ready) + len(self._threads) - len(self._idle)):
                self._add_thread()
            woken = [self._idle.pop() for _ in range(min(len(here), len(self._idle)))]
        for lock in woken:
            lock.release()

    def running(self) -> Collection[Job]:
        with self._mutex:
            running = [job for thread in self._threads.values() if (job := thread.job) is not None]
        return running + [job for loop in self._loops() for job in loop.running()]

    def cancel_queued(self) -> list[Job]:
        taken: list[Job] = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._ready.popleft())
        return taken + (self._loop.cancel_queued() if self._loop else [])

    def interrupt(self, job: Job, failure: Failure) -> None:
        """Cancel a coroutine, or raise an exception in the thread of a function or of a coroutine that blocks the loop.
        A thread or loop that does not end by that is abandoned and replaced."""
        if job.task is not None and job.task.is_async:
            for loop in self._loops():
                loop.interrupt(job, failure)
            return
        with self._mutex:
            thread = next((thread for thread in self._threads.values() if thread.job is job), None)
        if thread is not None and thread.interrupt(job):
            threading.Timer(STOPPING_SECONDS, self._abandon, (thread, job, failure)).start()

    def revoke(self, job: Job) -> None:
        """Cancel a coroutine. A function in a thread can read it in its context, and keeps its slot until it ends."""
        if job.task is not None and job.task.is_async:
            for loop in self._loops():
                loop.revoke(job)

    def close(self, jobs_too: bool) -> list[Job]:
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
            threads = list(self._threads.values())
        for lock in idle:
            lock.release()
        if not jobs_too:
            for thread in threads:
                thread.join()
        left = [job for thread in threads if (job := thread.job) is not None]
        for loop in self._hung:
            left += loop.close(jobs_too=True)
        return left + (self._loop.close(jobs_too) if self._loop else [])

    def replace(self, loop: _Loop) -> None:
        """Replace an event loop that hangs. What has not started there starts on another."""
        with self._mutex:
            if loop is not self._loop or self._closed:
                return
            self._hung.append(loop)
            self._loop = _Loop(self)
            self._loop.submit(loop.cancel_queued())

    def _loops(self) -> list[_Loop]:
        return self._hung + ([] if self._loop is None else [self._loop])

    def _add_thread(self) -> None:
        slot = next(slot for slot in range(self.slots) if slot not in self._threads)
        self._threads[slot] = _Thread(self, slot)
        self._threads[slot].start()

    def _abandon(self, thread: _Thread, job: Job, failure: Failure) -> None:
        with self._mutex:
            if self._closed or not thread.give_up(job):
                return
            self._add_thread_instead(thread)
        self.end(job, Failed(failure))

    def _add_thread_instead(self, thread: _Thread) -> None:
        self._threads[thread.slot] = _Thread(self, thread.slot)
        self._threads[thread.slot].start()

    def next_job(self, thread: _Thread) -> Job | None:
        """Wait for the next job of a thread, and return it, or None if the thread is to stop."""
        while not thread.is_abandoned:
            try:
                return self._ready.popleft()
            except IndexError:
                with self._mutex:
                    if self._ready:
                        continue
                    if self._closed:
                        return None
                    self._idle.append(thread.lock)
            thread.lock.acquire()
        return None

    def perform(self, job: Job) -> Execution:
        """Return the execution of a job, which the caller runs."""
        return Execution(self._app, job.lease, job.handling, self._stopping, lambda: job.lease_lost, self._clock)

    def begin(self, job: Job, slot: int) -> None:
        """Record the start of a job: from here on it is charged if the process is lost."""
        job.slot = slot
        job.began_at = time.monotonic()
        if self._in_flight_log is not None:
            self._in_flight_log.begin(slot, job.lease.token, "" if job.task is None else job.task.name)

    def end(self, job: Job, end: Outcome) -> None:
        """Record the end of a job, and report its outcome."""
        if os.getpid() != self._pid:
            leave_copy()
        job.duration = time.monotonic() - (job.began_at or time.monotonic())
        if self._in_flight_log is not None:
            self._in_flight_log.end(job.slot)
        self._ended(job, end)


class _Thread(threading.Thread):
    """The thread of one slot for functions."""

    def __init__(self, runner: ThreadRunner, slot: int) -> None:
        super().__init__(name=f"redrive-handler-{slot}", daemon=True)
        self.slot = slot
        self.job: Job | None = None
        self.lock = threading.Lock()
        self.lock.acquire()
        self.is_abandoned = False
        self._runner = runner
        self._interrupting = threading.Lock()
        self._limited: Job | None = None
        """The job that can be interrupted now."""
        self._interrupted: Job | None = None

    def run(self) -> None:
        runner = self._runner
        while (job := runner.next_job(self)) is not None:
            if job.lease_lost:  # another worker may have it
                runner.end(job, Returned())
                continue
            self.job = job
            runner.begin(job, self.slot)
            end = self._perform(job)
            if job.time_limit is not None and not self._is_mine(job):
                return
            self.job = None
            runner.end(job, end)

    def interrupt(self, job: Job) -> bool:
        """Raise `TimeLimitExceeded` in the handler, from another thread. False if it has ended already."""
        with self._interrupting:
            if self._limited is not job or self._interrupted is job or self.ident is None:
                return False
            self._interrupted = job
            _raise_in(self.ident, TimeLimitExceeded)
            return True

    def give_up(self, job: Job) -> bool:
        """Abandon this thread and its job, from another thread. False if the job has just ended."""
        with self._interrupting:
            if self.job is not job:
                return False
            self.is_abandoned = True
            self.job = None
            return True

    def _is_mine(self, job: Job) -> bool:
        """Return whether this thread reports the outcome of the job. If so, it can no longer be abandoned."""
        with self._interrupting:
            if self.is_abandoned:
                return False
            self.job = None
            return True

    def _perform(self, job: Job) -> Outcome:
        performance = self._runner.perform(job)
        if job.time_limit is None:
            return performance.run()
        end: Outcome | None = None
        try:
            self._limited = job
            end = performance.run()
            with self._interrupting:
                if self._interrupted is job:  # it may come after the handler has ended, and must not come later
                    raise_here(TimeLimitExceeded)
                self._limited = None
        except TimeLimitExceeded as late:
            end = end or performance.failed(late)
        return end


def _raise_in(thread: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def raise_here(error: type[BaseException]) -> NoReturn:
    """Raise it as another thread would, to replace one that is pending in this thread.

    CPython 3.11 can also clear a pending one, but continues to check for it: loops are slower, and the first function
    that is traced or profiled in this process hangs. One that arrives ends that.
    """
    while True:  # it may arrive in a finalizer that garbage collection runs here, and be swallowed there
        _raise_in(threading.get_ident(), error)
        for _ in range(1000):
            pass


class _Loop:
    """The event loop for coroutine functions, in a separate thread."""

    def __init__(self, runner: ThreadRunner) -> None:
        self._runner = runner
        self._ready: deque[Job] = deque()
        self._created: dict[Job, asyncio.Task[None]] = {}
        """Jobs that have a slot, and start when the loop reaches them."""
        self._running: dict[Job, asyncio.Task[None]] = {}
        """Running jobs. The thread that removes one, which is atomic, reports its outcome."""
        self._free = list(range(runner.slots, 2 * runner.slots))
        self._late: set[Job] = set()
        self._loop = asyncio.new_event_loop()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="redrive-loop", daemon=True)
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue jobs for the loop. From any thread."""
        self._ready.extend(jobs)
        self._loop.call_soon_threadsafe(self._begin)

    def running(self) -> list[Job]:
        """Return the jobs that run now. From any thread."""
        return list(self._running)

    def cancel_queued(self) -> list[Job]:
        """Remove and return the jobs that have not started. From any thread: popping is atomic."""
        taken = [job for job in list(self._created) if self._created.pop(job, None) is not None]
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._ready.popleft())
        return taken

    def interrupt(self, job: Job, failure: Failure) -> None:
        """Cancel a job, if it still runs, and abandon it if it does not end. From any thread."""
        if job not in self._running or job in self._late:
            return
        self._late.add(job)
        self._loop.call_soon_threadsafe(self._cancel, job)
        threading.Timer(STOPPING_SECONDS, self._press, (job, failure)).start()

    def revoke(self, job: Job) -> None:
        """Cancel a job, if it still runs. From any thread. One that continues keeps its slot until it ends."""
        if job in self._running:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._cancel, job)

    def close(self, jobs_too: bool) -> list[Job]:
        """Wait for what runs, unless `jobs_too` is set; then end the loop. Returns the jobs that still run."""
        if not jobs_too:
            asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result()
        left = self.running()
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        return left

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._closed:
                with contextlib.suppress(TimeLimitExceeded):  # the handler that it was for ended in that moment
                    self._loop.run_forever()
        finally:
            with contextlib.suppress(Exception):
                self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def _begin(self) -> None:
        while self._free:
            try:
                job = self._ready.popleft()
            except IndexError:
                return
            if job.lease_lost:
                self._runner.end(job, Returned())
                continue
            self._created[job] = self._loop.create_task(self._perform(job, self._free.pop()))

    async def _perform(self, job: Job, slot: int) -> None:
        task = self._created.pop(job, None)
        if task is None:  # the job was cancelled
            self._free.append(slot)
            return
        self._running[job] = task
        if job.lease_lost:  # since it was given a slot
            task.cancel()
        self._runner.begin(job, slot)
        performance = self._runner.perform(job)
        end = await performance.run_async(lambda: job in self._late)
        if self._running.pop(job, None) is not None:  # else it was abandoned
            self._free.append(slot)
            self._runner.end(job, end)
        self._begin()

    def _cancel(self, job: Job) -> None:
        if (task := self._running.get(job)) is not None:
            task.cancel()

    def _press(self, job: Job, failure: Failure) -> None:
        """Abandon a cancelled job that has not ended, in the thread of a timer. If not even the cancellation arrived, a
        handler blocks the loop: first interrupt that one, as if it were in a thread."""
        task = self._running.get(job)
        if task is not None and not task.cancelling():
            _raise_in(self._thread.ident or 0, TimeLimitExceeded)
            threading.Timer(STOPPING_SECONDS, self._give_up, (job, failure)).start()
        else:
            self._give_up(job, failure)

    def _give_up(self, job: Job, failure: Failure) -> None:
        self._late.discard(job)
        task = self._running.pop(job, None)
        if task is None or self._closed:
            return
        if task.cancelling():
            self._free.append(job.slot)
            self._loop.call_soon_threadsafe(self._begin)
        else:
            self._runner.replace(self)
        self._runner.end(job, Failed(failure))

    async def _finish(self) -> None:
        while self._running:
            await asyncio.wait(list(self._running.values()))

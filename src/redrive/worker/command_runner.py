"""A runner that starts a program for each item, with the payload as stdin; `command_outcome` maps its exit."""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from redrive.broker.worker_session import Failed, Outcome, Returned
from redrive.errors import RedriveError
from redrive.model.duration import SECOND
from redrive.model.failure import Failure, failure_from_exception, failure_from_fields
from redrive.model.item import Lease
from redrive.telemetry import events
from redrive.worker.command_outcome import CommandHandler, outcome_of
from redrive.worker.command_process import CommandProcess, CommandResult, CommandSpec, NotStarted
from redrive.worker.output_forwarder import LogForwarder, Origin, OutputForwarder
from redrive.worker.runner import Ended, Job

RETRY_SECONDS = 1.0
"""Seconds that a slot waits after a program could not be started."""
TAKEN_SECONDS = 0.1
"""Seconds between checks whether slots that others used are free."""
KILLING_SECONDS = 5.0
"""Seconds to wait for stopped programs beyond their grace period."""
STDOUT, STDERR = 1, 2
"""Descriptors of this process."""
_log = events.logger("redrive.worker")

Claim = Callable[[Job, Callable[[CommandSpec], CommandResult]], Outcome | None]
"""A check before an item is run: None to run it, else the outcome of its delivery. Its second argument runs programs.
"""


class CommandRunner:
    """A runner of one program per job, up to `slots` concurrently. Each is a process, so that none harms another.

    `taken` returns the number of slots that a runner before this one still uses: until they are free, this has fewer.
    """

    isolated = True

    def __init__(
        self,
        command: CommandHandler,
        slots: int,
        namespace: str,
        claim: Claim | None = None,
        taken: Callable[[], int] = lambda: 0,
    ) -> None:
        self.most = slots
        self._taken = taken
        self._command = command
        self._namespace = namespace
        self._claim = claim
        self._ended: Ended
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._runs: dict[Job, CommandProcess | None] = {}
        """Jobs that have started, and the program that runs for each now, if there is one."""
        self._closing = self._killing = self._over = False
        self._killed: list[Job] = []
        self._output, self._errors = OutputForwarder(STDOUT), LogForwarder(STDERR)

    @property
    def slots(self) -> int:
        """Number of jobs that can run concurrently now."""
        return max(0, self.most - self._taken())

    @property
    def in_use(self) -> int:
        """Number of jobs that run or wait."""
        with self._changed:
            return len(self._runs) + len(self._waiting)

    def start(self, ended: Ended) -> None:
        """Keep the callback. Threads are started as they are needed."""
        self._ended = ended

    def submit(self, jobs: Sequence[Job]) -> None:
        """Run these, in order, as soon as there is room."""
        with self._changed:
            self._waiting.extend(jobs)
            while len(self._threads) < self.most and self._idle < len(self._waiting):
                self._idle += 1  # the new thread is, from its start
                thread = threading.Thread(target=self._work, name=f"redrive-{self._command.name}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()  # not `notify`: other threads wait for `_closing`

    def running(self) -> Collection[Job]:
        """Return the jobs that run now."""
        with self._changed:
            return tuple(self._runs)

    def cancel_queued(self) -> list[Job]:
        """Remove and return the jobs that have not started."""
        with self._changed:
            taken = list(self._waiting)
            self._waiting.clear()
        return taken

    def interrupt(self, job: Job, failure: Failure) -> None:
        """Do nothing: the parent of commands enforces the timeout of a program."""

    def revoke(self, job: Job) -> None:
        """End its program, and all that this has started. The slot is free once they have ended."""
        with self._changed:
            run = self._runs.get(job)
        if run is not None:  # else it does not start: the lost lease is checked before
            run.stop()

    def close(self, jobs_too: bool) -> list[Job]:
        """Stop, after what runs. With `jobs_too`, end that instead, and return its jobs: they are not charged."""
        with self._changed:
            self._closing, self._killing = True, jobs_too
            running = [run for run in self._runs.values() if run is not None] if jobs_too else []
            self._changed.notify_all()
        for run in running:
            run.stop()
        until = time.monotonic() + self._command.program.kill_grace / SECOND + KILLING_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()) if jobs_too else None)
        for passing in (self._output, self._errors):
            passing.close()
        with self._changed:
            self._over = True  # the worker returns the jobs of this list; their outcomes are ignored from here on
            return [*self._killed, *self._runs]

    # A thread for each slot.

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                end = self._perform(job)
            except (NotStarted, RedriveError) as error:
                if getattr(error, "errno", None) == errno.E2BIG:  # the headers of the item are too large
                    self._finish(job, Failed(failure_from_exception(error, worker=job.lease.worker)))
                    continue
                _log.error("command_not_started", item=job.lease.id, queue=job.lease.queue, error=str(error))
                self._finish(job, Returned(f"its command cannot be started: {error}"[:500]))
                self._pause(RETRY_SECONDS)
            except Exception as error:
                _log.exception("command_failed", item=job.lease.id, queue=job.lease.queue)
                self._finish(job, Failed(failure_from_fields(type(error).__name__, str(error))))
            else:
                self._finish(job, end)

    def _next(self) -> Job | None:
        with self._changed:
            while not self._closing and (not self._waiting or len(self._runs) >= self.slots):
                self._changed.wait(TAKEN_SECONDS if self._waiting else None)
            if not self._waiting or self._closing:
                return None
            self._idle -= 1
            job = self._waiting.popleft()
            if not job.lease_lost:  # else another worker may have it
                job.began_at = time.monotonic()
            self._runs[job] = None
            return job

    def _finish(self, job: Job, end: Outcome | None) -> None:
        job.duration = time.monotonic() - (job.began_at or time.monotonic())
        with self._changed:
            del self._runs[job]
            self._idle += 1
            if end is None:
                self._killed.append(job)
            is_over = self._over
        if end is not None and not is_over:
            self._ended(job, end)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing, seconds)

    def _perform(self, job: Job) -> Outcome | None:
        """Run a job and return its outcome; None if a stop interrupted it, for the worker to return it."""
        if job.lease_lost:
            return Returned()
        command = self._command
        try:
            if self._claim is not None:
                refused = self._claim(job, lambda program: self._run(job, program, keep_output=False))
                if refused is not None:
                    return refused
            ran = self._run(job, command.program, keep_output=command.keep_result is not None)
        except Stopped:
            return Returned() if job.lease_lost else None
        return outcome_of(command, job, ran)

    def _run(self, job: Job, program: CommandSpec, *, keep_output: bool) -> CommandResult:
        """Run a program for a job. Raises `Stopped` if it was interrupted."""
        run = CommandProcess(
            program,
            job.lease.payload,
            variables_of(job.lease, self._namespace),
            keep_output=keep_output,
            output=self._output,
            errors=self._errors,
            item=job.lease.id,
            origin=Origin(job.lease.id, job.lease.queue, job.handling.redact),
        )
        with self._changed:
            self._runs[job] = run
            if self._killing or job.lease_lost:
                run.stop()
        ran = run.wait()
        if ran.is_stopped:
            raise Stopped
        return ran


class Stopped(Exception):
    """An error for a program that was interrupted because the worker stops or has lost the lease."""


def variables_of(lease: Lease, namespace: str) -> dict[str, str]:
    """Return the fields of an item as environment variables, without the fencing token, which is a secret."""
    return {
        "REDRIVE_ID": lease.id,
        "REDRIVE_QUEUE": lease.queue,
        "REDRIVE_NAMESPACE": namespace,
        "REDRIVE_CONTENT_TYPE": lease.content_type,
        "REDRIVE_PRIORITY": str(lease.priority),
        "REDRIVE_DELIVERIES": str(lease.deliveries),
        "REDRIVE_ATTEMPT": str(lease.attempts),
        "REDRIVE_FAILURES": str(lease.failures),
        "REDRIVE_LOSSES": str(lease.losses),
        "REDRIVE_REDRIVES": str(lease.redrives),
        "REDRIVE_WORKER": lease.worker or "",
        **_headers(lease.headers),
    }


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers as variables. If several become the same variable, the last in order of names wins."""
    return {
        "REDRIVE_HEADER_" + "".join(c if c.isascii() and c.isalnum() else "_" for c in name).upper(): value
        for name, value in sorted(headers.items())
    }

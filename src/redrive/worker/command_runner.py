"""Runs a program for each item, which is given the payload; `command_outcome` maps its exit to an outcome."""

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
"""How long a slot waits after a program could not be started."""
TAKEN_SECONDS = 0.1
"""How often it looks whether slots are free that others had."""
KILLING_SECONDS = 5.0
"""How long programs that were killed are waited for."""
STDOUT, STDERR = 1, 2
"""Descriptors of this process."""
_log = events.logger("redrive.worker")

Claim = Callable[[Job, Callable[[CommandSpec], CommandResult]], Outcome | None]
"""Asked before an item is run: None to go on, else how its delivery ends without. It runs programs by what it is given.
"""


class CommandRunner:
    """Runs a program for each job, so many at once. A program is a process, so that none harms another.

    `taken` says how many of the slots others use, whose place it takes: until they are free, it has fewer.
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
        """Jobs that have begun; with what runs for them now, if anything does."""
        self._closing = self._killing = self._over = False
        self._killed: list[Job] = []
        self._output, self._errors = OutputForwarder(STDOUT), LogForwarder(STDERR)

    @property
    def slots(self) -> int:
        """How many can run at once, now."""
        return max(0, self.most - self._taken())

    @property
    def in_use(self) -> int:
        """Jobs that run, or are about to."""
        with self._changed:
            return len(self._runs) + len(self._waiting)

    def start(self, ended: Ended) -> None:
        """Threads are started as they are needed."""
        self._ended = ended

    def submit(self, jobs: Sequence[Job]) -> None:
        """Run these, in order, as soon as there is room."""
        with self._changed:
            self._waiting.extend(jobs)
            while len(self._threads) < self.most and self._idle < len(self._waiting):
                self._idle += 1  # it will be
                thread = threading.Thread(target=self._work, name=f"redrive-{self._command.name}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()  # some may wait for something else

    def running(self) -> Collection[Job]:
        """Jobs that run at this moment."""
        with self._changed:
            return tuple(self._runs)

    def cancel_queued(self) -> list[Job]:
        """Jobs that have not begun, and now never will."""
        with self._changed:
            taken = list(self._waiting)
            self._waiting.clear()
        return taken

    def interrupt(self, job: Job, failure: Failure) -> None:
        """Programs have a time limit of their own, which is seen to where they run."""

    def revoke(self, job: Job) -> None:
        """End its program, with all that it started. The slot is free once they are gone."""
        with self._changed:
            run = self._runs.get(job)
        if run is not None:  # else it is not started: it was seen before that the lease is lost
            run.stop()

    def close(self, jobs_too: bool) -> list[Job]:
        """Stop. With `jobs_too` what runs is ended, and given back: it is to blame for nothing."""
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
            self._over = True  # what ends from here on is given back by the worker
            return [*self._killed, *self._runs]

    # A thread for each slot.

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                end = self._perform(job)
            except (NotStarted, RedriveError) as error:
                if getattr(error, "errno", None) == errno.E2BIG:  # of all reasons not to start, the one that is its own
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
            if not job.lease_lost:  # else somebody else may have it
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
        """How it ended; None where it was cut short by a stop, which the worker knows to give back."""
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
        """Run a program for a job. Raises `Stopped` where it was cut short."""
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
    """A program was cut short because the worker stops, or has lost its lease."""


def variables_of(lease: Lease, namespace: str) -> dict[str, str]:
    """The fields of an item as variables of the environment. The token is not among them: it is a secret."""
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
    """Of names that become the same variable, the last in order has it."""
    return {
        "REDRIVE_HEADER_" + "".join(c if c.isascii() and c.isalnum() else "_" for c in name).upper(): value
        for name, value in sorted(headers.items())
    }

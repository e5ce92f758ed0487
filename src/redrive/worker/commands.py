"""Items as the input of programs: a process for each, which is given the payload and says by its exit code how it went.

0     done                          65 (EX_DATAERR)   failed, and no other try would help
75 (EX_TEMPFAIL)   given back       any other code    failed, with the end of stderr as the error
killed by a signal: lost, like a handler that took its process with it
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from redrive.broker.exchange import Completed, End, Failed, Lost, Released, Returned
from redrive.errors import RedriveError
from redrive.model.classify import ErrorClass
from redrive.model.duration import SECOND, format_duration
from redrive.model.failure import Failure, failure_from_exception, failure_from_fields, failure_from_loss
from redrive.model.fingerprint import fingerprint
from redrive.model.item import Lease, Result
from redrive.model.payload import BYTES, JSON
from redrive.model.program import Program
from redrive.telemetry import events, tracing
from redrive.worker.job import HOST
from redrive.worker.passing import Passing
from redrive.worker.program import MAX_OUTPUT_BYTES, TAIL_BYTES, Ran, Run
from redrive.worker.runner import Ended, Job

DATA_ERROR = 65
"""EX_DATAERR of sysexits.h: what the program was given is wrong."""
TRY_LATER = 75
"""EX_TEMPFAIL of sysexits.h: it cannot be done now."""
AGAIN_SECONDS = 1.0
"""How long a slot waits after a program could not be started."""
TAKEN_SECONDS = 0.1
"""How often it looks whether slots are free that others had."""
KILLING_SECONDS = 5.0
"""How long programs that were killed are waited for."""
STDOUT, STDERR = 1, 2
"""Descriptors of this process."""
TEXT = "text/plain; charset=utf-8"
_log = events.logger("redrive.worker")

Claim = Callable[[Job, Callable[[Program], Ran]], End | None]
"""Asked before an item is run: None to go on, else how its delivery ends without. It runs programs by what it is given.
"""


class Command(msgspec.Struct, frozen=True):
    """What is run for each item, and what becomes of it."""

    name: str
    """By which failures of it are told from those of others."""
    program: Program
    release_delay: int = 30 * SECOND
    """How long an item waits that was given back with exit code 75."""
    keep_result: int | None = None
    """How long what it prints is kept as the result; None: not at all."""


class CommandRunner:
    """Runs a program for each job, so many at once. A program is a process, so that none harms another.

    `taken` says how many of the slots others use, whose place it takes: until they are free, it has fewer.
    """

    isolated = True

    def __init__(
        self,
        command: Command,
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
        self._runs: dict[Job, Run | None] = {}
        """Jobs that have begun; with what runs for them now, if anything does."""
        self._closing = self._killing = self._over = False
        self._killed: list[Job] = []
        self._output, self._errors = Passing(STDOUT), Passing(STDERR)

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

    def begun(self) -> Collection[Job]:
        """Jobs that run at this moment."""
        with self._changed:
            return tuple(self._runs)

    def take_back(self) -> list[Job]:
        """Jobs that have not begun, and now never will."""
        with self._changed:
            taken = list(self._waiting)
            self._waiting.clear()
        return taken

    def stop_job(self, job: Job, failure: Failure) -> None:
        """Programs have a time limit of their own, which is seen to where they run."""

    def close(self, jobs_too: bool) -> list[Job]:
        """Stop. With `jobs_too` what runs is ended, and given back: it is to blame for nothing."""
        with self._changed:
            self._closing, self._killing = True, jobs_too
            running = [run for run in self._runs.values() if run is not None] if jobs_too else []
            self._changed.notify_all()
        for run in running:
            run.stop()
        until = time.monotonic() + self._command.program.grace / SECOND + KILLING_SECONDS
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
            except (OSError, RedriveError) as error:
                if getattr(error, "errno", None) == errno.E2BIG:  # of all reasons not to start, the one that is its own
                    self._finish(job, Failed(failure_from_exception(error, worker=job.lease.worker)))
                    continue
                _log.error("command_not_started", item=job.lease.id, queue=job.lease.queue, error=str(error))
                self._finish(job, Returned(f"its command cannot be started: {error}"[:500]))
                self._pause(AGAIN_SECONDS)
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

    def _finish(self, job: Job, end: End | None) -> None:
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

    def _perform(self, job: Job) -> End | None:
        """How it ended; None where it was cut short, which the worker knows to give back."""
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
            return None
        return end_of(command, job, ran)

    def _run(self, job: Job, program: Program, *, keep_output: bool) -> Ran:
        """Run a program for a job. Raises `Stopped` where it was cut short."""
        run = Run(
            program,
            job.lease.payload,
            variables_of(job.lease, self._namespace),
            keep_output=keep_output,
            output=self._output,
            errors=self._errors,
        )
        with self._changed:
            self._runs[job] = run
            if self._killing:
                run.stop()
        ran = run.wait()
        if ran.is_stopped:
            raise Stopped
        return ran


class Stopped(Exception):
    """A program was cut short because the worker stops."""


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


def end_of(command: Command, job: Job, ran: Ran) -> End:
    """How a delivery ended, by how its program did."""
    if ran.is_late:
        return Failed(_too_long(command.program, job, ran))
    if ran.exit.signal is not None:
        return Lost(lost(command.name, job.lease, ran))
    if ran.exit.is_clean:
        return _completed(command, job, ran)
    if ran.exit.exit_code == TRY_LATER:
        return Released(command.release_delay, tail(ran.errors) or None)
    return Failed(failure_of(job, ran))


def _completed(command: Command, job: Job, ran: Ran) -> End:
    if command.keep_result is None:
        return Completed()
    if not ran.is_whole:
        text = f"the command printed more than {MAX_OUTPUT_BYTES:,} bytes, and its output is to be kept as the result"
        return Failed(_detailed(failure_from_fields("OutputTooLarge", text, worker=job.lease.worker), ran, job))
    return Completed(Result(ran.output, _content_type(ran.output)), keep=command.keep_result)


def _content_type(output: bytes) -> str:
    try:
        msgspec.json.decode(output)
        return JSON
    except (ValueError, RecursionError):  # also for texts that are not UTF-8
        pass
    try:
        output.decode()
        return TEXT
    except UnicodeDecodeError:
        return BYTES


def failure_of(job: Job, ran: Ran) -> Failure:
    """What a program failed of: the end of what it wrote to stderr, its last line first."""
    errors = tail(ran.errors)
    last = errors.rpartition("\n")[2]
    code = ran.exit.exit_code
    type, is_final = f"ExitCode{code}", code == DATA_ERROR
    text = (last if last == errors else f"{last}\n\n{errors}") or f"exit code {code}, and nothing on stderr"
    failure = failure_from_fields(
        type,
        text,
        bases=("ExitCode",),
        error_class=ErrorClass.VALIDATION if is_final else None,
        worker=job.lease.worker,
        final=is_final,
        rules=job.handling.rules,
    )
    # By the last line alone: what a program says before it is seldom the same twice.
    failure = msgspec.structs.replace(failure, fingerprint=fingerprint(type, (), last), exit_code=code)
    return _detailed(failure, ran, job)


def _too_long(program: Program, job: Job, ran: Ran) -> Failure:
    text = f"the command ran for longer than its timeout, which is {format_duration(program.timeout or 0)}"
    said = tail(ran.errors)
    failure = failure_from_fields(
        "TimeLimitExceeded",
        f"{text}\n\n{said}" if said else text,
        worker=job.lease.worker,
        rules=job.handling.rules,
    )
    return _detailed(msgspec.structs.replace(failure, fingerprint=fingerprint(failure.type, (), text)), ran, job)


def lost(name: str, lease: Lease, ran: Ran) -> Failure:
    """The failure of an item whose program was killed, and not by us."""
    # Its peak memory is not told: a program that ends soon has that of the worker, from before it was started.
    return failure_from_loss(
        ran.exit.signal,
        ran.exit.exit_code,
        duration=int(ran.seconds * SECOND),
        what="the command",
        task=name,
        worker=lease.worker,
        host=HOST,
        trace_id=tracing.trace_id(lease.headers),
    )


def _detailed(failure: Failure, ran: Ran, job: Job) -> Failure:
    return msgspec.structs.replace(
        failure, host=HOST, duration=int(ran.seconds * SECOND), trace_id=tracing.trace_id(job.lease.headers)
    )


def tail(errors: bytes) -> str:
    """The end of what a program wrote to stderr; where it wrote more, from the beginning of a line on."""
    if len(errors) >= TAIL_BYTES and b"\n" in errors[:-1]:
        errors = errors.partition(b"\n")[2]
    return errors.decode(errors="replace").replace("\r\n", "\n").strip()

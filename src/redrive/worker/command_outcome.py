"""The outcome of a delivery, by the exit of the program that ran for it.

0                  completed        65 (EX_DATAERR)   failed, and not retried
75 (EX_TEMPFAIL)   released         any other code    failed, with the end of stderr as the error
over its timeout: failed; killed by a signal, or with an unknown exit: lost, like a handler whose process died
"""

from __future__ import annotations

import msgspec

from redrive.broker.worker_session import Completed, Failed, Lost, Outcome, Released
from redrive.model.classify import ErrorClass
from redrive.model.duration import SECOND, format_duration
from redrive.model.failure import Failure, failure_from_fields, failure_from_loss
from redrive.model.fingerprint import fingerprint
from redrive.model.item import Lease, Result
from redrive.model.payload import BYTES, JSON, TEXT
from redrive.telemetry import tracing
from redrive.worker.command_process import MAX_OUTPUT_BYTES, TAIL_BYTES, CommandResult, CommandSpec
from redrive.worker.execution import HOST
from redrive.worker.runner import Job

DATA_ERROR = 65
"""EX_DATAERR of sysexits.h: the input of the program is wrong."""
TRY_LATER = 75
"""EX_TEMPFAIL of sysexits.h: a temporary failure."""


class CommandHandler(msgspec.Struct, frozen=True):
    """The program that runs for each item, and how its exit and output are used."""

    name: str
    """The name under which its losses are grouped, like that of a task."""
    program: CommandSpec
    release_delay: int = 30 * SECOND
    """Time that an item waits after exit code 75."""
    keep_result: int | None = None
    """Time for which its output is kept as the result; None: it is not kept."""


def outcome_of(command: CommandHandler, job: Job, ran: CommandResult) -> Outcome:
    """Return the outcome of a delivery, by the exit of its program."""
    if ran.timed_out:
        return Failed(_too_long(command.program, job, ran))
    if ran.exit.signal is not None or ran.exit_unknown:
        return Lost(lost_outcome(command.name, job.lease, ran))
    if ran.exit.is_clean:
        return _completed(command, job, ran)
    if ran.exit.exit_code == TRY_LATER:
        return Released(command.release_delay, tail(ran.errors) or None)
    return Failed(failure_of(job, ran))


def _completed(command: CommandHandler, job: Job, ran: CommandResult) -> Outcome:
    if command.keep_result is None:
        return Completed()
    if not ran.is_complete:
        text = f"the command printed more than {MAX_OUTPUT_BYTES:,} bytes, and its output is to be kept as the result"
        # Final: a retry would repeat all of the work, and print as much.
        failure = failure_from_fields("OutputTooLarge", text, worker=job.lease.worker, final=True)
        return Failed(_detailed(failure, ran, job))
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


def failure_of(job: Job, ran: CommandResult) -> Failure:
    """Return the failure of a program: the end of its stderr, with the last line first."""
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
    # By the last line only: the lines before it usually differ between runs.
    failure = msgspec.structs.replace(failure, fingerprint=fingerprint(type, (), last), exit_code=code)
    return _detailed(failure, ran, job)


def _too_long(program: CommandSpec, job: Job, ran: CommandResult) -> Failure:
    text = f"the command ran for longer than its timeout, which is {format_duration(program.timeout or 0)}"
    said = tail(ran.errors)
    failure = failure_from_fields(
        "TimeLimitExceeded",
        f"{text}\n\n{said}" if said else text,
        worker=job.lease.worker,
        rules=job.handling.rules,
    )
    return _detailed(msgspec.structs.replace(failure, fingerprint=fingerprint(failure.type, (), text)), ran, job)


def lost_outcome(name: str, lease: Lease, ran: CommandResult) -> Failure:
    """Return the failure of an item whose program was killed, but not by its timeout, or ended with an unknown exit."""
    # Without peak memory: for a short run the system reports that of the process that started it.
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


def _detailed(failure: Failure, ran: CommandResult, job: Job) -> Failure:
    return msgspec.structs.replace(
        failure, host=HOST, duration=int(ran.seconds * SECOND), trace_id=tracing.trace_id(job.lease.headers)
    )


def tail(errors: bytes) -> str:
    """Return the end of what a program wrote to stderr, from the start of a line if it wrote more."""
    if len(errors) >= TAIL_BYTES and b"\n" in errors[:-1]:
        errors = errors.partition(b"\n")[2]
    return errors.decode(errors="replace").replace("\r\n", "\n").strip()

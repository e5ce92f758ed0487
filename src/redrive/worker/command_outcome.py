"""How the delivery of an item ended, by how the program that was run for it did.

0     done                          65 (EX_DATAERR)   failed, and no other try would help
75 (EX_TEMPFAIL)   given back       any other code    failed, with the end of stderr as the error
killed by a signal, or gone and nobody saw how: lost, like a handler that took its process with it
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
"""EX_DATAERR of sysexits.h: what the program was given is wrong."""
TRY_LATER = 75
"""EX_TEMPFAIL of sysexits.h: it cannot be done now."""


class CommandHandler(msgspec.Struct, frozen=True):
    """What is run for each item, and what becomes of it."""

    name: str
    """By which failures of it are told from those of others."""
    program: CommandSpec
    release_delay: int = 30 * SECOND
    """How long an item waits that was given back with exit code 75."""
    keep_result: int | None = None
    """How long what it prints is kept as the result; None: not at all."""


def outcome_of(command: CommandHandler, job: Job, ran: CommandResult) -> Outcome:
    """How a delivery ended, by how its program did."""
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
        # Final: it has done its work, and would do all of it again to print as much.
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
    """The failure of an item whose program was killed, and not by us; or is gone, and nobody saw how."""
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


def _detailed(failure: Failure, ran: CommandResult, job: Job) -> Failure:
    return msgspec.structs.replace(
        failure, host=HOST, duration=int(ran.seconds * SECOND), trace_id=tracing.trace_id(job.lease.headers)
    )


def tail(errors: bytes) -> str:
    """The end of what a program wrote to stderr; where it wrote more, from the beginning of a line on."""
    if len(errors) >= TAIL_BYTES and b"\n" in errors[:-1]:
        errors = errors.partition(b"\n")[2]
    return errors.decode(errors="replace").replace("\r\n", "\n").strip()

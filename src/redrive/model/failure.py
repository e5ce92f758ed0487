"""Failures of one attempt, made from an exception, from reported fields, or from the loss of a worker.

Recording a failure never fails: any exception gives a Failure, clean and bounded. Terminal escapes are removed, and
NUL and lone surrogates replaced, because not every store can hold them. Redaction is done on reading. The instant of a
failure is that of the transaction that stores it.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from redrive.clock import Instant
from redrive.model.classify import ErrorClass, ErrorRule, class_of_type, classify, find_class, names_of, type_matches
from redrive.model.duration import MAX_DURATION, Duration, format_duration
from redrive.model.error_attributes import codes_of, related_errors, status_code_of
from redrive.model.exception import (
    MAX_BASES,
    describe_variables,
    format_traceback,
    group_members,
    names_of_error,
    plain_name,
    safe_str,
)
from redrive.model.fingerprint import fingerprint, fingerprint_of_frames, frames_of, normalise_text
from redrive.model.limits import KIB
from redrive.model.retry_after import MAX_RETRY_AFTER, retry_after_of
from redrive.model.text import MAX_TEXT_BYTES, MAX_TYPE_BYTES, clean_text, format_bytes, format_elapsed, join_lines

MAX_TRACEBACK_BYTES = 32 * KIB
MAX_LOCALS_BYTES = 16 * KIB
MAX_TRACE_ID_BYTES = 64
MAX_SIGNAL_BYTES = 32
# The largest integer that all JSON readers keep exactly; no process has more memory.
MAX_MEMORY_BYTES = 2**53 - 1
MAX_EXIT_CODE = 2**32 - 1
MAX_TITLE_CHARS = 160

WORKER_LOST = "WorkerLost"
"""The type of the failure of an item whose worker process is gone."""


class Failure(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The failure of one attempt. `bases` are the classes that its type derives from, nearest first.

    `final` is true if the item must not be retried, regardless of the queue's settings.
    """

    # Fields of a later release are ignored, so that programs of this release can still read the item.

    type: str
    text: str
    traceback: str | None = None
    error_class: ErrorClass = ErrorClass.PERMANENT
    fingerprint: str = ""
    worker: str | None = None
    final: bool = False
    bases: tuple[str, ...] = ()
    host: str | None = None
    """The machine that the worker ran on."""
    duration: Duration | None = None
    """The run time of the handler, in microseconds."""
    trace_id: str | None = None
    """The id of the trace that the attempt was part of; 32 hexadecimal digits."""
    locals: str | None = None
    """The variables of the innermost frames, only if that is enabled; detected secrets are hidden."""
    signal: str | None = None
    """The signal that killed the worker process, as in `SIGSEGV`."""
    exit_code: int | None = None
    """The exit code of the worker process, if no signal killed it."""
    peak_memory: int | None = None
    """The peak memory of the worker process, in bytes."""
    retry_after: Duration | None = None
    """The time that the called service asked to wait before the next call, in microseconds; at most an hour."""

    def __str__(self) -> str:
        ran = "" if self.duration is None else f" after {format_elapsed(self.duration)}"
        who = "" if self.worker is None else f" by {self.worker}"
        where = "" if self.host is None else f" on {self.host}"
        trace = "" if self.trace_id is None else f", trace {self.trace_id}"
        wait = "" if self.retry_after is None else f", asks to wait {format_duration(self.retry_after)}"
        known = f"{self.error_class}{ran}{who}{where}{trace}{wait}, fingerprint {self.fingerprint}"
        return join_lines(self.title, known)

    @property
    def type_names(self) -> tuple[str, ...]:
        """All names of its type and bases that settings may use, nearest first; see `type_matches`."""
        return _aliases((self.type, *self.bases))

    @property
    def title(self) -> str:
        """The failure in one short line."""
        return (_short_title if len(self.text) <= MAX_TITLE_CHARS else _title)(self.type, self.text)


def _title(type_name: str, text: str) -> str:
    name, first = type_name.rpartition(".")[2], text.strip().partition("\n")[0].strip()
    line = f"{name}: {first}" if first else name
    return line if len(line) <= MAX_TITLE_CHARS else line[: MAX_TITLE_CHARS - 1] + "…"


_short_title = lru_cache(maxsize=1024)(_title)


@lru_cache(maxsize=1024)
def _aliases(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(alias for name in names for alias in names_of(name)))


def failure_from_exception(
    error: BaseException,
    *,
    worker: str | None = None,
    rules: Sequence[ErrorRule] = (),
    final_types: Sequence[type[BaseException] | str] = (),
    host: str | None = None,
    trace_id: str | None = None,
    with_locals: bool = False,
    now: Instant | None = None,
) -> Failure:
    """Return the failure for an exception. Never raise; the exception is only read, never raised or kept.

    `final_types` are exception classes or names as in `type_matches`; subclasses are final too. `with_locals` prints
    the variables of the innermost frames. Without `now`, a Retry-After that is a date is ignored.
    """
    try:
        failure = _describe(error, worker, rules, final_types, now)
    except BaseException as problem:
        # A value that cannot be described (its own __class__, a metaclass that raises) still becomes a failure. This
        # catches KeyboardInterrupt too: methods of an exception can raise it, and the failure must not be lost.
        failure = Failure(
            type=plain_name(error),
            text=f"the error could not be described: {plain_name(problem)}",
            fingerprint=fingerprint(plain_name(error), (), ""),
            worker=_clean(worker, MAX_TYPE_BYTES),
        )
    if host is None and trace_id is None and not with_locals:
        return failure
    return msgspec.structs.replace(
        failure,
        host=_clean(host, MAX_TYPE_BYTES),
        trace_id=_clean(trace_id, MAX_TRACE_ID_BYTES),
        locals=_clean(describe_variables(error) or None, MAX_LOCALS_BYTES) if with_locals else None,
    )


def failure_from_fields(
    type: str,
    text: str,
    traceback: str | None = None,
    *,
    bases: Sequence[str] = (),
    status_code: int | None = None,
    error_class: ErrorClass | str | None = None,
    worker: str | None = None,
    final: bool = False,
    rules: Sequence[ErrorRule] = (),
    retry_after: Duration | None = None,
) -> Failure:
    """Return the failure for fields that a caller in another language or process reports."""
    type, text = clean_text(type, MAX_TYPE_BYTES), clean_text(text, MAX_TEXT_BYTES)
    names = tuple(clean_text(base, MAX_TYPE_BYTES) for base in bases[:MAX_BASES])
    return Failure(
        type=type,
        text=text,
        traceback=_clean(traceback, MAX_TRACEBACK_BYTES),
        error_class=_known_class(error_class) or classify(type, names, status_code, text, rules),
        fingerprint=fingerprint(type, (), text),
        worker=_clean(worker, MAX_TYPE_BYTES),
        final=final,
        bases=names,
        retry_after=_bounded(retry_after, 0, MAX_RETRY_AFTER),
    )


def _known_class(given: ErrorClass | str | None) -> ErrorClass | None:
    """Return a class of errors that a program may have given as text; None for any other value."""
    return next((each for each in ErrorClass if each == given), None)


def failure_from_loss(
    signal: str | int | None = None,
    exit_code: int | None = None,
    peak_memory: int | None = None,
    duration: int | None = None,
    *,
    what: str = "the worker process",
    task: str | None = None,
    because: str | None = None,
    worker: str | None = None,
    host: str | None = None,
    trace_id: str | None = None,
) -> Failure:
    """Return the failure of an item whose worker process is lost, from the known facts about its end.

    `what` is the lost process, if it is not the worker process. `because` is the reason for which it was ended, as in
    "its time limit of 30s is over". Losses of one task by one signal or exit code, for one reason, share a fingerprint.
    """
    name = signal_name(signal)
    why = None if because is None else clean_text(because, MAX_TYPE_BYTES)
    end = name or ("" if exit_code is None else f"exit {exit_code}")
    made = Failure(
        type=WORKER_LOST,
        text=f"{what} {_end_of_loss(name, exit_code, peak_memory, duration, why)}",
        error_class=ErrorClass.POISON,
        fingerprint=fingerprint(WORKER_LOST, (f"task {task or ''}", end, normalise_text(why or "")), ""),
        worker=worker,
        host=host,
        duration=duration,
        trace_id=trace_id,
        signal=name,
        exit_code=exit_code,
        peak_memory=peak_memory,
    )
    return normalize_failure(made)


def _end_of_loss(
    signal: str | None, exit_code: int | None, peak_memory: int | None, duration: int | None, because: str | None
) -> str:
    if signal is not None:
        end = f"was killed by {signal}"
    elif exit_code is not None:
        end = f"ended with exit code {exit_code}"
    else:
        end = "vanished"
    after = "" if duration is None else f" after {format_elapsed(duration)}"
    why = "" if because is None else f" because {because}"
    if because is None and signal == "SIGKILL":
        why = " (out of memory?)"  # the only other likely sender is an operator, who knows
    memory = "" if peak_memory is None else f"; peak memory {format_bytes(peak_memory)}"
    return f"{end}{after}{why}{memory}"


def signal_name(signal: str | int | None) -> str | None:
    """Return the name of a signal on this system, as in `SIGSEGV`, from its number."""
    if signal is None or isinstance(signal, str):
        return signal
    try:
        return signals.Signals(signal).name
    except ValueError:
        return f"signal {signal}"


def normalize_failure(failure: Failure) -> Failure:
    """Return a failure that a program made itself, cleaned and bounded so that every store can hold it."""
    made = failure_from_fields(
        failure.type,
        failure.text,
        failure.traceback,
        bases=failure.bases,
        error_class=failure.error_class,
        worker=failure.worker,
        final=failure.final,
        retry_after=failure.retry_after,
    )
    return msgspec.structs.replace(
        made,
        fingerprint=clean_text(failure.fingerprint, MAX_TYPE_BYTES) or made.fingerprint,
        host=_clean(failure.host, MAX_TYPE_BYTES),
        duration=_bounded(failure.duration, 0, MAX_DURATION),
        trace_id=_clean(failure.trace_id, MAX_TRACE_ID_BYTES),
        locals=_clean(failure.locals, MAX_LOCALS_BYTES),
        signal=_clean(failure.signal, MAX_SIGNAL_BYTES),
        exit_code=_bounded(failure.exit_code, -MAX_EXIT_CODE, MAX_EXIT_CODE),
        peak_memory=_bounded(failure.peak_memory, 0, MAX_MEMORY_BYTES),
    )


def _clean(text: str | None, limit: int) -> str | None:
    return None if text is None else clean_text(text, limit)


def _bounded(number: int | None, smallest: int, largest: int) -> int | None:
    """Return the number, or the bound that it exceeds; None if the value is no integer."""
    if isinstance(number, bool) or not isinstance(number, int):
        return None
    return min(max(number, smallest), largest)


def _describe(
    error: BaseException,
    worker: str | None,
    rules: Sequence[ErrorRule],
    final_types: Sequence[type[BaseException] | str],
    now: Instant | None,
) -> Failure:
    type_name, bases = names_of_error(error)
    text = safe_str(error)
    frames = frames_of(error)
    return Failure(
        type=type_name,
        text=text,
        traceback=clean_text(format_traceback(error, frames, type_name, text), MAX_TRACEBACK_BYTES) if frames else None,
        error_class=_class_of(error, type_name, bases, text, rules),
        fingerprint=fingerprint_of_frames(type_name, frames, text),
        worker=_clean(worker, MAX_TYPE_BYTES),
        final=bool(final_types) and any(_is_a(error, type_name, bases, final) for final in final_types),
        bases=bases,
        retry_after=retry_after_of(error, now),
    )


def _class_of(
    error: BaseException, type_name: str, bases: tuple[str, ...], text: str, rules: Sequence[ErrorRule]
) -> ErrorClass:
    if isinstance(error, BaseExceptionGroup):
        # Retrying a group helps only if it helps every member, so it has the least retryable class of its members.
        classes = {_class_of(e, *names_of_error(e), safe_str(e), rules) for e in group_members(error)}
        return next((grave for grave in reversed(ErrorClass) if grave in classes), ErrorClass.PERMANENT)
    if not rules and (known := class_of_type((type_name, *bases))):
        return known
    found = find_class(type_name, bases, status_code_of(error), text, rules, codes_of(error))
    if found is not None:
        return found
    # An error without a class itself, as `raise SendFailed() from error`, has the class of its cause.
    for cause in related_errors(error)[1:]:
        names = names_of_error(cause)
        found = find_class(*names, status_code_of(cause), safe_str(cause), rules, codes_of(cause))
        if found is not None:
            return found
    return ErrorClass.PERMANENT


def _is_a(error: BaseException, type_name: str, bases: tuple[str, ...], final: type[BaseException] | str) -> bool:
    return type_matches(final, type_name, bases) if isinstance(final, str) else issubclass(type(error), final)

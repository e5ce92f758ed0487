"""Errors of capture. Each is also one of `redrive.errors`, with its code and its fields."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from redrive.errors import InvalidInput, NotFound, QueueFull, RedriveError, Refused
from redrive.model.exception import safe_str

MAX_NOTE = 2000
"""The highest number of characters of an error in a note."""


class CaptureError(RedriveError):
    """The base of all errors of capture."""


class UnknownPolicyError(CaptureError, InvalidInput):
    """No retry policy has this name."""

    def __init__(self, policy: str, known: Sequence[str]) -> None:
        self.policy = policy
        super().__init__(
            f"there is no retry policy {policy!r:.60}; there are {', '.join(known)}, and add_policy(name, function) "
            f"adds one"
        )


class CaptureFullError(CaptureError, QueueFull):
    """The queue holds max_size tasks that are pending, in retry or exhausted."""

    def __init__(self, queue: str, size: int, max_size: int) -> None:
        self.queue, self.size, self.max_size, self.adding = queue, size, max_size, 1
        RedriveError.__init__(
            self,
            f"capture queue '{queue}' is full: it has {size:,} tasks, and max_size is {max_size:,}; archive exhausted "
            f"ones with archive_task or clear_all, or raise max_size",
        )


class NoCallbackError(CaptureError, Refused):
    """This process knows no function that can run tasks of the queue."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        super().__init__(
            f"this process knows no function that can retry the tasks of '{queue}'; give a callback with "
            f"start_retry_processor(callback) or set_callback, or guard a function"
        )


class TaskNotFoundError(CaptureError, NotFound):
    """The queue has no task of this id."""

    def __init__(self, queue: str, task_id: str) -> None:
        self.queue, self.task_id = queue, task_id
        super().__init__(f"capture queue '{queue}' has no task '{task_id}'; a completed one is removed after a day")


class UnboundMethodError(CaptureError, Refused):
    """A guarded method failed, and a retry would have no object to call it on."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"method {name!r} is guarded, and no object is known to call it on in a retry; call dlq.bind(thing.method) "
            f"once, where the program starts"
        )


class CallbackFailed(Exception):
    """A callback returned a result that says that it failed."""


class CaptureDisabledError(CaptureError, Refused):
    """The strategy or the setting `enabled` disables capture."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        super().__init__(
            f"capture queue '{queue}' is disabled; set_strategy('automatic') or REDRIVE_DLQ_ENABLED=true enables it"
        )


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, unless it refuses."""
    try:  # noqa: SIM105  # suppress() costs more than the note
        error.add_note(note)
    except Exception:
        pass


@contextlib.contextmanager
def keep_error(error: object) -> Iterator[None]:
    """Add this error as a note to the exception that the capture of the error raises."""
    try:
        yield
    except Exception as refusal:
        said = f"{type(error).__name__}: {safe_str(error)}" if isinstance(error, BaseException) else str(error)
        add_note(refusal, f"it was not captured: {said[:MAX_NOTE]}")
        raise

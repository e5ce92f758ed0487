"""The exit of a process, and the failure of an item that it ran."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from typing import TYPE_CHECKING, NoReturn

import msgspec

from redrive.clock import Instant, SystemClock
from redrive.model.failure import Failure, failure_from_loss, signal_name
from redrive.model.limits import KIB

if TYPE_CHECKING:
    from resource import struct_rusage

_MEMORY_UNIT = 1 if sys.platform == "darwin" else KIB
"""The unit of `ru_maxrss`, in bytes."""


class Exit(msgspec.Struct, frozen=True):
    """The end of a process: by an exit code or a signal. Both are None if it is unknown."""

    exit_code: int | None
    signal: int | None
    peak_memory: int
    """Peak memory in bytes, of it or of a process that it waited for."""
    at: Instant

    def __str__(self) -> str:
        return f"exit code {self.exit_code}" if self.signal is None else f"{signal_name(self.signal)}"

    @property
    def is_clean(self) -> bool:
        """True if it ended with exit code 0."""
        return self.exit_code == 0


def exit_of(status: int, usage: struct_rusage) -> Exit:
    """Return the exit that `os.wait4` reported, at the current time."""
    code = os.waitstatus_to_exitcode(status)
    return Exit(
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        peak_memory=usage.ru_maxrss * _MEMORY_UNIT,
        at=SystemClock().now(),
    )


def leave_copy() -> NoReturn:
    """End this process: a copy of the worker's, which a handler made by a fork and did not end.

    It would continue with the jobs of the worker, and report their outcomes.
    """
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def loss(
    exit: Exit | None,
    *,
    seconds: float | None = None,
    task: str | None = None,
    worker: str | None = None,
    because: str | None = None,
    trace_id: str | None = None,
) -> Failure:
    """Return the failure of an item whose process ended `seconds` after the item started. `exit` is None if unknown.

    `because` is the reason for which the process was killed.
    """
    return failure_from_loss(
        None if exit is None else exit.signal,
        None if exit is None else exit.exit_code,
        None if exit is None else exit.peak_memory,
        None if seconds is None else int(seconds * 1_000_000),
        task=task,
        because=because,
        worker=worker,
        host=socket.gethostname(),
        trace_id=trace_id,
    )

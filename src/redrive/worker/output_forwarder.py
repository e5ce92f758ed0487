"""Output of programs, forwarded line by line without ever blocking them: stdout to the stdout of this process, and
stderr to its log, as an event for each line.

If that output is not read, a bounded amount is buffered, and the rest is dropped.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque

import msgspec

from redrive.model.limits import KIB, MIB
from redrive.model.redact import redactor_by
from redrive.model.redact_rules import NO_RULES, RedactRules
from redrive.model.text import visible
from redrive.telemetry import events

MOST_WAITING_BYTES = MIB
"""Bytes that are buffered at most."""
LONGEST_LINE_BYTES = 8 * KIB
"""A line that is longer is passed on in parts."""
FLUSH_SECONDS = 1.0
_log = events.logger("redrive.worker")


class Origin(msgspec.Struct, frozen=True):
    """The item that a program runs for, its queue, and the redaction rules of that."""

    item: str | None = None
    queue: str | None = None
    rules: RedactRules = NO_RULES


UNKNOWN = Origin()


class OutputForwarder:
    """A writer to a descriptor in a separate thread. `write` is for any thread, and never blocks.

    For a terminal, control characters are made visible. Other output is unchanged.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._changed = threading.Condition()
        self._is_terminal = os.isatty(descriptor)
        self._waiting: deque[tuple[bytes, Origin]] = deque()
        self._size = 0
        self._skipped = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def write(self, data: bytes, origin: Origin = UNKNOWN) -> None:
        """Queue output, or drop it if too much waits."""
        with self._changed:
            if self._closed or self._size + len(data) > MOST_WAITING_BYTES:
                self._skipped += len(data)
                return
            self._waiting.append((data, origin))
            self._size += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="redrive-output", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Write what waits, for FLUSH_SECONDS at most. Later output is dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(FLUSH_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                taken = list(self._waiting)
                self._waiting.clear()
                if self._skipped:
                    said = b"(%d bytes of output were dropped: they were not read in time)\n" % self._skipped
                    taken.append((said, UNKNOWN))
                    self._skipped = 0
            with contextlib.suppress(OSError):  # it is closed, or its reader is gone
                self._pass(taken)
            with self._changed:
                self._size = sum(len(data) for data, _ in self._waiting)

    def _pass(self, taken: list[tuple[bytes, Origin]]) -> None:
        data = b"".join(each for each, _ in taken)
        if self._is_terminal:
            data = visible(data.decode("utf-8", "replace"), "\n\t").encode()
        while data:
            data = data[os.write(self._descriptor, data) :]


class LogForwarder(OutputForwarder):
    """A forwarder that writes each line as a log event, so that no line can be mistaken for one."""

    def _pass(self, taken: list[tuple[bytes, Origin]]) -> None:
        for data, origin in taken:
            for line in data.removesuffix(b"\n").split(b"\n"):
                # Wait here for a reader, and not in the log, where all others would wait too.
                select.select((), (self._descriptor,), ())
                shown = redactor_by(origin.rules).text(line.decode("utf-8", "replace"))
                _log.info("command_stderr", item=origin.item, queue=origin.queue, line=shown)


class LineBuffer:
    """A buffer that forwards the output of one program in whole lines, so that those of several do not mix."""

    def __init__(self, passing: OutputForwarder, origin: Origin = UNKNOWN) -> None:
        self._passing = passing
        self._origin = origin
        self._begun = b""

    def add(self, data: bytes) -> None:
        """Add output, and forward the complete lines."""
        whole, newline, self._begun = (self._begun + data).rpartition(b"\n")
        if newline:
            self._passing.write(whole + newline, self._origin)
        if len(self._begun) > LONGEST_LINE_BYTES:
            self.end()

    def end(self) -> None:
        """Forward the rest, as a line."""
        if self._begun:
            self._passing.write(self._begun + b"\n", self._origin)
            self._begun = b""

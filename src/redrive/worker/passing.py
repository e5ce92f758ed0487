"""What programs print, passed on to the output of this process: line by line, and without ever making them wait.

Where nobody reads that output, what has piled up is bounded, and the rest is left out.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque

from redrive.model.limits import KIB, MIB

MOST_WAITING_BYTES = MIB
"""What may wait to be written."""
LONGEST_LINE_BYTES = 8 * KIB
"""A line that is longer is passed on in parts."""
FLUSH_SECONDS = 1.0


class Passing:
    """Writes to a descriptor from a thread of its own. `write` is for any thread, and never waits."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._left_out = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def write(self, data: bytes) -> None:
        """Pass it on soon; or leave it out, where too much waits."""
        with self._changed:
            if self._closed or self._size + len(data) > MOST_WAITING_BYTES:
                self._left_out += len(data)
                return
            self._waiting.append(data)
            self._size += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="redrive-output", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Write what waits, for a second at most, and no more."""
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
                data = b"".join(self._waiting)
                self._waiting.clear()
                if self._left_out:
                    data += b"(%d bytes of output were left out: nobody read them in time)\n" % self._left_out
                    self._left_out = 0
            with contextlib.suppress(OSError):  # closed, or its reader is gone: then nobody wants it
                while data:
                    data = data[os.write(self._descriptor, data) :]
            with self._changed:
                self._size = sum(map(len, self._waiting))


class Lines:
    """Passes on what one program prints, in whole lines, so that those of many do not mix."""

    def __init__(self, passing: Passing) -> None:
        self._passing = passing
        self._begun = b""

    def add(self, data: bytes) -> None:
        """It printed this."""
        whole, newline, self._begun = (self._begun + data).rpartition(b"\n")
        if newline:
            self._passing.write(whole + newline)
        if len(self._begun) > LONGEST_LINE_BYTES:
            self.end()

    def end(self) -> None:
        """It prints no more."""
        if self._begun:
            self._passing.write(self._begun + b"\n")
            self._begun = b""

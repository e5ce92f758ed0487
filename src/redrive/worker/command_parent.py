"""The parent of commands: it starts them, enforces their timeouts and reports their exits. It survives a killed worker.

    worker ──a byte, with the socket of a run and its stdin, stdout and stderr──► parent
    worker ──what to run, a line of JSON──► socket of the run ──lines: waits, begins, refused | started, ended──► worker

A worker ends a run by closing its half of the socket of the run; the system does the same when the worker dies. Every
run is ended in the same way: SIGTERM to its whole session, and SIGKILL after its grace period.

It and its modules import nothing but the standard library, to start fast.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import time

from redrive.worker.command_sentinel import Sentinel
from redrive.worker.launched_command import Launched

DESCRIPTORS = 4
"""Number of descriptors that come with a run: its socket, stdin, stdout and stderr."""


class CommandParent:
    """The parent of commands, until its worker is gone and the last command has ended."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._has_worker = True
        self._launched: set[Launched] = set()
        self._selector = selectors.DefaultSelector()
        self._wakes, self._wake = socket.socketpair()
        self._sentinel = Sentinel()

    def run(self) -> None:
        """Serve until the worker is gone and all commands have ended."""
        # A service manager may signal every process of a service; the worker decides.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, _ignore_signal)
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._connection, selectors.EVENT_READ)
        self._selector.register(self._wakes, selectors.EVENT_READ)
        while self._has_worker or self._launched:
            self._turn()

    def _turn(self) -> None:
        due = min((launched.due for launched in self._launched), default=float("inf"))
        timeout = None if due == float("inf") else max(0.0, due - time.monotonic())
        touched: set[Launched] = set()
        for key, _ in self._selector.select(timeout):
            if key.fileobj is self._connection:
                touched |= self._hear()
            elif key.fileobj is self._wakes:
                self._wakes.recv(4096)
                # Without pidfd, SIGCHLD reports only that one of the processes has ended.
                touched |= {launched for launched in self._launched if launched.exit_descriptor is None}
            else:
                touched.add(key.data)
                if key.fileobj is not key.data.connection or not key.data.hear():
                    self._selector.unregister(key.fileobj)
        now = time.monotonic()
        for launched in touched | {launched for launched in self._launched if launched.due <= now}:
            self._tend(launched, now)

    def _hear(self) -> set[Launched]:
        """Receive a run from the worker, or notice that the worker is gone. Returns the new run, if there is one."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._connection, 1, DESCRIPTORS)
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._has_worker = False
            self._selector.unregister(self._connection)
        if len(descriptors) < DESCRIPTORS:  # too many are open: for the worker, the socket of the run is closed
            for descriptor in descriptors:
                os.close(descriptor)
            return set()
        launched = Launched(socket.socket(fileno=descriptors[0]), descriptors[1:], self._sentinel)
        self._launched.add(launched)
        self._selector.register(launched.connection, selectors.EVENT_READ, launched)
        return {launched}

    def _tend(self, launched: Launched, now: float) -> None:
        had = launched.exit_descriptor
        if not launched.tend(now):
            if launched.exit_descriptor != had and launched.exit_descriptor is not None:
                self._selector.register(launched.exit_descriptor, selectors.EVENT_READ, launched)
            return
        self._launched.discard(launched)
        for opened in (launched.connection, launched.exit_descriptor):
            if opened is not None:
                with contextlib.suppress(KeyError):  # unregistered at its end
                    self._selector.unregister(opened)
        launched.close()


def _ignore_signal(number: int, frame: object) -> None:
    """Do nothing: the worker decides when a command ends."""


def main() -> None:
    """Run the process that `command_launcher` starts."""
    CommandParent(socket.socket(fileno=int(sys.argv[1]))).run()

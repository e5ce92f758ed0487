"""Hearing other processes at once: a thread that waits for what comes in on a connection, and rings."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import weakref
from collections.abc import Callable

CAN_LISTEN = hasattr(select, "poll")
"""Not on Windows. There, whoever waits looks now and then."""

_open_ears: weakref.WeakSet[Ear] = weakref.WeakSet()


class Ear:
    """Rings once something has come in on a connection, and again only after `go_on`. It reads nothing. The bell is not
    to wait for anything.

    It waits on a socket of its own, a second one for the same connection: whatever becomes of the first, by a driver or
    by its owner, this one is no other connection's.
    """

    def __init__(self, fileno: int, bell: Callable[[], None]) -> None:
        self._bell = bell
        self._read = threading.Event()
        self._closed = False
        self._socket = os.dup(fileno)
        self._asleep, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, name="redrive-ear", daemon=True)
        _open_ears.add(self)
        self._thread.start()

    def go_on(self) -> None:
        """Everything that had come in was read."""
        self._read.set()

    def close(self) -> None:
        """Ring no more. Twice is no error."""
        self._closed = True
        self._read.set()
        with contextlib.suppress(OSError):  # the thread was faster
            self._wake.send(b"x")

    def join(self) -> None:
        """Wait until the thread has ended, after `close`."""
        self._thread.join()

    def leave_to_the_parent(self) -> None:
        """After a fork, in the child: the thread is the parent's, and so is the connection."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._close_all()

    def _listen(self) -> None:
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            poll.register(self._asleep, select.POLLIN)
            while not self._closed:
                poll.poll()
                self._read.clear()
                if not self._closed:
                    self._bell()
                    self._read.wait()
        finally:
            self._close_all()

    def _close_all(self) -> None:
        _open_ears.discard(self)
        os.close(self._socket)
        self._asleep.close()
        self._wake.close()


def _after_fork_in_child() -> None:
    for ear in tuple(_open_ears):
        ear.leave_to_the_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

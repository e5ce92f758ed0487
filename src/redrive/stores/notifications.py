"""Notifications between processes, for PostgreSQL and Redis: publish after a commit, and wake a subscriber.

A `Publisher` sends from its own thread and joins what arrives in the meantime. A `SocketSubscriber` waits on a
connection in a thread and calls back when something comes in.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import weakref
from collections.abc import Callable, Iterable

PAUSE_SECONDS = 0.01
"""How far apart two notices are at least: what arrives between them is told together."""


class Publisher:
    """Gives the names of queues to `send`, which loses them rather than raise. `done` is called last, by the same
    thread."""

    def __init__(self, send: Callable[[list[str]], None], done: Callable[[], None]) -> None:
        self._send = send
        self._done = done
        self._closed = False
        self._untold: set[str] = set()
        self._mutex = threading.Lock()
        self._wake = threading.Event()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def publish(self, queues: Iterable[str]) -> None:
        """Something arrived in these queues."""
        with self._mutex:
            if self._closed:
                return
            self._untold.update(queues)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="redrive-publisher", daemon=True)
                self._thread.start()
        self._wake.set()

    def close(self) -> None:
        """Tell what is untold, and stop."""
        with self._mutex:
            self._closed = True
            thread = self._thread
        self._end.set()
        self._wake.set()
        if thread is not None and thread.is_alive():  # Ctrl-C may have kept it from starting
            thread.join()

    def _run(self) -> None:
        while not (self._end.is_set() and not self._untold):
            self._wake.wait()
            self._wake.clear()
            with self._mutex:
                untold, self._untold = sorted(self._untold), set()
            if untold:
                self._send(untold)
            self._end.wait(PAUSE_SECONDS)
        self._done()


CAN_LISTEN = hasattr(select, "poll")
"""Not on Windows. There, whoever waits looks now and then."""

_open_subscribers: weakref.WeakSet[SocketSubscriber] = weakref.WeakSet()


class SocketSubscriber:
    """Rings once something has come in on a connection, and again only after `resume`. It reads nothing. `wake` is not
    to wait for anything.

    It waits on a socket of its own, a second one for the same connection: whatever becomes of the first, by a driver or
    by its owner, this one is no other connection's.
    """

    def __init__(self, fileno: int, wake: Callable[[], None]) -> None:
        self._on_input = wake
        self._read = threading.Event()
        self._closed = False
        self._socket = os.dup(fileno)
        self._asleep, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, name="redrive-subscriber", daemon=True)
        _open_subscribers.add(self)
        self._thread.start()

    def resume(self) -> None:
        """Everything that had come in was read."""
        self._read.set()

    def close(self) -> None:
        """Ring no more. Twice is no error."""
        self._closed = True
        self._read.set()
        with contextlib.suppress(OSError):  # the thread was faster
            self._waker.send(b"x")

    def join(self) -> None:
        """Wait until the thread has ended, after `close`."""
        self._thread.join()

    def detach_after_fork(self) -> None:
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
                    self._on_input()
                    self._read.wait()
        finally:
            self._close_all()

    def _close_all(self) -> None:
        _open_subscribers.discard(self)
        os.close(self._socket)
        self._asleep.close()
        self._waker.close()


def _after_fork_in_child() -> None:
    for subscriber in tuple(_open_subscribers):
        subscriber.detach_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

"""Notifications between processes, for PostgreSQL and Redis: published after a commit, they wake a subscriber.

A `Publisher` sends from its own thread and coalesces the names that arrive between two sends. A `SocketSubscriber`
waits on a connection in a thread and calls back on input. `Notifications` has both, and the rules of when to connect
and when to poll; a store adds how it sends and how it listens.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import ClassVar, Generic, Protocol, TypeVar

from redrive.errors import Closed
from redrive.model.duration import SECOND

PAUSE_SECONDS = 0.01
"""Minimum interval between two notifications: the names that arrive in between are sent together."""
POLL_EVERY = SECOND
"""Interval at which waiters poll, in microseconds: notifications may be lost with a connection."""
RETRY_SECONDS = 0.25
"""Interval between two attempts to connect the listener."""


class Publisher:
    """Passes the names of queues to `send`, which drops them rather than raise. `done` is called last, by the same
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
        """Publish that something arrived in these queues."""
        with self._mutex:
            if self._closed:
                return
            self._untold.update(queues)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="redrive-publisher", daemon=True)
                self._thread.start()
        self._wake.set()

    def close(self) -> None:
        """Publish what is pending, and stop."""
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
"""False on Windows, where waiters poll."""

_open_subscribers: weakref.WeakSet[SocketSubscriber] = weakref.WeakSet()


class SocketSubscriber:
    """Calls `wake` once when a connection has input, and again only after `resume`. It reads nothing. `wake` must not
    block.

    It waits on a duplicate of the connection's file descriptor: if the driver or the owner closes the original, the
    duplicate never refers to another connection.
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
        """Continue to wait: all input was read."""
        self._read.set()

    def close(self) -> None:
        """Stop calling `wake`. A second call does nothing."""
        self._closed = True
        self._read.set()
        with contextlib.suppress(OSError):  # the thread was faster
            self._waker.send(b"x")

    def join(self) -> None:
        """Wait until the thread has ended, after `close`."""
        self._thread.join()

    def detach_after_fork(self) -> None:
        """Close this copy in a forked child: the thread and the connection are the parent's."""
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


class ListenerConnection(Protocol):
    """A connection on which notifications arrive."""

    def fileno(self) -> int: ...

    def close(self) -> None: ...


_C = TypeVar("_C", bound=ListenerConnection)


class Notifications(ABC, Generic[_C]):
    """Notifications of one namespace, published after a commit and not as a part of it."""

    connection_errors: ClassVar[tuple[type[Exception], ...]]
    """Exceptions of a connection that is lost or cannot be opened."""

    def __init__(self, channel: str, now: Callable[[], int] = lambda: time.monotonic_ns() // 1000) -> None:
        """Take the clock `now`, in microseconds, by which waiters poll."""
        self.channel = channel
        self._now = now
        self._wake: Callable[[], None] | None = None
        self.reopen()

    def reopen(self) -> None:
        """Reset the state in a forked child: connections and threads are the parent's."""
        self._closed = False
        self._listener: _C | None = None
        self._subscriber: SocketSubscriber | None = None
        self._listening = threading.Lock()
        self._polled_at: int | None = None
        self._listen_from = 0.0
        self._publisher = Publisher(self._publish, self._drop_sender)

    def publish(self, queues: Iterable[str]) -> None:
        """Publish that items arrived in these queues."""
        self._publisher.publish(queues)

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call `wake` as soon as `received` may return something, starting with the next `received`."""
        self._wake = wake

    def received(self) -> Collection[str] | None:
        """Return queues in which items arrived since the last call; None: possibly in any."""
        with self._listening:
            if self._closed:
                raise Closed
            found: set[str] = set()
            try:
                if self._listener is not None:
                    self._ensure_subscriber(self._listener)
                    found = self._receive(self._listener)
                elif time.monotonic() >= self._listen_from:
                    self._listener = self._connect()
                    self._listen(self._listener)
                    self._ensure_subscriber(self._listener)
                    return None
            except self.connection_errors:
                self._drop_listener()
                self._listen_from = time.monotonic() + RETRY_SECONDS
                return None
            except BaseException:  # from a signal handler: an answer may be read in part
                self._drop_listener()
                raise
            if self._subscriber is not None:
                self._subscriber.resume()
            now = self._now()
            if self._polled_at is None or not 0 <= now - self._polled_at < POLL_EVERY:  # the clock may be set back
                self._polled_at = now
                return None
        return found

    def close(self) -> None:
        """Publish what is not yet published, and stop."""
        self._closed = True
        self._publisher.close()
        with self._listening:
            subscriber = self._subscriber
            self._drop_listener()
        if subscriber is not None:
            subscriber.join()

    def _ensure_subscriber(self, listener: _C) -> None:
        """Call `wake` when the listener receives something, if there is a subscriber."""
        if self._subscriber is None and self._wake is not None and CAN_LISTEN:
            self._subscriber = SocketSubscriber(listener.fileno(), self._wake)

    def _drop_listener(self) -> None:
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None:
            subscriber.close()
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(*self.connection_errors):
                listener.close()

    @abstractmethod
    def _connect(self) -> _C:
        """Return a new connection."""

    @abstractmethod
    def _listen(self, listener: _C) -> None:
        """Let notifications arrive on a new connection."""

    @abstractmethod
    def _receive(self, listener: _C) -> set[str]:
        """Return the queues that others published since the last call, without waiting."""

    @abstractmethod
    def _publish(self, queues: list[str]) -> None:
        """Publish once. A lost notification delays waiters by a second, since they poll."""

    @abstractmethod
    def _drop_sender(self) -> None:
        """Close the connection that publishes, if there is one."""


def _after_fork_in_child() -> None:
    for subscriber in tuple(_open_subscribers):
        subscriber.detach_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

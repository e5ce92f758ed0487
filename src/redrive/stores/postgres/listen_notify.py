"""Telling other processes what arrived, and hearing it from them: NOTIFY and LISTEN."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable

import psycopg

from redrive.clock import Clock, Instant
from redrive.errors import Closed, RedriveError
from redrive.model.duration import SECOND
from redrive.stores.notifications import CAN_LISTEN, Publisher, SocketSubscriber
from redrive.stores.postgres.engine import Engine
from redrive.stores.postgres.session import Connection

LOOK_EVERY = SECOND
"""A notification may be lost with a connection, so waiters also poll at this interval."""

_NOTIFY = "SELECT pg_notify(%s, name) FROM unnest(%s::text[]) AS name"


class ListenNotify:
    """Notices of one namespace.

    They are sent after the commit, on a separate connection: inside the transaction they would take a lock that all
    transactions of the database share.
    """

    def __init__(self, engine: Engine, clock: Clock, channel: str) -> None:
        self._engine = engine
        self._clock = clock
        self.channel = channel
        self._wake: Callable[[], None] | None = None
        self._reset()

    def _reset(self) -> None:
        self._closed = False
        self._listener: Connection | None = None
        self._subscriber: SocketSubscriber | None = None
        self._listening = threading.Lock()
        self._looked_at: Instant | None = None
        self._sender: Connection | None = None
        self._sender_pid = 0
        self._publisher = Publisher(self._send, self._drop_sender)

    after_fork = _reset

    def publish(self, queues: Iterable[str]) -> None:
        """Something arrived in these queues."""
        self._publisher.publish(queues)

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Ring as soon as there may be something to hear, from the next `heard` on."""
        self._wake = wake

    def received(self) -> Collection[str] | None:
        """Queues in which something arrived since the last call; None: anywhere."""
        with self._listening:
            if self._closed:
                raise Closed
            try:
                if self._listener is None or self._listener.broken:
                    self._drop_listener()
                    self._listener = self._engine.connect()
                    self._listener.execute(f'LISTEN "{self.channel}"')
                    self._ensure_listening()
                    return None
                self._ensure_listening()
                found = {told.payload for told in self._listener.notifies(timeout=0) if told.pid != self._sender_pid}
            except (psycopg.Error, RedriveError):
                self._drop_listener()
                return None
            except BaseException:  # raised from outside: what is half read is of no use to the next one
                self._drop_listener()
                raise
            if self._subscriber is not None:
                self._subscriber.resume()
        now = self._clock.now()
        if self._looked_at is None or not 0 <= now - self._looked_at < LOOK_EVERY:
            self._looked_at = now
            return None
        return found

    def close(self) -> None:
        """Send pending notifications, and stop."""
        self._closed = True
        self._publisher.close()
        with self._listening:
            subscriber = self._subscriber
            self._drop_listener()
        if subscriber is not None:
            subscriber.join()

    def _ensure_listening(self) -> None:
        """Ring when something comes in on the listener, if somebody asked for it."""
        if self._subscriber is None and self._wake is not None and self._listener is not None and CAN_LISTEN:
            self._subscriber = SocketSubscriber(self._listener.fileno(), self._wake)

    def _drop_listener(self) -> None:
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None:
            subscriber.close()
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(psycopg.Error):
                listener.close()

    def _send(self, queues: list[str]) -> None:
        """A lost notification delays a waiter by a second: it polls."""
        with contextlib.suppress(psycopg.Error, RedriveError):
            if self._sender is None or self._sender.closed:
                self._sender = self._engine.connect()
                self._sender_pid = self._sender.info.backend_pid
            self._sender.execute(_NOTIFY, (self.channel, queues))

    def _drop_sender(self) -> None:
        if self._sender is not None:
            self._sender.close()

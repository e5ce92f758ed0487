"""Telling other processes what arrived, and hearing it from them: NOTIFY and LISTEN."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable

import psycopg

from redrive.clock import Clock, Instant
from redrive.errors import Closed, RedriveError
from redrive.model.duration import SECOND
from redrive.stores.postgres.engine import Engine
from redrive.stores.postgres.session import Connection

PAUSE_SECONDS = 0.01
"""How far apart two notices are at least: what arrives between them is told together."""
LOOK_EVERY = SECOND
"""A notice may be lost with a connection: so often whoever waits looks by himself."""

_NOTIFY = "SELECT pg_notify(%s, name) FROM unnest(%s::text[]) AS name"


class Notices:
    """Notices of one namespace.

    They are sent after the commit, on a connection of their own: inside the transaction they would take a lock that all
    transactions of the database share.
    """

    def __init__(self, engine: Engine, clock: Clock, channel: str) -> None:
        self._engine = engine
        self._clock = clock
        self.channel = channel
        self._reset()

    def _reset(self) -> None:
        self._closed = False
        self._listener: Connection | None = None
        self._listening = threading.Lock()
        self._looked_at: Instant | None = None
        self._untold: set[str] = set()
        self._mutex = threading.Lock()
        self._bell = threading.Event()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._sender_pid = 0

    after_fork = _reset

    def tell(self, queues: Iterable[str]) -> None:
        """Something arrived in these queues."""
        with self._mutex:
            if self._closed:
                return
            self._untold.update(queues)
            if self._thread is None:
                self._thread = threading.Thread(target=self._send, name="redrive-notices", daemon=True)
                self._thread.start()
        self._bell.set()

    def heard(self) -> Collection[str] | None:
        """Queues in which something arrived since the last call; None: anywhere."""
        with self._listening:
            if self._closed:
                raise Closed
            try:
                if self._listener is None or self._listener.broken:
                    self._listener = self._engine.connect()
                    self._listener.execute(f'LISTEN "{self.channel}"')
                    return None
                found = {told.payload for told in self._listener.notifies(timeout=0) if told.pid != self._sender_pid}
            except (psycopg.Error, RedriveError):
                self._drop_listener()
                return None
        now = self._clock.now()
        if self._looked_at is None or not 0 <= now - self._looked_at < LOOK_EVERY:
            self._looked_at = now
            return None
        return found

    def close(self) -> None:
        """Tell what is untold, and stop."""
        with self._mutex:
            self._closed = True
            thread = self._thread
        self._end.set()
        self._bell.set()
        if thread is not None:
            thread.join()
        with self._listening:
            self._drop_listener()

    def _drop_listener(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(psycopg.Error):
                listener.close()

    def _send(self) -> None:
        connection: Connection | None = None
        while not (self._end.is_set() and not self._untold):
            self._bell.wait()
            self._bell.clear()
            with self._mutex:
                untold, self._untold = list(self._untold), set()
            # A notice that is lost costs a second: whoever waits looks by himself.
            with contextlib.suppress(psycopg.Error, RedriveError):
                if untold:
                    connection = self._connected(connection)
                    connection.execute(_NOTIFY, (self.channel, untold))
            self._end.wait(PAUSE_SECONDS)
        if connection is not None:
            connection.close()

    def _connected(self, connection: Connection | None) -> Connection:
        if connection is None or connection.closed:
            connection = self._engine.connect()
            self._sender_pid = connection.info.backend_pid
        return connection

"""Notifications between processes: NOTIFY and LISTEN."""

from __future__ import annotations

import contextlib

import psycopg

from redrive.clock import Clock
from redrive.errors import RedriveError
from redrive.stores.notifications import Notifications
from redrive.stores.postgres.engine import Engine
from redrive.stores.postgres.session import Connection

_NOTIFY = "SELECT pg_notify(%s, name) FROM unnest(%s::text[]) AS name"


class ListenNotify(Notifications[Connection]):
    """Notifications of one namespace.

    They are sent on a separate connection: inside the transaction they would take a lock that all transactions of the
    database share.
    """

    connection_errors = (psycopg.Error, RedriveError)

    def __init__(self, engine: Engine, clock: Clock, channel: str) -> None:
        self._engine = engine
        super().__init__(channel, clock.now)

    def reopen(self) -> None:
        super().reopen()
        self._sender: Connection | None = None
        self._sender_pid = 0

    def _connect(self) -> Connection:
        return self._engine.connect()

    def _listen(self, listener: Connection) -> None:
        listener.execute(f'LISTEN "{self.channel}"')

    def _receive(self, listener: Connection) -> set[str]:
        return {notice.payload for notice in listener.notifies(timeout=0) if notice.pid != self._sender_pid}

    def _publish(self, queues: list[str]) -> None:
        with contextlib.suppress(*self.connection_errors):
            if self._sender is None or self._sender.closed:
                self._sender = self._connect()
                self._sender_pid = self._sender.info.backend_pid
            self._sender.execute(_NOTIFY, (self.channel, queues))

    def _drop_sender(self) -> None:
        if self._sender is not None:
            self._sender.close()

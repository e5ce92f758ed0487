"""Notifications between processes: PUBLISH and SUBSCRIBE."""

from __future__ import annotations

import contextlib
import secrets
import time

from redrive.errors import RedriveError
from redrive.stores.notifications import Notifications
from redrive.stores.redis.connection import ConnectionLost, NotSent, RedisConnection
from redrive.stores.redis.redis_client import RedisClient

PING_SECONDS = 5.0
"""Interval at which the listener checks its connection."""
SILENCE_SECONDS = 15.0
"""A listener that received nothing for this long, not even an answer to PING, has lost its connection."""
_SEPARATOR = " "
"""A character that names of queues do not have."""


class PubSub(Notifications[RedisConnection]):
    """Notifications of one namespace. In a cluster they reach every server."""

    connection_errors = (RedriveError, NotSent, ConnectionLost)

    def __init__(self, client: RedisClient, channel: str) -> None:
        self._client = client
        super().__init__(channel)

    def reopen(self) -> None:
        super().reopen()
        self._sender = secrets.token_hex(8)
        """The sender of our notifications, which are ignored here."""
        self._connection: RedisConnection | None = None
        self._asked_at = self._heard_at = 0.0

    def _connect(self) -> RedisConnection:
        return self._client.dial()

    def _listen(self, listener: RedisConnection) -> None:
        (answer,) = listener.request(("SUBSCRIBE", self.channel))
        if isinstance(answer, Exception):
            raise NotSent(str(answer))
        self._asked_at = self._heard_at = time.monotonic()

    def _receive(self, listener: RedisConnection) -> set[str]:
        """Return the queues that others published. Raises `ConnectionLost` after a long silence."""
        now = time.monotonic()
        if now - self._asked_at > PING_SECONDS:
            self._asked_at = now
            listener.send("PING")
        found: set[str] = set()
        for message in listener.receive():
            self._heard_at = now
            if isinstance(message, list) and message[0] == b"message":
                sender, *names = message[2].decode().split(_SEPARATOR)
                if sender != self._sender:
                    found.update(names)
        if now - self._heard_at > SILENCE_SECONDS:
            raise ConnectionLost("the listener receives nothing", gave_up=False)
        return found

    def _publish(self, queues: list[str]) -> None:
        if self._connection is not None and not self._connection.is_alive():
            self._drop_sender()
        try:
            self._connection = self._connection or self._connect()
            self._connection.request(("PUBLISH", self.channel, _SEPARATOR.join((self._sender, *queues))))
        except self.connection_errors:
            self._drop_sender()

    def _drop_sender(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()

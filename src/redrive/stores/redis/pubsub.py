"""Notifications between processes: publish the queues in which items arrived, and subscribe to those of others."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable

from redrive.errors import Closed, RedriveError
from redrive.stores.notifications import CAN_LISTEN, Publisher, SocketSubscriber
from redrive.stores.redis.connection import ConnectionLost, NotSent, RedisConnection
from redrive.stores.redis.redis_client import RedisClient

POLL_SECONDS = 1.0
"""Notifications may be lost with a connection. Waiters poll at this interval."""
PING_SECONDS = 5.0
"""How often the listener checks its connection."""
SILENCE_SECONDS = 15.0
"""A listener that received nothing for this long, not even an answer to PING, has lost its connection."""
RETRY_SECONDS = 0.25
"""Time between two tries to connect the listener."""
_SEPARATOR = " "
"""A character that names of queues do not have."""


class PubSub:
    """Notifications of one namespace, published after a commit and not as a part of it. In a cluster they reach every
    server."""

    def __init__(self, client: RedisClient, channel: str) -> None:
        self._client = client
        self.channel = channel
        self._wake: Callable[[], None] | None = None
        self._reset()

    def _reset(self) -> None:
        self._closed = False
        self._sender = secrets.token_hex(8)
        """The sender of our notifications, which are ignored here."""
        self._listener: RedisConnection | None = None
        self._subscriber: SocketSubscriber | None = None
        self._listening = threading.Lock()
        self._looked_at = self._asked_at = self._heard_at = 0.0
        self._listen_from = 0.0
        self._connection: RedisConnection | None = None
        self._publisher = Publisher(self._publish, self._drop_connection)

    reopen = _reset

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
            now = time.monotonic()
            found: set[str] = set()
            try:
                if self._listener is not None:
                    self._ensure_listening()
                    found = self._listen(self._listener)
                elif now >= self._listen_from:
                    self._subscribe()
                    self._ensure_listening()
                    return None
            except (RedriveError, NotSent, ConnectionLost):
                self._drop_listener()
                self._listen_from = now + RETRY_SECONDS
                return None
            except BaseException:  # of a signal handler: an answer may be read in part
                self._drop_listener()
                raise
            if self._subscriber is not None:
                self._subscriber.resume()
            if now - self._looked_at >= POLL_SECONDS:
                self._looked_at = now
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

    def _ensure_listening(self) -> None:
        """Call `wake` when the listener receives something, if there is a subscriber."""
        if self._subscriber is None and self._wake is not None and self._listener is not None and CAN_LISTEN:
            self._subscriber = SocketSubscriber(self._listener.fileno(), self._wake)

    def _subscribe(self) -> None:
        self._listener = self._client.dial()
        (answer,) = self._listener.request(("SUBSCRIBE", self.channel))
        if isinstance(answer, Exception):
            raise NotSent(str(answer))
        self._asked_at = self._heard_at = time.monotonic()

    def _listen(self, listener: RedisConnection) -> set[str]:
        """Return the queues in received messages. Raises `ConnectionLost` after a long silence."""
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

    def _drop_listener(self) -> None:
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None:
            subscriber.close()
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _publish(self, queues: list[str]) -> None:
        """Publish once. A lost notification delays waiters by a second: they poll."""
        if self._connection is not None and not self._connection.is_alive():
            self._drop_connection()
        try:
            self._connection = self._connection or self._client.dial()
            self._connection.request(("PUBLISH", self.channel, _SEPARATOR.join((self._sender, *queues))))
        except (RedriveError, NotSent, ConnectionLost):
            self._drop_connection()

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()

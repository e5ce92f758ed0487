"""Telling other processes what arrived, and hearing it from them: PUBLISH and SUBSCRIBE."""

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

LOOK_SECONDS = 1.0
"""A notice may be lost with a connection: so often whoever waits looks by himself."""
PING_SECONDS = 5.0
"""How often the listener asks whether it is still connected."""
SILENCE_SECONDS = 15.0
"""A listener that heard nothing for so long, not even an answer to that, is not connected."""
AGAIN_SECONDS = 0.25
"""How long a listener that could not connect waits before it tries again."""
_BETWEEN = " "
"""What names of queues do not have."""


class PubSub:
    """Notices of one namespace, sent after the commit and outside it. In a cluster they reach every server."""

    def __init__(self, connection: RedisClient, channel: str) -> None:
        self._connection = connection
        self.channel = channel
        self._wake: Callable[[], None] | None = None
        self._reset()

    def _reset(self) -> None:
        self._closed = False
        self._sender = secrets.token_hex(8)
        """Whose notices these are: one's own are not heard."""
        self._listener: RedisConnection | None = None
        self._ear: SocketSubscriber | None = None
        self._listening = threading.Lock()
        self._looked_at = self._asked_at = self._heard_at = 0.0
        self._listen_from = 0.0
        self._publisher: RedisConnection | None = None
        self._teller = Publisher(self._publish, self._drop_publisher)

    reopen = _reset

    def publish(self, queues: Iterable[str]) -> None:
        """Something arrived in these queues."""
        self._teller.publish(queues)

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Ring as soon as there may be something to hear, from the next `heard` on."""
        self._wake = wake

    def received(self) -> Collection[str] | None:
        """Queues in which something arrived since the last call; None: anywhere."""
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
                self._listen_from = now + AGAIN_SECONDS
                return None
            except BaseException:  # raised from outside: what is half read is of no use to the next one
                self._drop_listener()
                raise
            if self._ear is not None:
                self._ear.resume()
            if now - self._looked_at >= LOOK_SECONDS:
                self._looked_at = now
                return None
        return found

    def close(self) -> None:
        """Tell what is untold, and stop."""
        self._closed = True
        self._teller.close()
        with self._listening:
            ear = self._ear
            self._drop_listener()
        if ear is not None:
            ear.join()

    def _ensure_listening(self) -> None:
        """Ring when something comes in on the listener, if somebody asked for it."""
        if self._ear is None and self._wake is not None and self._listener is not None and CAN_LISTEN:
            self._ear = SocketSubscriber(self._listener.fileno(), self._wake)

    def _subscribe(self) -> None:
        self._listener = self._connection.dial()
        (answer,) = self._listener.request(("SUBSCRIBE", self.channel))
        if isinstance(answer, Exception):
            raise NotSent(str(answer))
        self._asked_at = self._heard_at = time.monotonic()

    def _listen(self, listener: RedisConnection) -> set[str]:
        """The names in what was published, and whether the listener still listens."""
        now = time.monotonic()
        if now - self._asked_at > PING_SECONDS:
            self._asked_at = now
            listener.send("PING")
        found: set[str] = set()
        for told in listener.receive():
            self._heard_at = now
            if isinstance(told, list) and told[0] == b"message":
                sender, *names = told[2].decode().split(_BETWEEN)
                if sender != self._sender:
                    found.update(names)
        if now - self._heard_at > SILENCE_SECONDS:
            raise ConnectionLost("the listener hears nothing", gave_up=False)
        return found

    def _drop_listener(self) -> None:
        ear, self._ear = self._ear, None
        if ear is not None:
            ear.close()
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _publish(self, queues: list[str]) -> None:
        """A notice that is lost costs a second: whoever waits looks by himself."""
        if self._publisher is not None and not self._publisher.is_alive():
            self._drop_publisher()
        try:
            self._publisher = self._publisher or self._connection.dial()
            self._publisher.request(("PUBLISH", self.channel, _BETWEEN.join((self._sender, *queues))))
        except (RedriveError, NotSent, ConnectionLost):
            self._drop_publisher()

    def _drop_publisher(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            with contextlib.suppress(OSError):
                publisher.close()

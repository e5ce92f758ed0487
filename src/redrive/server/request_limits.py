"""Limits of a server, and what one request uses of them: room for its body, and its open namespace."""

from __future__ import annotations

import time

import msgspec

from redrive.broker.async_broker import AsyncBroker
from redrive.errors import Overloaded, RedriveError
from redrive.model.limits import KIB, MIB


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one request, and of all that are under way. What is beyond is refused before it costs anything."""

    max_body_bytes: int = 32 * MIB
    """Bytes of a request."""
    values: int = 1_000_000
    """Commas and brackets in a body of JSON of more than 1 MiB: about as many values are in it. While they are read
    nobody else is served, for half a second at most; a payload is not read, and one of 1 MiB cannot have so many."""
    body_seconds: float = 30.0
    """From the first byte of a request to its last."""
    answer_seconds: float = 60.0
    """How long a client may take to read an answer."""
    wait_seconds: float = 60.0
    """How long a lease or a watch may wait; longer waits end then, with nothing."""
    max_long_polls: int = 10_000
    """Leases and watches that wait at once; more are told to come again."""
    batch: int = 1000
    """Items in one request."""
    page: int = 1000
    """Items in one answer."""
    max_response_bytes: int = 32 * MIB
    """Bytes of payloads in one answer. What is beyond comes with the next page, or is leased by the next request."""
    max_total_body_bytes: int = 256 * MIB
    """Bytes of requests that are being read or carried out at once; more are told to come again. One token gets no more
    of them than it leaves to others."""
    waiting_body: int = 256 * KIB
    """Bytes of a watch, which stay in memory while it waits: the names of a thousand queues."""


class Busy(Overloaded):
    """The server has too much to do. This request was not carried out."""

    def __init__(self, waiting: int, problem: str) -> None:
        self.waiting = waiting
        RedriveError.__init__(self, f"{problem}; this request was not carried out. Slow down and retry")


DEFAULT_LIMITS = Limits()


class NamespaceUse:
    """The broker of a namespace that is open, and who uses it."""

    __slots__ = ("broker", "had_queues_at", "idle_since", "stays", "uses")

    def __init__(self, broker: AsyncBroker) -> None:
        self.broker = broker
        self.stays = False
        """Whether it is not closed before the server ends: something beside requests uses it."""
        self.uses = 0
        self.idle_since = time.monotonic()
        self.had_queues_at = 0.0
        """When somebody last looked whether it has queues, and it had some."""

    def leave(self) -> None:
        """One request less uses it."""
        self.uses -= 1
        self.idle_since = time.monotonic()


class BodyBudget:
    """Bytes of requests that are in memory at once.

    A caller who has more than one request under way gets no more of it than is left for everybody else. So however
    much one sends, and however slowly, others are served.
    """

    def __init__(self) -> None:
        self._all = 0
        self._by_name: dict[str, int] = {}

    def check(self, name: str | None, own: int, more: int, limit: int) -> None:
        """Raise where there is no room for `more` bytes of a request that has taken `own` of them."""
        left = limit - self._all - more
        if left < 0 and self._all:
            raise Busy(self._all, f"requests of {self._all:,} bytes are being carried out")
        if name is None:
            return
        taken = self._by_name.get(name, 0)
        if taken > own and taken + more > left:
            raise Busy(taken, f"requests of {taken:,} bytes of the token {name!a} are being carried out")

    def add(self, name: str | None, more: int) -> None:
        """So many more, or fewer, are in memory."""
        self._all += more
        if name is not None:
            taken = self._by_name.get(name, 0) + more
            if taken:
                self._by_name[name] = taken
            else:
                self._by_name.pop(name, None)


class RequestResources:
    """What one request of a caller holds."""

    __slots__ = ("_bodies", "_name", "_opened", "_size")

    def __init__(self, bodies: BodyBudget, name: str | None) -> None:
        self._bodies = bodies
        self._name = name
        self._size = 0
        self._opened: NamespaceUse | None = None

    def take(self, size: int, limit: int) -> None:
        """So much more of the body is in memory. Raises `Busy` where that is too much for all requests together."""
        if size:
            self._bodies.check(self._name, self._size, size, limit)
            self._bodies.add(self._name, size)
            self._size += size

    def use_namespace(self, opened: NamespaceUse) -> None:
        """It is about this namespace, which is not closed meanwhile."""
        opened.uses += 1
        self._opened = opened

    def release_body(self, *, keeps_body: bool) -> None:
        """From now on it only waits. Its namespace may be closed, which ends the wait."""
        if not keeps_body:
            self._drop()
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.leave()

    def end(self) -> None:
        """It is answered."""
        self.release_body(keeps_body=False)

    def _drop(self) -> None:
        if self._size:
            self._bodies.add(self._name, -self._size)
            self._size = 0

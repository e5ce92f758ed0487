"""What a request keeps from others while it is carried out: room for its body, and its namespace open."""

from __future__ import annotations

import time

from redrive.broker.async_broker import AsyncBroker
from redrive.server.limits import Busy


class Opened:
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


class Bodies:
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


class Hold:
    """What one request of a caller holds."""

    __slots__ = ("_bodies", "_name", "_opened", "_size")

    def __init__(self, bodies: Bodies, name: str | None) -> None:
        self._bodies = bodies
        self._name = name
        self._size = 0
        self._opened: Opened | None = None

    def take(self, size: int, limit: int) -> None:
        """So much more of the body is in memory. Raises `Busy` where that is too much for all requests together."""
        if size:
            self._bodies.check(self._name, self._size, size, limit)
            self._bodies.add(self._name, size)
            self._size += size

    def enter(self, opened: Opened) -> None:
        """It is about this namespace, which is not closed meanwhile."""
        opened.uses += 1
        self._opened = opened

    def rest(self, *, keeps_body: bool) -> None:
        """From now on it only waits. Its namespace may be closed, which ends the wait."""
        if not keeps_body:
            self._drop()
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.leave()

    def end(self) -> None:
        """It is answered."""
        self.rest(keeps_body=False)

    def _drop(self) -> None:
        if self._size:
            self._bodies.add(self._name, -self._size)
            self._size = 0

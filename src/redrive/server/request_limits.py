"""Limits of a server, and the resources that one request uses: memory for its body, and its open namespace."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from redrive.broker.async_broker import AsyncBroker
from redrive.errors import Overloaded, RedriveError
from redrive.model.limits import KIB, MIB


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one request, and of all concurrent ones. A request beyond a limit is refused before it costs much."""

    max_body_bytes: int = 32 * MIB
    """Maximum bytes of a request."""
    values: int = 1_000_000
    """Maximum commas and brackets in a JSON body of over 1 MiB, which is about the number of its values. Parsing blocks
    all other requests, for half a second at most. Payloads are not parsed; 1 MiB cannot have so many values."""
    body_seconds: float = 30.0
    """Maximum seconds from the first byte of a request to its last."""
    answer_seconds: float = 60.0
    """Maximum seconds for a client to read a response."""
    wait_seconds: float = 60.0
    """Maximum seconds that a lease or a watch waits; a longer wait ends then, with an empty response."""
    max_long_polls: int = 10_000
    """Maximum concurrent leases and watches that wait; further ones are refused with a request to retry."""
    batch: int = 1000
    """Maximum items in one request."""
    page: int = 1000
    """Maximum items in one response."""
    max_response_bytes: int = 32 * MIB
    """Maximum bytes of payloads in one response. The rest comes with the next page, or with the next lease."""
    max_total_body_bytes: int = 256 * MIB
    """Maximum bytes of all requests that are being read or executed; further ones are refused with a request to retry.
    One token may use at most as many as remain for others."""
    waiting_body: int = 256 * KIB
    """Maximum bytes of a watch, which stay in memory while it waits: the names of a thousand queues."""


class Busy(Overloaded):
    """The server is overloaded. It did not execute this request."""

    def __init__(self, waiting: int, problem: str) -> None:
        self.waiting = waiting
        RedriveError.__init__(self, f"{problem}; this request was not executed. Slow down and retry")


DEFAULT_LIMITS = Limits()


class NamespaceUse:
    """The broker of an open namespace, and its use."""

    __slots__ = ("broker", "had_queues_at", "idle_since", "stays", "uses")

    def __init__(self, broker: AsyncBroker) -> None:
        self.broker = broker
        self.stays = False
        """True if it stays open until the server ends, because not only requests use it."""
        self.uses = 0
        self.idle_since = time.monotonic()
        self.had_queues_at = 0.0
        """The time of the last check that found queues in it; 0 if there was none."""

    def leave(self) -> None:
        """End the use by one request."""
        self.uses -= 1
        self.idle_since = time.monotonic()


IN_LINE = ""
"""The name for the memory of requests in line. No token has it."""
LONG_LINE = 16 * MIB
"""Bytes of requests in line whose memory is returned to the system."""


class BodyBudget:
    """The memory for bodies of concurrent requests, in bytes.

    A caller with several concurrent requests gets at most as much as remains for all others. So others are served if
    one caller sends much, or slowly.
    """

    def __init__(self) -> None:
        self._all = 0
        self._by_name: dict[str, int] = {}
        self._longest_line = 0

    def check(self, name: str | None, own: int, more: int, limit: int) -> None:
        """Raise `Busy` if there is no room for `more` bytes of a request that holds `own` bytes."""
        left = limit - self._all - more
        if left < 0 and self._all:
            raise Busy(self._all, f"requests of {self._all:,} bytes are being executed")
        if name is None:
            return
        taken = self._by_name.get(name, 0)
        if taken > own and taken + more > left:
            which = "wait behind others" if name == IN_LINE else f"of the token {name!a} are being executed"
            raise Busy(taken, f"requests of {taken:,} bytes {which}")

    def add(self, name: str | None, more: int) -> None:
        """Record that `more` bytes are in memory, or fewer if it is negative."""
        self._all += more
        if name is not None:
            taken = self._by_name.get(name, 0) + more
            if taken:
                self._by_name[name] = taken
            else:
                self._by_name.pop(name, None)

    def add_line(self, more: int) -> None:
        """Record that requests in line take `more` bytes. After the last of many, return their memory to the system:
        the allocator would keep it, because of small objects that were created in between."""
        self.add(IN_LINE, more)
        taken = self._by_name.get(IN_LINE, 0)
        if taken:
            self._longest_line = max(self._longest_line, taken)
            return
        if self._longest_line >= LONG_LINE:
            with contextlib.suppress(AttributeError, OSError, TypeError):  # other systems than Linux do not have it
                ctypes.CDLL(None).malloc_trim(0)
        self._longest_line = 0


TURNS = 8
"""Maximum turns in one cycle of the event loop."""


class LineTurns:
    """The turns of connections with requests in line, first come, first served.

    Each cycle of the event loop gives a few, so that everything else on the loop waits for a few milliseconds at most.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[Callable[[], None], None] = OrderedDict()
        self._is_due = False

    def join(self, take_turn: Callable[[], None]) -> None:
        """Call that function in its turn, once."""
        self._waiting[take_turn] = None
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._give)

    def _give(self) -> None:
        self._is_due = False
        try:
            for _ in range(min(TURNS, len(self._waiting))):
                self._waiting.popitem(last=False)[0]()
        finally:
            self._schedule()


class RequestResources:
    """The resources that one request of a caller holds."""

    __slots__ = ("_bodies", "_name", "_opened", "_size")

    def __init__(self, bodies: BodyBudget, name: str | None) -> None:
        self._bodies = bodies
        self._name = name
        self._size = 0
        self._opened: NamespaceUse | None = None

    def take(self, size: int, limit: int) -> None:
        """Reserve memory for `size` more bytes of the body. Raises `Busy` if all requests together exceed `limit`."""
        if size:
            self._bodies.check(self._name, self._size, size, limit)
            self._bodies.add(self._name, size)
            self._size += size

    def use_namespace(self, opened: NamespaceUse) -> None:
        """Use a namespace, which stays open until this request releases it."""
        opened.uses += 1
        self._opened = opened

    def release_body(self, *, keeps_body: bool) -> None:
        """Release the namespace, and the body unless it is kept, to wait. The wait ends if the namespace closes."""
        if not keeps_body:
            self._drop()
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.leave()

    def end(self) -> None:
        """Release everything after the response."""
        self.release_body(keeps_body=False)

    def _drop(self) -> None:
        if self._size:
            self._bodies.add(self._name, -self._size)
            self._size = 0

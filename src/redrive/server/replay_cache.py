"""Recent responses: a client that repeats a request, because its connection broke, gets the first response."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from redrive.model.limits import MIB

KEEP_SECONDS = 60.0
MAX_ANSWERS = 100_000
MAX_BYTES = 64 * MIB

_T = TypeVar("_T")


class ReplayCache(Generic[_T]):
    """Tasks by the id of their request, while they run and for a minute afterwards. All in one event loop.

    It drops the oldest ones earlier if there are too many, and records that it did.
    """

    def __init__(
        self,
        size: Callable[[_T], int],
        *,
        seconds: float = KEEP_SECONDS,
        limit: int = MAX_ANSWERS,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._size = size
        self._seconds, self._limit, self._max_bytes = seconds, limit, max_bytes
        self._clock = clock
        self._known: dict[Hashable, asyncio.Task[_T]] = {}
        self._ended: deque[tuple[float, int, Hashable, int]] = deque()
        self._bytes = 0
        self.number = 0
        """The sequence number of the latest task. Each task has a higher one than those before it."""
        self._forgotten = 0
        """The highest sequence number of all dropped tasks."""

    def __len__(self) -> int:
        return len(self._known)

    def get(self, id: Hashable) -> asyncio.Task[_T] | None:
        """Return the running or finished task of that id; None if it is unknown or dropped."""
        return self._known.get(id)

    def add(self, id: Hashable, work: asyncio.Task[_T]) -> None:
        """Keep a task under that id. A task that raises has had no effect, and is dropped as soon as it ends."""
        self.number = number = self.number + 1
        self._known[id] = work
        work.add_done_callback(lambda work: self._end(number, id, work))

    def covers_since(self, number: int) -> bool:
        """Return whether all tasks with higher sequence numbers are still known."""
        return self._forgotten <= number

    def _end(self, number: int, id: Hashable, work: asyncio.Task[_T]) -> None:
        if work.cancelled() or work.exception() is not None:
            self._known.pop(id, None)
            return
        size = self._size(work.result())
        self._bytes += size
        self._ended.append((self._clock(), number, id, size))
        self._forget()

    def _forget(self) -> None:
        ended = self._ended
        oldest = self._clock() - self._seconds
        while ended and (len(ended) > self._limit or self._bytes > self._max_bytes or ended[0][0] < oldest):
            _, number, id, size = ended.popleft()
            self._forgotten = max(self._forgotten, number)
            self._bytes -= size
            self._known.pop(id, None)

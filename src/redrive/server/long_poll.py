"""Long polls: requests that wait for arrivals, until the client disconnects or the server stops.

No arrival is missed: a client names the sequence number it knows and gets everything since. One item does not wake all
idle workers: as many clients are answered immediately as items arrived, those that waited longest first; the others a
moment later, in case the first did not lease. A body that has arrived whole is read without a timer, which would cost
more than the read.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import types
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Collection, Coroutine, Generator, Mapping
from itertools import takewhile
from typing import Any

from redrive.broker.notifier import Notifier
from redrive.model.ids import RESULTS
from redrive.server.request_limits import Busy


class ClientDisconnected(Exception):
    """The client has disconnected, so no response can be read. `result` is what the response would have contained."""

    def __init__(self, result: Any = None) -> None:
        self.result = result
        super().__init__("the client is gone")


class LongPolls:
    """The pending long polls. All are answered when the server stops."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tasks: set[asyncio.Future[Any]] = set()
        self.stopping = False

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, task: asyncio.Future[Any]) -> None:
        """Add a pending long poll. Raises `Overloaded` if there are too many."""
        if len(self._tasks) >= self._limit:
            raise Busy(len(self._tasks), f"{len(self._tasks):,} requests wait for something to happen")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """End all pending and all future long polls."""
        self.stopping = True
        for task in tuple(self._tasks):
            task.cancel()


def start_eagerly(work: Awaitable[Any]) -> tuple[Any, Awaitable[Any] | None]:
    """Start a coroutine. Return its result and None if it needs no waiting, otherwise None and the rest to await."""
    if not isinstance(work, types.CoroutineType):
        return None, work
    try:
        waits_for = work.send(None)
    except StopIteration as end:
        return end.value, None
    return None, _go_on(work, waits_for)


@types.coroutine
def _go_on(work: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Continue a coroutine that `start_eagerly` has started and that waits."""
    while True:
        try:
            try:
                value = yield waits_for
            except BaseException as error:  # a cancellation is passed to the coroutine
                waits_for = work.throw(error)
            else:
                waits_for = work.send(value)
        except StopIteration as end:
            return end.value


LATER_SECONDS = 1.0
"""Seconds after an arrival until the clients are answered for which it had too few items."""
ANYTHING_SECONDS = 2.0
"""Seconds after which any commit answers a waiting client, even if nothing arrived that it could lease."""
ANYWHERE_SECONDS = 0.25
"""Minimum seconds between notifications of a change in an unknown queue, which answer all clients."""
_ALL = ""
"""Represents all queues; no queue can have this name."""


class _Watch:
    """A waiting client."""

    __slots__ = ("future", "queues", "since")

    def __init__(self, since: int, queues: Collection[str] | None, future: asyncio.Future[None]) -> None:
        self.since = since
        self.queues = queues
        self.future = future


class ArrivalLog:
    """Arrivals of one namespace, for the clients of one event loop."""

    def __init__(self, notify: Notifier) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        # Above all numbers sent before the namespace was last closed: no store commits once per microsecond.
        self._number = self._anywhere_at = int(time.monotonic() * 1_000_000)
        self._arrived_at: dict[str, int] = {}
        self._results_at: OrderedDict[str, int] = OrderedDict()
        """The number of the last change on each result topic, newest last."""
        self._untold: Counter[str] = Counter()
        self._is_telling = self._is_due = False
        self._anywhere_told_at = float("-inf")
        self._watchers: dict[str, dict[_Watch, None]] = {}
        """Waiting clients by queue, those that have waited longest first."""
        self._all: set[_Watch] = set()
        self._eager: set[_Watch] = set()
        """Clients that have waited for ANYTHING_SECONDS."""
        self._late: set[str] = set()
        notify.subscribe(self._committed)

    @property
    def number(self) -> int:
        """The sequence number; grows with every commit."""
        return self._number

    def since(self, number: int, queues: Collection[str] | None) -> tuple[str, ...] | None:
        """Return those of the queues with arrivals since a number; None if the queues are unknown."""
        with self._lock:
            if number < self._anywhere_at:
                return None
            if queues is None:
                found = [name for name, at in self._arrived_at.items() if at > number]
            else:
                found = [name for name in queues if self._arrived_at.get(name, 0) > number]
            if queues is None or RESULTS in queues:
                found += takewhile(lambda topic: self._results_at[topic] > number, reversed(self._results_at))
            return tuple(found)

    async def wait(self, number: int, queues: Collection[str] | None, seconds: float) -> None:
        """Wait until something has arrived since that number, or for `seconds`."""
        watcher = _Watch(number, queues, self._loop.create_future())
        names = (_ALL,) if queues is None else queues
        for name in names:
            self._watchers.setdefault(name, {})[watcher] = None
        self._all.add(watcher)
        later = self._loop.call_later(ANYTHING_SECONDS, self._shorten_delay, watcher)
        try:
            if self.since(number, queues) == ():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await watcher.future
        finally:
            later.cancel()
            self._all.discard(watcher)
            self._eager.discard(watcher)
            for name in names:
                waiting = self._watchers.get(name)
                if waiting is not None:
                    waiting.pop(watcher, None)
                    if not waiting:
                        del self._watchers[name]

    def _committed(self, arrivals: Mapping[str, int] | None) -> None:
        """Record a commit and schedule notifications. Called from any thread."""
        with self._lock:
            if arrivals is None:
                if self._is_due:
                    return
                self._is_due = True
                tell = self._mark_all_queues
            else:
                self._number += 1
                for name in arrivals:
                    self._note(name)
                if not self._all:
                    return
                for name, count in arrivals.items():
                    self._untold[RESULTS if name.startswith(RESULTS) else name] += max(count, 1)
                if self._is_telling:
                    return
                self._is_telling = True
                tell = self._tell
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its clients are gone
            self._loop.call_soon_threadsafe(tell)

    def _note(self, name: str) -> None:
        if name.startswith(RESULTS):
            self._results_at[name] = self._number
            self._results_at.move_to_end(name)
        else:
            self._arrived_at[name] = self._number

    def _mark_all_queues(self) -> None:
        """Answer all clients after a change in an unknown queue, not too often. Runs in the loop."""
        due_at = self._anywhere_told_at + ANYWHERE_SECONDS
        if self._loop.time() < due_at:
            self._loop.call_at(due_at, self._mark_all_queues)
            return
        self._anywhere_told_at = self._loop.time()
        with self._lock:
            self._is_due = False
            self._number += 1
            self._anywhere_at = self._number
        for watcher in self._all:
            _answer(watcher)

    def _tell(self) -> None:
        """Answer the clients that wait for recorded arrivals. Runs in the loop."""
        with self._lock:
            untold, self._untold = self._untold, Counter()
            self._is_telling = False
        while self._eager:
            _answer(self._eager.pop())
        for watcher in self._watchers.get(RESULTS, ()) if RESULTS in untold else ():
            _answer(watcher)
        for queue, count in untold.items():
            self._tell_some(queue, count)
            self._tell_some(_ALL, count)

    def _tell_some(self, queue: str, count: int) -> None:
        waiting = self._watchers.get(queue)
        if not waiting:
            return
        told = 0
        for watcher in waiting:
            if told == count:
                break
            told += _answer(watcher)
        if told < len(waiting) and queue not in self._late:
            self._late.add(queue)
            self._loop.call_later(LATER_SECONDS, self._tell_rest, queue)

    def _tell_rest(self, queue: str) -> None:
        self._late.discard(queue)
        for watcher in self._watchers.get(queue, ()):
            if self.since(watcher.since, watcher.queues) != ():
                _answer(watcher)

    def _shorten_delay(self, watcher: _Watch) -> None:
        if self._number > watcher.since:
            _answer(watcher)
        else:
            self._eager.add(watcher)


def _answer(watcher: _Watch) -> bool:
    """Answer a client and return True; return False if it was answered before."""
    if watcher.future.done():
        return False
    watcher.future.set_result(None)
    return True

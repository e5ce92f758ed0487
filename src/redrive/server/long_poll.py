"""Requests that wait: for arrivals, until the client disconnects or the server stops.

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
    """Whoever made the request is no longer there: nobody reads an answer. `result` is what would have been in it."""

    def __init__(self, result: Any = None) -> None:
        self.result = result
        super().__init__("the client is gone")


class LongPolls:
    """Who waits for something to happen. All are answered when the server stops."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tasks: set[asyncio.Future[Any]] = set()
        self.stopping = False

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, task: asyncio.Future[Any]) -> None:
        """One more waits. Raises `Overloaded` where too many do."""
        if len(self._tasks) >= self._limit:
            raise Busy(len(self._tasks), f"{len(self._tasks):,} requests wait for something to happen")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """End every wait, and those that come."""
        self.stopping = True
        for task in tuple(self._tasks):
            task.cancel()


def start_eagerly(work: Awaitable[Any]) -> tuple[Any, Awaitable[Any] | None]:
    """What it gives, if that is there at once, and None; otherwise None, and what is to be awaited instead of it."""
    if not isinstance(work, types.CoroutineType):
        return None, work
    try:
        waits_for = work.send(None)
    except StopIteration as end:
        return end.value, None
    return None, _go_on(work, waits_for)


@types.coroutine
def _go_on(work: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """The rest of a coroutine that was begun by hand, and waits."""
    while True:
        try:
            try:
                value = yield waits_for
            except BaseException as error:  # it is cancelled: that is for the coroutine to hear
                waits_for = work.throw(error)
            else:
                waits_for = work.send(value)
        except StopIteration as end:
            return end.value


LATER_SECONDS = 1.0
"""When those are told whom an arrival was not enough for."""
ANYTHING_SECONDS = 2.0
"""A client that has waited for so long is answered at any commit, also where nothing arrived that it could lease."""
ANYWHERE_SECONDS = 0.25
"""How far apart it is told at least that something changed and nobody knows where: then everybody comes."""
_ALL = ""
"""Stands for all queues, as no queue has this name."""


class _Watch:
    """A client that waits."""

    __slots__ = ("future", "queues", "since")

    def __init__(self, since: int, queues: Collection[str] | None, future: asyncio.Future[None]) -> None:
        self.since = since
        self.queues = queues
        self.future = future


class ArrivalLog:
    """Arrivals of one namespace, told to the clients of one event loop."""

    def __init__(self, notify: Notifier) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        # Beyond every number that was told of the namespace before it was closed, if it was: no store commits so often.
        self._number = self._anywhere_at = int(time.monotonic() * 1_000_000)
        self._arrived_at: dict[str, int] = {}
        self._results_at: OrderedDict[str, int] = OrderedDict()
        """When something last ended on each result topic, the newest last."""
        self._untold: Counter[str] = Counter()
        self._is_telling = self._is_due = False
        self._anywhere_told_at = float("-inf")
        self._watchers: dict[str, dict[_Watch, None]] = {}
        """By each queue that they wait for, those that wait longest first."""
        self._all: set[_Watch] = set()
        self._eager: set[_Watch] = set()
        """Those that have waited for ANYTHING_SECONDS."""
        self._late: set[str] = set()
        notify.subscribe(self._committed)

    @property
    def number(self) -> int:
        """Grows with every commit."""
        return self._number

    def since(self, number: int, queues: Collection[str] | None) -> tuple[str, ...] | None:
        """Those of the queues in which something arrived since a number. None: it is not known in which."""
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
        """Return once there is something to tell to whoever knows of that number, or so many seconds are over."""
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
        """From any thread: something was committed."""
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
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it whoever waited there
            self._loop.call_soon_threadsafe(tell)

    def _note(self, name: str) -> None:
        if name.startswith(RESULTS):
            self._results_at[name] = self._number
            self._results_at.move_to_end(name)
        else:
            self._arrived_at[name] = self._number

    def _mark_all_queues(self) -> None:
        """In the loop: tell all that something changed, not too often."""
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
        """In the loop: answer those who waited for it."""
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
    """Whether it had not been told yet."""
    if watcher.future.done():
        return False
    watcher.future.set_result(None)
    return True

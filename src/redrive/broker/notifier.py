"""Long poll: the store never waits; the waiters of each queue are kept here, in order. Callers that await the outcome
of an item wait for its result topic in the same way; an arrival there wakes all of them.

An arrival wakes as many waiters as there are items. One thread, started by the first waiter, handles all events of
time: expired waits, due items, and changes by other processes.

The lists of waiters are changed where no signal handler runs (`signal_shield`). The main thread itself only waits; if
interrupted, it leaves, and a wake-up that it had received goes to the next waiter.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from redrive.broker.flow import WaitForQueue
from redrive.broker.signal_shield import shielded, shielded_later
from redrive.clock import Instant
from redrive.model.duration import MILLISECOND
from redrive.model.ids import RESULTS
from redrive.store import Store

POLL_INTERVAL = 20 * MILLISECOND
"""Time between two polls for changes by other processes, while there are waiters or a follower."""

ALL_QUEUES = ""
"""The name for all queues, which no queue can have. Its waiters are woken by every commit."""

_STALE_ENDS = 1000
"""Number of stale entries in the heap of ends, beyond twice the waiters, above which they are removed."""


class Waiter:
    """One caller that waits. A thread waits on a lock, a coroutine on a future; a worker is woken by its callback."""

    __slots__ = ("future", "is_gone", "lock", "loop", "number", "ring", "step", "woken")

    def __init__(
        self, step: WaitForQueue, loop: asyncio.AbstractEventLoop | None = None, ring: Callable[[], None] | None = None
    ) -> None:
        self.number = -1
        """Its place in line, once it has entered."""
        self.step = step
        self.woken = False
        self.is_gone = False
        """True if it does not wait any more, and must not enter the line."""
        self.ring = ring
        self.loop = loop
        self.future: asyncio.Future[None] | None = None if loop is None else loop.create_future()
        self.lock = threading.Lock()
        if loop is None:
            self.lock.acquire()


Follower = Callable[[Mapping[str, int] | None], None]
"""A function that is called with the arrivals of every commit, from any thread; None: another process made changes that
the store does not name."""


class Watch:
    """A wait for several queues together."""

    def __init__(self, notify: Notifier, waiters: Sequence[Waiter]) -> None:
        self._notify = notify
        self._waiters = waiters

    def begin(self) -> None:
        """Start to wait. If something has arrived since the ticket, the callback is called immediately."""
        shielded(self._begin)

    def _begin(self) -> None:
        for waiter in self._waiters:
            if not self._notify.enter(waiter):
                assert waiter.ring is not None
                waiter.ring()
                break

    def end(self) -> set[str]:
        """End the wait. Returns the queues that it was woken for, whose next waiters the caller wakes after a lease."""
        return shielded(self._notify.unsubscribe_all, self._waiters)


class Notifier:
    """The waiters of all queues, and their wake-ups."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._clock = store.clock
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._tickets: defaultdict[str, int] = defaultdict(int)
        self._changes = 0
        self._waiters: dict[str, OrderedDict[int, Waiter]] = {}
        self._ends: list[tuple[Instant, int, Waiter]] = []
        self._dues: dict[str, Instant] = {}
        self._numbers = itertools.count()
        self._bell = threading.Event()
        self._thread: threading.Thread | None = None
        self._sleeps_until: Instant | None = None
        """The instant of the next poll of the thread; None: it waits until it is woken."""
        self._results = 0
        self._closed = False
        self._follower: Follower | None = None
        self.wakeups = 0
        """Number of wake-ups of waiters."""

    after_fork = _reset

    def sequence(self, queue: str) -> int:
        """Return the ticket of a queue. Take it before reading the queue: a wait with it ends immediately if anything
        has arrived since."""
        return self._tickets.get(queue, 0) + self._changes

    @property
    def result_count(self) -> int:
        """A number that grows whenever an item may have ended, here or in another process."""
        return self._results + self._changes

    def notify_arrivals(self, arrivals: Mapping[str, int]) -> None:
        """Wake as many waiters as items arrived by a commit, at least one: it reads when the next item is due."""
        if self._follower is not None:
            self._follower(arrivals)
        with self._mutex:
            self._tickets[ALL_QUEUES] += 1
            woken = self._pop(ALL_QUEUES, None)
            for queue, count in arrivals.items():
                self._tickets[queue] += 1
                self._results += queue.startswith(RESULTS)
                if queue in self._waiters:
                    woken += self._pop(queue, None if queue.startswith(RESULTS) else max(count, 1))
        if woken:
            self._wake(woken)

    def notify_next(self, queue: str) -> None:
        """Wake the next waiter of the queue: there may be more items, or the woken one cannot continue."""
        shielded_later(self._pass_on, queue)

    def notify_all(self, queue: str) -> None:
        """Wake all waiters of the queue: one of them has to end. The others wait again."""
        shielded_later(self._pass_on, queue, None)

    def _pass_on(self, queue: str, count: int | None = 1) -> None:
        with self._mutex:
            self._tickets[queue] += count is None  # for one that is about to wait
            woken = self._pop(queue, count)
        self._wake(woken)

    def wait(self, step: WaitForQueue) -> bool:
        """Wait in this thread. Return True if woken, False if the time has expired."""
        waiter = Waiter(step)
        try:
            if not shielded(self.enter, waiter):
                return True
            waiter.lock.acquire()
            return waiter.woken
        except BaseException:
            waiter.is_gone = True
            shielded_later(self._leave, waiter)
            raise

    def watch(
        self, queues: Mapping[str, tuple[int, Instant | None]], until: Instant, ring: Callable[[], None]
    ) -> Watch:
        """Return a wait for these queues, each with its ticket and the instant of its next due item. Once started, it
        calls `ring` when something may be leasable in one of them, and at `until`."""
        return Watch(
            self,
            [
                Waiter(WaitForQueue(queue, ticket, until, next_at), ring=ring)
                for queue, (ticket, next_at) in queues.items()
            ],
        )

    def subscribe(self, follower: Follower) -> None:
        """Call a function with all arrivals from now on, of this and other processes. It replaces the former one, and
        must not block."""
        shielded(self._follow, follower)

    def _follow(self, follower: Follower) -> None:
        with self._mutex:
            self._follower = follower
            self._start()
            self._bell.set()

    def unsubscribe_all(self, waiters: Sequence[Waiter]) -> set[str]:
        """Remove these waiters. Returns the queues of those that were woken."""
        with self._mutex:
            for waiter in waiters:
                waiter.is_gone = True
                self._remove(waiter)
            return {waiter.step.queue for waiter in waiters if waiter.woken}

    async def wait_async(self, step: WaitForQueue) -> bool:
        """Wait in this coroutine. If it is cancelled, a wake-up that it received goes to the next waiter."""
        waiter = Waiter(step, asyncio.get_running_loop())
        assert waiter.future is not None
        try:
            if not self.enter(waiter):
                return True
            await waiter.future
        except BaseException:
            waiter.is_gone = True
            self._leave(waiter)
            raise
        return waiter.woken

    def close(self) -> None:
        """Wake all waiters, and accept no more."""
        with self._mutex:
            self._closed = True
            woken = [waiter for queue in list(self._waiters) for waiter in self._pop(queue, None)]
            thread = self._thread
            self._bell.set()
        self._wake(woken)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def enter(self, waiter: Waiter) -> bool:
        """Enter the line. Return False if it need not wait: something has arrived since its ticket."""
        step = waiter.step
        with self._mutex:
            if self._closed or self.sequence(step.queue) != step.sequence:
                return False
            if waiter.is_gone:
                return True
            waiter.number = next(self._numbers)
            self._waiters.setdefault(step.queue, OrderedDict())[waiter.number] = waiter
            heapq.heappush(self._ends, (step.until, waiter.number, waiter))
            if step.next_at is not None:
                self._dues[step.queue] = min(step.next_at, self._dues.get(step.queue, step.next_at))
            self._start()
            wanted = step.until if step.next_at is None else min(step.until, step.next_at)
            if self._sleeps_until is None or wanted < self._sleeps_until:
                self._bell.set()
        return True

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            self._store.subscribe(self._ring)
            thread = threading.Thread(target=self._watch, name="redrive-notify", daemon=True)
            thread.start()
            self._thread = thread

    def _pop(self, queue: str, count: int | None) -> list[Waiter]:
        waiting = self._waiters.get(queue)
        if not waiting:
            return []
        popped: list[Waiter] = []
        while waiting and (count is None or len(popped) < count):
            _, waiter = waiting.popitem(last=False)
            if not waiter.is_gone:
                waiter.woken = True
                popped.append(waiter)
        if not waiting:
            del self._waiters[queue]
        self.wakeups += len(popped)
        return popped

    def _leave(self, waiter: Waiter) -> None:
        """Remove a waiter; a wake-up that it has already received goes to the next one."""
        with self._mutex:
            self._remove(waiter)
        if waiter.woken:
            self._pass_on(waiter.step.queue)

    def _remove(self, waiter: Waiter) -> bool:
        queue = waiter.step.queue
        waiting = self._waiters.get(queue)
        if waiting is None or waiting.pop(waiter.number, None) is None:
            return False
        if not waiting:
            del self._waiters[queue]
        if not self._waiters:
            self._ends.clear()
        return True

    def _watch(self) -> None:
        while not self._closed:
            now = self._clock.now()  # before the poll: the next one is POLL_INTERVAL after the start of this one
            changed = self._look()
            if self._follower is not None and (changed is None or changed):
                self._follower(None if changed is None else dict.fromkeys(changed, 1))
            with self._mutex:
                woken = self._expire(now) + self._fall_due(now)
                woken += self._others_changed(changed)
                until = self._sleeps_until = self._next(now)
            self._wake(woken)
            self._clock.wait(self._bell, until)
            self._bell.clear()

    def _ring(self) -> None:
        """Wake the thread: another process may have changed something."""
        self._bell.set()

    def _look(self) -> Collection[str] | None:
        try:
            return self._store.poll_changes() if self._waiters or self._follower is not None else ()
        except Exception:
            return None  # woken waiters get the error from the store; without this thread all would wait forever

    def _others_changed(self, queues: Collection[str] | None) -> list[Waiter]:
        """Return the waiters to wake. Tickets grow too, for callers that found nothing and are about to wait."""
        if queues is None:
            self._changes += 1
            queues = list(self._waiters)
        else:
            for queue in queues:
                self._tickets[queue] += 1
                self._results += queue.startswith(RESULTS)
            self._tickets[ALL_QUEUES] += bool(queues)
        woken = [waiter for queue in queues for waiter in self._pop(queue, None if queue.startswith(RESULTS) else 1)]
        return woken + (self._pop(ALL_QUEUES, None) if queues else [])

    def _expire(self, now: Instant) -> list[Waiter]:
        ended = []
        if len(self._ends) > _STALE_ENDS + 2 * sum(map(len, self._waiters.values())):
            self._ends = [end for end in self._ends if end[1] in self._waiters.get(end[2].step.queue, ())]
            heapq.heapify(self._ends)
        while self._ends and (self._ends[0][0] <= now or self._ends[0][2].woken):
            waiter = heapq.heappop(self._ends)[2]
            if self._remove(waiter):
                ended.append(waiter)
        return ended

    def _fall_due(self, now: Instant) -> list[Waiter]:
        due = [queue for queue, at in self._dues.items() if at <= now]
        for queue in due:
            del self._dues[queue]
            self._tickets[queue] += 1
        return [waiter for queue in due for waiter in self._pop(queue, 1)]

    def _next(self, now: Instant) -> Instant | None:
        if not self._waiters and self._follower is None:
            return None
        instants = [Instant(now + POLL_INTERVAL)]
        instants += [self._ends[0][0]] if self._ends else []
        return min(*instants, *self._dues.values(), instants[0])

    def _wake(self, waiters: Iterable[Waiter]) -> None:
        """Wake threads one by one, and coroutines with one call for each loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Waiter]] = {}
        for waiter in waiters:
            if waiter.ring is not None:
                waiter.ring()
            elif waiter.loop is None:
                waiter.lock.release()
            else:
                by_loop.setdefault(waiter.loop, []).append(waiter)
        for loop, group in by_loop.items():
            try:
                loop.call_soon_threadsafe(_finish, group)
            except RuntimeError:  # the loop is closed, and with it its waiters: the next in line is woken instead
                for waiter in group:
                    self._pass_on(waiter.step.queue)


def _finish(waiters: Iterable[Waiter]) -> None:
    for waiter in waiters:
        if waiter.future is not None and not waiter.future.done():
            waiter.future.set_result(None)

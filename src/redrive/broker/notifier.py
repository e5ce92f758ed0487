"""Waiting for work. The store never waits; the waiters of each queue stand here, in order. Callers that await how an
item ends wait for its result topic in the same way; an arrival there wakes all of them.

An arrival wakes as many waiters as there are items. One thread, started by the first waiter, sees to everything that
comes with time: waits that end, items that fall due, and what other processes did.

Who waits where is changed where no signal handler runs (`shield`). The main thread itself only waits; interrupted, it
leaves, and a wake-up that it was given goes to the next waiter.
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
"""While someone waits: how often to ask whether another process changed something."""

ALL_QUEUES = ""
"""Stands for all queues, as no queue has this name. Whoever waits for it is woken by every commit."""

_STALE_ENDS = 1000
"""How many ends of waits that are over may lie in the heap before they are thrown out."""


class Waiter:
    """One caller that waits. A thread waits on a lock, a coroutine on a future; a worker has a bell of its own."""

    __slots__ = ("future", "is_gone", "lock", "loop", "number", "ring", "step", "woken")

    def __init__(
        self, step: WaitForQueue, loop: asyncio.AbstractEventLoop | None = None, ring: Callable[[], None] | None = None
    ) -> None:
        self.number = -1
        """Its place, once it stands in line."""
        self.step = step
        self.woken = False
        self.is_gone = False
        """It does not wait any more, and enters no line."""
        self.ring = ring
        self.loop = loop
        self.future: asyncio.Future[None] | None = None if loop is None else loop.create_future()
        self.lock = threading.Lock()
        if loop is None:
            self.lock.acquire()


Follower = Callable[[Mapping[str, int] | None], None]
"""Is told of every commit what arrived, from any thread, and None where another process changed it knows not what."""


class Watch:
    """Somebody who waits for several queues at once."""

    def __init__(self, notify: Notifier, waiters: Sequence[Waiter]) -> None:
        self._notify = notify
        self._waiters = waiters

    def begin(self) -> None:
        """Wait from now on. Where something has arrived since the ticket, it rings now."""
        shielded(self._begin)

    def _begin(self) -> None:
        for waiter in self._waiters:
            if not self._notify.enter(waiter):
                assert waiter.ring is not None
                waiter.ring()
                break

    def end(self) -> set[str]:
        """Wait no longer. Gives the queues that it was woken for: it passes that on once it has leased."""
        return shielded(self._notify.unsubscribe_all, self._waiters)


class Notifier:
    """Who waits for which queue, and whom to wake."""

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
        """When the thread polls next; None: it waits until it is woken."""
        self._results = 0
        self._closed = False
        self._follower: Follower | None = None
        self.wakeups = 0
        """How often somebody was woken."""

    after_fork = _reset

    def sequence(self, queue: str) -> int:
        """Take this before looking into the queue; a wait with it ends at once if anything has arrived since."""
        return self._tickets.get(queue, 0) + self._changes

    @property
    def result_count(self) -> int:
        """Grows whenever an item may have ended, here or in another process."""
        return self._results + self._changes

    def notify_arrivals(self, arrivals: Mapping[str, int]) -> None:
        """A commit: wake as many waiters as items arrived, and at least one, who learns when the next falls due."""
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
        """Wake the next waiter of the queue: there may be more, or the one that was woken cannot go on."""
        shielded_later(self._pass_on, queue)

    def _pass_on(self, queue: str) -> None:
        with self._mutex:
            woken = self._pop(queue, 1)
        self._wake(woken)

    def wait(self, step: WaitForQueue) -> bool:
        """Wait in this thread. True if woken, False if the time is over."""
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
        """A wait for these queues, each given with its ticket and when it expects something by itself. Once it has
        begun it rings when something may be leasable in one of them, and when it is `until`."""
        return Watch(
            self,
            [
                Waiter(WaitForQueue(queue, ticket, until, next_at), ring=ring)
                for queue, (ticket, next_at) in queues.items()
            ],
        )

    def subscribe(self, follower: Follower) -> None:
        """From now on tell somebody of all that arrives, here and by other processes; the one of before no longer. It
        is not to wait for anything."""
        shielded(self._follow, follower)

    def _follow(self, follower: Follower) -> None:
        with self._mutex:
            self._follower = follower
            self._start()
            self._bell.set()

    def unsubscribe_all(self, waiters: Sequence[Waiter]) -> set[str]:
        """They no longer wait. Gives the queues of those that were woken."""
        with self._mutex:
            for waiter in waiters:
                waiter.is_gone = True
                self._remove(waiter)
            return {waiter.step.queue for waiter in waiters if waiter.woken}

    async def wait_async(self, step: WaitForQueue) -> bool:
        """Wait in this coroutine. A wake-up that meets a cancelled one goes to the next waiter."""
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
        """Wake everybody; nobody waits any more."""
        with self._mutex:
            self._closed = True
            woken = [waiter for queue in list(self._waiters) for waiter in self._pop(queue, None)]
            thread = self._thread
            self._bell.set()
        self._wake(woken)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def enter(self, waiter: Waiter) -> bool:
        """Stand in line. False where it need not wait: something has arrived since its ticket."""
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
        """It no longer waits; a wake-up that it got already goes to the next."""
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
            now = self._clock.now()  # before the look: the next one comes POLL_INTERVAL after this one began
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
        """Another process may have changed something."""
        self._bell.set()

    def _look(self) -> Collection[str] | None:
        try:
            return self._store.poll_changes() if self._waiters or self._follower is not None else ()
        except Exception:
            return None  # whoever is woken meets the error; without this thread all would wait for ever

    def _others_changed(self, queues: Collection[str] | None) -> list[Waiter]:
        """Tickets grow too, for whoever found nothing a moment ago and is about to wait."""
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
        """Threads one by one; coroutines with one message to each loop."""
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
            except RuntimeError:  # the loop is closed, and with it whoever waited there: the next in line takes over
                for waiter in group:
                    self._pass_on(waiter.step.queue)


def _finish(waiters: Iterable[Waiter]) -> None:
    for waiter in waiters:
        if waiter.future is not None and not waiter.future.done():
            waiter.future.set_result(None)

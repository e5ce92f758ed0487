"""The committer: calls that arrive while a transaction is being committed form the next transaction.

Full durability then costs almost nothing, and nobody has to batch by hand.

- An idle store is called directly, in the thread of the caller.
- A thread that finds the store busy waits on a lock of its own. Whoever finishes a transaction hands the store to
  the first in line, who commits the calls of all that wait.
- Coroutines are gathered per tick of their event loop and committed by one writer thread, which stands in line like
  any other. Each loop is woken once per transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redrive.errors import Closed, OutcomeUnknown, Overloaded, RedriveError, StoreError, StoreFailed
from redrive.store import Call, Leased, Return, Store

MOST_WAITING_CALLS = 100_000
"""Calls beyond this are refused with `Overloaded`."""
MOST_CALLS_PER_COMMIT = 4_096
"""A transaction takes no more calls than this, so that the last one in a burst does not wait for all others."""


class _Request:
    """Calls of one caller that waits for a transaction, or for its turn to make one."""

    __slots__ = ("calls", "error", "leads", "lock", "results")

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = calls
        self.results: list[Any] | None = None
        self.error: BaseException | None = None
        self.leads = False
        self.lock = threading.Lock()
        self.lock.acquire()


class Committer:
    """Gathers concurrent calls into transactions of one store."""

    def __init__(self, store: Store, announce: Callable[[Mapping[str, int]], None]) -> None:
        self._store = store
        self._announce = announce
        self._revival: Callable[[], None] | None = None
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._busy = False
        self._idle = threading.Condition(self._mutex)
        self._waiting: deque[_Request] = deque()
        self._waiting_calls = 0
        self._writer: _Writer | None = None

    def commit(self, calls: Sequence[Call]) -> list[Any]:
        """Commit calls in one transaction and return their results. Blocks until it is durable."""
        if self._revival is not None:
            self.revive_after_fork()
        with self._mutex:
            if self._closed:
                raise Closed
            if not self._busy:
                self._busy = True
                request = None
            else:
                if self._waiting_calls + len(calls) > MOST_WAITING_CALLS:
                    raise Overloaded(self._waiting_calls)
                request = _Request(calls)
                self._waiting.append(request)
                self._waiting_calls += len(calls)
        if request is None:
            try:
                return self._commit(calls)
            finally:
                self._hand_over()
        request.lock.acquire()
        if request.leads:
            self._lead()
        if request.error is not None:
            raise request.error
        assert request.results is not None
        return request.results

    async def commit_async(self, calls: Sequence[Call]) -> list[Any]:
        """The same for a coroutine, which shares its transaction with all others of this tick."""
        return await self.submit(calls)

    def submit(self, calls: Sequence[Call]) -> asyncio.Future[list[Any]]:
        """Hand in calls from a coroutine. The future has their results once they are durable."""
        if self._revival is not None:
            self.revive_after_fork()
        if self._closed:
            raise Closed
        writer = self._writer
        if writer is None:
            with self._mutex:
                writer = self._writer = self._writer or _Writer(self)
        return writer.submit(calls)

    def close(self) -> None:
        """Refuse new calls, and wait until those that were accepted are committed."""
        if self._revival is not None:
            self._closed = True
            return
        if self._writer is not None:
            self._writer.close()
        with self._mutex:
            self._closed = True
            while self._busy:
                self._idle.wait()

    def after_fork(self, revived: Callable[[], None]) -> None:
        """In a forked child: forget the parent's callers. The first call opens the store anew and calls `revived`."""
        self._reset()
        self._revival = revived

    def revive_after_fork(self) -> None:
        """Open the store anew if this is a forked child that has not yet done so."""
        with self._mutex:
            revival, self._revival = self._revival, None
            if revival is not None:
                self._store.reopen()
        if revival is not None:
            revival()

    def _lead(self) -> None:
        """Commit the calls of everyone who waits, then hand the store to the next in line."""
        with self._mutex:
            batch = self._take()
        calls = [call for request in batch for call in request.calls]
        try:
            results = self._commit(calls)
            start = 0
            for request in batch:
                request.results = results[start : start + len(request.calls)]
                start += len(request.calls)
        except BaseException as error:
            for request in batch:
                request.error = error
        finally:
            for request in batch:
                if not request.leads:
                    request.lock.release()
            self._hand_over()

    def _take(self) -> list[_Request]:
        batch = [self._waiting.popleft()]
        taken = len(batch[0].calls)
        while self._waiting and taken + len(self._waiting[0].calls) <= MOST_CALLS_PER_COMMIT:
            request = self._waiting.popleft()
            batch.append(request)
            taken += len(request.calls)
        self._waiting_calls -= taken
        return batch

    def _hand_over(self) -> None:
        with self._mutex:
            if not self._waiting:
                self._busy = False
                self._idle.notify_all()
                return
            heir = self._waiting[0]
            heir.leads = True
        heir.lock.release()

    def _commit(self, calls: Sequence[Call]) -> list[Any]:
        """One transaction; where the engine failed in a way nobody foresaw, each call once, alone."""
        try:
            commit = self._store.commit(calls)
        except StoreFailed:
            if len(calls) == 1:
                raise
            return [self._commit_alone(call) for call in calls]
        self._announce(commit.arrivals)
        return commit.results

    def _commit_alone(self, call: Call) -> Any:
        try:
            commit = self._store.commit((call,))
        except (StoreError, OutcomeUnknown) as error:
            return error
        self._announce(commit.arrivals)
        return commit.results[0]


class _Gate:
    """The calls of one event loop that wait for the writer."""

    __slots__ = ("calls", "futures", "loop", "scheduled", "sizes")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.scheduled = False
        self.clear()

    def clear(self) -> None:
        self.calls: list[Call] = []
        self.futures: list[asyncio.Future[list[Any]]] = []
        self.sizes: list[int] = []


class _Writer:
    """Commits what coroutines hand in, in a thread of its own."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._mutex = threading.Lock()
        self._gates: dict[asyncio.AbstractEventLoop, _Gate] = {}
        self._full: deque[_Gate] = deque()
        self._bell = threading.Semaphore(0)
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="redrive-writer", daemon=True)
        self._thread.start()

    def submit(self, calls: Sequence[Call]) -> asyncio.Future[list[Any]]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Any]] = loop.create_future()
        with self._mutex:
            if self._closed:
                raise Closed
            gate = self._gates.get(loop)
            if gate is None:
                gate = self._gates[loop] = _Gate(loop)
            if len(gate.calls) >= MOST_WAITING_CALLS:
                raise Overloaded(len(gate.calls))
            gate.calls.extend(calls)
            gate.futures.append(future)
            gate.sizes.append(len(calls))
            if not gate.scheduled:
                gate.scheduled = True
                loop.call_soon(self._ring, gate)
        return future

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            self._full.extend(gate for gate in self._gates.values() if gate.futures)
        self._bell.release()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _ring(self, gate: _Gate) -> None:
        with self._mutex:
            self._full.append(gate)
        self._bell.release()

    def _loop(self) -> None:
        while True:
            self._bell.acquire()
            with self._mutex:
                if not self._full:
                    if self._closed:
                        return
                    continue
                gate = self._full.popleft()
                calls, futures, sizes = gate.calls, gate.futures, gate.sizes
                gate.clear()
                gate.scheduled = False
            if not futures:
                continue
            error: RedriveError | None = None
            results: list[Any] = []
            try:
                results = self._committer.commit(calls)
            except RedriveError as refusal:
                error = refusal
            except BaseException as unforeseen:
                error = StoreFailed(self._committer._store.name, repr(unforeseen))
            try:
                gate.loop.call_soon_threadsafe(self._deliver, futures, sizes, results, error)
            except RuntimeError:  # the loop is closed, and with it whoever waited there
                with self._mutex:
                    self._gates.pop(gate.loop, None)
                self._give_back(results)
            if self._closed:
                self._bell.release()

    def _deliver(
        self,
        futures: list[asyncio.Future[list[Any]]],
        sizes: list[int],
        results: list[Any],
        error: RedriveError | None,
    ) -> None:
        """In the loop: hand each caller its results."""
        start = 0
        abandoned: list[Any] = []
        for future, size in zip(futures, sizes, strict=True):
            if future.done():
                abandoned += results[start : start + size]
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(results[start : start + size])
            start += size
        returns = _returns(abandoned)
        if returns:
            self.submit(returns).add_done_callback(lambda future: future.cancelled() or future.exception())

    def _give_back(self, results: list[Any]) -> None:
        returns = _returns(results)
        if returns:
            with contextlib.suppress(RedriveError):
                self._committer.commit(returns)


def _returns(results: list[Any]) -> list[Call]:
    """What gives leases back whose caller was cancelled while they were being committed: the items never ran."""
    return [Return(lease.token) for result in results if isinstance(result, Leased) for lease in result.leases]

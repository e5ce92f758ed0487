"""The committer: calls that arrive while a transaction is being committed form the next transaction.

Full durability then costs almost nothing, and callers need not batch manually.

- An idle store is called directly, in the thread of the caller; for the main thread in a thread of the shield, as
  signal handlers may raise there at any point.
- A thread that finds the store busy waits on its own lock. The thread that finishes a transaction first hands the store
  to the head of the line, which commits the calls of all waiting threads. Then it wakes one of those whose calls it
  committed; each of them wakes the next as soon as it runs. So few threads compete for the interpreter at a time.
- Coroutines submit their calls to the thread of `async_committer.py`, which waits in line like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from redrive.broker.async_committer import AsyncCommitter, ResultReceiver
from redrive.broker.signal_shield import claimed, shielded_later
from redrive.contract import Call
from redrive.contract.item_calls import lease_returns
from redrive.errors import Closed, OutcomeUnknown, Overloaded, RedriveError, StoreFailed
from redrive.model.limits import MAX_CALLS_PER_COMMIT, MAX_WAITING_CALLS
from redrive.store import Commit, Store, commit_rest
from redrive.telemetry import events

if TYPE_CHECKING:
    from redrive.broker.instrumentation import BrokerMetrics

_log = events.logger("redrive.committer")


class _Request:
    """The calls of one caller that waits for a transaction, or for its turn to make one."""

    __slots__ = ("calls", "commit", "error", "has_left", "leads", "lock", "next")

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = calls
        self.commit: Commit | None = None
        self.error: BaseException | None = None
        self.leads = False
        self.next: _Request | None = None
        """The request of the same transaction that this caller wakes."""
        self.has_left = False
        """True if its caller was interrupted, and wakes no other."""
        self.lock = threading.Lock()
        self.lock.acquire()


class Committer:
    """The group commit of one store: it gathers concurrent calls into transactions."""

    def __init__(
        self,
        store: Store,
        announce: Callable[[Mapping[str, int]], None],
        watch: Callable[[Sequence[Call], Sequence[Any]], None],
    ) -> None:
        self._store = store
        self._announce = announce
        self._watch = watch
        self.meter: BrokerMetrics | None = None
        self._revival: Callable[[], None] | None = None
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._busy = False
        self._idle = threading.Condition(self._mutex)
        self._waiting: deque[_Request] = deque()
        self._waiting_calls = 0
        self._writer: AsyncCommitter | None = None

    def commit(self, calls: Sequence[Call]) -> list[Any]:
        """Commit calls in one transaction and return their results. Blocks until it is durable."""
        return self.transact(calls).results

    def transact(self, calls: Sequence[Call]) -> Commit:
        """Commit calls and return their results, with the instant and arrivals of the transaction, which may be shared.

        Raises an error if nothing was changed, or `OutcomeUnknown`. An exception of a signal handler is raised
        unchanged; the calls are then executed once or not at all, and leases among their results are returned.
        """
        return claimed(partial(self._transact, calls), self._give_back_of)

    def _transact(self, calls: Sequence[Call]) -> Commit:
        if self._revival is not None:
            self.revive_after_fork()
        request: _Request | None = None
        leads = False
        try:
            with self._mutex:
                if self._closed:
                    raise Closed
                if not self._busy:
                    self._busy = leads = True
                else:
                    if self._waiting_calls + len(calls) > MAX_WAITING_CALLS:
                        raise Overloaded(self._waiting_calls)
                    request = _Request(calls)
                    self._waiting.append(request)
                    self._waiting_calls += len(calls)
            if request is None:
                return self._commit(calls)
            request.lock.acquire()
            if request.next is not None:
                request.next.lock.release()
                request.next = None
            if request.leads:
                self._commit_as_leader()
        except BaseException:
            if request is not None:
                self._step_out(request)
            raise
        finally:
            if leads:
                self._hand_over()
        if request.error is not None:
            raise request.error
        assert request.commit is not None
        return request.commit

    @property
    def waiting_calls(self) -> int:
        """Calls that wait for their transaction now."""
        return self._waiting_calls + (0 if self._writer is None else self._writer.waiting_calls)

    def submit(self, call: Call) -> asyncio.Future[Any]:
        """Submit a call from a coroutine. The future has its result once it is durable.

        Calls that are submitted in one tick share a transaction, unless they are too many for one.
        """
        future: asyncio.Future[Any] = (self._writer or self._start_writer()).hand_in((call,))
        return future

    def submit_to(self, call: Call, receiver: ResultReceiver) -> None:
        """Submit a call in an event loop, without a coroutine. The receiver gets its result once it is durable."""
        (self._writer or self._start_writer()).hand_in((call,), receiver=receiver)

    def submit_many(self, calls: Sequence[Call], *, uncancelled: bool = False) -> asyncio.Future[Commit]:
        """Submit calls from a coroutine, for one transaction. The future has their results once it is durable, with
        the instant and the arrivals of the transaction, which may have calls of others too."""
        future: asyncio.Future[Commit] = (self._writer or self._start_writer()).hand_in(calls, True, uncancelled)
        return future

    def _start_writer(self) -> AsyncCommitter:
        if self._revival is not None:
            self.revive_after_fork()
        with self._mutex:
            if self._closed:
                raise Closed
            self._writer = self._writer or AsyncCommitter(self.transact, self._store.name)
            return self._writer

    def return_unclaimed_leases(self, future: asyncio.Future[Any]) -> None:
        """Return the leases that arrived as the caller of this future was cancelled: the items never ran."""
        if future.done() and not future.cancelled() and future.exception() is None:
            given = future.result()
            self.return_leases(given.results if given.__class__ is Commit else [given])

    def return_leases(self, results: list[Any]) -> None:
        """Return the leases among results that have no caller any more. For an event loop."""
        if self._writer is not None:
            self._writer.give_back(results)

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
        """Forget the parent's callers in a forked child. The first call reopens the store and calls `revived`."""
        self._reset()
        self._revival = revived

    def revive_after_fork(self) -> None:
        """Reopen the store if this is a forked child that has not yet done so."""
        with self._mutex:
            revival = self._revival
            if revival is not None:
                self._store.reopen()
            self._revival = None
        if revival is not None:
            revival()

    def give_up(self, results: Any) -> None:
        """Return the leases among results that an interrupted caller did not receive."""
        if isinstance(results, list) and lease_returns(results):
            shielded_later(self._give_back, results)

    def _give_back_of(self, commit: Commit) -> None:
        self._give_back(commit.results)

    def _give_back(self, results: list[Any]) -> None:
        """Return leases whose caller was interrupted: the items never ran. If that fails, they expire."""
        if returns := lease_returns(results):
            with contextlib.suppress(Exception):
                self._transact(returns)

    def _commit_as_leader(self) -> None:
        """Commit the calls of all waiting requests that fit, then hand the store to the next in line."""
        batch: list[_Request] = []
        try:
            with self._mutex:
                batch = self._take()
            commit = self._commit([call for request in batch for call in request.calls])
            start = 0
            for request in batch:
                results = commit.results[start : start + len(request.calls)]
                request.commit = Commit(results, commit.arrivals, commit.now)
                start += len(request.calls)
        except BaseException as error:
            if not batch:
                raise  # interrupted before it took anything: it is still in line
            # An error that the store did not raise says nothing about the calls of others.
            known = isinstance(error, RedriveError)
            for request in batch:
                request.error = error if known or request.leads else OutcomeUnknown(self._store.name, repr(error))
        finally:
            if batch:
                try:
                    self._hand_over()
                finally:
                    self._wake(batch)

    def _wake(self, batch: list[_Request]) -> None:
        """Wake the callers of a committed transaction, each by the one before it."""
        with self._mutex:
            present = [request for request in batch if not (request.leads or request.has_left)]
            for request, follower in pairwise(present):
                request.next = follower
        if present:
            present[0].lock.release()

    def _step_out(self, request: _Request) -> None:
        """Remove the request of an interrupted thread from the line; if it was the leader, the next one leads."""
        with self._mutex:
            request.has_left = True
            follower, request.next = request.next, None
            is_waiting = request in self._waiting
            if is_waiting:
                self._waiting.remove(request)
                self._waiting_calls -= len(request.calls)
        if follower is not None:
            with contextlib.suppress(RuntimeError):  # it was already woken when the exception was raised
                follower.lock.release()
        if is_waiting and request.leads:
            self._hand_over()

    def _take(self) -> list[_Request]:
        batch = [self._waiting.popleft()]
        taken = len(batch[0].calls)
        while self._waiting and taken + len(self._waiting[0].calls) <= MAX_CALLS_PER_COMMIT:
            request = self._waiting.popleft()
            batch.append(request)
            taken += len(request.calls)
        self._waiting_calls -= taken
        return batch

    def _hand_over(self) -> None:
        with self._mutex:
            if not self._waiting:
                self._busy = False
                if self._closed:
                    self._idle.notify_all()
                return
            heir = self._waiting[0]
            heir.leads = True
        heir.lock.release()

    def _commit(self, calls: Sequence[Call]) -> Commit:
        """Commit calls in one transaction; if the store reports a rollback (`StoreFailed`), commit each call alone."""
        try:
            return self._commit_together(calls)
        except StoreFailed:
            if len(calls) == 1:
                raise
            return self._commit_alone(calls)

    def _commit_together(self, calls: Sequence[Call]) -> Commit:
        meter = self.meter
        try:
            commit = self._store.commit(calls) if meter is None else meter.commit(self._store, calls)
        except RedriveError:
            raise
        except Exception as unexpected:  # no error of the store, so no proof that nothing was changed
            raise OutcomeUnknown(self._store.name, repr(unexpected)) from unexpected
        try:
            self._announce(commit.arrivals)
            self._watch(calls, commit.results)
        except Exception:  # a durable commit is not reported as failed because a waiter could not be woken
            _log.exception("wake_up_failed")
        return commit

    def _commit_alone(self, calls: Sequence[Call]) -> Commit:
        """Commit each call in its own transaction. The instant is that of the last one."""
        done = Commit([None] * len(calls), {}, self._store.clock.now())

        def execute(positions: Sequence[int]) -> Commit:
            return self._commit_together([calls[position] for position in positions])

        for position in range(len(calls)):
            done = commit_rest(done, (position,), execute, self._store.name)
        return done

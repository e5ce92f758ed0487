"""Group commit for coroutines: the calls of one tick of an event loop are committed together.

One writer thread commits them, and queues at the committer like any other thread. Each loop is woken once per
transaction. Coroutines that wait for one transaction submit their next calls in one tick; requests arrive over several
ticks, for which a batch with requests is kept open.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from redrive.clock import Instant
from redrive.contract import Call
from redrive.contract.item_calls import lease_returns
from redrive.errors import Closed, OutcomeUnknown, Overloaded, RedriveError
from redrive.model.limits import MAX_CALLS_PER_COMMIT, MAX_WAITING_CALLS
from redrive.store import Commit

MAX_TICKS = 4
"""Maximum number of ticks for which a batch with requests is kept open."""
_NOTHING = Commit([], {}, Instant(0))


class ResultReceiver(Protocol):
    """The receiver of the outcome of a call, in the event loop that submitted it, as a future is. It raises nothing: an
    error is reported to the event loop."""

    def done(self) -> bool:
        """Return whether it takes no outcome any more: leases are returned then."""
        ...

    def set_result(self, result: Any, /) -> None:
        """Receive the result of the call, which may be a refusal."""
        ...

    def set_exception(self, error: Any, /) -> None:
        """Receive the error with which the whole transaction failed."""
        ...


class _UncancelledFuture(asyncio.Future[Any]):
    """A future that is not cancelled with its caller, which waits for it."""

    def cancel(self, msg: Any | None = None) -> bool:
        return False


class _AsyncBatch:
    """The open batch of one event loop. Each entry has calls, their receiver, and whether that receives the `Commit` of
    all calls or the result of the only one. It is one tuple, so that a signal cannot leave half an entry."""

    __slots__ = ("count", "entries", "is_growing", "loop", "ticks")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.entries: list[tuple[Sequence[Call], ResultReceiver, bool]] = []
        self.count = 0
        self.is_growing = False
        """True if a request arrived in this tick."""
        self.ticks = 1


class AsyncCommitter:
    """The writer thread that commits the calls of coroutines.

    A loop gathers its calls for one tick, or a few, and then hands them over. A lock guards the open batches, since
    `close` may be called from another thread at any time.
    """

    def __init__(self, transact: Callable[[Sequence[Call]], Commit], store_name: str) -> None:
        self._transact = transact
        self._store_name = store_name
        self._gathering: dict[asyncio.AbstractEventLoop, _AsyncBatch] = {}
        self._handed_over: queue.SimpleQueue[_AsyncBatch | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="redrive-writer", daemon=True)
        self._thread.start()

    @property
    def waiting_calls(self) -> int:
        """Calls that are not committed yet."""
        return self._waiting

    def hand_in(
        self,
        calls: Sequence[Call],
        together: bool = False,
        uncancelled: bool = False,
        receiver: ResultReceiver | None = None,
    ) -> Any:
        """Commit calls with the next transaction. Returns the receiver of its outcome: a future, unless one is given.

        together: it gets the `Commit` with all results, instead of the result of the only call. uncancelled: a
        coroutine that is cancelled while it awaits the future is cancelled once that is done. receiver: that of a
        request, after which the batch is kept open for others.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            gathered = self._gathering.get(loop) or self._gather(loop)
            count = len(calls)
            if self._waiting + count > MAX_WAITING_CALLS:
                raise Overloaded(self._waiting)
            if receiver is None:
                receiver = _UncancelledFuture(loop=loop) if uncancelled else loop.create_future()
            else:
                gathered.is_growing = True
            gathered.entries.append((calls, receiver, together))
            gathered.count += count
            self._waiting += count
        return receiver

    def _gather(self, loop: asyncio.AbstractEventLoop) -> _AsyncBatch:
        """Open a batch in this tick."""
        if self._closed:
            raise Closed
        gathered = _AsyncBatch(loop)
        loop.call_soon(self._end_tick, gathered)
        self._gathering[loop] = gathered
        return gathered

    def close(self) -> None:
        """Commit the submitted calls, then stop."""
        with self._lock:
            self._closed = True
            left = tuple(self._gathering.values())
        for gathered in left:
            self._hand_over(gathered)
        self._handed_over.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def give_back(self, results: list[Any]) -> None:
        """Return the leases among results without a caller, in the event loop. If that fails, they expire."""
        for call in lease_returns(results):
            with contextlib.suppress(RedriveError):
                self.hand_in((call,)).add_done_callback(lambda future: future.cancelled() or future.exception())

    def _end_tick(self, gathered: _AsyncBatch) -> None:
        """Hand over the batch, unless a request arrived in this tick: others that arrived with it are about to be read,
        and a separate transaction for them costs more than to wait."""
        if gathered.is_growing and gathered.ticks < MAX_TICKS:
            gathered.is_growing = False
            gathered.ticks += 1
            gathered.loop.call_soon(self._end_tick, gathered)
        else:
            self._hand_over(gathered)

    def _hand_over(self, gathered: _AsyncBatch) -> None:
        with self._lock:
            if self._gathering.get(gathered.loop) is gathered:
                self._handed_over.put(gathered)
                del self._gathering[gathered.loop]

    def _seal(self, batches: list[_AsyncBatch]) -> None:
        """Close the batches that are about to be committed, even if a signal interrupted `_hand_over`."""
        with self._lock:
            for gathered in batches:
                if self._gathering.get(gathered.loop) is gathered:
                    del self._gathering[gathered.loop]
                self._waiting -= gathered.count

    def _run(self) -> None:
        going = True
        while going:
            batches: list[_AsyncBatch] = []
            taken = 0
            gathered = self._handed_over.get()
            while gathered is not None:
                batches.append(gathered)
                taken += gathered.count
                if taken >= MAX_CALLS_PER_COMMIT or self._handed_over.empty():
                    break
                gathered = self._handed_over.get()
            going = gathered is not None
            self._seal(batches)
            if batches:
                self._commit(batches)

    def _commit(self, batches: list[_AsyncBatch]) -> None:
        calls = [call for batch in batches for entry in batch.entries for call in entry[0]]
        commit = _NOTHING
        error: RedriveError | None = None
        try:
            commit = self._transact(calls)
        except RedriveError as refusal:
            error = refusal
        except BaseException as unforeseen:
            error = OutcomeUnknown(self._store_name, repr(unforeseen))
        results = commit.results if error is None else [None] * len(calls)
        start = 0
        for batch in batches:
            end = start + sum(len(entry[0]) for entry in batch.entries)
            part, start = results[start:end], end
            try:
                batch.loop.call_soon_threadsafe(self._deliver, batch, part, commit, error)
            except RuntimeError:  # the loop is closed, and with it its callers
                if abandoned := lease_returns(part):
                    with contextlib.suppress(Exception):  # they expire; this thread continues for the other loops
                        self._transact(abandoned)

    def _deliver(self, gathered: _AsyncBatch, results: list[Any], commit: Commit, error: RedriveError | None) -> None:
        """Pass each receiver its result, in the event loop, even if another receiver raises."""
        abandoned: list[Any] = []
        failure: Exception | None = None
        start = 0
        for calls, receiver, together in gathered.entries:
            end = start + len(calls)
            try:
                if receiver.done():
                    abandoned += results[start:end]
                elif error is not None:
                    receiver.set_exception(error)
                elif together:
                    receiver.set_result(Commit(results[start:end], commit.arrivals, commit.now))
                else:
                    receiver.set_result(results[start])
            except Exception as raised:
                failure = raised
            start = end
        self.give_back(abandoned)
        if failure is not None:
            raise failure

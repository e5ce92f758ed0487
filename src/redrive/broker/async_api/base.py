"""The base of all methods of `AsyncBroker`: the driver of flows on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, TypeVar, TypeVarTuple

from redrive.broker.async_committer import ResultReceiver
from redrive.broker.core import Core
from redrive.broker.flow import (
    CommitCalls,
    Effect,
    Flow,
    GiveTurn,
    OnStore,
    ReadQuery,
    TimedCommit,
    WaitForQueue,
    perform_effect,
    raise_if_refused,
    run,
)
from redrive.contract import Call, Query
from redrive.errors import RedriveError
from redrive.store import Commit

_T = TypeVar("_T")
_Given = TypeVarTuple("_Given")


class _UncancelledTask(asyncio.Task[_T]):
    """A task that cannot be cancelled: a cancelled caller, and the end of the event loop, wait for it."""

    def cancel(self, msg: Any | None = None) -> bool:
        return False


class _Known:
    """An awaitable whose answer is already known."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __await__(self) -> Generator[None, None, Any]:
        yield from ()
        return self._answer


class AsyncBrokerBase:
    """The driver of flows in the calling coroutine. `BrokerBase` has the same methods.

    Its public methods are for packages that are built on the broker: docs/internals/ARCHITECTURE.md.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        """The argument of flows: the store and everything around it."""
        self._ahead: set[asyncio.Future[Any]] = set()
        """Queries that must be answered before the calls that are made after them."""

    def _read_ahead(self, query: Query) -> Awaitable[Any]:
        """Answer a query in a thread, with the state before any call that is made here from now on."""
        try:
            asked = asyncio.get_running_loop().run_in_executor(None, self.core.read, query)
        except RuntimeError:  # no event loop runs here that this could block
            return _Known(self.core.read(query))
        self._ahead.add(asked)
        asked.add_done_callback(self._ahead.discard)
        return asked

    async def _answered(self) -> None:
        loop = asyncio.get_running_loop()
        if asked := [each for each in tuple(self._ahead) if each.get_loop() is loop]:
            await asyncio.wait(asked)

    async def submit(self, call: Call) -> Any:
        """Commit one call, without a flow, and return its result. Raises if it was refused."""
        if self._ahead:
            await self._answered()
        future = self.core.committer.submit(call)
        try:
            return raise_if_refused(await future)  # without a second coroutine
        except asyncio.CancelledError:
            self.core.committer.return_unclaimed_leases(future)
            raise

    async def run_flow(self, flow: Flow[_T]) -> _T:
        """Drive a flow to its end in this coroutine."""
        try:
            step = next(flow)
            while True:
                try:
                    if step.__class__ is CommitCalls and len(step.calls) == 1 and not self._ahead:
                        future = self.core.committer.submit(step.calls[0])
                        try:
                            answer = (await future,)
                        except asyncio.CancelledError:
                            self.core.committer.return_unclaimed_leases(future)
                            raise
                    else:
                        answer = await self._take(step)
                except RedriveError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(answer)
        except StopIteration as end:
            result: _T = end.value
            return result
        finally:
            flow.close()

    async def run_flow_to_end(self, flow: Flow[_T]) -> _T:
        """Drive a flow to its end, even if this coroutine is cancelled; raise the cancellation after that."""
        cancelled: asyncio.CancelledError | None = None
        result: Any = None
        try:
            step = next(flow)
            while True:
                done = self._start(step)
                try:
                    await done
                except asyncio.CancelledError as error:
                    cancelled = error
                except RedriveError:
                    pass
                try:
                    answer = done.result()
                except RedriveError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(answer)
        except StopIteration as end:
            result = end.value
        except Exception:
            if cancelled is None:
                raise
        finally:
            flow.close()
        if cancelled is not None:
            raise cancelled
        return result  # type: ignore[no-any-return]  # what the flow returned

    def _start(self, step: Effect) -> asyncio.Future[Any]:
        """Start a step, and return its future, which stays uncancelled if the awaiting coroutine is cancelled."""
        if step.__class__ is TimedCommit and not self._ahead:
            return self.core.committer.submit_many((step.call,), uncancelled=True)
        return _UncancelledTask(self._take(step), loop=asyncio.get_running_loop())

    async def run_flow_in_thread(self, flow: Flow[_T]) -> _T:
        """Drive a read-only flow to its end in a thread: the redaction of large items takes time too."""
        return await self._in_thread(run, self.core, flow)

    async def _in_thread(self, work: Callable[[*_Given], _T], *given: *_Given) -> _T:
        """Run blocking work in a thread, so that it does not block the event loop."""
        return await asyncio.get_running_loop().run_in_executor(None, work, *given)

    async def _commit_together(self, calls: Sequence[Call]) -> Commit:
        """Commit calls in one transaction. If this coroutine is cancelled as leases arrive, they are returned."""
        if self._ahead:
            await self._answered()
        future = self.core.committer.submit_many(calls)
        try:
            return await future
        except asyncio.CancelledError:
            self.core.committer.return_unclaimed_leases(future)
            raise

    async def _take(self, step: Effect) -> Any:
        match step:
            case CommitCalls(calls):
                return (await self._commit_together(calls)).results
            case TimedCommit(call):
                return await self._commit_together((call,))
            case ReadQuery(query):
                return await self._in_thread(self.core.read, query)
            case WaitForQueue():
                return await self.core.notify.wait_async(step)
            case OnStore():
                return await self._in_thread(perform_effect, self.core, step)
            case GiveTurn():
                return await asyncio.sleep(0)
            case _:
                raise AssertionError(step)


def submit_to(broker: AsyncBrokerBase, call: Call, receiver: ResultReceiver) -> bool:
    """Commit one call without a coroutine; the receiver gets its result. Return False, and commit nothing, if the call
    has to wait for queries that were made before it."""
    if broker._ahead:
        return False
    broker.core.committer.submit_to(call, receiver)
    return True

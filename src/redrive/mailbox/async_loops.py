"""Loops for programs on an event loop: handlers run on it, and everything else runs in a thread for each loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic, TypeVar

from redrive.errors import InvalidInput
from redrive.mailbox.async_mailbox import AsyncMailbox
from redrive.mailbox.dead_letter import DeadLetter
from redrive.mailbox.dlq_consumer import DLQAction, DLQConsumer
from redrive.mailbox.dlq_policy import DLQPolicy, for_threads
from redrive.mailbox.loop_types import (
    MainLoopConfig,
    MainLoopRequest,
    MainLoopResult,
    OutputT,
    RequestT,
    VisibilityExpansionRequired,
    check_function,
)
from redrive.mailbox.main_loop import MainLoop
from redrive.mailbox.message_loop import DEFAULT_WAIT_SECONDS, LoopHeartbeat, MessageLoop
from redrive.mailbox.request_loop import Service

T = TypeVar("T")
R = TypeVar("R")


class AsyncMessageLoop:
    """The base of loops on an event loop. `run` is awaited; `shutdown`, or a cancellation of `run`, ends it after the
    message that is being handled."""

    _loop: MessageLoop[Any, Any]

    def __init__(self, handler: Callable[[Any], Any]) -> None:
        check_function("handler", handler)
        self._handler = handler
        self._events: asyncio.AbstractEventLoop | None = None

    @property
    def running(self) -> bool:
        """True while `run` is awaited."""
        return self._loop.running

    @property
    def heartbeat(self) -> LoopHeartbeat:
        """The time of its last progress."""
        return self._loop.heartbeat

    async def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float | None = None,
        wait_time_seconds: float = DEFAULT_WAIT_SECONDS,
    ) -> None:
        """Handle messages until `shutdown`, until the mailbox is closed, or for `max_iterations` receives."""
        if self.running:
            raise InvalidInput(f"the loop on mailbox '{self._loop.mailbox.name}' runs already; make another one")
        self._events = asyncio.get_running_loop()
        run = partial(
            self._loop.run,
            max_iterations=max_iterations,
            visibility_timeout=visibility_timeout,
            wait_time_seconds=wait_time_seconds,
        )
        with concurrent.futures.ThreadPoolExecutor(1, "redrive-loop") as thread:
            ended = self._events.run_in_executor(thread, run)
            try:
                await asyncio.shield(ended)
            except asyncio.CancelledError:
                self._loop.shutdown(timeout=0)
                await ended
                raise

    async def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Stop after the message that is being handled. Returns whether the loop ended within `timeout` seconds."""
        return await asyncio.to_thread(self._loop.shutdown, timeout=timeout)

    def _call(self, argument: Any) -> Any:
        """Call the handler on the event loop, from the thread of the loop."""
        assert self._events is not None
        try:
            value, error = asyncio.run_coroutine_threadsafe(self._returned(argument), self._events).result()
        except concurrent.futures.CancelledError:
            if self._loop._stop.is_set():
                raise VisibilityExpansionRequired from None  # the event loop ends, which is no failure of the message
            raise
        if error is not None:
            raise error
        return value

    async def _returned(self, argument: Any) -> tuple[Any, BaseException | None]:
        """Return what the handler returns or raises. An exit that it raises does not end the event loop."""
        try:
            returned = self._handler(argument)
            return (await returned if inspect.isawaitable(returned) else returned), None
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return None, error


class AsyncService(AsyncMessageLoop, Generic[T, R]):
    """A `Service` on an event loop."""

    def __init__(
        self,
        requests: AsyncMailbox[T, R],
        handler: Callable[[T], R | Awaitable[R]],
        *,
        config: MainLoopConfig | None = None,
        dlq: DLQPolicy[T, R] | None = None,
    ) -> None:
        super().__init__(handler)
        self._loop = Service(for_threads(requests), self._call, config=config, dlq=dlq)


class AsyncMainLoop(AsyncMessageLoop, Generic[RequestT, OutputT]):
    """A `MainLoop` on an event loop. Its handler is a coroutine function, or a function that does not block."""

    def __init__(
        self,
        *,
        requests: AsyncMailbox[MainLoopRequest[RequestT], MainLoopResult[OutputT]],
        handler: Callable[[RequestT], OutputT | Awaitable[OutputT]],
        config: MainLoopConfig | None = None,
        dlq: DLQPolicy[MainLoopRequest[RequestT], MainLoopResult[OutputT]] | None = None,
    ) -> None:
        super().__init__(handler)
        self._loop = MainLoop(requests=for_threads(requests), handler=self._call, config=config, dlq=dlq)


class AsyncDLQConsumer(AsyncMessageLoop, Generic[T]):
    """A `DLQConsumer` on an event loop."""

    def __init__(
        self,
        *,
        mailbox: AsyncMailbox[DeadLetter[T], None],
        handler: Callable[[DeadLetter[T]], DLQAction | Awaitable[DLQAction | None] | None],
        visibility_timeout: float = 300,
    ) -> None:
        super().__init__(handler)
        consumer: DLQConsumer[T] = DLQConsumer(
            mailbox=for_threads(mailbox), handler=self._call, visibility_timeout=visibility_timeout
        )
        self._loop = consumer
        self.counts = consumer.counts
        """The numbers of dead letters by outcome: processed, replay, discard, keep, and failed."""

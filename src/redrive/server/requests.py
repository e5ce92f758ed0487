"""One request and one answer, as the routes see them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any, Protocol, TypeVar

import msgspec

from redrive.broker.async_broker import AsyncBroker
from redrive.errors import Overloaded
from redrive.server.access.principal import Principal, Right
from redrive.server.immediate import begin
from redrive.server.limits import DEFAULT_LIMITS, Limits

JSON = b"application/json"
MESSAGEPACK = b"application/msgpack"

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_T = TypeVar("_T")
_MOST_MESSAGES = 3


class ClientGone(Exception):
    """Whoever made the request is no longer there: nobody reads an answer. `result` is what would have been in it."""

    def __init__(self, result: Any = None) -> None:
        self.result = result
        super().__init__("the client is gone")


class Waiting:
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
            raise Overloaded(len(self._tasks))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """End every wait, and those that come."""
        self.stopping = True
        for task in tuple(self._tasks):
            task.cancel()


class Access(Protocol):
    """Who calls."""

    async def identify(self, headers: dict[bytes, bytes]) -> Principal:
        """Raises `Unauthorized`."""
        ...


class Request(msgspec.Struct, frozen=True, gc=False):
    """One call that was let in: who makes it, where, and what it says."""

    broker: AsyncBroker
    principal: Principal
    namespace: str
    headers: Mapping[bytes, bytes]
    body: bytes
    limits: Limits = DEFAULT_LIMITS
    receive: Receive | None = None
    waiting: Waiting | None = None
    access: Access | None = None

    def actor(self, given: str | None) -> str | None:
        """Who stands in the audit: the token's name, or on a server without tokens whoever the call names."""
        return given if self.principal.name is None else self.principal.name

    def check(self, right: Right, *queues: str | None) -> None:
        """Raise `Forbidden` unless the caller may do that in all of these queues; None stands for every one."""
        self.principal.check(right, self.namespace, queues)

    def may(self, right: Right, queue: str | None) -> bool:
        """Whether the caller may do that in this queue; None stands for every one."""
        return self.principal.may(right, self.namespace, queue)

    def sees_payloads(self, queue: str | None) -> bool:
        """Whether the caller may see what is in items that it did not lease."""
        return self.principal.may(Right.PAYLOADS, self.namespace, queue)

    async def check_admitted(self) -> None:
        """Raise where the caller's token was revoked since the request came."""
        if self.access is not None:
            await self.access.identify(dict(self.headers))

    def has_left(self) -> bool:
        """Whether it is known by now that the client is gone: nobody reads an answer."""
        for _ in range(_MOST_MESSAGES if self.receive is not None else 0):
            message, waits = begin(self.receive())  # type: ignore[misc]
            if waits is not None:
                return False
            if message["type"] == "http.disconnect":
                return True
        return False

    async def wait_for(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """The result of something that waits. None if the server stopped meanwhile: whoever waits is answered.

        Raises `ClientGone` once the client is gone; then, and when it stops, the work was cancelled.
        """
        if self.waiting is None or self.receive is None:
            return await work
        if self.waiting.stopping:
            work.close()
            return None
        task = asyncio.ensure_future(work)
        listener = asyncio.ensure_future(_until_gone(self.receive))
        try:
            self.waiting.add(task)
            await asyncio.wait((task, listener), return_when=asyncio.FIRST_COMPLETED)
            result = task.result() if task.done() and not task.cancelled() else None
            if listener.done():
                raise ClientGone(result)
            return result
        finally:
            listener.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Response(msgspec.Struct, frozen=True, gc=False):
    """What is sent back."""

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()

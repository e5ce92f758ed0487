"""One request, in the form for handlers of routes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any, TypeVar

import msgspec

from redrive.auth.caller import Caller, KnownLeases
from redrive.auth.principal import Principal
from redrive.broker.async_broker import AsyncBroker
from redrive.errors import RequestTooLarge
from redrive.server.authentication import Authenticator
from redrive.server.long_poll import ClientDisconnected, LongPolls, start_eagerly
from redrive.server.request_limits import DEFAULT_LIMITS, Limits, RequestResources

JSON = b"application/json"
MESSAGEPACK = b"application/msgpack"
NAMESPACE_HEADER = b"redrive-namespace"

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_T = TypeVar("_T")
_MOST_MESSAGES = 3


class Request(msgspec.Struct, frozen=True, gc=False):
    """One admitted call: its caller, its namespace and its content."""

    broker: AsyncBroker
    """The broker of the namespace, restricted to the caller: handlers check no rights and set no other actor."""
    principal: Principal
    namespace: str
    headers: Mapping[bytes, bytes]
    body: bytes
    """The body as received. Empty for JSON, which is decoded into the call."""
    limits: Limits = DEFAULT_LIMITS
    receive: Receive | None = None
    waiting: LongPolls | None = None
    access: Authenticator | None = None
    hold: RequestResources | None = None
    leases: KnownLeases = msgspec.field(default_factory=KnownLeases)
    unbound: AsyncBroker | None = None
    """The broker without a guard, only for work that shows the caller no data: waiting for the feed."""
    is_gone: Callable[[], bool] | None = None
    """A function that returns whether the client can no longer read a response, if the connection provides one."""

    @property
    def caller(self) -> Caller:
        """The caller, for the authorization of store calls."""
        return Caller(self.principal, self.namespace, self.broker.core, self.leases)

    async def check_admitted(self) -> None:
        """Raise `Unauthorized` if the caller's token has been revoked since the request arrived."""
        if self.access is not None:
            await self.access.identify(dict(self.headers))

    def has_left(self) -> bool:
        """Return whether the client is known to have disconnected, so that no response can be read."""
        if self.is_gone is not None and self.is_gone():
            return True
        for _ in range(_MOST_MESSAGES if self.receive is not None else 0):
            message, waits = start_eagerly(self.receive())  # type: ignore[misc]
            if waits is not None:
                return False
            if message["type"] == "http.disconnect":
                return True
        return False

    async def wait_for(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """Await a long poll and return its result; None if the server stopped in between, which answers all long polls.

        While it waits, the request holds no namespace, and no decoded body. Raises `ClientDisconnected` if the client
        disconnects; then, and at a stop, the work is cancelled.
        """
        if self.waiting is None or self.receive is None:
            return await work
        if self.waiting.stopping or len(self.body) > self.limits.waiting_body:
            work.close()
            if not self.waiting.stopping:
                raise RequestTooLarge("the body of a request that waits", self.limits.waiting_body)
            return None
        if self.hold is not None:
            self.hold.release_body(keeps_body=bool(self.body))
        task = asyncio.ensure_future(work)
        listener = asyncio.ensure_future(self._until_gone(self.receive))
        try:
            self.waiting.add(task)
            await asyncio.wait((task, listener), return_when=asyncio.FIRST_COMPLETED)
            result = task.result() if task.done() and not task.cancelled() else None
            if listener.done():
                raise ClientDisconnected(result)
            return result
        finally:
            listener.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect" and not (self.is_gone is not None and self.is_gone()):
            pass


def namespace_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the namespace that the headers of a request name."""
    return headers[NAMESPACE_HEADER].decode("latin-1") if NAMESPACE_HEADER in headers else "default"


class Response(msgspec.Struct, frozen=True, gc=False):
    """A response to send."""

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()

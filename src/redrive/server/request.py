"""One request as the routes see it, and the leases given to callers that may not use every queue."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping
from typing import Any, TypeVar

import msgspec

from redrive.auth.principal import Permission, Principal
from redrive.broker.async_broker import AsyncBroker
from redrive.broker.redaction import Redaction
from redrive.errors import RequestTooLarge
from redrive.model.ids import Token
from redrive.model.item import Lease
from redrive.server.auth.authentication import Authenticator
from redrive.server.long_poll import ClientDisconnected, LongPolls, start_eagerly
from redrive.server.request_limits import DEFAULT_LIMITS, Limits, RequestResources

MAX_KNOWN_LEASES = 20_000
"""Leases whose queues are known without asking the store. A token is good in one queue for as long as it is good."""


class KnownLeases:
    """Those given out last, by namespace and token."""

    def __init__(self) -> None:
        self._queues: OrderedDict[tuple[str, Token], str] = OrderedDict()

    def add(self, namespace: str, leases: Iterable[Lease]) -> None:
        """These were given out."""
        for lease in leases:
            self._queues[namespace, lease.token] = lease.queue
        while len(self._queues) > MAX_KNOWN_LEASES:
            self._queues.popitem(last=False)

    def queue_of(self, namespace: str, token: Token) -> str | None:
        """The queue of a lease; None where that is not known here."""
        return self._queues.get((namespace, token))


JSON = b"application/json"
MESSAGEPACK = b"application/msgpack"

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_T = TypeVar("_T")
_MOST_MESSAGES = 3


class Request(msgspec.Struct, frozen=True, gc=False):
    """One call that was let in: who makes it, where, and what it says."""

    broker: AsyncBroker
    principal: Principal
    namespace: str
    headers: Mapping[bytes, bytes]
    body: bytes
    """What came. Empty where it was JSON: all that is left of that is the call."""
    limits: Limits = DEFAULT_LIMITS
    receive: Receive | None = None
    waiting: LongPolls | None = None
    access: Authenticator | None = None
    hold: RequestResources | None = None
    leases: KnownLeases = msgspec.field(default_factory=KnownLeases)
    redaction: Redaction | None = None
    """By which secrets are hidden from the caller, where the rules of queues were looked up."""

    def actor(self, given: str | None) -> str | None:
        """Who stands in the audit: the token's name, or on a server without tokens whoever the call names."""
        return given if self.principal.name is None else self.principal.name

    def check(self, right: Permission, *queues: str | None) -> None:
        """Raise `Forbidden` unless the caller may do that in all of these queues; None stands for every one."""
        self.principal.check(right, self.namespace, queues)

    def may(self, right: Permission, queue: str | None) -> bool:
        """Whether the caller may do that in this queue; None stands for every one."""
        return self.principal.may(right, self.namespace, queue)

    def sees_payloads(self, queue: str | None) -> bool:
        """Whether the caller may see what is in items that it did not lease."""
        return self.principal.may(Permission.READ_PAYLOADS, self.namespace, queue)

    async def check_admitted(self) -> None:
        """Raise where the caller's token was revoked since the request came."""
        if self.access is not None:
            await self.access.identify(dict(self.headers))

    def has_left(self) -> bool:
        """Whether it is known by now that the client is gone: nobody reads an answer."""
        for _ in range(_MOST_MESSAGES if self.receive is not None else 0):
            message, waits = start_eagerly(self.receive())  # type: ignore[misc]
            if waits is not None:
                return False
            if message["type"] == "http.disconnect":
                return True
        return False

    async def wait_for(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """The result of something that waits. None if the server stopped meanwhile: whoever waits is answered.

        Meanwhile the request holds nothing that others may need. Raises `ClientDisconnected` once the client is gone;
        then, and when it stops, the work was cancelled.
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
        listener = asyncio.ensure_future(_until_gone(self.receive))
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


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Response(msgspec.Struct, frozen=True, gc=False):
    """What is sent back."""

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()

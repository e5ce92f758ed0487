"""A route: what one call is named, what it takes and gives, which right it needs, and who answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from redrive.auth.principal import Permission
from redrive.server.request import Request

Handler = Callable[[Request, Any], Awaitable[Any]]


def no_queue(call: Any) -> Sequence[str | None]:
    """None yet: the handler finds out which, and checks."""
    return ()


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One call: POST /v1/NAME with a JSON object, answered by a JSON object."""

    name: str
    """As in `queue.produce`."""
    summary: str
    request_type: type[Any] | None
    """A Struct. Fields that it does not know are refused. None: the handler gets the body as it came, which is
    MessagePack, and sees to rights itself."""
    response_type: type[Any] | None
    permission: Permission
    handler: Handler
    queues: Callable[[Any], Sequence[str | None]] = no_queue
    """The queues that a call touches; None stands for all of them. Of items that are named by their ids the handler
    looks up the queues, where the caller is not allowed into all of them."""
    example: Mapping[str, Any] = {}
    """A call that the document shows."""


def one_queue(call: Any) -> Sequence[str | None]:
    """The queue that the call names."""
    return (call.queue,)


def named_queue(call: Any) -> Sequence[str | None]:
    """The queue that the call is about."""
    return (call.name,)


def every_queue(call: Any) -> Sequence[str | None]:
    """All queues of the namespace."""
    return (None,)


def queue_if_named(call: Any) -> Sequence[str | None]:
    """The queue that the call names, or all of them where it names none."""
    return (getattr(call, "queue", None),)

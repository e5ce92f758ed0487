"""A route: the name of a call, its request and response types, the permission it needs, and its handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from redrive.auth.principal import Permission
from redrive.contract import Call
from redrive.server.request import Request

Handler = Callable[[Request, Any], Awaitable[Any]]


class DirectCall(msgspec.Struct, frozen=True):
    """The conversion of a request to one store call, and of its result to a response."""

    make: Callable[[Any], Call | None]
    """Returns the call; None if the request needs more than one call. Raises what the handler would raise."""
    answer: Callable[[Any, Any], Any]
    """Returns what the handler would return, from the request and the result of the call; may raise a refusal. None if
    the handler would do more: the call has then changed nothing, and the handler runs."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One call: POST /v1/NAME with a JSON object, answered by a JSON object."""

    name: str
    """As in `queue.produce`."""
    summary: str
    request_type: type[Any] | None
    """A Struct that refuses unknown fields. None: the handler gets the raw body, which is MessagePack, and a broker
    without a guard."""
    response_type: type[Any] | None
    permission: Permission
    """The permission that the caller needs in some queue of the namespace. The guard of its broker checks in which."""
    handler: Handler
    namespace: str | None = None
    """The namespace of the call, regardless of the one that the request names."""
    direct: DirectCall | None = None
    """The direct path for usual requests: `redrive.server.direct_path`."""
    example: Mapping[str, Any] = {}
    """An example for the OpenAPI document."""

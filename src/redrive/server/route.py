"""A route: what one call is named, what it takes and gives, which right it needs, and who answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from redrive.auth.principal import Permission
from redrive.contract import Call
from redrive.server.request import Request

Handler = Callable[[Request, Any], Awaitable[Any]]


class DirectCall(msgspec.Struct, frozen=True):
    """How a request is one call of the store contract, and its answer made of the result."""

    make: Callable[[Any], Call | None]
    """The call; None where the request takes more than that. Raises what the handler would raise."""
    answer: Callable[[Any, Any], Any]
    """What the handler would give, from the request and the result of the call; a refusal may be raised. None where
    the handler would do more: then the call has changed nothing, and the handler runs."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One call: POST /v1/NAME with a JSON object, answered by a JSON object."""

    name: str
    """As in `queue.produce`."""
    summary: str
    request_type: type[Any] | None
    """A Struct. Fields that it does not know are refused. None: the handler gets the body as it came, which is
    MessagePack, and a broker without a guard."""
    response_type: type[Any] | None
    permission: Permission
    """What the caller needs in some queue of the namespace, to be admitted. In which, the guard of its broker finds."""
    handler: Handler
    namespace: str | None = None
    """Where it is done, regardless of the namespace that the request names."""
    direct: DirectCall | None = None
    """For what most requests are: `redrive.server.direct_path`."""
    example: Mapping[str, Any] = {}
    """A call that the document shows."""

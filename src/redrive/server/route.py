"""A route: what one call is named, what it takes and gives, which right it needs, and who answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from redrive.auth.principal import Permission
from redrive.server.request import Request

Handler = Callable[[Request, Any], Awaitable[Any]]


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
    example: Mapping[str, Any] = {}
    """A call that the document shows."""

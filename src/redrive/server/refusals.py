"""Errors as answers, and those that only a server of HTTP has."""

from __future__ import annotations

from typing import Any

import msgspec

from redrive.errors import InvalidInput, RedriveError
from redrive.server.requests import Response
from redrive.wire.errors import RETRY_AFTER, ErrorBody, body_of, status_of

_encode = msgspec.json.Encoder().encode


class SlowRequest(InvalidInput):
    """The request did not arrive in time."""

    code = "slow_request"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the request took longer than {seconds:g} s to arrive")


class UnsupportedMediaType(InvalidInput):
    """The body is of a type that this path does not take."""

    code = "unsupported_media_type"

    def __init__(self, expected: str) -> None:
        super().__init__(f"the body must be {expected}; send the header content-type: {expected}, as curl --json does")


def refusal(error: RedriveError, body: Any = None) -> Response:
    """An error as an answer. `body` is what is sent of it, where that is more than the error."""
    after = RETRY_AFTER.get(error.code)
    headers = () if after is None else ((b"retry-after", str(after).encode()),)
    return Response(status_of(error), _encode(body_of(error) if body is None else body), headers=headers)


def http_error(
    status: int,
    code: str,
    message: str,
    headers: tuple[tuple[bytes, bytes], ...] = (),
    details: dict[str, Any] | None = None,
) -> Response:
    """An error of HTTP itself, in the same shape."""
    return Response(status, _encode(ErrorBody(code, message, details or {})), headers=headers)

"""Responses: errors, and results of several items with one status.

If every item succeeds, the status is 200. Otherwise it is that of the first error, with its code and text, and
`results` has the result of each item.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from redrive.errors import InvalidInput, RedriveError
from redrive.model.death import DeadReason
from redrive.model.item import Counters, Settled, Status
from redrive.model.text import to_rfc3339
from redrive.server.field_types import instant_text_or_none
from redrive.server.request import JSON, Response
from redrive.wire.error_codec import RETRY_AFTER, ErrorBody, error_body, status_of
from redrive.wire.json_views import InstantText

LARGE_ANSWER = 64 * 1024
"""Bytes from which a body is sent in parts, each after the client has read those before it."""
SAFE_HEADERS = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
_HEAD = b"".join(b"%b: %b\r\n" % header for header in ((b"content-type", JSON), *SAFE_HEADERS)) + b"content-length: "
_encode = msgspec.json.Encoder().encode


class RequestTimeout(InvalidInput):
    """The request did not arrive in time."""

    code = "request_timeout"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the request took longer than {seconds:g} s to arrive")


class UnsupportedMediaType(InvalidInput):
    """The body is of a type that this path does not take."""

    code = "unsupported_media_type"

    def __init__(self, expected: str) -> None:
        super().__init__(f"the body must be {expected}; send the header content-type: {expected}, as curl --json does")


def response_of(answer: Any) -> Response:
    """Return the response of a handler, or its result as a response."""
    return answer if answer.__class__ is Response else Response(200, _encode(answer))


def usual_head(response: Response) -> bytes | None:
    """Return the headers of a response that is written with one call; None if it is large or has other headers."""
    if response.content_type is not JSON or response.headers or len(response.body) >= LARGE_ANSWER:
        return None
    return b"%b%d\r\n\r\n" % (_HEAD, len(response.body))


def refusal(error: RedriveError, body: Any = None) -> Response:
    """Return the response to an error. `body` replaces the body of the error."""
    after = RETRY_AFTER.get(error.code)
    headers = () if after is None else ((b"retry-after", str(after).encode()),)
    return Response(status_of(error), _encode(error_body(error) if body is None else body), headers=headers)


def http_error(
    status: int,
    code: str,
    message: str,
    headers: tuple[tuple[bytes, bytes], ...] = (),
    details: dict[str, Any] | None = None,
) -> Response:
    """Return the response to an error of HTTP itself, in the same form."""
    return Response(status, _encode(ErrorBody(code, message, details or {})), headers=headers)


HALF_CLOSED = http_error(
    400,
    "half_closed",
    "the client has closed its sending side, as one that is gone: it is leased nothing, and does not wait; keep the "
    "connection open until the response",
)
"""The response to a lease or a long poll of a client that sends nothing any more."""
REMOVED = "removed"


class SettledItem(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The state of an item after a delivery ended or a manual change."""

    id: str
    queue: str
    status: Annotated[
        str, msgspec.Meta(extra_json_schema={"enum": [*Status, REMOVED]}, description="`removed` where it is gone.")
    ]
    counters: Counters
    ready_at: InstantText | None = None
    dead_reason: DeadReason | None = None
    source_id: Annotated[str | None, msgspec.Meta(description="The id before it moved.")] = None
    undo_until: Annotated[InstantText | None, msgspec.Meta(description="Until when a drop can be undone at least.")] = (
        None
    )


class Extended(msgspec.Struct, frozen=True, gc=False):
    """An extended lease."""

    deadline: InstantText


class ItemError(msgspec.Struct, frozen=True):
    """An item that was not changed."""

    error: ErrorBody


class SettledItems(msgspec.Struct, frozen=True):
    """The outcome of each item, in the order of the request."""

    items: list[SettledItem]


class ExtendedItems(msgspec.Struct, frozen=True):
    """The new deadline of each lease, in the order of the request."""

    items: list[Extended]


class PartialFailure(msgspec.Struct, frozen=True):
    """The first error, and the outcome of each item, in the order of the request."""

    code: str
    message: str
    details: dict[str, Any]
    results: list[Any]


def settled_item(settled: Settled) -> SettledItem:
    """Return the outcome of a settle or of a manual change, for a response."""
    if settled.status is None and settled.dead_reason is None:  # as after most completions
        return SettledItem(settled.id, settled.queue, REMOVED, settled.counters)
    return SettledItem(
        settled.id,
        settled.queue,
        settled.status or REMOVED,
        settled.counters,
        instant_text_or_none(settled.ready_at),
        settled.dead_reason,
        settled.source_id,
        instant_text_or_none(settled.undo_until),
    )


def settled_answer(results: Sequence[Any]) -> SettledItems | Response:
    """Return the response to a call that settles or changes items separately."""
    for error in results:
        if error.__class__ is not Settled:
            return some_failed(error, [_each(result) for result in results])
    return SettledItems([settled_item(result) for result in results])


def extended_answer(results: Sequence[Any]) -> ExtendedItems | Response:
    """Return the response to a call that extends leases."""
    error = next((result for result in results if isinstance(result, RedriveError)), None)
    if error is None:
        return ExtendedItems([Extended(to_rfc3339(deadline)) for deadline in results])
    return some_failed(error, [_each(result) for result in results])


def some_failed(error: RedriveError, results: list[Any]) -> Response:
    """Return the response to a call that failed for some items."""
    body = error_body(error)
    return refusal(error, PartialFailure(body.code, body.message, body.details, results))


def _each(result: Any) -> ItemError | SettledItem | Extended:
    if isinstance(result, RedriveError):
        return ItemError(error_body(result))
    return settled_item(result) if isinstance(result, Settled) else Extended(to_rfc3339(result))

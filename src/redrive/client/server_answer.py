"""Responses without results: whether a Redrive server sent them, the error in them, and the server's position."""

from __future__ import annotations

import msgspec

from redrive.client.http_transport import HttpResponse
from redrive.errors import Closed, NotAStore, OutcomeUnknown, RedriveError, StoreFailed, StoreUnavailable
from redrive.wire.error_codec import ErrorBody, error_of_answer, is_redrive_error
from redrive.wire.messages import CONTENT_TYPE, MISDIRECTED, CommitPosition

_GATEWAY = frozenset({502, 503, 504})
"""HTTP statuses of an intermediary that has no response of the server."""
_decode_error = msgspec.json.Decoder(ErrorBody).decode


def is_from_server(answer: HttpResponse) -> bool:
    """Return whether a Redrive server sent the response, and not an intermediary."""
    if answer.status == 200:
        return answer.content_type == CONTENT_TYPE
    try:
        return is_redrive_error(answer.status, _decode_error(answer.body))
    except ValueError:
        return False


def not_a_server(url: str, problem: str) -> NotAStore:
    """Return the error for a URL at which something else answers."""
    return NotAStore(url, problem, "Correct the URL")


def position_in(answer: HttpResponse) -> CommitPosition:
    """Return the position of the server that refused a misdirected request."""
    return msgspec.convert(_decode_error(answer.body).details, CommitPosition)


def refusal_in(answer: HttpResponse, url: str) -> RedriveError:
    """Return the error in a response with a status other than 200. `url` is that of the server, for its text."""
    try:
        body = _decode_error(answer.body)
    except ValueError:
        if answer.status in _GATEWAY:
            return StoreUnavailable(url, f"HTTP status {answer.status}")
        return not_a_server(url, f"no Redrive server answers there, but HTTP status {answer.status}")
    if answer.status == MISDIRECTED:
        return OutcomeUnknown(url, "the server that it was sent to is not there any more")
    if body.code in ("route_not_found", "method_not_allowed"):
        return not_a_server(url, "what answers there is not a Redrive server of this release")
    if answer.status == 500:
        return StoreFailed(url, f"{body.message} {body.details.get('id', '')}".rstrip())
    error = error_of_answer(answer.status, body)
    if isinstance(error, Closed):
        return StoreUnavailable(url, "it is shutting down")
    return error

"""Errors as a server sends them: one shape, one table from code to HTTP status."""

from __future__ import annotations

from typing import Any

import msgspec

from redrive import errors
from redrive.errors import RedriveError

STATUS_BY_CODE: dict[str, int] = {
    "invalid_input": 400,
    "invalid_name": 400,
    "invalid_setting": 400,
    "invalid_duration": 400,
    "invalid_payload": 400,
    "invalid_arguments": 400,
    "invalid_config": 400,
    "untrusted_file": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "access_error": 403,
    "not_found": 404,
    "queue_not_found": 404,
    "item_not_found": 404,
    "operation_not_found": 404,
    "breaker_not_open": 404,
    "result_unavailable": 404,
    "result_not_kept": 404,
    "refused": 409,
    "queue_exists": 409,
    "queue_in_use": 409,
    "queue_paused": 409,
    "queue_gated": 409,
    "confirm_mismatch": 409,
    "item_active": 409,
    "item_moving": 409,
    "item_held": 409,
    "wrong_status": 409,
    "idempotency_conflict": 409,
    "lease_lost": 409,
    "wrong_queue": 409,
    "operation_ended": 409,
    "task_failed": 409,
    "payload_too_large": 413,
    "request_too_large": 413,
    "queue_full": 429,
    "overloaded": 429,
    "error": 500,
    "store_error": 503,
    "store_unavailable": 503,
    "store_busy": 503,
    "store_read_only": 503,
    "disk_full": 503,
    "not_a_store": 503,
    "schema_too_new": 503,
    "schema_too_old": 503,
    "engine_unsupported": 503,
    "store_failed": 503,
    "store_damaged": 503,
    "outcome_unknown": 503,
    "closed": 503,
    "result_timeout": 504,
}
"""The HTTP status of each error code. A test checks that no error is missing."""

HTTP_ONLY_CODES: dict[str, int] = {
    "half_closed": 400,
    "host_not_allowed": 403,
    "route_not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "unsupported_media_type": 415,
    "misdirected": 421,
    "internal": 500,
}
"""The HTTP status of codes that only the HTTP server uses."""

RETRY_AFTER = {"queue_full": 5, "overloaded": 1, "store_unavailable": 5, "store_busy": 5, "disk_full": 30, "closed": 1}
"""Seconds that a caller is asked to wait, for the header Retry-After."""

ERROR_BY_CODE: dict[str, type[RedriveError]] = {
    each.code: each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, RedriveError)
}
"""Error classes by code."""

_BY_STATUS = {
    400: "invalid_input",
    401: "access_error",
    403: "access_error",
    404: "not_found",
    409: "refused",
    503: "store_error",
}
"""The code of the base class for an unknown error, by its HTTP status."""


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of an error response."""

    code: str
    message: str
    details: dict[str, Any] = {}


def error_body(error: RedriveError) -> ErrorBody:
    """Return the body of an error. Details are the plain attributes of the error, by name."""
    details = {name: value for name, value in vars(error).items() if _is_plain(value)}
    return ErrorBody(error.code, str(error), details)


def status_of(error: RedriveError) -> int:
    """Return the HTTP status of an error; 500 for an unknown code."""
    return STATUS_BY_CODE.get(error.code) or HTTP_ONLY_CODES.get(error.code, 500)


def is_redrive_error(status: int, body: ErrorBody) -> bool:
    """Return whether a Redrive server sent an error, and not an intermediary. Codes of newer servers are unknown here:
    the result is then False."""
    return status == (STATUS_BY_CODE.get(body.code) or HTTP_ONLY_CODES.get(body.code))


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool | tuple | list)


class SentError(msgspec.Struct, frozen=True, array_like=True):
    """An error among the results of calls."""

    code: str
    message: str
    details: dict[str, Any] = {}
    bases: tuple[str, ...] = ()
    """The codes of its base classes, nearest first, for a client that does not know its own code."""


def encode_error(error: RedriveError) -> SentError:
    """Return the encoded form of an error among the results of calls."""
    body = error_body(error)
    bases = tuple(each.code for each in type(error).__mro__[1:] if issubclass(each, RedriveError))
    return SentError(body.code, body.message, body.details, bases)


def decode_error(sent: SentError) -> RedriveError:
    """Return the error that was sent: same class, text and attributes. An unknown one gets the nearest known base class
    and keeps its own code."""
    known = next((code for code in (sent.code, *sent.bases) if code in ERROR_BY_CODE), RedriveError.code)
    kind = ERROR_BY_CODE[known]
    error = kind.__new__(kind, sent.message)
    error.__dict__.update({name: _frozen(value) for name, value in sent.details.items()})
    if known != sent.code:
        error.__dict__["code"] = sent.code
    return error


def error_of_answer(status: int, body: ErrorBody) -> RedriveError:
    """Return the error of an error response."""
    base = _BY_STATUS.get(status)
    return decode_error(SentError(body.code, body.message, body.details, () if base is None else (base,)))


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value

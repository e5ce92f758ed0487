"""The time that a called service asks to wait before the next call, read from an error or a header."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from redrive.clock import Instant
from redrive.model.duration import HOUR, MILLISECOND, SECOND, Duration
from redrive.model.error_attributes import has_attributes, is_grpc_error, related_errors, safe_call
from redrive.model.exception import group_members, safe_getattr

MAX_RETRY_AFTER = HOUR
"""The upper bound of the time to wait, also if a server asks for more."""
_MAX_HEADER_CHARS = 100
_MAX_METADATA = 100
_UNITS = {"retry-after-ms": MILLISECOND, "retry-after": SECOND}
"""HTTP headers, in order of precedence, each with the unit of its number."""
_GRPC_UNITS = {"grpc-retry-pushback-ms": MILLISECOND, **_UNITS}


def retry_after_of(error: BaseException, now: Instant | None = None) -> Duration | None:
    """Return the time that an error asks to wait, up to an hour; None if it has none.

    It is in the headers of the response, in an attribute `retry_after` in seconds, or in gRPC metadata. For a group of
    errors the longest time counts, else the first one found. Without `now`, a date is ignored.
    """
    if isinstance(error, BaseExceptionGroup):
        said = [retry_after_of(member, now) for member in group_members(error)]
        return max((each for each in said if each is not None), default=None)
    for link in related_errors(error):
        for value, unit in _values(link) if has_attributes(link) else ():
            if (found := parse_retry_after(value, now, unit)) is not None:
                return found
    return None


def parse_retry_after(value: object, now: Instant | None = None, unit: Duration = SECOND) -> Duration | None:
    """Return the time that a value asks to wait, up to an hour: a number of units, a timedelta, a datetime (of UTC if
    it has no zone), or the text of a header.

    A date or number in the past gives 0, and any other value None.
    """
    if type(value) is timedelta:
        return _bounded(value / timedelta(microseconds=1))
    if type(value) is int or type(value) is float:
        return _bounded_number(value, unit)
    if type(value) is not str or len(value) > _MAX_HEADER_CHARS:
        return _until(value, now) if issubclass(type(value), datetime) else None
    try:
        return _bounded_number(float(value), unit)
    except ValueError:
        return _until(value, now)


def _until(date: object, now: Instant | None) -> Duration | None:
    if now is None:
        return None
    try:
        at: datetime = parsedate_to_datetime(date) if type(date) is str else date  # type: ignore[assignment]
        return _bounded(at.replace(tzinfo=at.tzinfo or UTC).timestamp() * SECOND - now)
    except BaseException:  # the parser raises exceptions of any type, and so does a zone or a subclass of the caller
        return None


def _bounded_number(number: float, unit: Duration) -> Duration | None:
    # Bounded before the multiplication: an int can be too large for a float.
    return None if number != number else _bounded(min(max(number, 0), MAX_RETRY_AFTER) * unit)


def _bounded(duration: float) -> Duration:
    return int(min(max(duration, 0), MAX_RETRY_AFTER))


def _values(error: BaseException) -> Iterator[tuple[object, Duration]]:
    """Yield the values of one error that may be a time to wait, each with the unit of a number."""
    for headers in _headers(error):
        for name, unit in _UNITS.items():
            yield _header(headers, name), unit
    yield safe_getattr(error, "retry_after"), SECOND
    if is_grpc_error(error):
        metadata = dict(_metadata(error))
        for name, unit in _GRPC_UNITS.items():
            yield metadata.get(name), unit


def _headers(error: BaseException) -> Iterator[object]:
    response = safe_getattr(error, "response")
    if response is not None:
        yield safe_getattr(response, "headers")
    if (own := safe_getattr(error, "headers")) is not None:
        yield own
    if type(response) is dict and type(metadata := response.get("ResponseMetadata")) is dict:
        yield metadata.get("HTTPHeaders")


def _header(headers: object, name: str) -> object:
    """Return a header of a mapping with its name in lower case or in title case."""
    value = safe_call(headers, "get", name)
    return safe_call(headers, "get", name.title()) if value is None else value


def _metadata(error: BaseException) -> Iterator[tuple[str, object]]:
    """Yield the metadata that a gRPC server sent with its response."""
    for method in ("initial_metadata", "trailing_metadata"):
        sent = safe_call(error, method)
        try:
            pairs = [tuple(pair) for pair in list(sent)[:_MAX_METADATA]]  # type: ignore[call-overload]
        except Exception:
            continue
        yield from ((pair[0], pair[1]) for pair in pairs if len(pair) == 2 and type(pair[0]) is str)

"""Instants and durations as the calls in JSON write them: RFC 3339 in UTC with microseconds, and `30s`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, TypeAlias

import msgspec

from redrive.broker.checks import instant_of
from redrive.clock import Instant
from redrive.errors import InvalidDuration
from redrive.model.shown import instant_text

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

InstantText: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        description="An instant, RFC 3339 in UTC with microseconds.",
        examples=["2026-07-01T03:12:55.000000Z"],
        extra_json_schema={"format": "date-time"},
    ),
]
InstantInput: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        description="An instant, RFC 3339 with a time zone.",
        max_length=64,
        examples=["2026-07-01T03:12:55Z"],
        extra_json_schema={"format": "date-time"},
    ),
]
DurationText: TypeAlias = Annotated[str, msgspec.Meta(description="A duration.", examples=["1h30m"])]
DurationInput: TypeAlias = Annotated[
    str | float,
    msgspec.Meta(
        description="A duration: a number of seconds, or a text such as 250ms, 30s, 5m, 1h30m or 7d.", examples=["30s"]
    ),
]
SinceInput: TypeAlias = Annotated[
    str | float,
    msgspec.Meta(
        description="An instant, RFC 3339 with a time zone; or a duration, which means so long ago.", examples=["1h"]
    ),
]


def instant_text_or_none(at: int | None) -> str | None:
    """An instant as text, where there is one."""
    return None if at is None else instant_text(at)


def read_instant(what: str, text: str) -> Instant:
    """The instant that a text names. It must have a time zone."""
    try:
        read = datetime.fromisoformat(text)
        if read.tzinfo is not None:
            return instant_of(what, read)
    except ValueError:
        problem = "is not an instant; write it like 2026-07-01T03:12:55Z"
        raise InvalidDuration(what, text, problem) from None
    except OverflowError:
        raise InvalidDuration(what, text, "is outside the range that can be stored") from None
    raise InvalidDuration(what, text, "has no time zone; write Z behind it for UTC")


def read_datetime(what: str, text: str) -> datetime:
    """The same as a datetime."""
    return _EPOCH + timedelta(microseconds=read_instant(what, text))


def read_since(what: str, value: str | float) -> datetime | str | float:
    """What `find` takes: an instant, or how long ago."""
    if isinstance(value, str) and "-" in value and value[:4].isdigit():
        return read_datetime(what, value)
    return value

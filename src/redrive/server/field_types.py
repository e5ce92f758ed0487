"""Types of JSON fields with their bounds: names, ids, times (RFC 3339 in UTC, durations as `30s`), and filters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from redrive.broker.validation import to_instant
from redrive.clock import EPOCH, Instant
from redrive.errors import InvalidDuration, RedriveError, RequestTooLarge
from redrive.model.classify import ErrorClass
from redrive.model.death import DeadReason
from redrive.model.filter import Filter
from redrive.model.ids import ID_DIGITS, TOKEN_DIGITS
from redrive.model.limits import MAX_LABEL_CHARS, MAX_NAME_CHARS
from redrive.model.retry_policy import RETRY_KEYS
from redrive.model.search_terms import MAX_QUERY_CHARS
from redrive.model.text import to_rfc3339
from redrive.server.request import Request

MAX_TEXT_CHARS = 1_000_000
"""Of an error or a note in a request; far less of it is kept."""

QueueName: TypeAlias = Annotated[
    str, msgspec.Meta(max_length=MAX_NAME_CHARS, description="The name of a queue.", examples=["emails"])
]
Label: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_LABEL_CHARS)]
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARS)]
ItemIdText: TypeAlias = Annotated[str, msgspec.Meta(max_length=ID_DIGITS, description="The id of an item.")]
TokenText: TypeAlias = Annotated[
    str, msgspec.Meta(max_length=TOKEN_DIGITS, description="What the lease gave for this item.")
]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
PageLimit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, description="Most that one answer has.")]
Cursor: TypeAlias = (
    Annotated[str, msgspec.Meta(max_length=100, description="Where to go on: the cursor of the answer before.")] | None
)
Actor: TypeAlias = Annotated[
    Label | None,
    msgspec.Meta(description="Who does it, for the audit. Where tokens are asked for, it is the name of the token."),
]
_T = TypeVar("_T")


def each(items: Iterable[Any], make: Callable[[Any], _T]) -> list[_T]:
    """What is made of each item of a request. An error says which of them it is about, as `item`, from 0."""
    made: list[_T] = []
    for item in items:
        try:
            made.append(make(item))
        except RedriveError as error:
            vars(error)["item"] = len(made)
            raise
    return made


def check_batch(request: Request, size: int) -> None:
    """Raise unless so many items may be in one request."""
    if size > request.limits.batch:
        raise RequestTooLarge("the number of items", request.limits.batch)


def check_page(request: Request, size: int) -> None:
    """Raise unless so many may be in one answer."""
    if size > request.limits.page:
        raise RequestTooLarge("the limit of the page", request.limits.page)


InstantInput: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        description="An instant, RFC 3339 with a time zone.",
        max_length=64,
        examples=["2026-07-01T03:12:55Z"],
        extra_json_schema={"format": "date-time"},
    ),
]
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

RetryFields: TypeAlias = Annotated[
    dict[str, Any],
    msgspec.Meta(
        description="A retry policy that replaces the queue's as a whole, with the keys of `retry` in "
        "docs/reference/settings.md.",
        extra_json_schema={"propertyNames": {"enum": list(RETRY_KEYS)}},
        examples=[{"attempts": 5, "delay": "exponential", "base": "1m", "cap": "1h"}],
    ),
]


def instant_text_or_none(at: int | None) -> str | None:
    """An instant as text, where there is one."""
    return None if at is None else to_rfc3339(at)


def read_instant(what: str, text: str) -> Instant:
    """The instant that a text names. It must have a time zone."""
    try:
        read = datetime.fromisoformat(text)
        if read.tzinfo is not None:
            return to_instant(what, read)
    except ValueError:
        problem = "is not an instant; write it like 2026-07-01T03:12:55Z"
        raise InvalidDuration(what, text, problem) from None
    except OverflowError:
        raise InvalidDuration(what, text, "is outside the range that can be stored") from None
    raise InvalidDuration(what, text, "has no time zone; write Z behind it for UTC")


def read_datetime(what: str, text: str) -> datetime:
    """The same as a datetime."""
    return EPOCH + timedelta(microseconds=read_instant(what, text))


def read_since(what: str, value: str | float) -> datetime | str | float:
    """What `find` takes: an instant, or how long ago."""
    if isinstance(value, str) and "-" in value and value[:4].isdigit():
        return read_datetime(what, value)
    return value


NAMES = tuple(name for name in Filter.__struct_fields__ if name != "status")
"""Every condition but the status."""


class FilterFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Items that meet every condition given."""

    queue: Annotated[QueueName | None, msgspec.Meta(description="Where they are now.")] = None
    origin_queue: Annotated[QueueName | None, msgspec.Meta(description="Where they were put first.")] = None
    reason: DeadReason | None = None
    error_type: Annotated[Label | None, msgspec.Meta(description="The class of the error, in full or its name.")] = None
    error_class: ErrorClass | None = None
    fingerprint: Annotated[Label | None, msgspec.Meta(description="Of a group: one cause.")] = None
    words: (
        Annotated[
            str,
            msgspec.Meta(
                max_length=MAX_QUERY_CHARS,
                description="Words in the error or the payload; `wor*` is a prefix. Needs the right payloads.",
            ),
        ]
        | None
    ) = None
    since: SinceInput | None = None
    until: SinceInput | None = None
    min_attempts: Count | None = None
    min_redrives: Count | None = None
    max_redrives: Count | None = None
    headers: Annotated[
        dict[str, str] | None,
        msgspec.Meta(description="Have these headers with these values. Needs the right payloads."),
    ] = None
    held: bool | None = None
    held_by: Label | None = None
    operation: Annotated[Label | None, msgspec.Meta(description="Were changed by this operation.")] = None
    ids: (
        Annotated[list[ItemIdText], msgspec.Meta(min_length=1, max_length=10_000, description="Are among these.")]
        | None
    ) = None
    id_prefix: Annotated[ItemIdText | None, msgspec.Meta(description="Their id begins with these digits.")] = None
    archived: Annotated[bool | None, msgspec.Meta(description="true: archived ones too, where the status is any.")] = (
        None
    )
    dropped: Annotated[
        bool | None, msgspec.Meta(description="true: archived ones that were dropped; false: none of them.")
    ] = None


def parse_filter(call: FilterFields) -> dict[str, Any]:
    """The conditions that a call gives, as the broker takes them."""
    given = {name: value for name in NAMES if (value := getattr(call, name)) is not None}
    return given | {name: read_since(name, given[name]) for name in ("since", "until") if name in given}

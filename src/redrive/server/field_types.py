"""Types of JSON fields with their bounds: names, ids, times (RFC 3339 in UTC, durations as `30s`), and filters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from redrive.broker.validation import to_instant
from redrive.clock import Instant, to_datetime
from redrive.errors import InvalidDuration, RedriveError, RequestTooLarge
from redrive.model import duration
from redrive.model.breaker import BreakerRule
from redrive.model.classify import ErrorClass, ErrorRule
from redrive.model.death import DeadReason
from redrive.model.declaration import Option, options_of, texts_of
from redrive.model.filter import MAX_IDS, Filter
from redrive.model.ids import ID_DIGITS, TOKEN_DIGITS
from redrive.model.limits import MAX_COUNT, MAX_LABEL_CHARS, MAX_NAME_CHARS
from redrive.model.options import Conditions, ItemOptions, OperationOptions
from redrive.model.queue_options import QueueOptions
from redrive.model.redact_rules import RedactRules
from redrive.model.retry_policy import RETRY_KEYS, RetryInput
from redrive.model.search_terms import MAX_QUERY_CHARS
from redrive.model.text import to_rfc3339
from redrive.server.request import Request

MAX_TEXT_CHARS = 1_000_000
"""Maximum characters of an error or a note in a request; far fewer are stored."""
SCHEMA_REFERENCE = "#/components/schemas/{name}"
"""The form of a reference between parts of the document."""

QueueName: TypeAlias = Annotated[
    str, msgspec.Meta(max_length=MAX_NAME_CHARS, description="The name of a queue.", examples=["emails"])
]
Label: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_LABEL_CHARS)]
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARS)]


def _digits(least: int, most: int, text: str) -> msgspec.Meta:
    """Return the description of hexadecimal digits. The pattern is for clients: the refusal of the broker says more."""
    pattern = f"^[0-9a-f]{{{least},{most}}}$"
    return msgspec.Meta(max_length=most, description=text, extra_json_schema={"pattern": pattern})


ItemIdText: TypeAlias = Annotated[str, _digits(ID_DIGITS, ID_DIGITS, "The id of an item.")]
IdPrefix: TypeAlias = Annotated[str, _digits(1, ID_DIGITS, "The first digits of an id.")]
ItemIds: TypeAlias = Annotated[list[ItemIdText], msgspec.Meta(min_length=1, max_length=MAX_IDS)]
SearchText: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_QUERY_CHARS)]
TokenText: TypeAlias = Annotated[str, _digits(TOKEN_DIGITS, TOKEN_DIGITS, "The token of the lease.")]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
PageLimit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, description="Most that one answer has.")]
Cursor: TypeAlias = (
    Annotated[str, msgspec.Meta(max_length=100, description="Continue after this: the cursor of the previous page.")]
    | None
)
Actor: TypeAlias = Annotated[
    Label | None,
    msgspec.Meta(description="The actor, for the audit. If the server asks for tokens, it is the name of the token."),
]
_T = TypeVar("_T")


def each(items: Iterable[Any], make: Callable[[Any], _T]) -> list[_T]:
    """Convert each item of a request. An error gets the attribute `item`: the index of its item, from 0."""
    made: list[_T] = []
    for item in items:
        try:
            made.append(make(item))
        except RedriveError as error:
            vars(error)["item"] = len(made)
            raise
    return made


def check_batch(request: Request, size: int) -> None:
    """Raise `RequestTooLarge` if a request has more than `limits.batch` items."""
    if size > request.limits.batch:
        raise RequestTooLarge("the number of items", request.limits.batch)


def check_page(request: Request, size: int) -> None:
    """Raise `RequestTooLarge` if a response would have more than `limits.page` items."""
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
    """Return an instant as text; None for None."""
    return None if at is None else to_rfc3339(at)


def read_instant(what: str, text: str) -> Instant:
    """Return the instant of a text, which must have a time zone."""
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
    """Return the same as a datetime."""
    return to_datetime(read_instant(what, text))


def read_since(what: str, value: str | float) -> datetime | str | float:
    """Return the argument for `find`: an instant, or a duration before now."""
    if isinstance(value, str) and "-" in value and value[:4].isdigit():
        return read_datetime(what, value)
    return value


NAMES = tuple(name for name in Filter.__struct_fields__ if name != "status")
"""All conditions except the status."""


def about(declared: Any) -> Mapping[str, msgspec.Meta]:
    """Return the description of each option by name, for `priority: Annotated[Priority, ITEM["priority"]]`."""
    return {name: msgspec.Meta(description=text) for name, text in texts_of(declared).items()}


ITEM = about(ItemOptions)
CONDITION = about(Conditions)
OPERATION = about(OperationOptions)


class FilterFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Items that meet every condition given."""

    queue: Annotated[QueueName | None, CONDITION["queue"]] = None
    origin_queue: Annotated[QueueName | None, CONDITION["origin_queue"]] = None
    reason: Annotated[DeadReason | None, CONDITION["reason"]] = None
    error_type: Annotated[Label | None, CONDITION["error_type"]] = None
    error_class: Annotated[ErrorClass | None, CONDITION["error_class"]] = None
    fingerprint: Annotated[Label | None, CONDITION["fingerprint"]] = None
    words: Annotated[SearchText | None, CONDITION["words"]] = None
    since: Annotated[SinceInput | None, CONDITION["since"]] = None
    until: Annotated[SinceInput | None, CONDITION["until"]] = None
    min_attempts: Annotated[Count | None, CONDITION["min_attempts"]] = None
    min_redrives: Annotated[Count | None, CONDITION["min_redrives"]] = None
    max_redrives: Annotated[Count | None, CONDITION["max_redrives"]] = None
    headers: Annotated[dict[str, str] | None, CONDITION["headers"]] = None
    held: Annotated[bool | None, CONDITION["held"]] = None
    held_by: Annotated[Label | None, CONDITION["held_by"]] = None
    operation: Annotated[Label | None, CONDITION["operation"]] = None
    ids: Annotated[ItemIds | None, CONDITION["ids"]] = None
    id_prefix: Annotated[IdPrefix | None, CONDITION["id_prefix"]] = None
    archived: Annotated[bool | None, CONDITION["archived"]] = None
    dropped: Annotated[bool | None, CONDITION["dropped"]] = None


def parse_filter(call: FilterFields) -> dict[str, Any]:
    """Return the conditions of a call in the form that the broker takes."""
    given = {name: value for name in NAMES if (value := getattr(call, name)) is not None}
    return given | {name: read_since(name, given[name]) for name in ("since", "until") if name in given}


_TYPES: Mapping[Any, Any] = {
    duration.DurationInput: DurationInput,
    RetryInput: RetryFields,
    Collection[str]: list[str],
    str | Iterable[str]: str | list[str],
    str | Mapping[str, str]: str | dict[str, str],
    Sequence[ErrorRule | Mapping[str, Any]]: list[dict[str, Any]],
    Mapping[str, BreakerRule | Mapping[str, Any]]: dict[str, dict[str, Any]],
    RedactRules | Mapping[str, Any]: dict[str, list[str]],
}
"""JSON types of Python types, where they differ."""


def _properties(declared: Any) -> dict[str, Any]:
    """Return the JSON schema of each option."""
    texts, options = about(declared), options_of(declared)
    fields = msgspec.defstruct("Fields", [(name, Annotated[json_type(options[name]), texts[name]]) for name in options])
    _, components = msgspec.json.schema_components([fields], ref_template=SCHEMA_REFERENCE)
    properties: dict[str, Any] = components["Fields"]["properties"]
    return properties


def json_type(option: Option) -> Any:
    """Return the JSON type of an option."""
    kind = option.choices or _TYPES.get(option.type, option.type)
    if kind in (int, float):
        kind = Annotated[kind, option.bounds]
    return kind | None if option.is_optional else kind


Settings: TypeAlias = Annotated[
    dict[str, Any],
    msgspec.Meta(
        description="Settings of a queue by name; docs/reference/settings.md has their defaults. null takes a setting "
        "back that may be unset.",
        extra_json_schema={"properties": _properties(QueueOptions), "additionalProperties": False},
        examples=[{"max_attempts": 3, "dead_queue": "morgue"}],
    ),
]

"""JSON views of model values, for server, CLI and console: instants and durations as text, None omitted.

`view_of` makes the JSON from any Struct of the model, and `view_type` its type for OpenAPI, so a new field needs no
code here. A payload is JSON, text, or base64.
"""

from __future__ import annotations

import types
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Mapping
from enum import Enum, StrEnum
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec

from redrive.clock import Instant
from redrive.contract.queries import AuditEntry, FeedPage
from redrive.errors import InvalidPayload
from redrive.model.duration import Duration, format_duration
from redrive.model.feed import FeedEntry
from redrive.model.gate import Gate
from redrive.model.group import Group
from redrive.model.item import Counters, Item
from redrive.model.masked_item import is_masked
from redrive.model.operation import Operation
from redrive.model.operation_plan import OperationPlan
from redrive.model.payload import BYTES, JSON, TEXT, check_json, is_json
from redrive.model.queue import Queue, QueueStats
from redrive.model.retry_policy import RetryPolicy, format_retry_policy
from redrive.model.text import to_rfc3339

InstantText: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        description="An instant, RFC 3339 in UTC with microseconds.",
        examples=["2026-07-01T03:12:55.000000Z"],
        extra_json_schema={"format": "date-time"},
    ),
]
DurationText: TypeAlias = Annotated[str, msgspec.Meta(description="A duration.", examples=["1h30m"])]


class Encoding(StrEnum):
    """The encoding of a payload in JSON."""

    JSON = "json"
    """The payload is the value itself."""
    UTF8 = "utf8"
    """The payload is a text."""
    BASE64 = "base64"
    """The payload is bytes, as base64."""


_CONTENT_TYPES = {Encoding.JSON: JSON, Encoding.UTF8: TEXT, Encoding.BASE64: BYTES}
_text_of = msgspec.json.Decoder(str).decode
_value_of = msgspec.json.Decoder().decode


def bytes_of(payload: msgspec.Raw, encoding: Encoding, content_type: str | None) -> tuple[bytes, str]:
    """Return the bytes to store and their content type. JSON is stored byte for byte as submitted."""
    if encoding is Encoding.JSON:
        data = bytes(payload)
        check_json(data)
        if content_type is not None and not is_json(content_type):
            raise InvalidPayload("$", f"is JSON and its content type {content_type!r:.80} is not; name its encoding")
        return data, content_type or JSON
    try:
        text = _text_of(payload)
        data = text.encode() if encoding is Encoding.UTF8 else b64decode(text, validate=True)
    except (msgspec.MsgspecError, UnicodeError):
        raise InvalidPayload("$", f"must be a text where its encoding is {encoding}") from None
    except (NotBase64, ValueError) as error:
        raise InvalidPayload("$", f"is not base64: {error}") from None
    return data, content_type or _CONTENT_TYPES[encoding]


def encode_payload(payload: bytes, content_type: str) -> tuple[Encoding, msgspec.Raw | str]:
    """Return a payload for a response: the JSON itself, else the text of a text, else base64."""
    if is_json(content_type):
        try:
            _value_of(payload)
            return Encoding.JSON, msgspec.Raw(payload)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            pass  # the producer declared bytes as JSON that are not
    elif not content_type.startswith("text/"):
        return Encoding.BASE64, b64encode(payload).decode()
    try:
        return Encoding.UTF8, bytes(payload).decode()
    except UnicodeDecodeError:
        return Encoding.BASE64, b64encode(payload).decode()


def payload_view(payload: bytes, content_type: str) -> dict[str, Any]:
    """Return a payload with its encoding and its content type."""
    encoding, form = encode_payload(payload, content_type)
    return {"payload": form, "encoding": encoding, "content_type": content_type}


Viewer = Callable[[Any], Any]
_AS_TEXT: dict[type[msgspec.Struct], frozenset[str]] = {
    FeedEntry: frozenset({"number"}),
    FeedPage: frozenset({"last"}),
    AuditEntry: frozenset({"number"}),
}
"""Fields with numbers of 63 bits, sent as text: many JSON parsers keep only 53 bits."""
_KEPT_BACK: dict[type[msgspec.Struct], frozenset[str]] = {
    Operation: frozenset({"mark", "position"}),
    Queue: frozenset({"breakers"}),
    Gate: frozenset({"leased"}),
}
"""Fields for stores and brokers only, omitted from views. Breakers are shown as `BreakerStatus`."""
_PROPERTIES: dict[type[msgspec.Struct], tuple[str, ...]] = {
    Group: ("advice",),
    OperationPlan: ("changed",),
    QueueStats: ("oldest_age",),
}
"""Computed properties, shown beside the fields."""
KIND_HEADER = "kind"
"""The header that stores a producer's `kind`."""
REFERENCE_HEADER = "reference"


def view_of(value: msgspec.Struct) -> dict[str, Any]:
    """Return a model value as JSON. Use `item_view` for an item."""
    view: dict[str, Any] = _viewer(type(value))(value)
    return view


def item_view(item: Item, *, fits: bool = True) -> dict[str, Any]:
    """Return an item as JSON; without payload, headers, result and variables if it is masked.

    Without `fits`, `too_large` replaces the payload and the result.
    """
    view = view_of(item)
    payload, content_type = view.pop("payload"), view.pop("content_type")
    headers, _ = view.pop("headers"), view.pop("result", None)
    if is_masked(item):
        view.pop("idempotency_key", None)
        for entry in view["history"]:
            entry.get("failure", {}).pop("locals", None)
        return {**view, "hidden": True}
    view["headers"] = headers
    view |= {name: headers[name] for name in (KIND_HEADER, REFERENCE_HEADER) if name in headers}
    if not fits:
        return {**view, "content_type": content_type, "too_large": True}
    if item.result is not None:
        view["result"] = payload_view(item.result.payload, item.result.content_type)
    return {**view, **payload_view(payload, content_type)}


@cache
def _viewer(kind: type[msgspec.Struct]) -> Viewer:
    if kind is RetryPolicy:
        return format_retry_policy
    as_text = _AS_TEXT.get(kind, ())
    fields = [(name, str if name in as_text else _view(type_)) for name, type_ in _fields(kind)]

    def view(value: Any) -> dict[str, Any]:
        given = ((name, how, getattr(value, name)) for name, how in fields)
        return {name: each if how is None else how(each) for name, how, each in given if each is not None}

    return view


def _fields(kind: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    hidden = _KEPT_BACK.get(kind, frozenset())
    fields = get_type_hints(kind, include_extras=True)
    for name in _PROPERTIES.get(kind, ()):
        fields[name] = get_type_hints(getattr(kind, name).fget, include_extras=True)["return"]
    return [(name, type_) for name, type_ in fields.items() if name not in hidden]


def _view(kind: Any) -> Viewer | None:
    """Return the function that makes the view of a value of that type; None if the value is its own view."""
    if kind is Instant:
        return to_rfc3339
    if kind == Duration:
        return format_duration
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _viewer(kind)
    arguments = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        inner = [how for each in arguments if each is not type(None) and (how := _view(each)) is not None]
        words = _words(kind)
        return _word_view(words, inner[0]) if inner and words else inner[0] if inner else None
    if get_origin(kind) is tuple and (each := _view(arguments[0])) is not None:
        return lambda values: [each(value) for value in values]
    if get_origin(kind) in (Mapping, dict):
        key, item = _view(arguments[0]), _view(arguments[1])
        return None if key is item is None else _table_view(key or _same, item or _same)
    return None


def _words(kind: Any) -> tuple[str, ...]:
    """Return the literal words allowed instead of a value of another type."""
    return tuple(word for each in get_args(kind) if get_origin(each) is Literal for word in get_args(each))


def _word_view(words: tuple[str, ...], other: Viewer) -> Viewer:
    return lambda value: value if value in words else other(value)


def _table_view(key: Viewer, item: Viewer) -> Viewer:
    return lambda table: {key(name): item(value) for name, value in table.items()}


def _same(value: Any) -> Any:
    return value


@cache
def view_type(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return the type of the view of that type, for the OpenAPI document."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for name, type_ in _fields(kind):
        shape = str if name in _AS_TEXT.get(kind, ()) else _shape(type_)
        fields.append((name, shape, None) if _is_optional(type_) else (name, shape))
    return defined(kind.__name__, fields, kind.__doc__)


def defined(name: str, fields: list[Any], doc: str | None) -> type[msgspec.Struct]:
    """Return a new type for the OpenAPI document only."""
    return msgspec.defstruct(name, fields, kw_only=True, namespace={"__doc__": doc}, module=__name__)


def extended(kind: type[msgspec.Struct], fields: list[Any], name: str | None = None) -> type[msgspec.Struct]:
    """Return a copy of a document type with more fields, or fields of other types."""
    more = {field[0] for field in fields}
    given = [
        (each.name, each.type) if each.required else (each.name, each.type, None)
        for each in msgspec.structs.fields(kind)
        if each.name not in more
    ]
    return defined(name or kind.__name__, [*given, *fields], kind.__doc__)


def without(kind: type[msgspec.Struct], *names: str) -> type[msgspec.Struct]:
    """Return a copy of a document type without some of its fields."""
    given = [
        (each.name, each.type) if each.required else (each.name, each.type, None)
        for each in msgspec.structs.fields(kind)
        if each.name not in names
    ]
    return defined(kind.__name__, given, kind.__doc__)


def _shape(kind: Any) -> Any:
    if kind is Instant:
        return InstantText
    if kind == Duration:
        return DurationText
    if kind is RetryPolicy:
        return dict[str, Any]
    if kind is Counters:
        return Counters  # its view is the value itself
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return view_type(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    arguments = get_args(kind)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        if words := _words(kind):
            return Annotated[str, msgspec.Meta(description=f"A duration, or `{'`, `'.join(words)}`.")]
        return Union[tuple(_shape(each) for each in arguments)]  # noqa: UP007  # computed members
    if origin is tuple:
        return list[_shape(arguments[0])]  # type: ignore[misc]
    if origin in (Mapping, dict):
        return dict[_shape(arguments[0]), _shape(arguments[1])]  # type: ignore[misc]
    return getattr(kind, "__supertype__", kind)


def _is_optional(kind: Any) -> bool:
    return type(None) in get_args(kind)
